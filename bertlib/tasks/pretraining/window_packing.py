"""Packing while training: windows of shuffled records become packed rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bertlib.cli.errors import InputError
from bertlib.data import input_pipeline, tf_records
from bertlib.tasks.pretraining import pretraining_instances
from bertlib.tasks.pretraining.pretraining_instances import TrainingInstance

# Records that are packed together: enough to fill their rows, and packed in a
# fraction of a second.
WINDOW_SIZE = 2**12

# Feature of a batch of packed rows, and variable of their training: the window
# and the number of its rows that have been read after this batch, int32 [2].
_POSITION, _VARIABLE = "input_position", "packing/position"


class Packing(NamedTuple):
  """Settings of packing, and where the input begins."""

  max_sequences_per_row: int
  window: int = 0
  row: int = 0  # of this window


def check(pack: bool, checkpoint: str | None) -> None:
  """Refuses to resume with another way of packing."""
  if not checkpoint:
    return
  reader = tf.train.load_checkpoint(checkpoint)
  if reader.has_tensor(_VARIABLE) != pack:
    raise InputError(
      f"--pack={str(pack).lower()}: {checkpoint} was trained with"
      f" --pack={str(not pack).lower()}, which decides what a step reads. Give"
      " that to resume, or another --output_dir"
    )


def resume(max_sequences_per_row: int, checkpoint: str | None) -> Packing:
  """The packing that begins after the last step of a checkpoint."""
  position = tf.train.load_variable(checkpoint, _VARIABLE) if checkpoint else ()
  return Packing(max_sequences_per_row, *map(int, position))


def packed_batches(
  windows,  # dataset of batches of `WINDOW_SIZE` records, from the first on
  start: Packing,
  layout: tf_records.Layout,  # of packed rows
  batch_size: int,
  shard: input_pipeline.Shard,
):
  """Dataset of batches of packed rows, each with its position."""
  dtypes = [tf.float32 if f.is_float else tf.int32 for f in layout.values()]

  def pack_window(number, window):
    names = list(window)

    def pack(*arrays):
      records = dict(zip(names, arrays))
      return _pack(records, layout, start.max_sequences_per_row)

    columns = tf.numpy_function(pack, list(window.values()), dtypes)
    for column, feature in zip(columns, layout.values()):
      column.set_shape([None, *feature.shape])
    num_read = tf.range(tf.shape(columns[0])[0]) + 1
    position = tf.stack(
      [tf.fill(tf.shape(num_read), tf.cast(number, tf.int32)), num_read], axis=1
    )
    return tf.data.Dataset.from_tensor_slices(
      {**dict(zip(layout, columns)), _POSITION: position}
    )

  def split_by_replica(batch):
    # All replicas get the position after the whole batch.
    batch[_POSITION] = tf.tile(batch[_POSITION][-1:], [batch_size, 1])
    own = {name: shard.split(rows, batch_size) for name, rows in batch.items()}
    return tf.data.Dataset.from_tensor_slices(own)

  numbered = input_pipeline.numbered(windows, start.window)
  rows = numbered.flat_map(pack_window).skip(start.row)
  batches = rows.batch(batch_size, drop_remainder=True)
  return batches.flat_map(split_by_replica).prefetch(tf.data.AUTOTUNE)


def _pack(
  records: Mapping[str, np.ndarray], layout: tf_records.Layout, most: int
) -> list[np.ndarray]:
  """Packs arrays [records, ...]; returns arrays [rows, ...] of the layout."""
  labels = records.get("next_sentence_labels")
  instances = []
  for index in range(len(records["input_ids"])):

    def values(name, count, index=index):
      return records[name][index, :count].tolist()

    length = records["input_mask"][index].sum()
    num_masked = int(records["masked_lm_weights"][index].sum())
    instances.append(
      TrainingInstance(
        values("input_ids", length),
        values("segment_ids", length),
        values("masked_lm_positions", num_masked),
        values("masked_lm_ids", num_masked),
        None if labels is None else labels[index, 0],
      )
    )
  sizes = [
    records[name].shape[1] for name in ("input_ids", "masked_lm_positions")
  ]
  rows = [
    pretraining_instances.row_features(row, list, *sizes, most)
    for row in pretraining_instances.pack(instances, *sizes, most)
  ]
  return [
    np.array(
      [list(row[name]) for row in rows],
      np.float32 if feature.is_float else np.int32,
    )
    for name, feature in layout.items()
  ]


def recording(model_fn):
  """The `model_fn` that also keeps the position of its input in a variable."""

  def recorded(features, labels, mode, params, config=None):
    features = dict(features)
    position = features.pop(_POSITION, None)
    spec = model_fn(features, labels, mode, params, config)
    if position is None:
      return spec
    variable = tf.get_variable(
      _VARIABLE,
      [2],
      tf.int32,
      tf.zeros_initializer(),
      trainable=False,
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
    assigned = variable.assign(position[0])
    return spec._replace(train_op=tf.group(spec.train_op, assigned))

  return recorded
