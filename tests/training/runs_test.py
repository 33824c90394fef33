"""Tests of what the scripts share."""

import dataclasses
import json
import os
import pathlib
import re
import sys
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_model
from parametrize import parametrize
from refused import assert_refused

import modeling
from bertlib.checkpoints import checkpoint_files
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.compute import onednn, precision
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import tf_records
from bertlib.hardware import devices, distribution
from bertlib.hardware.devices import Devices
from bertlib.hardware.replicas import Cluster
from bertlib.io import result_files
from bertlib.settings.common import DeviceSettings
from bertlib.task.task_record import StepShape, Task, TaskRecord
from bertlib.tasks.classification.settings import ClassifierSettings
from bertlib.tasks.pretraining import budget
from bertlib.training import hooks, loop, runs, step_plan
from bertlib.training.runs import Run
from optimization import Frozen, StepOptions

pytestmark = pytest.mark.unit

CONFIG = tiny_model.config(9)
BASE = modeling.BertConfig(30522)
LARGE = modeling.BertConfig(30522, 1024, 24, 16, 4096)
SHAPE = StepShape(384)  # --max_seq_length below


@pytest.fixture
def flags(monkeypatch):
  """Values of flags of a training run, on a machine without a GPU."""
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: [])
  monkeypatch.setattr(distribution, "find_tpu", lambda *_: None)
  return types.SimpleNamespace(train_batch_size=24, max_seq_length=384)


def settings_of(flags):
  return option.make(ClassifierSettings, **vars(flags))


def devices_of(flags):
  return devices.find_and_choose(settings_of(flags))


def run_of(flags, task, config=CONFIG):
  return Run(settings_of(flags), devices_of(flags), task, config, *[None] * 3)


def plan(flags, compute=None, config=CONFIG, shape=SHAPE):
  devices = devices_of(flags)
  how = devices, compute or devices.compute(), config, shape
  return step_plan.plan_training(settings_of(flags), *how)


def test_without_flags_a_step_is_the_reference_s(flags):
  how, options, *_ = plan(flags)
  assert how == FastCompute(
    unpad=True, jit_compile=True, use_onednn=onednn.is_available()
  )
  assert options == StepOptions(jit_compile=True)


def test_every_flag_of_a_step_arrives(flags):
  of_equal_names = {
    "schedule": "polynomial",
    "decay_proportion": 0.2,
    "optimizer": "lamb",
    "weight_decay": 0.1,
    "bias_correction": True,
    "beta_2": 0.99,
    "epsilon": 1e-8,
    "clip_norm": 0.0,
    "layer_decay": 0.75,
  }
  vars(flags).update(of_equal_names)
  flags.gradient_accumulation_steps = 3
  flags.freeze_layers, flags.freeze_embeddings = 1, True
  flags.recompute_activations = True
  planned = plan(flags)
  assert planned.compute.recompute
  assert planned.options == StepOptions(**of_equal_names, jit_compile=True)
  assert planned[2:] == (3, Frozen(1, True))


def test_where_nothing_is_trained_there_is_nothing_to_plan(flags):
  flags.gradient_accumulation_steps = 5  # would not do
  flags.memory_gb = 0.001  # likewise

  def builder(compute, options=None, **unused):
    return compute, options

  task = Task(TaskRecord("script"), builder, {}, ["loss"])
  found = loop.model_fn_of(run_of(flags, task), num_train_steps=0)
  assert found == (devices_of(flags).compute(), None)


def test_epochs_end_with_the_last_whole_batch(flags):
  flags.train_batch_size, flags.num_train_epochs = 4, 1.5
  count = step_plan.count_steps
  assert [count(flags, number, "rows") for number in (8, 9, 10)] == [3, 3, 3]
  assert count(flags, 11, "rows") == 4


def test_workers_choose_their_format_without_measuring(flags, monkeypatch):
  flags.precision, flags.distribution = "auto", "multi_worker"
  flags.do_train = True
  cluster = Cluster(["a:1", "b:1"], 0)
  monkeypatch.setattr(distribution, "read_cluster", lambda _: cluster)
  monkeypatch.setattr(
    precision,
    "fastest_dtype",
    lambda measures: "float32" if measures else "bfloat16",
  )
  assert devices_of(flags).precision == "bfloat16"


@parametrize(
  "given, recorded, chosen",
  ("auto", {"precision": "bfloat16", "xla": "off"}, ("bfloat16", "off")),
  ("auto", {}, ("float32", "on")),
  ("float32", {"precision": "bfloat16"}, ("float32", "on")),
)
def test_auto_is_what_an_earlier_run_recorded(
  flags, monkeypatch, tmp_path, given, recorded, chosen
):
  flags.precision, flags.output_dir = given, str(tmp_path)
  (tmp_path / "model.json").write_text(json.dumps(recorded))
  monkeypatch.setattr(precision, "fastest_dtype", lambda measures: "float32")
  found = devices_of(flags)
  assert (found.precision, found.xla) == chosen
  repeated = f"--precision={chosen[0]}" in step_plan.choice_flags(found)
  assert repeated == (given == "auto")


