"""Two models on the same examples: McNemar's test, intervals of differences."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from bertlib.reporting import statistics
from bertlib.reporting.statistics import Interval


class PairedTest(NamedTuple):
  """McNemar's exact test."""

  # Examples that only the first, or only the other model predicts correctly.
  first_only: int
  other_only: int
  # Probability, if both models were equally good, of numbers that differ at
  # least as much.
  p_value: float


class Comparison(NamedTuple):
  """Two models on the same examples."""

  # None for predictions that are not correct or wrong, or not known.
  test: PairedTest | None = None
  # Of each metric of the other model minus that of the first one.
  intervals: Mapping[str, Interval | None] = {}


def difference_interval(
  metric: Callable[[np.ndarray], float],
  first: np.ndarray,
  other: np.ndarray,
  **options: int,
) -> Interval | None:
  """Interval of a metric of one model minus that of the first, by bootstrap."""
  # Examples are drawn with the predictions of both models.
  return statistics.bootstrap(
    lambda a, b: metric(b) - metric(a), first, other, **options
  )


def mcnemar(first: Sequence[bool], other: Sequence[bool]) -> PairedTest:
  """McNemar's exact test of correctness by two models on the same examples."""
  from scipy import stats

  is_correct, is_other_correct = (
    np.asarray(first, bool),
    np.asarray(other, bool),
  )
  first_only = int((is_correct & ~is_other_correct).sum())
  other_only = int((is_other_correct & ~is_correct).sum())
  total = first_only + other_only
  # McNemar 1947, as a binomial test.
  p_value = stats.binomtest(first_only, total).pvalue if total else 1.0
  return PairedTest(first_only, other_only, float(p_value))


def compare_answers(
  gold: Sequence[Any], first: Sequence[Any], other: Sequence[Any]
) -> PairedTest | None:
  """McNemar's test of labels, or of lists of labels; None for numbers."""
  if not gold or isinstance(gold[0], float):
    return None
  sets, *predicted = (
    [{answer} if isinstance(answer, str) else {*answer} for answer in column]
    for column in (gold, first, other)
  )
  return mcnemar(*([*map(operator.eq, sets, found)] for found in predicted))
