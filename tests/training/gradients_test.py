"""Tests of gradient accumulation, frozen weights and loss scaling."""

import re
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_model

import modeling
import optimization
from bertlib.compute.fast_compute import FastCompute
from bertlib.training.gradients import (
  FixedLossScale,
  LossScale,
  compute_gradients,
)
from optimization import Frozen, StepOptions

pytestmark = pytest.mark.graph

FROZEN = ("bert/embeddings/", "bert/encoder/layer_0/")


@pytest.fixture(autouse=True)
def graph():
  """A fresh graph for every test."""
  with tf.Graph().as_default() as graph:
    yield graph


# Gradient accumulation and frozen weights

SMALL = tiny_model.config(
  100,
  hidden_size=32,
  num_hidden_layers=2,
  num_attention_heads=4,
  intermediate_size=64,
  hidden_dropout_prob=0.0,
  attention_probs_dropout_prob=0.0,
)


def small_batch():
  """Eight sequences of different lengths, in tensors of unknown shape."""
  draw = np.random.default_rng(0)
  lengths = [3, 16, 9, 1, 12, 5, 6, 7]
  mask = (np.arange(16) < np.array(lengths)[:, np.newaxis]).astype(np.int32)
  batch = {
    "input_ids": draw.integers(1, 9, mask.shape) * mask,
    "input_mask": mask,
    "label_ids": draw.integers(0, 3, len(lengths)),
  }
  return {
    name: tf.placeholder_with_default(
      tf.constant(array, tf.int32), [None, *[None] * (array.ndim - 1)]
    )
    for name, array in batch.items()
  }


def small_loss(compute):
  """A loss function for `compute_gradients`."""

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


def take_four_steps(compute, scales_loss=False, **options):
  options = StepOptions(**options)
  with tf.Graph().as_default(), tf.Session() as session:
    loss_scale = LossScale() if scales_loss else None
    gradients = compute_gradients(
      small_loss(compute),
      small_batch(),
      options.num_micro_batches,
      loss_scale,
      options.frozen,
    )
    step = optimization.training_step(
      gradients, 1e-3, 100, 0, options=options, loss_scale=loss_scale
    )
    scalars = {
      "loss": gradients.loss,
      "norm": step.gradient_norm,
      **gradients.scalars,
    }
    weights = {v.op.name: v for v in tf.trainable_variables()}
    draw = np.random.default_rng(0)
    session.run(
      tf.global_variables_initializer(),
      {
        v.initializer.inputs[1]: draw.normal(
          float(name.endswith("gamma")), 0.1, v.shape
        )
        for name, v in weights.items()
      },
    )
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


@pytest.fixture(scope="module")
def whole():
  """Four steps on whole batches."""
  return take_four_steps(FastCompute())


def assert_same_steps(found, expected):
  """Asserts equal results of steps but for rounding."""
  for one, other in zip(expected.scalars, found.scalars):
    for name, value in one.items():
      assert other[name] == pytest.approx(value, rel=0, abs=2e-6), name
  for name, value in expected.weights.items():
    np.testing.assert_allclose(
      found.weights[name], value, rtol=0, atol=1e-6, err_msg=name
    )


@pytest.mark.train
@pytest.mark.parametrize(
  ("num_micro_batches", "compute"),
  [
    (2, FastCompute()),
    (4, FastCompute(unpad=True, jit_compile=True, recompute=True)),
  ],
)
def test_micro_batches_give_the_step_of_the_whole_batch(
  whole, num_micro_batches, compute
):
  split = take_four_steps(compute, num_micro_batches=num_micro_batches)
  assert_same_steps(split, whole)
  assert split.global_step == whole.global_step == 4
  assert split.sparse == whole.sparse == ["bert/embeddings/word_embeddings"]


# A gradient that is 0 in theory is computed as rounding noise. With a small
# epsilon, Adam would scale this noise up to a full update.
ADAM = {"optimizer": "adam", "epsilon": 1e-3, "clip_norm": None}
LAMB = {"optimizer": "lamb", "epsilon": 1e-3, "layer_decay": 0.8}


