"""Tests of training on packed rows."""

import itertools
import os
import signal
import subprocess
import sys

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_pretraining
from tiny_pretraining import (
  CONFIG,
  NUM_PREDICTIONS,
  SEQ_LENGTH,
  VOCAB_IDS,
  flags,
  random_example,
)

import run_pretraining
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import tf_records
from bertlib.tasks.pretraining import (
  dynamic_masking,
  pretraining_instances,
  pretraining_records,
)

pytestmark = pytest.mark.graph

SCRIPT = "run_pretraining.py"
ROW, SLOTS, MOST = 32, 8, 4  # S, P and sequences of a packed row


def sequence(row):
  """The sequence of a record, with ids for tokens."""
  length, masks = sum(row["input_mask"]), int(sum(row["masked_lm_weights"]))
  return pretraining_instances.TrainingInstance(
    row["input_ids"][:length],
    row["segment_ids"][:length],
    [int(position) for position in row["masked_lm_positions"][:masks]],
    row["masked_lm_ids"][:masks],
    bool(row["next_sentence_labels"][0]),
  )


def pack(rows):
  """Packs records of single sequences; returns their sequences by row too."""
  sizes = ROW, SLOTS, MOST
  packed = pretraining_instances.pack([*map(sequence, rows)], *sizes)
  layout = pretraining_instances.record_layout(ROW, SLOTS, True, MOST)
  features = [
    pretraining_instances.row_features(row, list, *sizes) for row in packed
  ]
  return packed, [{name: row[name] for name in layout} for row in features]


def write_packed(path, num_records, seed):
  rng = np.random.default_rng(seed)
  _, rows = pack([random_example(rng)[1] for _ in range(num_records)])
  layout = pretraining_instances.record_layout(ROW, SLOTS, True, MOST)
  tf_records.write_records(str(path), rows, layout)


def batch_of(rows):
  """Constants [B, ...] of records."""
  return {
    name: tf.constant(
      [list(row[name]) for row in rows],
      tf.float32 if name.endswith("weights") else tf.int32,
    )
    for name in rows[0]
  }


def pretraining_loss(batch, compute=None, total_weights=None):
  """The loss of a batch, and what is measured."""
  model = run_pretraining.create_encoder(
    CONFIG, False, batch, False, compute=compute
  )
  return run_pretraining.pretraining_loss(CONFIG, model, batch, total_weights)


def losses_of(rows, compute):
  """Losses of the masks, with their weights, and of the next sentences."""
  batch = batch_of(rows)
  _, measured = pretraining_loss(batch, compute)
  shape = tf.shape(batch["masked_lm_ids"])
  labels = tf.shape(batch["next_sentence_labels"])
  return (
    tf.reshape(measured["masked_lm_loss"][0], shape),
    batch["masked_lm_weights"],
    tf.reshape(measured["next_sentence_loss"][0], labels),
  )


@pytest.mark.parametrize(
  "compute", [None, FastCompute(unpad=True)], ids=["plain", "unpadded"]
)
def test_the_losses_of_a_sequence_are_those_of_it_alone(compute):
  rng = np.random.default_rng(0)
  rows = [random_example(rng)[1] for _ in range(20)]
  packed, packed_rows = pack(rows)
  assert len(packed_rows) < 16
  # The same sequences alone, in the order of the rows.
  layout = pretraining_instances.record_layout(ROW, SLOTS)
  alone = [
    pretraining_instances.row_features([one], list, ROW, SLOTS)
    for row in packed
    for one in row
  ]
  alone = [{name: row[name] for name in layout} for row in alone]
  with tf.Graph().as_default(), tf.Session() as session:
    of_rows = losses_of(packed_rows, compute)
    with tf.variable_scope("", reuse=True):
      graphs = of_rows, losses_of(alone, None)
    session.run(tf.global_variables_initializer())
    (found, used, next_found), (losses, weights, expected) = session.run(graphs)
  # Masks come in the order of their sequences.
  np.testing.assert_allclose(
    found[used > 0], losses[weights > 0], rtol=0, atol=1e-5
  )
  by_row = [next_found[i, : len(row)] for i, row in enumerate(packed)]
  np.testing.assert_allclose(
    np.concatenate(by_row), expected[:, 0], rtol=0, atol=1e-5
  )


