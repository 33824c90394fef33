"""Loading a model's config, and checks that depend on it."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import config_schema
from bertlib.cli.errors import InputError


def load_config(path: str) -> modeling.BertConfig:
  """Reads and checks a `bert_config.json`."""
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
  max_seq_length: int,
  config: modeling.BertConfig,
  minimum: int = 3,
  name: str = "--max_seq_length",  # what has the length, for the message
) -> None:
  """Refuses lengths outside `minimum` to `max_position_embeddings` tokens."""
  if not minimum <= max_seq_length <= config.max_position_embeddings:
    raise InputError(
      f"{name}={max_seq_length} is not between {minimum} and the"
      f" model's max_position_embeddings, {config.max_position_embeddings}"
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
