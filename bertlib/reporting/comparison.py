"""Compares runs with the first one: tables for a terminal and an HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.errors import english_list
from bertlib.io import dev_scores
from bertlib.reporting import html_report, statistics
from bertlib.reporting.recorded_runs import RecordedRun
from bertlib.reporting.statistics import Comparison, Interval, PairedTest

# Flags that do not change a result, which a comparison ignores.
_IGNORED_FLAGS = {"doctor", "output_dir", "rerun", "seeds"}

# Numbers among the metrics of which neither high nor low is better.
_NOT_RANKED = re.compile("entities|thresh|total")


class Table(NamedTuple):
  """A table, with a row per mapping and a column per key."""

  title: str
  rows: Sequence[Mapping[str, str]]  # with the same keys
  about: str = ""  # a note


def tables(
  runs: Sequence[RecordedRun],
  differences: Sequence[Difference],  # see `find_differences`
  max_metrics: int | None = None,
) -> list[Table]:
  """Tables of the runs: metrics, seeds, differences and settings."""
  metrics = metric_names(runs)[:max_metrics]
  about_tests = (
    "Intervals are of a paired bootstrap over the examples of the dev set."
    " McNemar's exact test is of the examples that only one of the runs"
    " predicts right."
  )
  found = [
    Table("Runs", run_rows(runs, metrics), "The best values have a star."),
    Table(
      "Several seeds",
      seed_rows(runs, metrics),
      "Mean ± sample standard deviation over runs that differ in --seed.",
    ),
    Table(
      f"Differences from {runs[0].folder}",
      difference_rows(differences, metrics),
      about_tests,
    ),
    Table("Settings that differ", setting_rows(runs)),
  ]
  return [table for table in found if table.rows]


def write_page(
  path: str, runs: Sequence[RecordedRun], differences: Sequence[Difference]
) -> None:
  """Writes the HTML page."""
  html_report.write_page(
    path,
    f"Comparison of {len(runs)} runs",
    [
      *map(html_report.warning, warnings(runs)),
      *(html_report.table(*table) for table in tables(runs, differences)),
    ],
  )


# Comparisons


def is_comparable(run: RecordedRun, other: RecordedRun) -> bool:
  """False if script or dev data of two runs are known to differ."""
  known_data = {run.dev_data, other.dev_data} - {None}
  return run.script == other.script and len(known_data) < 2


def metric_names(runs: Iterable[RecordedRun]) -> list[str]:
  """Names of all metrics, primary ones first."""
  names = [name for run in runs for name in run.metrics]
  primary = [run.primary_metric for run in runs if run.metrics]
  return [*dict.fromkeys([*filter(None, primary), *names])]


def best_runs(runs: Sequence[RecordedRun]) -> dict[str, set[str]]:
  """Names of the runs with the best value, by metric in which runs differ."""
  comparable = [run for run in runs if is_comparable(runs[0], run)]
  found = {}
  for metric in metric_names(comparable):
    values = {
      r.folder: r.metrics[metric] for r in comparable if metric in r.metrics
    }
    if len(set(values.values())) < 2 or _NOT_RANKED.search(metric):
      continue
    best = dev_scores.best_row([r.metrics for r in comparable], metric)
    found[metric] = {n for n, v in values.items() if best and v == best[metric]}
  return found


def warnings(runs: Sequence[RecordedRun]) -> list[str]:
  """Sentences on runs whose metrics cannot be compared with the first run's."""
  first, *others = runs
  found = []
  for what, value_of in (
    ("of another script than", lambda run: run.script),
    ("with other dev data than", lambda run: run.dev_data),
  ):
    expected = value_of(first)
    differ = [r.folder for r in others if value_of(r) not in (None, expected)]
    if differ and expected is not None:
      found.append(
        f"Metrics are not compared for runs {what} {first.folder}:"
        f" {english_list(differ)}."
      )
  return found


def differing(runs: Sequence[RecordedRun]) -> dict[str, list[Any]]:
  """Flags whose values differ, with the value of each run."""
  names = {name for run in runs for name in run.flags}
  values = {
    name: [run.flags.get(name) for run in runs]
    for name in sorted(names - _IGNORED_FLAGS)
  }
  return {
    name: of_runs
    for name, of_runs in values.items()
    if any(value != of_runs[0] for value in of_runs)
  }


def group_by_settings(runs: Iterable[RecordedRun]) -> list[list[RecordedRun]]:
  """Groups runs that differ in nothing but their seed."""
  groups: dict[str, list[RecordedRun]] = {}
  for run in runs:
    flags = {
      name: value
      for name, value in sorted(run.flags.items())
      if value is not None and name not in {"seed", *_IGNORED_FLAGS}
    }
    settings = json.dumps([run.script, sorted(run.hashes.items()), flags])
    groups.setdefault(settings, []).append(run)
  return [*groups.values()]


