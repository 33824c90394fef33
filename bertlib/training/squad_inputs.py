"""Inputs of run_squad.py: questions, windows, and where weights are from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import tokenization
from bertlib import text_files
from bertlib.checkpoints import finding, loading, model_json
from bertlib.data import (
  squad,
  squad_files,
)
from bertlib.data.squad import (
  SquadExample,
  read_squad_examples,
)
from bertlib.errors import InputError
from bertlib.metrics import (
  squad_results,
)
from bertlib.settings.squad import SquadSettings
from bertlib.training import (
  model_selection,
  setup,
  training_run,
)


class Data(NamedTuple):
  """The questions of everything that the flags ask for.

  Attributes:
    train: to learn from.
    predict: to answer.
    questions: to score by: the same with their answers.
    unaligned: those of the training set that are left out.
  """

  train: Sequence[SquadExample]
  predict: Sequence[SquadExample]
  questions: Sequence[squad_files.Question]
  unaligned: Sequence[Mapping[str, Any]]


def describe_model(
  settings: SquadSettings, config: modeling.BertConfig, seeds: Sequence[int]
) -> dict[str, Any]:
  """What describes the model; refuses a folder of another.

  Args:
    settings: of the command.
    config: the encoder's sizes.
    seeds: of `--seeds`, each of which has a folder of its own.

  Returns:
    What `model_json.claim` takes.

  Raises:
    InputError: --output_dir is another model's, or not as --resume wants it.
  """
  loading.check_has_segments(config, settings.model.bert_config_file)
  model = {
    "script": "run_squad",
    "version_2_with_negative": settings.version_2_with_negative,
    "max_seq_length": settings.model.max_seq_length,
    "doc_stride": settings.doc_stride,
    "max_query_length": settings.max_query_length,
    "do_lower_case": settings.model.do_lower_case,
    **settings.compute.choices,
  }
  must_agree = ["script", "do_lower_case"]
  if settings.run.do_train:
    must_agree.append("version_2_with_negative")
  model_json.check(
    settings.run.output_dir,
    model,
    config,
    must_agree,
    vocab_file=settings.model.vocab_file,
  )
  if settings.run.do_train and not seeds:
    finding.check_resume(settings.run.resume, settings.run.output_dir)
  return model


def read_data(
  settings: SquadSettings, selection: model_selection.Selection
) -> Data:
  """Reads the questions of everything that the flags ask for.

  Args:
    settings: of the command.
    selection: says whether training is scored on the way.

  Returns:
    The questions.

  Raises:
    InputError: a file is missing, or something in it is wrong.
  """
  data = Data([], [], [], [])
  if settings.run.do_train:
    train = read_squad_examples(
      settings.train_file,
      True,
      settings.version_2_with_negative,
      data.unaligned,
    )
    data = data._replace(train=train)
  if answers_questions(settings) or selection.eval_steps:
    predict = read_squad_examples(
      settings.predict_file, False, settings.version_2_with_negative
    )
    data = data._replace(predict=predict)
  if (
    settings.run.do_eval
    or selection.eval_steps
    or squad_results.sweeps(settings)
  ):
    data = data._replace(questions=read_answered_questions(settings))
  return data


def answers_questions(settings: SquadSettings) -> bool:
  """Whether --predict_file is to be answered."""
  return bool(settings.run.do_predict or settings.from_logits)


def window_settings(
  settings: SquadSettings, is_training: bool
) -> squad.Settings:
  """How the flags want windows made."""
  return squad.Settings(
    settings.model.max_seq_length,
    settings.doc_stride,
    settings.max_query_length,
    is_training,
  )


def find_model(settings: SquadSettings) -> str | None:
  """The checkpoint that has all of the model; None for a new one.

  Raises:
    InputError: it is not there, or of a model for something else.
  """
  needs_no_model = settings.from_logits and not settings.interactive
  checkpoint = finding.find_model(
    settings.model.init_checkpoint,
    settings.run.output_dir,
    may_be_new=settings.run.do_train or needs_no_model,
  )
  if checkpoint:
    check_has_head(checkpoint)
  return checkpoint


def check_has_head(checkpoint: str) -> None:
  """Refuses a checkpoint of a model that does not answer questions.

  Args:
    checkpoint: its path.

  Raises:
    InputError: it lacks the weights for that.
  """
  name = "cls/squad/output_weights"
  if name not in dict(tf.train.list_variables(checkpoint)):
    raise InputError(
      f"{checkpoint}: was not trained on questions (it has no {name}). Train"
      " it with --do_train into another --output_dir, or name one that was"
    )


def read_answered_questions(
  settings: SquadSettings,
) -> list[squad_files.Question]:
  """The questions of --predict_file, with answers to score by.

  Raises:
    InputError: one has none, and data of 1.1 has no such questions.
  """
  questions = squad_files.read_questions(settings.predict_file)
  for question in questions:
    if not question.answers and not settings.version_2_with_negative:
      raise InputError(
        f"{settings.predict_file}, question {question.id}: has no answer to"
        " score by. Leave out --do_eval, or give --version_2_with_negative"
      )
  return questions


def load_audit_tokenizer(settings: SquadSettings) -> tokenization.FullTokenizer:
  """The tokenizer of --audit, which needs neither a model nor a folder."""
  model = setup.fetch_model(settings.model)
  if not model.vocab_file:
    raise InputError("--vocab_file is needed with --audit")
  return loading.load_tokenizer(
    model.vocab_file,
    model.do_lower_case,
    None,
    model.init_checkpoint,
  )


def print_audit(
  settings: SquadSettings, tokenizer: tokenization.FullTokenizer
) -> None:
  """Prints what settings would cut off --train_file."""
  unaligned: list[dict[str, Any]] = []
  examples = read_squad_examples(
    settings.train_file, True, settings.version_2_with_negative, unaligned
  )
  rows = squad.audit(
    examples,
    tokenizer,
    squad_results.numbers(settings, "audit_max_seq_lengths"),
    squad_results.numbers(settings, "audit_doc_strides"),
    settings.max_query_length,
  )
  squad_results.print_table(
    [row | {"unaligned answers": len(unaligned)} for row in rows]
  )


# Training and answering


def windows_key(settings: SquadSettings, path: str, is_training: bool) -> str:
  """The key in the cache of a data set's windows."""
  return squad.cache_key(
    path,
    settings.model.vocab_file,
    window_settings(settings, is_training)._asdict()
    | {
      "do_lower_case": settings.model.do_lower_case,
      "version_2_with_negative": settings.version_2_with_negative,
    },
  )


