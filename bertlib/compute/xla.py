"""Operations between matrix products, compiled by XLA.

Each is a function of `modeling` or a method of `modeling.Compute` in fewer
passes over its tensors, and with its own gradient. Gradients and compiled
functions live as long as their graph: TensorFlow would keep them, and with them
their graphs, for the life of the process.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Callable

import tensorflow.compat.v1 as tf

import modeling

# Collections whose key is not a string are not saved with the graph. This one
# has pairs: an operation, and the function of its gradient.
_GRADIENTS = ("custom_gradients",)


def cache_in_graph(function: Callable) -> Callable:
  """`functools.cache`, with one cache per graph."""
  key = (f"cache of {function.__name__}",)

  @functools.wraps(function)
  def call(*args, **kwargs):
    graph = tf.get_default_graph()
    if not graph.get_collection(key):
      graph.add_to_collection(key, functools.cache(function))
    (cached,) = graph.get_collection(key)
    return cached(*args, **kwargs)

  return call


def custom_gradient(function: Callable) -> Callable:
  """`tf.custom_gradient` whose graph can be freed; reads no variables."""

  def call(*inputs):
    if tf.executing_eagerly_outside_functions():  # may be recorded by a tape
      return tf.custom_gradient(function)(*inputs)
    # Gradients are registered by type of operation, so this is an `identity_n`,
    # whose own gradient function `_gradient` finds in the graph.
    inputs = [tf.convert_to_tensor(value) for value in inputs]
    result, gradient_fn = function(*inputs)
    graph = tf.get_default_graph()
    with graph.gradient_override_map({"IdentityN": _registered_gradient()}):
      output = tf.identity_n([result, *inputs])[0]
    graph.add_to_collection(_GRADIENTS, (output.op, gradient_fn))
    return output

  return call


@functools.cache
def _registered_gradient() -> str:
  """Registers the gradient of all such functions once; returns its name."""
  name = "bertlib.custom_gradient"
  with contextlib.suppress(KeyError):  # another copy of this module has done it
    tf.RegisterGradient(name)(_gradient)
  return name


def _gradient(op, upstream, *_):
  gradient_fn = dict(op.graph.get_collection(_GRADIENTS))[op]
  # The first input of `identity_n` is the result; gradients go to the others.
  return [None, *tf.nest.flatten(gradient_fn(upstream))]


# Compilation


# Collection of a graph in which nothing is compiled.
_UNCOMPILED = ("uncompiled",)


def compile_nothing() -> None:
  """Lets the functions below build plain operations in the current graph."""
  tf.add_to_collection(_UNCOMPILED, True)


@cache_in_graph
def _jit(function: Callable, **constants) -> Callable:
  """Compiles a function of tensors by XLA, once for each shape."""

  # Of a `functools.partial`, `tf.function` takes constants for defaults and of
  # functions among them the `__wrapped__` one.
  def call(*inputs):
    return function(*inputs, **constants)

  if tf.get_collection(_UNCOMPILED):
    return call
  # On a GPU, a training step of BERT-Base then launches 1,750 kernels instead
  # of 5,400.
  return tf.function(call, jit_compile=True, autograph=False)


@cache_in_graph
def compiled(function: Callable, **constants) -> Callable:
  """Compiles a function and its gradient by XLA, computed in float32."""

  def in_float32(*inputs):
    # Casts are fused: 16-bit inputs are read, and results written, once.
    result = function(*map(_widened, inputs), **constants)
    return tf.cast(result, inputs[0].dtype)

  def backward(inputs, gradient):
    # Only the inputs are stored; XLA computes the function again.
    return tf.gradients(in_float32(*inputs), inputs, gradient)

  @custom_gradient
  def call(*inputs):
    return _jit(in_float32)(*inputs), lambda g: _jit(backward)(inputs, g)

  return call


def _widened(tensor):
  """Casts 16-bit floats to float32."""
  return tf.cast(tensor, tf.float32) if tensor.dtype.is_floating else tensor


def dense_on_cpu(inputs, kernel, bias, activation: Callable | None):
  """`modeling.Compute.dense` with faster gradients."""
  return _dense(inputs, kernel, bias, activation, on_gpu=False)


def dense_on_gpu(inputs, kernel, bias, activation: Callable | None):
  """`modeling.Compute.dense` with faster gradients."""
  return _dense(inputs, kernel, bias, activation, on_gpu=True)


def _dense(inputs, kernel, bias, activation: Callable | None, on_gpu: bool):
  kernel, bias = (tf.cast(v, inputs.dtype) for v in (kernel, bias))

  @custom_gradient
  def layer(inputs, kernel, bias):
    product = tf.matmul(inputs, kernel)

    def gradients(upstream):
      if activation is not None:
        differentiate = _jit(_activation_gradient, activation=activation)
        upstream = differentiate(product, bias, upstream)
      stored = inputs if on_gpu else _again(inputs, upstream)
      return (
        tf.matmul(upstream, kernel, transpose_b=True),
        _kernel_gradient(stored, upstream, on_gpu),
        _bias_gradient(upstream, on_gpu),
      )

    if activation is None and inputs.dtype == tf.float32:
      return tf.nn.bias_add(product, bias), gradients
    # TensorFlow would fuse a `bias_add` with the product, and in 16 bits then
    # use a slower product.
    activate = _jit(_activated, activation=activation)
    output = activate(product, bias)
    if activation is not None and not tf.executing_eagerly():
      _activations()[output.op] = functools.partial(activate, product, bias)
    return output, gradients

  return layer(inputs, kernel, bias)


@cache_in_graph
def _activations() -> dict:
  """Functions that compute an activation again, by its operation."""
  return {}


def _again(inputs, upstream):
  """The inputs of a layer, computed again if an activation made them."""
  # The inputs of an activation are stored already; its output need not be.
  if tf.executing_eagerly() or inputs.op.type != "IdentityN":
    return inputs
  again = _activations().get(inputs.op.inputs[0].op, lambda: inputs)
  with tf.control_dependencies([upstream]):
    return again()


def _activated(product, bias, *, activation):
  output = _widened(product) + _widened(bias)
  return tf.cast(activation(output) if activation else output, product.dtype)


def _activation_gradient(product, bias, upstream, *, activation):
  output = _activated(product, bias, activation=activation)
  return tf.gradients(output, product, upstream)[0]


def _kernel_gradient(inputs, upstream, on_gpu: bool):
  """[R, width] and [R, units] to [width, units]."""
  # On a CPU, a product whose first operand is transposed takes longer than
  # transposing a narrow matrix, which query, key and value have in common.
  if on_gpu or inputs.shape.as_list()[1] > upstream.shape.as_list()[1]:
    return tf.matmul(inputs, upstream, transpose_a=True)
  return tf.matmul(_columns(inputs, upstream), upstream)


@cache_in_graph
def _transposes() -> dict:
  """Transposed inputs, by the reference of the inputs."""
  return {}


def _columns(inputs, upstream):
  """Transposes [R, width] once an upstream gradient is known."""
  # Without waiting, all would exist from the forward pass on.
  found = {} if tf.executing_eagerly() else _transposes()
  if inputs.ref() not in found:
    with tf.control_dependencies([upstream]):
      # With three axes, or else Grappler would make it `transpose_a`.
      columns = tf.transpose(inputs[:, tf.newaxis], [2, 1, 0])
      found[inputs.ref()] = tf.squeeze(columns, axis=1)  # [width, R]
  return found[inputs.ref()]


def _bias_gradient(upstream, on_gpu: bool):
  """[R, units] to [units]."""
  if on_gpu:
    return _jit(_column_sums)(upstream)
  # On a CPU, a product is faster than a sum, in 16 bits.
  ones = tf.ones([1, modeling.get_shape_list(upstream)[0]], upstream.dtype)
  return tf.matmul(ones, upstream)[0]


def _column_sums(matrix):
  return tf.cast(tf.reduce_sum(_widened(matrix), axis=0), matrix.dtype)


def attention_on_cpu(
  query, key, value, biases, dropout_prob: float, dropout_seed
):
  """`modeling.dot_product_attention` in fewer passes over [B, N, F, T]."""
  noise = _noise(dropout_prob, dropout_seed)
  query *= 1.0 / math.sqrt(query.shape.as_list()[-1])
  drop = _jit(_dropped_probs, dropout_prob=dropout_prob, dtype=value.dtype)
  softmax_gradient = _jit(_softmax_gradient, dropout_prob=dropout_prob)

  @custom_gradient
  def average(scores, value, *biases):
    probs = tf.nn.softmax(_biased(scores, biases))
    context = tf.matmul(drop(probs, noise), value)

    def gradients(upstream):
      by_prob = tf.matmul(upstream, value, transpose_b=True)
      with tf.control_dependencies([upstream]):
        dropped = drop(probs, noise)  # again: it is not stored
      by_value = tf.matmul(dropped, upstream, transpose_a=True)
      by_score = softmax_gradient(probs, by_prob, context, upstream, noise)
      return by_score, by_value, *_score_bias_gradients(by_score, biases)

    return context, gradients

  return average(tf.matmul(query, key, transpose_b=True), value, *biases)


def _biased(scores, biases):
  """Sum of scores and their biases in float32."""
  return functools.reduce(tf.add, biases, _widened(scores))


def _score_bias_gradients(by_score, biases) -> list:
  """Gradients of the biases of scores, from that of the scores."""
  # Operations of their own, which run only for biases with variables.
  return [_summed_to(tf.shape(bias), by_score) for bias in biases]


def _summed_to(shape, gradient):
  """Gradient of a tensor that was broadcast from a shape."""
  axes = tf.raw_ops.BroadcastGradientArgs(s0=shape, s1=tf.shape(gradient)).r0
  return tf.reshape(tf.reduce_sum(_widened(gradient), axes), shape)


def _dropped_probs(probs, key, *, dropout_prob, dtype):
  return tf.cast(_dropped(probs, key, dropout_prob), dtype)


def _softmax_gradient(probs, by_prob, context, upstream, key, *, dropout_prob):
  """Gradient of the scores, from that of the probabilities after dropout."""
  gradient = _dropped(_widened(by_prob), key, dropout_prob)
  # Softmax needs each query's mean gradient: the sum over keys of probability
  # times gradient. That is also `context` times its gradient, with D columns
  # instead of T.
  products = _widened(context) * _widened(upstream)
  means = tf.reduce_sum(products, axis=-1, keepdims=True)
  return tf.cast(probs * (gradient - means), by_prob.dtype)


def attention_on_gpu(
  query, key, value, biases, dropout_prob: float, dropout_seed
):
  """`modeling.dot_product_attention` with softmax by XLA."""
  query *= 1.0 / math.sqrt(query.shape.as_list()[-1])
  noise = _noise(dropout_prob, dropout_seed)

  # One GPU kernel, and one for its gradient. Stored are the scores and the
  # probabilities after dropout.
  @custom_gradient
  def dropped_probs(scores, *biases):
    options = {"dropout_prob": dropout_prob}
    inputs = scores, noise, *biases

    def gradients(upstream):
      by_score = _jit(_score_gradient, **options)(upstream, *inputs)
      return by_score, *_score_bias_gradients(by_score, biases)

    return _jit(_attention_probs, **options)(*inputs), gradients

  scores = tf.matmul(query, key, transpose_b=True)
  return tf.matmul(dropped_probs(scores, *biases), value)


def _attention_probs(scores, key, *biases, dropout_prob):
  probs = tf.nn.softmax(_biased(scores, biases))
  return tf.cast(_dropped(probs, key, dropout_prob), scores.dtype)


def _score_gradient(upstream, scores, key, *biases, dropout_prob):
  probs = _attention_probs(scores, key, *biases, dropout_prob=dropout_prob)
  return tf.gradients(probs, scores, upstream)[0]


def add_and_norm(output, residual, dropout_prob, dropout_seed, epsilon: float):
  """`modeling.Compute.add_and_norm`."""
  with tf.variable_scope(None, default_name="LayerNorm"):
    weights = modeling.norm_weights(output.shape.as_list()[-1])
  fused = compiled(_normalized_sum, epsilon=epsilon, dropout_prob=dropout_prob)
  return fused(output, residual, *weights, _noise(dropout_prob, dropout_seed))


def _normalized_sum(
  output, residual, beta, gamma, key, *, epsilon, dropout_prob
):
  total = _dropped(output, key, dropout_prob) + residual
  # XLA computes the variance of `modeling.normalize` in more passes.
  centered = total - tf.reduce_mean(total, axis=-1, keepdims=True)
  variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
  return centered * (tf.math.rsqrt(variance + epsilon) * gamma) + beta


# Dropout


def mask_key(dropout_seed):
  """Key of a scope's dropout mask for `keep_mask`, uint32 [2]."""
  key, step = modeling.dropout_key(dropout_seed)
  if key is None:
    low, high = tf.int32.min, tf.int32.max
    words = tf.random.uniform([2], low, high, tf.int32)
  else:
    seed = [key, tf.cast(step, tf.int32)]
    words = tf.random.stateless_uniform([2], seed, None, None, tf.int32)
  return tf.bitcast(words, tf.uint32)


