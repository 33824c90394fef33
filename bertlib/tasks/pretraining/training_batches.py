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
from bertlib.data import input_pipeline, tf_records
from bertlib.io import receipt_file
from bertlib.tasks.pretraining import (
  dynamic_masking,
  pretraining_inputs,
  pretraining_instances,
)
from bertlib.tasks.pretraining.objectives import MLM_NSP, Objective
from bertlib.tasks.pretraining.pretraining_instances import TrainingInstance
from bertlib.tasks.pretraining.settings import PretrainingSettings

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
    A function of `params`, which has `batch_size`, and may have `shard` and
    `traced_step`, see `input_pipeline.record_input_fn`.
  """
  del num_cpu_threads
  sizes = max_seq_length, max_predictions_per_seq
  num_packed = pretraining_inputs.sequences_per_row(input_files[0])
  layout_of = functools.partial(
    pretraining_instances.record_layout, *sizes, objective
  )
  layout = layout_of(num_packed, masking is not None)
  packed_layout = packing and layout_of(packing.max_sequences_per_row)
  per_token = [n for n, f in (packed_layout or layout).items() if f.per_token]
  if num_records is None:
    num_records = sum(
      pretraining_inputs.count_records(path, *sizes, objective=objective)
      for path in input_files
    )

  def input_fn(params):
    batch_size, shard = input_pipeline.global_batch_size_and_shard(params)
    if not is_training:
      batches = input_pipeline.record_batches(
        input_files, layout, batch_size, drop_remainder, trim, shard=shard
      )
      if not objective.has_generator:
        return batches
      return _with_draws(batches, batch_size, shard, seed, max_seq_length)
    batches = _TrainingBatches(
      input_files,
      layout,
      num_records,
      seed,
      batch_size,
      shard or input_pipeline.Shard(),
      masking,
      per_token if trim else [],
      packing,
      packed_layout,
      max_seq_length if objective.has_generator else None,
    )
    if "traced_step" in params:
      return batches.of_step(params["traced_step"])
    return batches.from_step(first_step)

  return input_fn


def _with_draws(
  batches,
  batch_size: int,
  shard: input_pipeline.Shard | None,
  seed: int,
  max_seq_length: int,
):
  """Adds to batches what the tokens of a generator are sampled by."""
  shard = shard or input_pipeline.Shard()
  return input_pipeline.numbered(batches).map(
    lambda index, batch: dynamic_masking.add_sampling_draws(
      batch, shard.example_numbers(index, batch_size), seed, max_seq_length
    )
  )


class _TrainingBatches(NamedTuple):
  """Batches of one process, a function of the step: see `input_fn_builder`."""

  files: Sequence[str]
  layout: tf_records.Layout
  num_records: int
  seed: int
  batch_size: int
  shard: input_pipeline.Shard
  masking: dynamic_masking.Masking | None
  trimmed: Sequence[str]  # features with a value per token
  packing: Packing | None
  packed_layout: tf_records.Layout | None
  sampled_length: int | None  # S, where tokens are sampled

  def from_step(self, first_step: int):
    """Infinite dataset that begins with this process's part of a step."""
    return self._prepare(self._read(first_step), first_step)

  def of_step(self, step: int):
    """Dataset that begins with the batch of all processes, and its sources."""
    whole = self._replace(shard=input_pipeline.Shard())
    return whole._prepare(whole._read(step, with_source=True), step)

  def _read(self, step: int, with_source: bool = False):
    """Shuffled batches, from a step on."""
    if self.packing:
      return self._read_packed()
    return self._shuffled(
      self.batch_size, step, shard=self.shard, with_source=with_source
    )

  def _read_packed(self):
    """Batches of packed rows, from where the packing begins."""
    windows = self._shuffled(WINDOW_SIZE, self.packing.window)
    return _packed_batches(
      windows, self.packing, self.packed_layout, self.batch_size, self.shard
    )

  def _shuffled(self, batch_size: int, first: int, **more: Any):
    """Shuffled batches of a size, from the one of a number on."""
    return input_pipeline.shuffled_record_batches(
      self.files,
      self.layout,
      batch_size,
      False,
      self.num_records,
      self.seed,
      first_record=first * batch_size,
      streams=True,
      **more,
    )

  def _prepare(self, batches, step: int):
    """Draws new masks, if any, by step and example; removes common padding."""
    shard, masking = self.shard, self.masking

    def prepare(index, batch):
      numbers = shard.example_numbers(index, self.batch_size)
      if masking:
        batch = dynamic_masking.remask(batch, numbers, masking)
      if length := self.sampled_length:
        batch = dynamic_masking.add_sampling_draws(
          batch, numbers, self.seed, length
        )
      if not self.trimmed:
        return batch
      return input_pipeline.trim_padding(batch, names=self.trimmed)

    return (
      input_pipeline.numbered(batches, step * shard.num_replicas)
      .map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
      .prefetch(tf.data.AUTOTUNE)
    )
