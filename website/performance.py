"""The page on performance, from the results that benchmarks wrote."""

from __future__ import annotations

import json
import pathlib
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import results
from benchmarks.results import MEASURES, Ratio, Result
from website import markdown

FOLDER = (
  pathlib.Path(__file__).resolve().parent.parent
  / "docs"
  / "results"
  / "performance"
)

_INTRODUCTION = """\
# Performance

Each row compares this project with other code that did the same work in the
same run: in turns, on one machine, with the same number of threads. The page is
made from files that the [benchmarks](../about/benchmarks.md) wrote.

- **The ratio** is what the other code takes divided by what this project takes.
  Above one, this project is faster, or needs less memory. It is the median over
  the passes of a run; the lowest and the highest pass are in parentheses. If
  they lie on both sides of one, the row says "unclear".
- **Values** are medians over the passes. They depend on the machine, and the
  machines were shared with other work: each run has the load average at its
  start. Compare ratios, and no values of different runs.
- **Goals** are ratios to reach, or limits, and are compared with medians. Those
  that are missed stay here.
- **The other code** runs in the precision and with the options that are fastest
  on the machine, as [described](../about/benchmarks.md#reading-the-output).
- **To repeat a row**, follow the link to its run.
"""


_OPEN_GOALS = """\
## Goals that no run shows

Some were measured before results were kept, as
[benchmarks](../about/benchmarks.md#goals-and-results) says.
"""


class Section(NamedTuple):
  """A table of the page.

  Attributes:
    title: heading.
    benchmarks: names of scripts.
    measures: those that it shows.
    head: head of the column of ratios.
    words: for a ratio above one, and below.
  """

  title: str
  benchmarks: Sequence[str]
  measures: Sequence[str]
  head: str = "this project is … times as fast"
  words: tuple[str, str] = ("faster", "slower")


SECTIONS = [
  Section("Training step", ["training_step"], ["a step"]),
  Section("Epoch of fine-tuning", ["mrpc_epoch"], ["an epoch"]),
  Section("Inference, throughput", ["inference"], ["batches"]),
  Section("Inference, latency", ["inference"], ["median", "99th percentile"]),
  Section(
    "Training of sentence embeddings",
    ["embeddings"],
    ["training", "whole command"],
  ),
  Section(
    "Memory of a training step",
    ["peak_memory"],
    ["peak"],
    "the other needs … times as much",
    ("less here", "more here"),
  ),
  Section("Tokenization", ["tokenizer_speed"], ["tokenization"]),
  Section(
    "Pretraining data",
    ["pretraining_data"],
    ["whole command", "its processor time"],
  ),
  Section("Several workers", ["scaling"], ["training"]),
  Section("GPUs", ["gpu"], ["a step"]),
]

# Names of sides, and the library whose version belongs to them.
_OTHERS = {
  "hugging face": ("transformers", "transformers"),
  "transformers": ("transformers", "transformers"),
  "onnx_runtime": ("ONNX Runtime", "onnxruntime"),
  "sentence transformers": ("sentence-transformers", "sentence-transformers"),
  "sentence_transformers": ("sentence-transformers", "sentence_transformers"),
  "sentence_transformers_onnx": (
    "sentence-transformers with ONNX",
    "sentence_transformers",
  ),
  "tokenizers": ("tokenizers", "tokenizers"),
  "reference": ("google-research/bert", "tensorflow"),
  "estimate": ("its estimate", ""),
}

# Instruction sets by the name of one of their flags.
_EXTENSIONS = {
  "avx2": "AVX2",
  "avx512f": "AVX-512",
  "amx_tile": "AMX",
  "asimd": "NEON",
  "sve": "SVE",
}


def kept() -> list[Result]:
  """The results in the repository."""
  paths = sorted(FOLDER.glob("*.jsonl"))
  return [result for path in paths for result in results.read(path)]


def goals() -> list[dict[str, Any]]:
  """The goals: fields of results and ratios, and `ratio` or `at_most`."""
  return json.loads((FOLDER / "goals.json").read_text(encoding="utf-8"))


def page() -> str:
  """Text of the page."""
  return render(kept(), goals())


