"""Precision, recall and F1 of entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertlib.errors import InputError

# Scores over all entities; there are those of each type besides.
METRICS = ("f1", "precision", "recall", "accuracy")


# Scores


def entity_metrics(
  true_tags: Sequence[Sequence[str]], said_tags: Sequence[Sequence[str]]
) -> dict[str, float]:
  """Precision, recall and F1 of whole entities, by seqeval.

  Args:
    true_tags: of each sentence, with prefixes as in BIO or BIOES.
    said_tags: likewise.

  Returns:
    `precision`, `recall` and `f1` over all entities; `precision_X`, `recall_X`,
    `f1_X` and `entities_X` of each type X that the data have; `accuracy` of the
    tags.

  Raises:
    InputError: seqeval is not installed.
  """
  metrics = import_seqeval()
  by_type = metrics.classification_report(
    true_tags, said_tags, output_dict=True, zero_division=0
  )
  names = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
  scores = {
    name: float(by_type["micro avg"][theirs]) for name, theirs in names.items()
  }
  scores["accuracy"] = float(metrics.accuracy_score(true_tags, said_tags))
  for label, row in by_type.items():
    if not label.endswith(" avg"):
      for name, theirs in names.items():
        scores[f"{name}_{label}"] = float(row[theirs])
      scores[f"entities_{label}"] = int(row["support"])
  return scores


def import_seqeval():
  """The package's metrics.

  Raises:
    InputError: it is not installed.
  """
  try:
    from seqeval import metrics
  except ModuleNotFoundError as error:
    raise InputError(
      "scoring entities needs the package seqeval: pip install -e '.[ner]'"
    ) from error
  return metrics


def overall(results: Mapping[str, float]) -> dict[str, float]:
  """Those of the results that are not of one type of entity."""
  return {f"eval_{name}": results[f"eval_{name}"] for name in METRICS}
