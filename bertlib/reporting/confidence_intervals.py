"""95% confidence intervals of metrics over the examples of a data set.

Also of the difference between two models on the same examples. None where an
interval says nothing: for too few examples, or the same metric in every
resample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

import numpy as np

# A metric for `bootstrap`: takes rows of all that it depends on, [rows,
# columns], and how often each one occurs, int [rows], which may be 0.
Metric = Callable[[Any, np.ndarray], float]

LEVEL = 0.95

# Examples that a bootstrap needs; resamples of fewer are too much alike.
_MIN_EXAMPLES = 10
# Resamples of a bootstrap, fewer for large data sets, so that it takes seconds.
_MAX_RESAMPLES, _MIN_RESAMPLES = 1000, 200
_NUM_DRAWN = 2 * 10**7
_SEED = 1  # the same data always give the same report


class Interval(NamedTuple):
  """A confidence interval."""

  low: float
  high: float
  method: str  # its name in reports


class Estimates(NamedTuple):
  """Intervals and baselines that a report shows beside the metrics."""

  # Number of evaluated examples, with a noun.
  count: str = ""
  # By metric, without `eval_`; None for a metric without interval.
  intervals: Mapping[str, Interval | None] = {}
  # A trivial prediction, and the metric of it.
  baselines: Mapping[str, tuple[str, float]] = {}


def of_fraction(num_correct: int, num_examples: int) -> Interval | None:
  """Interval of a fraction of examples, such as accuracy (Wilson 1927)."""
  from scipy import stats

  if not num_examples:
    return None
  found = stats.binomtest(num_correct, num_examples)
  low, high = found.proportion_ci(LEVEL, method="wilson")
  return Interval(float(low), float(high), "Wilson")


def of_correlation(name: str, x: np.ndarray, y: np.ndarray) -> Interval | None:
  """Interval of "pearson" or "spearman" by Fisher's z transformation."""
  from scipy import stats

  if len(x) < _MIN_EXAMPLES or not (np.ptp(x) and np.ptp(y)):
    return None
  function = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[name]
  value = float(function(x, y)[0])
  if not abs(value) < 1 - 1e-12:  # 1 but for rounding, or NaN
    return None
  # Of Spearman's correlation: Bonett and Wright 2000.
  variance = 1 + value**2 / 2 if name == "spearman" else 1.0
  margin = stats.norm.ppf((1 + LEVEL) / 2) * math.sqrt(variance / (len(x) - 3))
  low, high = np.tanh(math.atanh(value) + np.array([-margin, margin]))
  return Interval(float(low), float(high), "Fisher z")


def of_labels(
  name: str, gold: np.ndarray, predicted: np.ndarray
) -> Interval | None:
  """Interval of "accuracy" or one of `LABEL_METRICS`; None for others."""
  # int [examples], or bool [examples, labels] for several labels each.
  if gold.ndim == 2 and gold.shape[1] == 1:  # as scikit-learn reads it
    gold, predicted = gold[:, 0], predicted[:, 0]
  if name == "accuracy":
    is_right = np.reshape(gold == predicted, [len(gold), -1]).all(axis=1)
    return of_fraction(int(is_right.sum()), len(gold))
  if name not in LABEL_METRICS:
    return None
  num_labels = None
  if gold.ndim == 1:
    num_labels = int(max(gold.max(), predicted.max(), 1)) + 1
  rows = label_rows(gold, predicted)
  return bootstrap(label_metric(name, num_labels), rows)


def label_rows(gold: np.ndarray, predicted: np.ndarray):
  """Rows for `label_metric`, of labels or of bool [examples, labels]."""
  from scipy import sparse

  # Labels give int [examples, 2]: gold and predicted. Several labels each give
  # sparse float64 [examples, 3 * labels]: 1 where a label is correctly
  # predicted, is predicted, is gold.
  if gold.ndim == 1:
    return np.column_stack([gold, predicted])
  parts = [gold & predicted, predicted, gold]
  return sparse.hstack([sparse.csr_array(p, dtype=float) for p in parts], "csr")


def label_metric(name: str, num_labels: int | None) -> Metric:
  """A metric of `label_rows`, by its key in `LABEL_METRICS`."""
  return lambda rows, counts: LABEL_METRICS[name](
    count_labels(rows, counts, num_labels)
  )


class LabelCounts(NamedTuple):
  """Number of examples by label, float64 [labels] each."""

  right: np.ndarray  # correctly predicted
  predicted: np.ndarray
  gold: np.ndarray
  # bool [labels], whether macro F1 includes the label.
  is_of_data: np.ndarray


def count_labels(
  rows, counts: np.ndarray, num_labels: int | None = None
) -> LabelCounts:
  """Counts labels of `label_rows`, each row as often as it occurs."""
  # A label per row needs `num_labels`: then only labels that occur are of the
  # data, as in scikit-learn.
  if num_labels is None:
    found = np.split(counts @ rows, 3)
    return LabelCounts(*found, np.full(len(found[0]), True))
  gold, predicted = rows.T
  weights = ((gold, counts * (gold == predicted)), (predicted, counts))
  found = [
    np.bincount(*pair, num_labels) for pair in (*weights, (gold, counts))
  ]
  return LabelCounts(*found, found[1] + found[2] > 0)


