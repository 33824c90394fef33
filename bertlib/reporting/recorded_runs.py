"""Reads the folders of runs: receipts, metrics and dev scores."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

from bertlib.cli.errors import InputError
from bertlib.io import dev_scores, files, json_files, receipt_file, result_files
from bertlib.io.receipt_file import DEV_DATA, TRAINING_DATA
from bertlib.io.result_files import DevPrediction
from bertlib.task.task_record import TaskRecord

# Files of a run that a comparison may not replace.
FILES = (
  receipt_file.NAME,
  "eval_results.txt",
  "eval_predictions.jsonl",
  dev_scores.SCORES_FILE,
  "checkpoint",
)


@dataclasses.dataclass(frozen=True)
class RecordedRun:
  """A run, as the files in its folder describe it."""

  folder: str  # its --output_dir
  # One that says nothing if the task is not known.
  task: TaskRecord
  receipt: Mapping[str, Any]  # of the training, or else the last one
  # Receipt with the metrics, of the training or of a later evaluation in the
  # same folder.
  evaluation: Mapping[str, Any]
  metrics: Mapping[str, float]  # on the dev set, by plain name
  primary_metric: str | None
  # Rows of `dev_scores.jsonl`: step and metrics during training.
  dev_scores: Sequence[Mapping[str, Any]]
  num_steps: int | None  # up to the last evaluation; None without one

  @property
  def script(self) -> str:
    """File name of the script."""
    return self.receipt["script"]

  @functools.cached_property
  def flags(self) -> dict[str, Any]:
    """Values of the flags; for "auto", the value that was chosen."""
    return {
      **self.receipt.get("flags", {}),
      **receipt_file.chosen(self.receipt),
    }

  @property
  def best_step(self) -> int | None:
    """Step of the best score during training; None without evaluation."""
    if not self.primary_metric:
      return None
    best = dev_scores.best_row(self.dev_scores, self.primary_metric)
    return best["step"] if best else None

  @property
  def duration(self) -> datetime.timedelta | None:
    """See `receipt_file.duration`."""
    return receipt_file.duration(self.receipt)

  @property
  def note(self) -> str:
    """Remark on an unusual run; "" for none."""
    if self.receipt["results"] is None:
      return "not finished"
    is_later = self.evaluation is not self.receipt
    return "evaluated by a later command" if is_later else ""

  @functools.cached_property
  def hashes(self) -> dict[str, str]:
    """Beginning of the hash of the inputs by their use."""
    return {
      use: _combined_hash(file["sha256"] for file in used)
      for use, used in self._inputs().items()
    }

  @property
  def dev_data(self) -> str | None:
    """Hash of the data that the metrics are of; None if it is not known."""
    evaluates_own = self.task.evaluates_training_data
    use = TRAINING_DATA if evaluates_own else DEV_DATA
    return self.hashes.get(DEV_DATA) or self.hashes.get(use)

  def dev_files(self) -> list[Mapping[str, Any]]:
    """Entries of the dev data in the receipt."""
    return self._inputs().get(DEV_DATA, [])

  @functools.cached_property
  def dev_predictions(self) -> list[DevPrediction]:
    """Predictions that the metrics are of; empty if they are not known."""
    path = os.path.join(self.folder, "eval_predictions.jsonl")
    return result_files.read_dev_predictions(path) if files.exists(path) else []

  def shared_predictions(
    self, other: RecordedRun
  ) -> tuple[list[str], list[Any], list[Any], list[Any]]:
    """Metric names, gold answers and both predictions of the same examples."""
    pairs = [*zip(self.dev_predictions, other.dev_predictions)]
    is_same = len(self.dev_predictions) == len(other.dev_predictions) and all(
      a.guid == b.guid and a.gold == b.gold for a, b in pairs
    )
    # Examples or gold answers differ, or are not known.
    if not is_same:
      pairs = []
    return (
      [name for name in self.metrics if name in other.metrics],
      [a.gold for a, _ in pairs],
      [a.predicted for a, _ in pairs],
      [b.predicted for _, b in pairs],
    )

  def _inputs(self) -> dict[str, list[Mapping[str, Any]]]:
    """Entries of files in the receipts by their use."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for is_dev, receipt in ((False, self.receipt), (True, self.evaluation)):
      for file in receipt["files"]:
        use = receipt_file.use_of(file, receipt, self.task.uses)
        if use and is_dev == (use == DEV_DATA):
          found.setdefault(use, []).append(file)
    return found


