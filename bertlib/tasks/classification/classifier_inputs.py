"""Inputs of run_classifier.py: processor, examples and records."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.cli.errors import InputError, some_of
from bertlib.data import example_checks, labeled_examples, tables
from bertlib.io import result_files
from bertlib.io.receipt_file import DEV_DATA, TRAINING_DATA
from bertlib.settings import model_description
from bertlib.tasks.classification import classification, classification_records
from bertlib.tasks.classification.classification import (
  DataProcessor,
  Example,
  Problem,
)
from bertlib.tasks.classification.classification_decoding import own_tables
from bertlib.tasks.classification.record import RECORD
from bertlib.tasks.classification.settings import (
  ClassifierSettings,
  unknown_task,
)
from bertlib.training import runs, step_plan
from bertlib.training.runs import Run, TextSet


def make_processor(settings: ClassifierSettings) -> DataProcessor:
  """Makes the processor of --task_name; reads its labels if a file has them."""
  if settings.data_dir and not tf.gfile.IsDirectory(settings.data_dir):
    raise InputError(
      f"--data_dir={settings.data_dir}: no such folder. Give the folder of the"
      " data"
    )
  task = settings.task
  if task == "tsv":
    processor = own_tables.of_flags(
      settings,
      settings.label_column,
      train=settings.train_file,
      dev=settings.dev_file,
      test=settings.test_file,
    )
  elif task not in classification.PROCESSORS:
    raise unknown_task(settings.task_name)
  elif task == "xnli":
    processor = classification.XnliProcessor(settings.language)
  else:
    processor = classification.PROCESSORS[task]()
  processor.skip_bad_rows = settings.text.bad_rows == "skip"
  processor.encoding = settings.text.codec
  if task == "tsv" and not processor.labels and processor.kind != "regression":
    processor.read_labels(settings.data_dir)
  if processor.kind == "multiple_choice" and settings.cutting.has_windows:
    raise InputError(
      "--long_texts=windows: not for multiple choice, whose choices are"
      " compared on the same text. Give truncate or head_tail"
    )
  if isinstance(processor.labels, Sequence):
    processor.labels = model_description.labels_in_order(
      settings.model.folder, processor.get_labels()
    )
  return processor


class Examples(NamedTuple):
  """Examples of the splits that the run uses."""

  train: Sequence[Example]
  # By the suffix of their results files.
  eval_sets: Mapping[str, Sequence[Example]]
  predict_sets: Mapping[str, Sequence[Example]]
  # Paths of the files that were read, with their uses.
  data_files: Sequence[tuple[str, str | None]] = ()

  @property
  def num_examples(self) -> dict[str, int]:
    """Number of examples of the training set and each dev set, by its name."""
    return {"training examples": len(self.train)} | {
      f"dev examples{suffix}": len(dev_set)
      for suffix, dev_set in self.eval_sets.items()
    }

  @property
  def dev_sets(self) -> dict[str, Sequence[Example]]:
    """The dev sets by their names in messages."""
    return {
      f"the dev set{s}": examples for s, examples in self.eval_sets.items()
    }


def has_pairs(examples: Iterable[Example]) -> bool:
  """True if any example is a pair of texts."""
  return any(getattr(example, "text_b", None) for example in examples)


def with_pairs(run: Run, examples: Examples) -> Run:
  """Adds to the model's description whether it is trained on pairs.

  Refuses pairs for a model of single texts, and vice versa.
  """
  trained_on_pairs = None  # choices are neither
  if run.task.description["kind"] != "multiple_choice":
    description = model_description.load(run.model_folder, RECORD)
    trained_on_pairs = description.get("has_pairs")
  kinds = {True: "pairs of texts", False: "single texts"}
  for split, sets in (
    ("training", [examples.train]),
    ("dev", examples.eval_sets.values()),
    ("test", examples.predict_sets.values()),
  ):
    for is_pairs in map(has_pairs, filter(None, sets)):
      if trained_on_pairs not in (None, is_pairs):
        raise InputError(
          f"{run.model_folder}: was trained on {kinds[trained_on_pairs]}, but"
          f" the {split} set has {kinds[is_pairs]}. Give texts of that kind, or"
          " another --output_dir"
        )
  if not run.flags.do_train:
    return run
  return run.with_description(has_pairs=has_pairs(examples.train))


def write_dev_sets(
  run: Run, processor: DataProcessor, examples: Examples
) -> dict[str, TextSet]:
  """Writes records of the dev sets, by suffix, and lists of skipped rows."""
  if run.is_chief:
    result_files.write_bad_rows(run.output_dir, processor.bad_rows)
  batch_size = run.flags.eval_batch_size
  return {
    suffix: write_records(run, processor, f"eval{suffix}", dev_set, batch_size)
    for suffix, dev_set in examples.eval_sets.items()
  }


def write_records(
  run: Run,
  processor: DataProcessor,
  name: str,
  examples: Sequence[Example],
  # On a TPU, padding examples fill the last batch of this size.
  batch_size: int = 1,
) -> TextSet:
  """Writes the records of examples."""
  path = runs.records_path(run, name)
  num_rows = classification_records.file_based_convert_examples_to_features(
    runs.fill_last_batch(
      run, examples, batch_size, classification.PaddingInputExample()
    ),
    processor.problem.labels,
    run.settings.model.max_seq_length,
    run.tokenizer,
    path,
    processor.problem,
    run.settings.cutting,
  )
  num_rows = num_rows[: len(examples)]
  return TextSet(path, num_rows, batch_size, examples=examples)


def read_examples(
  settings: ClassifierSettings, processor: DataProcessor
) -> Examples:
  """Reads the examples of the splits that the run uses."""
  train_examples, eval_sets, predict_sets = [], {}, {}
  data_files: list[tuple[str, str | None]] = []

  def note_files(use):
    new = processor.files_read[len(data_files) :]
    data_files.extend((path, use) for path in new)

  if settings.flags.do_train:
    train_examples = processor.get_train_examples(settings.data_dir)
    _check_labeled(train_examples, "Training")
    has_choices = processor.kind == "multiple_choice"
    labels = [example.label for example in train_examples]
    if not has_choices and labels.count(labels[0]) == len(labels):
      path = [settings.data_dir, *processor.files_read][-1]
      raise InputError(
        f"{path}: all {len(labels)} examples have the label {labels[0]!r};"
        " training needs two labels or more. Give the whole training set, or"
        " another --label_column"
      )
    if not settings.cutting.has_windows:  # whose number is not known yet
      step_plan.count_steps(settings.flags, len(train_examples), "examples")
  # Without --do_train, they may have been read for their labels.
  note_files(TRAINING_DATA)
  if settings.flags.evaluates:
    eval_sets = processor.read_sets(settings.data_dir, "dev")
    for dev_set in eval_sets.values():
      _check_labeled(dev_set, "Evaluation")
    note_files(DEV_DATA)
  if settings.flags.do_predict and settings.predict_file:
    if processor.kind == "multiple_choice":
      raise InputError(
        "--predict_file: this task needs choices, which the file cannot hold."
        " Give the test set in --data_dir"
      )
    predict_sets = {"": own_tables.read_predict_file(settings, processor)}
    data_files.append((settings.predict_file, None))
  elif settings.flags.do_predict:
    predict_sets = processor.read_sets(settings.data_dir, "test")
    note_files(None)
  examples = Examples(train_examples, eval_sets, predict_sets, data_files)
  labeled_examples.warn_of_faults(
    [classification.labeled(e, processor.kind) for e in train_examples],
    {
      name: [classification.labeled(e, processor.kind) for e in dev_set]
      for name, dev_set in examples.dev_sets.items()
    },
  )
  return examples


def _check_labeled(examples: Iterable[Example], action: str) -> None:
  for example in examples:
    if example.label is None:
      raise InputError(
        f"{example.guid}: has no label. {action} needs one per example"
      )


def dev_path(settings: ClassifierSettings) -> str:
  """Path of the table with the dev set of --task_name=tsv."""
  file = settings.train_file if settings.dev_fraction else settings.dev_file
  return os.path.join(settings.data_dir or "", file)


# The loss


def class_weights(
  given: Sequence[str] | None,  # ["balanced"] or "LABEL:WEIGHT" strings
  problem: Problem,
  examples: Sequence[Example],
) -> list[float] | None:
  """The weight of each label in the loss (--class_weights), which it logs.

  In the order of the labels; None to weight all equally.
  """
  if not given or not examples:
    return None
  if problem.kind not in ("classification", "multi_label"):
    raise InputError(f"--class_weights: a {problem.kind} has no classes")
  if given == ["balanced"]:
    # All labels contribute equally. With several labels per text, the weight of
    # a label is the ratio of examples without it to examples with it.
    has_several = problem.kind == "multi_label"
    counts = collections.Counter(labels_of(examples))
    weights = [
      (len(examples) - counts[label]) / max(counts[label], 1)
      if has_several
      else len(examples) / len(problem.labels) / max(counts[label], 1)
      for label in problem.labels
    ]
  else:
    by_label = dict.fromkeys(problem.labels, 1.0)
    for pair in given:
      label, _, text = pair.rpartition(":")
      weight = tables.parse_number(text)
      if label not in by_label or weight is None or weight < 0:
        raise InputError(
          f"--class_weights={pair}: give LABEL:WEIGHT, where LABEL is one"
          f" of {some_of(problem.labels)} and WEIGHT at least 0; or balanced"
        )
      by_label[label] = weight
    weights = list(by_label.values())
  shown = [f"{label} x{w:.4g}" for label, w in zip(problem.labels, weights)]
  logging.info("Weight of each label in the loss: %s", some_of(shown))
  return weights


# Of a dry run


def check_labels(processor: DataProcessor, examples: Examples) -> None:
  """Warns of labels that are missing or rare."""
  labels = processor.problem.labels
  sets = {"the training set": examples.train, **examples.dev_sets}
  if labels:
    labeled_examples.check_labels(
      labels,
      {name: labels_of(split) for name, split in sets.items() if split},
    )


def labels_of(examples: Iterable[Example]) -> Iterator[str | None]:
  """Yields the label of each example, or its labels."""
  for example in examples:
    is_list = isinstance(example.label, (list, tuple))
    yield from example.label if is_list else [example.label]


def check_texts(
  run: Run, processor: DataProcessor, examples: Examples
) -> example_checks.LengthSummary:
  """Encodes a sample of the examples; warns if many are truncated."""
  others = [*examples.eval_sets.values(), *examples.predict_sets.values()]
  found = examples.train or list(itertools.chain.from_iterable(others))
  sample = example_checks.sample(found)
  has_choices = processor.kind == "multiple_choice"
  max_seq_length = run.settings.model.max_seq_length
  encoded: list[Any] = []
  for (features, *_), rows in classification_records.encode_examples(
    sample,
    processor.problem,
    max_seq_length,
    run.tokenizer,
    first_index=1,  # the tokens of example 0 would be logged
    cutting=run.settings.cutting,
  ):
    if has_choices:
      longest = max(row.num_tokens for row in rows)
      num_lost = sum(row.num_truncated_tokens for row in rows)
      rows = [example_checks.Encoded(features.input_ids, longest, num_lost)]
    encoded += rows
  return example_checks.check_encoded(
    encoded,
    run.config.vocab_size,
    len(found) * len(encoded) // len(sample),
    run.tokenizer,
    (
      t for e in sample for t in classification.labeled(e, processor.kind).texts
    ),
    None if has_choices else max_seq_length,
  )
