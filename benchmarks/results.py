"""Results of benchmarks: their measures, and how they are printed and kept.

A line of `--json_file` is a `Result`. The page on performance is made from the
lines in docs/results/performance.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple

# Value of each pass, by measure and side.
Values = dict

# Other work of the machine: processes that ran or waited, before the benchmark
# added its own.
LOAD = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


class Measure(NamedTuple):
  """What is measured."""

  show: Callable[[float], str]  # formats a value
  # Whether it is the quality of a model; of all others, such as seconds and
  # bytes, less is better.
  is_metric: bool = False
  # For a ratio above one, and below.
  words: tuple[str, str] = ("faster", "slower")


def _seconds(value: float) -> str:
  return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"


def _milliseconds(seconds: float) -> str:
  return f"{1000 * seconds:.2f} ms"


def _rate(unit: str) -> Callable[[float], str]:
  """Formats the time of one as a number per second."""

  def show(seconds):
    value = 1 / seconds
    return f"{value:,.0f} {unit}/s" if value > 1000 else f"{value:.4g} {unit}/s"

  return show


MEASURES = {
  "a step": Measure(_seconds),
  "an epoch": Measure(_seconds),
  "batches": Measure(_rate("texts")),
  "median": Measure(_milliseconds),
  "99th percentile": Measure(_milliseconds),
  "processor time": Measure(_milliseconds),
  "training": Measure(_rate("examples")),
  "pairs": Measure(_rate("pairs")),
  "whole command": Measure(_seconds),
  "its processor time": Measure(_seconds),
  "masks of an epoch": Measure(_seconds),
  "ids": Measure(_rate("lines")),
  "tokens with offsets": Measure(_rate("lines")),
  "ids with words": Measure(_rate("lines")),
  "ids with offsets": Measure(_rate("lines")),
  "peak": Measure(
    lambda value: f"{value / 1e9:.2f} GB", words=("less here", "more here")
  ),
  **dict.fromkeys(
    ("spearman", "pearson", "ndcg@10", "mrr@10", "recall@10"),
    Measure("{:.4f}".format, is_metric=True),
  ),
}


class Ratio(NamedTuple):
  """How much more the other side takes: above 1, `side` takes less."""

  measure: str  # one of `MEASURES`
  side: str  # what is compared
  against: str  # with what
  median: float  # of the ratios in each pass
  lowest: float  # of these ratios
  highest: float  # of these ratios


@dataclasses.dataclass(frozen=True)
class Result:
  """A work of one run."""

  benchmark: str  # name of the script
  work: str  # what was done, in words
  command: str  # command line, with base names for paths
  date: str  # of the run
  processor: str  # its model
  instruction_sets: str  # those for vectors and matrices, as Linux names them
  threads: int  # number of threads of each side
  versions: dict[str, str]  # of this project and of what it runs on
  sides: dict[str, dict[str, Any]]  # `description` and `versions` of each side
  # Value of each pass, by measure and side.
  values: dict[str, dict[str, list[float]]]
  ratios: list[Ratio]  # comparisons of sides
  device: str = ""  # the GPU, if one was used
  # Load average of the machine at the start; None: unknown.
  load: float | None = None
  note: str = ""  # what else has to be known
  # Values that only this benchmark has, by name.
  more: dict[str, Any] = dataclasses.field(default_factory=dict)


def command_line(module: str, arguments: Iterable[str]) -> str:
  """A command to repeat: without folders and the file of results."""
  words = [re.sub(r"[^=,]*/(?=[^/])", "", word) for word in arguments]
  # Those that change how TensorFlow computes.
  changes = re.compile(r"(ONEDNN|OMP|TF_(ENABLE|NUM|XLA))_").match
  variables = [f"{n}={v}" for n, v in sorted(os.environ.items()) if changes(n)]
  words = [*variables, "python", "-m", module, *words]
  return re.sub(r" --?json_file[= ]\S+", "", shlex.join(words))


def compare(
  values: Values, pairs: Iterable[tuple[str, str, str]]
) -> list[Ratio]:
  """Compares sides pass by pass, unless a value is below the clock's tick."""
  found = []
  for measure, side, against in pairs:
    by_side = values[measure]
    if not all(by_side[side]):
      continue
    ratios = [b / a for a, b in zip(by_side[side], by_side[against])]
    spread = statistics.median(ratios), min(ratios), max(ratios)
    found.append(Ratio(measure, side, against, *spread))
  return found


def pairs_with(first: str, values: Values) -> list[tuple[str, str, str]]:
  """Pairs of one side and each other, in all measures but metrics."""
  return [
    (measure, first, other)
    for measure, by_side in values.items()
    for other in by_side
    if other != first and not MEASURES[measure].is_metric
  ]


def show_pass(number: int, values: Values) -> None:
  """Prints the last value of each side, counting passes from 1."""
  for measure, by_side in values.items():
    last = ", ".join(
      f"{name} {MEASURES[measure].show(of_side[-1])}"
      for name, of_side in by_side.items()
      if of_side
    )
    print(f"pass {number}, {measure}: {last}", flush=True)


def show(result: Result) -> None:
  """Prints medians and ratios."""
  for measure, by_side in result.values.items():
    for side, of_passes in by_side.items():
      middle = MEASURES[measure].show(statistics.median(of_passes))
      print(f"{measure}, {side}: {middle}")
      for ratio in result.ratios:
        if (ratio.measure, ratio.side) == (measure, side):
          print(
            f"  {ratio.against} / {side}: median {ratio.median:.2f},"
            f" from {ratio.lowest:.2f} to {ratio.highest:.2f}"
          )
  print(end="", flush=True)


def append(path: str, result: Result) -> None:
  """Adds a line to a file of results."""
  row = dataclasses.asdict(result)
  row["ratios"] = [ratio._asdict() for ratio in result.ratios]
  with open(path, "a", encoding="utf-8") as file:
    file.write(json.dumps(row) + "\n")


def read(path: str) -> list[Result]:
  """Reads a file of results."""
  found = []
  with open(path, encoding="utf-8") as file:
    for line in file:
      row = json.loads(line)
      ratios = [Ratio(**ratio) for ratio in row.pop("ratios")]
      found.append(Result(**row, ratios=ratios))
  return found


def write_rows(path: str | os.PathLike, rows: Iterable[dict[str, Any]]) -> None:
  """Writes a file of JSON lines."""
  with open(path, "w", encoding="utf-8") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)


def write_beir(
  folder: str | os.PathLike,
  corpus: Mapping[str, str],  # texts by id
  queries: Mapping[str, str],  # texts by id
  judgments: Iterable[tuple[str, str, int]],  # ids of both, and the score
  split: str = "test",
) -> None:
  """Writes a search in the layout of BEIR; its other splits stay."""
  os.makedirs(os.path.join(folder, "qrels"), exist_ok=True)
  for name, texts in (("corpus", corpus), ("queries", queries)):
    rows = ({"_id": id_, "text": text} for id_, text in texts.items())
    write_rows(os.path.join(folder, f"{name}.jsonl"), rows)
  with open(os.path.join(folder, "qrels", f"{split}.tsv"), "w") as file:
    for row in [("query-id", "corpus-id", "score"), *judgments]:
      print(*row, sep="\t", file=file)
