"""Input pipelines of TFRecords: parse, shuffle, bucket, shard, trim padding."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# Datasets with the methods of TensorFlow 1 as well, for session loops.
from tensorflow.compat.v1 import data as tf_data

from bertlib.data import tf_records

# Records whose lengths are computed together: their masks are in memory.
BLOCK_SIZE = 2**13


def parse_records(serialized, layout: tf_records.Layout) -> dict[str, Any]:
  """Parses records, string [B], to int32 or float32 [B, ...] by feature."""
  return narrow_integers(parse_as_stored(serialized, layout))


def parse_as_stored(serialized, layout: tf_records.Layout) -> dict[str, Any]:
  """Parses records, string [B], to int64 or float32 [B, ...] by feature."""
  specs = {
    name: tf.io.FixedLenFeature(
      feature.shape,
      tf.float32 if feature.is_float else tf.int64,
      feature.default,
    )
    for name, feature in layout.items()
  }
  return tf.io.parse_example(serialized, specs)


def narrow_integers(tensors: Mapping[str, Any]) -> dict[str, Any]:
  """Casts int64 tensors to int32, since a TPU does not support int64."""
  return {
    name: tf.cast(tensor, tf.int32) if tensor.dtype == tf.int64 else tensor
    for name, tensor in tensors.items()
  }


# Input pipelines


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
    batch_size, shard = global_batch_size_and_shard(params)
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
    return record_batches(
      paths, layout, batch_size, drop_remainder, trim, by_length, shard
    )

  return input_fn


@tf.autograph.experimental.do_not_convert  # graph code as it is
def record_batches(
  files: str | Sequence[str],
  layout: tf_records.Layout,
  batch_size: int,
  drop_remainder: bool,
  trim: bool,
  by_length: bool = False,
  # Part of each batch to read; all batches must be full then.
  shard: Shard | None = None,
  # Predictions of nearly a block wait in memory until they are in order.
  block_size: int = BLOCK_SIZE,
):
  """Dataset of batches, in file order; by length, in sorted blocks."""
  records = tf_data.TFRecordDataset(files)
  if not by_length:
    return batches(records, layout, batch_size, drop_remainder, trim, shard)

  # Similar lengths share a batch, which leaves little padding.
  def sort(indices, block):
    order = tf.argsort(-_num_tokens(block, layout), stable=True)
    indices = tf.cast(tf.gather(indices, order), tf.int32)
    return indices, tf.gather(block, order)

  indexed = numbered(records).batch(block_size).map(sort).unbatch()
  return batches(indexed, layout, batch_size, drop_remainder, trim, shard)


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
    blocks = tf_data.Dataset.from_tensor_slices(serialized).batch(BLOCK_SIZE)
    lengths = blocks.map(lambda block: _num_tokens(block, layout))
    lengths = lengths.rebatch(num_records).get_single_element()
    return group_by_length(order, lengths, batch_size, seed, epoch)

  records = tf_data.TFRecordDataset(files)
  if with_source:
    names = [files] if isinstance(files, str) else files
    records = tf_data.Dataset.from_tensor_slices(names).flat_map(
      records_with_source
    )
  records = shuffle_epochs(
    records, num_records, seed, first_record, bucket if by_length else None
  )
  return batches(records, layout, batch_size, True, trim, shard)


def records_with_source(file):
  """Dataset of (file, number from 0, record) of a TFRecord file, string []."""
  records = tf_data.TFRecordDataset(file).enumerate()
  return records.map(lambda number, record: (file, number, record))


def numbered(dataset, first: int = 0):
  """`dataset.enumerate(first)`, which lacks the methods of TensorFlow 1."""
  numbers = tf_data.Dataset.range(first, tf.int64.max)
  return tf_data.Dataset.zip((numbers, dataset))


def _num_tokens(serialized, layout: tf_records.Layout):
  """Number of tokens of each record, int32 [records]."""
  mask = {"input_mask": layout["input_mask"]}
  tokens = tf.reduce_sum(parse_records(serialized, mask)["input_mask"], axis=-1)
  if tokens.shape.rank > 1:  # choices, or a group of texts: the longest counts
    tokens = tf.reduce_max(tokens, axis=1)
  return tokens


class Shard(NamedTuple):
  """The part of each batch that a process reads for its replicas."""

  index: int = 0  # of the process, from 0
  count: int = 1  # of processes
  num_replicas: int = 1  # in this process; they split the part equally

  def split(self, records, batch_size: int):
    """Rows of this process in a global batch: [num_replicas, rows, ...]."""
    # `batch_size` is a multiple of the number of all replicas.
    rows = batch_size // self.count
    own = records[self.index * rows :][:rows]
    return tf.reshape(
      own, [self.num_replicas, rows // self.num_replicas, *own.shape[1:]]
    )

  def example_numbers(self, batch_number, batch_size: int):
    """Numbers of a replica batch's examples, over all epochs, int64 [rows]."""
    # `batch_number`, int64 [], counts over the replicas of this process and all
    # steps.
    step = batch_number // self.num_replicas
    replica = batch_number % self.num_replicas
    rows = batch_size // (self.count * self.num_replicas)
    first_replica = self.index * self.num_replicas
    first = step * batch_size + (first_replica + replica) * rows
    return first + tf.range(rows, dtype=tf.int64)


