"""Comparison of the labels that two runs predict."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertlib.reporting import paired_tests
from bertlib.reporting.paired_tests import Comparison
from bertlib.reporting.statistics import Interval
from bertlib.tasks.classification.classification_report import (
  MAX_RESAMPLES,
  METRICS,
)


def compare(first: Any, other: Any) -> Comparison:
  """Compares the predictions of two runs for the same examples."""
  answers = first.gold, first.predicted, other.predicted
  test = paired_tests.compare_answers(*answers)
  # The thresholds of a model of several labels are by label.
  labels = first.results.get("labels") or first.results.get("thresholds") or []
  gold, *predicted = (_as_numbers(column, [*labels]) for column in answers)
  if gold is None or any(column is None for column in predicted):
    return Comparison(test)
  # [examples, gold or predicted] or [examples, gold or predicted, labels]
  pairs = [np.stack([gold, column], axis=1) for column in predicted]

  def interval(name: str) -> Interval | None:
    return paired_tests.difference_interval(
      lambda rows: METRICS[name](rows[:, 0], rows[:, 1]),
      *pairs,
      max_resamples=MAX_RESAMPLES,
    )

  # Accuracy has the test.
  names = {*first.metrics} & {*other.metrics} & {*METRICS} - {"accuracy"}
  return Comparison(test, {name: interval(name) for name in names})


def _as_numbers(
  answers: Sequence[Any], labels: Sequence[str]
) -> np.ndarray | None:
  """Answers as `METRICS` take them; None if a label is not of the model."""
  if isinstance(answers[0], float):
    return np.array(answers)
  if isinstance(answers[0], str):
    numbers = {label: number for number, label in enumerate(labels)}
    known = [numbers[answer] for answer in answers if answer in numbers]
    return np.array(known) if len(known) == len(answers) else None
  if not {*itertools.chain(*answers)} <= {*labels}:
    return None
  return np.array([[label in answer for label in labels] for answer in answers])
