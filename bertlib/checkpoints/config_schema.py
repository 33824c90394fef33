"""`bert_config.json`: its schema, and reading it.

`modeling.BertConfig` takes whatever it is given, as in google-research/bert;
commands read the file here. Imports no TensorFlow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from bertlib import json_files
from bertlib.errors import InputError
from bertlib.settings import ranges

# Without these the shapes of the weights are not known.
SIZES = (
  "vocab_size",
  "hidden_size",
  "num_hidden_layers",
  "num_attention_heads",
  "intermediate_size",
  "max_position_embeddings",
  "type_vocab_size",
)

# The type and the range of each value; a float may be written as an integer.
_SCHEMA = {
  **dict.fromkeys(SIZES, (int, ranges.AT_LEAST_1)),
  "hidden_act": (str, None),
  "hidden_dropout_prob": (float, ranges.FRACTION_BELOW_1),
  "attention_probs_dropout_prob": (float, ranges.FRACTION_BELOW_1),
  "initializer_range": (float, ranges.NOT_NEGATIVE),
  "layer_norm_eps": (float, ranges.POSITIVE),
}

_TYPE_NAMES = {int: "an integer", float: "a finite number", str: "text"}

# What is to be done about a file that is no config.
FIX = "Fix it, or name the model's bert_config.json"


def read(path: str, required: Iterable[str] = SIZES) -> dict[str, Any]:
  """Reads and checks a `bert_config.json`.

  Args:
    path: the file.
    required: keys that have to be there.

  Returns:
    Its values by key, those of unknown keys too.

  Raises:
    InputError: it cannot be read, or is not a model's config.
  """
  values = json_files.read(path, fix=FIX)
  check(path, values, required)
  unknown = sorted(values.keys() - _SCHEMA.keys())
  if unknown:
    logging.info("%s: keys without effect: %s", path, ", ".join(unknown))
  return values


def check(path: str, values: Any, required: Iterable[str] = SIZES) -> None:
  """Refuses values that are not the config of a model.

  Args:
    path: names them.
    values: the parsed file.
    required: keys that have to be there.

  Raises:
    InputError: a key is missing or misspelled, or a value is out of range.
  """
  if not isinstance(values, Mapping):
    raise InputError(
      f"{path}: not a bert_config.json, which is a JSON object of the model's"
      " sizes"
    )
  for key in values.keys() - _SCHEMA.keys():
    for known in _SCHEMA:
      if _edit_distance(key.lower(), known) <= 2:
        raise InputError(
          f"{path}: unknown key {key}; {known} is probably meant. Rename or"
          " remove it"
        )
  missing = [key for key in required if key not in values]
  if missing:
    raise InputError(
      f"{path}: has no {', '.join(missing)}. Take the file that belongs to the"
      " checkpoint"
    )
  for key, (kind, allowed) in _SCHEMA.items():
    if key in values and not _is_valid(values[key], kind, allowed):
      shown = json.dumps(values[key], ensure_ascii=False)
      raise InputError(
        f"{path}: {key} is {shown}, but has to be {_TYPE_NAMES[kind]}"
        f" {allowed or ''}".rstrip()
      )
  width, heads = values.get("hidden_size"), values.get("num_attention_heads")
  if width and heads and width % heads:
    raise InputError(
      f"{path}: num_attention_heads is {heads}, which does not divide"
      f" hidden_size, {width}. Take the file that belongs to the checkpoint"
    )


def _is_valid(value: Any, kind: type, allowed: ranges.Range | None) -> bool:
  """True if a value has its type and is in its range."""
  if isinstance(value, bool):  # which Python takes for an integer
    return False
  if not isinstance(value, (int, float) if kind is float else kind):
    return False
  return allowed is None or value in allowed


def _edit_distance(one: str, other: str) -> int:
  """Insertions, deletions and replacements that turn one into the other."""
  row = list(range(len(other) + 1))
  for i, a in enumerate(one, start=1):
    last, row = row, [i]
    for j, b in enumerate(other, start=1):
      row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b)))
  return row[-1]
