"""Tests of the training step of a `model_fn`."""

import types

import pytest
import tensorflow.compat.v1 as tf
from parametrize import parametrize

from bertlib.compat import estimator_api
from bertlib.compute.fast_compute import FastCompute
from bertlib.reporting import run_report
from bertlib.tasks.embeddings.embedding_losses import BatchLoss
from bertlib.training import train_step

pytestmark = pytest.mark.graph


def arguments_of(**values):
  """Arguments of a model whose weights never change."""
  defaults = {
    "init_checkpoint": None,
    "learning_rate": 0.0,
    "num_train_steps": 10,
    "num_warmup_steps": 0,
    "use_tpu": False,
    "seed": 7,
    "log_steps": 1,
  }
  return train_step.TrainingArguments(**(defaults | values))


def train_spec(loss_fn, params=(), **values):
  batch, params = {"x": tf.ones([4, 2])}, {"batch_size": 4} | dict(params)
  arguments = arguments_of(**values)
  return train_step.train_spec(arguments, loss_fn, batch, params, None)


def loss_of_weight(batch, _):
  weight = tf.get_variable("w", [2], initializer=tf.ones_initializer())
  return tf.reduce_mean(batch["x"] * weight), {}


def loss_with_bit_of_draw(batch, dropout_seed):
  """1 at the bit of each dropout draw."""
  seed, draw = dropout_seed
  assert seed == 7
  loss, scalars = loss_of_weight(batch, None)
  return loss * tf.cast(2**draw, tf.float32), scalars


def draws_of(spec, num_micro_batches, num_steps):
  """Bits of the dropout draws of some steps, summed."""
  bits = 0
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(num_steps):
      loss, _ = session.run([spec.loss, spec.train_op])
      bits += round(float(loss) * num_micro_batches)
  return bits


@parametrize("num_micro_batches", 1, 2, 4)
def test_no_two_micro_batches_of_a_run_have_the_same_dropout(num_micro_batches):
  with tf.Graph().as_default():
    parts = {"num_micro_batches": num_micro_batches}
    spec = train_spec(loss_with_bit_of_draw, **parts)
    bits = draws_of(spec, num_micro_batches, num_steps=3)
  # Each bit is there once: no draw is missing and none is repeated.
  assert bits == 2 ** (3 * num_micro_batches) - 1


@pytest.fixture
def on_core(monkeypatch):
  """Runs as one of several TPU cores, all of which compute the same."""

  def run_on(core, num_cores):
    def all_to_all(
      input, group_assignment, concat_dimension, split_dimension, split_count
    ):
      assert group_assignment == [list(range(num_cores))]
      # Every core splits the same tensor; this one receives a block from each.
      tensor = tf.convert_to_tensor(input)
      blocks = tf.split(tensor, split_count, split_dimension)
      return tf.concat([blocks[core]] * num_cores, concat_dimension)

    monkeypatch.setattr(tf.raw_ops, "AllToAll", all_to_all)
    monkeypatch.setattr(tf.tpu, "cross_replica_sum", lambda x: x * num_cores)

  return run_on


@parametrize("num_micro_batches", 1, 2)
def test_no_two_tpu_cores_have_the_same_dropout(on_core, num_micro_batches):
  num_cores, num_steps, drawn = 3, 2, []
  context = types.SimpleNamespace(num_replicas=num_cores)
  for core in range(num_cores):
    on_core(core, num_cores)
    with tf.Graph().as_default():
      values = {"use_tpu": True, "num_micro_batches": num_micro_batches}
      spec = train_spec(loss_with_bit_of_draw, {"context": context}, **values)
      drawn.append(draws_of(spec, num_micro_batches, num_steps))
  # Together the cores have each bit once.
  assert sum(drawn) == 2 ** (num_cores * num_steps * num_micro_batches) - 1
  num_draws = [bin(bits).count("1") for bits in drawn]
  assert num_draws == [num_steps * num_micro_batches] * num_cores


def test_cached_gradients_with_random_dropout_are_refused():
  loss = BatchLoss(loss_of_weight, lambda vectors, _: vectors, ())
  refused = pytest.raises(ValueError, match="needs a seed")
  with tf.Graph().as_default(), refused:
    train_spec(loss, seed=None, num_micro_batches=2)


def test_losses_of_tpu_cores_have_one_normalizer(on_core):
  on_core(0, num_cores=2)
  arguments = arguments_of(use_tpu=True, num_micro_batches=2)
  with tf.Graph().as_default(), tf.Session() as session:
    weights = tf.constant([1, 0, 1, 1])
    assert session.run(train_step.loss_normalizer(weights, arguments)) == 1.5


@parametrize("fixed, shown", (0.0, "3.277e+04"), (128.0, "128"))
def test_a_scaled_loss_is_shown_as_it_is_with_its_scale(log, fixed, shown):
  with tf.Graph().as_default():
    compute = FastCompute(tf.float16)
    spec = train_spec(loss_of_weight, compute=compute, loss_scale=fixed)
    hooks = spec.training_hooks
    with tf.train.SingularMonitoredSession(hooks=hooks) as session:
      session.run(spec.train_op)
  (line,) = (line for line in log if line.startswith("step 1 of 10"))
  assert "loss 1," in line and f"loss scale {shown};" in line


def test_scalars_reach_tensorboard(tmp_path):
  def loss_fn(batch, _):
    weight = tf.get_variable("w", [2], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(batch["x"]) + 0.0 * tf.reduce_sum(weight)
    return loss, {"twice": 2.0 * loss}

  steps = {"num_train_steps": 5, "num_micro_batches": 2, "log_steps": 2}
  arguments = arguments_of(learning_rate=0.6, seed=None, **steps)

  def model_fn(features, labels, mode, params, config):
    del labels, mode
    batch = {"x": features}
    return train_step.train_spec(arguments, loss_fn, batch, params, config)

  def input_fn(params):
    steps = tf.data.Dataset.range(1, 7)  # every value is the step
    return steps.map(lambda step: tf.fill([4], tf.cast(step, tf.float32)))

  model_dir = str(tmp_path)
  config = estimator_api.RunConfig(model_dir=model_dir, save_summary_steps=0)
  estimator = estimator_api.TPUEstimator(
    model_fn, config=config, use_tpu=False, train_batch_size=4
  )
  estimator.train(input_fn, max_steps=5)
  scalars = run_report.read_scalars(str(tmp_path))
  speeds = scalars.pop("examples/s")
  assert [step for step, _ in speeds] == [2, 4, 5]
  assert all(speed > 0 for _, speed in speeds)
  steps = (1, 2, 4, 5)  # the first and the last one in any case
  assert scalars == {
    "loss": [(step, step) for step in steps],
    "twice": [(step, 2 * step) for step in steps],
    "gradient_norm": [(step, 0.0) for step in steps],
    "learning_rate": [(n, pytest.approx(0.12 * (6 - n))) for n in steps],
  }
