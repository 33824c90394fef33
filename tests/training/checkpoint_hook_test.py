"""Tests of checkpointing in runs that are stopped, killed or fail.

Some start real processes and send them signals or limit their disk space; the
others train one weight with Estimator.
"""

import contextlib
import functools
import os
import re
import resource
import signal
import subprocess
import sys
import threading

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_pretraining
from parametrize import parametrize
from refused import assert_refused

import run_pretraining
from bertlib.checkpoints import checkpoint_files
from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api
from bertlib.data import input_pipeline, tf_records, training_records
from bertlib.tasks.pretraining import pretraining_instances, training_batches
from bertlib.training import hooks

pytestmark = pytest.mark.train


NUMBERED = tf_records.token_layout(tiny_pretraining.SEQ_LENGTH)
NUMBERED |= {"number": tf_records.Feature()}
NUM_STEPS = 200


@pytest.fixture
def numbered(tmp_path):
  """Files of numbered records, and the (file, index) of each number."""
  rng = np.random.default_rng(0)
  examples = [tiny_pretraining.random_example(rng)[1] for _ in range(13)]
  rows = [row | {"number": n} for n, row in enumerate(examples)]
  locations, first = [], 0
  for name, size in (("a", 5), ("b", 8)):
    path = str(tmp_path / name)
    tf_records.write_records(path, rows[first : first + size], NUMBERED)
    locations += [(path, number) for number in range(size)]
    first += size
  return list(dict(locations)), locations


def streamed_batches(files, layout, batch_size, trim, *order, **more):
  """Batches of `training_batches.stream_epochs`."""
  records = training_batches.stream_epochs(files, *order, **more)
  return input_pipeline.batches(records, layout, batch_size, True, trim)


@pytest.mark.graph
@parametrize(
  "make",
  training_records.shuffled_record_batches,
  functools.partial(training_records.shuffled_record_batches, by_length=True),
  streamed_batches,
)
def test_traced_batch_is_that_of_its_step(numbered, make):
  files, locations = numbered
  batches = functools.partial(make, files, NUMBERED, 4, True, 13, 7)

  straight = [*batches().take(10).as_numpy_iterator()]
  for step in (0, 3, 6, 9):  # all but the first span two epochs
    batch = straight[step]
    traced = next(batches(step * 4, with_source=True).as_numpy_iterator())
    named = zip(traced.pop("record_file"), traced.pop("record_number"))
    found = [(file.decode(), number) for file, number in named]
    assert found == [locations[number] for number in batch["number"]]
    assert traced.keys() == batch.keys()
    for name, tensor in batch.items():
      np.testing.assert_array_equal(traced[name], tensor)


@pytest.mark.graph
def test_batch_is_recreated_from_its_step(numbered):
  files, _ = numbered
  input_fn = training_records.record_input_fn(
    files[0], NUMBERED, True, True, seed=3, first_step=7
  )
  straight = training_records.shuffled_record_batches(
    files[0], NUMBERED, 2, False, 5, seed=3
  )
  for step, batch in enumerate(straight.take(6).as_numpy_iterator()):
    again = hooks.batch_at(input_fn, 2, step)
    np.testing.assert_array_equal(again["number"], batch["number"])
    assert again["record_number"].tolist() == batch["number"].tolist()
    assert again["record_file"].tolist() == [files[0]] * 2


@pytest.mark.graph
def test_untraceable_input_has_no_batch():
  assert not hooks.batch_at(endless, 2, step=3)


def endless(params):
  del params
  return tf.data.Dataset.from_tensors({"x": 0.0}).repeat()


