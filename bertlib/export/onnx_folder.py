"""Files beside an ONNX model: what a server needs to use it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import tokenization
from bertlib import PREFIX
from bertlib.cli.errors import InputError
from bertlib.export.onnx_graph import MODEL_FILE
from bertlib.io import json_files, model_files
from bertlib.settings import model_description
from bertlib.task.task_record import TaskRecord

README_FILE = "README.md"
TOKENIZER_FILE = "tokenizer.json"

# Folder of the models that OpenVINO has compiled.
CACHE = "openvino_cache"

# Bytes at the end of a model file that contain its metadata.
_TAIL_SIZE = 4096

# Files of an export beside those that a checkpoint has.
FILES = (MODEL_FILE, README_FILE, TOKENIZER_FILE)

_README = """\
# BERT in ONNX

With `onnxruntime` and `tokenizers`, in this folder:

```python
import json
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
options = onnxruntime.SessionOptions()
# For int8 on x86 without VNNI, where sums overflow; elsewhere it is slower:
# options.add_session_config_entry("session.x64quantprecision", "1")
session = onnxruntime.InferenceSession("model.onnx", options)
encoded = tokenizer.encode_batch({texts})
inputs = {{
  "input_ids": np.array([text.ids for text in encoded]),
  "attention_mask": np.array([text.attention_mask for text in encoded]),
  "token_type_ids": np.array([text.type_ids for text in encoded]),
}}
{more}print(session.run(None, inputs))
print(json.load(open("model.json", encoding="utf-8")).get("labels"))
```

With bert-estimator, which sorts texts by length and returns labels, entities,
answers or vectors:

```python
from {prefix}bertlib.export import OnnxModel

print(OnnxModel(".").predict({examples}))
```
"""

# Positions of the [MASK]s, for a model with such an input.
_MASKS = """\
mask = inputs["input_ids"] == tokenizer.token_to_id("[MASK]")
inputs["masked_lm_positions"] = np.array([np.flatnonzero(row) for row in mask])
"""


def write(
  folder: str,
  model: Any,  # of `Graph.model`
  description: Mapping[str, Any],  # contents of `model.json`
  vocab: Mapping[str, int],
  never_split: tuple[str, ...],
  task: TaskRecord | None,  # None for an encoder
) -> None:
  """Writes a model, its tokenizer and an example of its use to a folder."""
  # At the end of the file, see `check`.
  entry = model.metadata_props.add()
  entry.key = "meaning_sha256"
  entry.value = model_description.load(folder)[entry.key]
  with open(os.path.join(folder, MODEL_FILE), "wb") as file:
    file.write(model.SerializeToString())
  json_files.write(
    os.path.join(folder, TOKENIZER_FILE),
    _tokenizer(vocab, description, never_split),
  )
  examples = ["A text."]
  if task and task.predict:
    examples = task.predict.examples(description)
  # Choices are rows of their own.
  texts = examples[0] if isinstance(examples[0], list) else examples
  with open(os.path.join(folder, README_FILE), "w", encoding="utf-8") as file:
    file.write(
      _README.format(
        texts=texts,
        examples=examples,
        more=_MASKS if task and task.fills_masks else "",
        prefix=PREFIX,
      )
    )


def check(path: str, description: Mapping[str, Any]) -> None:
  """Refuses a model file that is missing or of another export."""
  if not os.path.exists(path):
    raise InputError(f"{path}: no such file. Export the model again")
  with open(path, "rb") as file:
    file.seek(max(os.path.getsize(path) - _TAIL_SIZE, 0))
    tail = file.read()
  # Exports of earlier versions have no hash.
  if description.get("meaning_sha256", "").encode() not in tail:
    raise InputError(
      f"{path}: is not the model that {model_files.DESCRIPTION} describes."
      " Export the model again, or copy all files of the export"
    )


def _tokenizer(
  vocab: Mapping[str, int],
  description: Mapping[str, Any],
  never_split: Sequence[str],
) -> dict[str, Any]:
  """Contents of `tokenizer.json`: the ids of `model_inputs.encode_pair`."""
  length = description.get("seq_length")
  limit = description.get("max_input_chars_per_word")

  def piece(kind, name, segment):
    return {kind: {"id": name, "type_id": segment}}

  first = [
    piece("SpecialToken", "[CLS]", 0),
    piece("Sequence", "A", 0),
    piece("SpecialToken", "[SEP]", 0),
  ]
  second = [piece("Sequence", "B", 1), piece("SpecialToken", "[SEP]", 1)]
  return {
    "version": "1.0",
    "truncation": {
      "direction": "Right",
      "max_length": description["max_seq_length"],
      "strategy": "LongestFirst",
      "stride": 0,
    },
    "padding": {
      "strategy": {"Fixed": length} if length else "BatchLongest",
      "direction": "Right",
      "pad_to_multiple_of": None,
      "pad_id": 0,
      "pad_type_id": 0,
      "pad_token": "[PAD]",
    },
    # Texts with the names of special entries are split like all others.
    "added_tokens": [
      {
        "id": vocab[word],
        "content": word,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
      }
      for word in never_split
    ],
    "normalizer": {
      "type": "BertNormalizer",
      "clean_text": True,
      "handle_chinese_chars": True,
      "strip_accents": None,
      "lowercase": description["do_lower_case"],
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
      "type": "TemplateProcessing",
      "single": first,
      "pair": first + second,
      "special_tokens": {
        word: {"id": word, "ids": [vocab[word]], "tokens": [word]}
        for word in ("[CLS]", "[SEP]")
      },
    },
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
      "type": "WordPiece",
      "unk_token": "[UNK]",
      "continuing_subword_prefix": "##",
      "max_input_chars_per_word": limit
      or tokenization.MAX_INPUT_CHARS_PER_WORD,
      "vocab": dict(vocab),
    },
  }
