"""Inputs of run_ner.py: tagged sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from absl import logging

from bertlib.cli.errors import InputError
from bertlib.data import example_checks, labeled_examples, tables
from bertlib.io import model_files
from bertlib.settings import model_description
from bertlib.tasks.ner import ner, ner_files, ner_report
from bertlib.tasks.ner.ner import Sentence
from bertlib.tasks.ner.record import RECORD
from bertlib.tasks.ner.settings import NerSettings
from bertlib.training import step_plan
from bertlib.training.runs import Run


class Data(NamedTuple):
  """Sentences of the splits that the run uses."""

  train: Sequence[Sentence]
  dev: Sequence[Sentence]
  predict: Sequence[Sentence]

  @property
  def num_sentences(self) -> dict[str, int]:
    """Number of sentences of each split, by its name."""
    return {
      "training sentences": len(self.train),
      "dev sentences": len(self.dev),
    }


def read_sentences(
  settings: NerSettings, flag: str, needs_tags: bool = True
) -> list[Sentence]:
  """Reads the file named by `flag`."""
  return ner_files.read_sentences(
    getattr(settings, flag),
    ner_files.columns_of(settings, needs_tags),
    settings.text.codec,
  )


def read_training_set(settings: NerSettings) -> list[Sentence]:
  """Reads --train_file; no sentences without --do_train."""
  if not settings.flags.do_train:
    return []
  return read_sentences(settings, "train_file")


def normalize_tags(
  settings: NerSettings,
  flag: str,  # names the file of the sentences
  sentences: Sequence[Sentence],
  scheme: str,
  labels: Sequence[str],  # tags of the model
) -> list[Sentence]:
  """Repairs invalid tags, logs their number, and converts to the scheme."""
  kinds = {
    entity.label for label in labels for entity in ner.tags_to_entities([label])
  }
  for sentence in sentences:
    for entity in ner.tags_to_entities(sentence.tags):
      if entity.label not in kinds:
        raise InputError(
          f"{sentence.location}: {entity.label!r} (at"
          f" {sentence.words[entity.start]!r}) is not an entity type of"
          f" the model. Use {', '.join(sorted(kinds))}"
        )
  data_scheme = ner.find_scheme(
    tag for sentence in sentences for tag in sentence.tags
  )
  repaired, num_invalid = ner.repair_tags(sentences, data_scheme)
  is_iob1 = data_scheme == "BIO" and ner.is_iob1(
    sentence.tags for sentence in sentences
  )
  if num_invalid and is_iob1:
    logging.info(
      "%s: tags are in IOB1: B- only separates an entity from one of its type",
      getattr(settings, flag),
    )
  elif num_invalid:
    logging.warning(
      "%s: %d tags are invalid in %s, such as an I- without a B- before it;"
      " each starts an entity",
      getattr(settings, flag),
      num_invalid,
      data_scheme or "the scheme of the data",
    )
  if scheme != data_scheme:
    repaired, _ = ner.repair_tags(repaired, scheme)
  return repaired


def find_labels(
  settings: NerSettings, train_set: Sequence[Sentence]
) -> list[str]:
  """Tags of the training set or else of the trained model, O first."""
  if not train_set:
    return _trained_labels(settings)
  seen = {tag for sentence in train_set for tag in sentence.tags}
  scheme = settings.scheme if settings.scheme != "data" else ""
  scheme = scheme or ner.find_scheme(seen) or "BIO"
  repaired, _ = ner.repair_tags(train_set, scheme)
  tags = {tag for sentence in repaired for tag in sentence.tags} - {"O"}
  if not tags:
    raise InputError(
      f"{settings.train_file}: all tags are O, so that there is no entity to"
      " learn. Give --tag_column, or a file with entities"
    )
  kinds = {tag[2:] for tag in tags}
  _check_types(settings.train_file, sorted(kinds))
  tags = sorted(
    f"{head}-{kind}" for kind in kinds for head in scheme if head != "O"
  )
  return model_description.labels_in_order(settings.model.folder, ["O", *tags])


def _check_types(path: str, types: Sequence[str]) -> None:
  """Refuses types that are tags; warns of those that may be one."""
  for kind in types:
    if kind.startswith("B-") and f"I-{kind[2:]}" in types:
      raise InputError(
        f"{path}: {kind!r} is the type of an entity. Write one entity of type"
        f" {kind[2:]!r} for all of its words"
      )
  tables.warn_of_forms(path, types)


def _trained_labels(settings: NerSettings) -> list[str]:
  """The tags of the model that is read."""
  folder = settings.model.folder
  if not folder:
    raise model_files.untrained(settings.flags.output_dir)
  description = model_description.load(folder, RECORD)
  if description.get("script") != RECORD.script:
    raise InputError(
      f"{folder}: does not list the tags of its model."
      " Give the --output_dir of a run of run_ner.py"
    )
  return description["labels"]


def read_data(run: Run, tagged: Sequence[Sentence]) -> Data:
  """Reads the sentences of the splits that the run uses; makes tags valid.

  Refuses a training set that is too small for one step.
  """
  settings, labels = run.settings, run.task.description["labels"]
  scheme = ner.find_scheme(labels)
  train_set = normalize_tags(settings, "train_file", tagged, scheme, labels)
  dev_set, predict_set = [], []
  if run.flags.evaluates:
    ner_report.import_seqeval()
    tagged = read_sentences(settings, "dev_file")
    dev_set = normalize_tags(settings, "dev_file", tagged, scheme, labels)
  labeled_examples.warn_of_faults(
    _labeled(train_set), {"the dev set": _labeled(dev_set)}
  )
  if run.flags.do_predict:
    predict_set = read_sentences(settings, "predict_file", needs_tags=False)
  # Each sentence makes one window or more.
  num_read = len(train_set) * run.flags.num_train_epochs
  if 0 < num_read < run.flags.train_batch_size:
    num_windows = len(make_windows(run, train_set))
    step_plan.count_steps(run.flags, num_windows, run.task.unit)
  return Data(train_set, dev_set, predict_set)


def make_windows(run: Run, sentences: Sequence[Sentence]) -> list[ner.Window]:
  """Windows of sentences, as the run has them."""
  length = run.settings.model.max_seq_length
  return [*ner.make_windows(sentences, run.tokenizer, length)]


def _labeled(sentences: Sequence[Sentence]) -> list[labeled_examples.Labeled]:
  return [
    labeled_examples.Labeled((s.text,), tuple(s.tags), s.location)
    for s in sentences
  ]


# Of a dry run


def check_tags(labels: Sequence[str], data: Data) -> None:
  """Warns of types of entities that are missing or rare."""
  sets = {"the training set": data.train, "the dev set": data.dev}
  labeled_examples.check_labels(
    sorted({label[2:] or label for label in labels} - {"O"}),
    {
      name: [
        entity.label
        for sentence in sentences
        for entity in ner.tags_to_entities(sentence.tags)
      ]
      for name, sentences in sets.items()
      if sentences
    },
  )


def check_sentences(run: Run, data: Data) -> example_checks.LengthSummary:
  """Makes windows of some of the sentences."""
  sentences = data.train or data.dev or data.predict
  some = example_checks.sample(sentences)
  windows = make_windows(run, some)
  return example_checks.check_encoded(
    [example_checks.Encoded(w.input_ids, len(w.input_ids)) for w in windows],
    run.config.vocab_size,
    len(sentences) * len(windows) // len(some),
    run.tokenizer,
    (word for sentence in some for word in sentence.words),
  )
