"""Tests of what graphs keep, and that the commands keep no graph."""

import gc
import logging
import tempfile

import commands
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_classifier
import trained_models
from parametrize import parametrize

import modeling
import optimization
import run_classifier
from bertlib.compute import xla
from bertlib.compute.fast_compute import FastCompute

pytestmark = pytest.mark.graph


def count_graphs():
  """Graphs and functions of graphs in this process."""
  gc.collect()
  return sum(isinstance(found, tf.Graph) for found in gc.get_objects())


@xla.custom_gradient
def tripled(x, weight):
  return x * weight, lambda gradient: (3.0 * gradient, None)


def square_twice(x, weight):
  """Uses the function in a graph and in a loop of it."""

  def add_gradient(step, total):
    return step + 1, total + tf.gradients(tripled(x, weight), x)[0]

  start = tf.constant(0), tf.zeros_like(x)
  _, total = tf.while_loop(lambda step, _: step < 2, add_gradient, start)
  return total + tripled(x, weight)


def test_a_custom_gradient_is_used_in_graphs_and_loops():
  with tf.Graph().as_default(), tf.Session() as session:
    x = tf.constant([1.0, 2.0])
    y = square_twice(x, tf.constant(5.0))
    result, gradient = session.run([y, tf.gradients(y, x)[0]])
  np.testing.assert_array_equal(result, [11.0, 16.0])
  np.testing.assert_array_equal(gradient, [3.0, 3.0])


def test_a_tape_uses_a_custom_gradient():
  @tf.function(autograph=False)
  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tripled(x, 5.0)
    return tape.gradient(y, x)

  assert gradient(tf.constant(1.0)).numpy() == 3.0


def test_a_saved_graph_has_no_custom_gradients(tmp_path):
  with tf.Graph().as_default() as graph:
    tripled(tf.constant(1.0), tf.constant(2.0))
    saved = tf.train.export_meta_graph(str(tmp_path / "graph.meta"))
  assert not saved.collection_def
  del graph


def fused_step():
  """A training step of functions compiled by XLA, with its update."""
  x = tf.get_variable("x", initializer=tf.ones([2, 3]))
  compute = FastCompute(jit_compile=True)
  y = compute.dense(x, tf.ones([3, 3]), tf.ones([3]), tf.tanh)
  optimizer = optimization.AdamWeightDecayOptimizer(0.1, jit_compile=True)
  return optimizer.apply_gradients([(tf.gradients(y, x)[0], x)])


def recomputed_step():
  """A training step of a layer whose activations are computed twice."""

  def layer(hidden):
    return hidden * tf.get_variable("weight", initializer=tf.constant(1.0))

  compute = FastCompute(recompute=True)
  with tf.variable_scope("layer") as scope:
    y = compute.run_layer(layer, [tf.ones([2, 3])], scope, is_repeatable=True)
  return tf.gradients(y, tf.trainable_variables())


def norm_of_a_step():
  x = tf.ones([2, 3])
  y = xla.compiled(lambda x, key: x * 2.0)(x, tf.constant([1, 2], tf.uint32))
  local = optimization.Gradients(y, {}, tf.gradients(y, x), [x])
  return optimization.mean_over_replicas(local, jit_norm=True)[1]


@pytest.mark.train
@parametrize(
  "build",
  lambda: square_twice(tf.constant(1.0), tf.constant(2.0)),
  fused_step,
  norm_of_a_step,
  recomputed_step,
)
def test_a_graph_is_freed(build):
  def use():
    with tf.Graph().as_default(), tf.Session() as session:
      op = build()
      session.run(tf.global_variables_initializer())
      session.run(op)

  before = count_graphs()
  use()
  assert count_graphs() == before


def predict(folder):
  with run_classifier.Predictor(str(folder)) as model:
    model.predict([tiny_classifier.SENTENCES[0][:2]])


def train(folder):
  """Trains a step, with an evaluation."""
  output_dir = tempfile.mkdtemp(dir=folder)
  changed = {"output_dir": output_dir, "num_train_epochs": 0.25}
  flags = tiny_classifier.flags(folder.parent, **changed)
  commands.succeed("run_classifier.py", "--do_train", "--eval_steps=1", *flags)


@pytest.mark.train
@parametrize("use", pytest.param(predict, marks=pytest.mark.slow), train)
def test_no_graph_is_kept(use, once, tmp_path, monkeypatch):
  # pytest keeps log records, and these their values.
  monkeypatch.setattr(logging.Logger, "callHandlers", lambda *_: None)
  folder = trained_models.copy(once, "classifier", tmp_path).folder
  numbers = []
  for _ in range(2):  # Estimator keeps the last graph, until there is another
    use(folder)
    numbers.append(count_graphs())
  assert numbers[1] <= numbers[0]


@pytest.mark.unit
def test_gradients_store_no_copy_that_can_be_computed_again():
  with tf.Graph().as_default() as graph:
    kernels = tf.ones([4, 16]), tf.ones([16, 4])
    inputs = tf.placeholder(tf.float32, [8, 4])
    hidden = xla.dense_on_cpu(inputs, kernels[0], tf.zeros(16), modeling.gelu)
    output = xla.dense_on_cpu(hidden, kernels[1], tf.zeros(4), None)
    upstream = tf.placeholder(tf.float32, [8, 4])
    tf.gradients(output, kernels, upstream)
    # The product of the forward pass alone uses the activation's output.
    users = sorted(operation.type for operation in hidden.consumers())
    assert users == ["IdentityN", "MatMul"]
    transposed = [o for o in graph.get_operations() if o.type == "Transpose"]
    assert transposed
    assert all(waits_for(operation, upstream.op) for operation in transposed)


def waits_for(operation, other) -> bool:
  """True if an operation runs after another."""
  before = {*operation.control_inputs, *(t.op for t in operation.inputs)}
  return other in before or any(waits_for(o, other) for o in before)
