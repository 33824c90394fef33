"""Confidence intervals and trivial baselines of the metrics of each task."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.reporting import confidence_intervals
from bertlib.reporting.confidence_intervals import Interval
from bertlib.tasks.classification import classification_scores
from bertlib.tasks.classification.classification import Problem
from bertlib.tasks.embeddings import (
  embedding_evaluation,
  embedding_inputs,
  retrieval_scores,
)
from bertlib.tasks.embeddings.embedding_evaluation import Evaluation
from bertlib.tasks.ner import ner_scores
from bertlib.tasks.ner.ner import Sentence
from bertlib.tasks.squad.squad_scores import Score

# Labels of the largest constant prediction that is tried as a baseline.
_MAX_CONSTANT = 20


class Estimates(NamedTuple):
  """What a report says about metrics, beside their values.

  Names of metrics are without `eval_`.

  Attributes:
    count: number of evaluated examples, with a noun.
    intervals: confidence intervals; None for a metric without one.
    baselines: a trivial prediction, and the metric of it.
  """

  count: str = ""
  intervals: Mapping[str, Interval | None] = {}
  baselines: Mapping[str, tuple[str, float]] = {}


def of_classification(
  problem: Problem,
  label_ids: np.ndarray,
  logits: np.ndarray,
  names: Sequence[str],
) -> Estimates:
  """Estimates for a classifier.

  Args:
    problem: labels and kind of the task.
    label_ids: gold labels, see `classification_scores.evaluate`.
    logits: float [num_examples, num_labels].
    names: metrics, of which those in `classification_scores.METRICS` are used.
  """
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
  """The best metric of predicting the same for all examples.

  It predicts the most frequent label or the second one, which may be the one
  that F1 is about; for a multi-label problem the k most frequent labels.
  """
  scores = {}
  if problem.kind == "multi_label":
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
    for i in np.argsort(-counts, kind="stable")[:2]:
      score = _score_of_constant(name, gold, i)
      scores[f"always {problem.labels[i]}"] = score
  best = max(scores, key=scores.__getitem__)
  return best, scores[best]


def _score_of_constant(name: str, gold: np.ndarray, label) -> float:
  """The metric of predicting a label, or bool [L], for all examples."""
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


def of_tags(
  sentences: Sequence[Sentence],
  predicted: Sequence[tuple[Sequence[str], Sequence[float]]],
) -> Estimates:
  """Estimates for a tagger, over sentences.

  Args:
    sentences: sentences with gold tags.
    predicted: predicted tags and their probabilities, by sentence.
  """
  gold = [sentence.tags for sentence in sentences]
  counts = ner_scores.count_entities(gold, [tags for tags, _ in predicted])
  num_outside = sum(tag == "O" for tags in gold for tag in tags)
  return Estimates(
    f"{len(sentences):,} sentences with {counts[:, 2].sum():,} entities",
    {
      name: confidence_intervals.bootstrap(ner_scores.metric(name), counts)
      for name in ner_scores.METRICS
    },
    {"accuracy": ("always O", num_outside / max(counts[:, 4].sum(), 1))},
  )


def of_answers(
  scores: Sequence[Score], results: Mapping[str, float]
) -> Estimates:
  """Estimates for answers to questions.

  Args:
    scores: of each question.
    results: metrics of the run, in percent.
  """
  exact = "exact" if "exact" in results else "exact_match"
  values = 100 * np.array(scores, np.float64).reshape(len(scores), 2)
  baselines = {}
  if "total" in results:
    share = 100 * results.get("NoAns_total", 0) / results["total"]
    baselines = dict.fromkeys((exact, "f1"), ("never answering", share))
  return Estimates(
    f"{len(scores):,} questions",
    {
      name: confidence_intervals.of_mean(values[:, column])
      for column, name in enumerate((exact, "f1"))
    },
    baselines,
  )


def of_embeddings(
  dev_set: embedding_inputs.DevSet | None, evaluation: Evaluation
) -> Estimates:
  """Estimates for sentence embeddings, at the full width.

  Args:
    dev_set: the dev set; None without one.
    evaluation: its evaluation, empty without one.
  """
  if dev_set is None:
    return Estimates()
  of_mean = confidence_intervals.of_mean
  if evaluation.rankings is not None:
    values = retrieval_scores.evaluate_queries(
      dev_set.retrieval.relevance, evaluation.rankings
    )
    return Estimates(
      f"{len(values):,} queries",
      {
        name: of_mean(values[:, column])
        for column, name in enumerate(retrieval_scores.METRICS)
      },
    )
  if evaluation.neighbors is not None:
    return _of_neighbors(dev_set, evaluation)
  count = f"{len(dev_set.examples):,} pairs"
  if evaluation.cosines is None or not len(evaluation.cosines):
    return Estimates(count)
  gold = embedding_evaluation.gold_values(dev_set.kind, dev_set.examples)
  if dev_set.kind == "scored_pairs":
    find = functools.partial(
      confidence_intervals.of_correlation, x=evaluation.cosines, y=gold
    )
    return Estimates(count, {n: find(n) for n in ("spearman", "pearson")})
  return Estimates(
    count,
    {
      "average_precision": confidence_intervals.of_average_precision(
        gold, evaluation.cosines
      )
    },
    {"average_precision": ("random order", float(gold.mean()))},
  )


def _of_neighbors(
  dev_set: embedding_inputs.DevSet, evaluation: Evaluation
) -> Estimates:
  """Estimates for texts with labels."""
  found = evaluation.neighbors
  labels = [example.label for example in dev_set.examples]
  _, numbers, counts = np.unique(
    labels, return_inverse=True, return_counts=True
  )
  num_same = counts[numbers][found.queries.astype(int)] - 1
  baselines = {}
  if len(num_same):
    chance = float(num_same.mean()) / (len(labels) - 1)
    baselines["neighbor_accuracy"] = ("any other text", chance)
  return Estimates(
    f"{len(found.queries):,} texts",
    {
      "map": confidence_intervals.of_mean(found.precisions),
      "neighbor_accuracy": confidence_intervals.of_fraction(
        int(found.is_right.sum()), len(found.queries)
      ),
    },
    baselines,
  )
