"""Pretraining records: counting, checks, layout and sharding by file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError

import modeling
from bertlib.cli.errors import InputError
from bertlib.data import input_pipeline, tf_records
from bertlib.tasks.pretraining import pretraining_instances


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
  vocab: Mapping[str, int] | None = None,
  objective: str = "mlm_nsp",
) -> int:
  """Counts the records of a file, and checks the first one."""
  count = tf_records.count_records(path)
  first = next(read_records(path))
  check_lengths(path, first, max_seq_length, max_predictions_per_seq)
  if objective == "mlm_nsp" and "next_sentence_labels" not in first:
    raise InputError(
      f"{path}: its records have no next_sentence_labels, as text without pairs"
      " has none. Give --objective=mlm"
    )
  if vocab and first["input_ids"].int64_list.value[0] != vocab["[CLS]"]:
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


def check_lengths(
  path: str,
  record: Mapping[str, tf.train.Feature],
  max_seq_length: int,
  max_predictions_per_seq: int,
) -> None:
  """Refuses a record whose S or P is not the expected one."""
  for name, flag, expected in (
    ("input_ids", "max_seq_length", max_seq_length),
    ("masked_lm_ids", "max_predictions_per_seq", max_predictions_per_seq),
  ):
    length = _num_integers(record, name)
    if not length:
      raise InputError(
        f"{path}: its records have no {name}. Name a file that"
        " create_pretraining_data.py wrote"
      )
    if length != expected:
      raise InputError(
        f"{path}: its records were made with --{flag}={length}, not"
        f" {expected}. Give --{flag}={length}"
      )


def shard_files(files: Sequence[str], shard: input_pipeline.Shard) -> list[str]:
  """Selects the files that one of several processes reads."""
  if len(files) < shard.count:
    raise InputError(
      f"--shard_by=file: {len(files)} files cannot be shared by {shard.count}"
      " processes. Make more of them (create_pretraining_data.py"
      " --num_shards), or give --shard_by=record"
    )
  return sorted(files)[shard.index :: shard.count]


def limited_layout(
  config: modeling.BertConfig,
  max_seq_length: int,
  max_predictions_per_seq: int,
  objective: str = "mlm_nsp",
  max_sequences_per_row: int | None = None,  # of packed records
) -> tf_records.Layout:
  """Layout of pretraining records, with the ranges of their values."""
  limits = {
    "input_ids": config.vocab_size,
    "input_mask": 2,
    "segment_ids": config.type_vocab_size,
    "masked_lm_positions": max_seq_length,
    "masked_lm_ids": config.vocab_size,
    "next_sentence_labels": 2,
    "next_sentence_positions": max_seq_length,
    "position_ids": max_seq_length,
    "sequence_ids": max_seq_length + 1,
  }
  return input_pipeline.with_limits(
    pretraining_instances.record_layout(
      max_seq_length,
      max_predictions_per_seq,
      objective == "mlm_nsp",
      max_sequences_per_row,
    ),
    limits,
  )
