"""Inputs of run_ner.py: tagged sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bertlib import text_files
from bertlib.data import (
  ner,
)
from bertlib.data.ner import Sentence
from bertlib.errors import InputError
from bertlib.settings.ner import NerSettings


class Data(NamedTuple):
  """The sentences of everything that the flags ask for.

  Attributes:
    train: to learn from.
    dev: to score on.
    predict: to tag.
  """

  train: Sequence[Sentence]
  dev: Sequence[Sentence]
  predict: Sequence[Sentence]


def read_training_set(settings: NerSettings) -> list[Sentence]:
  """The tagged sentences to learn from; none without --do_train."""
  return read_tagged(settings, "train_file") if settings.run.do_train else []


def columns(settings: NerSettings) -> ner.Columns:
  """Where the flags say that words and tags stand."""

  def character(text):
    return text and text.encode().decode("unicode_escape")

  return ner.Columns(
    settings.word_column,
    settings.tag_column,
    character(settings.delimiter),
    character(settings.item_delimiter),
  )


def read_tagged(settings: NerSettings, flag: str) -> list[Sentence]:
  """The sentences of a file that has to have tags.

  Args:
    settings: of the command.
    flag: names the file.

  Returns:
    The sentences.

  Raises:
    InputError: a sentence is without tags.
  """
  sentences = ner.read_sentences(
    getattr(settings, flag),
    columns(settings),
    text_files.encoding_of(settings.text),
  )
  for sentence in sentences:
    if sentence.tags is None:
      raise InputError(
        f"{sentence.place}: has words without tags, which --{flag} needs"
      )
  return sentences