def _noise(dropout_prob: float, dropout_seed):
  """`mask_key`, or zeros without dropout."""
  if not dropout_prob:
    return tf.zeros([2], tf.uint32)
  return mask_key(dropout_seed)


def keep_mask(shape, dropout_prob: float, key):
  """Dropout mask, True at elements to keep, by a hash of key and index."""
  # XLA fuses the hash with what uses the mask: it takes less time than random
  # bits in memory, and the gradient computes the mask again.
  index = tf.bitcast(tf.range(tf.reduce_prod(shape)), tf.uint32)
  # Rounds of the hash "lowbias32" (Wellons 2018), with a key before each.
  bits = _mixed(index + key[0], 16, 0x7FEB352D)
  bits = _mixed(bits + key[1], 15, 0x846CA68B)
  bits = tf.bitwise.bitwise_xor(bits, _shifted(bits, 16))
  fraction = tf.bitcast(_shifted(bits, 8), tf.int32)  # of 2**24
  return tf.reshape(fraction >= round(dropout_prob * 2**24), shape)


def _mixed(bits, shift: int, factor: int):
  factor = tf.constant(factor, tf.uint32)
  return tf.bitwise.bitwise_xor(bits, _shifted(bits, shift)) * factor


def _shifted(bits, shift: int):
  return tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint32))


def _dropped(tensor, key, dropout_prob: float):
  if not dropout_prob:
    return tensor
  keep = keep_mask(tf.shape(tensor), dropout_prob, key)
  # The keep probability can be 0; avoid dividing by it.
  scale = 1.0 / max(1.0 - dropout_prob, 2.0**-24)
  return tf.where(keep, tensor * scale, tf.zeros_like(tensor))
