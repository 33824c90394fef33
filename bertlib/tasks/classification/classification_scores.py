"""Metrics, thresholds and predictions of classification and regression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.tasks.classification.classification import Problem

# Labels up to which there is a confusion matrix, of a million numbers then.
MAX_MATRIX_LABELS = 1000


class Prediction(NamedTuple):
  """Prediction for an example.

  Attributes:
    label: the most probable label; for regression, the value; for a multi-label
      problem, the labels whose probability reaches their threshold.
    probabilities: probability of every label, by label; empty for regression.
  """

  label: str | float | list[str]
  probabilities: dict[str, float]


def prediction(
  problem: Problem,
  row: np.ndarray,
  thresholds: Mapping[str, float] | None = None,  # by label; 0.5 for others
) -> Prediction:
  """Converts probabilities [labels], or a regression's value [1]."""
  if problem.kind == "regression":
    return Prediction(float(row[0]), {})
  by_label = {label: float(p) for label, p in zip(problem.labels, row)}
  return Prediction(predicted_label(problem, row, thresholds), by_label)


def predicted_label(
  problem: Problem,
  row: np.ndarray,
  thresholds: Mapping[str, float] | None = None,
) -> str | float | list[str]:
  """The predicted label, see `prediction`."""
  if problem.kind == "regression":
    return float(row[0])
  if problem.kind != "multi_label":
    return problem.labels[int(np.argmax(row))]
  lowest: float | list[float] = 0.5
  if thresholds:
    lowest = [thresholds.get(label, 0.5) for label in problem.labels]
  (found,) = np.nonzero(np.asarray(row, np.float64) >= lowest)
  return [problem.labels[index] for index in found]


def predicted_labels(
  problem: Problem,
  rows: Iterable[np.ndarray],
  thresholds: Mapping[str, float] | None = None,
) -> list[str]:
  """Predicted labels as text; none for regression. See `prediction`."""
  if problem.kind == "regression":
    return []
  return [label_text(predicted_label(problem, row, thresholds)) for row in rows]


def probabilities(problem: Problem, logits: np.ndarray) -> np.ndarray:
  """Model output from logits [num_examples, num_labels]; see `prediction`."""
  from scipy import special

  if problem.kind == "regression":
    return logits
  if problem.kind == "multi_label":
    return special.expit(logits)
  return special.softmax(logits, axis=-1)


def evaluate(
  names: Sequence[str],
  # [examples], ids or the values of a regression; of a multi-label problem 0 or
  # 1, [examples, labels].
  label_ids: np.ndarray,
  logits: np.ndarray,  # float [examples, labels]
  problem: Problem,
) -> dict[str, Any]:
  """Metrics by name, and the confusion matrix of single-label problems."""
  from sklearn import metrics

  if problem.kind == "regression":
    return {name: METRICS[name](label_ids, logits[:, 0]) for name in names}
  if problem.kind == "multi_label":
    predictions = probabilities(problem, logits) >= 0.5
    return {name: METRICS[name](label_ids > 0, predictions) for name in names}
  predictions = logits.argmax(axis=-1)
  scores = {name: METRICS[name](label_ids, predictions) for name in names}
  if logits.shape[1] > MAX_MATRIX_LABELS:
    return scores
  # A row per gold label, a column per predicted label.
  matrix = metrics.confusion_matrix(
    label_ids, predictions, labels=range(logits.shape[1])
  )
  return scores | {"confusion_matrix": matrix.tolist()}


def best_thresholds(
  # Both are [examples, labels]; ids are 0 or 1.
  label_ids: np.ndarray,
  label_probabilities: np.ndarray,
) -> np.ndarray:
  """Threshold of each label that maximizes its F1: float [labels]."""
  thresholds = np.full(label_ids.shape[1], 0.5)
  for label, (gold, probs) in enumerate(
    zip(label_ids.T, label_probabilities.T)
  ):
    order = np.argsort(-probs, kind="stable")
    gold, probs = gold[order] > 0, probs[order]
    if not gold.any():
      continue
    # Element i of `f1` is F1 if the first i + 1 examples get the label.
    num_predicted = np.arange(1, len(probs) + 1)
    f1 = 2 * gold.cumsum() / (num_predicted + gold.sum())
    # A threshold is the midpoint between two adjacent probabilities; of several
    # equally good ones, the one nearest to 0.5.
    midpoints = (probs + np.append(probs[1:], 0.0)) / 2
    f1[:-1][probs[:-1] == probs[1:]] = -1  # no threshold separates the two
    best = np.flatnonzero(f1 == f1.max())
    thresholds[label] = min(midpoints[best], key=lambda t: abs(t - 0.5))
  return thresholds


def label_text(label: Any) -> str:
  """Text of a label, a list of labels or a regression value, for reports."""
  if isinstance(label, float):
    return f"{label:.3g}"
  return label if isinstance(label, str) else ", ".join(label) or "none"


# Metrics by name


def _from_sklearn(name: str, **arguments):
  def call(label_ids, predictions):
    from sklearn import metrics

    value = getattr(metrics, name)(label_ids, predictions, **arguments)
    return float(value)

  return call


def _from_scipy(name: str):
  def call(label_ids, predictions):
    from scipy import stats

    if len(label_ids) < 2:  # which scipy refuses
      return float("nan")
    return float(getattr(stats, name)(label_ids, predictions)[0])

  return call


METRICS = {
  "accuracy": _from_sklearn("accuracy_score"),
  "f1": _from_sklearn("f1_score", zero_division=0),
  "macro_f1": _from_sklearn("f1_score", average="macro", zero_division=0),
  "micro_f1": _from_sklearn("f1_score", average="micro", zero_division=0),
  "matthews": _from_sklearn("matthews_corrcoef"),
  "pearson": _from_scipy("pearsonr"),
  "spearman": _from_scipy("spearmanr"),
}
