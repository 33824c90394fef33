"""The page of fine-tuning results, from receipts.

`benchmarks.fine_tuning` writes the receipts, `docs/results/fine_tuning/*.json`.
Published figures of BERT-Base are in `docs/results/published.json`, which has
the tasks in the order of the page. The table of equal steps is that of
`benchmarks.lockstep`, `docs/results/lockstep.jsonl`.

    python -m website.fine_tuning

renews its generated parts, and the short table in README.md.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from typing import Any

from scipy import stats

from benchmarks import lockstep, results
from website import markdown

FOLDER = markdown.ROOT / "docs" / "results"
PAGE = FOLDER / "fine_tuning.md"

Json = Mapping[str, Any]

# Those of the table in README.md.
HEADLINES = ("MRPC", "SQuAD-1.1", "NCBI-disease", "STS-B-embeddings")

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
  "eval_ndcg@10": "nDCG@10",
  "eval_mrr@10": "MRR@10",
  "masked_lm_accuracy": "masked LM accuracy",
  "masked_lm_loss": "masked LM loss",
  "next_sentence_accuracy": "next-sentence accuracy",
}
# Metrics that are in percent already, or have another unit.
_UNSCALED = {"exact_match", "f1", "best_exact", "best_f1", "masked_lm_loss"}

_HEADS = ("task", "metric", "here", "other library", "seeds")
_HEADS = (*_HEADS, "difference, 95% interval")


def _published() -> Json:
  """Published figures of BERT-Base, and their sources."""
  text = (FOLDER / "published.json").read_text(encoding="utf-8")
  return json.loads(text)


def receipts() -> dict[str, Json]:
  """The receipts by task, in the order of the page.

  If a receipt has several versions of this project, only the newest counts.
  """
  found = {}
  for path in (FOLDER / "fine_tuning").glob("*.json"):
    receipt = json.loads(path.read_text(encoding="utf-8"))
    ours = receipt["ours"]
    newest = max(map(_version, ours["runs"]), key=markdown.version_order)
    ours["runs"] = [run for run in ours["runs"] if _version(run) == newest]
    found[path.stem] = receipt
  return {task: found[task] for task in _published()["tasks"]}


def _version(run: Json) -> str:
  return run["versions"]["project"]


def page() -> str:
  """Text of the page."""
  kept = receipts()
  return markdown.renewed(
    PAGE,
    results=_scores(kept),
    equal_steps=_equal_steps(),
    tasks="\n".join(map(_details, kept.values())),
  )


def _scores(kept: Mapping[str, Json]) -> str:
  """Table of all scores, and the sources of the published ones."""
  published = _published()
  sources = published["sources"]
  rows = []
  for task, receipt in kept.items():
    title, figures = receipt["title"], published["tasks"][task]
    for metric in receipt["metrics"]:
      figure = "–"
      if metric in figures:
        url = sources[figures["source"]]["url"]
        figure = f"[{figures[metric]:g}]({url})"
      link = f"[{title}](#{markdown.anchor(title)})"
      rows.append([link, *_cells(receipt, metric), figure])
  listed = (f"- [{s['text']}]({s['url']})\n" for s in sources.values())
  table = markdown.table([*_HEADS, "BERT-Base, not run here"], rows)
  return f"{table}\nPublished figures are those of:\n\n{''.join(listed)}"


def summary() -> str:
  """The short table of README.md: the first metric of some tasks."""
  rows, versions = [], set()
  found = receipts()
  for task in HEADLINES:
    receipt = found[task]
    name, ours, other, *more = _cells(receipt, receipt["metrics"][0])
    if receipt["peer"]["runs"]:
      other = f"{_library(receipt['peer'])}: {other}"
    versions.add(_version(receipt["ours"]["runs"][0]))
    rows.append([receipt["title"], name, ours, other, *more])
  listed = ", ".join(sorted(versions, key=markdown.version_order))
  table = markdown.table(_HEADS, rows)
  return f"{table}\nEach row is of one version: {listed}.\n"


def _cells(receipt: Json, metric: str) -> list[str]:
  """Cells that both tables have: a metric on both sides."""
  sides = receipt["ours"], receipt["peer"]
  return [
    METRICS[metric],
    *(_score(side, metric) for side in sides),
    " / ".join(str(len(side["runs"])) for side in sides),
    _difference(*sides, metric),
  ]


def _score(side: Json, metric: str) -> str:
  """Mean and standard deviation of a metric over seeds."""
  values = _values(side, metric)
  if not values:
    return "–"
  if len(values) == 1:
    return f"{values[0]:.2f}"
  mean, deviation = statistics.fmean(values), statistics.stdev(values)
  return f"{mean:.2f}\N{NBSP}±\N{NBSP}{deviation:.2f}"


def _difference(ours: Json, peer: Json, metric: str) -> str:
  """95% interval of the difference of the means over seeds, and its sign."""
  values = [_values(side, metric) for side in (ours, peer)]
  if not values[1]:
    return "–"
  if min(map(len, values)) == 1:
    return "unknown, one seed"
  low, high = stats.ttest_ind(*values, equal_var=False).confidence_interval()
  if not low < high:  # seeds without any deviation
    return "unknown"
  sign = "higher" if low > 0 else "lower" if high < 0 else "none shown"
  return f"{sign}: {low:+.2f} to {high:+.2f}".replace("-", "−")


def _values(side: Json, metric: str) -> list[float]:
  scale = 1 if metric in _UNSCALED else 100
  return [scale * run["metrics"][metric] for run in side["runs"]]


def _equal_steps() -> str:
  """Differences from the steps of PyTorch, and how they were measured."""
  found = results.read(str(FOLDER / "lockstep.jsonl"))
  rows = [
    [result.work, *map("{:.1e}".format, lockstep.differences(result))]
    for result in found
  ]
  versions = dict.fromkeys(
    f"- {name}: {markdown.versions(versions)}; {result.processor}\n"
    for result in found
    for name, versions in (
      ("this project", result.versions),
      ("peer", result.sides["pytorch"]["versions"]),
    )
  )
  return (
    f"{markdown.table(lockstep.HEADS, rows)}\n"
    f"{len(found[0].more['losses']['ours'])} steps; the script fails if a loss"
    f" differs by more than {lockstep.MAX_DIFFERENCE:g}.\n\n"
    f"```shell\n{markdown.command(found[0].command)}\n```\n\n"
    f"{''.join(sorted(versions, reverse=True))}"
  )


def _details(receipt: Json) -> str:
  """Section of a task: commands, and the score of each training."""
  metrics = receipt["metrics"]
  rows, commands, facts = [], [], []
  for side in (receipt["ours"], receipt["peer"]):
    if not side["runs"]:
      continue
    library, numbers = _library(side), [run["seed"] for run in side["runs"]]
    seeds = " to ".join(map(str, dict.fromkeys([numbers[0], numbers[-1]])))
    commands += map(markdown.command, side["commands"])
    ways = dict.fromkeys(map(_environment, side["runs"]))
    facts += [f"- {library}: {way}\n" for way in ways]
    for name in metrics:
      scores = ", ".join(map("{:.2f}".format, _values(side, name)))
      row = [library, METRICS[name], seeds, scores, _processor_time(side)]
      rows.append(row)
  heads = ["trained by", "metric", "seeds", "score of each", "processor time"]
  table = markdown.table(heads, rows)
  commands = "\n".join(commands)
  return (
    f"## {receipt['title']}\n\n"
    f"{receipt['about']}.\n\n{table}\n"
    f"{_added_seeds(receipt, metrics[0])}"
    f"```shell\n{commands}\n```\n\n"
    f"{''.join(facts)}- [Receipt](fine_tuning/{receipt['task']}.json)\n"
  )


def _processor_time(side: Json) -> str:
  """Median over the trainings whose time was measured."""
  seconds = [run.get("processor_seconds") for run in side["runs"]]
  measured = [time for time in seconds if time is not None]
  if not measured:
    return "–"
  minutes, seconds = divmod(round(statistics.median(measured)), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours} h {minutes:02} min {seconds:02} s"
  return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def _added_seeds(receipt: Json, metric: str) -> str:
  """Differences of the first eight seeds and of those added, if there are."""
  sides = receipt["ours"], receipt["peer"]
  parts = [
    [{**side, "runs": side["runs"][part]} for side in sides]
    for part in (slice(8), slice(8, None))
  ]
  if not all(side["runs"] for side in parts[1]):
    return ""
  first, added = (_difference(*part, metric) for part in parts)
  return (
    f"Difference of the first eight seeds alone, {first}; of the seeds added"
    f" after them, {added}.\n\n"
  )


def _library(side: Json) -> str:
  commands = " ".join(side["commands"])
  if "benchmarks.finetune_sentence_transformers" in commands:
    return "sentence-transformers"
  if "benchmarks.finetune_" in commands:
    return "transformers"
  return "this project"


def _environment(run: Json) -> str:
  """Versions and device of a run, in words."""
  device = run["device"]
  unit = "core" if device["cores"] == 1 else "cores"
  where = ", ".join(
    [f"{device['cpu']}, {device['cores']} {unit}", *device.get("gpus", ())]
  )
  return f"{markdown.versions(run['versions'])}; {run['precision']}; {where}"


if __name__ == "__main__":
  PAGE.write_text(page(), encoding="utf-8")
  markdown.renew(markdown.README, results=summary())
