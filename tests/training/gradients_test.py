"""Tests of gradient accumulation, frozen weights and loss scaling."""

import functools
import re
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_model
from modeling_test import weight_of
from parametrize import parametrize

import modeling
import optimization
from bertlib.compute.fast_compute import FastCompute
from bertlib.training.train_step import (
  FixedLossScale,
  LossScale,
  compute_gradients,
)
from optimization import Frozen, StepOptions

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures("graph")]


SMALL = tiny_model.config(100, num_hidden_layers=2, **tiny_model.NO_DROPOUT)
INF = np.inf


def small_batch():
  """Eight sequences of different lengths, in tensors of unknown shape."""
  draw = np.random.default_rng(0)
  lengths = [3, 16, 9, 1, 12, 5, 6, 7]
  mask = (np.arange(16) < np.array(lengths)[:, np.newaxis]).astype(np.int32)
  ids = draw.integers(1, 9, mask.shape) * mask
  labels = draw.integers(0, 3, len(lengths))
  arrays = {"input_ids": ids, "input_mask": mask, "label_ids": labels}
  batch = {name: tf.constant(a, tf.int32) for name, a in arrays.items()}
  return {
    name: tf.placeholder_with_default(tensor, [None] * len(tensor.shape))
    for name, tensor in batch.items()
  }


def small_loss(compute):
  def loss_fn(batch, _):
    model = modeling.BertModel(
      SMALL, True, batch["input_ids"], batch["input_mask"], compute=compute
    )
    logits = modeling.classification_logits(model.get_pooled_output(), 3)
    losses, log_probs = modeling.cross_entropy(logits, batch["label_ids"])
    return tf.reduce_mean(losses), {"certainty": tf.reduce_mean(log_probs**2)}

  return loss_fn


class Results(NamedTuple):
  """Results of four training steps; weights and scalars are by name."""

  scalars: list  # loss, gradient norm and others of each step
  weights: dict
  global_step: int
  sparse: list  # names of the variables with sparse gradients
  initial_weights: dict
  variables: set  # names of all variables


def take_four_steps(
  compute, make_scale=lambda: None, num_micro_batches=1, frozen=None, **options
):
  options = StepOptions(**options)
  with tf.Graph().as_default(), tf.Session() as session:
    loss_scale = make_scale()
    how = num_micro_batches, loss_scale, frozen
    gradients = compute_gradients(small_loss(compute), small_batch(), *how)
    step = optimization.training_step(
      gradients, 1e-3, 100, 0, options=options, loss_scale=loss_scale
    )
    scalars = {"loss": gradients.loss, "norm": step.gradient_norm}
    scalars |= gradients.scalars
    weights = {v.op.name: v for v in tf.trainable_variables()}
    session.run(tf.global_variables_initializer())
    for variable in weights.values():
      variable.load(weight_of(variable), session)
    initial_weights = session.run(weights)
    return Results(
      [session.run([scalars, step.train_op])[0] for _ in range(4)],
      session.run(weights),
      session.run(tf.train.get_global_step()),
      [
        variable.op.name
        for variable, gradient in zip(gradients.variables, gradients.gradients)
        if isinstance(gradient, tf.IndexedSlices)
      ],
      initial_weights,
      {v.op.name for v in tf.global_variables()},
    )


@functools.cache
def whole(**options):
  return take_four_steps(FastCompute(), **options)


def assert_same_steps(found, expected):
  for one, other in zip(expected.scalars, found.scalars):
    for name, value in one.items():
      assert other[name] == pytest.approx(value, rel=0, abs=2e-6), name
  assert found.weights.keys() == expected.weights.keys()
  for name, value in expected.weights.items():
    np.testing.assert_allclose(
      found.weights[name], value, rtol=0, atol=1e-6, err_msg=name
    )


@pytest.mark.train
@parametrize(
  "num_micro_batches, compute",
  (2, FastCompute()),
  (4, FastCompute(unpad=True, jit_compile=True, recompute=True)),
)
def test_micro_batches_equal_the_whole_batch(num_micro_batches, compute):
  split = take_four_steps(compute, num_micro_batches=num_micro_batches)
  assert_same_steps(split, whole())
  assert split.global_step == whole().global_step == 4
  assert split.sparse == whole().sparse == ["bert/embeddings/word_embeddings"]


# A gradient that is 0 in theory is computed as rounding noise. With a small
# epsilon, Adam would scale this noise up to a full update.
ADAM = {"optimizer": "adam", "epsilon": 1e-3, "clip_norm": None}
LAMB = {"optimizer": "lamb", "epsilon": 1e-3, "layer_decay": 0.8}


