"""Tests of what is kept of a run that is stopped, killed or goes wrong.

Some start real processes, all at once, and send signals to them or fill their
disk; the others train one weight with Estimator.
"""

import contextlib
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

import modeling
import run_classifier
import run_pretraining
from bertlib import estimator_api
from bertlib.checkpoints import checkpoint_writer, finding
from bertlib.data import input_pipeline, tf_records
from bertlib.errors import InputError
from bertlib.training import checkpoint_hook

pytestmark = pytest.mark.train

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day"]
CONFIG = modeling.BertConfig(
  vocab_size=len(WORDS),
  hidden_size=8,
  num_hidden_layers=1,
  num_attention_heads=2,
  intermediate_size=8,
  max_position_embeddings=8,
  type_vocab_size=2,
)
LAYOUT = tf_records.pretraining_layout(8, 2)
FILE_SIZES = {"a.tfrecord": 5, "b.tfrecord": 8}


# Where records are


def pretraining_row(number):
  """A record of 3 to 8 tokens, among which is its number."""
  length = 3 + number % 6
  padding = [0] * (8 - length)
  return {
    "input_ids": [2, *[5] * (length - 2), 3, *padding],
    "input_mask": [1] * length + padding,
    "segment_ids": [0] * 8,
    "masked_lm_positions": [1, 0],
    "masked_lm_ids": [6, 0],
    "masked_lm_weights": [1.0, 0.0],
    "next_sentence_labels": [number % 2],
  }


NUMBERED = tf_records.token_layout(8) | {"number": tf_records.Feature()}


@pytest.fixture
def numbered(tmp_path):
  """Files of records that have a number each; of each number its place."""
  rows = [pretraining_row(n) | {"number": n} for n in range(13)]
  places, first = [], 0
  for name, size in FILE_SIZES.items():
    path = str(tmp_path / name)
    tf_records.write_records(path, rows[first : first + size], NUMBERED)
    places += [(path, number) for number in range(size)]
    first += size
  return list(dict(places)), places


@pytest.mark.graph
@pytest.mark.parametrize(
  ("make_batches", "options"),
  [
    (input_pipeline.shuffled_record_batches, {}),
    (input_pipeline.shuffled_record_batches, {"by_length": True}),
    (input_pipeline.streamed_record_batches, {}),
  ],
)
def test_a_traced_batch_is_that_of_its_step_with_the_places(
  numbered, make_batches, options
):
  files, places = numbered

  def batches(first_record=0, **more):
    return make_batches(
      files, NUMBERED, 4, True, 13, 7, first_record, **options, **more
    )

  straight = [*batches().take(10).as_numpy_iterator()]
  for step in (0, 3, 6, 9):  # all but the first have a border of epochs
    batch = straight[step]
    dataset = batches(step * 4, with_source=True)
    traced = next(dataset.as_numpy_iterator())
    named = zip(traced.pop("record_file"), traced.pop("record_number"))
    found = [(file.decode(), number) for file, number in named]
    assert found == [places[number] for number in batch["number"]]
    assert traced.keys() == batch.keys()
    for name, tensor in batch.items():
      np.testing.assert_array_equal(traced[name], tensor)


@pytest.mark.graph
def test_a_batch_is_made_again_from_its_step(numbered):
  files, _ = numbered
  input_fn = input_pipeline.record_input_fn(
    files[0], NUMBERED, True, True, seed=3, first_step=7
  )
  straight = input_pipeline.shuffled_record_batches(
    files[0], NUMBERED, 2, False, 5, seed=3
  )
  for step, batch in enumerate(straight.take(6).as_numpy_iterator()):
    again = checkpoint_hook.batch_at(
      input_fn, {"batch_size": 2, "shard": input_pipeline.Shard(1, 2)}, step
    )
    np.testing.assert_array_equal(again["number"], batch["number"])
    assert again["record_number"].tolist() == batch["number"].tolist()
    assert again["record_file"].tolist() == [files[0]] * 2


@pytest.mark.graph
def test_an_input_that_cannot_tell_has_no_batch():
  assert not checkpoint_hook.batch_at(endless, {"batch_size": 2}, step=3)


