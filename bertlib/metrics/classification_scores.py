"""How well texts were labelled: scores, thresholds, what a model says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.data.classification import ChoiceExample, InputExample, Problem


class Prediction(NamedTuple):
  """What a model says of a text.

  Attributes:
    label: the likeliest label; for regression, the number; where a text has any
      number of labels, those whose probability is not below the threshold.
    probabilities: of every label, by label; empty for regression.
  """

  label: str | float | list[str]
  probabilities: dict[str, float]


def prediction(
  problem: Problem,
  row: np.ndarray,
  thresholds: Mapping[str, float] | None = None,
) -> Prediction:
  """What a row of the model's output says.

  Args:
    problem: what was learnt.
    row: probabilities [L], or the number [1].
    thresholds: of labels, where a text has any number of them; 0.5 for those
      not named.

  Returns:
    A `Prediction`.
  """
  if problem.kind == "regression":
    return Prediction(float(row[0]), {})
  by_label = {label: float(p) for label, p in zip(problem.labels, row)}
  if problem.kind != "multi_label":
    return Prediction(problem.labels[int(np.argmax(row))], by_label)
  limits = thresholds or {}
  said = [label for label, p in by_label.items() if p >= limits.get(label, 0.5)]
  return Prediction(said, by_label)


def predicted_labels(
  problem: Problem,
  rows: Iterable[np.ndarray],
  thresholds: Mapping[str, float] | None = None,
) -> list[str]:
  """The predicted labels as text; none for regression.

  Args:
    problem: what was learnt.
    rows: see `prediction`.
    thresholds: likewise.
  """
  if problem.kind == "regression":
    return []
  return [
    label_text(prediction(problem, row, thresholds).label) for row in rows
  ]


def gold_labels(
  examples: Iterable[InputExample | ChoiceExample],
) -> list[str]:
  """The labels of examples as text."""
  return [label_text(example.label) for example in examples]


def probabilities(problem: Problem, logits: np.ndarray) -> np.ndarray:
  """What logits [A, L] are as the model's output; see `prediction`."""
  from scipy import special

  if problem.kind == "regression":
    return logits
  if problem.kind == "multi_label":
    return special.expit(logits)
  return special.softmax(logits, axis=-1)


def evaluate(
  names: Sequence[str],
  label_ids: np.ndarray,
  logits: np.ndarray,
  problem: Problem,
) -> dict[str, Any]:
  """Scores predictions over a whole set.

  Args:
    names: of `METRICS`.
    label_ids: [A], indices, or numbers for regression; [A, L], 1 for those it
      has, where a text has any number of labels.
    logits: [A, L].
    problem: what was learnt.

  Returns:
    By name, the scores; where a text has one label the confusion matrix too, a
    list with a row for each true label and a column for each predicted one.
  """
  from sklearn import metrics

  if problem.kind == "regression":
    return {name: METRICS[name](label_ids, logits[:, 0]) for name in names}
  if problem.kind == "multi_label":
    said = probabilities(problem, logits) >= 0.5
    return {name: METRICS[name](label_ids > 0, said) for name in names}
  predictions = logits.argmax(axis=-1)
  scores = {name: METRICS[name](label_ids, predictions) for name in names}
  matrix = metrics.confusion_matrix(
    label_ids, predictions, labels=range(logits.shape[1])
  )
  return scores | {"confusion_matrix": matrix.tolist()}


def best_thresholds(
  label_ids: np.ndarray, label_probabilities: np.ndarray
) -> np.ndarray:
  """For each label the threshold that makes its F1 highest.

  It stands half way between two probabilities that come, so that it does not
  hang on one of them; of several equally good ones it is that nearest to 0.5.

  Args:
    label_ids: [A, L], 1 for those that a text has.
    label_probabilities: [A, L].

  Returns:
    [L]; 0.5 for a label that no text has.
  """
  thresholds = np.full(label_ids.shape[1], 0.5)
  for label, (truth, said) in enumerate(
    zip(label_ids.T, label_probabilities.T)
  ):
    order = np.argsort(-said, kind="stable")
    truth, said = truth[order] > 0, said[order]
    if not truth.any():
      continue
    taken = np.arange(1, len(said) + 1)  # when the first so many have the label
    f1 = 2 * truth.cumsum() / (taken + truth.sum())
    cuts = (said + np.append(said[1:], 0.0)) / 2
    f1[:-1][said[:-1] == said[1:]] = -1  # nothing is between those two
    best = np.flatnonzero(f1 == f1.max())
    thresholds[label] = min(cuts[best], key=lambda cut: abs(cut - 0.5))
  return thresholds


def label_text(label: Any) -> str:
  """A label, or several, as a report shows them."""
  if isinstance(label, float):
    return f"{label:.3g}"
  return label if isinstance(label, str) else ", ".join(label) or "none"


# The scores


def _from_sklearn(name: str, **arguments):
  def call(label_ids, predictions):
    from sklearn import metrics

    value = getattr(metrics, name)(label_ids, predictions, **arguments)
    return float(value)

  return call


def _from_scipy(name: str):
  def call(label_ids, predictions):
    from scipy import stats

    return float(getattr(stats, name)(label_ids, predictions)[0])

  return call


METRICS = {
  "accuracy": _from_sklearn("accuracy_score"),
  "f1": _from_sklearn("f1_score"),
  "macro_f1": _from_sklearn("f1_score", average="macro", zero_division=0),
  "micro_f1": _from_sklearn("f1_score", average="micro", zero_division=0),
  "matthews": _from_sklearn("matthews_corrcoef"),
  "pearson": _from_scipy("pearsonr"),
  "spearman": _from_scipy("spearmanr"),
}
