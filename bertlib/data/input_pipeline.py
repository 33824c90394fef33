"""Input pipelines of TFRecords: parse, sort, batch, shard, trim padding."""

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


def parse_records(
  serialized, layout: tf_records.Layout, is_static: bool = False
) -> dict[str, Any]:
  """Parses records, string [B], to int32 or float32 [B, ...] by feature."""
  return narrow_integers(parse_as_stored(serialized, layout, is_static))


def parse_as_stored(
  serialized,
  layout: tf_records.Layout,
  # Features that vary have all rows of their layout, not those of the batch.
  is_static: bool = False,
) -> dict[str, Any]:
  """Parses records, string [B], to int64 or float32 [B, ...] by feature."""
  parsed = _parse(serialized, layout)
  for name, feature in layout.items():
    if feature.varies:
      num_rows = feature.shape[0] if is_static else None
      shape = [None, num_rows, *feature.shape[1:]]
      parsed[name] = parsed[name].to_tensor(shape=shape)
  return parsed


def _parse(serialized, layout: tf_records.Layout) -> dict[str, Any]:
  """Parses records; features that vary are ragged tensors."""

  def spec(feature):
    dtype = tf.float32 if feature.is_float else tf.int64
    if not feature.varies:
      return tf.io.FixedLenFeature(feature.shape, dtype, feature.default)
    lengths = tf.io.RaggedFeature.RowLengths(tf_records.NUM_TOKENS)
    partitions = [lengths] if feature.per_token else []
    return tf.io.RaggedFeature(dtype, partitions=partitions)

  specs = {name: spec(feature) for name, feature in layout.items()}
  return tf.io.parse_example(serialized, specs)


def narrow_integers(tensors: Mapping[str, Any]) -> dict[str, Any]:
  """Casts int64 tensors to int32, since a TPU does not support int64."""
  return {
    name: tf.cast(tensor, tf.int32) if tensor.dtype == tf.int64 else tensor
    for name, tensor in tensors.items()
  }


# Input pipelines


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
    order = tf.argsort(-num_tokens(block, layout), stable=True)
    indices = tf.cast(tf.gather(indices, order), tf.int32)
    return indices, tf.gather(block, order)

  indexed = numbered(records).batch(block_size).map(sort).unbatch()
  return batches(indexed, layout, batch_size, drop_remainder, trim, shard)


def numbered(dataset, first: int = 0):
  """`dataset.enumerate(first)`, which lacks the methods of TensorFlow 1."""
  numbers = tf_data.Dataset.range(first, tf.int64.max)
  return tf_data.Dataset.zip((numbers, dataset))


def num_tokens(serialized, layout: tf_records.Layout):
  """Number of tokens of each record, int32 [records]."""
  mask = {"input_mask": layout["input_mask"]}
  # Ragged where it varies: one large record must not widen all others.
  tokens = tf.reduce_sum(_parse(serialized, mask)["input_mask"], axis=-1)
  if tokens.shape.rank > 1:  # choices, or a group of texts: the longest counts
    tokens = tf.reduce_max(tokens, axis=1)
  return tf.cast(tokens, tf.int32)


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
    # Without trimming, shapes are static, as a TPU needs.
    parsed = parse_records(serialized, layout, is_static=not trim)
    return parsed | dict(zip(names, source))

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
