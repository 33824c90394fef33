"""The page on features of TFRecords, from the layouts that write them.

    python -m website.record_features

renews its generated part.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from bertlib.data import tf_records
from bertlib.tasks.pretraining import pretraining_instances
from website import markdown

PAGE = markdown.ROOT / "docs" / "reference" / "record_features.md"

# Sizes that stand for a letter.
_LETTERS = {101: "S", 103: "P", 107: "L", 109: "G", 113: "T", 127: "N"}
_S, _P, _L, _G, _T, _N = _LETTERS


def _layouts() -> dict[str, dict[str, tf_records.Layout]]:
  """Layouts by kind of example and heading."""
  # Imported here: most of these modules import TensorFlow.
  from bertlib.tasks.classification import (
    classification,
    classification_records,
  )
  from bertlib.tasks.embeddings import embedding_records
  from bertlib.tasks.embeddings.settings import LOSSES_OF_KIND
  from bertlib.tasks.ner import ner
  from bertlib.tasks.pretraining.objectives import MLM, MLM_NSP
  from bertlib.tasks.ranking import ranking_records
  from bertlib.tasks.ranking.settings import LOSSES
  from bertlib.tasks.squad import squad_windows

  kinds = "classification", "regression", "multi_label", "multiple_choice"
  problems = (classification.Problem(k, ["label"] * _L) for k in kinds)
  written = functools.partial(
    pretraining_instances.record_layout, is_written=True
  )
  return {
    "run_classifier.py": {
      problem.kind: classification_records.record_layout(_S, problem)
      for problem in problems
    },
    "run_squad.py": {
      "training": squad_windows.record_layout(_S, is_training=True),
      "prediction": squad_windows.record_layout(_S, is_training=False),
    },
    "run_ner.py": {"all": ner.record_layout(_S)},
    "run_embeddings.py": {
      kind: embedding_records.layout(kind, _G, _S, _T)
      for kind in LOSSES_OF_KIND
    },
    "run_reranker.py": {
      loss: ranking_records.layout(loss, _G, _S) for loss in LOSSES
    },
    "create_pretraining_data.py": {
      "pairs": written(_S, _P, MLM_NSP),
      "pairs, --pack": written(_S, _P, MLM_NSP, _N),
      "other --segments": written(_S, _P, MLM),
      "other --segments, --pack": written(_S, _P, MLM, _N),
    },
  }


def page() -> str:
  """Text of the page."""
  parts = []
  for command, by_kind in _layouts().items():
    rows = [(kind, _features(layout)) for kind, layout in by_kind.items()]
    table = markdown.table(("examples", "features"), rows)
    parts.append(f"## {command}\n\n{table}")
  return markdown.renewed(PAGE, features="\n".join(parts))


def _features(layout: Mapping[str, tf_records.Feature]) -> str:
  """Names, types, shapes and defaults."""
  described = []
  for name, feature in layout.items():
    shape = ", ".join(_LETTERS.get(size, str(size)) for size in feature.shape)
    dtype = "float32" if feature.is_float else "int64"
    dtype = "bytes" if feature.is_text else dtype
    text = f"`{name}` {dtype} [{shape}]"
    if feature.default is not None:
      text += f", default {feature.default:g}"
    described.append(text)
  return "<br>".join(described)


if __name__ == "__main__":
  PAGE.write_text(page(), encoding="utf-8")