# One weight


def endless(params):
  del params
  return tf.data.Dataset.from_tensors({"x": 0.0}).repeat()


def add_one(features, labels, mode, params):
  """Counts the steps in a weight; its loss and norm are what `params` says."""
  del features, labels
  step = tf.train.get_global_step()
  weight = tf.get_variable("weight", initializer=0.0)
  told = {
    name: tf.gather(tf.constant(params.get(name, [0.0] * 99)), step)
    for name in ("loss", "norm", "added")
  }
  with tf.control_dependencies([tf.identity(told["norm"])]):
    train_op = tf.group(weight.assign_add(1.0 + told["added"]))
  with tf.control_dependencies([train_op, *told.values()]):
    train_op = step.assign_add(1)
  checkpoint_hook.watch(told, params.get("finite", ["loss", "norm"]))
  return estimator_api.EstimatorSpec(mode, loss=told["loss"], train_op=train_op)


def train(folder, num_steps, hooks=(), listeners=(), params=None, **options):
  """Trains the weight up to a step with a `CheckpointHook` of these options."""
  config = estimator_api.EstimatorRunConfig(
    model_dir=str(folder), keep_checkpoint_max=99, save_summary_steps=0
  )
  estimator = estimator_api.Estimator(add_one, config=config, params=params)
  hook = checkpoint_hook.CheckpointHook(str(folder), **options)
  estimator.train(
    lambda: endless({}),
    [hook, *hooks],
    max_steps=num_steps,
    saving_listeners=listeners,
  )


def saved_steps(folder):
  names = [path.stem for path in folder.glob("model.ckpt-*.index")]
  return sorted(int(name.split("-")[1]) for name in names)


class AtStep(tf.train.SessionRunHook):
  """Calls something at the end of a step."""

  def __init__(self, step, call):
    self._step, self._call = step, call

  def after_run(self, run_context, run_values):
    step = run_context.session.run(tf.train.get_global_step())
    if step == self._step:
      self._call()


class Listener(tf.train.CheckpointSaverListener):
  """Lists the steps that it is told of; ends training at one of them."""

  def __init__(self, last=None):
    self.steps, self._last = [], last

  def after_save(self, session, global_step_value):
    self.steps.append(global_step_value)
    return global_step_value == self._last


def nan_at(step, value=np.nan):
  """What is told by step, 0.0 but for that step, counted from 1."""
  told = [0.0] * 99
  told[step - 1] = value
  return told


# When it saves


@pytest.mark.smoke
def test_it_saves_multiples_wherever_it_began(tmp_path):
  train(tmp_path, 5, save_steps=4)
  assert saved_steps(tmp_path) == [4, 5]
  train(tmp_path, 13, save_steps=4)
  assert saved_steps(tmp_path) == [4, 5, 8, 12, 13]


def test_it_saves_by_the_clock_too(tmp_path):
  ticks = iter(range(0, 10**6, 10))  # asked once a step and once a save
  train(tmp_path, 9, save_secs=25, save_steps=8, now=lambda: next(ticks))
  assert saved_steps(tmp_path) == [3, 6, 8, 9]


def test_what_is_saved_is_not_saved_again(tmp_path):
  train(tmp_path, 3)
  before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("model.ckpt*")}
  train(tmp_path, 6, save_steps=3)
  for name, written in before.items():
    assert (tmp_path / name).stat().st_mtime_ns == written


@pytest.mark.smoke
def test_listeners_hear_of_saves_and_may_end_training(tmp_path):
  listener = Listener(last=4)
  train(tmp_path, 9, listeners=[listener], save_steps=2)
  assert listener.steps == [0, 2, 4]
  assert saved_steps(tmp_path) == [2, 4]


