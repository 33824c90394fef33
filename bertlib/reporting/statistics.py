"""95% confidence intervals of metrics, and a test of two models.

Both are over the examples of a data set. An interval is None where it says
nothing: for very few or very many examples, or the same metric in every
resample.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

LEVEL = 0.95

# Examples that a bootstrap needs; resamples of fewer are too much alike.
_MIN_EXAMPLES = 10
# Resamples of a bootstrap, fewer for large data sets, so that it takes seconds;
# one that leaves less than the minimum is so large that chance matters little.
_MAX_RESAMPLES, _MIN_RESAMPLES = 500, 50
_MAX_DRAWN = 5 * 10**7  # values of all resamples
_SEED = 1  # the same data always give the same report


def from_sklearn(name: str, **arguments: Any) -> Callable[..., float]:
  """A metric of gold and predicted values, imported when it is computed."""

  def call(gold, predicted):
    from sklearn import metrics

    return float(getattr(metrics, name)(gold, predicted, **arguments))

  return call


def from_scipy(name: str) -> Callable[..., float]:
  """Likewise a correlation; NaN for less than two values."""

  def call(gold, predicted):
    from scipy import stats

    if len(gold) < 2:  # which scipy refuses
      return float("nan")
    return float(getattr(stats, name)(gold, predicted)[0])

  return call


class Interval(NamedTuple):
  """A confidence interval."""

  low: float
  high: float
  method: str  # its name in reports


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


def fraction_interval(is_correct: Sequence[bool]) -> Interval | None:
  """Interval of the fraction of correct predictions (Wilson 1927)."""
  from scipy import stats

  if not len(is_correct):
    return None
  found = stats.binomtest(int(np.sum(is_correct)), len(is_correct))
  low, high = found.proportion_ci(LEVEL, method="wilson")
  return Interval(float(low), float(high), "Wilson")


def bootstrap(
  metric: Callable[..., float],
  *tables: np.ndarray,
  max_resamples: int = _MAX_RESAMPLES,
) -> Interval | None:
  """Interval of `metric(*tables)`; the rows of all tables are the examples."""
  from scipy import stats

  num_examples = len(tables[0])
  if num_examples < _MIN_EXAMPLES:
    return None
  num_resamples = _MAX_DRAWN // sum(table.size for table in tables)
  if num_resamples < _MIN_RESAMPLES:
    return None
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a resample may lack a label
    found = stats.bootstrap(
      [np.arange(num_examples)],
      lambda drawn: float(metric(*(table[drawn] for table in tables))),
      n_resamples=min(num_resamples, max_resamples),
      batch=1,
      vectorized=False,
      confidence_level=LEVEL,
      method="percentile",
      random_state=_SEED,
    )
  low, high = map(float, found.confidence_interval)
  # Both are NaN if the metric is not defined in a resample.
  return Interval(low, high, "bootstrap") if low < high else None


def difference_interval(
  metric: Callable[[np.ndarray], float],
  first: np.ndarray,
  other: np.ndarray,
  **options: int,
) -> Interval | None:
  """Interval of a metric of one model minus that of the first, by bootstrap."""
  # Examples are drawn with the predictions of both models.
  return bootstrap(lambda a, b: metric(b) - metric(a), first, other, **options)


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
