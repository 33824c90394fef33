"""Loads a model's config, and checks what depends on it."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import config_schema
from bertlib.data import vocabulary
from bertlib.errors import InputError

CONFIG_FILE = "bert_config.json"
VOCAB_FILE = vocabulary.VOCAB_FILE


# Parts of a model


def load_config(path: str) -> modeling.BertConfig:
  """Reads a model's sizes.

  Args:
    path: a `bert_config.json`.

  Returns:
    The config.

  Raises:
    InputError: the file is missing or is not such a file, see
      `config_schema.check`.
  """
  try:
    config = modeling.BertConfig.from_dict(config_schema.read(path))
  except tf.errors.NotFoundError as error:
    raise InputError(
      f"{path}: cannot be read (no such file). {config_schema.FIX}"
    ) from error
  try:
    modeling.get_activation(config.hidden_act)
  except ValueError as error:
    raise InputError(f"{path}: hidden_act: {error}") from error
  return config


def check_max_seq_length(
  max_seq_length: int, config: modeling.BertConfig, least: int = 3
) -> None:
  """Refuses lengths that the model has no positions for.

  Args:
    max_seq_length: in tokens.
    config: the model's sizes.
    least: the shortest that makes sense.

  Raises:
    InputError: the length is out of range.
  """
  if not least <= max_seq_length <= config.max_position_embeddings:
    raise InputError(
      f"--max_seq_length={max_seq_length} is not between {least} and the"
      f" model's max_position_embeddings, {config.max_position_embeddings}"
    )


def check_has_segments(config: modeling.BertConfig, config_file: str) -> None:
  """Refuses a model that has no second segment, for pairs of texts.

  Args:
    config: the model's sizes.
    config_file: names them.

  Raises:
    InputError: it has one segment.
  """
  if config.type_vocab_size < 2:
    raise InputError(
      f"{config_file}: type_vocab_size is {config.type_vocab_size}, but a pair"
      " of texts needs 2, one per text. Take a model with two segments"
    )


def num_weights(config: modeling.BertConfig) -> int:
  """How many numbers the encoder learns."""
  width, inner = config.hidden_size, config.intermediate_size
  rows = (
    config.vocab_size + config.max_position_embeddings + config.type_vocab_size
  )
  layer = 4 * width * (width + 1) + 2 * width * inner + inner + width
  layer += 2 * 2 * width
  pooler = width * (width + 1)
  return (rows + 2) * width + config.num_hidden_layers * layer + pooler
