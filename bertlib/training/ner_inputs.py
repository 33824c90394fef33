"""Inputs of run_ner.py: tagged sentences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from absl import logging

from bertlib import text_files
from bertlib.checkpoints import finding, model_json
from bertlib.data import ner
from bertlib.data.ner import Sentence
from bertlib.errors import InputError
from bertlib.metrics import ner_scores
from bertlib.settings.ner import NerSettings
from bertlib.training import resolve
from bertlib.training.task import Run


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
        f"{sentence.location}: has words without tags, which --{flag} needs"
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
    for entity in ner.tags_to_entities(sentence.tags):
      if entity.label not in kinds:
        raise InputError(
          f"{sentence.location}: {entity.label!r} (at"
          f" {sentence.words[entity.start]!r}) is no label of the training"
          f" data, which has {', '.join(sorted(kinds))}"
        )
  was_scheme = ner.find_scheme(
    tag for sentence in sentences for tag in sentence.tags
  )
  mended, num_broken = ner.repair_tags(sentences, was_scheme)
  if num_broken:
    logging.warning(
      "%s: %d tags are not as %s has them, such as an I- that follows on"
      " nothing; taken as the beginning of an entity",
      getattr(settings, flag),
      num_broken,
      was_scheme or "the data",
    )
  if scheme != was_scheme:
    mended, _ = ner.repair_tags(mended, scheme)
  return mended


def find_labels(
  settings: NerSettings, train_set: Sequence[Sentence]
) -> list[str]:
  """The tags to learn or, of a trained model, those that it has learnt.

  Args:
    settings: settings of the command.
    train_set: the training data; empty without --do_train.

  Returns:
    "O" and the others, sorted.

  Raises:
    InputError: the trained model's folder does not say.
  """
  if not train_set:
    return _trained_labels(settings)
  seen = {tag for sentence in train_set for tag in sentence.tags}
  scheme = settings.scheme if settings.scheme != "data" else ""
  scheme = scheme or ner.find_scheme(seen) or "BIO"
  found, _ = ner.repair_tags(train_set, scheme)
  tags = {tag for sentence in found for tag in sentence.tags} - {"O"}
  kinds = {tag[2:] for tag in tags}
  return [
    "O",
    *sorted(
      f"{head}-{kind}" for kind in kinds for head in scheme if head != "O"
    ),
  ]


def _trained_labels(settings: NerSettings) -> list[str]:
  """The tags of the model in --output_dir, or else of --init_checkpoint."""
  checkpoint = finding.find_model(
    resolve.fetch_model(settings.model).init_checkpoint,
    settings.run.output_dir,
    may_be_new=False,
  )
  folder = os.path.dirname(checkpoint)
  known = model_json.load_description(settings.run.output_dir)
  known = known or model_json.load_description(folder)
  if known.get("script") != "run_ner":
    raise InputError(
      f"{folder}: does not say which tags its model has learnt; name the"
      " --output_dir of a run of run_ner.py"
    )
  return known["labels"]


def read_data(
  run: Run, tagged: Sequence[Sentence], labels: Sequence[str]
) -> Data:
  """Reads the sentences of everything that the flags ask for.

  Args:
    run: the run.
    tagged: those to learn from.
    labels: the tags.

  Returns:
    The sentences, all well tagged.

  Raises:
    InputError: a file is missing, or something in it is wrong.
  """
  settings, scheme = run.settings, ner.find_scheme(labels)
  train_set = repair(settings, "train_file", tagged, scheme, labels)
  dev_set, predict_set = [], []
  if run.needs_dev_set:
    ner_scores.import_seqeval()
    dev_set = repair(
      settings,
      "dev_file",
      read_tagged(settings, "dev_file"),
      scheme,
      labels,
    )
  if settings.run.do_predict:
    predict_set = ner.read_sentences(
      settings.predict_file,
      columns(settings)._replace(tag=None),
      text_files.encoding_of(settings.text),
    )
  return Data(train_set, dev_set, predict_set)


def data_files(settings: NerSettings, data: Data) -> list[str]:
  """The files that the data are from."""
  files = settings.train_file, settings.dev_file, settings.predict_file
  return [path for path, used in zip(files, data) if used]