def global_batch_size_and_shard(
  params: Mapping[str, Any],
) -> tuple[int, Shard | None]:
  """Global batch size, and the part to read; None if this process reads all."""
  if "context" not in params:
    return params["batch_size"], params.get("shard")
  # On a TPU `batch_size` is per host.
  _, index, count, _ = params["context"].current_input_fn_deployment()
  shard = Shard(index, count) if count > 1 else None
  return params["batch_size"] * count, shard


@tf.autograph.experimental.do_not_convert
def batches(
  records,  # dataset
  layout: tf_records.Layout,
  batch_size: int,
  drop_remainder: bool,
  trim: bool = False,
  shard: Shard | None = None,
):
  """Batches and parses records, with their `input_index` or source if any."""

  def parse(*batch):
    *source, serialized = batch
    names = (
      ["record_file", "record_number"] if len(source) == 2 else ["input_index"]
    )
    return parse_records(serialized, layout) | dict(zip(names, source))

  batched = records.batch(batch_size, drop_remainder=drop_remainder)
  if shard:

    def split_by_replica(*batch):
      own = tuple(shard.split(tensor, batch_size) for tensor in batch)
      return tf_data.Dataset.from_tensor_slices(own)

    batched = batched.flat_map(split_by_replica)
  batched = batched.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
  if trim:
    per_token = [name for name, feature in layout.items() if feature.per_token]
    batched = batched.map(
      functools.partial(trim_padding, names=per_token),
      num_parallel_calls=tf.data.AUTOTUNE,
    )
  return batched.prefetch(tf.data.AUTOTUNE)


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
    return tf_data.Dataset.from_tensor_slices(
      tf.nest.map_structure(lambda tensor: tf.gather(tensor, order), elements)
    )

  epochs = tf_data.Dataset.range(first_epoch, tf.int64.max)
  all_elements = dataset.batch(num_elements).repeat()
  return (
    tf_data.Dataset.zip((epochs, all_elements)).flat_map(shuffle).skip(done)
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


def trim_padding(
  features: dict[str, Any],
  multiple: int = 8,
  names: Iterable[str] = tf_records.TOKEN_FEATURES,
) -> dict[str, Any]:
  """Removes padding that all rows share: features [..., S] get [..., S']."""
  mask = features["input_mask"]
  # [B, S], or [B, texts, S] with the choices or the group of an example.
  rows = tf.reshape(mask, [-1, tf.shape(mask)[-1]])
  # Positions with a token in any row.
  used = tf.where(tf.reduce_any(rows > 0, axis=0))[:, 0]
  length = tf.reduce_max(tf.concat([used, [0]], axis=0)) + 1
  # Rounded up: each shape may have to be compiled.
  length = (length + multiple - 1) // multiple * multiple
  return features | {name: features[name][..., :length] for name in names}
