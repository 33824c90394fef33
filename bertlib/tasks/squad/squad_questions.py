"""The data sets of a run of run_squad.py."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from bertlib.cli.errors import InputError
from bertlib.data import example_checks
from bertlib.io import json_files
from bertlib.io.files import atomic_write
from bertlib.settings.squad import SquadSettings
from bertlib.tasks.squad import squad_files
from bertlib.tasks.squad.squad_examples import SquadExample


class SquadData(NamedTuple):
  """The questions that a run reads; empty if the flags do not need them.

  Attributes:
    train: the training set.
    predict: the questions to answer.
    questions: the same questions with gold answers, for evaluation.
    unaligned: skipped training questions, see `read_squad_examples`.
  """

  train: Sequence[SquadExample]
  predict: Sequence[SquadExample]
  questions: Sequence[squad_files.Question]
  unaligned: Sequence[Mapping[str, Any]]


def check_answers(
  settings: SquadSettings, questions: Iterable[squad_files.Question]
) -> None:
  """Refuses to evaluate questions of --predict_file without gold answers.

  Raises:
    InputError: a question has no answer and --version_2_with_negative is not
      given.
  """
  for question in questions:
    if not question.answers and not settings.version_2_with_negative:
      raise InputError(
        f"{settings.predict_file}, question {question.id}: has no gold"
        " answer. Leave out --do_eval, or give --version_2_with_negative"
      )


def warn_of_faults(
  train: Iterable[squad_files.Question], dev: Iterable[squad_files.Question]
) -> None:
  """Warns of faults of questions and contexts, see `example_checks`.

  Args:
    train: the training set; may be empty.
    dev: the questions to evaluate; may be empty.
  """
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
