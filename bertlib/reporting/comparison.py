"""Compares runs with the first one: metrics, seeds, flags, and inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.errors import english_list
from bertlib.reporting import report_page, statistics
from bertlib.reporting.recorded_runs import RecordedRun, shared_predictions
from bertlib.reporting.statistics import Comparison, Interval, PairedTest
from bertlib.training import dev_scores

# Flags that do not change a result, which a comparison ignores.
_NO_SETTINGS = ("doctor", "output_dir", "rerun", "seeds")

# Numbers among the metrics of which neither high nor low is better.
_NOT_RANKED = re.compile("entities|thresh|total")

# Metrics shown in the terminal at most.
_MAX_METRICS = 6

Value = Callable[[RecordedRun], Any]


# Comparisons


def is_comparable(run: RecordedRun, other: RecordedRun) -> bool:
  """False if script or dev data of two runs are known to differ."""
  pairs = ((run.script, other.script), (run.dev_data, other.dev_data))
  return all(a is None or b is None or a == b for a, b in pairs)


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
      r.name: r.metrics[metric] for r in comparable if metric in r.metrics
    }
    if len(set(values.values())) < 2 or _NOT_RANKED.search(metric):
      continue
    best = None
    for value in values.values():
      if dev_scores.is_better(metric, value, best):
        best = value
    found[metric] = {name for name, value in values.items() if value == best}
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
    differ = [r.name for r in others if value_of(r) not in (None, expected)]
    if differ and expected is not None:
      found.append(
        f"Metrics are not compared for runs {what} {first.name}:"
        f" {english_list(differ)}."
      )
  return found


def differing(
  runs: Sequence[RecordedRun], without: Iterable[str] = ()
) -> dict[str, list[Any]]:
  """Flags whose values differ, with the value of each run."""
  runs = [run for run in runs if run.receipt]
  found = {}
  for name in sorted({name for run in runs for name in run.flags}):
    values = [run.flags.get(name) for run in runs]
    # A flag that one run lacks, being of another script or an older version,
    # differs only if it was given to the others. Paths of equal files do not
    # differ.
    known = [_with_text(value) for value in values if value is not None]
    is_given = any(
      name in run.given and run.flags.get(name) is not None for run in runs
    )
    hashes = {run.hash_of_flag(name) for run in runs}
    if (
      name not in (*_NO_SETTINGS, *without)
      and (len(hashes) > 1 or None in hashes)
      and (
        any(value != known[0] for value in known)
        or (is_given and len(known) < len(values))
      )
    ):
      found[name] = values
  return found


def _with_text(value: Any) -> Any:
  """A flag's value; items of a list as text, as in receipts before 0.14."""
  if not isinstance(value, list):
    return value
  return [f"{v:g}" if isinstance(v, float) else str(v) for v in value]


def group_by_settings(runs: Iterable[RecordedRun]) -> list[list[RecordedRun]]:
  """Groups runs that differ in nothing but their seed."""
  groups: list[list[RecordedRun]] = []
  for run in runs:
    for group in groups:
      first = group[0]
      if (
        run.receipt
        and run.script == first.script
        and run.hashes == first.hashes
        and not differing([first, run], without=["seed"])
      ):
        group.append(run)
        break
    else:
      groups.append([run])
  return groups


def compare_predictions(first: RecordedRun, other: RecordedRun) -> Comparison:
  """Compares the predictions of two runs; empty if they are not known."""
  if first.task.compare:
    return first.task.compare(first, other)
  _, gold, *predicted = shared_predictions(first, other)
  return Comparison(statistics.compare_answers(gold, *predicted))


# Tables: rows of values by column


def summary(
  runs: Sequence[RecordedRun], max_metrics: int | None = None
) -> list[dict[str, Any]]:
  """Rows with metrics, steps, duration and a note per run."""
  columns: dict[str, Value] = {
    "run": lambda run: run.name,
    **{
      name: lambda run, name=name: run.metrics.get(name)
      for name in metric_names(runs)[:max_metrics]
    },
    "steps": lambda run: run.num_steps,
    "best step": lambda run: run.best_step,
    "duration": _duration,
    "note": lambda run: run.note,
  }
  filled = {
    name: value_of
    for name, value_of in columns.items()
    if any(value_of(run) not in (None, "") for run in runs)
  }
  return [
    {name: value_of(run) for name, value_of in filled.items()} for run in runs
  ]


def _duration(run: RecordedRun) -> str | None:
  """Duration of a run as text; None if it is not known."""
  if run.duration is None:
    return None
  return report_page.format_duration(run.duration.total_seconds())


