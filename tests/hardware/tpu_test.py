"""Tests of TPU support without a TPU.

XLA compiles the same graphs for TPU and CPU. So a step with static shapes and
without host operations that compiles here would compile for a TPU; the tests
also compare its numbers with those of the uncompiled step.
"""

import dataclasses
import socket
import time
import types

import commands
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tpu_graph
import wrong_input_world
from parametrize import parametrize

import modeling
import run_classifier
from benchmarks import task_models
from benchmarks.task_models import BATCH_SIZE, random_batch
from bertlib.checkpoints import model_folder
from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api
from bertlib.data import input_pipeline, tf_records, training_records
from bertlib.hardware import devices
from bertlib.reporting import run_report
from bertlib.settings import model_description
from bertlib.tasks.classification import classification_records
from bertlib.tasks.classification.classification import Problem
from bertlib.tasks.classification.settings import ClassifierSettings
from bertlib.training import loop

pytestmark = pytest.mark.train

NUM_STEPS = 4
TRAIN, EVAL = estimator_api.ModeKeys.TRAIN, estimator_api.ModeKeys.EVAL
ACCUMULATED = "--gradient_accumulation_steps=2"
VECTOR = tf.TensorSpec([4], tf.float32)
UNUSED = "grpc://127.0.0.1:1"


def run_of(name, *arguments):
  return task_models.run_of(name, "--use_tpu", *arguments)


def model_of(name, *arguments):
  return task_models.model_of(name, "--use_tpu", *arguments)


def constants(batch):
  return {name: tf.constant(values) for name, values in batch.items()}


@pytest.fixture
def one_core(monkeypatch):
  """Replaces the sum over TPU cores, which XLA has for TPUs only."""
  monkeypatch.setattr(tf.tpu, "cross_replica_sum", tf.identity)


@pytest.mark.graph
@parametrize(
  "name, positions",
  ("classification", 1),
  ("multiple_choice", 1),
  ("pretraining", 4),
  ("squad", None),
  ("ner", None),
  ("embeddings triplets", None),
)
def test_memory_plan_counts_the_output_positions(name, positions):
  assert run_of(name).task.num_output_positions == positions


def make_step(model_fn, batch, reuse=None):
  """The loss of a training step; running it runs the step."""
  with tf.variable_scope(tf.get_variable_scope(), reuse=reuse):
    spec = model_fn(batch, None, TRAIN, {"batch_size": BATCH_SIZE}, None)
  with tf.control_dependencies([spec.train_op]):
    return tf.identity(spec.loss)


def losses_of(model_fn, batch):
  with tf.Graph().as_default():
    tf.set_random_seed(1)
    batch = constants(batch)
    plain = make_step(model_fn, batch)
    # Reuses the variables of the plain step.
    step = tf.function(
      lambda batch: make_step(model_fn, batch, reuse=True),
      jit_compile=True,
      autograph=False,
    )
    assert tpu_graph.problems(step.get_concrete_function(batch).graph) == []
    compiled = step(batch)
    variables = tf.global_variables()
    start = [tf.placeholder(v.dtype, v.shape) for v in variables]
    restart = tf.group(*(v.assign(s) for v, s in zip(variables, start)))
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      first = session.run(variables)
      losses = []
      for loss in (plain, compiled):
        session.run(restart, dict(zip(start, first)))
        losses.append([session.run(loss) for _ in range(NUM_STEPS)])
  return losses


@parametrize(
  "case",
  ("multi_label weighted", "--freeze_layers=1", "--freeze_embeddings"),
  ("multiple_choice", "--recompute_activations"),
  ("squad", "--version_2_with_negative"),
  ("ner",),
  ("reranking listwise",),
  ("embeddings triplets", "--temperature=1", ACCUMULATED),
  ("pretraining", "--optimizer=lamb"),
  ("pretraining electra",),
  ("regression", "--freeze_layers=1", "--precision=bfloat16"),
  ids=" ".join,
)
def test_compiled_training_has_the_same_losses(case, one_core, monkeypatch):
  # XLA draws other masks.
  monkeypatch.setattr(modeling, "dropout", lambda tensor, *_: tensor)
  model_fn, layout = model_of(*case)
  plain, compiled = losses_of(model_fn, random_batch(layout))
  is_rounded = "--precision=bfloat16" in case
  assert is_rounded or len(set(plain)) == NUM_STEPS  # the loss changes
  np.testing.assert_allclose(compiled, plain, rtol=2e-2 if is_rounded else 1e-5)


