"""Tests of the optimizer, its schedules and whole training steps."""

import json

import modeling_test
import numpy as np
import pytest
import reference_data
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from modeling_test import started
from parametrize import parametrize

import modeling
import optimization
from optimization import Frozen, StepOptions

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures("graph")]


def step_of(loss, options=None, frozen=None):
  """A step at the rate 0.1, the first of ten."""
  gradients = optimization.gradients_of(loss, frozen=frozen)
  return optimization.training_step(gradients, 0.1, 10, 0, options=options)


# Steps of pretraining and answers: run_pretraining_test.py, run_squad_test.py.
@pytest.mark.usefixtures("variables")
def test_steps_of_a_classifier_equal_the_reference(golden):
  def load(name):
    return dict(np.load(golden("optimization", "classifier_tiny", name)))

  batches, steps, final = map(load, ["batches.npz", "steps.npz", "final.npz"])
  steps["loss"] = steps.pop("total_loss", steps.get("loss"))
  config = modeling_test.load_config("tiny")
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
  feeds = {
    name: tf.placeholder(array.dtype, array.shape[1:])
    for name, array in batches.items()
  }
  model = modeling.BertModel(
    config, True, feeds["input_ids"], feeds["input_mask"], feeds["segment_ids"]
  )
  logits = modeling.classification_logits(model.get_pooled_output(), 3)
  labels = tf.reshape(feeds["label_ids"], [-1])
  losses, _ = modeling.cross_entropy(logits, labels)
  loss = tf.reduce_mean(losses)
  step = optimization.training_step(
    optimization.gradients_of(loss), 1e-3, 8, num_warmup_steps=3
  )
  modeling_test.restore_weights("tiny")
  fetches = {"loss": loss, "learning_rate": step.learning_rate}
  fetches["global_norm_as_clipped"] = step.gradient_norm
  with started() as session:
    modeling_test.load_heads(session, modeling_test.load("tiny", "heads"))
    for i in range(8):
      feed = {feeds[name]: array[i] for name, array in batches.items()}
      seen, _ = session.run([fetches, step.train_op], feed)
      for name, value in seen.items():
        np.testing.assert_allclose(
          value, steps[name][i], rtol=0, atol=2e-5, err_msg=f"{name}, step {i}"
        )
    values = session.run({v.op.name: v for v in tf.global_variables()})
  assert set(values) == set(final)
  for name, value in final.items():
    found = reference_data.first_rows(values[name], value)
    np.testing.assert_allclose(found, value, rtol=0, atol=3e-5, err_msg=name)


def test_learning_rates_equal_the_reference():
  path = reference_data.golden("optimization", "lr_schedules.jsonl")
  for case in reference_data.read_jsonl(path):
    expected = case.pop("learning_rate")
    rates = rates_at(range(len(expected)), **case)
    np.testing.assert_allclose(
      rates, expected, rtol=1e-6, atol=0, err_msg=json.dumps(case)
    )


def rates_at(steps, *args, **options):
  with tf.Graph().as_default(), tf.Session() as session:
    global_step = tf.placeholder(tf.int64, [])
    rate = optimization.learning_rate(global_step, *args, **options)
    return [float(session.run(rate, {global_step: step})) for step in steps]


@parametrize(
  "schedule, power, expected",
  ("linear", 1.0, [0, 2, 3, 2, 0.5, 0, 0]),
  ("constant", 1.0, [0, 2, 4, 4, 4, 4, 4]),
  # Half of 1 + cos(pi / 4), 0 and cos(pi * 7 / 8).
  ("cosine", 1.0, [0, 2, 3.4142136, 2, 0.1522409, 0, 0]),
  ("polynomial", 1.0, [0, 2, 3, 2, 0.5, 0, 0]),
  ("polynomial", 2.0, [0, 2, 2.25, 1, 0.0625, 0, 0]),
  ("polynomial", 0.5, [0, 2, 3.4641016, 2.8284271, 1.4142136, 0, 0]),
)
def test_schedules_at_start_warm_up_middle_and_end(schedule, power, expected):
  # The peak is 4: the start, half the warm-up and its end; half of training,
  # the last step, the end and long after it.
  steps = [0, 1, 2, 4, 7, 8, 1000]
  rates = rates_at(steps, 4.0, 8, 2, schedule, power)
  np.testing.assert_allclose(rates, expected, rtol=2e-6, atol=0)


