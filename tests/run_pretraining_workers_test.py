"""Tests of what each worker of a pretraining reads."""

import os

import numpy as np
import pytest
import run_outputs
import trained_models
from tiny_pretraining import NUM_PREDICTIONS, SEQ_LENGTH, TOKENIZER

import run_pretraining
from bertlib.data.input_pipeline import Shard
from bertlib.tasks.pretraining import dynamic_masking, pretraining_instances
from bertlib.tasks.pretraining.objectives import ELECTRA

place = trained_models.data_fixture("pretraining")

FILE_SIZES = {f"train-{n}.tfrecord": size for n, size in enumerate([20, 13, 9])}
OPTIONS = [
  {},
  {"masking": dynamic_masking.Masking(TOKENIZER), "objective": ELECTRA},
]
LAYOUT = pretraining_instances.record_layout(SEQ_LENGTH, NUM_PREDICTIONS)


def batches(place, shard, batch_size, traced_step=None, **options):
  """The endless batches of a process, or of all of them."""
  sizes = {str(place / name): size for name, size in FILE_SIZES.items()}
  input_fn = run_pretraining.input_fn_builder(
    list(reversed(sizes)),
    SEQ_LENGTH,
    NUM_PREDICTIONS,
    is_training=True,
    seed=3,
    num_records=sum(sizes.values()),
    **options,
  )
  params = {"batch_size": batch_size, "shard": shard}
  if traced_step is not None:
    params["traced_step"] = traced_step
  return input_fn(params)


def take(dataset, number):
  return list(dataset.take(number).as_numpy_iterator())


def joined(parts):
  """Batches one after the other, as one."""
  return {
    name: np.concatenate([part[name] for part in parts]) for name in parts[0]
  }


@pytest.mark.graph
@pytest.mark.parametrize("options", OPTIONS)
def test_all_processes_have_the_whole_batch(place, options):
  steps, count, num_replicas = 7, 3, 2
  whole = take(batches(place, None, 12, **options), steps)
  shards = [Shard(index, count, num_replicas) for index in range(count)]
  parts = [
    take(batches(place, shard, 12, **options), 2 * steps) for shard in shards
  ]
  for step, expected in enumerate(whole):
    of_step = slice(step * num_replicas, (step + 1) * num_replicas)
    found = [part for of_process in parts for part in of_process[of_step]]
    run_outputs.assert_same_bits(joined(found), expected)


@pytest.mark.unit
@pytest.mark.parametrize("options", OPTIONS)
def test_a_traced_step_has_the_rows_of_all_processes(place, options):
  step = 6

  (traced,) = take(batches(place, None, 8, step, **options), 1)
  assert traced.pop("record_number").shape == (8,)
  names = {
    os.path.basename(path).decode() for path in traced.pop("record_file")
  }
  assert names <= {*FILE_SIZES}
  trained = []
  for index in (0, 1):
    dataset = batches(place, Shard(index, 2, 2), 8, **options)
    trained += take(dataset.skip(2 * step), 2)
  run_outputs.assert_same_bits(traced, joined(trained))
