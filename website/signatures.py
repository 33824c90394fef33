"""The page on signatures of SavedModels, from the code that exports them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from website import markdown

_INTRODUCTION = """\
# SavedModel signatures

Inputs and outputs of the signatures that
[`export_model.py`](../how_to/export_and_serving.md) writes, by the script that
has trained the model. The default signature is in bold. H is the hidden size, V
the size of the vocabulary, L the number of labels or choices; `?` is any size,
the first one that of the batch. Prompts are those of the model. `text` and
`pair` tokenize; `ids` takes the output of `tokenize`.
"""

# Sizes that stand for a letter.
_LETTERS = {6: "H", 11: "L", 37: "V"}
_HIDDEN, _LABELS, _VOCABULARY = _LETTERS

_LABELLED = {"labels": [str(label) for label in range(_LABELS)]}

# Contents of model.json, by script and kind of model.
_MODELS = {
  "run_classifier.py, labels": {
    "script": "run_classifier",
    "kind": "classification",
    "has_pairs": False,
    **_LABELLED,
  },
  "run_classifier.py, regression": {
    "script": "run_classifier",
    "kind": "regression",
    "labels": [],
    "has_pairs": True,
  },
  "run_classifier.py, multi-label": {
    "script": "run_classifier",
    "kind": "multi_label",
    "has_pairs": False,
    **_LABELLED,
  },
  "run_classifier.py, multiple choice": {
    "script": "run_classifier",
    "kind": "multiple_choice",
    **_LABELLED,
  },
  "run_squad.py": {
    "script": "run_squad",
    "version_2_with_negative": True,
    "doc_stride": 8,
    "max_query_length": 8,
  },
  "run_ner.py": {"script": "run_ner", "labels": ["O", "B-a", "I-a"]},
  "run_embeddings.py": {
    "script": "run_embeddings",
    "embedding": {
      "pooling": "mean",
      "normalize": True,
      "prompts": {"query": "query: ", "passage": "passage: "},
    },
  },
  "run_pretraining.py": {"script": "run_pretraining"},
  "--encoder": {},
}


def page() -> str:
  """Text of the page."""
  import export_model
  import modeling

  config = modeling.BertConfig(
    vocab_size=_VOCABULARY,
    hidden_size=_HIDDEN,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=5,
    max_position_embeddings=32,
  )
  parts = [_INTRODUCTION]
  with tempfile.TemporaryDirectory() as folder:
    vocab_file = os.path.join(folder, "vocab.txt")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"word{n}" for n in range(_VOCABULARY - len(words))]
    with open(vocab_file, "w", encoding="utf-8") as file:
      file.write("\n".join(words) + "\n")
    for title, entries in _MODELS.items():
      description = {"max_seq_length": 24, "do_lower_case": True, **entries}
      source = export_model.Source(description, config, "", vocab_file)
      model = export_model.signature_model(
        source, encoder=not entries, seq_length=None, precision="float32"
      )
      parts.append(f"## {title}\n\n{_table(model)}")
  return "\n".join(parts)


def _table(model) -> str:
  rows = [
    (
      f"**`{name}`**" if name == model.main else f"`{name}`",
      _specs(signature.inputs),
      _specs(_outputs(signature)),
    )
    for name, signature in model.signatures().items()
  ]
  return markdown.table(("signature", "inputs", "outputs"), rows)


def _outputs(signature) -> Mapping[str, Any]:
  """Symbolic outputs of a signature."""
  import tensorflow.compat.v1 as tf

  traced = tf.wrap_function(signature.function, [signature.inputs])
  return traced.structured_outputs


def _specs(tensors: Mapping[str, Any]) -> str:
  """Names, types and shapes of tensors."""
  return "<br>".join(
    f"`{name}` {tensor.dtype.name} {_shape(tensor.shape)}"
    for name, tensor in tensors.items()
  )


def _shape(shape) -> str:
  if shape.rank is None:
    return "[...]"
  sizes = [_LETTERS.get(size, str(size or "?")) for size in shape.as_list()]
  return f"[{', '.join(sizes)}]"
