"""The page on performance, from the results that benchmarks wrote.

    python -m website.performance

renews its generated part, and the table of measurements in README.md.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence

from benchmarks import results
from benchmarks.results import MEASURES, Ratio, Result
from website import markdown

PAGE = markdown.ROOT / "docs" / "results" / "performance.md"
FOLDER = PAGE.with_suffix("")

# Tables of the page: script, and the only measure that is shown; None: all.
SECTIONS = {
  "Training step": ("training_step", None),
  "Step of ELECTRA's pretraining": ("electra_step", None),
  "Epoch of fine-tuning": ("mrpc_epoch", None),
  "Inference, throughput": ("inference", "batches"),
  "Inference, median latency": ("inference", "median"),
  "Sentence vectors, file to file": ("file_prediction", None),
  "Training of sentence embeddings": ("embeddings", None),
  "Training of rerankers": ("reranking", None),
  "Memory of a training step": ("peak_memory", None),
  "Tokenization": ("tokenizer_speed", None),
  "Pretraining data": ("pretraining_data", None),
  "Pretraining on packed rows": ("packing", None),
  "GPUs": ("gpu", None),
}

# Rows of README.md: script, pattern of the work, measure, and pattern of this
# project's sides, of which the fastest is shown.
HEADLINES = {
  "Epoch of MRPC, MiniLM": ("mrpc_epoch", "MRPC, minilm", "an epoch", "ours"),
  "MRPC pairs in batches, MiniLM, as ONNX": (
    "inference",
    "MRPC pairs, MiniLM",
    "batches",
    "exported-.*",
  ),
  "One MRPC pair, MiniLM, as ONNX": (
    "inference",
    "one MRPC pair, MiniLM",
    "median",
    "exported-.*",
  ),
  "Sentence vectors of a file of texts, MiniLM": (
    "file_prediction",
    r"vectors of 100,000 texts of .*",
    "batches",
    "ours",
  ),
  "English text to ids, as Python lists": (
    "tokenizer_speed",
    r".* of (?!.*_zh_).*",
    "ids",
    "ours",
  ),
}

# Names of sides that are not those of a library, and their library.
_OTHERS = {
  "hugging face": ("transformers", "transformers"),
  "onnx_runtime": ("ONNX Runtime", "onnxruntime"),
  "openvino": ("OpenVINO", "openvino"),
  "openvino_as_they_come": ("OpenVINO in unsorted batches", "openvino"),
  "sentence transformers": ("sentence-transformers", "sentence-transformers"),
  "sentence_transformers_onnx": (
    "ONNX backend of sentence-transformers",
    "sentence_transformers",
  ),
  "reference": ("google-research/bert", "tensorflow"),
  "garden": ("Model Garden", "tf-models-official"),
  "estimate": ("its estimate", ""),
}

# Packages that run exports.
_ENGINES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}

# Makers by the start of the name of a processor.
_MAKERS = ("AMD", "Intel")

# Instruction sets by the name of one of their flags.
_EXTENSIONS = {
  "avx2": "AVX2",
  "avx512f": "AVX-512",
  "avx512_vnni": "VNNI",
  "amx_tile": "AMX",
  "asimd": "NEON",
  "sve": "SVE",
}


def kept() -> list[Result]:
  """The results in the repository: by work, the newest first."""
  paths = sorted(FOLDER.glob("*.jsonl"))
  found = [result for path in paths for result in results.read(path)]
  found.sort(key=_age, reverse=True)
  works = list(dict.fromkeys((r.benchmark, r.work) for r in found))
  return sorted(found, key=lambda r: works.index((r.benchmark, r.work)))


def page() -> str:
  """Text of the page."""
  return markdown.renewed(PAGE, performance=render(kept()))


def render(found: list[Result]) -> str:
  """The generated part of the page, of some results."""
  runs = list(dict.fromkeys(map(_run, found)))
  parts = []
  for title, (benchmark, only) in SECTIONS.items():
    of_benchmark = [r for r in found if r.benchmark == benchmark]
    if tables := list(_tables(of_benchmark, only, runs)):
      parts += [f"## {title}\n", *tables]
  if runs:
    parts.append("## Runs\n")
  for number, run in enumerate(runs, 1):
    same = [result for result in found if _run(result) == run]
    parts.append(_describe_run(number, same))
  return "\n".join(parts)


def _age(result: Result) -> tuple[tuple[int, ...], str]:
  return markdown.version_order(result.versions["project"]), result.date


def summary(found: list[Result]) -> str:
  """The table of README.md: of each headline the newest of most threads."""
  runs = list(dict.fromkeys(map(_run, found)))
  page = PAGE.relative_to(markdown.ROOT).as_posix()
  rows = []
  for text, (benchmark, work, measure, side) in HEADLINES.items():
    measured = [
      (result, ratio)
      for result in found
      if result.benchmark == benchmark and re.fullmatch(work, result.work)
      for ratio in _to_the_fastest(result)
      if ratio.measure == measure and re.fullmatch(side, ratio.side)
    ]
    if measured:
      best = max(
        measured,
        key=lambda pair: (pair[0].threads, _age(pair[0]), pair[1].median),
      )
      link = f"`benchmarks.{benchmark}`, {_run_link(best[0], runs, page)}"
      rows.append([text, *_compared(*best), link])
  heads = ["work", "this project", "fastest other code", "ratio", "run"]
  return markdown.table(heads, rows)


def _tables(
  found: list[Result], only: str | None, runs: list[tuple]
) -> Iterator[str]:
  """The tables of a section: ratios, and metrics of models."""
  rows, metrics = [], []
  is_one = only or len({name for r in found for name in r.values}) == 1
  for result in found:
    link = _run_link(result, runs)
    for ratio in _to_the_fastest(result):
      if only in (None, ratio.measure):
        measure = "" if is_one else f": {ratio.measure}"
        cells = _compared(result, ratio)
        rows.append([f"{result.work}{measure}", *cells, link])
    for measure, by_side in result.values.items():
      if MEASURES[measure].is_metric:
        cells = _compared_metrics(result, measure, by_side)
        metrics += ([result.work, measure, *row, link] for row in cells)
  if rows:
    heads = ["work", "this project", "compared with", "ratio", "run"]
    yield markdown.table(heads, rows)
  if metrics:
    yield "Metrics of these models, means of all passes:\n"
    heads = ["work", "metric", "this project", "compared with", "difference"]
    yield markdown.table([*heads, "run"], metrics)


def _to_the_fastest(result: Result) -> Iterator[Ratio]:
  """Ratio of each side of ours to the fastest other code."""
  for measure, by_side in result.values.items():
    for side in by_side:
      if ratios := [r for r in result.ratios if r[:2] == (measure, side)]:
        yield min(ratios, key=lambda ratio: ratio.median)


def _compared(result: Result, ratio: Ratio) -> list[str]:
  """Cells of both values and their ratio."""
  measure = MEASURES[ratio.measure]
  by_side = result.values[ratio.measure]
  own, other = (
    _unbroken(measure.show(statistics.median(by_side[side])))
    for side in (ratio.side, ratio.against)
  )
  word = "unclear"
  if ratio.lowest > 1:
    word = measure.words[0]
  elif ratio.highest < 1:
    word = measure.words[1]
  text = f"**{ratio.median:.2f}** {word}"
  if ratio.lowest < ratio.highest:
    passes = f"({ratio.lowest:.2f} to {ratio.highest:.2f})"
    text += f" {_unbroken(passes)}"
  return [
    f"{_own_name(result, ratio.side)}{own}",
    f"{_other_name(result, ratio.against)}: {other}",
    text,
  ]


def _compared_metrics(
  result: Result, measure: str, by_side: dict[str, list[float]]
) -> Iterator[list[str]]:
  """Cells of both means and their difference, for each other side."""
  show = MEASURES[measure].show
  means = {side: statistics.fmean(found) for side, found in by_side.items()}
  (own, value), *others = means.items()
  for other, theirs in others:
    yield [
      f"{_own_name(result, own)}{show(value)}",
      f"{_other_name(result, other)}: {show(theirs)}",
      f"{value - theirs:+.4f}",
    ]


def _unbroken(text: str) -> str:
  """The text on one line also in a narrow column."""
  return text.replace(" ", "\u00a0")


def _own_name(result: Result, side: str) -> str:
  """Precision and options of this project, as a prefix of a value."""
  if "-" in side:  # predictor-int8
    engine, _, precision = side.partition("-")[2].rpartition("_")
    names = [f"in {_ENGINES[engine]}"] if engine else []
    names.append(precision)
  else:
    names = [] if side == "ours" else [side]
    names += [_way(result, side)]
  names = ", ".join(filter(None, names))
  return f"{names}: ".replace("_", " ") if names else ""


def _other_name(result: Result, side: str) -> str:
  """Name, version and precision of other code."""
  family, _, precision = side.partition("-")
  name, library = _OTHERS.get(family, (family, family))
  version = result.sides[side]["versions"].get(library, "")
  version = re.split("[+-]", version)[0]  # without its build
  names = f"{name} {version}".strip()
  return ", ".join(filter(None, [names, precision or _way(result, side)]))


def _way(result: Result, side: str) -> str:
  """The description of a side, without what led to it."""
  return re.split(r"[;(]", result.sides[side]["description"])[0].strip()


# Runs


def _run(result: Result) -> tuple:
  """Key of a run, the same for all of its results."""
  machine = result.processor, result.instruction_sets, result.threads
  return result.command, result.date, result.versions["project"], *machine


def _run_link(result: Result, runs: list[tuple], page: str = "") -> str:
  number = runs.index(_run(result)) + 1
  maker = next(filter(result.processor.startswith, _MAKERS), "")
  newest = _extensions(result).rpartition(", ")[2]
  where = result.device or f"{maker} {newest}".strip()
  facts = [result.versions["project"], where, _threads(result), result.date]
  return f"[{', '.join(facts)}]({page}#run-{number})"


def _threads(result: Result) -> str:
  return f"{result.threads} thread{'s' * (result.threads > 1)}"


def _extensions(result: Result) -> str:
  names = set(result.instruction_sets.split())
  return ", ".join(text for name, text in _EXTENSIONS.items() if name in names)


def _describe_run(number: int, of_run: Sequence[Result]) -> str:
  first = of_run[0]
  facts = [first.date, f"{first.processor} ({_extensions(first)})"]
  facts += [first.device] if first.device else []
  facts.append(_threads(first))
  if first.load is not None:
    facts.append(f"load average {first.load:g}")
  versions: dict[str, str] = {}
  for result in of_run:
    for side in result.sides.values():
      versions |= side["versions"]
  versions |= {k: v for k, v in first.versions.items() if k != "commit"}
  versions["this project"] = versions.pop("project", "")
  libraries = markdown.versions(dict(sorted(versions.items())))
  works = "; ".join(dict.fromkeys(result.work for result in of_run))
  lengths = [
    len(of_side)
    for result in of_run
    for by_side in result.values.values()
    for of_side in by_side.values()
  ]
  passes = max(lengths, default=1)
  notes = "".join(
    f"\n{note}\n" for note in dict.fromkeys(r.note for r in of_run) if note
  )
  return (
    f"### Run {number}\n\n"
    f"{works}. {', '.join(facts)}, {passes} pass{'es' * (passes > 1)}."
    f" Versions: {libraries}.\n{notes}\n"
    f"```shell\n{first.command}\n```\n"
  )


if __name__ == "__main__":
  PAGE.write_text(page(), encoding="utf-8")
  markdown.renew(markdown.README, performance=summary(kept()))
