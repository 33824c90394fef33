"""Tests of the optimizer, its schedule and whole steps of training."""

import json
import os

import numpy as np
import pytest
import reference_data
import tensorflow.compat.v1 as tf

import modeling
import optimization


@pytest.fixture(autouse=True)
def graph():
  """A fresh graph for every test."""
  with tf.Graph().as_default() as graph:
    yield graph


def pretraining_loss(config, model, batch):
  lm_logits = modeling.masked_lm_logits(
    config,
    model.get_sequence_output(),
    model.get_embedding_table(),
    batch["masked_lm_positions"],
  )
  lm_losses, _ = modeling.cross_entropy(
    lm_logits, tf.reshape(batch["masked_lm_ids"], [-1])
  )
  ns_losses, _ = modeling.cross_entropy(
    modeling.next_sentence_logits(config, model.get_pooled_output()),
    tf.reshape(batch["next_sentence_labels"], [-1]),
  )
  weights = tf.reshape(batch["masked_lm_weights"], [-1])
  return modeling.weighted_mean(lm_losses, weights) + tf.reduce_mean(ns_losses)


def classifier_loss(config, model, batch):
  logits = modeling.classification_logits(model.get_pooled_output(), 3)
  losses, _ = modeling.cross_entropy(
    logits, tf.reshape(batch["label_ids"], [-1])
  )
  return tf.reduce_mean(losses)


def squad_loss(config, model, batch):
  start, end = modeling.span_logits(model.get_sequence_output())
  sides = [(start, "start_positions"), (end, "end_positions")]
  losses = [
    tf.reduce_mean(
      modeling.cross_entropy(logits, tf.reshape(batch[name], [-1]))[0]
    )
    for logits, name in sides
  ]
  return sum(losses) / 2.0


@pytest.mark.parametrize(
  ("run", "loss_fn", "num_warmup_steps"),
  [
    ("pretraining_tiny", pretraining_loss, 3),
    ("classifier_tiny", classifier_loss, 3),
    ("squad_tiny", squad_loss, 0),
  ],
)
def test_eight_steps_equal_the_reference(run, loss_fn, num_warmup_steps):
  def load(name):
    return dict(np.load(reference_data.golden("optimization", run, name)))

  batches, steps, final = map(load, ["batches.npz", "steps.npz", "final.npz"])
  steps["loss"] = steps.pop("total_loss", steps.get("loss"))
  config = modeling.BertConfig.from_json_file(
    reference_data.golden("modeling", "tiny", "bert_config.json")
  )
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
  feeds = {
    name: tf.placeholder(array.dtype, array.shape[1:])
    for name, array in batches.items()
  }
  model = modeling.BertModel(
    config, True, feeds["input_ids"], feeds["input_mask"], feeds["segment_ids"]
  )
  loss = loss_fn(config, model, feeds)
  step = optimization.training_step(
    optimization.gradients_of(loss), 1e-3, 8, num_warmup_steps
  )
  restore_tiny()
  fetches = {
    "loss": loss,
    "learning_rate": step.learning_rate,
    "global_norm_as_clipped": step.gradient_norm,
  }
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    load_heads(session)
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
    tolerance = 1e-4 if name.startswith("cls/squad/output_bias") else 3e-5
    np.testing.assert_allclose(
      values[name], value, rtol=0, atol=tolerance, err_msg=name
    )


def restore_tiny():
  index = reference_data.golden("modeling", "tiny", "bert_model.ckpt.index")
  checkpoint = os.path.splitext(index)[0]
  assignment_map, _ = modeling.get_assignment_map_from_checkpoint(
    tf.trainable_variables(), checkpoint
  )
  tf.train.init_from_checkpoint(checkpoint, assignment_map)


def load_heads(session):
  heads = np.load(reference_data.golden("modeling", "tiny", "heads.npz"))
  for variable in tf.trainable_variables():
    if "weights/" + variable.op.name in heads:
      variable.load(heads["weights/" + variable.op.name], session)


def test_learning_rates_equal_the_reference():
  path = reference_data.golden("optimization", "lr_schedules.jsonl")
  for case in reference_data.read_jsonl(path):
    expected = case.pop("learning_rate")
    global_step = tf.placeholder(tf.int64, [])
    rate = optimization.learning_rate(global_step, **case)
    with tf.Session() as session:
      rates = [
        session.run(rate, {global_step: i}) for i in range(len(expected))
      ]
    np.testing.assert_allclose(
      rates, expected, rtol=1e-6, atol=0, err_msg=json.dumps(case)
    )


CASES = {
  "plain": {},
  "decay": {
    "weight_decay_rate": 0.01,
    "exclude_from_weight_decay": ["LayerNorm", "layer_norm", "bias"],
  },
  "decay_all": {"weight_decay_rate": 0.1},
  "betas": {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3},
}
TARGET = [0.4, 0.2, -0.5]