def test_unused_slots_of_next_sentences_have_no_loss():
  rng = np.random.default_rng(0)
  _, rows = pack([random_example(rng)[1] for _ in range(8)])
  changed = [
    {
      **row,
      "next_sentence_labels": [
        label if weight else 1
        for label, weight in zip(
          row["next_sentence_labels"], row["next_sentence_weights"]
        )
      ],
    }
    for row in rows
  ]
  assert changed != rows
  with tf.Graph().as_default(), tf.Session() as session:
    loss, _ = pretraining_loss(batch_of(rows))
    with tf.variable_scope("", reuse=True):
      same, _ = pretraining_loss(batch_of(changed))
    session.run(tf.global_variables_initializer())
    loss, same = session.run([loss, same])
  assert loss == same


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Packed records, and records of single sequences of the same sizes."""
  folder = tmp_path_factory.mktemp("packed")
  tiny_pretraining.write_data(folder)
  write_packed(folder / "packed-0.tfrecord", 60, seed=0)
  write_packed(folder / "packed-1.tfrecord", 50, seed=1)
  rng = np.random.default_rng(2)
  single = [
    pretraining_instances.row_features(
      [sequence(random_example(rng)[1])], list, ROW, SLOTS
    )
    for _ in range(12)
  ]
  tf_records.write_records(
    str(folder / "single.tfrecord"),
    single,
    pretraining_instances.record_layout(ROW, SLOTS),
  )
  return folder


def packed_flags(folder, output_dir, **changed):
  return flags(
    folder,
    output_dir=output_dir,
    **{
      "input_file": folder / "packed-*.tfrecord",
      "max_seq_length": ROW,
      "max_predictions_per_seq": SLOTS,
      "num_train_steps": 12,
      "save_checkpoints_steps": 4,
      "keep_checkpoint_max": 9,
      "xla": "off",
    }
    | changed,
  )


@pytest.mark.process
def test_killed_training_on_packed_rows_ends_with_the_same_weights(
  folder, tmp_path
):
  arguments = [
    "--do_train",
    "--do_eval",
    *packed_flags(
      folder, tmp_path / "killed", eval_input_file=folder / "single.tfrecord"
    ),
  ]
  script = os.path.join(commands.ROOT, SCRIPT)
  command = [sys.executable, script, *arguments]
  with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
    saved = tmp_path / "killed" / "model.ckpt-4.index"
    commands.wait_until(saved.exists, process)
    process.send_signal(signal.SIGKILL)
  commands.succeed(SCRIPT, *arguments)
  # Evaluated on single sequences.
  results = run_outputs.read_numbers(tmp_path / "killed" / "eval_results.txt")
  assert {"masked_lm_loss", "next_sentence_loss"} <= set(results)
  commands.succeed(
    SCRIPT, "--do_train", *packed_flags(folder, tmp_path / "whole")
  )
  run_outputs.assert_same_bits(
    run_outputs.read_variables(tmp_path / "killed"),
    run_outputs.read_variables(tmp_path / "whole"),
  )


def test_losses_of_micro_batches_average_to_that_of_the_batch():
  rng = np.random.default_rng(0)
  _, rows = pack([random_example(rng)[1] for _ in range(20)])
  rows = rows[:8]
  parts = rows, rows[:4], rows[4:]  # of other numbers of sequences
  totals = {
    task: sum(sum(row[f"{task}_weights"]) for row in rows)
    for task in ("masked_lm", "next_sentence")
  }
  halves = {task: total / 2 for task, total in totals.items()}
  with tf.Graph().as_default(), tf.Session() as session:
    losses = []
    for part, weights in zip(parts, (totals, halves, halves)):
      with tf.variable_scope("", reuse=bool(losses)):
        losses.append(pretraining_loss(batch_of(part), None, weights)[0])
    session.run(tf.global_variables_initializer())
    whole, *of_halves = session.run(losses)
  assert abs(np.mean(of_halves) - whole) < 1e-5


def test_new_masks_of_packed_rows_keep_sequences_apart(folder):
  rng = np.random.default_rng(0)
  _, rows = pack([random_example(rng)[1] for _ in range(30)])
  batch = batch_of(rows)
  masking = dynamic_masking.Masking(VOCAB_IDS)
  masked = tf.function(dynamic_masking.remask)(
    batch, tf.range(len(rows), dtype=tf.int64), masking
  )
  for name in ("sequence_ids", "position_ids", "next_sentence_weights"):
    np.testing.assert_array_equal(masked[name], batch[name])
  of_tokens = np.take_along_axis(
    batch["sequence_ids"].numpy(), masked["masked_lm_positions"].numpy(), axis=1
  )
  assert (of_tokens[masked["masked_lm_weights"].numpy() > 0] > 0).all()


def test_packed_rows_are_trimmed_in_all_features_of_tokens(folder):
  input_fn = run_pretraining.input_fn_builder(
    [str(folder / "packed-0.tfrecord")], ROW, SLOTS, True, trim=True
  )
  rows = itertools.chain.from_iterable(
    zip(*(batch[name].numpy() for name in ("input_ids", "sequence_ids")))
    for batch in input_fn({"batch_size": 1}).take(10)
  )
  lengths = [(len(ids), len(sequence_ids)) for ids, sequence_ids in rows]
  assert all(one == other for one, other in lengths)


def test_packed_and_single_sequences_do_not_mix(folder, tmp_path):
  files = f"{folder}/packed-0.tfrecord,{folder}/single.tfrecord"
  line = commands.fail(
    SCRIPT, "--do_train", *packed_flags(folder, tmp_path, input_file=files)
  )
  assert f"{folder}/single.tfrecord: its records are packed in another" in line


def test_rows_count_as_records(folder):
  path = str(folder / "packed-0.tfrecord")
  assert pretraining_records.sequences_per_row(path) == MOST
  single = str(folder / "single.tfrecord")
  assert pretraining_records.sequences_per_row(single) is None
  assert NUM_PREDICTIONS < SLOTS and SEQ_LENGTH < ROW
