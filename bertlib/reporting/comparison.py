"""Compares runs with the first one: tables for a terminal and an HTML page."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertlib.cli.errors import InputError, english_list
from bertlib.io import files, receipt_file, result_files
from bertlib.io.result_files import DevPrediction
from bertlib.reporting import html_report, paired_tests
from bertlib.reporting.paired_tests import Comparison
from bertlib.task import task_record
from bertlib.task.task_record import TaskRecord

# Files of a run that are read.
FILES = RECEIPT, RESULTS, PREDICTIONS = (
  receipt_file.NAME,
  "eval_results.txt",
  f"{result_files.DEV_PREDICTIONS}.jsonl",
)

# Numbers among the metrics of which neither high nor low is better.
_NOT_RANKED = re.compile("entities|thresh|total")

TEST = "McNemar's test"

_ABOUT_TESTS = (
  "Intervals are of a paired bootstrap over the examples of the dev set."
  f" {TEST}, in its exact form, is of the examples that only one of the runs"
  " predicts right."
)


@dataclasses.dataclass(frozen=True)
class RecordedRun:
  """A run, as the files in its folder describe it."""

  folder: str  # its --output_dir
  task: TaskRecord  # one that says nothing if the task is not known
  flags: Mapping[str, Any]
  results: Mapping[str, Any]  # empty before an evaluation
  # Those that the results are of; empty if they are not known.
  predictions: Sequence[DevPrediction]

  @property
  def metrics(self) -> dict[str, float]:
    """Metrics on the dev set by plain name, the primary one first."""
    numbers = {
      name: float(value)
      for name, value in self.results.items()
      if type(value) in (int, float) or value == "nan"
    }
    metrics = result_files.plain_scores(numbers)
    names = [*self.task.primary_metrics]
    if self.flags.get("best_metric"):
      names = [result_files.plain_name(self.flags["best_metric"])]
    primary = [name for name in names if name in metrics][:1]
    return {name: metrics[name] for name in dict.fromkeys([*primary, *metrics])}

  @property
  def gold(self) -> list[Any]:
    """Gold answers, with which `predicted` are compared."""
    return [prediction.gold for prediction in self.predictions]

  @property
  def predicted(self) -> list[Any]:
    """Predicted answers in the form of `gold`."""
    return [prediction.predicted for prediction in self.predictions]


# Reading


def find_runs(paths: Sequence[str]) -> list[RecordedRun]:
  """Reads the runs in folders; one of `--seeds` gives a run per seed."""
  runs = [run for path in paths for run in _read_runs(path)]
  folders = [run.folder for run in runs]
  for folder in folders:
    if folders.count(folder) > 1:
      raise InputError(f"{folder}: is given twice. Name each run once")
  return runs


def _read_runs(path: str) -> list[RecordedRun]:
  """Reads the runs of a folder, which it or its `run.json` names."""
  if os.path.basename(path) == RECEIPT:
    path = os.path.dirname(path) or "."
  if not path or not files.exists(path):
    raise InputError(f"{path}: no such folder. Name the --output_dir of a run")
  folder = path if files.is_remote(path) else os.path.normpath(path)
  receipt = _receipt(folder)
  if not receipt:
    raise InputError(
      f"{folder}: is not the folder of a run, since it has no {RECEIPT}. Name"
      " the --output_dir of a run"
    )
  flags = receipt.get("flags", {})
  seeds = [
    os.path.join(folder, f"seed_{flags['seed'] + index}")
    for index in range(flags.get("seeds") or 0)
  ]
  if not seeds:
    return [_read_run(folder, receipt)]
  # The run of a seed may not have begun.
  nothing = {"script": receipt["script"]}
  return [_read_run(seed, _receipt(seed) or nothing) for seed in seeds]


def _receipt(folder: str) -> Mapping[str, Any] | None:
  """The receipt of the training in a folder, or else the last one."""
  training = receipt_file.last_training(folder)
  return training or next(receipt_file.read_all(folder), None)


def _read_run(folder: str, receipt: Mapping[str, Any]) -> RecordedRun:
  """Reads the files of a run."""
  script = receipt["script"].removesuffix(".py")
  results, predictions = (
    os.path.join(folder, name) for name in (RESULTS, PREDICTIONS)
  )
  return RecordedRun(
    folder,
    task_record.find(script)
    or TaskRecord(script, lower_is_better=result_files.lower_is_better(folder)),
    receipt.get("flags", {}),
    result_files.read_results(results) if files.exists(results) else {},
    result_files.read_dev_predictions(predictions)
    if files.exists(predictions)
    else [],
  )


# Comparisons


def comparable_runs(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
  """Runs whose metrics are of the same examples as those of the first run."""
  first, *others = ([p[:2] for p in run.predictions] for run in runs)
  return [
    run for run, examples in zip(runs[1:], others) if examples == first != []
  ]


def best_runs(runs: Sequence[RecordedRun]) -> dict[str, set[str]]:
  """Names of the runs with the best value, by metric in which runs differ."""
  comparable = [runs[0], *comparable_runs(runs)]
  found = {}
  for metric in metric_names(comparable):
    values = {
      r.folder: r.metrics[metric] for r in comparable if metric in r.metrics
    }
    if len(set(values.values())) < 2 or _NOT_RANKED.search(metric):
      continue
    lower = {name for run in comparable for name in run.task.lower_is_better}
    metrics = [run.metrics for run in comparable]
    best = result_files.best_row(metrics, metric, lower)
    found[metric] = {n for n, v in values.items() if best and v == best[metric]}
  return found


# Tables


def metric_names(runs: Iterable[RecordedRun]) -> list[str]:
  """Names of all metrics, primary ones first."""
  names = [[*run.metrics] for run in runs]
  primary = [name for of_run in names for name in of_run[:1]]
  return [*dict.fromkeys([*primary, *(n for of_run in names for n in of_run)])]


def run_rows(
  runs: Sequence[RecordedRun], metrics: Sequence[str]
) -> list[dict[str, str]]:
  """Metrics of each run; the best ones have a star."""
  best = best_runs(runs)
  rows = []
  for run in runs:
    row = {"run": run.folder}
    for name in metrics:
      star = "*" if run.folder in best.get(name, ()) else ""
      row[name] = _text(run.metrics.get(name)) + star
    rows.append(row)
  return rows


def _text(value: Any) -> str:
  """A value of a cell."""
  if value is None:
    return "-"
  return f"{value:.4f}" if isinstance(value, float) else str(value)


def difference_rows(runs: Sequence[RecordedRun]) -> list[dict[str, str]]:
  """Differences from the first run, where both are of the same examples."""
  columns = "run", "metric", "difference", "95% interval", "p-value"
  first, rows = runs[0], []
  for run in comparable_runs(runs):
    test, intervals = _compare(first, run)
    for name, value in first.metrics.items():
      if name not in run.metrics or _NOT_RANKED.search(name):
        continue
      ends = ""
      if intervals.get(name):
        low, high, _ = intervals[name]
        ends = f"{low:+.4f} to {high:+.4f}"
      difference = f"{run.metrics[name] - value:+.4f}"
      rows.append((run.folder, name, difference, ends, ""))
    if test:
      counts = f"{test.first_only} : {test.other_only}"
      rows.append((run.folder, TEST, counts, "", f"{test.p_value:.4f}"))
  return [dict(zip(columns, row)) for row in rows]


def _compare(first: RecordedRun, other: RecordedRun) -> Comparison:
  """Compares predictions, which are of the same examples."""
  if first.task.compare:
    return first.task.compare(first, other)
  answers = first.gold, first.predicted, other.predicted
  return Comparison(paired_tests.compare_answers(*answers))


def warnings(runs: Sequence[RecordedRun]) -> list[str]:
  """A sentence on the runs that cannot be compared with the first one."""
  comparable = comparable_runs(runs)
  others = [run.folder for run in runs[1:] if run not in comparable]
  if not others:
    return []
  return [
    f"Not compared with {runs[0].folder}, for lack of {PREDICTIONS} of the same"
    f" examples: {english_list(others)}."
  ]


def write_page(
  path: str,
  runs: Sequence[RecordedRun],
  differences: Sequence[Mapping[str, str]],  # of `difference_rows`
) -> None:
  """Writes the HTML page."""
  rows = run_rows(runs, metric_names(runs))
  title = f"Differences from {runs[0].folder}"
  html_report.write_page(
    path,
    f"Comparison of {len(runs)} runs",
    [
      *map(html_report.warning, warnings(runs)),
      html_report.table("Runs", rows, "The best values have a star."),
      html_report.table(title, differences, _ABOUT_TESTS),
    ],
  )
