"""Gradients of biases in bfloat16, summed over many rows of a batch."""

import functools
import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import modeling
from bertlib.compute.fast_compute import FastCompute

pytestmark = pytest.mark.graph

NUM_ROWS = 4096
CONFIG = modeling.BertConfig(
  vocab_size=7,
  hidden_size=32,
  num_hidden_layers=1,
  num_attention_heads=2,
  intermediate_size=64,
  max_position_embeddings=2,
  type_vocab_size=2,
  hidden_dropout_prob=0.0,
  attention_probs_dropout_prob=0.0,
)


def masked_lm(model):
  table = model.get_embedding_table()
  return modeling.masked_lm_logits(CONFIG, model.get_sequence_output(), table)


HEADS = {
  "masked language model": masked_lm,
  # Other heads have the same output layer.
  "classification": lambda model: modeling.classification_logits(
    model.get_pooled_output(), 3
  ),
}


def weight(getter, name, shape=None, **options):
  # Weights with which bfloat16 itself is within 1%.
  draw = np.random.default_rng(zlib.crc32(f"c{name}".encode()))
  values = draw.normal(float(name.endswith("gamma")), 0.1, shape)
  initializer = tf.constant_initializer(np.float32(values))
  return getter(name, shape=shape, **{**options, "initializer": initializer})


def bias_gradients(head, **options):
  """Gradients of all biases of a model; its sequences are equal."""
  with tf.Graph().as_default(), tf.Session() as session:
    with tf.variable_scope("", custom_getter=weight, use_resource=True):
      ids = tf.tile([[3, 5]], [NUM_ROWS, 1])
      compute = FastCompute(**options)
      model = modeling.BertModel(CONFIG, True, ids, compute=compute)
      logits = tf.cast(HEADS[head](model), tf.float32)
    factors = tf.sin(tf.range(1.0, 1.0 + logits.shape.as_list()[-1]))
    loss = tf.reduce_sum(logits * factors)
    variables = [v for v in tf.trainable_variables() if "bias" in v.op.name]
    gradients = tf.gradients(loss, variables)
    named = {
      variable.op.name: gradient
      for variable, gradient in zip(variables, gradients)
      if gradient is not None
    }
    session.run(tf.global_variables_initializer())
    return session.run(named)


@functools.cache
def exact_gradients(head):
  return bias_gradients(head)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_bfloat16_sums_the_gradients_of_biases_over_all_rows(head, jit_compile):
  exact = exact_gradients(head)
  found = bias_gradients(head, dtype=tf.bfloat16, jit_compile=jit_compile)
  assert found.keys() == exact.keys()
  # The same number added to all keys changes no probability.
  for name in exact.keys() - {"bert/encoder/layer_0/attention/self/key/bias"}:
    error = np.linalg.norm(found[name] - exact[name])
    assert error < 0.05 * np.linalg.norm(exact[name]), name