@parametrize(
  "case",
  ("ner", ACCUMULATED, "--recompute_activations"),
  ("embeddings triplets", ACCUMULATED),
  ("pretraining", "--precision=bfloat16", ACCUMULATED),
  ids=" ".join,
)
def test_a_tpu_could_compile_the_training_step(case):
  model_fn, layout = model_of(*case)
  with tf.Graph().as_default() as graph:
    batch = {
      name: tf.placeholder(values.dtype, values.shape, name)
      for name, values in random_batch(layout).items()
    }
    assert tpu_graph.problems(graph, [make_step(model_fn, batch).op]) == []


class CheckGraph(tf.train.SessionRunHook):
  """Checks the graph, and ends the run before it reaches the TPU."""

  def begin(self):
    graph = tf.get_default_graph()
    assert tpu_graph.problems(graph) == []
    graph_def = graph.as_graph_def()
    (step,) = (
      function.node_def
      for function in graph_def.library.function
      if any(node.op == "CrossReplicaSum" for node in function.node_def)
    )
    masks = [n for n in step if n.op.startswith("StatelessRandomUniform")]
    assert masks
    for mask in masks:  # differs between cores
      assert "AllToAll" in {node.op for node in ancestors(step, mask)}
    marked = [n for n in graph_def.node if "_tpu_replicate" in n.attr]
    raise InputError(f"{len(marked)} operations are valid")


def ancestors(nodes, node):
  by_name, found, names = {n.name: n for n in nodes}, [], [node.name]
  while names:
    node = by_name.pop(names.pop(), None)
    if node:
      found.append(node)
      names += [name.lstrip("^").partition(":")[0] for name in node.input]
  return found


@pytest.fixture
def two_cores(monkeypatch):
  tpu_graph.simulate_cores(monkeypatch, 2)
  # A server answers, though it is not a TPU.
  with socket.create_server(("127.0.0.1", 0)) as server:
    yield f"--tpu_name=grpc://127.0.0.1:{server.getsockname()[1]}"


def estimator_of(folder, *arguments):
  arguments = ["--use_tpu", f"--output_dir={folder}", *arguments]
  settings = task_models.settings_of(ClassifierSettings, *arguments)
  found = devices.find_and_choose(settings)
  made = dataclasses.replace(
    run_of("classification"), settings=settings, devices=found
  )
  model_fn = loop.model_fn_of(made, num_train_steps=50)
  return devices.make_estimator(
    found, model_fn, folder, train_batch_size=settings.flags.train_batch_size
  )


def test_a_tpu_could_compile_the_graph_of_tpu_estimator(two_cores, tmp_path):
  problem = Problem("classification", task_models.LABELS)
  layout = classification_records.record_layout(task_models.LENGTH, problem)
  batch = random_batch(layout)
  path = str(tmp_path / "train.tf_record")
  rows = (dict(zip(batch, values)) for values in zip(*batch.values()))
  tf_records.write_records(path, rows, layout)
  input_fn = training_records.record_input_fn(
    path, layout, is_training=True, drop_remainder=True, trim=False, seed=1
  )
  estimator = estimator_of(tmp_path, two_cores, "--num_tpu_cores=2")
  with pytest.raises(InputError, match=r"[1-9].* are valid"):
    estimator.train(input_fn, max_steps=1, hooks=[CheckGraph()])


def test_loop_and_core_flags_reach_tpu_estimator(two_cores, tmp_path):
  more = "--iterations_per_loop=7", "--num_tpu_cores=2"
  config = estimator_of(tmp_path, two_cores, *more).config.tpu_config
  assert (config.iterations_per_loop, config.num_shards) == (7, 2)


@pytest.mark.graph
@parametrize(
  "build, spec, problem",
  (tf.strings.as_string, VECTOR, "AsString (AsString) has strings"),
  (lambda x: tf.py_func(np.square, [x], x.dtype), VECTOR, "calls Python"),
  (tf.where_v2, VECTOR, "Where (Where) has the shape (None, 1)"),
  (
    lambda ids: ids + 1,
    tf.TensorSpec([4, None], tf.int32, "input_ids"),
    "input_ids (Placeholder) has the shape (4, None)",
  ),
  ids=["string", "Python", "dynamic", "length"],
)
def test_what_a_tpu_could_not_compile_is_found(build, spec, problem):
  with tf.Graph().as_default():
    function = tf.function(build, autograph=False)
    graph = function.get_concrete_function(spec).graph
  assert any(line.endswith(problem) for line in tpu_graph.problems(graph))


def evaluate(model_fn, batch):
  with tf.Graph().as_default():
    tf.set_random_seed(1)
    batch = constants(batch)
    spec = model_fn(batch, None, EVAL, {"batch_size": BATCH_SIZE}, None)
    metric_fn, tensors = spec.eval_metrics
    metrics = metric_fn(*tensors)
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      session.run(tf.local_variables_initializer())
      session.run([update for _, update in metrics.values()])
      return session.run({name: value for name, (value, _) in metrics.items()})