def compare_predictions(first: RecordedRun, other: RecordedRun) -> Comparison:
  """Compares the predictions of two runs; empty if they are not known."""
  if first.task.compare:
    return first.task.compare(first, other)
  _, gold, *predicted = first.shared_predictions(other)
  return Comparison(statistics.compare_answers(gold, *predicted))


# Rows of tables


def run_rows(
  runs: Sequence[RecordedRun], metrics: Sequence[str]
) -> list[dict[str, str]]:
  """Metrics, of which the best have a star, steps, duration and a note."""
  best = best_runs(runs)
  rows = [
    {
      "run": run.folder,
      **{
        name: _text(run.metrics.get(name))
        + "*" * (run.folder in best.get(name, ()))
        for name in metrics
      },
      "steps": _text(run.num_steps),
      "best step": _text(run.best_step),
      "duration": _text(
        run.duration
        and html_report.format_duration(run.duration.total_seconds())
      ),
      "note": run.note,
    }
    for run in runs
  ]
  filled = {
    n for row in rows for n, text in row.items() if text not in ("", "-")
  }
  return [{n: text for n, text in row.items() if n in filled} for row in rows]


def _text(value: Any) -> str:
  """A value of a cell."""
  if value is None:
    return "-"
  return f"{value:.4f}" if isinstance(value, float) else str(value)


def seed_rows(
  runs: Sequence[RecordedRun], metrics: Sequence[str]
) -> list[dict[str, str]]:
  """Mean and standard deviation of each group of several seeds."""
  rows = []
  for group in group_by_settings(run for run in runs if run.metrics):
    seeds = [str(run.flags.get("seed")) for run in group]
    if len(set(seeds)) < 2:
      continue
    row = {
      "runs": ", ".join(run.folder for run in group),
      "seeds": ", ".join(seeds),
    }
    for name in metrics:
      values = [run.metrics.get(name, np.nan) for run in group]
      mean, deviation = np.mean(values), np.std(values, ddof=1)
      if not _NOT_RANKED.search(name):
        row[name] = f"{mean:.4f} ± {deviation:.4f}"
    rows.append(row)
  return rows


class Difference(NamedTuple):
  """Differences of the metrics of a run from those of the first one."""

  run: str  # its folder
  # Difference of each metric, and its interval if there is one.
  metrics: Mapping[str, tuple[float, Interval | None]]
  test: PairedTest | None


def find_differences(runs: Sequence[RecordedRun]) -> list[Difference]:
  """Compares each run with the first one, where metrics can be compared."""
  first, *others = runs
  found = []
  for run in others:
    names = [
      name
      for name in first.metrics
      if name in run.metrics and not _NOT_RANKED.search(name)
    ]
    if not names or not is_comparable(first, run):
      continue
    test, intervals = compare_predictions(first, run)
    metrics = {
      name: (run.metrics[name] - first.metrics[name], intervals.get(name))
      for name in names
    }
    found.append(Difference(run.folder, metrics, test))
  return found


def difference_rows(
  found: Iterable[Difference], metrics: Sequence[str]
) -> list[dict[str, str]]:
  """A row per metric and per test, with interval or p-value."""
  columns = "run", "metric", "difference", "95% interval", "p-value"
  rows = []
  for run, of_metrics, test in found:
    for name, (difference, interval) in of_metrics.items():
      if name in metrics:
        ends = (
          f"{interval.low:+.4f} to {interval.high:+.4f}" if interval else ""
        )
        rows.append((run, name, f"{difference:+.4f}", ends, ""))
    if test:
      counts = f"{test.first_only} : {test.other_only}"
      rows.append((run, "McNemar's test", counts, "", f"{test.p_value:.4f}"))
  return [dict(zip(columns, row)) for row in rows]


def setting_rows(runs: Sequence[RecordedRun]) -> list[dict[str, str]]:
  """Flags, inputs, versions and device that differ, with a column per run."""
  found = {f"--{name}": values for name, values in differing(runs).items()}
  others = [
    {
      "script": run.script,
      **run.hashes,
      **run.receipt["versions"],
      "commit": run.receipt["versions"].get("commit", "")[:8],
      "code": run.receipt["code"].get("all", "")[:8],
      "device": ", ".join(run.receipt["device"].get("gpus") or [])
      or run.receipt["device"].get("cpu"),
    }
    for run in runs
  ]
  for name in dict.fromkeys(name for values in others for name in values):
    values = [of_run.get(name) or None for of_run in others]
    if len(set(values)) > 1:
      found[name] = values
  return [
    {
      "setting": name,
      **{
        # As one types it.
        run.folder: f"{value:g}" if isinstance(value, float) else _text(value)
        for run, value in zip(runs, values)
      },
    }
    for name, values in found.items()
  ]
