"""Batches of run_pretraining.py: shuffled, packed, masked and trimmed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bertlib.checkpoints import checkpoint_files
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.data import input_pipeline, tf_records, training_records
from bertlib.io import receipt_file
from bertlib.tasks.pretraining import dynamic_masking, pretraining_instances
from bertlib.tasks.pretraining.objectives import MLM_NSP, Objective
from bertlib.tasks.pretraining.pretraining_inputs import (
  count_records,
  sequences_per_row,
)
from bertlib.tasks.pretraining.pretraining_instances import (
  TrainingInstance,
  record_layout,
)
from bertlib.tasks.pretraining.settings import PretrainingSettings
from bertlib.training import train_step

# Packing while training: windows of shuffled records become packed rows

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


def check_same_packing(
  settings: PretrainingSettings, checkpoint: str | None
) -> None:
  """Refuses to resume with another packing, to which the position belongs."""
  if not checkpoint:
    return
  before = receipt_file.last_training(settings.flags.output_dir) or {}
  trained = dict(before.get("flags", {}))
  is_packed = checkpoint_files.open_reader(checkpoint).has_tensor(_VARIABLE)
  trained["pack"], flags = is_packed, option.values_of(settings)
  for name in ("pack", *(["max_sequences_per_row", "seed"] * is_packed)):
    given, value = flags[name], trained.get(name, flags[name])
    if given != value:
      raise InputError(
        f"--{name}={str(given).lower()}: {checkpoint} was trained with"
        f" --{name}={str(value).lower()}, which decides what a step reads. Give"
        " that to resume, or another --output_dir"
      )


def resume_packing(
  max_sequences_per_row: int, checkpoint: str | None
) -> Packing:
  """The packing that begins after the last step of a checkpoint."""
  position = tf.train.load_variable(checkpoint, _VARIABLE) if checkpoint else ()
  return Packing(max_sequences_per_row, *map(int, position))


def _packed_batches(
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
      return _pack_window(records, layout, start.max_sequences_per_row)

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


def _pack_window(
  records: Mapping[str, np.ndarray], layout: tf_records.Layout, most: int
) -> list[np.ndarray]:
  """Packs arrays [records, ...]; returns arrays [rows, ...] of the layout."""
  labels = records.get("next_sentence_labels")
  none = np.zeros([len(records["input_ids"]), 0])
  weights = records.get("masked_lm_weights", none)
  instances = []
  for index in range(len(records["input_ids"])):

    def values(name, count, index=index):
      return records.get(name, none)[index, :count].tolist()

    length = records["input_mask"][index].sum()
    num_masked = int(weights[index].sum())
    instances.append(
      TrainingInstance(
        values("input_ids", length),
        values("segment_ids", length),
        values("masked_lm_positions", num_masked),
        values("masked_lm_ids", num_masked),
        None if labels is None else labels[index, 0],
      )
    )
  sizes = records["input_ids"].shape[1], weights.shape[1]
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


def recording_position(model_fn):
  """The `model_fn` that also keeps the position of its input in a variable."""

  def recorded(features, labels, mode, params, config=None):
    features = dict(features)
    position = features.pop(_POSITION, None)
    spec = model_fn(features, labels, mode, params, config)
    if position is None:
      return spec
    variable = train_step.state_variable(_VARIABLE, tf.int32, 0, [2])
    assigned = variable.assign(position[0])
    return spec._replace(train_op=tf.group(spec.train_op, assigned))

  return recorded


# Batches


def input_fn_builder(
  input_files: Sequence[str],
  max_seq_length: int,
  max_predictions_per_seq: int,
  is_training: bool,
  num_cpu_threads: int = 4,
  drop_remainder: bool = False,
  trim: bool = False,
  seed: int = 0,
  first_step: int = 0,
  masking: dynamic_masking.Masking | None = None,
  num_records: int | None = None,
  objective: Objective = MLM_NSP,
  packing: Packing | None = None,
):
  """An `input_fn` over TFRecord files of pretraining.

  Args:
    input_files: the files.
    max_seq_length: S of their records.
    max_predictions_per_seq: P of their records.
    is_training: whether records are shuffled and repeated.
    num_cpu_threads: not used; tf.data chooses the number of threads.
    drop_remainder: whether a last, smaller batch is dropped.
    trim: whether padding common to a batch is removed; not for a TPU.
    seed: of the shuffling.
    first_step: training step of the first batch, to resume.
    masking: how training draws new masks; None for those of the records.
    num_records: number of records; None to count them, see
      `pretraining_inputs.count_records` for the errors.
    objective: what is predicted; features of other objectives are not read.
    packing: how training packs records into rows; None to read them as is.

  Returns:
    A function of `params`, which has `batch_size`, and may have `shard` or
    `traced_step`, see `training_records.record_input_fn`.
  """
  del num_cpu_threads
  if not is_training:
    first_step, masking, packing = 0, None, None
  sizes = max_seq_length, max_predictions_per_seq
  layout_of = functools.partial(record_layout, *sizes, objective)
  layout = layout_of(sequences_per_row(input_files[0]), masking is not None)
  row_layout = layout_of(packing.max_sequences_per_row) if packing else layout
  trimmed = [n for n, f in row_layout.items() if trim and f.per_token]
  sampling = (seed, max_seq_length) if objective.has_generator else None
  if num_records is None:
    num_records = sum(
      count_records(path, *sizes, objective=objective) for path in input_files
    )

  def input_fn(params):
    batch_size, shard = input_pipeline.global_batch_size_and_shard(params)
    is_traced = "traced_step" in params
    step = params["traced_step"] if is_traced else first_step
    own = shard or input_pipeline.Shard()
    if not is_training:
      batches = input_pipeline.record_batches(
        input_files, layout, batch_size, drop_remainder, False, shard=shard
      )
    elif packing:
      first = packing.window * WINDOW_SIZE
      records = stream_epochs(input_files, num_records, seed, first)
      windows = input_pipeline.batches(records, layout, WINDOW_SIZE, True)
      batches = _packed_batches(windows, packing, row_layout, batch_size, own)
    else:
      first = step * batch_size
      records = stream_epochs(
        input_files, num_records, seed, first, with_source=is_traced
      )
      batches = input_pipeline.batches(
        records, layout, batch_size, True, shard=own
      )
    numbered = input_pipeline.numbered(batches, step * own.num_replicas)
    numbers_of = functools.partial(_example_numbers, own, batch_size)
    return _prepared(numbered, numbers_of, masking, sampling, trimmed)

  return input_fn


def _example_numbers(
  shard: input_pipeline.Shard,  # which splits a batch among its replicas
  batch_size: int,
  batch_number,  # int64 [], over the replicas of this process and all steps
):
  """Numbers of a replica batch's examples, over all epochs, int64 [rows]."""
  step = batch_number // shard.num_replicas
  replica = batch_number % shard.num_replicas
  rows = batch_size // (shard.count * shard.num_replicas)
  first_replica = shard.index * shard.num_replicas
  first = step * batch_size + (first_replica + replica) * rows
  return first + tf.range(rows, dtype=tf.int64)