@parametrize("share", 0.1, 0.25, 1.0)
def test_trapezoid_is_its_formula(share):
  steps = np.arange(0, 48)
  expected = 0.5 * np.minimum(
    np.minimum(steps / 4, 1), np.maximum(1 - steps / 40, 0) / share
  )
  rates = rates_at(steps, 0.5, 40, 4, "trapezoidal", 1.0, share)
  # With one share for all, warm-up and decay overlap: the warm-up wins.
  expected[:4] = 0.5 * steps[:4] / 4
  np.testing.assert_allclose(rates, expected, rtol=2e-6, atol=0)


@settings(max_examples=15, deadline=None)
@given(
  st.sampled_from(list(optimization.SCHEDULES)),
  st.integers(1, 10**6),
  st.integers(0, 10**6),
  st.floats(0.1, 4.0),
  st.lists(st.integers(0, 2 * 10**6), min_size=2, max_size=6),
)
def test_rate_rises_during_warm_up_and_never_after(
  schedule, num_train_steps, num_warmup_steps, power, steps
):
  args = (0.5, num_train_steps, num_warmup_steps, schedule, power)
  steps = sorted(steps)
  rates = rates_at(steps, *args)
  assert all(0.0 <= rate <= 0.5 for rate in rates)
  rising = [r for n, r in zip(steps, rates) if n < num_warmup_steps]
  falling = [r for n, r in zip(steps, rates) if n >= num_warmup_steps]
  assert rising == sorted(rising)
  assert falling == sorted(falling, reverse=True)


NO_DECAY = ["LayerNorm", "layer_norm", "bias"]
CASES = {
  "plain": {},
  "decay": {"weight_decay_rate": 0.01, "exclude_from_weight_decay": NO_DECAY},
  "decay_all": {"weight_decay_rate": 0.1},
  "betas": {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3},
}
TARGET = [0.4, 0.2, -0.5]


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize("case", CASES)
def test_bare_optimizer_equals_the_reference(case):
  vectors = np.load(reference_data.golden("optimization", "vectors.npz"))
  names = [name for name in vectors.files if name.startswith(f"{case}/")]
  paths = {name.removeprefix(f"{case}/"): vectors[name] for name in names}
  weights = {
    name: tf.get_variable(name, initializer=tf.constant(path[0]))
    for name, path in paths.items()
    if not name.endswith(("adam_m", "adam_v")) and path.shape == (101, 3)
  }
  loss = sum(tf.reduce_mean((TARGET - w) ** 2) for w in weights.values())
  optimizer = optimization.AdamWeightDecayOptimizer(0.2, **CASES[case])
  gradients = tf.gradients(loss, list(weights.values()))
  train_op = optimizer.apply_gradients(
    zip(gradients, weights.values()), tf.train.get_or_create_global_step()
  )
  with started() as session:
    for step in range(1, 101):
      session.run(train_op)
      for name, value in session.run(weights).items():
        np.testing.assert_allclose(
          value, paths[name][step], rtol=0, atol=1e-6, err_msg=f"{name} {step}"
        )
    assert session.run(tf.train.get_global_step()) == 0


@parametrize("jit_compile", False, True)
@parametrize(
  "options, clipped",
  ({}, [0.6, 0.8]),
  ({"clip_norm": 2.5}, [1.5, 2.0]),
  ({"clip_norm": 6.0}, [3.0, 4.0]),
)
def test_gradients_are_clipped_but_not_the_norm(options, clipped, jit_compile):
  weight = tf.get_variable("w", initializer=tf.zeros([2]))
  options = StepOptions(jit_compile=jit_compile, **options)
  step = step_of(tf.reduce_sum(weight * [3.0, 4.0]), options)
  with started() as session:
    norm, _ = session.run([step.gradient_norm, step.train_op])
    first_moment = session.run(
      next(v for v in tf.global_variables() if v.op.name == "w/adam_m")
    )
  assert norm == 5.0
  np.testing.assert_allclose(first_moment, 0.1 * np.array(clipped), rtol=1e-6)


@parametrize("jit_norm", False, True)
def test_norm_is_that_of_all_gradients(jit_norm):
  rows = tf.IndexedSlices(tf.constant([[4.0], [12.0]]), tf.constant([1, 1]))
  gradients = optimization.Gradients(
    tf.constant(0.0), {}, [tf.constant([3.0], tf.bfloat16), None, rows], []
  )
  mean, norm = optimization.mean_over_replicas(gradients, jit_norm=jit_norm)
  assert mean is gradients
  with tf.Session() as session:
    assert session.run(norm) == 13.0  # of the rows before they are summed


