"""Inputs of run_squad.py: its model, questions and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import tokenization
from bertlib.checkpoints import finding, loading, model_json
from bertlib.data import squad_questions, vocabulary
from bertlib.data.squad_examples import read_squad_examples
from bertlib.errors import InputError
from bertlib.settings.squad import SquadSettings
from bertlib.training import model_selection, setup, training_run


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
) -> squad_questions.Data:
  """Reads the questions of everything that the flags ask for.

  Args:
    settings: of the command.
    selection: says whether training is scored on the way.

  Returns:
    The questions.

  Raises:
    InputError: a file is missing, or something in it is wrong.
  """
  data = squad_questions.Data([], [], [], [])
  if settings.run.do_train:
    train = read_squad_examples(
      settings.train_file,
      True,
      settings.version_2_with_negative,
      data.unaligned,
    )
    data = data._replace(train=train)
  if settings.answers_questions or selection.eval_steps:
    predict = read_squad_examples(
      settings.predict_file, False, settings.version_2_with_negative
    )
    data = data._replace(predict=predict)
  if settings.run.do_eval or selection.eval_steps or settings.sweeps:
    data = data._replace(
      questions=squad_questions.read_answered_questions(settings)
    )
  return data


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


def load_audit_tokenizer(settings: SquadSettings) -> tokenization.FullTokenizer:
  """The tokenizer of --audit, which needs neither a model nor a folder."""
  model = setup.fetch_model(settings.model)
  if not model.vocab_file:
    raise InputError("--vocab_file is needed with --audit")
  return vocabulary.load_tokenizer(
    model.vocab_file,
    model.do_lower_case,
    init_checkpoint=model.init_checkpoint,
  )


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
