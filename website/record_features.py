"""The page on features of TFRecords, from the layouts that write them."""

from __future__ import annotations

from collections.abc import Mapping

from bertlib.data import tf_records
from website import markdown

_INTRODUCTION = """\
# Record features

Features of the TFRecord files that the commands write and read, each record a
`tf.train.Example`. Integers are int64 in the file and int32 in the model. S is
`--max_seq_length`, P `--max_predictions_per_seq`, L the number of labels, G the
number of texts of a group, T the width of the vectors of a teacher, without
which there are no `teacher_vectors`.
"""

# Sizes that stand for a letter.
_LETTERS = {101: "S", 103: "P", 107: "L", 109: "G", 113: "T"}
_S, _P, _L, _G, _T = _LETTERS


def _layouts() -> dict[str, dict[str, tf_records.Layout]]:
  """Layouts by kind of example and heading."""
  # Imported here: most of these modules import TensorFlow.
  from bertlib.data import (
    classification,
    classification_records,
    embedding_examples,
    embedding_records,
    ner,
    squad_features,
  )

  labels = ["label"] * _L
  return {
    "run_classifier.py": {
      kind: classification_records.record_layout(
        _S, classification.Problem(kind, labels)
      )
      for kind in (
        "classification",
        "regression",
        "multi_label",
        "multiple_choice",
      )
    },
    "run_squad.py": {
      "training": squad_features.record_layout(_S, is_training=True),
      "prediction": squad_features.record_layout(_S, is_training=False),
    },
    "run_ner.py": {"": ner.record_layout(_S)},
    "run_embeddings.py": {
      kind: embedding_records.layout(kind, _G, _S, _T)
      for kind in embedding_examples.KINDS
    },
    "create_pretraining_data.py": {"": tf_records.pretraining_layout(_S, _P)},
  }


def page() -> str:
  """Text of the page."""
  parts = [_INTRODUCTION]
  for command, by_kind in _layouts().items():
    parts.append(f"## {command}\n")
    for kind, layout in by_kind.items():
      if kind:
        parts.append(f"### {kind} {{ #{command.split('.')[0]}-{kind} }}\n")
      parts.append(_table(layout))
  return "\n".join(parts)


def _table(layout: Mapping[str, tf_records.Feature]) -> str:
  rows = []
  for name, feature in layout.items():
    shape = ", ".join(_LETTERS.get(size, str(size)) for size in feature.shape)
    dtype = "float32" if feature.is_float else "int64"
    missing = "error" if feature.default is None else f"{feature.default:g}"
    rows.append((f"`{name}`", dtype, f"[{shape}]", missing))
  return markdown.table(("feature", "type", "shape", "if missing"), rows)
