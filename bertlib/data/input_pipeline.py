"""Input pipelines of TFRecords: parse, shuffle, bucket, shard, trim padding."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# Datasets with the methods of TensorFlow 1 as well, for session loops.
from tensorflow.compat.v1 import data as tf_data

from bertlib.data import model_inputs, tf_records

# Records whose lengths are computed together: their masks are in memory.
BLOCK_SIZE = 2**13


def with_limits(
  layout: tf_records.Layout, limits: Mapping[str, int]
) -> tf_records.Layout:
  """Sets the exclusive upper limits of integer features, by name."""
  return {
    name: feature._replace(limit=limits.get(name, feature.limit))
    for name, feature in layout.items()
  }


def nan_if_out_of_range(batch: Mapping[str, Any], layout: tf_records.Layout):
  """Computes a term that is NaN if a batch has values out of range.

  Adding it to the loss makes training fail at an invalid id, for which an
  embedding lookup on a GPU would silently return zeros. It is computed on the
  model's device, so it does not slow down the input pipeline.

  Args:
    batch: int32 tensors by feature name.
    layout: layout of the records, with the limits, see `tf_records.Feature`.

  Returns:
    float32 []: 0, or NaN if a value is out of range.
  """
  is_bad = [
    tf.reduce_any((batch[name] < 0) | (batch[name] >= feature.limit))
    for name, feature in layout.items()
    if feature.limit is not None and name in batch
  ]
  return tf.where(tf.reduce_any(tf.stack(is_bad)), float("nan"), 0.0)


def parse_records(serialized, layout: tf_records.Layout) -> dict[str, Any]:
  """Parses a batch of serialized records.

  Args:
    serialized: string [B].
    layout: layout of the records.

  Returns:
    int32 or float32 tensors [B, ...] by feature name.
  """

  def fixed_length(feature):
    return tf.io.FixedLenFeature(
      feature.shape,
      tf.float32 if feature.is_float else tf.int64,
      feature.default,
    )

  parsed = tf.io.parse_example(
    serialized, {name: fixed_length(f) for name, f in layout.items()}
  )
  return narrow_integers(parsed)


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
  trim: bool = False,
  seed: int = 0,
  first_step: int = 0,
  by_length: bool = False,
):
  """Builds the `input_fn` of a fine-tuning task's TFRecord file.

  Args:
    input_file: path of the file, or of several; read when the `input_fn` is
      called.
    layout: layout of its records.
    is_training: whether to shuffle, and to repeat indefinitely.
    drop_remainder: whether to drop the last batch if it is smaller.
    trim: whether to remove common padding, see `trim_padding`; not for a TPU,
      which needs static shapes.
    seed: shuffling seed.
    first_step: number of completed steps when training resumes.
    by_length: whether to bucket examples by length. In training this changes
      which examples share a batch; in evaluation and prediction it changes
      their order, see `tf_records.restore_input_order`.

  Returns:
    A function of `params`, a mapping with `batch_size`. If the mapping also has
    `traced_step`, training batches start at that step, are not sharded, and
    contain the `record_file` and `record_number` of each example. It raises an
    InputError if a file is truncated or empty.
  """
  paths = [input_file] if isinstance(input_file, str) else input_file

  def input_fn(params):
    num_records = sum(map(tf_records.count_records, paths))
    batch_size, shard = global_batch_size_and_shard(params)
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
        shard=shard if traced_step is None else None,
        with_source=traced_step is not None,
      )
    return record_batches(
      paths, layout, batch_size, drop_remainder, trim, by_length, shard
    )

  return input_fn


def record_batches(
  files: str | Sequence[str],
  layout: tf_records.Layout,
  batch_size: int,
  drop_remainder: bool,
  trim: bool,
  by_length: bool = False,
  shard: Shard | None = None,
  block_size: int = BLOCK_SIZE,
):
  """Reads batches in the order of the files.

  Args:
    files: TFRecord files.
    layout: layout of their records.
    batch_size: B, examples per batch.
    drop_remainder: whether to drop the last batch if it is smaller.
    trim: whether to remove common padding, see `trim_padding`.
    by_length: whether to sort each block of records by length, longest first,
      which leaves little padding. Adds the feature `input_index`, see
      `tf_records.restore_input_order`.
    shard: part of each batch to read; None for all. Requires that all batches
      are full.
    block_size: records per sorted block. Predictions for nearly all of them
      wait in memory until they are in order again.

  Returns:
    A `tf.data.Dataset` of feature dictionaries.
  """
  records = tf_data.TFRecordDataset(files)
  if not by_length:
    return _batches(records, layout, batch_size, drop_remainder, trim, shard)

  def sort(indices, block):
    order = tf.argsort(-_num_tokens(block, layout), stable=True)
    indices = tf.cast(tf.gather(indices, order), tf.int32)
    return indices, tf.gather(block, order)

  indexed = numbered(records).batch(block_size).map(sort).unbatch()
  return _batches(indexed, layout, batch_size, drop_remainder, trim, shard)


def shuffled_record_batches(
  files: str | Sequence[str],
  layout: tf_records.Layout,
  batch_size: int,
  trim: bool,
  num_records: int,
  seed: int,
  first_record: int = 0,
  by_length: bool = False,
  shard: Shard | None = None,
  with_source: bool = False,
):
  """Reads fully shuffled batches indefinitely, see `shuffle_epochs`.

  Args:
    files: TFRecord files.
    layout: layout of their records.
    batch_size: B, examples per batch.
    trim: whether to remove common padding, see `trim_padding`.
    num_records: number of records in all files.
    seed: shuffling seed.
    first_record: number of records, over all epochs, that were already read
      when training resumes.
    by_length: whether to bucket by length, see `group_by_length`.
    shard: part of each batch to read; None for all.
    with_source: whether to add the features `record_file` and `record_number`,
      see `records_with_source`.

  Returns:
    A `tf.data.Dataset` of feature dictionaries.
  """

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
  return _batches(records, layout, batch_size, True, trim, shard)


def streamed_record_batches(
  files: Sequence[str],
  layout: tf_records.Layout,
  batch_size: int,
  trim: bool,
  num_records: int,
  seed: int,
  first_record: int = 0,
  shard: Shard | None = None,
  with_source: bool = False,
):
  """Streams shuffled batches indefinitely, see `stream_epochs`.

  Args:
    files: TFRecord files.
    layout: layout of their records.
    batch_size: B, examples per batch.
    trim: whether to remove common padding, see `trim_padding`.
    num_records: number of records in all files.
    seed: shuffling seed.
    first_record: number of records, over all epochs, that were already read
      when training resumes.
    shard: part of each batch to read; None for all.
    with_source: whether to add the features `record_file` and `record_number`,
      see `records_with_source`.

  Returns:
    A `tf.data.Dataset` of feature dictionaries.
  """
  records = stream_epochs(
    files, num_records, seed, first_record, with_source=with_source
  )
  return _batches(records, layout, batch_size, True, trim, shard)


def records_with_source(file):
  """Reads the records of a file together with the file and record number.

  Args:
    file: string [], path of a TFRecord file.

  Returns:
    A `tf.data.Dataset` of (file, number, record): string [], int64 [] from 0,
    and string [].
  """
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
  """The part of each batch that a process reads for its replicas.

  Attributes:
    index: index of the process, from 0.
    count: number of processes.
    num_replicas: number of replicas in the process, which split the part
      equally.
  """

  index: int = 0
  count: int = 1
  num_replicas: int = 1

  def split(self, records, batch_size: int):
    """Selects this process's rows: [num_replicas, rows per replica, ...].

    Args:
      records: [batch_size, ...], a global batch.
      batch_size: a multiple of the number of all replicas.
    """
    rows = batch_size // self.count
    own = records[self.index * rows :][:rows]
    return tf.reshape(
      own, [self.num_replicas, rows // self.num_replicas, *own.shape[1:]]
    )

  def example_numbers(self, batch_number, batch_size: int):
    """Numbers of the examples in a replica's batch, counted over all epochs.

    Args:
      batch_number: int64 [], number of the replica's batch, counted over the
        replicas of this process and all steps.
      batch_size: examples per global batch.

    Returns:
      int64 [rows per replica].
    """
    step = batch_number // self.num_replicas
    replica = batch_number % self.num_replicas
    rows = batch_size // (self.count * self.num_replicas)
    first_replica = self.index * self.num_replicas
    first = step * batch_size + (first_replica + replica) * rows
    return first + tf.range(rows, dtype=tf.int64)


def split_batches(batches, num_replicas: int):
  """Splits global batches into equal batches, one per replica.

  Args:
    batches: a `tf.data.Dataset` of feature dictionaries.
    num_replicas: number of replicas.

  Returns:
    A dataset of (replica batch, int32 [] number of examples in the global
    batch). The last example is repeated if the batch does not divide evenly.
  """

  def split_batch(batch):
    size = tf.shape(next(iter(batch.values())))[0]
    rows = -(-size // num_replicas)
    index = tf.minimum(tf.range(rows * num_replicas), size - 1)
    index = tf.reshape(index, [num_replicas, rows])
    split = {name: tf.gather(tensor, index) for name, tensor in batch.items()}
    return tf_data.Dataset.from_tensor_slices(
      (split, tf.fill([num_replicas], size))
    )

  return batches.flat_map(split_batch).prefetch(tf.data.AUTOTUNE)


def global_batch_size_and_shard(
  params: Mapping[str, Any],
) -> tuple[int, Shard | None]:
  """Global batch size, and the part of a batch that this process reads.

  Args:
    params: parameters of an `input_fn`. `batch_size` is global, except on a
      TPU, where it is per host.

  Returns:
    The size, and the shard; None if this process reads all of each batch.
  """
  if "context" not in params:
    return params["batch_size"], params.get("shard")
  _, index, count, _ = params["context"].current_input_fn_deployment()
  shard = Shard(index, count) if count > 1 else None
  return params["batch_size"] * count, shard


def _batches(
  records, layout, batch_size, drop_remainder, trim, shard: Shard | None = None
):
  """Batches and parses records, with their `input_index` or source if any."""

  def parse(*batch):
    *source, serialized = batch
    names = (
      ["record_file", "record_number"] if len(source) == 2 else ["input_index"]
    )
    return parse_records(serialized, layout) | dict(zip(names, source))

  batches = records.batch(batch_size, drop_remainder=drop_remainder)
  if shard:

    def split_by_replica(*batch):
      own = tuple(shard.split(tensor, batch_size) for tensor in batch)
      return tf_data.Dataset.from_tensor_slices(own)

    batches = batches.flat_map(split_by_replica)
  batches = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
  if trim:
    per_token = [name for name, feature in layout.items() if feature.per_token]
    batches = batches.map(
      functools.partial(trim_padding, names=per_token),
      num_parallel_calls=tf.data.AUTOTUNE,
    )
  return batches.prefetch(tf.data.AUTOTUNE)


def shuffle_epochs(
  dataset, num_elements: int, seed: int, first_element=0, reorder=None
):
  """Repeats a dataset indefinitely, reshuffled every epoch.

  A full shuffle: every order is equally likely, even if the data are sorted.
  The order of an epoch is a function of the seed and the epoch number, so that
  resumed training sees the same batches. All elements are held in memory.

  Args:
    dataset: a `tf.data.Dataset`.
    num_elements: number of its elements.
    seed: shuffling seed.
    first_element: number of elements to skip, counted over all epochs.
    reorder: None, or a function of (shuffled order int32 [num_elements], epoch
      number, all elements) that returns another order.

  Returns:
    An infinite `tf.data.Dataset`.
  """
  first_epoch, done = divmod(first_element, num_elements)

  def shuffle(epoch, elements):
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
  """Reorders shuffled examples so that those of a batch have similar lengths.

  Sorts by length within groups of `num_batches` batches, then shuffles the
  batches. The first and last batch of an epoch may be shared with the
  neighboring epochs; their examples keep their order.

  Args:
    order: int32 [examples], indices of the examples in random order.
    lengths: int32 [examples], tokens of each example, by index.
    batch_size: B, examples per batch.
    seed: seed for shuffling the batches.
    epoch: int64 [], number of the epoch.
    num_batches: batches per group.

  Returns:
    int32 [examples], the same indices in the new order.
  """
  num_examples = tf.size(order)
  num_before = epoch * tf.cast(num_examples, tf.int64)
  # Index of the first example that starts a batch.
  first = tf.cast(-num_before % batch_size, tf.int32)
  last = first + (num_examples - first) // batch_size * batch_size
  inner = order[first:last]
  group = tf.range(tf.size(inner)) // (num_batches * batch_size)
  longest = tf.reduce_max(lengths)
  key = group * (longest + 1) + tf.gather(lengths, inner)
  inner = tf.gather(inner, tf.argsort(key, stable=True))
  seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
  batches = tf.random.experimental.stateless_shuffle(
    tf.reshape(inner, [-1, batch_size]), tf.random.fold_in(seeds, 1)
  )
  return tf.concat(
    [order[:first], tf.reshape(batches, [-1]), order[last:]], axis=0
  )


def stream_epochs(
  files: Sequence[str],
  num_records: int,
  seed: int,
  first_record: int = 0,
  num_open: int = 16,
  block_size: int = 2**15,
  with_source: bool = False,
):
  """Streams the records of files indefinitely, reshuffled every epoch.

  For more records than fit in memory. Each epoch reads the files in random
  order, interleaves `num_open` of them at a time, and shuffles within blocks of
  records. Only a few blocks are in memory. As in `shuffle_epochs`, the order is
  a function of the seed and the epoch number.

  Args:
    files: TFRecord files.
    num_records: number of records in all files.
    seed: shuffling seed.
    first_record: number of records to skip, counted over all epochs.
    num_open: number of files read at the same time.
    block_size: number of records shuffled together.
    with_source: whether to add file and number, see `records_with_source`.

  Returns:
    An infinite `tf.data.Dataset` of serialized records.
  """
  first_epoch, done = divmod(first_record, num_records)
  blocks_done, done_in_block = divmod(done, block_size)

  def read_epoch(epoch):
    seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
    records = tf_data.Dataset.from_tensor_slices(
      tf.random.experimental.stateless_shuffle(tf.constant(files), seeds)
    ).interleave(
      records_with_source if with_source else tf_data.TFRecordDataset,
      cycle_length=num_open,
    )
    first_block = tf.where(epoch == first_epoch, blocks_done, 0)
    first_block = tf.cast(first_block, tf.int64)
    blocks = records.skip(first_block * block_size).batch(block_size)

    def shuffle(number, block):
      shuffled = functools.partial(
        tf.random.experimental.stateless_shuffle,
        seed=tf.random.fold_in(seeds, number),
      )
      return tf_data.Dataset.from_tensor_slices(
        tf.nest.map_structure(shuffled, block)
      )

    return blocks.prefetch(1).enumerate(first_block).flat_map(shuffle)

  epochs = tf_data.Dataset.range(first_epoch, tf.int64.max)
  return epochs.flat_map(read_epoch).skip(done_in_block)


def trim_padding(
  features: dict[str, Any],
  multiple: int = 8,
  names: Iterable[str] = model_inputs.TOKEN_FEATURES,
) -> dict[str, Any]:
  """Removes the padding that all rows of a batch have in common.

  This does not change the outputs at tokens. Lengths are rounded up to limit
  the number of different shapes, since each one may have to be compiled.

  Args:
    features: with `input_mask` int32 [B, S], or [B, texts, S] with the choices
      or the group of texts of each example.
    multiple: the new length S' is a multiple of this number, but at most S.
    names: features with a value per token, all [..., S].

  Returns:
    The features, with those of `names` as [..., S'].
  """
  mask = features["input_mask"]
  rows = tf.reshape(mask, [-1, tf.shape(mask)[-1]])
  # Positions with a token in any row.
  used = tf.where(tf.reduce_any(rows > 0, axis=0))[:, 0]
  length = tf.reduce_max(tf.concat([used, [0]], axis=0)) + 1
  length = (length + multiple - 1) // multiple * multiple
  return features | {name: features[name][..., :length] for name in names}
