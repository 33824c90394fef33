"""Config of a model, `bert_config.json`: reading it, and its checks.

Imports no TensorFlow.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bertlib.cli import lazy_module, option, terminal
from bertlib.cli.errors import InputError
from bertlib.io import files, json_files

modeling = lazy_module.load("modeling")

# Required: they determine the shapes of the weights.
SIZES = (
  "vocab_size",
  "hidden_size",
  "num_hidden_layers",
  "num_attention_heads",
  "intermediate_size",
  "max_position_embeddings",
  "type_vocab_size",
)

# Type and range of each value; a float may be written as an integer.
_SCHEMA = {
  **dict.fromkeys(SIZES, (int, option.AT_LEAST_1)),
  "hidden_act": (str, None),
  "hidden_dropout_prob": (float, option.FRACTION_BELOW_1),
  "attention_probs_dropout_prob": (float, option.FRACTION_BELOW_1),
  "initializer_range": (float, option.NOT_NEGATIVE),
  "layer_norm_eps": (float, option.POSITIVE),
}

# Keys, with any value, that are read elsewhere or do not change what this model
# computes: those of transformers, and the pooler's of multilingual models.
_HARMLESS = re.compile(
  r"_\w+|\w+_token_id|output_\w+|use_(cache|bfloat16)|return_dict|torchscript"
  r"|(torch_)?dtype|transformers_version|architectures|language|name"
  r"|id2label|label2id|num_labels|problem_type|finetuning_task"
  r"|task_specific_params|do_lower_case|tokenizer_class|vocab_file"
  r"|gradient_checkpointing|chunk_size_feed_forward"
  r"|pooler_(fc_size|num_\w+|size_per_head)"
)

# Further keys of BERT's configs, with the value that this model has.
_FIXED = {
  "add_cross_attention": False,
  "classifier_dropout": None,
  "cross_attention_hidden_size": None,
  "directionality": "bidi",
  "is_decoder": False,
  "is_encoder_decoder": False,
  "model_type": "bert",
  "pooler_type": "first_token_transform",
  "position_embedding_type": "absolute",
  "pruned_heads": {},
  "tie_encoder_decoder": False,
  "tie_word_embeddings": True,
}

_TYPE_NAMES = {int: "an integer", float: "a finite number", str: "text"}

# How to fix an invalid config, for error messages.
FIX = "Fix it, or name the model's bert_config.json"


def load_config(path: str) -> modeling.BertConfig:
  """Reads and checks a `bert_config.json`."""
  if not files.exists(path):
    raise InputError(f"{path}: cannot be read (no such file). {FIX}")
  config = modeling.BertConfig.from_dict(read_config(path))
  try:
    modeling.get_activation(config.hidden_act)
  except ValueError as error:
    raise InputError(f"{path}: hidden_act: {error}") from error
  return config


def read_config(path: str) -> dict[str, Any]:
  """All values of a `bert_config.json` by key, checked; unknown keys too."""
  values = json_files.read(path, dict, FIX)
  check_config(path, values)
  ignored = [
    f"{key} ({json.dumps(values[key], ensure_ascii=False)})"
    for key in sorted(values.keys() - _SCHEMA.keys())
    if not _HARMLESS.fullmatch(key)
    and (key not in _FIXED or values[key] != _FIXED[key])
  ]
  if ignored:
    terminal.warn_once(f"{path}: ignored keys: {', '.join(ignored)}")
  return values


def check_config(
  path: str, values: Mapping[str, Any], required: Iterable[str] = SIZES
) -> None:
  """Refuses values that are not a model's config; `path` is for messages."""
  # `modeling.BertConfig` takes any keys, as in google-research/bert: a
  # misspelled one would be replaced by its default.
  for key in values.keys() - _SCHEMA.keys():
    for known in _SCHEMA:
      if _num_edits(key.lower(), known) <= 2:
        raise InputError(
          f"{path}: unknown key {key}. Rename it to {known}, or remove it"
        )
  missing = [key for key in required if key not in values]
  if missing:
    raise InputError(
      f"{path}: has no {', '.join(missing)}. Use the file that belongs to the"
      " checkpoint"
    )
  for key, (kind, allowed) in _SCHEMA.items():
    if key not in values:
      continue
    is_of_kind = json_files.mismatch(values[key], kind) is None
    if not is_of_kind or (allowed and values[key] not in allowed):
      shown = json.dumps(values[key], ensure_ascii=False)
      raise InputError(
        f"{path}: {key} is {shown}, but must be {_TYPE_NAMES[kind]}"
        f" {allowed or ''}".rstrip()
      )
  width, heads = values.get("hidden_size"), values.get("num_attention_heads")
  if width and heads and width % heads:
    raise InputError(
      f"{path}: num_attention_heads is {heads}, which does not divide"
      f" hidden_size, {width}. Use the file that belongs to the checkpoint"
    )


def _num_edits(first: str, second: str) -> int:
  """Characters by which two strings differ, as difflib aligns them."""
  changes = difflib.SequenceMatcher(None, first, second).get_opcodes()
  return sum(
    max(a_end - a, b_end - b)
    for kind, a, a_end, b, b_end in changes
    if kind != "equal"
  )


def check_max_seq_length(
  max_seq_length: int,
  max_positions: int,
  minimum: int = 3,
  name: str = "--max_seq_length",  # what has the length, for the message
) -> None:
  """Refuses lengths outside `minimum` to `max_position_embeddings` tokens."""
  if not minimum <= max_seq_length <= max_positions:
    raise InputError(
      f"{name}={max_seq_length} is not between {minimum} and the"
      f" model's max_position_embeddings, {max_positions}"
    )


def check_has_segments(config: modeling.BertConfig, config_file: str) -> None:
  """Refuses a model with one token type for text pairs, which need two."""
  if config.type_vocab_size < 2:
    raise InputError(
      f"{config_file}: type_vocab_size is {config.type_vocab_size}, but text"
      " pairs need 2, one per text. Use a model with two segments"
    )


def num_weights(config: modeling.BertConfig) -> int:
  """Number of parameters of the encoder."""
  width, inner = config.hidden_size, config.intermediate_size
  rows = (
    config.vocab_size + config.max_position_embeddings + config.type_vocab_size
  )
  # Query, key, value and output of attention; then the feed-forward network.
  layer = 4 * width * (width + 1) + 2 * width * inner + inner + width
  layer += 2 * 2 * width  # two layer normalizations
  pooler = width * (width + 1)
  return (rows + 2) * width + config.num_hidden_layers * layer + pooler