def add_one(features, labels, mode, params):
  """Counts the steps in a weight; `params` has the loss and norm per step."""
  del features, labels
  step = tf.train.get_global_step()
  weight = tf.get_variable("weight", initializer=0.0)
  loss, norm, added = (
    tf.gather(tf.constant(params.get(name, [0.0] * 99)), step)
    for name in ("loss", "norm", "added")
  )
  with tf.control_dependencies([tf.identity(norm)]):
    train_op = tf.group(weight.assign_add(1.0 + added))
  with tf.control_dependencies([train_op, loss, norm]):
    train_op = step.assign_add(1)
  values = {"loss": loss, "norm": norm, "added": added}
  hooks.watch(values, params.get("finite", ["loss", "norm"]))
  return estimator_api.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train(
  folder, last, others=(), listeners=(), params=None, model_fn=add_one, **more
):
  """Trains the weight up to a step, with a `CheckpointHook(**more)`."""
  config = estimator_api.EstimatorRunConfig(
    model_dir=str(folder), keep_checkpoint_max=99, save_summary_steps=0
  )
  estimator = estimator_api.Estimator(model_fn, config=config, params=params)
  hook = hooks.CheckpointHook(str(folder), **more)
  ends = {"max_steps": last, "saving_listeners": listeners}
  estimator.train(lambda: endless({}), [hook, *others], **ends)


def saved_steps(folder):
  names = [path.stem for path in folder.glob("model.ckpt-*.index")]
  return sorted(int(name.split("-")[1]) for name in names)


class AtStep(tf.train.SessionRunHook):
  def __init__(self, step, call):
    self._step, self._call = step, call

  def after_run(self, run_context, run_values):
    step = run_context.session.run(tf.train.get_global_step())
    if step == self._step:
      self._call()


class Listener(tf.train.CheckpointSaverListener):
  """Lists the steps that are saved; ends training at step `last`."""

  def __init__(self, last=None):
    self.steps, self._last = [], last

  def after_save(self, session, global_step_value):
    self.steps.append(global_step_value)
    return global_step_value == self._last


def nan_at(step, value=np.nan):
  """Values by step: `value` at `step`, counted from 1, and 0.0 elsewhere."""
  return [value if number == step else 0.0 for number in range(1, 100)]


@pytest.mark.smoke
def test_checkpoints_are_saved_at_multiples_of_save_steps(tmp_path):
  train(tmp_path, 5, save_steps=4)
  assert saved_steps(tmp_path) == [4, 5]
  train(tmp_path, 13, save_steps=4)
  assert saved_steps(tmp_path) == [4, 5, 8, 12, 13]


def test_checkpoints_are_saved_by_the_clock(tmp_path):
  ticks = iter(range(0, 10**6, 10))  # read once per step and once per save
  train(tmp_path, 9, save_secs=25, save_steps=8, now=lambda: next(ticks))
  assert saved_steps(tmp_path) == [3, 6, 8, 9]


def test_resuming_does_not_save_the_same_step_again(tmp_path):
  train(tmp_path, 3)
  before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("model.ckpt*")}
  train(tmp_path, 6, save_steps=3)
  assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.smoke
def test_listeners_are_called_after_saves_and_may_end_training(tmp_path):
  listener = Listener(last=4)
  train(tmp_path, 9, listeners=[listener], save_steps=2)
  assert listener.steps == [0, 2, 4]
  assert saved_steps(tmp_path) == [2, 4]


@pytest.mark.smoke
def test_failed_save_keeps_the_earlier_checkpoints(tmp_path, monkeypatch):
  train(tmp_path, 3)
  kept = {path.name for path in tmp_path.iterdir()}

  def fail(self, session, path, step, **options):
    (tmp_path / f"model.ckpt-{step}_temp").mkdir()
    (tmp_path / f"model.ckpt-{step}.index").write_bytes(b"half")
    raise tf.errors.ResourceExhaustedError(
      None, None, f"{path}; No space left on device\n\t [[save/SaveV2]]"
    )

  monkeypatch.setattr(tf.train.Saver, "save", fail)
  assert_refused(r"ckpt: No space left on device\. Make", train, tmp_path, 6)
  files = {path.name for path in tmp_path.iterdir()}
  assert {f for f in files - kept if "events" not in f} == set()


