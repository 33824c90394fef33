"""Tests of gradient caching, compared with the gradient of the whole batch."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_model
from modeling_test import weight_of
from parametrize import parametrize

import modeling
import optimization
from bertlib.compute import pooling
from bertlib.compute.fast_compute import FastCompute
from bertlib.hardware import distribution
from bertlib.settings.embedding_spec import EmbeddingSpec
from bertlib.tasks.embeddings import embedding_losses
from bertlib.tasks.embeddings.embedding_losses import BatchLoss, LossOptions
from bertlib.training import train_step
from optimization import Frozen

pytestmark = pytest.mark.graph

PLAIN = tiny_model.config(100, **tiny_model.NO_DROPOUT)
DROPOUT = tiny_model.config(100)  # 0.1
SPEC = EmbeddingSpec(projection_dim=24)
NUM_EXAMPLES, LENGTH, SEED = 8, 12, 7

LOSSES = {
  "infonce": LossOptions("infonce", symmetric=True, dims=(24, 8)),
  "cosent": LossOptions("cosent"),
  "supervised_contrastive": LossOptions("supervised_contrastive"),
}
FAST = FastCompute(unpad=True, jit_compile=True, recompute=True)


def make_batch(name):
  """Texts of different lengths, with what the loss needs."""
  draw = np.random.default_rng(0)
  num_texts = {"infonce": 3, "cosent": 2, "supervised_contrastive": 1}[name]
  shape = [NUM_EXAMPLES, num_texts]
  lengths = draw.integers(1, LENGTH + 1, [*shape, 1])
  mask = (np.arange(LENGTH) < lengths).astype(np.int32)
  ids = draw.integers(1, 20, mask.shape, np.int32) * mask
  # Distinct, also where float32 has only even numbers.
  text_ids = np.arange(num_texts * NUM_EXAMPLES, dtype=np.int32) + 2**24
  text_ids = text_ids.reshape(shape)
  text_ids[5, 0] = text_ids[1, 0]
  text_ids[6, 2:] = embedding_losses.MISSING
  return {
    "input_ids": ids,
    "input_mask": mask,
    "text_ids": text_ids,
    "scores": draw.integers(0, 4, NUM_EXAMPLES).astype(np.float32),
    "label_ids": draw.integers(0, 3, NUM_EXAMPLES).astype(np.int32),
  }


def of_unknown_size(batch):
  return {
    name: tf.placeholder_with_default(
      tf.constant(array), [None, *array.shape[1:-1], None][: array.ndim]
    )
    for name, array in batch.items()
  }


def encoder(config=PLAIN, compute=None):
  """Encodes texts in groups."""

  def encode_fn(batch, dropout_seed):
    *groups, length = modeling.get_shape_list(batch["input_ids"])
    mask = tf.reshape(batch["input_mask"], [-1, length])
    ids = tf.reshape(batch["input_ids"], [-1, length])
    model = modeling.BertModel(
      config, True, ids, mask, compute=compute, dropout_seed=dropout_seed
    )
    vectors = pooling.sentence_vectors(model.get_sequence_output(), mask, SPEC)
    return tf.reshape(vectors, [*groups, vectors.shape[-1]])

  return encode_fn


def seeded(encode_fn):
  """An encoder that takes the number of a micro-batch."""
  return lambda batch, index: encode_fn(
    batch, (SEED, tf.cast(index, tf.int64) + 10)
  )


def run(found):
  """Loss and dense gradients by name."""
  with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
    # The same weights in every graph.
    session.run(tf.global_variables_initializer())
    for variable in tf.trainable_variables():
      for copy in getattr(variable, "values", [variable]):  # of each replica
        copy.load(weight_of(variable), session)
    dense = {
      optimization.name_of(variable): tf.convert_to_tensor(gradient)
      for variable, gradient in zip(found.variables, found.gradients)
      if gradient is not None
    }
    return session.run((found.loss, dense))


def plain_gradients(name, encode_fn, num_micro_batches=1):
  """Gradients of the loss of all vectors, encoded side by side."""
  with tf.Graph().as_default():
    batch = {n: tf.constant(a) for n, a in make_batch(name).items()}
    parts = {n: tf.split(t, num_micro_batches) for n, t in batch.items()}
    vectors = []
    for index in range(num_micro_batches):
      with tf.variable_scope("", reuse=index > 0):
        part = {n: tensors[index] for n, tensors in parts.items()}
        vectors.append(encode_fn(part, tf.constant(index)))
    loss_fn = embedding_losses.make_loss(LOSSES[name])
    loss = loss_fn(tf.concat(vectors, axis=0), batch)
    return run(optimization.gradients_of(loss))


def cached_gradients(
  name, encode_fn, num_micro_batches, make_scale=lambda: None, **options
):
  with tf.Graph().as_default():
    loss = embedding_losses.training_loss(LOSSES[name], encode_fn)
    batch = of_unknown_size(make_batch(name))
    how = num_micro_batches, make_scale()
    found = loss.compute_gradients(batch, *how, **options)
    sparse = {
      optimization.name_of(variable)
      for variable, gradient in zip(found.variables, found.gradients)
      if isinstance(gradient, tf.IndexedSlices)
    }
    return *run(found), sparse


def assert_same_gradients(found, expected, tolerance=1e-5):
  assert found.keys() == expected.keys()
  for name, gradient in expected.items():
    # The gradient of a key bias is 0: softmax does not see it. What is computed
    # is rounding noise.
    is_zero = name.endswith("key/bias")
    scale = 0.01 if is_zero else np.abs(gradient).max()
    np.testing.assert_allclose(
      found[name], gradient, rtol=0, atol=tolerance * scale, err_msg=name
    )
    assert is_zero or scale > 0.0, name


@pytest.fixture(scope="module")
def whole():
  return {name: plain_gradients(name, seeded(encoder())) for name in LOSSES}


@pytest.mark.train
@parametrize(
  "name, num_micro_batches, compute",
  ("infonce", 1, None),
  *((name, count, None) for name in LOSSES for count in (2, 4)),
  ("infonce", 4, FAST),
)
def test_micro_batches_equal_the_batch(whole, name, num_micro_batches, compute):
  encode_fn = seeded(encoder(compute=compute))
  loss, found, sparse = cached_gradients(name, encode_fn, num_micro_batches)
  assert loss == pytest.approx(whole[name][0], rel=1e-6)
  assert_same_gradients(found, whole[name][1])
  assert sparse == {"bert/embeddings/word_embeddings"}


@pytest.mark.train
@parametrize("compute", FastCompute(), FAST)
def test_both_passes_of_a_micro_batch_drop_the_same_elements(compute):
  encode_fn = seeded(encoder(DROPOUT, compute))
  expected_loss, expected = plain_gradients("infonce", encode_fn, 4)
  loss, found, _ = cached_gradients("infonce", encode_fn, 4)
  assert loss == pytest.approx(expected_loss, rel=1e-6)
  assert_same_gradients(found, expected)


def test_frozen_weights_have_no_gradient(whole):
  frozen = Frozen(embeddings=True)
  _, found, _ = cached_gradients("infonce", seeded(encoder()), 2, frozen=frozen)
  trained = {
    name: gradient
    for name, gradient in whole["infonce"][1].items()
    if not name.startswith("bert/embeddings/")
  }
  assert_same_gradients(found, trained)


def test_loss_scale_scales_the_gradients_but_not_the_loss(whole):
  loss, found, _ = cached_gradients(
    "infonce", seeded(encoder()), 2, lambda: train_step.LossScale(1024.0)
  )
  assert loss == pytest.approx(whole["infonce"][0], rel=1e-6)
  assert_same_gradients(
    {name: value / 1024.0 for name, value in found.items()}, whole["infonce"][1]
  )


@pytest.mark.train
@parametrize(
  "name, num_micro_batches", ("infonce", 1), ("infonce", 2), ("cosent", 2)
)
def test_replicas_equal_the_global_batch(whole, name, num_micro_batches):
  means = []

  def build():
    number = train_step.replica_number()
    batch = {
      n: tf.stack(tf.split(array, 2))[number]
      for n, array in make_batch(name).items()
    }
    loss = embedding_losses.training_loss(LOSSES[name], seeded(encoder()))
    local = loss.compute_gradients(batch, num_micro_batches)
    means.append(optimization.mean_over_replicas(local)[0])

  with tf.Graph().as_default():
    strategy = distribution._local_strategy(2)
    with strategy.scope():
      strategy.run(tf.autograph.experimental.do_not_convert(build))
    loss, found = run(means[0])
  assert loss == pytest.approx(whole[name][0], rel=1e-6)
  assert_same_gradients(found, whole[name][1])


def test_only_one_micro_batch_has_activations_at_a_time():
  events = []

  def recorded(event, tensor, index):
    """The tensor; the event is recorded when it is computed."""

    def record(values, index):
      events.append(f"{event} {index}")
      return values

    result = tf.numpy_function(record, [tensor, index], tensor.dtype)
    return tf.ensure_shape(result, tensor.shape)

  def encode_fn(batch, index):
    weight = tf.get_variable("w", [], initializer=tf.ones_initializer())

    @tf.custom_gradient
    def layer(values, weight):
      output = recorded("encoded", weight * values, index)

      def backward(upstream):
        # The activation `output` is needed until here.
        by_weight = tf.reduce_sum(upstream * output / weight)
        return None, recorded("propagated", by_weight, index)

      return output, backward

    return layer(batch["x"], weight)

  with tf.Graph().as_default(), tf.Session() as session:
    loss = BatchLoss(
      encode_fn, lambda vectors, _: tf.reduce_sum(vectors**2), ()
    )
    found = loss.compute_gradients({"x": tf.range(8.0)}, 4)
    session.run(tf.global_variables_initializer())
    loss, gradient = session.run([found.loss, found.gradients])
  assert loss == 140.0 and gradient == [280.0]
  first_pass, second_pass = events[:4], events[4:]
  assert sorted(first_pass) == [f"encoded {number}" for number in range(4)]
  again = [f"{e} {n}" for n in range(4) for e in ("encoded", "propagated")]
  assert second_pass == again[1:]
