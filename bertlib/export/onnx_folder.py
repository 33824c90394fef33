"""Files beside an ONNX model: what a server needs to use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tokenization
from bertlib import PREFIX
from bertlib.cli.errors import InputError
from bertlib.data.subword_tokenizer import SubwordTokenizer
from bertlib.export import tokenizer_files
from bertlib.export.onnx_graph import INT8_MODEL_FILE, MODEL_FILE
from bertlib.io import json_files, model_files
from bertlib.settings import model_description
from bertlib.task.task_record import TaskRecord

CONFIG_FILE = "config.json"
README_FILE = "README.md"

# Folder, beside the model file, of models that OpenVINO has compiled.
CACHE = "openvino_cache"

# Where a model is, the first of these; the last one of earlier versions.
MODEL_FILES = (MODEL_FILE, INT8_MODEL_FILE, "model.onnx")
CACHES = {os.path.join(os.path.dirname(name), CACHE) for name in MODEL_FILES}

# Bytes at the end of a model file that contain its metadata.
_TAIL_SIZE = 4096

# Files of an export beside those that a checkpoint has; last, of an earlier
# version.
_BESIDE_IT = {CONFIG_FILE, tokenizer_files.CONFIG_FILE, README_FILE}
LAYOUTS = (
  {MODEL_FILE, *_BESIDE_IT},
  {INT8_MODEL_FILE, *_BESIDE_IT},
  {"model.onnx", README_FILE},
)

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
session = onnxruntime.InferenceSession("{file}", options)
encoded = tokenizer.encode_batch({texts})
inputs = {{
  "input_ids": np.array([text.ids for text in encoded]),
  "attention_mask": np.array([text.attention_mask for text in encoded]),
{segments}}}
{more}outputs = session.run(None, inputs)
print(outputs[0])
print(json.load(open("model.json", encoding="utf-8")).get("labels"))
```

With bert-estimator, which sorts texts by length and returns labels, entities,
answers or vectors:

```python
from {prefix}bertlib.export import OnnxModel

print(OnnxModel(".").predict({examples}))
```

transformers.js, fastembed and optimum load this folder: docs/how_to/onnx.md
of bert-estimator has examples.
"""

_SEGMENTS = """\
  "token_type_ids": np.array([text.type_ids for text in encoded]),
"""

# Positions of the [MASK]s, for a model with such an input.
_MASKS = """\
mask = inputs["input_ids"] == tokenizer.token_to_id("{mask}")
inputs["masked_lm_positions"] = np.array([np.flatnonzero(row) for row in mask])
"""


def write(
  folder: str,
  model: Any,  # of `Graph.model`
  description: Mapping[str, Any],  # contents of `model.json`
  config: Mapping[str, Any],  # contents of `config.json`
  tokenizer: tokenization.Tokenizer,
  task: TaskRecord | None,  # None for an encoder
  is_int8: bool,
) -> None:
  """Writes a model, its tokenizer and an example of its use to a folder."""
  # At the end of the file, see `check`.
  entry = model.metadata_props.add()
  entry.key = "meaning_sha256"
  entry.value = model_description.load(folder)[entry.key]
  model_file = INT8_MODEL_FILE if is_int8 else MODEL_FILE
  path = os.path.join(folder, model_file)
  os.makedirs(os.path.dirname(path))
  with open(path, "wb") as file:
    file.write(model.SerializeToString())
  # Browsers otherwise look for the other file, or servers do.
  chosen = {"transformers.js_config": {"dtype": "q8" if is_int8 else "fp32"}}
  json_files.write(os.path.join(folder, CONFIG_FILE), {**config, **chosen})
  mask = tokenizer.special_tokens.mask
  added = [mask] if task and task.fills_masks else []
  has_segments = config.get("type_vocab_size", 0) > 1
  if isinstance(tokenizer, SubwordTokenizer):
    tokenizer_files.write_subword(
      folder, tokenizer.rules, description, has_segments, cuts=True
    )
  else:
    tokenizer_files.write(
      folder, tokenizer.vocab, description, added, cuts=True
    )
  examples = ["A text."]
  if task and task.predict:
    examples = task.predict.examples(description)
  if added:  # the example names BERT's mask
    examples = [
      e.replace(tokenization.BERT_TOKENS.mask, mask) for e in examples
    ]
  # Choices are rows of their own.
  texts = examples[0] if isinstance(examples[0], list) else examples
  with open(os.path.join(folder, README_FILE), "w", encoding="utf-8") as file:
    file.write(
      _README.format(
        texts=texts,
        segments=_SEGMENTS * has_segments,
        examples=examples,
        more=_MASKS.format(mask=mask) if added else "",
        prefix=PREFIX,
        file=model_file,
      )
    )


def find(folder: str) -> str:
  """Path of the model file in the folder of an export."""
  paths = [os.path.join(folder, name) for name in MODEL_FILES]
  return next(filter(os.path.exists, paths), paths[0])


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
