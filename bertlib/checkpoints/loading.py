"""Loads a model's config and tokenizer, and checks that they fit."""

from __future__ import annotations

import os
from collections.abc import Iterable

import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import tokenization
from bertlib.checkpoints import config_schema
from bertlib.data import vocabulary
from bertlib.errors import InputError

CONFIG_FILE = "bert_config.json"
VOCAB_FILE = "vocab.txt"


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
      f"{path}: cannot be read; name a bert_config.json"
    ) from error
  try:
    modeling.get_activation(config.hidden_act)
  except ValueError as error:
    raise InputError(f"{path}: hidden_act: {error}") from error
  return config


def load_tokenizer(
  vocab_file: str,
  do_lower_case: bool,
  config: modeling.BertConfig | None,
  init_checkpoint: str | None = None,
  never_split: Iterable[str] = (),
) -> tokenization.FullTokenizer:
  """A tokenizer that fits the model.

  Args:
    vocab_file: the vocabulary.
    do_lower_case: whether it is of an uncased model.
    config: the model's sizes; None where no model is used.
    init_checkpoint: whose folder's name may tell its case.
    never_split: see `tokenization.FullTokenizer`.

  Returns:
    The tokenizer.

  Raises:
    InputError: the vocabulary is missing, lacks a special entry, has more
      entries than the model, or is of the other case.
  """
  try:
    tokenization.validate_case_matches_checkpoint(
      do_lower_case, init_checkpoint
    )
    tokenizer = tokenization.FullTokenizer(
      vocabulary.load(vocab_file), do_lower_case, never_split
    )
  except (OSError, tf.errors.NotFoundError) as error:
    raise InputError(
      f"{vocab_file}: cannot be read; name a vocab.txt"
    ) from error
  except InputError:
    raise
  except ValueError as error:
    raise InputError(f"{vocab_file}: {error}") from error
  vocab_size = config.vocab_size if config else len(tokenizer.vocab)
  vocabulary.check(vocab_file, tokenizer.vocab, vocab_size)
  _check_case(vocab_file, tokenizer.vocab, do_lower_case)
  if init_checkpoint:
    beside = os.path.join(os.path.dirname(init_checkpoint), VOCAB_FILE)
    if tf.gfile.Exists(beside):
      different = vocabulary.difference(vocab_file, beside, ignore_unused=True)
      if different:
        logging.warning(
          "%s: not the vocabulary beside the checkpoint, %s (%s)",
          vocab_file,
          beside,
          different,
        )
  return tokenizer


def _check_case(vocab_file: str, vocab: Iterable[str], do_lower_case: bool):
  """Refuses a published vocabulary's worth of words of the other case."""
  words = [t for t in vocab if t.isascii() and t.lstrip("#").isalpha()]
  if len(words) < 1000:
    return
  has_capitals = sum(word != word.lower() for word in words) > len(words) / 100
  if has_capitals and do_lower_case:
    raise InputError(
      f"{vocab_file}: is cased, but text is lower-cased. Give"
      " --do_lower_case=False"
    )
  if not has_capitals and not do_lower_case:
    raise InputError(
      f"{vocab_file}: is uncased, but text keeps its capitals, for which it"
      " has no entries. Give --do_lower_case=True"
    )


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