def _combined_hash(hashes: Iterable[str]) -> str | None:
  """Order-independent hash prefix of several files; None for no files."""
  hashes = sorted(hashes)
  if len(hashes) > 1:
    hashes = [hashlib.sha256("".join(hashes).encode()).hexdigest()]
  return hashes[0][:8] if hashes else None


# Reading


def find_runs(
  paths: Sequence[str], find_task: Callable[[str], TaskRecord | None]
) -> list[RecordedRun]:
  """Reads the runs in folders; one of `--seeds` gives a run per seed."""
  runs = []
  for folder in map(_folder, paths):
    seeds = _seed_folders(folder) or [folder]
    runs += [_read_run(of_run, find_task) for of_run in seeds]
  folders = [run.folder for run in runs]
  for folder in folders:
    if folders.count(folder) > 1:
      raise InputError(f"{folder}: is given twice. Name each run once")
  return runs


def _folder(path: str) -> str:
  """Folder of a run that is named by its folder or its `run.json`."""
  if os.path.basename(path) == receipt_file.NAME:
    path = os.path.dirname(path) or "."
  if not path or not files.exists(path):
    raise InputError(f"{path}: no such folder. Name the --output_dir of a run")
  return path if files.is_remote(path) else os.path.normpath(path)


def _seed_folders(folder: str) -> list[str]:
  """Folders of the runs of --seeds that have begun; empty for a single run."""
  receipt = next(filter(receipt_file.trains, receipt_file.read_all(folder)), {})
  flags = receipt.get("flags", {})
  folders = [
    os.path.join(folder, f"seed_{flags['seed'] + index}")
    for index in range(flags.get("seeds") or 0)
  ]
  return [
    path
    for path in folders
    if files.exists(os.path.join(path, receipt_file.NAME))
  ]


def _read_run(
  folder: str, find_task: Callable[[str], TaskRecord | None]
) -> RecordedRun:
  """Reads the folder of a run."""
  found = []  # of the training, and of evaluations after it
  for receipt in receipt_file.read_all(folder):
    found.append(receipt)
    if receipt_file.trains(receipt):
      break
  if not found:
    raise InputError(
      f"{folder}: is not the folder of a run, since it has no run.json. Name"
      " the --output_dir of a run"
    )
  receipt = next(filter(receipt_file.trains, found), found[0])
  evaluation = next((r for r in found if r["results"]), receipt)
  results = evaluation["results"] or {}
  numbers = {
    name: value
    for name, value in json_files.with_nan(results).items()
    if type(value) in (int, float)
  }
  metrics = dev_scores.plain_scores(numbers)
  script = receipt["script"].removesuffix(".py")
  task = find_task(script) or TaskRecord(script)
  scores_file = os.path.join(folder, dev_scores.SCORES_FILE)
  rows = []
  if files.exists(scores_file):
    rows = dev_scores.read_scores(scores_file)
  primary = _primary_metric(
    receipt, task, metrics or (rows[-1] if rows else {})
  )
  return RecordedRun(
    folder,
    task,
    receipt,
    evaluation,
    metrics={
      n: metrics[n] for n in sorted(metrics, key=lambda n: n != primary)
    },
    primary_metric=primary,
    dev_scores=rows,
    num_steps=rows[-1]["step"] if rows else numbers.get("global_step"),
  )


def _primary_metric(
  receipt: Mapping[str, Any], task: TaskRecord, metrics: Mapping[str, float]
) -> str | None:
  """Name of the primary metric; None if there is no metric."""
  named = receipt.get("flags", {}).get("best_metric")
  names = [*task.primary_metrics, *metrics]
  if named:
    names = [dev_scores.plain_name(named)]
  return next((n for n in names if n in metrics and n != "step"), None)