@pytest.mark.smoke
def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
  train(tmp_path, 3)
  kept = {path.name for path in tmp_path.iterdir()}

  def fail(self, session, path, step):
    (tmp_path / f"model.ckpt-{step}_temp").mkdir()
    (tmp_path / f"model.ckpt-{step}.index").write_bytes(b"half")
    raise tf.errors.ResourceExhaustedError(
      None, None, f"{path}; No space left on device\n\t [[save/SaveV2]]"
    )

  monkeypatch.setattr(tf.train.Saver, "save", fail)
  with pytest.raises(InputError, match=r"ckpt: No space left on device\. Make"):
    train(tmp_path, 6)
  files = {path.name for path in tmp_path.iterdir()}
  assert {f for f in files - kept if "events" not in f} == set()


# When it stops


@pytest.mark.process
def test_sigterm_saves_and_stops_at_the_end_of_the_step(tmp_path):
  before = signal.getsignal(signal.SIGTERM)
  listener = Listener()

  def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)

  with checkpoint_hook.StopRequest() as stop:
    hooks = [AtStep(5, terminate)]
    train(tmp_path, 99, hooks, [listener], save_steps=10, stop=stop)
  assert saved_steps(tmp_path) == [6]
  # What scores checkpoints would take its time.
  assert listener.steps == [0]
  assert signal.getsignal(signal.SIGTERM) == before
  with pytest.raises(SystemExit) as ended:
    stop.exit_if_requested(str(tmp_path))
  assert ended.value.code == 143


@pytest.mark.process
def test_sigint_stops_as_sigterm_does_with_its_own_status(tmp_path):
  before = signal.getsignal(signal.SIGINT)
  with checkpoint_hook.StopRequest() as stop:
    hooks = [AtStep(5, lambda: os.kill(os.getpid(), signal.SIGINT))]
    train(tmp_path, 99, hooks, save_steps=10, stop=stop)
    # The next one ends the process.
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
  assert signal.getsignal(signal.SIGINT) == before
  assert saved_steps(tmp_path) == [6]
  with pytest.raises(SystemExit) as ended:
    stop.exit_if_requested(str(tmp_path))
  assert ended.value.code == 130


@pytest.mark.unit
def test_nobody_s_wish_ends_nothing(tmp_path):
  with checkpoint_hook.StopRequest() as stop:
    pass
  stop.exit_if_requested(str(tmp_path))


def test_a_stop_before_the_first_step_trains_nothing(tmp_path):
  stop = checkpoint_hook.StopRequest()
  stop.requested = True
  train(tmp_path, 9, stop=stop)
  assert saved_steps(tmp_path) == [0]


@pytest.mark.unit
def test_another_thread_does_not_listen_to_signals():
  before, within = signal.getsignal(signal.SIGTERM), []

  def listen():
    with checkpoint_hook.StopRequest():
      within.append(signal.getsignal(signal.SIGTERM))

  thread = threading.Thread(target=listen)
  thread.start()
  thread.join()
  assert within == [before]


# When it gives up


@pytest.mark.smoke
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["loss", "norm"])
def test_it_gives_up_before_what_is_no_number_is_saved(tmp_path, name, value):
  with pytest.raises(InputError, match=f"^step 6: .*{name} {value}"):
    train(tmp_path, 9, params={name: nan_at(6, value)}, save_steps=2)
  assert saved_steps(tmp_path) == [2, 4]
  with np.load(tmp_path / "failed_step_6.npz") as told:
    np.testing.assert_array_equal(told[name], np.float32(value))


def test_what_need_not_be_finite_does_no_harm(tmp_path):
  params = {"norm": nan_at(2, np.inf), "finite": ["loss"]}
  train(tmp_path, 3, params=params)
  assert saved_steps(tmp_path) == [3]


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
  with pytest.raises(InputError, match=r"^step 4: .*weight has values"):
    train(tmp_path, 9, params={"added": nan_at(3, np.inf)}, save_steps=2)
  assert saved_steps(tmp_path) == [2]


def test_weights_that_are_no_numbers_are_no_start(tmp_path):
  path = str(tmp_path / "model.ckpt-3")
  checkpoint_writer.write_variables(
    path, {"weight": np.float32(np.nan), "global_step": np.int64(3)}
  )
  tf.train.update_checkpoint_state(str(tmp_path), path)
  with pytest.raises(InputError, match=rf"^{path}: weight has values"):
    train(tmp_path, 9)