def render(found: list[Result], all_goals: list[dict[str, Any]]) -> str:
  """Text of the page of some results and goals."""
  runs = list(dict.fromkeys(map(_run, found)))
  parts = [_INTRODUCTION]
  for section in SECTIONS:
    rows = list(_rows(section, found, runs, all_goals))
    if rows:
      parts.append(f"## {section.title}\n")
      parts.append(markdown.table(_heads(section), rows))
    metrics = list(_metric_rows(section, found, runs))
    if metrics:
      parts.append(
        "Metrics of the models of these runs, means of all passes:\n"
      )
      heads = ["work", "metric", "this project", "compared with", "difference"]
      parts.append(markdown.table([*heads, "run"], metrics))
  open_goals = [
    [goal["work"], *_sides_of(goal), _goal_text(goal)]
    for goal in all_goals
    if not any(
      _matches(goal, result, ratio)
      for result in found
      for ratio in _comparisons(result, all_goals)
    )
  ]
  if open_goals:
    parts.append(_OPEN_GOALS)
    heads = ["work", "this project", "compared with", "goal"]
    parts.append(markdown.table(heads, open_goals))
  if runs:
    parts.append("## Runs\n")
  for number, run in enumerate(runs, 1):
    same = [result for result in found if _run(result) == run]
    parts.append(_describe_run(number, same))
  return "\n".join(parts)


# Rows


def _heads(section: Section) -> list[str]:
  return [
    *("work", "this project", "compared with"),
    *(section.head, "goal", "run"),
  ]


def _rows(
  section: Section,
  found: Iterable[Result],
  runs: list[tuple],
  all_goals: list[dict[str, Any]],
) -> Iterator[list[str]]:
  for result in found:
    for ratio in _comparisons(result, all_goals):
      if result.benchmark not in section.benchmarks:
        continue
      if ratio.measure not in section.measures:
        continue
      work = result.work
      if len(section.measures) > 1:
        work += f": {ratio.measure}"
      yield [
        work,
        f"{_own_name(result, ratio.side)}{_value(result, ratio, ratio.side)}",
        f"{_other_name(result, ratio.against)}:"
        f" {_value(result, ratio, ratio.against)}",
        _ratio_text(section, ratio),
        "; ".join(
          f"{_goal_text(goal)}: {_judgement(goal, result, ratio)}"
          for goal in all_goals
          if _matches(goal, result, ratio)
        ),
        _run_link(result, runs),
      ]


def _metric_rows(
  section: Section, found: Iterable[Result], runs: list[tuple]
) -> Iterator[list[str]]:
  for result in found:
    if result.benchmark not in section.benchmarks:
      continue
    for measure, by_side in result.values.items():
      if not MEASURES[measure].is_metric:
        continue
      means = {side: statistics.fmean(v) for side, v in by_side.items()}
      (own, value), *others = means.items()
      show = MEASURES[measure].show
      for other, theirs in others:
        yield [
          result.work,
          measure,
          f"{_own_name(result, own)}{show(value)}",
          f"{_other_name(result, other)}: {show(theirs)}",
          f"{value - theirs:+.4f}",
          _run_link(result, runs),
        ]


def _value(result: Result, ratio: Ratio, side: str) -> str:
  of_passes = result.values[ratio.measure][side]
  return _unbroken(MEASURES[ratio.measure].show(statistics.median(of_passes)))


def _unbroken(text: str) -> str:
  """The text on one line also in a narrow column."""
  return text.replace(" ", "\u00a0")


def _ratio_text(section: Section, ratio: Ratio) -> str:
  word = "unclear"
  if ratio.lowest > 1:
    word = section.words[0]
  elif ratio.highest < 1:
    word = section.words[1]
  text = f"**{ratio.median:.2f}** {word}"
  if ratio.lowest < ratio.highest:
    passes = f"({ratio.lowest:.2f} to {ratio.highest:.2f})"
    text += f" {_unbroken(passes)}"
  return text


def _own_name(result: Result, side: str) -> str:
  """Precision and options of this project, as a prefix of a value."""
  if "-" in side:  # predictor-int8
    family, precision = side.split("-")
    names = [precision] if family == "predictor" else [family, precision]
  else:
    names = [] if side == "ours" else [side]
    names += [_way(result, side)]
  names = ", ".join(filter(None, names))
  return f"{names}: ".replace("_", " ") if names else ""


