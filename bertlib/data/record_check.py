"""Finds the record at fault: corrupt, of another kind, or out of range.

Reading records for a model checks nothing but what TensorFlow does, which
costs nothing. When that fails, or a loss is NaN, the files are read once more
here, from the first record to the one at fault.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bertlib.data import tf_records
from bertlib.errors import InputError, printable

# Says which record is at fault, in one line; None where none is.
FindBadRecord = Callable[[], "str | None"]

# TensorFlow's errors of a record. It may quote bytes that are no text.
_FAILURES = (
  tf.errors.InvalidArgumentError,
  tf.errors.DataLossError,
  UnicodeDecodeError,
)

# Records that are parsed together.
_TOGETHER = 1024

_CURE = "Make the file again, with the vocabulary and the lengths of this model"


def find(
  files: Iterable[str], layout: tf_records.Layout, most: int | None = None
) -> str | None:
  """Reads records until one is wrong.

  Args:
    files: TFRecord files.
    layout: of their records. Integers have to be in [0, limit) where a feature
      has a limit, numbers have to be finite.
    most: records that are read of each file, the first ones; None for all.

  Returns:
    A line that names the file and the record, counted from 0; None where
    nothing is wrong.
  """
  specs = {
    name: tf.io.FixedLenFeature(
      feature.shape,
      tf.float32 if feature.is_float else tf.int64,
      feature.default,
    )
    for name, feature in layout.items()
  }
  on_cpu = tf.ConfigProto(device_count={"GPU": 0})
  with tf.Graph().as_default(), tf.Session(config=on_cpu) as session:
    serialized = tf.placeholder(tf.string, [None])
    parsed = tf.io.parse_example(serialized, specs)

    def parse(records):
      return session.run(parsed, {serialized: records})

    for path in dict.fromkeys(files):
      problem = _find_in(path, layout, parse, most)
      if problem:
        return problem
  return None


def _find_in(path, layout, parse, most) -> str | None:
  """The same of one file."""
  records = itertools.islice(tf_records.read_serialized(path), most)
  first = 0
  while together := list(itertools.islice(records, _TOGETHER)):
    whole = [record for record in together if record is not None]
    problem = _problem(path, whole, first, layout, parse)
    if problem:
      return problem
    if len(whole) < len(together):  # the last one of them
      return (
        f"{path}: record {first + len(whole)} (the first is 0) is corrupt. Copy"
        " or make the file again"
      )
    first += len(whole)
  return None


def _problem(
  path: str, records: Sequence[bytes], first: int, layout, parse
) -> str | None:
  """Describes the first bad record; None if there is none."""
  if not records:
    return None
  try:
    values = parse(records)
  except (tf.errors.OpError, UnicodeDecodeError) as error:
    if len(records) > 1:
      middle = len(records) // 2
      return _problem(path, records[:middle], first, layout, parse) or _problem(
        path, records[middle:], first + middle, layout, parse
      )
    reason = printable(str(error).split("\n")[0].split(" (op: ")[0][-200:])
    return (
      f"{path}: record {first} (the first is 0) has not the features of this"
      f" model ({reason}). {_CURE}"
    )
  found = []
  for name, feature in layout.items():
    value = values[name]
    if feature.is_float:
      is_bad, expected = ~np.isfinite(value), "a finite number"
    elif feature.limit is not None:
      is_bad = (value < 0) | (value >= feature.limit)
      expected = f"in the range 0 to {feature.limit - 1}"
    else:
      continue
    places = np.argwhere(is_bad.reshape(len(records), -1))
    if len(places):
      row, column = places[0]
      bad = value.reshape(len(records), -1)[row, column]
      found.append((row, name, bad, expected))
  if not found:
    return None
  row, name, bad, expected = min(found)
  return (
    f"{path}: record {first + row} (the first is 0): {name} has {bad}, which is"
    f" not {expected}. {_CURE}"
  )


@contextlib.contextmanager
def report_bad_record(find_bad_record: FindBadRecord | None) -> Iterator[None]:
  """Has errors of the block name the record at fault, if there is one.

  Args:
    find_bad_record: looks for it, when TensorFlow refuses what it reads; None
      to leave errors as they are.

  Raises:
    InputError: a record is at fault.
  """
  try:
    yield
  except _FAILURES as error:
    found = find_bad_record and find_bad_record()
    if found:
      raise InputError(found) from error
    raise


def raise_if_bad_record(find_bad_record: FindBadRecord | None) -> None:
  """Raises an `InputError` if a record is at fault.

  Args:
    find_bad_record: looks for it; None for nothing to look for.
  """
  found = find_bad_record and find_bad_record()
  if found:
    raise InputError(found)
