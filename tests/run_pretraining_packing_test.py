"""Tests of training on packed rows."""

import collections
import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_pretraining
from tiny_pretraining import CONFIG, TOKENIZER, flags, random_example

import run_pretraining
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import input_pipeline, tf_records
from bertlib.tasks.pretraining import dynamic_masking, training_batches
from bertlib.tasks.pretraining.pretraining_instances import (
  TrainingInstance,
  pack,
  record_layout,
  row_features,
)

pytestmark = pytest.mark.graph

SCRIPT = "run_pretraining.py"
SIZES = ROW, SLOTS, MOST = 32, 8, 4  # S, P and sequences of a packed row
PACKED = record_layout(ROW, SLOTS, max_sequences_per_row=MOST)
SINGLE = record_layout(ROW, SLOTS)


def random_sequence(rng):
  """A random sequence, with ids for tokens."""
  _, row = random_example(rng)
  length, masks = sum(row["input_mask"]), int(sum(row["masked_lm_weights"]))
  return TrainingInstance(
    row["input_ids"][:length],
    row["segment_ids"][:length],
    [int(position) for position in row["masked_lm_positions"][:masks]],
    row["masked_lm_ids"][:masks],
    bool(row["next_sentence_labels"][0]),
  )


def packed_sequences(number, seed=0):
  """Random sequences, by the row into which they are packed."""
  rng = np.random.default_rng(seed)
  return pack([random_sequence(rng) for _ in range(number)], *SIZES)


def records(rows, layout, *most):
  """Records of rows of sequences."""
  features = [row_features(row, list, ROW, SLOTS, *most) for row in rows]
  return [{name: row[name] for name in layout} for row in features]


def packed_records(number, seed=0):
  """Records of random sequences, packed."""
  return records(packed_sequences(number, seed), PACKED, MOST)


def single_records(number, seed=0):
  """Records of the same sequences, each alone, in the same order."""
  rows = packed_sequences(number, seed)
  return records([[one] for row in rows for one in row], SINGLE)


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
  packed = packed_records(20)
  assert len(packed) < 16
  with tf.Graph().as_default(), tf.Session() as session:
    of_rows = losses_of(packed, compute)
    with tf.variable_scope("", reuse=True):
      graphs = of_rows, losses_of(single_records(20), None)
    session.run(tf.global_variables_initializer())
    (found, used, next_found), (losses, weights, expected) = session.run(graphs)
  # Masks come in the order of their sequences.
  np.testing.assert_allclose(
    found[used > 0], losses[weights > 0], rtol=0, atol=1e-5
  )
  is_label = np.array([row["next_sentence_weights"] for row in packed]) > 0
  np.testing.assert_allclose(
    next_found[is_label], expected[:, 0], rtol=0, atol=1e-5
  )


