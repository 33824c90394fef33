"""Tests of pretraining on a large scale: phases, files of one's own, parts."""

import collections
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_pretraining
from run_pretraining_test import CONFIG, NUM_PREDICTIONS, SEQ_LENGTH, VOCAB_IDS

import optimization
import run_pretraining
from bertlib.checkpoints import checkpoint_writer, finding, model_json
from bertlib.cli.errors import InputError
from bertlib.data import input_pipeline, model_inputs, tf_records
from bertlib.data.input_pipeline import Shard
from bertlib.tasks.pretraining import dynamic_masking, pretraining_instances
from bertlib.training import checkpoint_hook, child_run, distribution

pytestmark = pytest.mark.process

SCRIPT = "run_pretraining.py"
LONG = 32  # tokens of the second phase


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with records of two lengths, and the flags of two phases."""
  place = tmp_path_factory.mktemp("phases")
  (place / "bert_config.json").write_text(CONFIG.to_json_string())
  for number, num_records in enumerate([20, 13, 9]):
    tiny_pretraining.write_examples(
      place / f"train-{number}.tfrecord", num_records, number
    )
  rng = np.random.default_rng(5)
  rows = [tiny_pretraining.random_example(rng)[1] for _ in range(16)]
  for row in rows:
    for name in model_inputs.TOKEN_FEATURES:
      row[name] = row[name] + [0] * (LONG - SEQ_LENGTH)
  tf_records.write_records(
    str(place / "long.tfrecord"),
    rows,
    pretraining_instances.record_layout(LONG, NUM_PREDICTIONS),
  )
  (place / "1.flags").write_text("--num_train_steps=40\n")
  (place / "2.flags").write_text("\n".join(second_phase(place)) + "\n")
  return place


def second_phase(place):
  return [
    f"--input_file={place / 'long.tfrecord'}",
    f"--max_seq_length={LONG}",
    "--train_batch_size=4",
    "--num_train_steps=12",
    "--learning_rate=1e-3",
  ]


def flags(place, output_dir, *more):
  own = tiny_pretraining.flags(place, output_dir=place / output_dir)
  return [*own, "--do_train", "--do_eval", "--xla=off", *more]


def in_phases(place, output_dir, files=("1.flags", "2.flags")):
  names = ",".join(str(place / file) for file in files)
  return flags(place, output_dir, f"--phases={names}")


@pytest.fixture(scope="module")
def main():
  """Runs the script in this process, which spares importing TensorFlow."""
  with commands.in_process(run_pretraining) as run:
    yield run


@pytest.fixture
def main_with_argv(main, monkeypatch):
  """`main`, with `sys.argv` set, which the script reads too."""

  def run(*arguments):
    monkeypatch.setattr(sys, "argv", [SCRIPT, *arguments])
    main(*arguments)

  return run


@pytest.fixture(scope="module")
def phased(place):
  """The folder of a run in two phases."""
  commands.succeed(SCRIPT, *in_phases(place, "phased"))
  return place / "phased"


# Phases


def test_two_phases_are_as_two_commands(place, phased, main):
  main(*flags(place, "first", "--num_train_steps=40"))
  main(
    *flags(place, "second", *second_phase(place)),
    f"--init_checkpoint={place / 'first' / 'model.ckpt-40'}",
  )
  run_outputs.assert_same_variables(phased / "phase_1", place / "first")
  run_outputs.assert_same_variables(phased / "phase_2", place / "second")


def test_the_folder_has_the_model_of_the_last_phase(place, phased, main):
  checkpoint = finding.trained_checkpoint(str(phased))
  assert checkpoint == str(phased / "best" / "model.ckpt-12")
  trained = run_outputs.read_variables(phased / "phase_2")
  found = dict(tf.train.list_variables(checkpoint))
  assert set(found) == {
    n for n in trained if not checkpoint_writer.is_optimizer_variable(n)
  }
  arguments = flags(place, "phased", *second_phase(place), "--nodo_train")
  main(*arguments)
  results, expected = (
    run_outputs.read_numbers(folder / "eval_results.txt")
    for folder in (phased, phased / "phase_2")
  )
  assert results == expected
  description = model_json.load_description(str(phased))
  assert description["max_seq_length"] == LONG


def test_phases_that_have_ended_are_not_run_again(
  place, phased, main_with_argv, monkeypatch
):
  def refuse(*_):
    raise AssertionError("run again")

  copied = place / "again"
  shutil.copytree(phased, copied)
  monkeypatch.setattr(child_run, "run", refuse)
  main_with_argv(*in_phases(place, "again"))
  receipt = json.loads((copied / "run.json").read_text())
  assert receipt["results"]["global_step"] == 12


def start(arguments):
  script = os.path.join(commands.ROOT, SCRIPT)
  return subprocess.Popen(
    [sys.executable, script, *arguments], stderr=subprocess.PIPE, text=True
  )


@pytest.mark.slow
def test_phases_stopped_on_the_way_end_with_the_same_weights(place, phased):
  stopped = place / "stopped"
  with start(in_phases(place, "stopped")) as process:
    checkpoint = stopped / "phase_1" / "model.ckpt-10.index"
    commands.wait_until(checkpoint.exists, process)
    process.send_signal(signal.SIGTERM)
    log = process.communicate(timeout=600)[1]
  assert process.returncode == checkpoint_hook.STOPPED_STATUS, log
  assert "Traceback" not in log
  assert 0 < finding.steps_done(str(stopped / "phase_1")) < 40
  commands.succeed(SCRIPT, *in_phases(place, "stopped"))
  for name in ("phase_1", "phase_2"):
    run_outputs.assert_same_variables(stopped / name, phased / name)


def test_a_phase_that_fails_costs_a_line(place):
  (place / "none.flags").write_text("--input_file=nothing.tfrecord\n")
  line = commands.fail(SCRIPT, *in_phases(place, "failed", ["none.flags"]))
  assert f"{place}/failed/phase_1: the run failed" in line


@pytest.mark.train
@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("--num_train_step=3\n", "wrong.flags: .*num_train_step"),
    ("--num_train_steps=many\n", "wrong.flags: .*many"),
    (None, "wrong.flags: .*[Nn]o such file"),
  ],
)
def test_flags_of_all_phases_are_looked_at_first(
  place, main_with_argv, text, message
):
  (place / "wrong.flags").unlink(missing_ok=True)
  if text:
    (place / "wrong.flags").write_text(text)
  with pytest.raises(InputError, match=message):
    main_with_argv(*in_phases(place, "wrong", ["1.flags", "wrong.flags"]))
  assert not (place / "wrong").exists()


@pytest.mark.train
def test_phases_without_training_are_refused(place, main):
  with pytest.raises(InputError, match="Add --do_train"):
    main(*in_phases(place, "untrained"), "--nodo_train")


def test_a_folder_trained_without_phases_is_refused(place, phased, main):
  folder = phased.relative_to(place) / "phase_1"
  with pytest.raises(InputError, match="trained without --phases"):
    main(*in_phases(place, folder))


def test_the_second_worker_writes_nothing_of_its_own(
  place, phased, main_with_argv, monkeypatch
):
  shared = place / "shared"
  for name in ("phase_1", "phase_2"):
    shutil.copytree(phased / name, shared / name)
  shutil.copy(phased / "phases.json", shared)
  before = set(os.listdir(shared))
  config = {
    "cluster": {"worker": ["a:1", "b:1"]},
    "task": {"type": "worker", "index": 1},
  }
  monkeypatch.setenv("TF_CONFIG", json.dumps(config))
  main_with_argv(*in_phases(place, "shared"), "--distribution=multi_worker")
  assert set(os.listdir(shared)) == before


# A chief that dies while it evaluates, and another worker waits for it


class Workers:
  """Two workers that run phases; an evaluation takes as long as it likes."""

  def __init__(self, place, output_dir):
    with contextlib.ExitStack() as stack:
      sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
      for one in sockets:
        one.bind(("localhost", 0))
      ports = [one.getsockname()[1] for one in sockets]
    self._addresses = [f"localhost:{port}" for port in ports]
    self._logs = place / f"{output_dir}_logs"
    self._logs.mkdir()
    self.arguments = [
      *in_phases(place, output_dir, ["workers.flags"]),
      "--learning_rate=1e-3",
    ]
    (place / "workers.flags").write_text(
      "--distribution=multi_worker\n--num_train_steps=4\n--num_warmup_steps=1\n"
    )

  def start(self, index, *more):
    """Starts a worker, the leader of a process group."""
    task = {"type": "worker", "index": index}
    cluster = {"worker": self._addresses}
    with open(self.log(index), "a") as log:
      return subprocess.Popen(
        [
          sys.executable,
          os.path.join(commands.ROOT, SCRIPT),
          *self.arguments,
          *more,
        ],
        stderr=log,
        start_new_session=True,
        env=os.environ
        | {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})},
      )

  def log(self, index):
    return self._logs / f"{index}.log"

  def wait_for_line(self, index, text, *processes):
    commands.wait_until(lambda: text in self.log(index).read_text(), *processes)


@contextlib.contextmanager
def killed_at_end(process):
  """Kills a process and those that it started."""
  try:
    yield process
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()


ENDLESS = "--max_eval_steps=1000000"
EVALUATING = "Evaluating on"
TRAINED = "This worker is done"


@pytest.mark.slow
def test_a_worker_ends_when_the_chief_dies_while_it_evaluates(place):
  workers = Workers(place, "lost")
  with (
    killed_at_end(workers.start(0, ENDLESS)) as chief,
    killed_at_end(workers.start(1)) as waiting,
  ):
    workers.wait_for_line(0, EVALUATING, chief, waiting)
    workers.wait_for_line(1, TRAINED, chief, waiting)
    os.killpg(chief.pid, signal.SIGKILL)
    assert waiting.wait(timeout=600) == 1
  line = workers.log(1).read_text().splitlines()[-1]
  assert line.startswith(f"{SCRIPT}: error: {place / 'lost'}: the chief worker")
  assert "Traceback" not in workers.log(1).read_text()


@pytest.mark.slow
def test_a_worker_goes_on_with_a_chief_that_is_started_again(place):
  workers = Workers(place, "restarted")
  with killed_at_end(workers.start(1)) as waiting:
    with killed_at_end(workers.start(0, ENDLESS)) as chief:
      workers.wait_for_line(0, EVALUATING, chief, waiting)
      workers.wait_for_line(1, TRAINED, chief, waiting)
    saved = (place / "restarted/phase_1/model.ckpt-4.index").stat().st_mtime_ns
    with killed_at_end(workers.start(0, "--max_eval_steps=1")) as chief:
      assert chief.wait(timeout=600) == 0, workers.log(0).read_text()
    assert waiting.wait(timeout=600) == 0, workers.log(1).read_text()
  phase = place / "restarted" / "phase_1"
  assert (phase / "model.ckpt-4.index").stat().st_mtime_ns == saved
  assert "global_step" in run_outputs.read_results(phase / "eval_results.txt")


# What each process reads

FILE_SIZES = {
  "train-0.tfrecord": 20,
  "train-1.tfrecord": 13,
  "train-2.tfrecord": 9,
}
MASKINGS = [None, dynamic_masking.Masking(VOCAB_IDS)]


def batches(
  place, shard, by_file, batch_size, masking=None, first_step=0, **more
):
  """The endless batches of a process, or of all of them."""
  sizes = {str(place / name): size for name, size in FILE_SIZES.items()}
  input_fn = run_pretraining.input_fn_builder(
    list(reversed(sizes)),
    SEQ_LENGTH,
    NUM_PREDICTIONS,
    is_training=True,
    seed=3,
    first_step=first_step,
    masking=masking,
    num_records=sum(sizes.values()),
    by_file=sizes if by_file else None,
  )
  return input_fn({"batch_size": batch_size, "shard": shard, **more})


def take(dataset, number):
  return list(dataset.take(number).as_numpy_iterator())


def joined(parts):
  """Batches one after the other, as one."""
  return {
    name: np.concatenate([part[name] for part in parts]) for name in parts[0]
  }


def assert_equal(batch, expected):
  assert batch.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(batch[name], array, name)


@pytest.mark.graph
@pytest.mark.parametrize("masking", MASKINGS)
def test_by_record_all_processes_have_the_whole_batch(place, masking):
  steps, count, num_replicas = 7, 3, 2
  whole = take(batches(place, None, False, 12, masking), steps)
  parts = [
    take(
      batches(place, Shard(index, count, num_replicas), False, 12, masking),
      steps * num_replicas,
    )
    for index in range(count)
  ]
  for step, expected in enumerate(whole):
    of_step = slice(step * num_replicas, (step + 1) * num_replicas)
    found = [part for of_process in parts for part in of_process[of_step]]
    assert_equal(joined(found), expected)


def key(batch, row):
  return tuple(
    tuple(np.ravel(batch[name][row]))
    for name in ("input_ids", "masked_lm_positions", "masked_lm_ids")
  )


def records_of(place, name):
  layout = pretraining_instances.record_layout(SEQ_LENGTH, NUM_PREDICTIONS)
  (batch,) = input_pipeline.record_batches(
    [str(place / name)], layout, FILE_SIZES[name], False, False
  ).as_numpy_iterator()
  return collections.Counter(key(batch, row) for row in range(FILE_SIZES[name]))


@pytest.mark.unit
@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize(
  ("index", "names"),
  [
    (0, ["train-0.tfrecord", "train-2.tfrecord"]),
    (1, ["train-1.tfrecord"]),
  ],
)
def test_by_file_each_record_comes_once_an_epoch(
  place, index, names, num_replicas
):
  expected = sum((records_of(place, n) for n in names), collections.Counter())
  size = sum(expected.values())
  shard = Shard(index, 2, num_replicas)
  parts = take(batches(place, shard, True, 2 * num_replicas), 3 * size)
  rows = [key(part, 0) for part in parts]  # which have one row each
  epochs = [rows[size * n : size * (n + 1)] for n in range(3)]
  for epoch in epochs:
    assert collections.Counter(epoch) == expected
  assert epochs[0] != epochs[1]


@pytest.mark.graph
@pytest.mark.parametrize("masking", MASKINGS)
def test_by_file_batches_go_on_where_training_was(place, masking):
  shard = Shard(1, 2, 2)
  straight = take(batches(place, shard, True, 8, masking), 24)
  for first_step in (1, 4, 9):  # an epoch is of 13 records, a step of 4
    rest = straight[2 * first_step :]
    again = batches(place, shard, True, 8, masking, first_step)
    for batch, expected in zip(take(again, len(rest)), rest):
      assert_equal(batch, expected)


@pytest.mark.unit
def test_by_file_processes_draw_masks_of_their_own(place, tmp_path):
  drawn = []
  for name in ("a.tfrecord", "b.tfrecord"):  # of the same records
    shutil.copy(place / "train-0.tfrecord", tmp_path / name)
  sizes = {str(path): 20 for path in sorted(tmp_path.glob("*.tfrecord"))}
  for index in range(2):
    input_fn = run_pretraining.input_fn_builder(
      list(sizes),
      SEQ_LENGTH,
      NUM_PREDICTIONS,
      is_training=True,
      masking=MASKINGS[1],
      num_records=40,
      by_file=sizes,
    )
    params = {"batch_size": 40, "shard": Shard(index, 2)}
    (batch,) = take(input_fn(params), 1)
    drawn.append(batch)
  for name in ("input_mask", "segment_ids"):
    np.testing.assert_array_equal(drawn[0][name], drawn[1][name])
  assert (drawn[0]["input_ids"] != drawn[1]["input_ids"]).any()


@pytest.mark.unit
@pytest.mark.parametrize("by_file", [False, True])
@pytest.mark.parametrize("masking", MASKINGS)
def test_a_traced_step_has_the_rows_of_all_processes(place, by_file, masking):
  step, count, num_replicas = 6, 2, 2
  shard = Shard(0, count, num_replicas)
  (traced,) = take(
    batches(place, shard, by_file, 8, masking, traced_step=step), 1
  )
  for name in ("record_file", "record_number"):
    assert traced.pop(name).shape == (8,)
  first = step * num_replicas
  trained = []
  for index in range(count):
    shard = Shard(index, count, num_replicas)
    dataset = batches(place, shard, by_file, 8, masking)
    trained += take(dataset.skip(first), num_replicas)
  assert_equal(traced, joined(trained))


@pytest.mark.graph
def test_a_traced_step_by_file_names_the_files_of_all_processes(place):
  sizes = {str(place / name): size for name, size in FILE_SIZES.items()}
  input_fn = run_pretraining.input_fn_builder(
    list(sizes),
    SEQ_LENGTH,
    NUM_PREDICTIONS,
    is_training=True,
    num_records=sum(sizes.values()),
    by_file=sizes,
  )
  params = {"batch_size": 8, "shard": Shard(1, 2)}
  traced = checkpoint_hook.batch_at(input_fn, params, step=3)
  names = [os.path.basename(file) for file in traced["record_file"]]
  assert set(names[:4]) <= {"train-0.tfrecord", "train-2.tfrecord"}
  assert set(names[4:]) == {"train-1.tfrecord"}


@pytest.mark.unit
def test_fewer_files_than_processes_are_refused(place):
  with pytest.raises(InputError, match="3 files cannot be shared by 4 proc"):
    batches(place, Shard(0, 4), True, 8)


@pytest.mark.train
def test_for_one_process_by_file_is_by_record(place, main):
  for name in ("record", "file"):
    main(
      *flags(
        place,
        name,
        f"--shard_by={name}",
        "--num_train_steps=2",
        "--num_warmup_steps=0",
      ),
      "--nodo_eval",
    )
  run_outputs.assert_same_variables(place / "record", place / "file")


# Micro-batches and replicas


def values_exchanged(monkeypatch, num_micro_batches):
  """Number of values in each exchange between two replicas, per step."""
  found = []
  model_fn = run_pretraining.model_fn_builder(
    CONFIG,
    None,
    1e-3,
    10,
    2,
    use_tpu=False,
    use_one_hot_embeddings=False,
    options=optimization.StepOptions(
      optimizer="lamb", num_micro_batches=num_micro_batches
    ),
  )
  layout = pretraining_instances.record_layout(SEQ_LENGTH, NUM_PREDICTIONS)

  @tf.autograph.experimental.do_not_convert
  def build():
    batch = {
      name: tf.zeros(
        [8, *feature.shape], tf.float32 if feature.is_float else tf.int32
      )
      for name, feature in layout.items()
    }
    spec = model_fn(batch, None, "train", {"batch_size": 16})
    return spec.train_op

  with tf.Graph().as_default():
    strategy = distribution._local_strategy(2)
    exchange = strategy.extended.batch_reduce_to

    def counted(operation, pairs, *more):
      pairs = list(pairs)
      found.append(len(pairs))
      return exchange(operation, pairs, *more)

    monkeypatch.setattr(strategy.extended, "batch_reduce_to", counted)
    with strategy.scope():
      tf.train.get_or_create_global_step()
      strategy.run(build)
  return found


@pytest.mark.train
def test_micro_batches_cost_no_exchange_of_their_own(monkeypatch):
  whole = values_exchanged(monkeypatch, 1)
  assert max(whole) > 10  # the gradients, all at once
  assert values_exchanged(monkeypatch, 4) == whole
