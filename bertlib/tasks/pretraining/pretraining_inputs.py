"""Inputs of run_pretraining.py: records, lines to fill, and vocabulary."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging
from google.protobuf.message import DecodeError

import modeling
from bertlib.cli.errors import InputError
from bertlib.data import example_checks, tf_records, training_records
from bertlib.io import files, text_files
from bertlib.io.files import find_files, split_names
from bertlib.io.receipt_file import DEV_DATA, TRAINING_DATA
from bertlib.tasks.pretraining import fill_mask, masking, pretraining_instances
from bertlib.tasks.pretraining.objectives import MLM_NSP, Objective
from bertlib.tasks.pretraining.settings import PretrainingSettings
from bertlib.training.runs import Run

# Records, over all files, that are checked before the run writes anything.
_NUM_CHECKED = 2000


# Records


def sequences_per_row(path: str) -> int | None:
  """Entries per row of a packed file's next sentences; None if not packed."""
  first = next(read_records(path), {})
  if "sequence_ids" not in first:
    return None
  return _num_integers(first, "next_sentence_positions")


def _num_integers(record: Mapping[str, tf.train.Feature], name: str) -> int:
  """Number of integers of a feature; 0 if the record lacks it."""
  return len(record[name].int64_list.value) if name in record else 0


def count_records(
  path: str,
  max_seq_length: int,
  max_predictions_per_seq: int,
  # Each record begins with its [CLS]; None to skip this check.
  cls_id: int | None = None,
  objective: Objective = MLM_NSP,
  may_lack_masks: bool = False,  # as training draws new ones
) -> int:
  """Counts the records of a file, and checks the first one."""
  count = tf_records.count_records(path)
  first = next(read_records(path))
  _check_length(path, first, "input_ids", "max_seq_length", max_seq_length)
  if objective.predicts_tokens and not (
    may_lack_masks and "masked_lm_ids" not in first
  ):
    flag = "max_predictions_per_seq"
    _check_length(path, first, "masked_lm_ids", flag, max_predictions_per_seq)
  if objective.predicts_pairs and "next_sentence_labels" not in first:
    raise InputError(
      f"{path}: its records have no next_sentence_labels, as text without pairs"
      " has none. Give --objective=mlm"
    )
  if cls_id not in (None, first["input_ids"].int64_list.value[0]):
    raise InputError(
      f"{path}: its first record does not begin with [CLS], so it was"
      " made with another vocabulary. Give that one with --vocab_file"
    )
  return count


def read_records(path: str) -> Iterator[Mapping[str, tf.train.Feature]]:
  """Features of each record of a file; InputError if one is corrupt."""
  for number, record in enumerate(tf_records.read_serialized(path)):
    if record is None:
      raise InputError(
        f"{path}: record {number} (the first is 0) is corrupt. Copy or make the"
        " file again"
      )
    try:
      yield tf.train.Example.FromString(record).features.feature
    except DecodeError:
      yield {}


def _check_length(
  path: str,
  record: Mapping[str, tf.train.Feature],
  name: str,
  flag: str,
  expected: int,
) -> None:
  """Refuses a record whose S or P, of a flag, is not the expected one."""
  length = _num_integers(record, name)
  if not length:
    fix = "Name a file that create_pretraining_data.py wrote"
    if name == "masked_lm_ids":
      fix += ", or draw masks in training, by --remask --objective=mlm"
    raise InputError(f"{path}: its records have no {name}. {fix}")
  if length != expected:
    raise InputError(
      f"{path}: its records were made with --{flag}={length}, not"
      f" {expected}. Give --{flag}={length}"
    )


def limited_layout(
  config: modeling.BertConfig, max_seq_length: int, *others: Any, **more: Any
) -> tf_records.Layout:
  """`pretraining_instances.record_layout`, with the ranges of the values."""
  limits = {
    "input_ids": config.vocab_size,
    "input_mask": 2,
    "segment_ids": max(config.type_vocab_size, 2),
    "masked_lm_positions": max_seq_length,
    "masked_lm_ids": config.vocab_size,
    "next_sentence_labels": 2,
    "next_sentence_positions": max_seq_length,
    "position_ids": max_seq_length,
    "sequence_ids": max_seq_length + 1,
  }
  layout = pretraining_instances.record_layout(max_seq_length, *others, **more)
  return {
    name: feature._replace(limit=limits.get(name))
    for name, feature in layout.items()
  }


