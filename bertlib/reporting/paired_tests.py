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


def mcnemar(first: Sequence[bool], other: Sequence[bool]) -> PairedTest:
  """McNemar's exact test of correctness by two models on the same examples."""
  from scipy import stats

  right, other_right = np.asarray(first, bool), np.asarray(other, bool)
  first_only = int((right & ~other_right).sum())
  other_only = int((other_right & ~right).sum())
  total = first_only + other_only
  # McNemar 1947, as a binomial test.
  p_value = stats.binomtest(first_only, total).pvalue if total else 1.0
  return PairedTest(first_only, other_only, float(p_value))


def compare_labels(
  names: Iterable[str],
  labels: Sequence[str],
  gold: Sequence[str] | Sequence[Sequence[str]],
  first: Sequence[str] | Sequence[Sequence[str]],
  other: Sequence[str] | Sequence[Sequence[str]],
) -> Comparison:
  """Compares predicted labels, or lists of labels, with `gold`."""
  from sklearn import preprocessing

  sets = [
    [{found} if isinstance(found, str) else {*found} for found in column]
    for column in (gold, first, other)
  ]
  test = mcnemar(*([*map(operator.eq, sets[0], found)] for found in sets[1:]))
  # No interval if a label that occurs is not one of the model.
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
  """Compares predicted numbers; "pearson" and "spearman" have intervals."""
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