@pytest.mark.train
@parametrize(
  "make_scale, options",
  (LossScale, ADAM),
  (LossScale, {**LAMB, "frozen": Frozen(1, True), "jit_compile": True}),
  (lambda: FixedLossScale(2.0**15), ADAM),
)
def test_scaled_micro_batches_equal_the_whole_batch(make_scale, options):
  split = take_four_steps(FastCompute(), make_scale, 4, **options)
  assert_same_steps(split, whole(**options))
  added = split.variables - whole(**options).variables
  scale_variables = {"loss_scale/scale", "loss_scale/good_steps"}
  assert added == (scale_variables if make_scale is LossScale else set())


def test_frozen_weights_are_bitwise_unchanged_and_have_no_moments():
  compute = FastCompute(unpad=True, jit_compile=True, recompute=True)
  options = {"num_micro_batches": 2, "frozen": Frozen(1, True)} | LAMB
  results = take_four_steps(compute, **options)
  before, after = results.initial_weights, results.weights
  unchanged = {n for n in after if np.array_equal(after[n], before[n])}
  scopes = "bert/embeddings/", "bert/encoder/layer_0/"
  frozen = {name for name in results.weights if name.startswith(scopes)}
  # The gradient of a key bias is 0 up to rounding.
  zero_gradient = {"bert/encoder/layer_1/attention/self/key/bias"}
  assert frozen <= unchanged <= frozen | zero_gradient
  moments = {n for n in results.variables if n.endswith(("adam_m", "adam_v"))}
  trained = set(results.weights) - frozen
  assert moments == {f"{n}/adam_{m}" for n in trained for m in "mv"}
  # 16 in the upper layer, 2 in the pooler, 2 in the head.
  assert len(trained) == 20


@parametrize("recompute, num_parts", (False, 1), (True, 2))
def test_gradients_end_above_the_frozen_layers(recompute, num_parts):
  def trained_parts(frozen):
    """Parts of the model for which the graph computes gradients."""
    with tf.Graph().as_default() as graph:
      loss_fn = small_loss(FastCompute(recompute=recompute))
      compute_gradients(loss_fn, small_batch(), num_parts, frozen=frozen)
      definition = graph.as_graph_def()
    nodes = [*definition.node]
    for function in definition.library.function:
      nodes += function.node_def
    pattern = r"gradients.*/bert/(embeddings|encoder/layer_\d|pooler)"
    found = (re.search(pattern, node.name) for node in nodes)
    return {match[1] for match in found if match}

  everything = {"embeddings", "encoder/layer_0", "encoder/layer_1", "pooler"}
  assert trained_parts(Frozen()) == everything
  assert trained_parts(Frozen(embeddings=True)) == everything - {"embeddings"}
  assert trained_parts(Frozen(1, True)) == {"encoder/layer_1", "pooler"}


@pytest.mark.train
def test_scaled_steps_in_float16_are_near_those_in_float32():
  half = take_four_steps(FastCompute(tf.float16, unpad=True), LossScale, 2)
  # float16 has a relative rounding error of 2 ** -11. A few such errors add up,
  # and the updated weights differ by them too.
  for one, other in zip(whole().scalars, half.scalars):
    for name, value in one.items():
      assert other[name] == pytest.approx(value, rel=2**-8), name


# Gradient of each row of the table, before the mean over the batch.
ROW_GRADIENTS = np.array([3.0, 4.0, 12.0, 84.0], np.float32)


def table_loss(batch, _):
  """Loss of the rows of a table with these ids, which may repeat."""
  table = tf.get_variable("table", initializer=tf.ones([4, 1]))
  rows = tf.gather(table, batch["ids"])[:, 0]
  return tf.reduce_mean(rows * tf.gather(ROW_GRADIENTS, batch["ids"])), {}


def tied_loss(batch, index):
  """`table_loss`, and the table also serves as output weights."""
  loss, scalars = table_loss(batch, index)
  with tf.variable_scope("", reuse=True):
    table = tf.get_variable("table")
  states = tf.gather(ROW_GRADIENTS, batch["ids"])[:, tf.newaxis]
  return loss + tf.reduce_mean(tf.matmul(states, table[:1])), scalars