def _other_name(result: Result, side: str) -> str:
  """Name, version and precision of other code."""
  family, _, precision = side.partition("-")
  name, library = _OTHERS.get(family, (family, ""))
  version = result.sides[side]["versions"].get(library, "").split("+")[0]
  names = f"{name} {version}".strip()
  return ", ".join(filter(None, [names, precision or _way(result, side)]))


def _way(result: Result, side: str) -> str:
  """The description of a side, without what led to it."""
  return re.split(r"[;(]", result.sides[side]["description"])[0].strip()


# Goals


def _comparisons(
  result: Result, all_goals: Iterable[Mapping[str, Any]]
) -> list[Ratio]:
  """The ratios of a result, and those that goals name."""
  known = {ratio[:3] for ratio in result.ratios}
  named = {
    (goal["measure"], goal["side"], goal["against"])
    for goal in all_goals
    if (goal["benchmark"], goal["work"]) == (result.benchmark, result.work)
    and goal.get("against") in result.values.get(goal["measure"], {})
  }
  added = results.compare(result.values, sorted(named - known))
  order = [
    (measure, side)
    for measure, by_side in result.values.items()
    for side in by_side
  ]
  return sorted(
    [*result.ratios, *added], key=lambda r: order.index((r.measure, r.side))
  )


def _matches(goal: Mapping[str, Any], result: Result, ratio: Ratio) -> bool:
  """True if a goal is about this comparison."""
  threads = goal.get("threads", result.threads)
  against = goal.get("against", ratio.against)
  return (
    goal["benchmark"] == result.benchmark
    and goal["work"] == result.work
    and goal["measure"] == ratio.measure
    and goal["side"] == ratio.side
    and against in (ratio.against, ratio.against.split("-")[0])
    and threads == result.threads
  )


def _sides_of(goal: Mapping[str, Any]) -> tuple[str, str]:
  """Names of both sides of a goal: this project, and the other code."""
  own = goal["side"].removeprefix("ours").removeprefix("predictor-")
  family, _, precision = goal.get("against", "").partition("-")
  other = _OTHERS.get(family, (family, ""))[0]
  return own, ", ".join(filter(None, [other, precision]))


def _goal_text(goal: Mapping[str, Any]) -> str:
  if "ratio" in goal:
    return f"{goal['ratio']:g}"
  return MEASURES[goal["measure"]].show(goal["at_most"])


def _judgement(goal: Mapping[str, Any], result: Result, ratio: Ratio) -> str:
  if "ratio" in goal:
    is_met = ratio.median >= goal["ratio"]
  else:
    of_passes = result.values[ratio.measure][ratio.side]
    is_met = statistics.median(of_passes) <= goal["at_most"]
  return "met" if is_met else "**missed**"


# Runs


def _run(result: Result) -> tuple:
  """Key of a run, the same for all of its results."""
  return result.command, result.date, result.processor, result.threads


def _run_link(result: Result, runs: list[tuple]) -> str:
  number = runs.index(_run(result)) + 1
  extensions = _extensions(result).rpartition(", ")[2]
  where = result.device or extensions
  return f"[{where}, {_threads(result)}, {result.date}](#run-{number})"


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
    facts.append(f"load average {first.load:g} at the start")
  versions: dict[str, str] = {}
  for result in of_run:
    for side in result.sides.values():
      versions |= side["versions"]
  versions |= {k: v for k, v in first.versions.items() if k != "commit"}
  versions["this project"] = versions.pop("project", "")
  libraries = ", ".join(
    f"{name} {version}" for name, version in sorted(versions.items())
  )
  works = "; ".join(dict.fromkeys(result.work for result in of_run))
  passes = [
    len(of_side)
    for result in of_run
    for by_side in result.values.values()
    for of_side in by_side.values()
  ]
  passes = max(passes, default=1)
  notes = "".join(
    f"\n{note}\n" for note in dict.fromkeys(r.note for r in of_run) if note
  )
  return (
    f"### Run {number} {{ #run-{number} }}\n\n"
    f"{works}. {', '.join(facts)}, {passes} pass{'es' * (passes > 1)}."
    f" Versions: {libraries}.\n{notes}\n"
    f"```shell\n{first.command}\n```\n"
  )
