"""The page of fine-tuning results, generated from receipts.

`benchmarks.fine_tuning` writes the receipts, `docs/results/fine_tuning/*.json`.
Published figures of BERT-Base are in `docs/results/published.json`.

    python -m website.fine_tuning

writes the short table into README.md and docs/index.md.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from bertlib.reporting import report_page
from website import markdown

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "results"

Json = Mapping[str, Any]

# Heading and description of each task, in the order of the page.
TASKS = {
  "MRPC": ("MRPC", "paraphrases, dev set"),
  "CoLA": ("CoLA", "acceptable sentences, dev set"),
  "SST-2": ("SST-2", "sentiment, dev set, one epoch"),
  "STS-B": ("STS-B", "similarity of sentences, dev set"),
  "RTE": ("RTE", "entailment, dev set"),
  "WNLI": ("WNLI", "Winograd schemas, dev set"),
  "SQuAD-1.1": (
    "SQuAD 1.1",
    "part of the training set, 5,101 questions; the whole dev set",
  ),
  "SQuAD-2.0": (
    "SQuAD 2.0",
    "parts of the training set, 4,719 questions, and of the dev set, 1,407",
  ),
  "WNUT17": ("WNUT17", "entities in social media, test set"),
  "NCBI-disease": ("NCBI disease", "disease names in abstracts, test set"),
  "STS-B-embeddings": (
    "STS-B, sentence embeddings",
    "cosine of two vectors, dev set, one epoch",
  ),
  "pretraining": (
    "Pretraining",
    "4 layers from random weights, four novels, held-out chapters",
  ),
}

METRICS = {
  "eval_accuracy": "accuracy",
  "eval_f1": "F1",
  "eval_matthews": "Matthews",
  "eval_pearson": "Pearson",
  "eval_spearman": "Spearman",
  "eval_precision": "precision",
  "eval_recall": "recall",
  "exact_match": "exact match",
  "f1": "F1",
  "best_exact": "exact match, tuned threshold",
  "best_f1": "F1, tuned threshold",
  "masked_lm_accuracy": "masked LM accuracy",
  "masked_lm_loss": "masked LM loss",
  "next_sentence_accuracy": "next-sentence accuracy",
}
# Metrics that are in percent already, or have another unit.
_UNSCALED = {"exact_match", "f1", "best_exact", "best_f1", "masked_lm_loss"}

_INTRODUCTION = """\
# Results of training

Each score is from a training with the command below it, and beside it the score
of the same training by another library: the same encoder, data, number of
steps, learning rate, batch size and precision. The encoder is {model}, with 6
layers and hidden size 384. **It is not BERT-Base**; the last column has
published figures of BERT-Base, which was not run here.

Scores are in percent, losses in nat. With several seeds, the score is the mean
± the standard deviation over seeds; the table has the number of seeds here and
of the other library. A single seed says little about small dev
sets such as those of RTE and WNLI. Processor time is that of the whole
command, with start and evaluation, on a machine that was shared with other
work; [Performance](performance.md) compares times. `benchmarks/fine_tuning.py`
runs the trainings and writes a receipt for each task; this page is generated
from the receipts.

"""

_HEADS = (
  "task",
  "metric",
  "here",
  "other library",
  "seeds",
  "BERT-Base, not run here",
)

_FORMAT_CHECKS = """\
## Format checks, without scores

