"""Metrics of classification and regression, and thresholds of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertlib.io import json_files
from bertlib.tasks.classification import classification_decoding
from bertlib.tasks.classification.classification import Problem

# Labels up to which there is a confusion matrix, of a million numbers then.
MAX_MATRIX_LABELS = 1000


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

  gold, predicted = gold_and_predicted(label_ids, logits, problem)
  scores = {name: METRICS[name](gold, predicted) for name in names}
  num_labels = logits.shape[1]
  is_single = problem.kind not in ("regression", "multi_label")
  if not is_single or num_labels > MAX_MATRIX_LABELS:
    return scores
  # A row per gold label, a column per predicted label.
  matrix = metrics.confusion_matrix(gold, predicted, labels=range(num_labels))
  return scores | {"confusion_matrix": matrix.tolist()}


def gold_and_predicted(
  label_ids: np.ndarray, logits: np.ndarray, problem: Problem
) -> tuple[np.ndarray, np.ndarray]:
  """The two arguments of `METRICS`, from those of `evaluate`."""
  if problem.kind == "regression":
    return label_ids, logits[:, 0]
  if problem.kind == "multi_label":
    probs = classification_decoding.probabilities(problem, logits)
    return label_ids > 0, probs >= 0.5
  return label_ids, logits.argmax(axis=-1)


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


def tune_thresholds(
  # Both arrays are [examples, labels].
  problem: Problem,
  label_ids: np.ndarray,
  logits: np.ndarray,
) -> tuple[dict[str, float], dict[str, Any]]:
  """Thresholds by label with the best F1, and `eval_results.txt` of these."""
  probs = classification_decoding.probabilities(problem, logits)
  thresholds = best_thresholds(label_ids, probs)
  results: dict[str, Any] = {}
  # On the examples that the thresholds were tuned on.
  for name in ("micro_f1", "macro_f1"):
    value = METRICS[name](label_ids > 0, probs >= thresholds)
    results[f"eval_{name}_tuned"] = np.float32(value)
  by_label = dict(zip(problem.labels, map(float, thresholds)))
  results["thresholds"] = json_files.dumps(by_label, ensure_ascii=False)
  return by_label, results


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