def test_the_records_of_the_step_are_named_the_first_ones(tmp_path):
  batch = {
    "record_file": np.array(["b"] * 4 + ["a"] * 9),
    "record_number": np.array([7, 1, 3, 2, *range(20, 11, -1)]),
  }
  asked = []

  def batch_of_step(step):
    asked.append(step)
    return batch

  with pytest.raises(InputError) as failed:
    params = {"loss": nan_at(3)}
    train(tmp_path, 9, params=params, batch_of_step=batch_of_step)
  assert asked == [2]
  assert (
    "Its batch, records counted from 0: a: records 12, 13, 14, 15, 16, 17, 18,"
    " 19, 20; b: records 1 and 3 more. "
  ) in str(failed.value)
  with np.load(tmp_path / "failed_step_3.npz") as told:
    for name, values in batch.items():
      np.testing.assert_array_equal(told[name], values)


# Whole runs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with what the runs of both scripts need."""
  place = tmp_path_factory.mktemp("safekeeping")
  (place / "vocab.txt").write_text("".join(word + "\n" for word in WORDS))
  (place / "bert_config.json").write_text(CONFIG.to_json_string())
  for name, size in FILE_SIZES.items():
    rows = [pretraining_row(number) for number in range(size)]
    tf_records.write_records(str(place / name), rows, LAYOUT)
  rows = [f"{n % 2}\t1\t2\tgood day\t{'bad ' * n}\n" for n in range(8)]
  (place / "train.tsv").write_text("header\n" + "".join(rows))
  return place


NUM_STEPS = 200


def pretraining(place, folder, **changed):
  values = {
    "do_train": True,
    "input_file": place / "*.tfrecord",
    "bert_config_file": place / "bert_config.json",
    "output_dir": place / folder,
    "max_seq_length": 8,
    "max_predictions_per_seq": 2,
    "train_batch_size": 4,
    "learning_rate": 1e-3,
    "num_train_steps": NUM_STEPS,
    "num_warmup_steps": 5,
    "save_checkpoints_steps": 20,
    "xla": "off",
  }
  return commands.as_flags(values | changed)


def classification(place, folder):
  values = {
    "do_train": True,
    "task_name": "MRPC",
    "data_dir": place,
    "vocab_file": place / "vocab.txt",
    "bert_config_file": place / "bert_config.json",
    "output_dir": place / folder,
    "max_seq_length": 8,
    "train_batch_size": 4,
    "num_train_epochs": NUM_STEPS / 2,
    "save_checkpoints_steps": 20,
    "xla": "off",
  }
  return commands.as_flags(values)


@contextlib.contextmanager
def started(script, arguments):
  """A process that runs a script."""
  command = [sys.executable, os.path.join(commands.ROOT, script), *arguments]
  process = subprocess.Popen(
    command,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
  )
  try:
    yield process
  finally:
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def disturbed(place):
  """Status and log of runs that something came upon from step 40 on."""
  stopped = started("run_pretraining.py", pretraining(place, "stopped"))
  full = started("run_pretraining.py", pretraining(place, "full"))
  killed = started("run_classifier.py", classification(place, "killed"))
  with stopped as stopped, full as full, killed as killed:
    happened = {
      "stopped": (stopped, lambda: stopped.send_signal(signal.SIGTERM)),
      "killed": (killed, lambda: killed.send_signal(signal.SIGKILL)),
      "full": (
        full,
        # A disk on which not another byte has room in a file of 100.
        lambda: resource.prlimit(full.pid, resource.RLIMIT_FSIZE, (100, 100)),
      ),
    }
    waiting = dict(happened)

    def due():  # the checkpoint before step 40 is complete then
      return [n for n in waiting if max([0, *saved_steps(place / n)]) >= 40]

    while waiting:
      commands.wait_until(due, *(process for process, _ in waiting.values()))
      for name in due():
        _, disturb = waiting.pop(name)
        disturb()
    logs = {name: p.communicate()[1] for name, (p, _) in happened.items()}
  return {
    name: (process.returncode, logs[name])
    for name, (process, _) in happened.items()
  }


