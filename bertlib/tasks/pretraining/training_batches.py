"""Batches of run_pretraining.py: shuffled, packed, masked and trimmed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from bertlib.data import input_pipeline, tf_records
from bertlib.tasks.pretraining import (
  dynamic_masking,
  pretraining_inputs,
  pretraining_instances,
  pretraining_records,
  window_packing,
)


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
  by_file: Mapping[str, int] | None = None,
  objective: str = "mlm_nsp",
  num_picked: int | None = None,
  sizes: pretraining_inputs.BatchSizes | None = None,
  packing: window_packing.Packing | None = None,
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
    num_records: number of records; None to count them.
    by_file: number of records per file, for training with several processes
      that each read files of their own (see `pretraining_records.files_of`).
      None: every process reads its rows of each batch, so that batches do not
      depend on the number of processes.
    objective: "mlm_nsp", or "mlm" to leave out the labels of next sentences.
    num_picked: number of records that an evaluation picks, see
      `input_pipeline.pick_evenly`; None for all.
    sizes: of the batches of training; None for the `batch_size` of `params`.
    packing: how training packs records into rows, and where it begins; None to
      read them as they are.

  Returns:
    A function of `params`, which has `batch_size`, and may have `shard` and
    `traced_step`, see `input_pipeline.record_input_fn`.

  Raises:
    InputError: see `pretraining_records.count_records`.
  """
  del num_cpu_threads
  shape = max_seq_length, max_predictions_per_seq, objective == "mlm_nsp"
  layout = pretraining_instances.record_layout(
    *shape, pretraining_records.sequences_per_row(input_files[0])
  )
  packed_layout = packing and pretraining_instances.record_layout(
    *shape, packing.max_sequences_per_row
  )
  per_token = [n for n, f in (packed_layout or layout).items() if f.per_token]
  if num_records is None:
    num_records = sum(
      pretraining_records.count_records(
        path, max_seq_length, max_predictions_per_seq, objective=objective
      )
      for path in input_files
    )

  def input_fn(params):
    batch_size, shard = input_pipeline.global_batch_size_and_shard(params)
    if not is_training:
      return input_pipeline.record_batches(
        input_files,
        layout,
        batch_size,
        drop_remainder,
        trim,
        shard=shard,
        pick=num_picked and (num_picked, num_records),
      )
    batches = _TrainingBatches(
      input_files,
      layout,
      num_records,
      seed,
      sizes or pretraining_inputs.BatchSizes(batch_size, batch_size),
      shard or input_pipeline.Shard(),
      masking,
      per_token if trim else [],
      by_file,
      packing,
      packed_layout,
    )
    if "traced_step" in params:
      return batches.of_step(params["traced_step"])
    return batches.from_step(first_step)

  return input_fn


class _TrainingBatches(NamedTuple):
  """Batches of one process, a function of the step: see `input_fn_builder`."""

  files: Sequence[str]
  layout: tf_records.Layout
  num_records: int
  seed: int
  sizes: pretraining_inputs.BatchSizes
  shard: input_pipeline.Shard
  masking: dynamic_masking.Masking | None
  trimmed: Sequence[str]  # features with a value per token
  by_file: Mapping[str, int] | None
  packing: window_packing.Packing | None
  packed_layout: tf_records.Layout | None

  def from_step(self, first_step: int):
    """Infinite dataset that begins with this process's part of a step."""
    stages = []
    for stage, end in self.sizes.stages_from(first_step):
      step = max(stage.first_step, first_step)
      batches = self._prepare(self._read(stage, step), stage, step)
      if end is not None:
        batches = batches.take((end - step) * self.shard.num_replicas)
      stages.append(batches)
    return functools.reduce(lambda one, other: one.concatenate(other), stages)

  def of_step(self, step: int):
    """Dataset that begins with the batch of all processes, and its sources."""
    stage = self.sizes.stage_of(step)
    count = self.shard.count if self.by_file else 1
    shards = [input_pipeline.Shard(index, count) for index in range(count)]
    parts = [self._replace(shard=shard) for shard in shards]
    read = [part._read(stage, step, with_source=True) for part in parts]
    batches = tf.data.Dataset.zip(tuple(read)).map(_join_rows)
    whole = self._replace(shard=input_pipeline.Shard())
    return whole._prepare(batches, stage, step)

  def _read(
    self, stage: pretraining_inputs.Stage, step: int, with_source: bool = False
  ):
    """Shuffled batches of a stage, from a step on."""
    if self.packing:
      return self._read_packed(stage)
    files, total, shard = self.files, self.num_records, self.shard
    size, first_record = stage.batch_size, stage.records_before(step)
    if self.by_file:
      files = pretraining_records.shard_files(files, shard)
      total = sum(self.by_file[path] for path in files)
      size //= shard.count
      first_record //= shard.count
      shard = input_pipeline.Shard(num_replicas=shard.num_replicas)
    return input_pipeline.streamed_record_batches(
      files,
      self.layout,
      size,
      False,
      total,
      self.seed,
      first_record=first_record,
      shard=shard,
      with_source=with_source,
    )

  def _read_packed(self, stage: pretraining_inputs.Stage):
    """Batches of packed rows, from where the packing begins."""
    windows = input_pipeline.streamed_record_batches(
      self.files,
      self.layout,
      window_packing.WINDOW_SIZE,
      False,
      self.num_records,
      self.seed,
      first_record=self.packing.window * window_packing.WINDOW_SIZE,
    )
    return window_packing.packed_batches(
      windows, self.packing, self.packed_layout, stage.batch_size, self.shard
    )

  def _prepare(self, batches, stage: pretraining_inputs.Stage, step: int):
    """Draws new masks, if any, by step and example; removes common padding."""
    shard, masking = self.shard, self.masking

    def prepare(index, batch):
      if masking:
        numbers = shard.example_numbers(index, stage.batch_size)
        # As if the batches before the stage were as large as its own.
        numbers += stage.records_before(0)
        of_step = masking.at_step(index // shard.num_replicas)
        batch = dynamic_masking.remask(batch, numbers, of_step)
      if not self.trimmed:
        return batch
      return input_pipeline.trim_padding(batch, names=self.trimmed)

    return (
      input_pipeline.numbered(batches, step * shard.num_replicas)
      .map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
      .prefetch(tf.data.AUTOTUNE)
    )


def _join_rows(*parts: Mapping[str, Any]) -> dict[str, Any]:
  """Joins batches into one."""
  return {
    name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]
  }