def terminal_table(runs: Sequence[RecordedRun]) -> list[dict[str, str]]:
  """Rows of `summary` as text; the best values have a star."""
  best = best_runs(runs)

  def shown(run: str, column: str, value: Any) -> str:
    if value is None:
      return "-"
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    if column not in best:
      return text
    return text + ("*" if run in best[column] else " ")

  return [
    {name: shown(row["run"], name, value) for name, value in row.items()}
    for row in summary(runs, _MAX_METRICS)
  ]


def seed_rows(runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
  """Rows with mean and standard deviation of each group of several seeds."""
  rows = []
  for group in group_by_settings(run for run in runs if run.metrics):
    if len(group) < 2:
      continue
    row = {
      "runs": ", ".join(run.name for run in group),
      "seeds": ", ".join(str(run.flags.get("seed")) for run in group),
    }
    for name in metric_names(group):
      values = [run.metrics[name] for run in group if name in run.metrics]
      if len(values) == len(group) and not _NOT_RANKED.search(name):
        mean, deviation = np.mean(values), np.std(values, ddof=1)
        row[name] = f"{mean:.4f} ± {deviation:.4f}"
    rows.append(row)
  return rows


class Difference(NamedTuple):
  """Differences of the metrics of a run from those of the first one."""

  run: str  # its name
  # Difference of each metric, and its interval if there is one.
  metrics: Mapping[str, tuple[float, Interval | None]]
  test: PairedTest | None


def differences(runs: Sequence[RecordedRun]) -> list[Difference]:
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
    found.append(Difference(run.name, metrics, test))
  return found


def difference_rows(found: Iterable[Difference]) -> list[dict[str, Any]]:
  """Rows of differences; in parentheses is the interval of each."""
  rows = []
  for run, metrics, test in found:
    row: dict[str, Any] = {"run": run}
    for name, (difference, interval) in metrics.items():
      row[name] = f"{difference:+.4f}"
      if interval:
        row[name] += f" ({interval.low:+.4f} to {interval.high:+.4f})"
    if test:
      row["right in one run only"] = f"{test.first_only} : {test.other_only}"
      row["p-value"] = test.p_value
    rows.append(row)
  return rows


def explain_differences(found: Sequence[Difference]) -> str:
  """Explains intervals and tests; "" without any."""
  notes = []
  if any(interval for d in found for _, interval in d.metrics.values()):
    notes.append(
      "In parentheses: 95% interval of the difference, by a paired bootstrap"
      " over the examples of the dev set."
    )
  if any(difference.test for difference in found):
    notes.append(
      "p-value: McNemar's exact test on examples that are predicted right."
    )
  return " ".join(notes)


def flag_rows(runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
  """Rows of flags that differ."""
  flags = {
    f"--{name}": [f"{v:g}" if isinstance(v, float) else v for v in values]
    for name, values in differing(runs).items()
  }
  return _rows([run for run in runs if run.receipt], flags, "flag")


def input_rows(runs: Sequence[RecordedRun]) -> list[dict[str, Any]]:
  """Rows of versions, device and hashes of inputs that differ."""
  known = [run for run in runs if run.receipt]
  described = [
    {
      "script": run.script,
      **run.hashes,
      **run.receipt["versions"],
      "commit": run.receipt["versions"].get("commit", "")[:8] or None,
      "code": run.receipt["code"].get("all", "")[:8],
      "device": _device(run.receipt.get("device")),
    }
    for run in known
  ]
  names = dict.fromkeys(name for values in described for name in values)
  differ = {
    name: [values.get(name) for values in described]
    for name in names
    if len({str(values.get(name)) for values in described}) > 1
  }
  return _rows(known, differ, "input")


def _device(device: Any) -> str | None:
  """GPUs of a receipt, or else its CPU."""
  if not isinstance(device, Mapping):
    return None
  return ", ".join(map(str, device.get("gpus") or [])) or device.get("cpu")


def _rows(
  runs: Sequence[RecordedRun],
  columns: Mapping[str, Sequence[Any]],
  kind: str,
) -> list[dict[str, Any]]:
  """Rows of a table, with the runs or the names downwards: the longer ones."""
  names = [run.name for run in runs]
  if not columns:
    return []
  if len(columns) > len(runs):
    return [
      {kind: name, **dict(zip(names, values))}
      for name, values in columns.items()
    ]
  return [
    {"run": run, **dict(zip(columns, values))}
    for run, values in zip(names, zip(*columns.values()))
  ]
