"""The report of a classifier: errors, calibration, intervals and baselines."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.cli.errors import some_of
from bertlib.reporting import confidence_intervals, html_report
from bertlib.reporting.confidence_intervals import Estimates
from bertlib.tasks.classification import classification_scores
from bertlib.tasks.classification.classification import (
  ChoiceExample,
  InputExample,
  Problem,
)

# Labels of the largest constant prediction that is tried as a baseline.
_MAX_CONSTANT = 20


def sections(
  problem: Problem,
  examples: Sequence[InputExample | ChoiceExample],
  label_ids: np.ndarray,  # gold, see `classification_scores.evaluate`
  logits: np.ndarray,  # float [examples, labels]
  num_errors: int = 30,
  thresholds: Mapping[str, float] | None = None,  # tuned, by label
) -> list[str]:
  """Sections on the predictions of a classifier, for `html_report.write`."""
  predicted = classification_scores.probabilities(problem, logits)
  if problem.kind == "regression":
    error = np.abs(predicted[:, 0] - label_ids)
    return [_errors(problem, examples, predicted, error, num_errors)]
  if problem.kind == "multi_label":
    gold = label_ids > 0
    correct = (predicted >= 0.5) == gold
    confidence = np.maximum(predicted, 1 - predicted)
    error = np.where(correct, 0.0, confidence).max(axis=1)
    tables = [_label_table("Labels (threshold 0.5)", problem, gold, predicted)]
    if thresholds:
      title = "Labels (tuned thresholds)"
      tables.append(_label_table(title, problem, gold, predicted, thresholds))
    return [
      *tables,
      html_report.calibration(confidence.ravel(), correct.ravel()),
      _errors(problem, examples, predicted, error, num_errors),
    ]
  predicted_ids = predicted.argmax(axis=1)
  correct = predicted_ids == label_ids
  confidence = predicted.max(axis=1)
  return [
    html_report.confusion_matrix(problem.labels, label_ids, predicted_ids),
    html_report.calibration(confidence, correct),
    _errors(
      problem,
      examples,
      predicted,
      np.where(correct, 0.0, confidence),
      num_errors,
    ),
  ]


def _label_table(
  title: str,
  problem: Problem,
  gold: np.ndarray,
  predicted: np.ndarray,
  thresholds: Mapping[str, float] | None = None,
) -> str:
  """Section with the metrics of each label of a multi-label problem."""
  rows = []
  shown, which = html_report.shown_labels(gold.sum(axis=0))
  for index in shown:
    label = problem.labels[index]
    row: dict[str, Any] = {"label": label}
    threshold = 0.5
    if thresholds:
      threshold = row["threshold"] = thresholds[label]
    is_predicted = predicted[:, index] >= threshold
    rows.append(row | _precision_and_recall(gold[:, index], is_predicted))
  note = f"{which}." if len(shown) < problem.num_labels else ""
  return html_report.table(title, rows, note)


def _precision_and_recall(gold, predicted) -> dict[str, float]:
  from sklearn import metrics

  values = metrics.precision_recall_fscore_support(
    gold, predicted, average="binary", zero_division=0
  )
  names = ("precision", "recall", "f1")
  return dict(zip(names, map(float, values))) | {"texts": int(gold.sum())}


def _errors(problem, examples, predicted, error, num_errors: int) -> str:
  """Section on the examples with the largest errors."""
  worst = np.argsort(-error, kind="stable")[:num_errors]
  rows = []
  for index in worst[error[worst] > 0]:
    example = examples[index]
    label = classification_scores.predicted_label(problem, predicted[index])
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
  return html_report.errors(rows)


def _label_text(label: str | float | Sequence[str]) -> str:
  """Text of a label, or of the first ones of many."""
  if isinstance(label, (str, float)) or not label:
    return classification_scores.label_text(label)
  return some_of(label)


def estimates(
  problem: Problem,
  label_ids: np.ndarray,  # gold, see `classification_scores.evaluate`
  logits: np.ndarray,  # float [examples, labels]
  names: Sequence[str],
) -> Estimates:
  """Estimates for a classifier, of the metrics that it has."""
  count = f"{len(label_ids):,} examples"
  names = [name for name in names if name in classification_scores.METRICS]
  if problem.kind == "regression":
    values = logits[:, 0]
    find = confidence_intervals.of_correlation
    return Estimates(count, {n: find(n, label_ids, values) for n in names})
  if problem.kind == "multi_label":
    gold = label_ids > 0
    predicted = classification_scores.probabilities(problem, logits) >= 0.5
  else:
    gold, predicted = label_ids, logits.argmax(axis=-1)
  return Estimates(
    count,
    {
      name: confidence_intervals.of_labels(name, gold, predicted)
      for name in names
    },
    {name: _constant_baseline(name, problem, gold) for name in names},
  )


def _constant_baseline(
  name: str, problem: Problem, gold: np.ndarray
) -> tuple[str, float]:
  """Best metric of predicting the same for all examples, described."""
  scores = {}
  if problem.kind == "multi_label":
    # The k most frequent labels together.
    order = np.argsort(-gold.sum(axis=0), kind="stable")
    for number in range(1, min(len(order), _MAX_CONSTANT) + 1):
      labels = np.zeros(len(order), bool)
      labels[order[:number]] = True
      noun = f"the {number} most frequent labels"
      if number == 1:
        noun = str(problem.labels[order[0]])
      scores[f"always {noun}"] = _score_of_constant(name, gold, labels)
  else:
    counts = np.bincount(gold, minlength=problem.num_labels)
    # The second one too: it may be the one that F1 is about.
    for i in np.argsort(-counts, kind="stable")[:2]:
      score = _score_of_constant(name, gold, i)
      scores[f"always {problem.labels[i]}"] = score
  best = max(scores, key=scores.__getitem__)
  return best, scores[best]


def _score_of_constant(name: str, gold: np.ndarray, label) -> float:
  """The metric of predicting a label, or bool [labels], for all examples."""
  if name == "accuracy":
    is_right = np.reshape(gold == label, [len(gold), -1]).all(axis=1)
    return float(is_right.mean())
  has_several = gold.ndim == 2 and gold.shape[1] > 1
  if has_several and name in confidence_intervals.LABEL_METRICS:
    # From counts: scikit-learn takes seconds for many examples and labels.
    totals = gold.sum(axis=0)
    counts = confidence_intervals.LabelCounts(
      totals * label, len(gold) * label, totals, np.full(len(totals), True)
    )
    return float(confidence_intervals.LABEL_METRICS[name](counts))
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # no label but one is predicted
    return classification_scores.METRICS[name](
      gold, np.broadcast_to(label, gold.shape)
    )
