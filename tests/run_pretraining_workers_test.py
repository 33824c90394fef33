"""Tests of what each worker of a pretraining reads."""

import collections
import os

import commands
import numpy as np
import pytest
import run_outputs
import tiny_pretraining
import trained_models
from tiny_pretraining import NUM_PREDICTIONS, SEQ_LENGTH, VOCAB_IDS

import run_pretraining
from bertlib.cli.errors import InputError
from bertlib.data import input_pipeline
from bertlib.data.input_pipeline import Shard
from bertlib.tasks.pretraining import dynamic_masking, pretraining_instances

place = trained_models.data_fixture("pretraining")

FILE_SIZES = {f"train-{n}.tfrecord": size for n, size in enumerate([20, 13, 9])}
MASKINGS = [None, dynamic_masking.Masking(VOCAB_IDS)]
LAYOUT = pretraining_instances.record_layout(SEQ_LENGTH, NUM_PREDICTIONS)


def batches(place, shard, by_file, batch_size, traced_step=None, **options):
  """The endless batches of a process, or of all of them."""
  sizes = {str(place / name): size for name, size in FILE_SIZES.items()}
  input_fn = run_pretraining.input_fn_builder(
    list(reversed(sizes)),
    SEQ_LENGTH,
    NUM_PREDICTIONS,
    is_training=True,
    seed=3,
    num_records=sum(sizes.values()),
    by_file=sizes if by_file else None,
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
@pytest.mark.parametrize("masking", MASKINGS)
def test_by_record_all_processes_have_the_whole_batch(place, masking):
  steps, count, num_replicas = 7, 3, 2
  whole = take(batches(place, None, False, 12, masking=masking), steps)
  shards = [Shard(index, count, num_replicas) for index in range(count)]
  parts = [
    take(batches(place, shard, False, 12, masking=masking), 2 * steps)
    for shard in shards
  ]
  for step, expected in enumerate(whole):
    of_step = slice(step * num_replicas, (step + 1) * num_replicas)
    found = [part for of_process in parts for part in of_process[of_step]]
    run_outputs.assert_same_bits(joined(found), expected)


def keys(batch):
  """Bytes that identify each record of a batch."""
  names = "input_ids", "masked_lm_positions", "masked_lm_ids"
  return [row.tobytes() for row in np.hstack([batch[n] for n in names])]


def records_of(place, names):
  batches = input_pipeline.record_batches(
    [str(place / name) for name in names], LAYOUT, 99, False, False
  ).as_numpy_iterator()
  return collections.Counter(row for batch in batches for row in keys(batch))


@pytest.mark.unit
@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize(
  ("index", "names"),
  [(0, ["train-0.tfrecord", "train-2.tfrecord"]), (1, ["train-1.tfrecord"])],
)
def test_by_file_each_record_comes_once_an_epoch(
  place, index, names, num_replicas
):
  expected = records_of(place, names)
  size = sum(expected.values())
  shard = Shard(index, 2, num_replicas)
  parts = take(batches(place, shard, True, 2 * num_replicas), 3 * size)
  rows = [row for part in parts for row in keys(part)]
  epochs = [rows[size * n : size * (n + 1)] for n in range(3)]
  for epoch in epochs:
    assert collections.Counter(epoch) == expected
  assert epochs[0] != epochs[1]


@pytest.mark.graph
@pytest.mark.parametrize("masking", MASKINGS)
def test_by_file_batches_go_on_where_training_was(place, masking):
  shard = Shard(1, 2, 2)
  straight = take(batches(place, shard, True, 8, masking=masking), 24)
  for first_step in (1, 4, 9):  # an epoch is of 13 records, a step of 4
    rest = straight[2 * first_step :]
    options = {"masking": masking, "first_step": first_step}
    again = batches(place, shard, True, 8, **options)
    for batch, expected in zip(take(again, len(rest)), rest):
      run_outputs.assert_same_bits(batch, expected)


@pytest.mark.unit
@pytest.mark.parametrize("by_file", [False, True])
@pytest.mark.parametrize("masking", MASKINGS)
def test_a_traced_step_has_the_rows_of_all_processes(place, by_file, masking):
  step = 6

  def take_from(index, first, number, **more):
    shard = Shard(index, 2, 2)
    dataset = batches(place, shard, by_file, 8, masking=masking, **more)
    return take(dataset.skip(first), number)

  (traced,) = take_from(0, 0, 1, traced_step=step)
  assert traced.pop("record_number").shape == (8,)
  paths = map(os.path.basename, traced.pop("record_file"))
  names = [name.decode() for name in paths]
  assert len(names) == 8
  if by_file:
    own, of_the_other = names[:4], names[4:]
    assert set(own) <= {"train-0.tfrecord", "train-2.tfrecord"}
    assert set(of_the_other) == {"train-1.tfrecord"}
  trained = [part for index in (0, 1) for part in take_from(index, 2 * step, 2)]
  run_outputs.assert_same_bits(traced, joined(trained))


@pytest.mark.unit
def test_fewer_files_than_processes_are_refused(place):
  with pytest.raises(InputError, match="3 files cannot be shared by 4 proc"):
    batches(place, Shard(0, 4), True, 8)


@pytest.mark.train
def test_for_one_process_by_file_is_by_record(place):
  changed = {"num_train_steps": 2, "num_warmup_steps": 0, "xla": "off"}
  for name in ("record", "file"):
    commands.succeed(
      "run_pretraining.py",
      "--do_train",
      f"--shard_by={name}",
      *tiny_pretraining.flags(place, output_dir=place / name, **changed),
    )
  run_outputs.assert_same_variables(place / "record", place / "file")