@pytest.mark.train
@pytest.mark.parametrize(
  "options", [ADAM, {**LAMB, "frozen": Frozen(1, True), "jit_compile": True}]
)
def test_scaled_micro_batches_give_the_step_of_the_whole_batch(options):
  whole = take_four_steps(FastCompute(), **options)
  split = take_four_steps(
    FastCompute(), num_micro_batches=4, scales_loss=True, **options
  )
  assert_same_steps(split, whole)
  scale_variables = {"loss_scale/scale", "loss_scale/good_steps"}
  assert split.variables - scale_variables == whole.variables


def test_frozen_weights_are_bitwise_unchanged_and_have_no_moments():
  results = take_four_steps(
    FastCompute(unpad=True, jit_compile=True, recompute=True),
    num_micro_batches=2,
    frozen=Frozen(1, True),
    **LAMB,
  )
  unchanged = {
    name
    for name, value in results.weights.items()
    if np.array_equal(value, results.initial_weights[name])
  }
  frozen = {name for name in results.weights if name.startswith(FROZEN)}
  # The gradient of a key bias is 0 up to rounding.
  zero_gradient = {"bert/encoder/layer_1/attention/self/key/bias"}
  assert frozen <= unchanged <= frozen | zero_gradient
  moments = {n for n in results.variables if n.endswith(("adam_m", "adam_v"))}
  trained = set(results.weights) - frozen
  assert moments == {f"{n}/adam_{m}" for n in trained for m in "mv"}
  # 16 in the upper layer, 2 in the pooler, 2 in the head.
  assert len(trained) == 20


@pytest.mark.parametrize(
  ("recompute", "num_micro_batches"), [(False, 1), (True, 2)]
)
def test_no_gradient_is_computed_below_the_lowest_trained_layer(
  recompute, num_micro_batches
):
  def trained_parts(frozen):
    """Parts of the model for which the graph computes gradients."""
    with tf.Graph().as_default() as graph:
      compute_gradients(
        small_loss(FastCompute(recompute=recompute)),
        small_batch(),
        num_micro_batches,
        frozen=frozen,
      )
      definition = graph.as_graph_def()
    nodes = [*definition.node]
    for function in definition.library.function:
      nodes += function.node_def
    found = (
      re.search(
        r"gradients.*/bert/(embeddings|encoder/layer_\d|pooler)", n.name
      )
      for n in nodes
    )
    return {match[1] for match in found if match}

  everything = {"embeddings", "encoder/layer_0", "encoder/layer_1", "pooler"}
  assert trained_parts(Frozen()) == everything
  assert trained_parts(Frozen(embeddings=True)) == everything - {"embeddings"}
  assert trained_parts(Frozen(1, True)) == {"encoder/layer_1", "pooler"}


@pytest.mark.train
def test_scaled_steps_in_float16_are_near_those_in_float32(whole):
  half = take_four_steps(
    FastCompute(tf.float16, unpad=True), num_micro_batches=2, scales_loss=True
  )
  # float16 has a relative rounding error of 2 ** -11. A few such errors add up,
  # and the updated weights differ by them too.
  for one, other in zip(whole.scalars, half.scalars):
    for name, value in one.items():
      assert other[name] == pytest.approx(value, rel=2**-8), name


# Gradient of each row of the table, before the mean over the batch.
ROW_GRADIENTS = np.array([3.0, 4.0, 12.0, 84.0], np.float32)
IDS = [0, 1, 1, 0]


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


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
def test_rows_of_a_sparse_gradient_are_concatenated_in_order(num_micro_batches):
  batch = {"ids": tf.constant(IDS)}
  gradients = compute_gradients(table_loss, batch, num_micro_batches)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    (slices,) = session.run(gradients.gradients)
  assert slices.indices.tolist() == IDS
  assert slices.values[:, 0].tolist() == (ROW_GRADIENTS[IDS] / 4).tolist()


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
@pytest.mark.parametrize(
  ("loss_fn", "expected"),
  [
    # Summed by id first, it would be sqrt(1.5 ** 2 + 2 ** 2).
    (table_loss, np.sqrt(2 * (0.75**2 + 1.0**2))),
    (tied_loss, np.hypot(1.5 + 3.5, 2.0)),
  ],
)
def test_the_norm_sums_gradients_of_tied_embeddings_but_not_of_repeated_ids(
  num_micro_batches, loss_fn, expected
):
  batch = {"ids": tf.constant(IDS)}
  gradients = compute_gradients(loss_fn, batch, num_micro_batches)
  step = optimization.training_step(gradients, 0.1, 10, 0)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    norm = session.run(step.gradient_norm)
  assert norm == pytest.approx(expected, rel=1e-6)


