"""Compares two models by their predictions of the same examples."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.reporting import confidence_intervals
from bertlib.reporting.confidence_intervals import Interval, Metric


class PairedTest(NamedTuple):
  """McNemar's exact test.

  Attributes:
    first_only: examples that only the first model predicts right.
    other_only: examples that only the other one predicts right.
    p_value: probability, if both models were equally good, of numbers that
      differ at least as much.
  """

  first_only: int
  other_only: int
  p_value: float


class Comparison(NamedTuple):
  """Two models on the same examples.

  Attributes:
    test: test of the number of right predictions; None for predictions that
      are not right or wrong, or not known.
    intervals: for each metric, the interval of that of the other model minus
      that of the first one; None for no interval.
  """

  test: PairedTest | None = None
  intervals: Mapping[str, Interval | None] = {}


def mcnemar(first: Sequence[bool], other: Sequence[bool]) -> PairedTest:
  """McNemar's exact test (McNemar 1947) of two models on the same examples.

  Args:
    first: bool [N], whether each prediction of the first model is right.
    other: bool [N], the same for the other model.
  """
  from scipy import stats

  right, other_right = np.asarray(first, bool), np.asarray(other, bool)
  first_only = int((right & ~other_right).sum())
  other_only = int((other_right & ~right).sum())
  total = first_only + other_only
  p_value = stats.binomtest(first_only, total).pvalue if total else 1.0
  return PairedTest(first_only, other_only, float(p_value))


def compare_labels(
  names: Iterable[str],
  labels: Sequence[str],
  gold: Sequence[str] | Sequence[Sequence[str]],
  first: Sequence[str] | Sequence[Sequence[str]],
  other: Sequence[str] | Sequence[Sequence[str]],
) -> Comparison:
  """Compares predicted labels, or lists of labels.

  Args:
    names: metrics; those in `confidence_intervals.LABEL_METRICS` have an
      interval.
    labels: the label set in the order of the model's outputs. There is no
      interval if one that occurs is not in it.
    gold: gold label of each example, or a list of them.
    first: the same for the predictions of the first model.
    other: the same for the other model.
  """
  from sklearn import preprocessing

  sets = [
    [{found} if isinstance(found, str) else {*found} for found in column]
    for column in (gold, first, other)
  ]
  test = mcnemar(*([*map(operator.eq, sets[0], found)] for found in sets[1:]))
  if set().union(*itertools.chain(*sets)) - {*labels}:
    return Comparison(test)
  num_labels = None
  if isinstance(gold[0], str):
    num_labels = len(labels)
    numbers = {label: number for number, label in enumerate(labels)}
    gold_ids, *predicted = (
      np.array([numbers[label] for label in column])
      for column in (gold, first, other)
    )
  else:
    encode = preprocessing.MultiLabelBinarizer(classes=labels).fit_transform
    gold_ids, *predicted = (encode(column) > 0 for column in sets)
    if len(labels) == 1:  # a label per example, as scikit-learn reads it
      num_labels = 2
      gold_ids, *predicted = (ids[:, 0] for ids in (gold_ids, *predicted))
  metrics = {
    name: confidence_intervals.label_metric(name, num_labels)
    for name in names
    if name in confidence_intervals.LABEL_METRICS
  }
  rows = [
    confidence_intervals.label_rows(gold_ids, found) for found in predicted
  ]
  return Comparison(test, differences(metrics, *rows))


def compare_values(
  names: Iterable[str],
  gold: Sequence[float],
  first: Sequence[float],
  other: Sequence[float],
) -> Comparison:
  """Compares predicted numbers.

  Args:
    names: metrics, of which "pearson" and "spearman" have an interval.
    gold: float [N].
    first: float [N], predictions of the first model.
    other: float [N], those of the other model.
  """
  metrics = {
    name: _CORRELATIONS[name] for name in names if name in _CORRELATIONS
  }
  rows = [np.column_stack([gold, values]) for values in (first, other)]
  with np.errstate(invalid="ignore"):  # a constant has no correlation
    return Comparison(None, differences(metrics, *rows))


def _pearson(rows: np.ndarray, counts: np.ndarray) -> float:
  """Pearson correlation, a `Metric` of rows of gold and predicted values."""
  return np.corrcoef(*np.repeat(rows, counts, axis=0).T)[0, 1]


def _spearman(rows: np.ndarray, counts: np.ndarray) -> float:
  """Spearman correlation, likewise."""
  from scipy import stats

  ranks = stats.rankdata(np.repeat(rows, counts, axis=0), axis=0)
  return np.corrcoef(*ranks.T)[0, 1]


# For a thousand resamples `scipy.stats.pearsonr` and `spearmanr`, which also
# compute p-values, take several times as long.
_CORRELATIONS = {"pearson": _pearson, "spearman": _spearman}


def differences(
  metrics: Mapping[str, Metric], first: np.ndarray, other: np.ndarray
) -> dict[str, Interval | None]:
  """Intervals of the differences of metrics, see `of_difference`."""
  return {
    name: confidence_intervals.of_difference(metric, first, other)
    for name, metric in metrics.items()
  }
