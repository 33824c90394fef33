"""Scores of a tagger, and its report: errors and intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

import numpy as np

from bertlib.cli.errors import needs_package
from bertlib.reporting import html_report, paired_tests, statistics
from bertlib.reporting.html_report import Section
from bertlib.reporting.paired_tests import Comparison
from bertlib.reporting.statistics import Interval
from bertlib.tasks.ner import ner, ner_decoding
from bertlib.tasks.ner.ner import Sentence
from bertlib.tasks.ner.ner_decoding import Tagged

# Scores

# Metrics over all entities; `entity_metrics` adds those of each type.
METRICS = ("f1", "precision", "recall", "accuracy")

# Each metric as a quotient of columns of `count_entities`: the part, and the
# wholes, of which the mean is taken.
_QUOTIENTS = {
  "f1": (0, [1, 2]),
  "precision": (0, [1]),
  "recall": (0, [2]),
  "accuracy": (3, [4]),
}


def entity_metrics(
  gold_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]
) -> dict[str, float]:
  """Precision, recall and F1 of entities, by seqeval: over all and by type."""
  metrics = import_seqeval()
  # seqeval misreads bare classes and BILOU.
  gold_bioes, predicted_bioes = (
    [
      ner.entities_to_tags(ner.tags_to_entities(tags), len(tags), "BIOES")
      for tags in tagged
    ]
    for tagged in (gold_tags, predicted_tags)
  )
  by_type = metrics.classification_report(
    gold_bioes, predicted_bioes, output_dict=True, zero_division=0
  )
  names = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
  scores = {
    name: float(by_type["micro avg"][key]) for name, key in names.items()
  }
  scores["accuracy"] = float(metrics.accuracy_score(gold_tags, predicted_tags))
  # All are in [0, 1] but the number of gold entities.
  for label, row in by_type.items():
    if not label.endswith(" avg"):
      for name, key in names.items():
        scores[f"{name}_{label}"] = float(row[key])
      scores[f"entities_{label}"] = int(row["support"])
  return scores


def count_entities(
  gold_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]
) -> np.ndarray:
  """Counts of each sentence's entities and tags: int64 [sentences, 5]."""
  rows = []
  for gold, predicted in zip(gold_tags, predicted_tags):
    entities, found = (
      set(ner.tags_to_entities(tags)) for tags in (gold, predicted)
    )
    num_correct = sum(a == b for a, b in zip(gold, predicted))
    # Right, predicted and gold entities; right tags, and tags.
    rows.append(
      [len(entities & found), len(found), len(entities), num_correct, len(gold)]
    )
  return np.array(rows, np.int64).reshape(len(rows), 5)


def metric(name: str) -> Callable[[np.ndarray], float]:
  """One of `METRICS` from rows of `count_entities`; 0 for 0 of nothing."""
  part, wholes = _QUOTIENTS[name]

  def quotient(rows):
    sums = rows.sum(axis=0)
    return float(sums[part] / max(sums[wholes].mean(), 1))

  return quotient


def import_seqeval():
  """Imports `seqeval.metrics`; InputError if the package is not installed."""
  with needs_package(
    "evaluating entities needs the package seqeval: pip install seqeval"
  ):
    from seqeval import metrics
  return metrics


def evaluate_tags(
  sentences: Sequence[Sentence], predicted: Sequence[Tagged]
) -> dict[str, float]:
  """Metrics of tagged sentences by key of `eval_results.txt`."""
  scores = entity_metrics(
    [s.tags for s in sentences], [tags for tags, _ in predicted]
  )
  return {f"eval_{name}": value for name, value in scores.items()}


def tag_texts(tagged: Iterable[Sequence[str]]) -> list[str]:
  """Tags of each sentence as text, to detect a model that predicts only one."""
  return [
    " ".join(tags) if set(tags) - {"O"} else "no entity" for tags in tagged
  ]


# The report


def sections(
  sentences: Sequence[Sentence],
  predicted: Sequence[Tagged],
  results: Mapping[str, float],  # of `evaluate_tags`
) -> list[Section]:
  """Sections on the predictions of a tagger, for `run_report.Findings`."""
  names = ("precision", "recall", "f1", "entities")
  types = [n.removeprefix("eval_f1_") for n in results if "eval_f1_" in n]
  rows = [
    {"type": kind, **{n: results[f"eval_{n}_{kind}"] for n in names}}
    for kind in types
  ]
  errors = []
  for sentence, (tags, probabilities) in zip(sentences, predicted):
    matches = [a == b for a, b in zip(sentence.tags, tags)]
    wrong = [p for p, is_match in zip(probabilities, matches) if not is_match]
    if wrong:
      errors.append((max(wrong), sentence, tags, probabilities))
  errors.sort(key=lambda error: -error[0])
  errors = errors[: html_report.NUM_ERRORS]

  def entities(sentence, tags, probabilities):
    found = ner_decoding.extract_entities(sentence, tags, probabilities)
    return "; ".join(f"{e.text} ({e.label})" for e in found) or "none"

  return [
    html_report.table("Entities", rows),
    html_report.table(
      "Worst errors",
      [
        {
          "sentence": sentence.location.rpartition(", ")[2],
          "gold": entities(sentence, sentence.tags, [1.0] * len(tags)),
          "predicted": entities(sentence, tags, probabilities),
          "probability": probability,
          "text": sentence.text,
        }
        for probability, sentence, tags, probabilities in errors
      ],
    ),
  ]


def intervals(
  sentences: Sequence[Sentence], predicted: Sequence[Tagged]
) -> dict[str, Interval | None]:
  """Intervals of the metrics of a tagger, over sentences."""
  counts = count_entities(
    [sentence.tags for sentence in sentences], [tags for tags, _ in predicted]
  )
  return {name: statistics.bootstrap(metric(name), counts) for name in METRICS}


def compare(first: Any, other: Any) -> Comparison:
  """Compares the tags of two runs for the same sentences."""
  counts = [count_entities(first.gold, run.predicted) for run in (first, other)]
  return Comparison(
    intervals={
      name: paired_tests.difference_interval(metric(name), *counts)
      for name in METRICS
    }
  )