@parametrize("clip_norm", 0, None)
@parametrize("jit_compile", False, True)
def test_without_clipping_the_norm_has_no_effect(clip_norm, jit_compile):
  weight = tf.get_variable("w", initializer=tf.zeros([10]))
  options = StepOptions(clip_norm=clip_norm, jit_compile=jit_compile)
  step = step_of(tf.reduce_sum(weight * 1e19), options)
  with started() as session:
    norm, _ = session.run([step.gradient_norm, step.train_op])
    assert np.isinf(norm)  # float32 holds each square, and not their sum
    # 0.1 * g / sqrt(0.001 * g ** 2)
    np.testing.assert_allclose(session.run(weight), -0.1 * 10**0.5, rtol=1e-5)


def test_weight_without_gradient_is_unchanged_and_has_no_moments():
  used = tf.get_variable("used", initializer=tf.ones([1]))
  idle = tf.get_variable("idle", initializer=tf.ones([1]))
  step = step_of(tf.reduce_sum(used))
  with started() as session:
    session.run(step.train_op)
    assert session.run(idle) == 1.0
  names = {v.op.name for v in tf.global_variables()}
  assert names == {"used", "used/adam_m", "used/adam_v", "idle", "global_step"}


def steps_in_numpy(weight, gradients, rates, options, is_plain):
  """Updates by the formulas of the papers, in float64.

  `is_plain` is for biases and layer normalization, which neither decay nor are
  scaled.
  """
  is_corrected = options.optimizer != "adamw" or options.bias_correction
  decay = {"adamw": 0.01, "adam": 0.0, "lamb": 0.01}[options.optimizer]
  if options.weight_decay is not None:
    decay = options.weight_decay
  b1, b2 = options.beta_1, options.beta_2
  m = v = np.zeros_like(weight)
  for t, (gradient, rate) in enumerate(zip(gradients, rates), start=1):
    m = b1 * m + (1 - b1) * gradient
    v = b2 * v + (1 - b2) * gradient * gradient
    m_hat = m / (1 - b1**t) if is_corrected else m
    v_hat = v / (1 - b2**t) if is_corrected else v
    move = m_hat / (v_hat**0.5 + options.epsilon)
    if not is_plain:
      move = move + decay * weight
    if options.optimizer == "lamb" and not is_plain:
      of_weight, of_move = np.sum(weight**2) ** 0.5, np.sum(move**2) ** 0.5
      if of_weight > 0 and of_move > 0:
        move = move * of_weight / of_move
    weight = weight - rate * move
  return weight


IDS_OF_ROWS = [1, 3, 1]
# Exact in binary: 1 - beta loses no digits in float32.
EXACT = {"beta_1": 0.75, "beta_2": 0.9375, "epsilon": 2**-6}


@parametrize("jit_compile", False, True)
@parametrize(
  "options",
  StepOptions(optimizer="adamw", **EXACT),
  StepOptions(optimizer="adamw", bias_correction=True, **EXACT),
  StepOptions(optimizer="adam", **EXACT),
  StepOptions(optimizer="adam", weight_decay=0.25, **EXACT),
  StepOptions(optimizer="lamb", **EXACT),
  StepOptions(optimizer="lamb", weight_decay=0.0, **EXACT),
)
def test_steps_of_each_optimizer_equal_numpy(options, jit_compile):
  draw = np.random.default_rng(0)
  initial = {
    "table": draw.normal(size=[5, 2]),
    "dense/kernel": draw.normal(size=[2, 3]),
    "still/kernel": np.zeros([3]),  # has no norm for its first step
    "dense/bias": draw.normal(size=[3]),
    "LayerNorm/gamma": np.ones([2]),
  }
  weights = {
    name: tf.get_variable(name, initializer=tf.constant(value, tf.float32))
    for name, value in initial.items()
  }
  pulled = {"table": tf.gather(weights["table"], IDS_OF_ROWS)}
  pulled = {**weights, **pulled}
  pulls = {
    name: draw.normal(size=[6, *tensor.shape])
    for name, tensor in pulled.items()
  }
  feeds = {name: tf.placeholder(tf.float32) for name in pulls}
  gradients = optimization.gradients_of(
    sum(tf.reduce_sum(pulled[name] * feed) for name, feed in feeds.items())
  )
  assert isinstance(gradients.gradients[0], tf.IndexedSlices)
  options = options._replace(clip_norm=None, jit_compile=jit_compile)
  step = optimization.training_step(gradients, 0.1, 8, 2, options=options)
  slots = {f"{name}/adam_{moment}" for name in initial for moment in "mv"}
  names = {v.op.name for v in tf.global_variables()}
  assert names == {*initial, *slots, "global_step"}
  with started() as session:
    for i in range(6):
      feed = {feeds[name]: values[i] for name, values in pulls.items()}
      session.run(step.train_op, feed)
    actual = session.run(weights)
  by_row, pulls["table"] = pulls["table"], np.zeros([6, 5, 2])
  for i, rows in enumerate(by_row):
    np.add.at(pulls["table"][i], IDS_OF_ROWS, rows)
  rates = [0.1 * share for share in (0, 1 / 2, 6 / 8, 5 / 8, 4 / 8, 3 / 8)]
  for name, value in initial.items():
    is_plain = name in ("dense/bias", "LayerNorm/gamma")
    expected = steps_in_numpy(value, pulls[name], rates, options, is_plain)
    assert np.abs(expected - value).max() > 0.01
    np.testing.assert_allclose(
      actual[name], expected, rtol=0, atol=2e-6, err_msg=name
    )


