"""Dev scores of a run: names, which is better, and `dev_scores.jsonl`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.io import files, json_files, text_files

SCORES_FILE = "dev_scores.jsonl"


class Selection(NamedTuple):
  """Evaluation during training and early stopping."""

  eval_steps: int  # steps between evaluations; 0 for none
  metric: str  # primary metric, which selects the best checkpoint
  # Evaluations without improvement after which training ends; 0 for no early
  # stopping.
  patience: int = 0


def plain_name(metric: str) -> str:
  """A metric's name without the prefix `eval_` of the results files."""
  return metric.removeprefix("eval_")


def is_better(metric: str, score: float, than: float | None) -> bool:
  """Compares two scores: lower is better for losses; NaN is never better."""
  if than is None or math.isnan(than):
    return not math.isnan(score)
  return score < than if metric.endswith("loss") else score > than


def plain_scores(results: Mapping[str, Any]) -> dict[str, float]:
  """Numbers of `eval_results.txt` by `plain_name`, without `global_step`."""
  return {
    plain_name(name): float(f"{value:.7g}")
    for name, value in results.items()
    if not isinstance(value, (list, str))
    and name != "global_step"
    # Estimator's `loss` is a mean over batches: `eval_loss` takes precedence.
    and f"eval_{name}" not in results
  }


def best_row(
  rows: Sequence[Mapping[str, Any]], metric: str
) -> Mapping[str, Any] | None:
  """First evaluation with the best score of a metric; None if none has it."""
  best = None
  for row in rows:
    score = row.get(metric, math.nan)
    if is_better(metric, score, best and best[metric]):
      best = row
  return best


def read_scores(path: str) -> list[dict[str, Any]]:
  """Rows of a `dev_scores.jsonl`, each with a `step` and scores by name."""
  rows = []
  lines = text_files.read_lines(path)
  fix = "Remove the line, or remove the file to evaluate again"
  for number, row in json_files.parse_lines(lines, path, {"step": int}, fix):
    row = json_files.with_nan(row)
    if set(map(type, row.values())) - {int, float}:
      raise InputError(f"{path}, line {number}: a score is not a number. {fix}")
    rows.append(row)
  return rows


class DevScores:
  """Dev metrics of a run, stored in `dev_scores.jsonl`."""

  def __init__(self, model_dir: str, selection: Selection):
    """Reads the metrics in `model_dir`, if there are any."""
    self.model_dir = model_dir
    self.selection = selection
    self._path = os.path.join(model_dir, SCORES_FILE)
    # The `step` and the scores by name of each evaluation, in order.
    self.rows: list[dict[str, Any]] = []
    if files.exists(self._path):
      self.rows = read_scores(self._path)

  @property
  def best(self) -> dict[str, Any] | None:
    """The first row with the best primary metric; None if there is none."""
    return best_row(self.rows, self.selection.metric)

  def by_name(self) -> dict[str, list[tuple[int, float]]]:
    """(step, value) pairs of each metric."""
    names = dict.fromkeys(name for row in self.rows for name in row)
    return {
      name: [(row["step"], row[name]) for row in self.rows if name in row]
      for name in names
      if name != "step"
    }

  @property
  def last_step(self) -> int:
    """The step of the last evaluation; 0 if there is none."""
    return self.rows[-1]["step"] if self.rows else 0

  def ends_early(self) -> bool:
    """True if patience has run out, which it logs."""
    best, patience = self.best, self.selection.patience
    num_since_best = len(self.rows) - (self.rows.index(best) + 1 if best else 0)
    if not patience or num_since_best < patience:
      return False
    logging.info(
      "--patience=%d: best %s at step %s, no improvement in %d evaluations"
      " since; training ends at step %d",
      patience,
      self.selection.metric,
      best["step"] if best else "-",
      num_since_best,
      self.last_step,
    )
    return True

  def add(self, step: int, scores: Mapping[str, Any]) -> bool:
    """Adds the metrics of a step; True if they are the best so far."""
    row = {"step": step, **plain_scores(scores)}
    # Later rows are of a training that was resumed from an earlier step.
    self.rows = [r for r in self.rows if r["step"] < step] + [row]
    return self.best is row

  def write(self) -> None:
    """Writes the file."""
    with files.atomic_write(self._path) as file:
      file.writelines(json_files.dumps(row) + "\n" for row in self.rows)
