"""Metrics of a classifier, thresholds of its labels, and its report."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.cli.errors import some_of
from bertlib.io import json_files
from bertlib.reporting import html_report, statistics
from bertlib.reporting.html_report import Section, escape
from bertlib.reporting.statistics import Interval
from bertlib.tasks.classification import classification_decoding
from bertlib.tasks.classification.classification import (
  ChoiceExample,
  Example,
  Problem,
)

# Labels up to which the results of an evaluation have a confusion matrix, of a
# million numbers then.
_MAX_MATRIX_LABELS = 1000

# Labels up to which the report has one, and confusions of more labels.
_MAX_MATRIX, _MAX_CONFUSIONS = 20, 20

# Of a bootstrap: a metric of scikit-learn takes 3 ms at least.
MAX_RESAMPLES = 200


# Metrics and thresholds


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
  if not is_single or num_labels > _MAX_MATRIX_LABELS:
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


_f1 = functools.partial(statistics.from_sklearn, "f1_score", zero_division=0)

METRICS = {
  "accuracy": statistics.from_sklearn("accuracy_score"),
  "f1": _f1(),
  "macro_f1": _f1(average="macro"),
  "micro_f1": _f1(average="micro"),
  "matthews": statistics.from_sklearn("matthews_corrcoef"),
  "pearson": statistics.from_scipy("pearsonr"),
  "spearman": statistics.from_scipy("spearmanr"),
}


# The report


def sections(
  problem: Problem,
  examples: Sequence[Example],
  label_ids: np.ndarray,  # gold, see `evaluate`
  logits: np.ndarray,  # float [examples, labels]
  thresholds: Mapping[str, float] | None = None,  # tuned, by label
) -> list[Section]:
  """Sections on the predictions of a classifier, for `run_report.Findings`."""
  predicted = classification_decoding.probabilities(problem, logits)
  if problem.kind == "regression":
    error = np.abs(predicted[:, 0] - label_ids)
    return [_errors(problem, examples, predicted, error)]
  if problem.kind == "multi_label":
    gold = label_ids > 0
    wrong = (predicted >= 0.5) != gold
    error = np.where(wrong, np.maximum(predicted, 1 - predicted), 0).max(axis=1)
    by_label = thresholds or {}
    lowest = np.array([by_label.get(label, 0.5) for label in problem.labels])
    tables = [_label_table(problem, gold, predicted >= lowest, lowest)]
  else:
    predicted_ids = predicted.argmax(axis=1)
    error = np.where(predicted_ids != label_ids, predicted.max(axis=1), 0)
    tables = [
      _confusion_matrix(problem, label_ids, predicted_ids),
      _label_table(problem, label_ids, predicted_ids),
    ]
  return [*tables, _errors(problem, examples, predicted, error)]


def _confusion_matrix(
  problem: Problem, gold: np.ndarray, predicted: np.ndarray
) -> Section:
  """Counts by gold and predicted label; of many labels, the most frequent."""
  title = "Confusion matrix"
  counts = collections.Counter(zip(gold.tolist(), predicted.tolist()))
  if problem.num_labels > _MAX_MATRIX:
    rows = [
      {
        "gold": problem.labels[a],
        "predicted": problem.labels[b],
        "count": count,
      }
      for (a, b), count in counts.most_common()
      if a != b
    ]
    about = "The most frequent confusions."
    return html_report.table(title, rows[:_MAX_CONFUSIONS], about)
  heads = [f"<th>{escape(label)}</th>" for label in problem.labels]
  rows = [["<th>gold ↓ predicted →</th>", *heads]]
  for label, head in enumerate(heads):
    of_label = [counts[label, other] for other in range(len(heads))]
    rows.append([head])
    for other, count in enumerate(of_label):
      kind = "right" if other == label else "wrong"
      share = 70 * math.sqrt(count / max(sum(of_label), 1))
      style = f"--share: {share:.0f}%"
      rows[-1].append(f'<td class="{kind}" style="{style}">{count:,}</td>')
  return Section(title, html_report.grid(rows, "matrix"))


def _label_table(
  problem: Problem,
  # Label ids [examples], or bool [examples, labels].
  gold: np.ndarray,
  predicted: np.ndarray,
  thresholds: np.ndarray | None = None,  # [labels]
) -> Section:
  """Metrics of each label."""
  from sklearn import metrics

  # A single column of labels is of label 1 for scikit-learn.
  labels = [1] if problem.num_labels == 1 else range(problem.num_labels)
  precision, recall, f1, counts = metrics.precision_recall_fscore_support(
    gold, predicted, labels=labels, zero_division=0
  )
  columns = {
    "label": problem.labels,
    "threshold": thresholds,
    "precision": precision,
    "recall": recall,
    "f1": f1,
    "examples": counts,
  }
  if thresholds is None:
    del columns["threshold"]
  rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
  return html_report.table("Labels", rows)


def _errors(problem, examples, predicted, error) -> Section:
  """Section on the examples with the largest errors."""
  worst = np.argsort(-error, kind="stable")[: html_report.NUM_ERRORS]
  rows = []
  for index in worst[error[worst] > 0]:
    example = examples[index]
    label = classification_decoding.predicted_label(problem, predicted[index])
    if isinstance(example, ChoiceExample):
      texts = [example.choices[0][0], *(b for _, b in example.choices)]
    else:
      texts = [text for text in (example.text_a, example.text_b) if text]
    rows.append(
      {
        "example": example.guid,
        "gold": _label_text(example.label),
        "predicted": _label_text(label),
        "error" if problem.kind == "regression" else "probability": float(
          error[index]
        ),
        "text": "\n".join(texts),
      }
    )
  return html_report.table("Worst errors", rows)


def _label_text(label: str | float | Sequence[str]) -> str:
  """Text of a label, or of the first ones of many."""
  if isinstance(label, (str, float)) or not label:
    return classification_decoding.label_text(label)
  return some_of(label)


def intervals(
  problem: Problem,
  label_ids: np.ndarray,  # gold, see `evaluate`
  logits: np.ndarray,  # float [examples, labels]
  names: Sequence[str],
) -> dict[str, Interval | None]:
  """Intervals of the metrics of a classifier that are in `METRICS`."""
  gold, predicted = gold_and_predicted(label_ids, logits, problem)

  def interval(name: str) -> Interval | None:
    if name == "accuracy":
      is_correct = np.reshape(gold == predicted, [len(gold), -1]).all(axis=1)
      return statistics.fraction_interval(is_correct)
    metric = METRICS[name]
    return statistics.bootstrap(
      metric, gold, predicted, max_resamples=MAX_RESAMPLES
    )

  return {name: interval(name) for name in names if name in METRICS}
