"""Kernels are used only if they compute what `modeling` does."""

import functools
import re

import pytest
import tensorflow.compat.v1 as tf
from parametrize import parametrize

import modeling
from bertlib.compute import fast_compute, int8, onednn, same_formula, xla

pytestmark = pytest.mark.graph

KERNELS = [
  ("attention", xla.attention_on_cpu),
  ("attention", xla.attention_on_gpu),
  ("attention", onednn.attention),
  ("dense layers", xla.dense_on_cpu, None),
  ("dense layers", xla.dense_on_gpu, modeling.gelu),
  ("8-bit dense layers", int8.QuantizedKernel),
  ("normalization", xla.add_and_norm),
  ("padding", fast_compute.FastCompute),
  ("chosen positions", fast_compute.FastCompute),
  ("dropout of attention", xla.attention_on_cpu),
  ("dropout of normalization", xla.add_and_norm),
]


@pytest.fixture(autouse=True)
def forget():
  """Comparisons of other tests do not count."""
  same_formula._computes_the_same.cache_clear()
  yield
  same_formula._computes_the_same.cache_clear()


of_onednn = pytest.param(
  ("normalization", onednn.add_and_norm),
  marks=pytest.mark.skipif(not onednn.is_available(), reason="needs oneDNN"),
)


@parametrize("arguments", *KERNELS, of_onednn)
def test_kernels_compute_what_modeling_does(arguments):
  assert same_formula.is_used(*arguments)


def attention_by_distance(query, key, *others):
  """Takes the index of a query in its tensor for its position."""
  length, num_keys = tf.shape(query)[2], tf.shape(key)[2]
  distance = tf.range(length)[:, tf.newaxis] - tf.range(num_keys)
  bias = -tf.cast(tf.abs(distance), tf.float32)[tf.newaxis, tf.newaxis]
  *others, biases = others
  return dot_product_attention(query, key, *others, (*biases, bias))


def attention_in_a_window(query, key, *others):
  """Each position attends to those at most 64 away."""
  length, num_keys = tf.shape(query)[2], tf.shape(key)[2]
  distance = tf.abs(tf.range(length)[:, tf.newaxis] - tf.range(num_keys))
  bias = tf.where_v2(distance <= 64, 0.0, -1e4)[tf.newaxis, tf.newaxis]
  *others, biases = others
  return dot_product_attention(query, key, *others, (*biases, bias))


def attention_that_drops_heads(query, key, value, mask, prob, seed, biases):
  kept = dropout(tf.ones_like(query[:, :, :1, :1]), prob, seed)
  return dot_product_attention(query, key, value, mask, 0, None, biases) * kept


def norm_that_drops_sums(self, output, residual, prob, seed, epsilon):
  total = dropout(output + residual, prob, seed)
  return add_and_norm(self, total, 0.0, 0.0, None, epsilon)


def attention_with_a_factor(query, *others):
  return dot_product_attention(1.1 * query, *others)


def dense_without_bias(self, inputs, kernel, bias, activation):
  output = tf.matmul(inputs, kernel)
  return activation(output) if activation else output


def dense_with_another_gradient(self, inputs, kernel, bias, activation):
  return dense(self, inputs, tf.stop_gradient(kernel), bias, activation)


def normalize_with_epsilon(vectors, beta, gamma, epsilon):
  return normalize(vectors, beta, gamma, 1e-3)


def heads_that_look_back(self, matrix, *shape):
  heads = split_heads(self, matrix, *shape)
  return heads + 0.1 * tf.roll(heads, 1, axis=2)


def dropout_of_rows(tensor, dropout_prob, seed=None):
  rows = tensor[:1] if dropout_prob else tensor
  return dropout(rows, dropout_prob, seed) * tf.ones_like(tensor)


dense, split_heads = modeling.Compute.dense, modeling.Compute.split_heads
dot_product_attention = modeling.dot_product_attention
normalize, dropout = modeling.normalize, modeling.dropout
add_and_norm = modeling.Compute.add_and_norm

