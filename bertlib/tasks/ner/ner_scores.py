"""Precision, recall and F1 of entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Callable

import numpy as np

from bertlib.cli.errors import InputError
from bertlib.tasks.ner import ner_tags

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
      ner_tags.entities_to_tags(
        ner_tags.tags_to_entities(tags), len(tags), "BIOES"
      )
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
      set(ner_tags.tags_to_entities(tags)) for tags in (gold, predicted)
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
  try:
    from seqeval import metrics
  except ModuleNotFoundError as error:
    raise InputError(
      "evaluating entities needs the package seqeval: pip install seqeval"
    ) from error
  return metrics


def overall(results: Mapping[str, float]) -> dict[str, float]:
  """Selects the results over all entity types."""
  return {f"eval_{name}": results[f"eval_{name}"] for name in METRICS}