def weights(folder):
  return run_outputs.read_variables(finding.last_checkpoint(str(folder)))


@pytest.fixture(scope="module")
def pretrained(place):
  """The weights of a run that nothing disturbed."""
  with commands.in_process(run_pretraining) as main:
    main(*pretraining(place, "straight"))
  return weights(place / "straight")


def assert_the_same_command_ends_with(expected, script, arguments, folder):
  done = finding.steps_done(str(folder))
  assert 0 < done < NUM_STEPS
  with commands.in_process(script) as main:
    main(*arguments)
  assert not [path for path in folder.iterdir() if "temp" in path.name]
  found = weights(folder)
  assert found["global_step"] == NUM_STEPS
  run_outputs.assert_same_bits(found, expected)


@pytest.mark.process
def test_a_run_that_is_told_to_stop_saves_first(place, disturbed):
  status, log = disturbed["stopped"]
  assert status == 143, log
  (last,) = re.findall(r"Stopped by SIGTERM at step (\d+), which is saved", log)
  assert "Traceback" not in log
  assert finding.steps_done(str(place / "stopped")) == int(last)
  # Nothing comes after it.
  assert not (place / "stopped" / "report.html").exists()


@pytest.mark.process
def test_a_run_that_was_told_to_stop_goes_on(place, disturbed, pretrained):
  assert_the_same_command_ends_with(
    pretrained,
    run_pretraining,
    pretraining(place, "stopped"),
    place / "stopped",
  )


@pytest.mark.process
def test_a_full_disk_stops_a_run_in_one_line(place, disturbed):
  status, log = disturbed["full"]
  assert status == 1, log
  assert "Traceback" not in log
  assert re.search(r"error: .*full/.*: File too large\. Make room", log)
  assert not [*(place / "full").glob("*temp*")]


@pytest.mark.process
def test_with_room_made_it_goes_on(place, disturbed, pretrained):
  assert_the_same_command_ends_with(
    pretrained, run_pretraining, pretraining(place, "full"), place / "full"
  )


@pytest.mark.process
def test_a_classifier_that_was_killed_goes_on(place, disturbed):
  assert disturbed["killed"][0] == -signal.SIGKILL
  with commands.in_process(run_classifier) as main:
    main(*classification(place, "unharmed"))
  assert_the_same_command_ends_with(
    weights(place / "unharmed"),
    run_classifier,
    classification(place, "killed"),
    place / "killed",
  )


def test_training_passes_over_a_checkpoint_cut_short(place, pretrained):
  folder = place / "straight"
  (data,) = folder.glob(f"model.ckpt-{NUM_STEPS}.data*")
  os.truncate(data, 100)
  assert finding.steps_done(str(folder)) == NUM_STEPS - 20
  assert_the_same_command_ends_with(
    pretrained, run_pretraining, pretraining(place, "straight"), folder
  )


def test_a_loss_that_is_no_number_names_step_and_records(place):
  folder = place / "lost"
  arguments = pretraining(place, "lost", learning_rate=1e38, num_warmup_steps=0)
  with (
    commands.in_process(run_pretraining) as main,
    pytest.raises(InputError) as failed,
  ):
    main(*arguments)
  told = str(failed.value)
  step = int(re.match(r"step (\d+): loss (nan|inf)", told)[1])
  batches = input_pipeline.streamed_record_batches(
    [str(place / name) for name in FILE_SIZES],
    LAYOUT,
    4,
    trim=True,
    num_records=sum(FILE_SIZES.values()),
    seed=12345,
  )
  (batch,) = batches.skip(step - 1).take(1).as_numpy_iterator()
  with np.load(folder / f"failed_step_{step}.npz") as saved:
    for name, values in batch.items():
      np.testing.assert_array_equal(saved[name], values)
    assert not np.isfinite(saved["loss"])
    for file, number in zip(saved["record_file"], saved["record_number"]):
      named = re.search(rf"{file}: records ([\d, ]+)", told)[1]
      assert str(number) in named.split(", ")
  assert f"{folder}/failed_step_{step}.npz" in told
  assert saved_steps(folder) == [0]