@parametrize("jit_compile", False, True)
def test_lamb_keeps_a_weight_whose_update_has_norm_0(jit_compile):
  weight = tf.get_variable("w", initializer=tf.constant([3.0, -4.0]))
  options = StepOptions("lamb", weight_decay=0.0, clip_norm=None)
  options = options._replace(jit_compile=jit_compile)
  step = step_of(tf.reduce_sum(weight * 0.0), options)
  with started() as session:
    session.run(step.train_op)
    assert session.run(weight).tolist() == [3.0, -4.0]


# Layers between each weight and the heads, in a model of three layers.
DEPTHS = {
  "bert/embeddings/word_embeddings": 4,
  "bert/embeddings/LayerNorm/gamma": 4,
  "bert/embeddings_project/kernel": 4,
  "bert/encoder/shared_bias": 4,
  "bert/encoder/layer_0/attention/self/query/kernel": 3,
  "bert/encoder/layer_0/output/LayerNorm/beta": 3,
  "bert/encoder/layer_1/intermediate/dense/bias": 2,
  "bert/encoder/layer_2/output/dense/kernel": 1,
  "bert/pooler/dense/kernel": 0,
  "output_weights": 0,
  "cls/predictions/transform/dense/kernel": 0,
}
LOW = ("bert/embeddings", "bert/encoder/shared_bias", "bert/encoder/layer_0/")


def variables_of_depths():
  return [tf.get_variable(name, initializer=tf.ones([1])) for name in DEPTHS]


def test_layers_are_ordered_by_number_not_alphabetically():
  names = [f"bert/encoder/layer_{i}/output/dense/bias" for i in range(12)]
  variables = [tf.get_variable(name, [1]) for name in names]
  factors = optimization.rate_factors(variables, 0.5)
  assert factors == {name: 0.5 ** (12 - i) for i, name in enumerate(names)}


@parametrize("jit_compile", False, True)
@parametrize("frozen", Frozen(), Frozen(3))
def test_each_weight_is_updated_at_the_rate_of_its_layer(frozen, jit_compile):
  weights = variables_of_depths()
  options = StepOptions(jit_compile=jit_compile)
  options = options._replace(weight_decay=0.0, layer_decay=0.5)
  step = step_of(tf.add_n([w[0] for w in weights]), options, frozen)
  with started() as session:
    rate, _ = session.run([step.learning_rate, step.train_op])
    moves = {w.op.name: 1.0 - session.run(w)[0] for w in weights}
  assert rate == np.float32(0.1)
  whole_move = moves["output_weights"]
  assert whole_move > 0.1
  for name, depth in DEPTHS.items():
    is_frozen = frozen.num_layers and name.startswith("bert/encoder/layer_")
    factor = 0.0 if is_frozen else 0.5**depth
    assert moves[name] == pytest.approx(factor * whole_move, rel=1e-5), name


@parametrize(
  "frozen, stay",
  (Frozen(), ()),
  (Frozen(1), ("bert/encoder/layer_0/",)),
  (Frozen(1, True), LOW),
  (Frozen(3, True), ("bert/embeddings", "bert/encoder/")),
)
def test_frozen_variables_are_recognized_by_name(frozen, stay):
  expected = [name for name in DEPTHS if not name.startswith(stay or "no")]
  trained = optimization.trained_variables(variables_of_depths(), frozen)
  assert [v.op.name for v in trained] == expected