@pytest.mark.process
@parametrize(
  "number, times, after, status",
  (signal.SIGTERM, 2, None, 143),
  # The next one ends the process.
  (signal.SIGINT, 1, signal.SIG_DFL, 130),
)
def test_a_signal_saves_and_then_stops(tmp_path, number, times, after, status):
  before, listener = signal.getsignal(number), Listener()

  def interrupt():
    for _ in range(times):
      os.kill(os.getpid(), number)

  with hooks.StopRequest() as stop:
    at_step = [AtStep(5, interrupt)]
    train(tmp_path, 99, at_step, [listener], save_steps=10, stop=stop)
    assert after in (None, signal.getsignal(number))
  assert saved_steps(tmp_path) == [6]
  with pytest.raises(SystemExit) as ended:
    stop.exit_if_requested(str(tmp_path))
  assert ended.value.code == status
  # Evaluating the checkpoint would take too long.
  assert listener.steps == [0]
  assert signal.getsignal(number) == before


def test_initial_weights_are_saved_without_moments(tmp_path):
  def with_moment(features, labels, mode, params):
    spec = add_one(features, labels, mode, params)
    tf.get_variable("weight/adam_m", initializer=0.0, trainable=False)
    return spec

  stop = hooks.StopRequest()
  stop.requested = True
  train(tmp_path, 9, model_fn=with_moment, stop=stop)
  assert saved_steps(tmp_path) == [0]
  saved = run_outputs.read_variables(str(tmp_path / "model.ckpt-0"))
  assert saved == {"weight": 0.0, "global_step": 0}


@pytest.mark.unit
def test_only_the_main_thread_handles_signals():
  before, within = signal.getsignal(signal.SIGTERM), []

  def listen():
    with hooks.StopRequest():
      within.append(signal.getsignal(signal.SIGTERM))

  thread = threading.Thread(target=listen)
  thread.start()
  thread.join()
  assert within == [before]


@pytest.mark.smoke
@parametrize(
  "name, value", ("loss", np.nan), ("loss", np.inf), ("norm", -np.inf)
)
def test_nan_or_inf_aborts_before_saving(tmp_path, name, value):
  with pytest.raises(InputError, match=f"^step 6: .*{name} {value}"):
    train(tmp_path, 9, params={name: nan_at(6, value)}, save_steps=2)
  assert saved_steps(tmp_path) == [2, 4]
  with np.load(tmp_path / "failed_step_6.npz") as saved:
    np.testing.assert_array_equal(saved[name], np.float32(value))


@parametrize(
  "params",
  {"norm": nan_at(2, np.inf), "finite": ["loss"]},
  {"added": nan_at(2, 1e30)},  # the square of the weight overflows
)
def test_value_that_may_be_infinite_does_not_stop_training(tmp_path, params):
  train(tmp_path, 3, params=params)
  assert saved_steps(tmp_path) == [3]


def test_weights_with_inf_are_not_saved(tmp_path):
  with pytest.raises(InputError, match=r"^step 4: .*weight contains NaN"):
    train(tmp_path, 9, params={"added": nan_at(3, np.inf)}, save_steps=2)
  assert saved_steps(tmp_path) == [2]


def test_weights_with_nan_cannot_be_trained_further(tmp_path):
  path = str(tmp_path / "model.ckpt-3")
  values = {"weight": np.float32(np.nan), "global_step": np.int64(3)}
  checkpoint_files.write_variables(path, values)
  tf.train.update_checkpoint_state(str(tmp_path), path)
  assert_refused(rf"^{path}: weight contains NaN", train, tmp_path, 9)


def test_error_names_the_first_records_of_the_batch(tmp_path):
  batch = {
    "record_file": np.array(["b"] * 4 + ["a"] * 9),
    "record_number": np.array([7, 1, 3, 2, *range(20, 11, -1)]),
  }
  steps = []

  def batch_of_step(step):
    steps.append(step)
    return batch

  with pytest.raises(InputError) as failed:
    train(tmp_path, 9, params={"loss": nan_at(3)}, batch_of_step=batch_of_step)
  assert steps == [2]
  assert (
    "Records of its batch, counted from 0: a: records 12, 13, 14, 15, 16, 17,"
    " 18, 19, 20; b: records 1 and 3 more. "
  ) in str(failed.value)
  with np.load(tmp_path / "failed_step_3.npz") as saved:
    for name, values in batch.items():
      np.testing.assert_array_equal(saved[name], values)


