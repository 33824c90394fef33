"""Inputs of run_ner.py: tagged sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from absl import logging

from bertlib import text_files
from bertlib.data import ner
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


def repair(
  settings: NerSettings,
  flag: str,
  sentences: Sequence[Sentence],
  scheme: str,
  labels: Sequence[str],
) -> list[Sentence]:
  """Sentences with tags that the model knows.

  Args:
    settings: of the command.
    flag: names their file.
    sentences: the sentences.
    scheme: of the model's tags.
    labels: the model's tags.

  Returns:
    The sentences, well tagged; how many tags were not is in the log.

  Raises:
    InputError: a tag is not of the model's.
  """
  kinds = {label[2:] for label in labels if label != "O"}
  for sentence in sentences:
    for entity in ner.entities_of(sentence.tags):
      if entity.label not in kinds:
        raise InputError(
          f"{sentence.place}: {entity.label!r} (at"
          f" {sentence.words[entity.start]!r}) is no label of the training"
          f" data, which has {', '.join(sorted(kinds))}"
        )
  was_scheme = ner.find_scheme(
    tag for sentence in sentences for tag in sentence.tags
  )
  mended, num_broken = ner.repaired(sentences, was_scheme)
  if num_broken:
    logging.warning(
      "%s: %d tags are not as %s has them, such as an I- that follows on"
      " nothing; taken as the beginning of an entity",
      getattr(settings, flag),
      num_broken,
      was_scheme or "the data",
    )
  if scheme != was_scheme:
    mended, _ = ner.repaired(mended, scheme)
  return mended
