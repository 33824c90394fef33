"""What a run starts from: the model that its flags name."""

from __future__ import annotations

import os

from absl import flags, logging

from bertlib import (
  published_models,
)
from bertlib.checkpoints import finding, loading, tfhub, zoo
from bertlib.errors import InputError
from bertlib.training import run_flags

FLAGS = flags.FLAGS


def fill_in_model_flags() -> None:
  """Fetches a model that the flags name; its files become those of the flags.

  What else the command line says of a model stays.

  Raises:
    InputError: it cannot be had, has no vocabulary, or is named twice.
  """
  handle, checkpoint = FLAGS.bert_hub_module_handle, FLAGS.init_checkpoint
  if handle and checkpoint:
    raise InputError(
      "--bert_hub_module_handle and --init_checkpoint both say where to start;"
      " give one of them"
    )
  if handle:
    brought = tfhub.flags_for(handle)
  elif checkpoint and published_models.is_name(checkpoint):
    brought = zoo.flags_for(checkpoint)
  elif checkpoint:
    FLAGS["init_checkpoint"].value = find_init_checkpoint(checkpoint)
    return
  else:
    return
  for name, value in brought.items():
    # Not by assigning to FLAGS, which would ask what is required again.
    if name == "init_checkpoint" or not FLAGS[name].present:
      FLAGS[name].value = value
  if not FLAGS.vocab_file:
    raise InputError(f"{handle}: has no vocabulary; name it by --vocab_file")


def find_init_checkpoint(value: str) -> str:
  """The checkpoint that --init_checkpoint names, by itself or by its folder.

  Args:
    value: of the flag.

  Returns:
    See `finding.find_checkpoint`.

  Raises:
    InputError: there is none. If the value looks like the name of a model, the
      message has names like it.
  """
  try:
    return finding.find_checkpoint(value)
  except InputError as error:
    near = published_models.similar_names(value)
    if not near or os.path.exists(value):
      raise
    raise InputError(
      f"--init_checkpoint={value}: neither a checkpoint nor the name of a"
      f" model. Did you mean {' or '.join(near)}?"
    ) from error


def find_model() -> str | None:
  """The checkpoint of the flags; see `finding.find_model`."""
  return finding.find_model(
    FLAGS.init_checkpoint, FLAGS.output_dir, FLAGS.do_train
  )


def load_config(least: int = 3):
  """The config of the flags, and of a model that they name, which is fetched.

  Args:
    least: see `loading.check_max_seq_length`.

  Returns:
    The `modeling.BertConfig`.

  Raises:
    InputError: there is none, or it has no room for --max_seq_length.
  """
  fill_in_model_flags()
  run_flags.find_tpu()
  config = loading.load_config(FLAGS.bert_config_file)
  loading.check_max_seq_length(FLAGS.max_seq_length, config, least)
  logging.info(
    "%s: %d layers, %d wide, %s weights",
    FLAGS.bert_config_file,
    config.num_hidden_layers,
    config.hidden_size,
    f"{loading.num_weights(config):,}",
  )
  return config


def load_tokenizer(config):
  """The tokenizer of the flags; see `loading.load_tokenizer`."""
  tokenizer = loading.load_tokenizer(
    FLAGS.vocab_file, FLAGS.do_lower_case, config, FLAGS.init_checkpoint
  )
  logging.info(
    "%s: %d entries, text %s",
    FLAGS.vocab_file,
    len(tokenizer.vocab),
    "is lower-cased" if FLAGS.do_lower_case else "keeps its case",
  )
  return tokenizer
