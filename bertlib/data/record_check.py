"""Finds a bad record: corrupt, with other features, or with invalid values."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.cli.errors import InputError, printable
from bertlib.data import input_pipeline, tf_records

# Describes the bad record in one line; None if there is none.
# The input pipeline relies on TensorFlow's own checks, for speed. When reading
# fails, this module reads the files again from the first record until it finds
# the bad one. When the loss is NaN, it checks the batch of that step.
FindBadRecord = Callable[[], "str | None"]

# Errors that a bad record raises; TensorFlow may quote undecodable bytes.
_FAILURES = (
  tf.errors.InvalidArgumentError,
  tf.errors.DataLossError,
  UnicodeDecodeError,
)

# Records parsed at a time.
_BATCH_SIZE = 1024

_FIX = "Make the file again, with the vocabulary and the lengths of this model"


def find(
  files: Iterable[str],
  layout: tf_records.Layout,
  max_records: int | None = None,
) -> str | None:
  """Message on the first bad record of TFRecord files, or None."""
  # Integers must be in [0, limit) if their feature has a limit, floats must be
  # finite. `max_records` is per file.
  paths = list(dict.fromkeys(files))
  if max_records is None:  # minutes or hours, when training has failed
    logging.info("Searching %d files for a bad record", len(paths))
  with finder(layout) as find_in:
    for path in paths:
      problem = find_in(path, max_records)
      if problem:
        return problem
  return None


@contextlib.contextmanager
def finder(
  layout: tf_records.Layout,
) -> Iterator[Callable[[str, int | None], str | None]]:
  """Opens a session; yields a thread-safe `find` of (path, max_records)."""
  # Parsing needs no GPU, whose memory a session would take.
  on_cpu = tf.ConfigProto(device_count={"GPU": 0})
  with tf.Graph().as_default(), tf.Session(config=on_cpu) as session:
    serialized = tf.placeholder(tf.string, [None])
    parsed = input_pipeline.parse_as_stored(serialized, layout)

    def parse(records):
      return session.run(parsed, {serialized: records})

    yield lambda path, max_records: _find_in(path, layout, parse, max_records)


def _find_in(path, layout, parse, max_records) -> str | None:
  """Finds the first bad record of a file."""
  records = itertools.islice(tf_records.read_serialized(path), max_records)
  first = 0
  while batch := list(itertools.islice(records, _BATCH_SIZE)):
    intact = [record for record in batch if record is not None]
    problem = _describe_bad_record(path, intact, first, layout, parse)
    if problem:
      return problem
    if len(intact) < len(batch):  # None, for a corrupt record, is the last
      return (
        f"{path}: record {first + len(intact)} (the first is 0) is corrupt."
        " Copy or make the file again"
      )
    first += len(intact)
  return None


def _describe_bad_record(
  path: str, records: Sequence[bytes], first: int, layout, parse
) -> str | None:
  """Describes the first bad record; None if there is none."""
  if not records:
    return None
  try:
    values = parse(records)
  except (tf.errors.OpError, UnicodeDecodeError) as error:
    if len(records) > 1:
      # One bad record fails the whole batch: find it by halving.
      middle = len(records) // 2
      return _describe_bad_record(
        path, records[:middle], first, layout, parse
      ) or _describe_bad_record(
        path, records[middle:], first + middle, layout, parse
      )
    reason = printable(str(error).split("\n")[0].split(" (op: ")[0][-200:])
    return (
      f"{path}: record {first} (the first is 0) does not have the features of"
      f" this model ({reason}). {_FIX}"
    )
  numbers = range(first, first + len(records))
  return _describe_bad_value([path] * len(records), numbers, values, layout)


def find_in_batch(
  batch: Mapping[str, Any], layout: tf_records.Layout
) -> str | None:
  """Message on the first record of a batch with an invalid value, or None."""
  # Arrays [B, ...]: features, and the `record_file` and `record_number` of each
  # row.
  if not batch:
    return None
  return _describe_bad_value(
    batch["record_file"], batch["record_number"], batch, layout
  )


def _describe_bad_value(files, numbers, values, layout) -> str | None:
  """Describes the first row with an invalid value; None if there is none."""
  found = []
  for name, feature in layout.items():
    rows = values[name].reshape(len(numbers), -1)
    if feature.is_float:
      is_bad, expected = ~np.isfinite(rows), "a finite number"
    elif feature.limit is not None:
      is_bad = (rows < 0) | (rows >= feature.limit)
      expected = f"in the range 0 to {feature.limit - 1}"
    else:
      continue
    indices = np.argwhere(is_bad)
    if len(indices):
      row, column = indices[0]
      found.append((row, name, rows[row, column], expected))
  if not found:
    return None
  row, name, bad, expected = min(found)
  return (
    f"{files[row]}: record {numbers[row]} (the first is 0): {name} has {bad},"
    f" which is not {expected}. {_FIX}"
  )


@contextlib.contextmanager
def report_bad_record(find_bad_record: FindBadRecord | None) -> Iterator[None]:
  """Raises InputError instead of TensorFlow's error at a bad record."""
  try:
    yield
  except _FAILURES as error:
    if find_bad_record:
      # The search may take so long that it does not come to its end.
      logging.error("%s", printable(str(error).split("\n")[0]))
      found = find_bad_record()
      if found:
        raise InputError(found) from error
    raise
