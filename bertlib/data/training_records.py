"""Records to train on: shuffled, in buckets of lengths; finds a bad one.

A bad record is corrupt, has other features, or has invalid values.
"""

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
from bertlib.data.input_pipeline import BLOCK_SIZE, Shard


def record_input_fn(
  input_file: str | Sequence[str],
  layout: tf_records.Layout,
  is_training: bool,
  drop_remainder: bool,
  # Not for a TPU, which needs static shapes.
  trim: bool = False,
  seed: int = 0,
  first_step: int = 0,  # completed steps, when training resumes
  # In training, examples of similar length share batches; otherwise the order
  # changes, see `tf_records.restore_input_order`.
  by_length: bool = False,
):
  """Builds the `input_fn` of TFRecord files of a fine-tuning task."""
  paths = [input_file] if isinstance(input_file, str) else input_file

  def input_fn(params):
    # Raises InputError if a file is truncated or empty.
    num_records = sum(map(tf_records.count_records, paths))
    batch_size, shard = input_pipeline.global_batch_size_and_shard(params)
    # Of `hooks.batch_at`, which reads the batch of a failed step again: the one
    # of all processes, with the file and number of each record.
    traced_step = params.get("traced_step")
    if is_training:
      step = first_step if traced_step is None else traced_step
      return shuffled_record_batches(
        paths,
        layout,
        batch_size,
        trim,
        num_records,
        seed,
        first_record=step * batch_size,
        by_length=by_length,
        shard=shard,
        with_source=traced_step is not None,
      )
    return input_pipeline.record_batches(
      paths, layout, batch_size, drop_remainder, trim, by_length, shard
    )

  return input_fn


@tf.autograph.experimental.do_not_convert
def shuffled_record_batches(
  files: str | Sequence[str],
  layout: tf_records.Layout,
  batch_size: int,
  trim: bool,
  num_records: int,  # in all files
  seed: int,
  first_record: int = 0,  # records to skip, over all epochs
  by_length: bool = False,
  shard: Shard | None = None,
  with_source: bool = False,  # see `records_with_source`
):
  """Infinite dataset of fully shuffled batches, see `shuffle_epochs`."""

  def bucket(order, epoch, records):
    serialized = records[-1] if with_source else records
    blocks = tf.data.Dataset.from_tensor_slices(serialized).batch(BLOCK_SIZE)
    lengths = blocks.map(lambda block: input_pipeline.num_tokens(block, layout))
    lengths = lengths.rebatch(num_records).get_single_element()
    return group_by_length(order, lengths, batch_size, seed, epoch)

  records = tf.data.TFRecordDataset(files)
  if with_source:
    names = [files] if isinstance(files, str) else files
    records = tf.data.Dataset.from_tensor_slices(names).flat_map(
      records_with_source
    )
  records = shuffle_epochs(
    records, num_records, seed, first_record, bucket if by_length else None
  )
  return input_pipeline.batches(records, layout, batch_size, True, trim, shard)


def records_with_source(file):
  """Dataset of (file, number from 0, record) of a TFRecord file, string []."""
  records = tf.data.TFRecordDataset(file).enumerate()
  return records.map(lambda number, record: (file, number, record))


def shuffle_epochs(
  dataset, num_elements: int, seed: int, first_element=0, reorder=None
):
  """Repeats a dataset, held in memory and fully shuffled every epoch."""
  # `reorder` maps the shuffled order, int32 [num_elements], the epoch and all
  # elements to another order. `first_element` counts over all epochs.
  first_epoch, done = divmod(first_element, num_elements)

  def shuffle(epoch, elements):
    # A function of seed and epoch, so that resumed training sees the same
    # batches. Every order is equally likely, even of sorted data.
    order = tf.random.experimental.stateless_shuffle(
      tf.range(num_elements), seed=tf.stack([tf.cast(seed, tf.int64), epoch])
    )
    if reorder is not None:
      order = reorder(order, epoch, elements)
    # In parts: all elements in their new order would be a second copy.
    parts = tf.data.Dataset.from_tensor_slices(order).batch(BLOCK_SIZE)
    return parts.map(
      lambda part: tf.nest.map_structure(lambda t: tf.gather(t, part), elements)
    ).unbatch()

  epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
  all_elements = dataset.batch(num_elements).repeat()
  return (
    tf.data.Dataset.zip((epochs, all_elements)).flat_map(shuffle).skip(done)
  )


def group_by_length(
  order, lengths, batch_size: int, seed: int, epoch, num_batches: int = 32
):
  """Reorders shuffled examples, int32 [examples], to bucket lengths."""
  # `lengths` is int32 [examples], by index; `epoch` is int64 [].
  num_examples = tf.size(order)
  num_before = epoch * tf.cast(num_examples, tf.int64)
  # Index of the first example that starts a batch.
  # The first and last batch may be shared with the neighboring epochs: their
  # examples keep their order.
  first = tf.cast(-num_before % batch_size, tf.int32)
  last = first + (num_examples - first) // batch_size * batch_size
  inner = order[first:last]
  group = tf.range(tf.size(inner)) // (num_batches * batch_size)
  longest = tf.reduce_max(lengths)
  # Sorted within groups of `num_batches` batches, which are then shuffled.
  key = group * (longest + 1) + tf.gather(lengths, inner)
  inner = tf.gather(inner, tf.argsort(key, stable=True))
  seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
  batches = tf.random.experimental.stateless_shuffle(
    tf.reshape(inner, [-1, batch_size]), tf.random.fold_in(seeds, 1)
  )
  return tf.concat(
    [order[:first], tf.reshape(batches, [-1]), order[last:]], axis=0
  )


# Bad records

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