Training sets of these tasks were not at hand. Tests read their dev or test
files, make features of them, and evaluate published predictions where there are
some: QNLI, MNLI (a sample of 240 rows), AX (the GLUE diagnostic set), XNLI in
Chinese, XQuAD in twelve languages, CMRC 2018, DRCD, and the Chinese entities of
MSRA.
"""


def receipts() -> dict[str, Json]:
  """The receipts by task, in the order of the page."""
  found = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in (FOLDER / "fine_tuning").glob("*.json")
  }
  return {task: found[task] for task in TASKS if task in found}


def page() -> str:
  """The page."""
  kept = receipts()
  published = json.loads(
    (FOLDER / "published.json").read_text(encoding="utf-8")
  )
  models = dict.fromkeys(receipt["model"] for receipt in kept.values())
  parts = [
    _INTRODUCTION.format(model=", ".join(models))
    + markdown.table(
      _HEADS,
      (
        row
        for task, receipt in kept.items()
        for row in _rows(task, receipt, published)
      ),
    ),
    _sources(published),
    *(_details(task, receipt) for task, receipt in kept.items()),
    _FORMAT_CHECKS,
  ]
  return "\n".join(parts)


# Files that contain the short table, and what surrounds it there.
SUMMARIES = ("README.md", "docs/index.md")
_BEGIN, _END = "<!-- results: begin -->\n", "<!-- results: end -->\n"


def summary() -> str:
  """The short table: the first metric of each task."""
  rows = []
  for task, receipt in receipts().items():
    metric = next(iter(receipt["ours"]["runs"][0]["metrics"]))
    ours, peer = receipt["ours"], receipt["peer"]
    other = _score(peer, metric)
    if peer["runs"]:
      other = f"{_library(peer)}: {other}"
    title, _ = TASKS[task]
    seeds = f"{len(ours['runs'])} / {len(peer['runs'])}"
    rows.append([title, METRICS[metric], _score(ours, metric), other, seeds])
  return markdown.table(
    ["task", "metric", "here", "other library", "seeds"], rows
  )


def with_summary(text: str) -> str:
  """A page with the short table renewed."""
  before, _, rest = text.partition(_BEGIN)
  _, _, after = rest.partition(_END)
  return f"{before}{_BEGIN}\n{summary()}\n{_END}{after}"


def main() -> None:
  """Renews the short tables."""
  for name in SUMMARIES:
    path = ROOT / name
    text = with_summary(path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


def _rows(task: str, receipt: Json, published: Json) -> Iterator[list[str]]:
  """Rows of the first table: one per metric."""
  title, _ = TASKS[task]
  sides = receipt["ours"], receipt["peer"]
  figures = published["tasks"].get(task, {})
  for metric in receipt["ours"]["runs"][0]["metrics"]:
    figure = "–"
    if metric in figures:
      source = published["sources"][figures["source"]]
      figure = f"[{figures[metric]:g}]({source['url']})"
    yield [
      f"[{title}](#{task.lower().replace('.', '')})",
      METRICS[metric],
      *(_score(side, metric) for side in sides),
      " / ".join(str(len(side["runs"])) for side in sides),
      figure,
    ]


def _sources(published: Json) -> str:
  """The list of the sources of published figures."""
  return "Published figures are those of:\n\n" + "".join(
    f"- [{source['text']}]({source['url']})\n"
    for source in published["sources"].values()
  )


def _score(side: Json, metric: str) -> str:
  """Mean and standard deviation of a metric over seeds."""
  values = [_scaled(metric, run["metrics"][metric]) for run in side["runs"]]
  if not values:
    return "–"
  if len(values) == 1:
    return f"{values[0]:.2f}"
  return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


def _scaled(metric: str, value: float) -> float:
  return value if metric in _UNSCALED else 100 * value


def _details(task: str, receipt: Json) -> str:
  """Section of a task: commands, and a row per training."""
  title, about = TASKS[task]
  metrics = list(receipt["ours"]["runs"][0]["metrics"])
  heads = ["trained by", "seed", *(METRICS[name] for name in metrics)]
  heads += ["processor time", "precision", "date"]
  rows = [
    [
      name,
      str(run["seed"]),
      *(f"{_scaled(m, run['metrics'][m]):.2f}" for m in metrics),
      _duration(run.get("processor_seconds")),
      run["precision"],
      run["date"],
    ]
    for name, run in _runs(receipt)
  ]
  commands = "\n".join(
    _wrapped(command)
    for side in ("ours", "peer")
    for command in receipt[side]["commands"]
  )
  facts = [
    f"- {_library(receipt[side])}: {text}\n"
    for side in ("ours", "peer")
    for text in dict.fromkeys(map(_environment, receipt[side]["runs"]))
  ]
  return (
    f"## {title} {{ #{task.lower().replace('.', '')} }}\n\n"
    f"{about[0].upper()}{about[1:]}.\n\n{markdown.table(heads, rows)}\n"
    f"```shell\n{commands}\n```\n\n"
    f"{''.join(facts)}- [Receipt](fine_tuning/{task}.json), with hashes of the"
    " data\n"
  )


def _runs(receipt: Json) -> Iterator[tuple[str, Json]]:
  """Name of the library and run, of all runs."""
  for side in ("ours", "peer"):
    for run in receipt[side]["runs"]:
      yield _library(receipt[side]), run


def _library(side: Json) -> str:
  if "benchmarks.finetune_sentence_transformers" in side["commands"][-1]:
    return "sentence-transformers"
  if "benchmarks.finetune_" in side["commands"][-1]:
    return "transformers"
  return "this project"


def _environment(run: Json) -> str:
  """Versions and device of a run, in words."""
  versions = {
    name: value[:10] if name == "commit" else value
    for name, value in run["versions"].items()
  }
  device = run["device"]
  unit = "core" if device["cores"] == 1 else "cores"
  where = ", ".join(
    [f"{device['cpu']}, {device['cores']} {unit}", *device["gpus"]]
  )
  return f"{', '.join(' '.join(pair) for pair in versions.items())}; {where}"


def _duration(seconds: float | None) -> str:
  if seconds is None:  # not measured
    return "–"
  return report_page.format_duration(seconds)


def _wrapped(command: str) -> str:
  """A command in lines of at most 80 columns."""
  lines = textwrap.wrap(
    command,
    76,
    subsequent_indent="  ",
    break_long_words=False,
    break_on_hyphens=False,
  )
  return " \\\n".join(lines)


if __name__ == "__main__":
  main()