@parametrize("num_micro_batches", 1, 2, 4)
@parametrize(
  "loss_fn, expected",
  # Summed by id first, it would be sqrt(1.5 ** 2 + 2 ** 2).
  (table_loss, np.sqrt(2 * (0.75**2 + 1.0**2))),
  (tied_loss, np.hypot(1.5 + 3.5, 2.0)),
)
def test_the_norm_sums_gradients_of_tied_embeddings_but_not_of_repeated_ids(
  num_micro_batches, loss_fn, expected
):
  batch = {"ids": tf.constant([0, 1, 1, 0])}
  gradients = compute_gradients(loss_fn, batch, num_micro_batches)
  step = optimization.training_step(gradients, 0.1, 10, 0)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    norm = session.run(step.gradient_norm)
  assert norm == pytest.approx(expected, rel=1e-6)


def test_an_unused_weight_has_no_gradient():
  unused = tf.get_variable("unused", initializer=tf.ones([1]))
  gradients = compute_gradients(table_loss, {"ids": tf.constant([0, 1])}, 2)
  names = (variable.op.name for variable in gradients.variables)
  by_name = dict(zip(names, gradients.gradients))
  assert by_name[unused.op.name] is None
  assert isinstance(by_name["table"], tf.IndexedSlices)


class ScaledTraining:
  """Training of one weight with loss scaling; a factor of the loss is fed."""

  def __init__(self, options=None, loss_scale=None, **constants):
    self.loss_scale = loss_scale or LossScale(**constants)
    self._factor = tf.placeholder(tf.float32, [])
    weight = tf.get_variable("w", initializer=tf.constant([1.0, -2.0]))
    batch = {"x": tf.constant([[1.0, 3.0], [2.0, 5.0]])}

    def loss_fn(batch, _):
      return tf.reduce_mean(batch["x"] * weight) * self._factor, {}

    gradients = compute_gradients(loss_fn, batch, loss_scale=self.loss_scale)
    self.step = optimization.training_step(
      gradients, 0.1, 100, 0, options=options, loss_scale=self.loss_scale
    )
    self._variables = {v.op.name: v for v in tf.global_variables()}

  def scales(self, session, factors):
    """Loss scale after each step, one step per factor."""
    scales = []
    for factor in factors:
      session.run(self.step.train_op, {self._factor: factor})
      scales.append(float(session.run(self.loss_scale.value)))
    return scales

  def values(self, session):
    return session.run(self._variables)


@parametrize(
  "options",
  StepOptions(),
  StepOptions(jit_compile=True),
  StepOptions(optimizer="adam", clip_norm=None),
  StepOptions(optimizer="lamb"),
  StepOptions(optimizer="lamb", clip_norm=None, jit_compile=True),
)
@parametrize("factor", np.inf, -np.inf, np.nan)
def test_step_with_nan_or_inf_changes_no_weight(session, factor, options):
  scaled = ScaledTraining(options, initial=1024.0)
  session.run(tf.global_variables_initializer())
  assert scaled.scales(session, [1.0]) == [1024.0]
  before = scaled.values(session)
  assert scaled.scales(session, [factor]) == [512.0]
  after = scaled.values(session)
  changed = {n for n in before if not np.array_equal(before[n], after[n])}
  assert changed == {"global_step", "loss_scale/scale", "loss_scale/good_steps"}
  assert after["global_step"] == 2
  assert {"w", "w/adam_m", "w/adam_v"} < set(before)


@parametrize(
  "constants, factors, scales",
  (
    {"initial": 8.0, "num_good_steps": 3},
    [1, 1, 1, 1, INF, 1, 1, 1, 1],
    [8, 8, 16, 16, 8, 8, 8, 16, 16],
  ),
  ({"initial": 2.0}, [INF] * 3, [1.0] * 3),
  # Only the scaled gradient overflows, and its norm first, which is limited
  # by the square root of the largest float32, 3.4e38.
  ({"initial": 2.0**15}, [1e17, 1e10], [2.0**14] * 2),
)
def test_the_scale_halves_and_doubles(session, constants, factors, scales):
  scaled = ScaledTraining(**constants)
  session.run(tf.global_variables_initializer())
  assert scaled.scales(session, factors) == scales
  assert np.isfinite(scaled.values(session)["w"]).all()


def test_a_fixed_scale_stays_and_skips_steps_that_overflow(session):
  scaled = ScaledTraining(loss_scale=FixedLossScale(128.0))
  session.run(tf.global_variables_initializer())
  assert not [name for name in scaled.values(session) if "scale" in name]
  weights = []
  for factor in (1.0, np.inf, 1.0):
    assert scaled.scales(session, [factor]) == [128.0]
    weights.append(scaled.values(session)["w"])
  np.testing.assert_array_equal(weights[0], weights[1])
  assert (weights[1] != weights[2]).all()
