"""Precision, recall and F1 of entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertlib.errors import InputError

# Metrics over all entities; `entity_metrics` adds those of each type.
METRICS = ("f1", "precision", "recall", "accuracy")


def entity_metrics(
  gold_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]
) -> dict[str, float]:
  """Precision, recall and F1 of whole entities, computed by seqeval.

  Args:
    gold_tags: tags of each sentence, in the BIO or BIOES scheme.
    predicted_tags: the same for predictions.

  Returns:
    `precision`, `recall` and `f1` over all entities; `precision_X`, `recall_X`,
    `f1_X` and `entities_X` (number of gold entities) for each type X;
    `accuracy` of the tags. All but `entities_X` are in [0, 1].

  Raises:
    InputError: seqeval is not installed.
  """
  metrics = import_seqeval()
  by_type = metrics.classification_report(
    gold_tags, predicted_tags, output_dict=True, zero_division=0
  )
  names = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
  scores = {
    name: float(by_type["micro avg"][key]) for name, key in names.items()
  }
  scores["accuracy"] = float(metrics.accuracy_score(gold_tags, predicted_tags))
  for label, row in by_type.items():
    if not label.endswith(" avg"):
      for name, key in names.items():
        scores[f"{name}_{label}"] = float(row[key])
      scores[f"entities_{label}"] = int(row["support"])
  return scores


def import_seqeval():
  """Imports `seqeval.metrics`.

  Raises:
    InputError: the package is not installed.
  """
  try:
    from seqeval import metrics
  except ModuleNotFoundError as error:
    raise InputError(
      "evaluating entities needs the package seqeval: pip install -e '.[ner]'"
    ) from error
  return metrics


def overall(results: Mapping[str, float]) -> dict[str, float]:
  """Selects the results over all entity types."""
  return {f"eval_{name}": results[f"eval_{name}"] for name in METRICS}