def test_an_unused_weight_has_no_gradient():
  unused = tf.get_variable("unused", initializer=tf.ones([1]))
  batch = {"ids": tf.constant([0, 1])}
  gradients = compute_gradients(table_loss, batch, 2)
  by_name = dict(
    zip((v.op.name for v in gradients.variables), gradients.gradients)
  )
  assert by_name[unused.op.name] is None
  assert isinstance(by_name["table"], tf.IndexedSlices)


# Loss scaling


class ScaledTraining:
  """Training of one weight with loss scaling; a factor of the loss is fed."""

  def __init__(self, options=None, loss_scale=None, **constants):
    self.loss_scale = loss_scale or LossScale(**constants)
    self._factor = tf.placeholder(tf.float32, [])
    weight = tf.get_variable("w", initializer=tf.constant([1.0, -2.0]))
    batch = {"x": tf.constant([[1.0, 3.0], [2.0, 5.0]])}
    gradients = compute_gradients(
      lambda batch, _: (tf.reduce_mean(batch["x"] * weight) * self._factor, {}),
      batch,
      loss_scale=self.loss_scale,
    )
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


@pytest.fixture
def session(graph):
  with tf.Session(graph=graph) as session:
    yield session


@pytest.mark.parametrize(
  "options",
  [
    StepOptions(),
    StepOptions(jit_compile=True),
    StepOptions(optimizer="adam", clip_norm=None),
    StepOptions(optimizer="lamb"),
    StepOptions(optimizer="lamb", clip_norm=None, jit_compile=True),
  ],
)
@pytest.mark.parametrize("factor", [np.inf, -np.inf, np.nan])
def test_a_step_with_nan_or_inf_is_counted_but_changes_no_weight(
  session, factor, options
):
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


INF = np.inf


@pytest.mark.parametrize(
  ("constants", "factors", "scales"),
  [
    (
      {"initial": 8.0, "num_good_steps": 3},
      [1, 1, 1, 1, INF, 1, 1, 1, 1],
      [8, 8, 16, 16, 8, 8, 8, 16, 16],
    ),
    ({"initial": 2.0}, [INF] * 3, [1.0] * 3),
    # Only the scaled gradient overflows, and its norm first, which is limited
    # by the square root of the largest float32, 3.4e38.
    ({"initial": 2.0**15}, [1e17, 1e10], [2.0**14] * 2),
  ],
)
def test_overflow_halves_the_scale_down_to_1_and_good_steps_double_it(
  session, constants, factors, scales
):
  scaled = ScaledTraining(**constants)
  session.run(tf.global_variables_initializer())
  assert scaled.scales(session, factors) == scales
  assert np.isfinite(scaled.values(session)["w"]).all()


@pytest.mark.parametrize("make_scale", [LossScale, FixedLossScale])
def test_a_scaled_step_equals_a_plain_one(session, make_scale):
  scaled = ScaledTraining(loss_scale=make_scale(2.0**15))
  norm, weight = scaled.step.gradient_norm, tf.trainable_variables()[0]
  with tf.Graph().as_default(), tf.Session() as plain_session:
    plain = tf.get_variable("w", initializer=tf.constant([1.0, -2.0]))
    loss = tf.reduce_mean([[1.0, 3.0], [2.0, 5.0]] * plain)
    step = optimization.training_step(
      optimization.gradients_of(loss), 0.1, 100, 0
    )
    plain_session.run(tf.global_variables_initializer())
    expected_norm, _ = plain_session.run([step.gradient_norm, step.train_op])
    expected = plain_session.run(plain)
  session.run(tf.global_variables_initializer())
  assert session.run(norm, {scaled._factor: 1.0}) == expected_norm
  scaled.scales(session, [1.0])
  np.testing.assert_allclose(session.run(weight), expected, rtol=1e-6)


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


def test_the_scale_is_saved_and_not_trained(session, tmp_path):
  ScaledTraining(initial=4.0)
  session.run(tf.global_variables_initializer())
  path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
  saved = tf.train.load_checkpoint(path)
  assert saved.get_tensor("loss_scale/scale") == 4.0
  assert saved.get_tensor("loss_scale/good_steps") == 0
  assert [v.op.name for v in tf.trainable_variables()] == ["w"]