# Whole runs


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
  workspace = tmp_path_factory.mktemp("checkpoint_hook")
  tiny_pretraining.write_data(workspace)
  return workspace


def pretraining(workspace, folder, **changed):
  values = {"num_train_steps": NUM_STEPS, "save_checkpoints_steps": 20}
  values |= {"output_dir": workspace / folder, "xla": "off"}
  flags = tiny_pretraining.flags(workspace, **(values | changed))
  return ["--do_train", *flags]


@contextlib.contextmanager
def started(workspace, folder):
  """Runs a process; the block begins when it has saved step 40."""
  script = os.path.join(commands.ROOT, "run_pretraining.py")
  process = subprocess.Popen(
    [sys.executable, script, *pretraining(workspace, folder)],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
  )
  try:
    saved = workspace / folder / "model.ckpt-40.index"
    commands.wait_until(saved.exists, process)
    yield process
  finally:
    process.kill()
    process.wait()


# `run_pretraining_packing_test.py` kills one.
@pytest.fixture(scope="module")
def stopped(workspace):
  """Status and log of a run that is stopped after step 40."""
  with started(workspace, "stopped") as process:
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate()
  return process.returncode, log


@pytest.mark.process
def test_stopped_run_saves_first(workspace, stopped):
  status, log = stopped
  assert status == 143 and "Traceback" not in log, log
  (last,) = re.findall(r"Stopped by SIGTERM at step (\d+); checkpoint", log)
  assert run_outputs.steps_done(workspace / "stopped") == int(last) < NUM_STEPS
  # The run ends there.
  assert not (workspace / "stopped" / "report.html").exists()


@pytest.mark.process
@pytest.mark.usefixtures("stopped")
def test_stopped_run_resumes(workspace):
  with commands.in_process(run_pretraining) as main:
    for folder in ("stopped", "straight"):
      main(*pretraining(workspace, folder))
  found, expected = (
    run_outputs.read_variables(workspace / folder)
    for folder in ("stopped", "straight")
  )
  assert found["global_step"] == NUM_STEPS
  run_outputs.assert_same_bits(found, expected)


@pytest.mark.process
def test_full_disk_is_an_error_of_one_line(workspace):
  with started(workspace, "full") as process:
    # No file may grow beyond 100 bytes.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100, 100))
    _, log = process.communicate()
  assert process.returncode == 1 and "Traceback" not in log, log
  assert re.search(r"error: .*full/.*: File too large\. Make room", log)
  assert not [*(workspace / "full").glob("*temp*")]


def test_nan_loss_names_step_and_records(workspace):
  folder = workspace / "lost"
  diverging = {"learning_rate": 1e38, "num_warmup_steps": 0}
  flags = pretraining(workspace, "lost", **diverging)
  message = commands.fail("run_pretraining.py", *flags)
  step = int(re.search(r": step (\d+): loss (nan|inf)", message)[1])
  sizes = tiny_pretraining.SEQ_LENGTH, tiny_pretraining.NUM_PREDICTIONS
  files = sorted(map(str, workspace.glob("train-*.tfrecord")))
  layout = pretraining_instances.record_layout(*sizes)
  batches = streamed_batches(files, layout, 8, True, 20 + 13 + 9, seed=12345)
  (batch,) = batches.skip(step - 1).take(1).as_numpy_iterator()
  with np.load(folder / f"failed_step_{step}.npz") as saved:
    for name, values in batch.items():
      np.testing.assert_array_equal(saved[name], values)
    assert not np.isfinite(saved["loss"])
  assert f"{folder}/failed_step_{step}.npz" in message
