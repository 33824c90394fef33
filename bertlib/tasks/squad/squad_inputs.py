"""Inputs of run_squad.py: questions, windows, logits and steps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

import tokenization
from bertlib.checkpoints import loading
from bertlib.cli.errors import InputError
from bertlib.data import example_checks, vocabulary
from bertlib.io import json_files
from bertlib.io.files import atomic_write
from bertlib.reporting import doctor
from bertlib.settings.common import ModelSettings
from bertlib.settings.squad import SquadSettings
from bertlib.tasks.squad import (
  squad_answer_files,
  squad_features,
  squad_files,
  squad_windows,
)
from bertlib.tasks.squad.squad_examples import SquadExample, make_examples
from bertlib.training import step_plan
from bertlib.training.task import Run


class SquadData(NamedTuple):
  """The questions that a run reads; empty if the flags do not need them."""

  train: Sequence[SquadExample]
  predict: Sequence[SquadExample]  # to answer
  questions: Sequence[squad_files.Question]  # the same, with gold answers
  # Skipped training questions, see `read_squad_examples`.
  unaligned: Sequence[Mapping[str, Any]]


def read_data(run: Run) -> SquadData:
  """Reads the questions of the splits that the run uses."""
  settings, eval_steps = run.settings, run.selection.eval_steps
  loading.check_has_segments(run.config, settings.model.bert_config_file)
  data = SquadData([], [], [], [])
  to_train_on: Sequence[squad_files.Question] = ()
  if settings.run.do_train:
    to_train_on = squad_files.read_questions(settings.train_file)
    train = make_examples(
      to_train_on,
      settings.train_file,
      True,
      settings.version_2_with_negative,
      data.unaligned,
    )
    if all(example.is_impossible for example in train):
      raise InputError(
        f"{settings.train_file}: none of its {len(train)} questions has an"
        " answer, so that there is none to learn. Give the whole training set"
      )
    data = data._replace(train=train)
  if settings.answers_questions or eval_steps:
    questions = squad_files.read_questions(settings.predict_file)
    predict = make_examples(
      questions,
      settings.predict_file,
      False,
      settings.version_2_with_negative,
    )
    data = data._replace(predict=predict)
    if settings.run.do_eval or eval_steps or settings.sweeps:
      check_answers(settings, questions)
      data = data._replace(questions=questions)
  warn_of_faults(to_train_on, data.questions)
  return data


def check_answers(
  settings: SquadSettings, questions: Iterable[squad_files.Question]
) -> None:
  """Refuses to evaluate questions of --predict_file without gold answers."""
  for question in questions:
    if not question.answers and not settings.version_2_with_negative:
      raise InputError(
        f"{settings.predict_file}, question {question.id}: has no gold"
        " answer. Leave out --do_eval, or give --version_2_with_negative"
      )


def warn_of_faults(
  train: Iterable[squad_files.Question], dev: Iterable[squad_files.Question]
) -> None:
  """Warns of faults of questions and contexts, see `example_checks`."""
  train, dev = (
    [
      example_checks.Labeled(
        (question.text, question.context),
        tuple(sorted({answer.text for answer in question.answers})),
        f"question {question.id}",
      )
      for question in questions
    ]
    for questions in (train, dev)
  )
  example_checks.warn_of_faults(train, {"the dev set": dev})


def write_unaligned(
  output_dir: str, unaligned: Sequence[Mapping[str, Any]]
) -> None:
  """Writes unaligned_answers.jsonl, see `read_squad_examples`."""
  path = os.path.join(output_dir, "unaligned_answers.jsonl")
  with atomic_write(path) as file:
    for answer in unaligned:
      file.write(json_files.dumps(answer, ensure_ascii=False) + "\n")
  if unaligned:
    logging.info("Skipped training answers are listed in %s", path)


def data_files(settings: SquadSettings, data: SquadData) -> list[str]:
  """Paths of the files that were read."""
  files = settings.train_file, settings.predict_file
  return [path for path, used in zip(files, data) if used]


def load_windows(
  run: Run, examples: Sequence[SquadExample]
) -> squad_features.Windows:
  """Windows of the questions in --predict_file, from the cache if there."""
  settings = run.settings
  if not examples:
    return squad_features.convert_examples_to_windows(
      [], run.tokenizer, squad_windows.window_settings(settings, False)
    )
  windows, _ = squad_windows.load_windows(
    settings, settings.predict_file, examples, run.tokenizer, is_training=False
  )
  return windows


def load_logits(settings: SquadSettings) -> np.ndarray | None:
  """Loads --from_logits; None if the logits must be computed."""
  if not settings.from_logits:
    return None
  return squad_answer_files.load_logits(
    settings.from_logits, _predict_key(settings)
  )


def save_logits(settings: SquadSettings, logits: np.ndarray) -> None:
  """Writes the logits to --save_logits, if given."""
  if settings.save_logits:
    squad_answer_files.save_logits(
      settings.save_logits, _predict_key(settings), logits
    )


def _predict_key(settings: SquadSettings) -> str:
  """Cache key of the windows of --predict_file."""
  return squad_windows.windows_key(
    settings, settings.predict_file, is_training=False
  )


def load_audit_tokenizer(model: ModelSettings) -> tokenization.FullTokenizer:
  """Tokenizer of --audit, which needs neither a model nor --output_dir."""
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
  """Number of training steps; logs the equivalent number of epochs."""
  count = num_questions if settings.steps_from == "questions" else num_windows
  num_steps = step_plan.count_steps(settings.run, count, settings.steps_from)
  logging.info(
    "--steps_from=%s: %g epochs of %d %s are %d steps, which are %.2f epochs of"
    " %d windows",
    settings.steps_from,
    settings.run.num_train_epochs,
    count,
    settings.steps_from,
    num_steps,
    num_steps * settings.run.train_batch_size / num_windows,
    num_windows,
  )
  return num_steps


# Checks of --doctor


def check_questions(run: Run, data: SquadData) -> doctor.LengthSummary:
  """Encodes a sample of questions; warns if many lose text or answers."""
  questions = data.train or data.predict
  sample = doctor.sample(questions)
  windows = squad_features.convert_examples_to_windows(
    sample,
    run.tokenizer,
    squad_windows.window_settings(run.settings, is_training=bool(data.train)),
  )
  truncated, lost = squad_features.find_incomplete_questions(windows)
  for problem, affected in (
    ("questions are truncated", truncated),
    ("answers fall outside every window", lost),
  ):
    if len(affected) > len(sample) / 20:
      logging.warning("%d of %d %s", len(affected), len(sample), problem)
  ends = np.cumsum(windows.length)
  return doctor.check_encoded(
    [
      doctor.Encoded(windows.ids[end - length : end].tolist(), int(length))
      for end, length in zip(ends, windows.length)
    ],
    run.config.vocab_size,
    len(questions) * len(ends) // max(len(sample), 1),
  )
