"""Tests of TensorFlow 1 graph code in TensorFlow 2."""

import numpy as np
import pytest
import tensorflow as tf
import wrong_input_world

import modeling
from bertlib.checkpoints import checkpoint_files
from bertlib.export import tf1_module

pytestmark = pytest.mark.graph

CONFIG = modeling.BertConfig.from_dict(wrong_input_world.CONFIG)
IDS = np.int32([[2, 5, 6, 3], [2, 7, 3, 0]])
SPEC = [tf.TensorSpec([None, None], tf.int32)]


def build(input_ids):
  model = modeling.BertModel(CONFIG, False, input_ids)
  return model.get_pooled_output()


class Encoder(tf1_module.GraphModule):
  @tf.function(input_signature=SPEC, autograph=False)
  def predict(self, input_ids):
    with self.scope():
      return build(input_ids)


def initial_weights(init_checkpoint=None):
  return tf1_module.initial_weights(
    lambda: build(tf.constant(IDS)), init_checkpoint
  )


@pytest.fixture(scope="module")
def weights():
  random = np.random.default_rng(0)
  return {
    name: random.normal(size=value.shape).astype(np.float32)
    for name, value in initial_weights().items()
  }


@pytest.fixture(scope="module")
def encoder(weights):
  return Encoder(weights)


def test_the_output_equals_that_of_the_graph(encoder, weights):
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    output = build(tf.constant(IDS))
    for variable in tf.compat.v1.trainable_variables():
      variable.load(weights[variable.op.name], session)
    expected = session.run(output)
  np.testing.assert_allclose(encoder.predict(IDS), expected, atol=1e-6)


def test_two_modules_have_separate_weights(encoder, weights):
  other = Encoder({name: value * 0 for name, value in weights.items()})
  before = encoder.predict(IDS).numpy()
  assert not other.predict(IDS).numpy().any()
  assert np.array_equal(encoder.predict(IDS), before)


def test_initial_weights_come_from_a_checkpoint_if_it_has_them(
  weights, tmp_path
):
  checkpoint = str(tmp_path / "model.ckpt")
  some = {n: v for n, v in weights.items() if "pooler" not in n}
  checkpoint_files.write_variables(checkpoint, some)
  started = initial_weights(checkpoint)
  assert started.keys() == weights.keys()
  assert all(np.array_equal(started[name], some[name]) for name in some)
  assert not started["bert/pooler/dense/bias"].any()
