"""95% confidence intervals of metrics.

They are over the examples of a data set. An interval is None where it says
nothing: for very few or very many examples, or the same metric in every
resample.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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