def load_windows(
  settings: SquadSettings,
  path: str,
  examples: Sequence[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  is_training: bool,
) -> tuple[squad.Windows, str]:
  """The windows of a data set, made or from the cache; says what they lose.

  Args:
    settings: of the command.
    path: the data set.
    examples: its questions.
    tokenizer: gives the ids.
    is_training: whether they need answers.

  Returns:
    The windows and the key of the cache.
  """
  key = windows_key(settings, path, is_training)
  # Starting a process takes as long as some thousand questions.
  num_workers = settings.num_workers or min(
    os.cpu_count(), len(examples) // 5000
  )
  windows = squad.cached_windows(
    settings.cache_dir or settings.run.output_dir,
    key,
    lambda: squad.make_windows(
      examples,
      tokenizer,
      window_settings(settings, is_training),
      num_workers,
      True,
    ),
  )
  cut, lost = squad.find_losses(windows)
  logging.info(
    "%s: %d questions in %d windows; %d questions cut to %d tokens, %d answers"
    " in no window",
    path,
    len(examples),
    len(windows.length),
    len(cut),
    settings.max_query_length,
    len(lost),
  )
  if settings.verbose_logging:
    for what, indexes in (("cut", cut), ("answer in no window", lost)):
      for index in indexes:
        logging.info("question %s: %s", examples[index].qas_id, what)
  return windows, key


def count_steps(
  settings: SquadSettings, num_questions: int, num_windows: int
) -> int:
  """The steps that the flags ask for, which it says in windows too.

  Args:
    settings: of the command.
    num_questions: of the training set.
    num_windows: made of them.

  Returns:
    The steps, at least one.

  Raises:
    InputError: there are not enough for one.
  """
  count = num_questions if settings.steps_from == "questions" else num_windows
  num_steps = training_run.count_steps(settings.run, count, settings.steps_from)
  logging.info(
    "--steps_from=%s: %g passes over %d %s are %d steps, and %.2f passes over"
    " the %d windows",
    settings.steps_from,
    settings.run.num_train_epochs,
    count,
    settings.steps_from,
    num_steps,
    num_steps * settings.run.train_batch_size / num_windows,
    num_windows,
  )
  return num_steps


# Conversation


def read_passage(settings: SquadSettings) -> str:
  """The text of --passage_file.

  Raises:
    InputError: it has none, or is not of --encoding.
  """
  passage = text_files.read_text(
    settings.passage_file, text_files.encoding_of(settings.text)
  )
  if not passage.strip():
    raise InputError(f"{settings.passage_file}: has no passage in it")
  return passage
