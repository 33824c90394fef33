"""Batches of run_pretraining.py: shuffled, packed, masked and trimmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bertlib.data import input_pipeline
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
    shard = shard or input_pipeline.Shard()
    all_sizes = sizes or pretraining_inputs.BatchSizes(batch_size, batch_size)

    def read(shard, stage, step, with_source=False):
      if packing:
        windows = input_pipeline.streamed_record_batches(
          input_files,
          layout,
          window_packing.WINDOW_SIZE,
          False,
          num_records,
          seed,
          first_record=packing.window * window_packing.WINDOW_SIZE,
        )
        return window_packing.packed_batches(
          windows, packing, packed_layout, stage.batch_size, shard
        )
      files, total, size = input_files, num_records, stage.batch_size
      first_record = stage.records_before(step)
      if by_file:
        files = pretraining_records.shard_files(input_files, shard)
        total = sum(by_file[path] for path in files)
        size //= shard.count
        first_record //= shard.count
        shard = input_pipeline.Shard(num_replicas=shard.num_replicas)
      return input_pipeline.streamed_record_batches(
        files,
        layout,
        size,
        False,
        total,
        seed,
        first_record=first_record,
        shard=shard,
        with_source=with_source,
      )

    trimmed = per_token if trim else []
    step = params.get("traced_step")
    if step is not None:  # the batch of all processes
      stage = all_sizes.stage_of(step)
      count = shard.count if by_file else 1
      shards = [input_pipeline.Shard(index, count) for index in range(count)]
      parts = [read(shard, stage, step, with_source=True) for shard in shards]
      batches = tf.data.Dataset.zip(tuple(parts)).map(_join_rows)
      shard = input_pipeline.Shard()
      return _prepare_batches(batches, masking, step, stage, shard, trimmed)
    batches = None
    for stage, end in all_sizes.stages_from(first_step):
      step = max(stage.first_step, first_step)
      of_stage = _prepare_batches(
        read(shard, stage, step), masking, step, stage, shard, trimmed
      )
      if end is not None:
        of_stage = of_stage.take((end - step) * shard.num_replicas)
      batches = of_stage if batches is None else batches.concatenate(of_stage)
    return batches

  return input_fn


def _join_rows(*parts: Mapping[str, Any]) -> dict[str, Any]:
  """Joins batches into one."""
  return {
    name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]
  }


def _prepare_batches(
  batches,
  masking: dynamic_masking.Masking | None,
  step: int,
  stage: pretraining_inputs.Stage,
  shard: input_pipeline.Shard,
  trimmed: Sequence[str],  # features with a value per token
):
  """Draws new masks, if any, by step and example; removes common padding."""

  def prepare(index, batch):
    if masking:
      numbers = shard.example_numbers(index, stage.batch_size)
      # As if the batches before the stage were as large as its own.
      numbers += stage.records_before(0)
      of_step = masking.at_step(index // shard.num_replicas)
      batch = dynamic_masking.remask(batch, numbers, of_step)
    if not trimmed:
      return batch
    return input_pipeline.trim_padding(batch, names=trimmed)

  return (
    input_pipeline.numbered(batches, step * shard.num_replicas)
    .map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    .prefetch(tf.data.AUTOTUNE)
  )