CHANGES = [
  ("dot_product_attention", attention_with_a_factor, "attention"),
  *(
    ("dot_product_attention", changed, "attention")
    for changed in (
      functools.partial(attention_with_a_factor),
      functools.wraps(dot_product_attention)(
        lambda *arguments: attention_with_a_factor(*arguments)
      ),
    )
  ),
  ("Compute.dense", dense_without_bias, "dense layers"),
  ("Compute.dense", dense_with_another_gradient, "dense layers"),
  ("Compute.dense", dense_without_bias, "8-bit dense layers"),
  ("gelu", tf.nn.relu, "8-bit dense layers"),
  ("normalize", normalize_with_epsilon, "normalization"),
  ("Compute.split_heads", heads_that_look_back, "padding"),
  ("dot_product_attention", attention_by_distance, "chosen positions"),
  ("dot_product_attention", attention_in_a_window, "attention"),
  ("dot_product_attention", attention_in_a_window, "chosen positions"),
  ("dot_product_attention", attention_that_drops_heads, "dropout of attention"),
  ("dropout", dropout_of_rows, "dropout of attention"),
  ("dropout", dropout_of_rows, "dropout of normalization"),
  ("Compute.add_and_norm", norm_that_drops_sums, "dropout of normalization"),
]


@parametrize("name, changed, part", *CHANGES)
def test_changed_modeling_is_used(monkeypatch, caplog, name, changed, part):
  monkeypatch.setattr(f"modeling.{name}", changed)
  kernels = [arguments for arguments in KERNELS if arguments[0] == part]
  for arguments in kernels * 2:  # logged once
    assert not same_formula.is_used(*arguments)
  pattern = f"{part}: modeling.py computes something else.*; using modeling.py"
  assert len(caplog.messages) == len(kernels)
  assert all(re.fullmatch(pattern, line) for line in caplog.messages)


def test_changed_dropout_leaves_out_kernels_that_draw(monkeypatch, caplog):
  monkeypatch.setattr(modeling, "dropout", dropout_of_rows)
  for part, kernel in (
    ("normalization", xla.add_and_norm),
    ("attention", xla.attention_on_cpu),
  ):
    assert same_formula.is_used(part, kernel)
    assert not same_formula.is_used(part, kernel, draws=True)
  assert [line.partition(":")[0] for line in caplog.messages] == [
    "dropout of normalization",
    "dropout of attention",
  ]


def test_a_kernel_that_sums_bfloat16_in_bfloat16_is_left_out(monkeypatch):
  def summed(upstream, on_gpu):
    return tf.raw_ops.BiasAddGrad(out_backprop=upstream)

  monkeypatch.setattr(xla, "_bias_gradient", summed)
  assert not same_formula.is_used("dense layers", xla.dense_on_cpu, None)


def test_chosen_positions_are_left_out_and_padding_stays_out(monkeypatch):
  monkeypatch.setattr(modeling, "dot_product_attention", attention_by_distance)
  compute = fast_compute.FastCompute(unpad=True)
  assert not compute.skips_positions
  assert "without padding" in compute.describe("gelu")


def of_each_form(function):
  """A function in the forms in which an edit may come."""

  @functools.wraps(tf.nn.relu)
  def wrapper(x):
    return function(x)

  @tf.custom_gradient
  def with_gradient(x):
    return function(x), lambda upstream: tf.gradients(function(x), x, upstream)

  return [function, wrapper, functools.partial(function), with_gradient]


@parametrize("activation", *of_each_form(lambda x: x * tf.sin(x)))
def test_kernels_compute_an_activation_of_any_form(activation):
  assert same_formula.is_used("dense layers", xla.dense_on_cpu, activation)


def test_a_function_with_other_arguments_is_used(monkeypatch):
  monkeypatch.setattr(modeling, "dot_product_attention", lambda query: query)
  assert not same_formula.is_used("attention", xla.attention_on_cpu)
