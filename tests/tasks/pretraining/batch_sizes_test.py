"""Tests of batches that grow over the first steps of a pretraining."""

import itertools
import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tiny_pretraining

import run_pretraining
from bertlib.tasks.pretraining.training_batches import BatchSizes

SIZES = BatchSizes(4, 12, 5)
# 8 from half of the 5 steps on, rounded down.
SIZE_OF_STEP = [4, 4, 8, 8, 8, 12, 12, 12]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("batch_sizes")
  tiny_pretraining.write_data(folder)
  return folder


@pytest.mark.unit
@pytest.mark.parametrize("last", [4, 8, 20])
@pytest.mark.parametrize("num_steps", [0, 1, 3, 100])
def test_records_and_steps_are_counted_alike(last, num_steps):
  sizes = BatchSizes(4, last, num_steps)
  of_step = [sizes.stage_of(step).batch_size for step in range(120)]
  assert of_step == sorted(of_step)
  assert of_step[num_steps] == last
  if num_steps and last > 4:
    assert of_step[num_steps - 1] < last
  before = [0, *itertools.accumulate(of_step)]
  for step in range(120):
    assert sizes.stage_of(step).records_before(step) == before[step]
    assert sizes.count_steps(before[step]) == step
    assert sizes.count_steps(before[step] + 1) == step + 1


@pytest.mark.graph
def test_batches_grow_through_the_stream_of_records(folder):
  def read(sizes):
    input_fn = run_pretraining.input_fn_builder(
      sorted(map(str, folder.glob("train-*.tfrecord"))),
      tiny_pretraining.SEQ_LENGTH,
      tiny_pretraining.NUM_PREDICTIONS,
      is_training=True,
      sizes=sizes,
    )
    batches = input_fn({"batch_size": 4}).take(len(SIZE_OF_STEP))
    return [*batches.as_numpy_iterator()]

  found, equal = read(SIZES), read(BatchSizes(17, 17))
  assert [len(batch["input_ids"]) for batch in found] == SIZE_OF_STEP
  for name in ("input_ids", "masked_lm_ids"):
    rows, expected = (
      np.concatenate([batch[name] for batch in part]) for part in (found, equal)
    )
    np.testing.assert_array_equal(rows, expected[: sum(SIZE_OF_STEP)])


def flags(folder, output_dir, **changed):
  values = {
    "train_batch_size": 4,
    "train_batch_size_end": 12,
    "batch_size_warmup_steps": 5,
    "num_train_steps": 8,
    "num_warmup_steps": 2,
    "save_checkpoints_steps": 4,
    "remask": True,
    "vocab_file": folder / "vocab.txt",
    "xla": "off",
    "output_dir": output_dir,
  }
  return ["--do_train", *tiny_pretraining.flags(folder, **(values | changed))]


@pytest.mark.train
def test_resumed_training_ends_with_the_same_weights(folder, tmp_path):
  whole, resumed = tmp_path / "whole", tmp_path / "resumed"
  done = commands.succeed("run_pretraining.py", *flags(folder, whole))
  # 2 * 4 + 3 * 8 + 3 * 12 of 42 records
  assert "(1.62 epochs)" in done.stderr
  resumed.mkdir()
  for path in whole.glob("model.ckpt-4.*"):
    shutil.copy(path, resumed)
  commands.succeed("run_pretraining.py", *flags(folder, resumed))
  run_outputs.assert_same_variables(resumed, whole)


@pytest.mark.train
@pytest.mark.parametrize(
  ("changed", "words"),
  [
    (
      {"train_batch_size": 3, "distribution": "mirrored", "num_replicas": 2},
      "--train_batch_size=3: cannot be divided into 2 parts",
    ),
    (
      {"token_budget": 200, "num_train_steps": None, "num_warmup_steps": None},
      "--batch_size_warmup_steps=5: --token_budget=200 ends within it, after",
    ),
  ],
)
def test_batches_that_cannot_grow_are_refused(folder, tmp_path, changed, words):
  arguments = flags(folder, tmp_path, **changed)
  assert words in commands.fail("run_pretraining.py", *arguments)