@parametrize("frozen", Frozen(4), Frozen(10**3, True))
def test_freezing_missing_layers_is_rejected(frozen):
  with pytest.raises(ValueError, match="the model has no such layers"):
    optimization.trained_variables(variables_of_depths(), frozen)
  with pytest.raises(ValueError, match="the model has no such layers"):
    optimization.trained_variables([], Frozen(embeddings=True))


def test_layer_decay_needs_layers():
  with pytest.raises(ValueError, match="no layers"):
    optimization.rate_factors([tf.get_variable("output_bias", [1])], 0.5)


def test_unknown_schedules_and_optimizers_are_rejected():
  with pytest.raises(ValueError, match="'cosin' is none of linear, constant,"):
    optimization.learning_rate(0, 1.0, 8, 2, "cosin")
  with pytest.raises(ValueError, match="'sgd' is none of adamw, adam, lamb"):
    step_of(tf.get_variable("w", []), StepOptions(optimizer="sgd"))


def step_with_copy(copies_weight, jit_compile=True):
  """A step of a model in bfloat16 that multiplies by a weight or its copy."""
  draw = np.random.default_rng(0)
  inputs = tf.constant(draw.normal(size=[4, 3]), tf.bfloat16)
  start = tf.constant(draw.normal(size=[3, 2]), tf.float32)
  weight = tf.get_variable("w", initializer=start)
  if copies_weight:
    kernel = optimization.weight_copy(weight, tf.bfloat16)
  else:
    kernel = tf.cast(weight, tf.bfloat16)
  outputs = tf.cast(tf.matmul(inputs, kernel), tf.float32)
  options = StepOptions(jit_compile=jit_compile)
  return weight, step_of(tf.reduce_mean(outputs**2), options).train_op


def train_with_copy(num_steps, *args):
  with tf.Graph().as_default(), tf.Session() as session:
    weight, train_op = step_with_copy(*args)
    session.run(tf.global_variables_initializer())
    session.run(tf.local_variables_initializer())
    for _ in range(num_steps):
      session.run(train_op)
    return session.run([weight, list(optimization.weight_copies().values())])


@pytest.mark.usefixtures("variables")
@parametrize("jit_compile", False, True)
def test_training_with_a_copy_equals_casting_the_weight(jit_compile):
  expected, none = train_with_copy(3, False, jit_compile)
  actual, [copy] = train_with_copy(3, True, jit_compile)
  assert not none
  np.testing.assert_array_equal(actual, expected)
  np.testing.assert_array_equal(copy, actual.astype(copy.dtype))


def test_a_second_copy_of_a_weight_is_the_first():
  weight = tf.get_variable("w", [3])
  first = optimization.weight_copy(weight, tf.bfloat16)
  assert optimization.weight_copy(weight, tf.bfloat16) is first
  assert optimization.weight_copies() == {"w": first}


def test_training_with_copies_resumes_from_a_checkpoint_without_them(tmp_path):
  expected, _ = train_with_copy(4, True)
  for _ in range(2):
    with tf.Graph().as_default():
      weight, train_op = step_with_copy(True)
      with tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), log_step_count_steps=None
      ) as session:
        for _ in range(2):
          session.run(train_op)
        actual = session.run(weight)
  names = [name for name, _ in tf.train.list_variables(str(tmp_path))]
  assert sorted(names) == ["global_step", "w", "w/adam_m", "w/adam_v"]
  np.testing.assert_array_equal(actual, expected)


# Functions as google-research/bert calls them


class NothingDecays(optimization.AdamWeightDecayOptimizer):
  """Overrides the hook that layer-wise and trust-ratio variants override."""

  names = ()

  def _do_use_weight_decay(self, param_name):
    self.names += (param_name,)
    return False


@pytest.mark.usefixtures("variables")
def test_subclass_can_choose_which_weights_decay():
  weight = tf.get_variable("w/kernel", initializer=[1.0, 2.0])
  optimizer = NothingDecays(0.5, weight_decay_rate=0.5)
  train_op = optimizer.apply_gradients([(tf.zeros([2]), weight)])
  with started() as session:
    session.run(train_op)
    assert session.run(weight).tolist() == [1.0, 2.0]
  assert set(optimizer.names) == {"w/kernel"}