def test_metrics_ignore_padding_examples():
  model_fn, layout = model_of("classification")
  batch = random_batch(layout)
  batch["is_real_example"] = np.array([1, 1, 1, 0], np.int32)
  metrics = evaluate(model_fn, batch)
  three = {name: values[:3] for name, values in batch.items()}
  expected = evaluate(model_fn, three)
  assert metrics == pytest.approx(expected, rel=1e-6)
  batch["is_real_example"][:] = 1
  assert evaluate(model_fn, batch) != pytest.approx(expected, rel=1e-6)


def test_host_call_writes_the_mean_over_cores(tmp_path, one_core):
  model_fn, layout = model_of("classification")
  config = types.SimpleNamespace(model_dir=str(tmp_path))
  with tf.Graph().as_default():
    batch = constants(random_batch(layout))
    spec = model_fn(batch, None, TRAIN, {"batch_size": BATCH_SIZE}, config)
    write, tensors = spec.host_call
  assert {tuple(tensor.shape) for tensor in tensors} == {(1,)}
  step, *others = tensors
  # Values of two cores; step 0 is always written.
  values = (tf.constant([1.0, 3.0], t.dtype) for t in others)
  write(tf.zeros([2], step.dtype), *values)
  written = run_report.read_scalars(str(tmp_path))
  assert set(written) == {"loss", "learning_rate", "gradient_norm"}
  assert all(values == [(0, 2.0)] for values in written.values())


@pytest.mark.graph
@pytest.mark.parametrize(
  ("host", "num_hosts", "rows"),
  [(0, 1, slice(0, 8)), (0, 2, slice(0, 4)), (1, 2, slice(4, 8))],
)
def test_each_host_reads_its_rows_of_a_batch(host, num_hosts, rows):
  context = types.SimpleNamespace(
    current_input_fn_deployment=lambda: (None, host, num_hosts, None)
  )
  # A host's batch size is that of its own rows.
  size, shard = input_pipeline.global_batch_size_and_shard(
    {"batch_size": 8 // num_hosts, "context": context}
  )
  batch = np.arange(16).reshape(8, 2)
  own = shard.split(tf.constant(batch), size) if shard else batch[np.newaxis]
  assert size == 8
  np.testing.assert_array_equal(own, batch[np.newaxis, rows])


@pytest.mark.unit
def test_model_files_are_written_to_a_remote_folder(tmp_path):
  vocab = tmp_path / "vocab.txt"
  vocab.write_text("[PAD]\n")
  folder = f"ram://{tmp_path}/out"
  config = task_models.CONFIG
  model_folder.write_model_files(folder, {"task": "tsv"}, config, str(vocab))
  assert model_description.load(folder)["task"] == "tsv"
  assert not [n for n in tf.gfile.ListDirectory(folder) if "tmp" in n]


@pytest.mark.graph
@parametrize(
  "flags, expected",
  ((), "--use_tpu: no TPU is named. Give --tpu_name=NAME or"),
  ((f"--tpu_name={UNUSED}",), f"{UNUSED}: no TPU answers there"),
  ((f"--master={UNUSED}",), f"{UNUSED}: no TPU answers there"),
  (("--master=grpc://127.0.0.1",), "grpc://127.0.0.1: no TPU answers there"),
  (("--tpu_name=local",), "--tpu_name=local: TensorFlow finds no TPU in"),
  (
    ("--tpu_name=my-tpu", "--output_dir=ram://out"),
    "--tpu_name=my-tpu: its address was not found in Google Cloud (",
  ),
  (
    ("--tpu_name=my-tpu", "--output_dir=here"),
    "--output_dir=here: is on this machine, where the TPU my-tpu cannot",
  ),
  (
    ("--tpu_name=my-tpu", "--output_dir=ram://out", "--init_checkpoint=a"),
    "--init_checkpoint=a: is on this machine, where the TPU my-tpu cannot",
  ),
)
def test_missing_tpu_is_reported(flags, expected, world, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a.index").touch()
  output_dir = tmp_path / "out"
  given = wrong_input_world.COMMANDS["run_classifier"]
  given = [flag.format(world=world, out=output_dir) for flag in given]
  given += ["--init_checkpoint=", "--train_batch_size=8", "--use_tpu", *flags]
  start = time.monotonic()
  with (
    commands.in_process(run_classifier) as main,
    pytest.raises(InputError) as raised,
  ):
    main(*given)
  assert time.monotonic() - start < 15
  message = str(raised.value)
  assert message.startswith(expected) and "\n" not in message
  assert not output_dir.exists()
