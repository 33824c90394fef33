"""Inputs of run_pretraining.py: records, vocabulary and weights."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

import modeling
import tokenization
from bertlib import text_files
from bertlib.checkpoints import finding, loading, model_json
from bertlib.data import (
  pretraining_records,
  record_check,
  tf_records,
  vocabulary,
)
from bertlib.errors import InputError
from bertlib.files import find_files, split_names
from bertlib.metrics import fill_mask
from bertlib.settings import option
from bertlib.settings.pretraining import PretrainingSettings
from bertlib.training import model_selection

# Records that are looked at before a run writes anything, in all files.
_NUM_LOOKED_AT = 2000


def record_layout(
  settings: PretrainingSettings, config: modeling.BertConfig
) -> tf_records.Layout:
  """The layout of pretraining records that go with a model and the flags."""
  return pretraining_records.limited_layout(
    config, settings.model.max_seq_length, settings.max_predictions_per_seq
  )


class Data(NamedTuple):
  """The data of everything that the flags ask for.

  Attributes:
    train_files: TFRecord files to learn from.
    eval_files: likewise, to score on.
    lines: whose masks are to be filled.
    num_records: of each file.
  """

  train_files: Sequence[str]
  eval_files: Sequence[str]
  lines: Sequence[fill_mask.Line]
  num_records: Mapping[str, int]


def describe_model(
  settings: PretrainingSettings, config: modeling.BertConfig
) -> dict[str, Any]:
  """What describes the model; refuses a folder of another.

  Args:
    settings: of the command.
    config: the encoder's sizes.

  Returns:
    What `model_json.claim` takes.

  Raises:
    InputError: --output_dir is another model's, or not as --resume wants it.
  """
  model = {
    "script": "run_pretraining",
    "max_seq_length": settings.model.max_seq_length,
    "do_lower_case": find_vocab(settings)[1],
    **settings.compute.choices,
  }
  model_json.check(
    settings.run.output_dir,
    model,
    config,
    ["script"],
    vocab_file=settings.model.vocab_file,
  )
  if settings.run.do_train:
    finding.check_resume(settings.run.resume, settings.run.output_dir)
  return model


def find_data(
  settings: PretrainingSettings,
  config: modeling.BertConfig,
  tokenizer: tokenization.FullTokenizer | None,
  selection: model_selection.Selection,
) -> Data:
  """Finds and counts the data of everything that the flags ask for.

  Args:
    settings: of the command.
    config: the model's sizes.
    tokenizer: None without a vocabulary.
    selection: says whether training is scored on the way.

  Returns:
    The data.

  Raises:
    InputError: something is missing, or is not what it has to be.
  """
  train_files, eval_files, lines = [], [], []
  if settings.run.do_train:
    train_files = find_files(
      split_names(needed(settings, "input_file", "do_train"))
    )
  if settings.run.do_eval or selection.eval_steps:
    eval_files = find_files(
      split_names(
        settings.eval_input_file or needed(settings, "input_file", "do_eval")
      )
    )
  if settings.run.do_predict:
    if settings.top_k > config.vocab_size:
      raise InputError(
        f"--top_k={settings.top_k}: more than the {config.vocab_size} entries"
        " of the vocabulary. Give fewer"
      )
    path = needed(settings, "predict_file", "do_predict")
    lines = fill_mask.read_lines(
      path,
      tokenizer,
      settings.model.max_seq_length,
      text_files.encoding_of(settings.text),
    )
    if any(max(line.encoded.segment_ids) for line in lines):
      loading.check_has_segments(config, settings.model.bert_config_file)
  num_records = {
    path: pretraining_records.count_records(
      path,
      settings.model.max_seq_length,
      settings.max_predictions_per_seq,
      tokenizer and tokenizer.vocab,
    )
    for path in dict.fromkeys(train_files + eval_files)
  }
  some = -(-_NUM_LOOKED_AT // max(len(num_records), 1))
  record_check.raise_bad_record(
    functools.partial(
      record_check.find, num_records, record_layout(settings, config), some
    )
  )
  return Data(train_files, eval_files, lines, num_records)


def needed(settings: PretrainingSettings, flag: str, action: str):
  """The value of a flag that another makes necessary; InputError if none."""
  value = getattr(settings, flag)
  if not value:
    raise InputError(f"--{flag} is needed with --{action}")
  return value


def find_vocab(settings: PretrainingSettings) -> tuple[str | None, bool]:
  """The vocabulary, if there is one, and whether text is lower-cased for it.

  Where the flags name none, it is the one that training left in the folder.
  """
  path = os.path.join(settings.run.output_dir, loading.VOCAB_FILE)
  if settings.model.vocab_file or not tf.gfile.Exists(path):
    return settings.model.vocab_file, settings.model.do_lower_case
  description = model_json.load_description(settings.run.output_dir)
  return path, description.get("do_lower_case", settings.model.do_lower_case)


def load_tokenizer(
  settings: PretrainingSettings,
  config: modeling.BertConfig,
) -> tokenization.FullTokenizer | None:
  """A tokenizer that leaves [MASK] whole; None without a vocabulary.

  Raises:
    InputError: the vocabulary does not fit the model, or is needed and missing
      or without [MASK].
  """
  if settings.do_whole_word_mask and not settings.remask:
    raise InputError(
      "--do_whole_word_mask is about new masks: add --remask, or give it to"
      " create_pretraining_data.py"
    )
  vocab_file, do_lower_case = find_vocab(settings)
  values = option.values_of(settings)
  uses = [name for name in ("remask", "do_predict") if values[name]]
  if not vocab_file:
    if uses:
      raise InputError(f"--vocab_file is needed with --{uses[0]}")
    return None
  tokenizer = vocabulary.load_tokenizer(
    vocab_file,
    do_lower_case,
    config.vocab_size,
    settings.model.init_checkpoint,
    ["[MASK]"],
  )
  if uses and "[MASK]" not in tokenizer.vocab:
    raise InputError(f"{vocab_file}: has no [MASK], needed with --{uses[0]}")
  return tokenizer


def find_weights(settings: PretrainingSettings) -> str | None:
  """The checkpoint that has all of the model; None for a new one.

  Raises:
    InputError: there is no checkpoint, or it lacks the masked LM.
  """
  checkpoint = finding.find_model(
    settings.model.init_checkpoint,
    settings.run.output_dir,
    may_be_new=settings.run.do_train,
  )
  if checkpoint and "cls/predictions/output_bias" not in dict(
    tf.train.list_variables(checkpoint)
  ):
    raise InputError(
      f"{checkpoint}: has no masked LM. Name a checkpoint of pretraining, not"
      " of fine-tuning"
    )
  return checkpoint
