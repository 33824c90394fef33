"""The questions that a run of run_squad.py reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from bertlib.data import squad_files
from bertlib.data.squad_examples import SquadExample
from bertlib.errors import InputError
from bertlib.files import atomic_write
from bertlib.settings.squad import SquadSettings


class Data(NamedTuple):
  """The questions of everything that the flags ask for.

  Attributes:
    train: to train on.
    predict: to answer.
    questions: the same with their gold answers, to evaluate by.
    unaligned: those of the training set that are left out.
  """

  train: Sequence[SquadExample]
  predict: Sequence[SquadExample]
  questions: Sequence[squad_files.Question]
  unaligned: Sequence[Mapping[str, Any]]


def read_answered_questions(
  settings: SquadSettings,
) -> list[squad_files.Question]:
  """The questions of --predict_file, with gold answers to evaluate by.

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


def write_unaligned(
  output_dir: str, unaligned: Sequence[Mapping[str, Any]]
) -> None:
  """Writes the answers that could not be used to a file in a folder."""
  path = os.path.join(output_dir, "unaligned_answers.jsonl")
  with atomic_write(path) as file:
    for answer in unaligned:
      file.write(json.dumps(answer, ensure_ascii=False) + "\n")
  if unaligned:
    logging.info("Answers that could not be used are listed in %s", path)