def record_layout(run: Run, files: Sequence[str]) -> tf_records.Layout:
  """Layout of files of pretraining records, of which the first decides."""
  settings = run.settings
  return limited_layout(
    run.config,
    settings.model.max_seq_length,
    settings.max_predictions_per_seq,
    settings.chosen_objective,
    sequences_per_row(files[0]),
    settings.remask,
  )


# Data of a run


class Data(NamedTuple):
  """Data that the run uses."""

  train_files: Sequence[str]
  eval_files: Sequence[str]
  lines: Sequence[fill_mask.Line]  # with masks to fill
  num_records: Mapping[str, int]  # by file

  def count(self, paths: Sequence[str]) -> int:
    """Number of records in some of the files."""
    return sum(self.num_records[path] for path in paths)


def count(settings: PretrainingSettings, data: Data) -> dict[str, int]:
  """Number of records of the training set and the dev set, by their names."""
  counts = {"training records": data.count(data.train_files)}
  if settings.flags.do_eval:
    counts["dev records"] = data.count(data.eval_files)
  return counts


def bad_record_finder(
  run: Run, files: Sequence[str], max_records: int | None = None
) -> training_records.FindBadRecord:
  """Returns a function that searches files, see `training_records.find`."""
  return functools.partial(
    training_records.find, files, record_layout(run, files), max_records
  )


def data_files(
  settings: PretrainingSettings, data: Data
) -> list[tuple[str, str | None]]:
  """Paths of the files that were read, with their uses."""
  return [
    *((path, TRAINING_DATA) for path in data.train_files),
    *((path, DEV_DATA) for path in data.eval_files),
    *([(settings.predict_file, None)] if data.lines else []),
  ]


def find_data(run: Run) -> Data:
  """Finds the files that the run uses, counts and checks their records."""
  settings = run.settings
  train_files, eval_files, lines = [], [], []
  if run.flags.do_train:
    train_files = find_files(split_names(settings.input_file))
  if run.flags.evaluates:
    eval_files = find_files(
      split_names(settings.eval_input_file or settings.input_file)
    )
    if not settings.eval_input_file:
      logging.warning(
        "Evaluating on --input_file, which is training data: metrics include"
        " memorized text. Name held-out records with --eval_input_file"
      )
  if run.flags.do_predict:
    lines = read_lines(run)
  others = [path for path in eval_files if path not in train_files]
  may_lack_masks = settings.remask and len(others) == len(eval_files)
  num_records = check_files(run, train_files, may_lack_masks)
  num_records |= check_files(run, others)
  if settings.pack and train_files:
    _check_packing(run, train_files[0])
  if settings.remask and train_files:
    _warn_of_cut_masks(settings, train_files[0])
  return Data(train_files, eval_files, lines, num_records)


def _check_packing(run: Run, path: str) -> None:
  """Refuses --pack of packed records, on a TPU, or of too few per row."""
  settings = run.settings
  if run.on_tpu:
    raise InputError(
      "--pack: runs Python in the input pipeline, which a TPU's host does not."
      " Make packed records by create_pretraining_data.py --pack"
    )
  if sequences_per_row(path) is not None:
    raise InputError(
      f"--pack: {path} has packed records. Leave out --pack, or name records of"
      " single sequences"
    )
  sizes = [
    (
      sum(record["input_mask"].int64_list.value),
      int(sum(record["masked_lm_weights"].float_list.value)),
    )
    for record in itertools.islice(read_records(path), _NUM_CHECKED)
  ]

  def pack(most: int) -> list[list[int]]:
    return pretraining_instances.assign_rows(
      *zip(*sizes),
      settings.model.max_seq_length,
      settings.max_predictions_per_seq,
      most,
    )

  most = settings.max_sequences_per_row
  rows, fewest = pack(most), pack(settings.model.max_seq_length)
  if len(rows) > 1.02 * len(fewest):
    by_size = sorted(map(len, rows), reverse=True)
    raise InputError(
      f"--max_sequences_per_row={most}: too small for the data. {len(fewest)}"
      f" rows could hold the first {len(sizes)} records, but"
      f" {sum(by_size[len(fewest) :])} of them fall out. Give"
      f" --max_sequences_per_row={max(map(len, fewest))}"
    )