@pytest.mark.parametrize("case", CASES)
def test_bare_optimizer_equals_the_reference(case):
  vectors = np.load(reference_data.golden("optimization", "vectors.npz"))
  paths = {
    name[len(case) + 1 :]: vectors[name]
    for name in vectors.files
    if name.startswith(case + "/")
  }
  weights = {
    name: tf.get_variable(name, initializer=tf.constant(path[0]))
    for name, path in paths.items()
    if not name.endswith(("adam_m", "adam_v")) and path.shape == (101, 3)
  }
  loss = sum(
    tf.reduce_mean(tf.square(TARGET - weight)) for weight in weights.values()
  )
  optimizer = optimization.AdamWeightDecayOptimizer(0.2, **CASES[case])
  gradients = tf.gradients(loss, list(weights.values()))
  train_op = optimizer.apply_gradients(
    zip(gradients, weights.values()), tf.train.get_or_create_global_step()
  )
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(1, 101):
      session.run(train_op)
      for name, value in session.run(weights).items():
        np.testing.assert_allclose(
          value, paths[name][step], rtol=0, atol=1e-6, err_msg=f"{name} {step}"
        )
    assert session.run(tf.train.get_global_step()) == 0


def adam_in_numpy(weight, gradients, rate, decay):
  """Kingma and Ba 2015 without bias correction, decay decoupled; float64."""
  m = v = np.zeros_like(weight)
  for gradient in gradients:
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient**2
    weight = weight - rate * (m / (np.sqrt(v) + 1e-6) + decay * weight)
  return weight


def test_repeated_rows_of_a_sparse_gradient_add_up():
  table = np.random.default_rng(0).normal(size=[5, 2])
  ids, pull = [1, 3, 1], np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
  dense = np.zeros_like(table)
  np.add.at(dense, ids, pull)
  weight = tf.get_variable("table", initializer=tf.constant(table, tf.float32))
  gradient = tf.IndexedSlices(tf.constant(pull, tf.float32), tf.constant(ids))
  gradient = tf.IndexedSlices(gradient.values, gradient.indices, weight.shape)
  optimizer = optimization.AdamWeightDecayOptimizer(0.1, weight_decay_rate=0.01)
  train_op = optimizer.apply_gradients([(gradient, weight)])
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(3):
      session.run(train_op)
    expected = adam_in_numpy(table, [dense] * 3, 0.1, 0.01)
    np.testing.assert_allclose(session.run(weight), expected, rtol=0, atol=1e-5)


def test_bias_correction_equals_numpy():
  gradients = np.random.default_rng(0).normal(size=[5, 3])
  m = v = np.zeros(3)
  expected = np.ones(3)
  for t, gradient in enumerate(gradients, start=1):
    m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
    m_hat, v_hat = m / (1 - 0.9**t), v / (1 - 0.999**t)
    expected = expected - 0.1 * (
      m_hat / (np.sqrt(v_hat) + 1e-6) + 0.01 * expected
    )
  weight = tf.get_variable("w", initializer=tf.ones([3]))
  gradient = tf.placeholder(tf.float32, [3])
  optimizer = optimization.AdamWeightDecayOptimizer(
    0.1, weight_decay_rate=0.01, bias_correction=True
  )
  with tf.control_dependencies(
    [optimizer.apply_gradients([(gradient, weight)])]
  ):
    train_op = tf.train.get_or_create_global_step().assign_add(1)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for value in gradients:
      session.run(train_op, {gradient: value})
    # float32 holds 1 - 0.999 to four digits.
    np.testing.assert_allclose(session.run(weight), expected, rtol=0, atol=1e-4)


def test_gradients_are_clipped_to_the_norm_and_the_norm_is_told_before():
  weight = tf.get_variable("w", initializer=tf.zeros([2]))
  step = optimization.training_step(
    optimization.gradients_of(tf.reduce_sum(weight * [3.0, 4.0])), 0.1, 10, 0
  )
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    norm, _ = session.run([step.gradient_norm, step.train_op])
    first_moment = session.run(
      next(v for v in tf.global_variables() if v.op.name == "w/adam_m")
    )
  assert norm == 5.0
  np.testing.assert_allclose(first_moment, [0.06, 0.08], rtol=1e-6)


def test_a_step_is_counted_after_its_rate_is_read():
  weight = tf.get_variable("w", initializer=tf.ones([2]))
  step = optimization.training_step(
    optimization.gradients_of(tf.reduce_sum(weight)), 1.0, 10, 5
  )
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    rates = [session.run(list(step[:2]))[1] for _ in range(7)]
    assert session.run(tf.train.get_global_step()) == 7
  np.testing.assert_allclose(rates, [0, 0.2, 0.4, 0.6, 0.8, 0.5, 0.4])


def test_create_optimizer_gives_a_train_op():
  weight = tf.get_variable("w", initializer=tf.ones([2]))
  train_op = optimization.create_optimizer(
    tf.reduce_sum(weight), 0.1, 10, 0, False
  )
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(train_op)
    assert (session.run(weight) < 1.0).all()
    assert session.run(tf.train.get_global_step()) == 1


def test_a_weight_without_gradient_stays_and_has_no_moments():
  used = tf.get_variable("used", initializer=tf.ones([1]))
  idle = tf.get_variable("idle", initializer=tf.ones([1]))
  step = optimization.training_step(
    optimization.gradients_of(tf.reduce_sum(used)), 0.1, 10, 0
  )
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(step.train_op)
    assert session.run(idle) == 1.0
  names = {v.op.name for v in tf.global_variables()}
  assert names == {"used", "used/adam_m", "used/adam_v", "idle", "global_step"}