def _f1(counts: LabelCounts) -> float:
  """F1 of label 1."""
  return _ratio(2 * counts.right[1], counts.predicted[1] + counts.gold[1])


def _macro_f1(counts: LabelCounts) -> float:
  """Mean F1 of the labels; 0 for one that does not occur."""
  total = np.maximum(counts.predicted + counts.gold, 1)
  return (2 * counts.right / total)[counts.is_of_data].mean()


def _micro_f1(counts: LabelCounts) -> float:
  """F1 over all labels."""
  return _ratio(
    2 * counts.right.sum(), counts.predicted.sum() + counts.gold.sum()
  )


def _matthews(counts: LabelCounts) -> float:
  """Matthews correlation of any number of labels (Gorodkin 2004)."""
  right, predicted, gold, _ = counts
  total = gold.sum()
  covariance = right.sum() * total - predicted @ gold
  variances = (total**2 - x @ x for x in (predicted, gold))
  return _ratio(covariance, math.sqrt(math.prod(variances)))


def _ratio(part: float, whole: float) -> float:
  """A quotient; 0 where scikit-learn has 0 for a quotient by 0."""
  return part / whole if whole else 0.0


# Those of `classification_scores` that are no fractions of examples, from
# counts: for a thousand resamples scikit-learn takes several seconds.
LABEL_METRICS = {
  "f1": _f1,
  "macro_f1": _macro_f1,
  "micro_f1": _micro_f1,
  "matthews": _matthews,
}


def of_average_precision(
  gold: np.ndarray, scores: np.ndarray
) -> Interval | None:
  """Interval of the average precision of examples ranked by a score."""
  return bootstrap(average_precision, np.column_stack([scores, gold]))


def average_precision(rows: np.ndarray, counts: np.ndarray) -> float:
  """Average precision of sorted rows (score, label); NaN without a label 1."""
  # `sklearn.metrics.average_precision_score`, which has the same result, takes
  # seconds for a thousand resamples.
  occurs = counts > 0
  scores, gold = rows[occurs][::-1].T
  counts = counts[occurs][::-1]
  is_last = np.append(scores[1:] != scores[:-1], True)  # of equal scores
  num_right = np.cumsum(counts * gold)[is_last]
  if not num_right[-1]:
    return math.nan
  precision = num_right / np.cumsum(counts)[is_last]
  return float(np.diff(num_right, prepend=0) @ precision / num_right[-1])


def of_mean(values: np.ndarray) -> Interval | None:
  """Interval of a mean over examples by bootstrap."""
  return bootstrap(mean, np.asarray(values, np.float64)[:, np.newaxis])


def mean(rows: np.ndarray, counts: np.ndarray) -> float:
  """Mean of rows [examples, 1], a `Metric`."""
  return counts @ rows[:, 0] / counts.sum()


def of_difference(
  metric: Metric, first: np.ndarray, other: np.ndarray
) -> Interval | None:
  """Interval of a metric of one model minus that of the first, by bootstrap."""
  # Paired bootstrap: examples are drawn with the predictions of both models.
  # Tables are [examples, columns]; their rows need not be sorted.
  return bootstrap(
    lambda a, b, counts: metric(b, counts) - metric(a, counts),
    first,
    other,
  )


def bootstrap(metric: Metric, *tables) -> Interval | None:
  """Percentile bootstrap over examples (Efron 1979), with a fixed seed."""
  from scipy import sparse

  num_examples = tables[0].shape[0]
  if num_examples < _MIN_EXAMPLES:
    return None
  groups = np.arange(num_examples)
  # Equal rows are counted together. They are sorted, too, as
  # `average_precision` needs them.
  if not sparse.issparse(tables[0]):
    rows, groups = np.unique(
      np.column_stack(tables), axis=0, return_inverse=True
    )
    groups = groups.reshape(-1)  # 2-dimensional in NumPy 2.0
    tables = tuple(np.split(rows, len(tables), axis=1))
  size = num_examples + sum(table.size for table in tables)
  num_resamples = min(_MAX_RESAMPLES, max(_MIN_RESAMPLES, _NUM_DRAWN // size))
  draw = np.random.default_rng(_SEED)
  values = np.empty(num_resamples)
  for index in range(num_resamples):
    drawn = groups[draw.integers(num_examples, size=num_examples)]
    counts = np.bincount(drawn, minlength=tables[0].shape[0])
    values[index] = metric(*tables, counts)
  values = values[np.isfinite(values)]
  # Too many resamples in which the metric is not defined.
  if len(values) < 0.9 * num_resamples or not np.ptp(values):
    return None
  tail = 100 * (1 - LEVEL) / 2
  low, high = np.percentile(values, [tail, 100 - tail])
  return Interval(float(low), float(high), "bootstrap")