def test_a_tpu_gets_static_shapes_and_compiles_by_itself(flags):
  flags.use_tpu, flags.precision, flags.xla = True, "auto", "on"
  assert devices_of(flags).compute() == FastCompute(tf.bfloat16)


def test_padding_that_counts_is_kept(flags):
  assert not devices_of(flags).compute(masks_padding=False).unpad


def test_memory_decides_the_micro_batches_and_is_logged(flags, log):
  flags.memory_gb = 12.0
  how, _, num_micro_batches, _ = plan(flags, FastCompute(tf.bfloat16), LARGE)
  assert 24 % num_micro_batches == 0 and num_micro_batches > 1
  (line,) = log
  assert "--memory_gb=12: " in line
  assert f"--gradient_accumulation_steps={num_micro_batches}," in line
  no = "" if how.recompute else "no"
  assert f"--{no}recompute_activations" in line


def test_each_choice_of_an_example_takes_memory(flags):
  flags.memory_gb = 12.0
  found = []
  for shape in ((384,), (4, 384)):  # a text, and four choices
    features = {"input_ids": tf_records.Feature(shape)}
    task = Task(TaskRecord("a_script"), None, features, ["loss"])
    _, _, num_micro_batches, _ = loop.plan_of(run_of(flags, task, BASE))
    found.append(num_micro_batches)
  assert 4 * found[0] == found[1]


@parametrize(
  "settings, expected",
  ({}, True),
  ({"xla": "off"}, False),
  ({"recompute_activations": True}, False),
)
def test_weights_are_copied_for_compiled_updates(flags, settings, expected):
  vars(flags).update({"precision": "bfloat16", "xla": "on"} | settings)
  how, *_ = plan(flags, config=BASE)
  assert bool(how.copy_weight) == expected


def test_a_loss_over_the_batch_takes_its_memory_in_each_plan(flags):
  needed = step_plan.step_bytes(BASE, 24, SHAPE, FastCompute())
  flags.memory_gb = needed / 1e9 + 1
  found = []
  for loss_bytes in (0, 10**9, 2 * 10**9):
    shape = SHAPE._replace(loss_bytes=loss_bytes)
    _, _, num_micro_batches, _ = plan(flags, FastCompute(), BASE, shape)
    found.append(num_micro_batches)
  assert found == [1, 1, 2]


@parametrize(
  "memory_gb, loss_bytes, problem",
  (2, 0, "384 tokens.*--max_seq_length"),
  (12, int(13.5e9), "a smaller --train_batch_size, or"),
)
def test_too_little_memory_is_refused(flags, memory_gb, loss_bytes, problem):
  flags.memory_gb = float(memory_gb)
  shape = SHAPE._replace(loss_bytes=loss_bytes)
  with pytest.raises(InputError, match=f"--memory_gb={memory_gb}: .*{problem}"):
    plan(flags, FastCompute(), LARGE, shape)


def test_micro_batches_divide_the_share_of_a_tpu_core(flags):
  flags.use_tpu, flags.gradient_accumulation_steps = True, 2
  assert_refused("=24 shared by 8 replicas", plan, flags, FastCompute())


def test_evaluations_at_once_have_own_records(flags, tmp_path, monkeypatch):
  flags.output_dir, flags.do_eval = str(tmp_path), True
  this_run = run_of(flags, Task(TaskRecord("a"), None, {}, []))

  def write(text):
    path = pathlib.Path(runs.records_path(this_run, "eval"))
    path.write_text(text)
    return path

  with runs.lock_output_dir(this_run):
    path = write("of the first")
    with monkeypatch.context() as other_process:
      other_process.setattr(os, "getpid", lambda: 1)
      with runs.lock_output_dir(this_run):
        write("of the other")
    assert path.read_text() == "of the first"
    (records,) = tmp_path.glob("eval.tf_record")
    assert records.read_text() == "of the other"
  assert [*tmp_path.iterdir()] == [records]
  assert records.read_text() == "of the first"


def run_steps(num_steps, log_steps):
  """Runs a training whose loss is 0.5, with a `ProgressHook`."""
  with tf.Graph().as_default():
    train_op = tf.train.create_global_step().assign_add(1, read_value=False)
    losses = {"loss": tf.constant(0.5)}
    hook = hooks.ProgressHook(losses, num_steps, hooks.Speed(4), log_steps)
    with tf.train.SingularMonitoredSession(hooks=[hook]) as session:
      for _ in range(num_steps):
        session.run(train_op)


@pytest.mark.graph
def test_progress_shows_every_so_many_steps_and_the_last(log):
  run_steps(5, log_steps=2)
  shown = [line for line in log if line.startswith("step")]
  assert log[0] == "Compiling the training step"
  assert re.fullmatch(r"step 1 of 5: loss [\d.]+; compiled in .* s", shown[0])
  found = [line.split(":")[0] for line in shown[1:]]
  assert found == ["step 2 of 5", "step 4 of 5", "step 5 of 5"]
  pattern = r"step 5 of 5: loss [\d.]+, examples/s [\d.e+]+, 0:00:00 left"
  assert re.fullmatch(pattern, shown[-1])


