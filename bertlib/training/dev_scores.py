"""Dev scores of a run: names, which is better, and `dev_scores.jsonl`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertlib.cli.errors import InputError
from bertlib.io import json_files, text_files

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