def _warn_of_cut_masks(settings: PretrainingSettings, path: str) -> None:
  """Warns if the records have no room for the masks of --remask."""
  num_tokens = [length := settings.model.max_seq_length]
  if not settings.pack:
    records = itertools.islice(read_records(path), _NUM_CHECKED)
    num_tokens = [sum(r["input_mask"].int64_list.value) for r in records]
  wanted = [masking.num_masks(n, settings.masked_lm_prob) for n in num_tokens]
  num_cut = sum(max(n - settings.max_predictions_per_seq, 0) for n in wanted)
  masking.warn_of_cut_masks(num_cut, sum(wanted), settings, length)


def check_files(
  run: Run,
  paths: Sequence[str],
  may_lack_masks: bool = False,  # see `count_records`
) -> dict[str, int]:
  """Counts the records of each file, and checks the first ones."""
  if not paths:
    return {}
  settings = run.settings
  num_per_file = -(-_NUM_CHECKED // len(paths))

  def count(path: str) -> int:
    return count_records(
      path,
      settings.model.max_seq_length,
      settings.max_predictions_per_seq,
      run.tokenizer and run.tokenizer.special_ids.cls,
      settings.chosen_objective,
      may_lack_masks,
    )

  def check(path: str) -> None:
    if sequences_per_row(path) != packing:
      raise InputError(
        f"{path}: its records are packed in another way than those of"
        f" {paths[0]}. Read files of one --pack and --max_sequences_per_row"
      )
    problem = find_in(path, num_per_file)
    if problem:
      raise InputError(problem)

  counts = dict(zip(paths, files.map_in_threads(count, paths)))
  packing = sequences_per_row(paths[0])
  with training_records.finder(record_layout(run, paths)) as find_in:
    for _ in files.map_in_threads(check, paths):
      pass
  return counts


def read_lines(run: Run) -> list[fill_mask.Line]:
  """Reads the lines of --predict_file, whose masks are to be filled."""
  settings, config = run.settings, run.config
  if settings.top_k > config.vocab_size:
    raise InputError(
      f"--top_k={settings.top_k}: more than the {config.vocab_size} entries"
      " of the vocabulary. Give fewer"
    )
  path, length = settings.predict_file, settings.model.max_seq_length
  lines = [
    fill_mask.encode_line(pair, run.tokenizer, length)
    for pair in text_files.read_pairs(path, settings.text.codec)
  ]
  if not lines:
    raise InputError(f"{path}: has no lines")
  num_truncated = sum(line.encoded.num_truncated_tokens > 0 for line in lines)
  if num_truncated:
    logging.warning("%d lines truncated to %d tokens", num_truncated, length)
  has_pairs = [line.is_pair for line in lines]
  if not (settings.chosen_objective.predicts_tokens or all(has_pairs)):
    raise InputError(
      f"{path}: has lines of one text, but the model predicts"
      ' next sentences alone. Write " ||| " before the second text of each line'
    )
  return lines


# Of a dry run


def check_records(run: Run, data: Data) -> example_checks.LengthSummary:
  """Checks some of the records; returns their count and mean length."""
  num_per_file = -(-_NUM_CHECKED // max(len(data.num_records), 1))

  def encoded():
    for path in data.num_records:
      records = read_records(path)
      for record in itertools.islice(records, num_per_file):
        yield example_checks.Encoded(
          record["input_ids"].int64_list.value,
          sum(record["input_mask"].int64_list.value),
        )

  lengths = example_checks.check_encoded(
    encoded(),
    run.config.vocab_size,
    sum(data.num_records.values()),
    run.tokenizer,
  )
  return lengths._replace(num_examples=data.count(data.train_files))