@parametrize(
  "losses, norms, warnings",
  ([0, 0, 0], [0, 0, 0], ["step 2: loss and norm are exactly 0"]),
  ([1, 1, 1], [0, 0, 0], ["step 2: norm is exactly 0"]),
  ([0, 1, 0], [1, 0, 0], []),
  ([1, 0, 0], [1, 0, 0], []),
)
def test_training_that_learns_nothing_is_named(losses, norms, warnings, caplog):
  hook = hooks.ProgressHook({}, 3, hooks.Speed(6), log_steps=1)
  with tf.Graph().as_default(), tf.Session() as session:
    session.run(tf.train.create_global_step().initializer)
    hook.after_create_session(session, None)
  for loss, norm in zip(losses, norms):
    hook.before_run(None)
    values = {"loss": loss, "rate": 0, "norm": norm}
    hook.after_run(None, types.SimpleNamespace(results=values))
  lines = [line for line in caplog.messages if line.startswith("step ")]
  assert [line.partition(" again")[0] for line in lines] == warnings


@pytest.mark.graph
def test_throughput_and_time_left_are_without_compilation(monkeypatch, log):
  # The first step takes 9 seconds, the others 2.
  times = iter([0, 9, 9, 9, 11, 11, 13, 13])
  clock = types.SimpleNamespace(monotonic=lambda: next(times))
  with tf.Graph().as_default():
    step = tf.train.create_global_step()
    tokens = tf.cast(10 * step + 10, tf.float32)
    with tf.control_dependencies([tokens]):
      train_op = step.assign_add(1, read_value=False)
    speed = budget.TokenSpeed(
      step_flops=lambda examples, tokens: examples * tokens**2,
      peak_flops=50000.0,
      num_examples=tf.constant(4),
      num_tokens=tokens,
      account=types.SimpleNamespace(tokens=tf.constant(1000.0)),
    )
    losses = {"loss": tf.constant(1.0)}
    hook = hooks.ProgressHook(losses, 12, speed, log_steps=3)
    with tf.train.SingularMonitoredSession(hooks=[hook]) as session:
      monkeypatch.setattr(hooks, "time", clock)  # of no other module
      for _ in range(3):
        session.run([train_op])
  assert "compiled in 9.0 s" in log[-2]
  # Without the first step 25 tokens per step; 4 * 25**2 FLOPs in 2 seconds.
  assert log[-1] == (
    "step 3 of 12: loss 1, examples/s 2.0, tokens 1060, tokens/s 12.5,"
    " FLOP/s 1250, of peak 0.025, 0:00:18 left"
  )


def test_rows_that_fill_the_last_batch_are_left_out(flags, monkeypatch):
  ended = []

  def predict(input_fn, checkpoint_path):
    yield from ({"label": number} for number in range(8))
    ended.append(True)

  estimator = types.SimpleNamespace(predict=predict)
  monkeypatch.setattr(devices, "make_estimator", lambda *_, **__: estimator)
  monkeypatch.setattr(loop, "inference_model_fn_of", lambda *_: None)
  run = dataclasses.replace(
    run_of(flags, Task(TaskRecord("a"), None, {}, [])),
    start=checkpoint_files.Start(),
  )
  assert [row["label"] for row in loop.predict(run, None, 5)] == [0, 1, 2, 3, 4]
  assert ended  # Estimator has closed its session


@pytest.mark.graph
def test_on_a_terminal_progress_is_a_bar(monkeypatch, capsys, log):
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  run_steps(3, log_steps=1)
  bar = capsys.readouterr().err
  assert "3/3" in bar and "loss=0.5" in bar and "examples/s=" in bar
  assert log == ["Compiling the training step"]


def test_results_have_the_form_of_the_reference(tmp_path, log):
  path = tmp_path / "eval_results.txt"
  result_files.write_results(
    str(path), {"loss": np.float32(2 / 3), "eval_accuracy": 1, "a": [[1, 2]]}
  )
  lines = ["a = [[1, 2]]", "eval_accuracy = 1", "loss = 0.6666667"]
  assert path.read_text() == "\n".join([*lines, ""])
  assert [line.strip() for line in log] == lines


def test_predictions_of_an_earlier_evaluation_are_removed(tmp_path):
  this_run = written_by(tmp_path, "float32")
  earlier = [result_files.DevPrediction("dev-1", "yes", "no")]
  for predictions in (earlier, None):  # as on a TPU
    loop.write_metrics(this_run, {"a": 1}, None, predictions=predictions)
    assert (tmp_path / "eval_predictions.jsonl").exists() == bool(predictions)
  assert (tmp_path / "eval_results.txt").read_text() == "a = 1\n"


def test_results_name_another_precision_than_float32(tmp_path):
  for name, line in (("int8", "precision = int8\n"), ("float32", "")):
    loop.write_metrics(written_by(tmp_path, name), {"a": 1}, None)
    assert (tmp_path / "eval_results.txt").read_text() == f"a = 1\n{line}"


def written_by(folder, precision):
  return types.SimpleNamespace(
    path=lambda name: str(folder / name),
    devices=Devices(DeviceSettings(), precision=precision),
  )