def test_unused_slots_of_next_sentences_have_no_loss():
  rows = packed_records(8)
  assert any(0 in row["next_sentence_weights"] for row in rows)
  with tf.Graph().as_default(), tf.Session() as session:
    batch = batch_of(rows)
    loss, _ = pretraining_loss(batch)
    unused = 1 - tf.cast(batch["next_sentence_weights"], tf.int32)
    batch["next_sentence_labels"] += unused
    with tf.variable_scope("", reuse=True):
      same, _ = pretraining_loss(batch)
    session.run(tf.global_variables_initializer())
    loss, same = session.run([loss, same])
  assert loss == same


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Packed records, and records of single sequences of the same sizes."""
  folder = tmp_path_factory.mktemp("packed")
  tiny_pretraining.write_data(folder)
  for name, rows in (
    ("packed-0", packed_records(60, 0)),
    ("packed-1", packed_records(50, 1)),
    ("short", packed_records(1)),
    ("unpacked-0", single_records(300, 2)),
    ("unpacked-1", single_records(250, 3)),
    ("single", single_records(12, 4)),
  ):
    layout = PACKED if "sequence_ids" in rows[0] else SINGLE
    tf_records.write_records(f"{folder}/{name}.tfrecord", rows, layout)
  return folder


def packed_flags(folder, output_dir, **changed):
  values = {
    "input_file": "{}/packed-*.tfrecord",
    "max_seq_length": ROW,
    "max_predictions_per_seq": SLOTS,
    "num_train_steps": 12,
    "save_checkpoints_steps": 4,
    "keep_checkpoint_max": 9,
    "xla": "off",
  } | changed
  values["input_file"] = values["input_file"].format(folder)
  return ["--do_train", *flags(folder, output_dir=output_dir, **values)]


# Records that are packed while training.
WHILE_TRAINING = {
  "pack": True,
  "max_sequences_per_row": MOST,
  "input_file": "{}/unpacked-*.tfrecord",
  "num_train_steps": 24,
  "save_checkpoints_steps": 10,
}


@pytest.mark.train
def test_resumed_training_on_packed_rows_ends_with_the_same_weights(
  folder, tmp_path
):
  whole, resumed = tmp_path / "whole", tmp_path / "resumed"
  commands.succeed(SCRIPT, *packed_flags(folder, whole, **WHILE_TRAINING))
  resumed.mkdir()
  for path in whole.glob("model.ckpt-10.*"):
    shutil.copy(path, resumed)
  evaluate = "--do_eval", f"--eval_input_file={folder}/single.tfrecord"
  arguments = packed_flags(folder, resumed, **WHILE_TRAINING)
  commands.succeed(SCRIPT, *evaluate, *arguments)
  # Evaluated on single sequences.
  results = run_outputs.read_numbers(resumed / "eval_results.txt")
  assert {"masked_lm_loss", "next_sentence_loss"} <= set(results)
  run_outputs.assert_same_variables(resumed, whole)


def test_losses_of_micro_batches_average_to_that_of_the_batch():
  rows = packed_records(20)[:8]
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


def test_new_masks_of_packed_rows_keep_sequences_apart():
  rows = packed_records(30)
  batch = batch_of(rows)
  masking = dynamic_masking.Masking(TOKENIZER)
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
    [f"{folder}/short.tfrecord"], ROW, SLOTS, True, trim=True
  )
  (batch,) = input_fn({"batch_size": 1}).take(1)
  features = "input_ids", "segment_ids", "sequence_ids", "position_ids"
  (length,) = {batch[name].shape[1] for name in features}
  assert length < ROW


def packed_batches(folder, packing, num_batches, batch_size=8, **params):
  """Batches of records that are packed while they are read."""
  input_fn = run_pretraining.input_fn_builder(
    sorted(map(str, folder.glob("unpacked-*"))),
    ROW,
    SLOTS,
    is_training=True,
    seed=3,
    packing=packing,
  )
  batches = input_fn({"batch_size": batch_size, **params}).take(num_batches)
  return list(batches.as_numpy_iterator())


@pytest.fixture
def small_window(monkeypatch):
  """Windows of 100 records, in about 50 rows."""
  monkeypatch.setattr(training_batches, "WINDOW_SIZE", 100)


def assert_same_batches(found, expected):
  for batch, other in zip(found, expected, strict=True):
    run_outputs.assert_same_bits(batch, other)


def sequences_of(rows):
  """The token ids of each sequence of a batch."""
  for ids, numbers in zip(rows["input_ids"], rows["sequence_ids"]):
    for number in range(1, numbers.max() + 1):
      yield tuple(ids[numbers == number])


@pytest.mark.usefixtures("small_window")
def test_a_window_has_each_of_its_records_once(folder):
  paths = sorted(map(str, folder.glob("unpacked-*")))
  records = training_batches.stream_epochs(paths, 550, 3)
  windows = input_pipeline.batches(records, SINGLE, 100, True)
  found = collections.defaultdict(collections.Counter)
  packing = training_batches.Packing(MOST)
  for row in packed_batches(folder, packing, 170, batch_size=1):
    found[int(row["input_position"][0, 0])].update(sequences_of(row))
  assert len(found) > 2
  for number, window in enumerate(windows.take(2).as_numpy_iterator()):
    pairs = zip(window["input_ids"], window["input_mask"])
    expected = collections.Counter(tuple(ids[mask > 0]) for ids, mask in pairs)
    assert found[number] == expected


@pytest.mark.usefixtures("small_window")
def test_packed_batches_continue_at_their_position(folder):
  straight = packed_batches(folder, training_batches.Packing(MOST), 20)
  windows = {int(batch["input_position"][0, 0]) for batch in straight}
  assert len(windows) >= 3
  for done in (1, 6, 7, 13):
    window, row = map(int, straight[done - 1]["input_position"][0])
    start = training_batches.Packing(MOST, window, row)
    rest = packed_batches(folder, start, 20 - done)
    assert_same_batches(rest, straight[done:])


@pytest.mark.parametrize("index", [0, 1])
def test_workers_read_their_rows_of_a_packed_batch(folder, index):
  packing = training_batches.Packing(MOST)
  shard = input_pipeline.Shard(index, 2)
  batches = packed_batches(folder, packing, 3, shard=shard)
  rows = slice(4 * index, 4 * index + 4)
  assert_same_batches(
    batches,
    [
      {name: array[rows] for name, array in batch.items()}
      for batch in packed_batches(folder, packing, 3)
    ],
  )


@pytest.mark.parametrize(
  ("changed", "words"),
  [
    ({"max_sequences_per_row": 1}, "--max_sequences_per_row=1: too small"),
    ({"input_file": "{}/packed-*.tfrecord"}, "{}/packed-0.tfrecord has packed"),
    (
      {"input_file": "{0}/packed-0*,{0}/single*"}
      | dict.fromkeys(["pack", "max_sequences_per_row"]),
      "{}/single.tfrecord: its records are packed in another",
    ),
  ],
)
def test_what_cannot_be_packed_is_refused(folder, tmp_path, changed, words):
  arguments = packed_flags(folder, tmp_path, **(WHILE_TRAINING | changed))
  line = commands.fail(SCRIPT, *arguments)
  assert words.format(folder) in line


@pytest.mark.train
def test_another_way_of_packing_is_refused_to_resume(folder, tmp_path):
  changed = WHILE_TRAINING | {"num_train_steps": 6}
  arguments = packed_flags(folder, tmp_path, **changed)
  commands.succeed(SCRIPT, *arguments)
  for flag in ("--pack=false", "--max_sequences_per_row=7", "--seed=5"):
    line = commands.fail(SCRIPT, *arguments, flag)
    assert f"{flag}: {tmp_path}/model.ckpt-6 was trained with --" in line