def _prepared(
  batches,  # dataset of numbers and batches
  example_numbers,  # of the number of a batch
  masking: dynamic_masking.Masking | None,
  sampling: tuple[int, int] | None,  # the seed, and S
  trimmed: Sequence[str],  # features without common padding
):
  """Draws masks, and what samples tokens, by example; removes padding."""

  def prepare(index, batch):
    numbers = example_numbers(index)
    if masking:
      batch = dynamic_masking.remask(batch, numbers, masking)
    if sampling:
      batch = dynamic_masking.add_sampling_draws(batch, numbers, *sampling)
    if not trimmed:
      return batch
    return input_pipeline.trim_padding(batch, names=trimmed)

  return batches.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
    tf.data.AUTOTUNE
  )


def nan_if_out_of_range(batch: Mapping[str, Any], layout: tf_records.Layout):
  """Term of the loss, float32 []: NaN if an id is out of range, else 0."""
  is_bad = [
    tf.reduce_any((batch[name] < 0) | (batch[name] >= feature.limit))
    for name, feature in layout.items()
    if feature.limit is not None and name in batch
  ]
  # A GPU's embedding lookup returns zeros for such ids, without an error: only
  # the loss can show it. The model's device computes this, so that it does not
  # slow down the input pipeline.
  return tf.where(tf.reduce_any(tf.stack(is_bad)), float("nan"), 0.0)


@tf.autograph.experimental.do_not_convert
def stream_epochs(
  # For more records than fit in memory.
  files: Sequence[str],
  num_records: int,
  seed: int,
  first_record: int = 0,  # records to skip, over all epochs
  num_open: int = 16,  # files that are read at a time
  block_size: int = 2**15,  # records that are shuffled together
  with_source: bool = False,  # of `records_with_source`
):
  """Infinite dataset of records, reshuffled every epoch; holds a few blocks."""
  first_epoch, done = divmod(first_record, num_records)
  blocks_done, done_in_block = divmod(done, block_size)
  read = tf.data.TFRecordDataset
  if with_source:
    read = training_records.records_with_source

  def read_epoch(epoch):
    # As in fine-tuning, the order is a function of seed and epoch.
    seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
    records = tf.data.Dataset.from_tensor_slices(
      tf.random.experimental.stateless_shuffle(tf.constant(files), seeds)
    ).interleave(read, cycle_length=num_open)
    first_block = tf.where(epoch == first_epoch, blocks_done, 0)
    first_block = tf.cast(first_block, tf.int64)
    blocks = records.skip(first_block * block_size).batch(block_size)

    def shuffle(number, block):
      shuffled = functools.partial(
        tf.random.experimental.stateless_shuffle,
        seed=tf.random.fold_in(seeds, number),
      )
      return tf.data.Dataset.from_tensor_slices(
        tf.nest.map_structure(shuffled, block)
      )

    return blocks.prefetch(1).enumerate(first_block).flat_map(shuffle)

  epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
  return epochs.flat_map(read_epoch).skip(done_in_block)
