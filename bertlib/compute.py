"""Options for time and memory: precision, unpadding, XLA fusion, recomputation.

They do not change what a model computes. `modeling.Compute` is the plain
implementation; `FastCompute` adds the options; `UnpaddedCompute` is
`FastCompute` for one unpadded batch. Each option overrides some methods:

- `dtype`: mixed precision; results differ only by rounding. Overrides no
  method.
- `unpad`: dense layers run on real tokens only. `for_batch` returns an
  `UnpaddedCompute`, which overrides `positions`, `unpad_input`, `pad_output`,
  `gather_positions` and `attention_layer`; `UnpaddedRows` maps rows to tokens.
- `jit_compile`: XLA fuses the operations between matrix products. Overrides
  `dense` and `add_and_norm`; `UnpaddedCompute` then calls `fused_attention`.
- `use_onednn`: kernels of oneDNN outside training. Overrides `add_and_norm`;
  `UnpaddedCompute` then calls `_attention_by_onednn`.
- `recompute`: gradient checkpointing, that is, activations are recomputed for
  the gradient instead of stored. Overrides `run_layer`.

`for_inference` turns off `jit_compile` and `recompute`, which only training
needs. Kernels may be those of `int8`, which bring their own product. Shapes are
those of `modeling`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Callable

import tensorflow.compat.v1 as tf

import modeling
from bertlib import int8, onednn


@dataclasses.dataclass(frozen=True)
class FastCompute(modeling.Compute):
  """`modeling.Compute` with options; by default all are off.

  Attributes:
    dtype: dtype of matrix products and hidden states: float32, bfloat16 or
      float16. Weights, layer normalization, softmax and losses are always
      float32.
    unpad: run dense layers on real tokens only. Hidden states at padding are
      then 0. Not for a TPU, which needs static shapes.
    jit_compile: in training, fuse the operations between matrix products by
      XLA, and draw the dropout masks inside of them, from a hash. Each shape
      is compiled once. Not for a TPU, where the whole model is compiled anyway.
    recompute: in training, store only the input of each layer and recompute
      its activations for the gradient.
    use_onednn: outside training, normalize layers by a kernel of oneDNN. For
      CPUs only.
    is_training: set by `BertModel`.
  """

  dtype: Any = tf.float32
  unpad: bool = False
  jit_compile: bool = False
  recompute: bool = False
  use_onednn: bool = False
  is_training: bool = True

  def _fuses(self) -> bool:
    # TensorFlow 1 while loops cannot run functions compiled by XLA.
    return self.jit_compile and tf.control_flow_v2_enabled()

  def for_inference(self) -> FastCompute:
    """See base class."""
    return dataclasses.replace(
      self, jit_compile=False, recompute=False, is_training=False
    )

  def for_batch(self, input_mask) -> FastCompute:
    """See base class."""
    if not self.unpad:
      return self
    return UnpaddedCompute(**vars(self), rows=UnpaddedRows(input_mask))

  def run_layer(self, layer: Callable, hidden, scope, is_repeatable: bool):
    """See base class.

    Raises:
      ValueError: `recompute` is set and the layer is not repeatable.
    """
    if not self.recompute:
      return layer(hidden)
    if not is_repeatable:
      raise ValueError("Recomputing with dropout needs a dropout_seed")
    return recomputed(layer, scope)(hidden)

  def dense(self, inputs, kernel, bias, activation: Callable | None):
    """See base class; `kernel` may be one of `int8`."""
    if isinstance(kernel, (int8.QuantizedKernel, int8.ObservedKernel)):
      return kernel.dense(inputs, bias, activation)
    if not self._fuses():
      return super().dense(inputs, kernel, bias, activation)
    kernel, bias = (tf.cast(v, inputs.dtype) for v in (kernel, bias))
    return fused_dense(inputs, kernel, bias, activation)

  def add_and_norm(
    self, output, residual, dropout_prob, dropout_seed, epsilon: float
  ):
    """See base class."""
    by_onednn = self.use_onednn and onednn.takes_dtype(output.dtype)
    if by_onednn and not self.is_training:
      return _norm_by_onednn(output + residual, epsilon)
    if not self._fuses():
      return super().add_and_norm(
        output, residual, dropout_prob, dropout_seed, epsilon
      )
    with tf.variable_scope(None, default_name="LayerNorm"):
      weights = modeling.norm_weights(output.shape.as_list()[-1])
    return compiled(
      _normalized_sum, epsilon=epsilon, dropout_prob=dropout_prob
    )(output, residual, *weights, mask_key(dropout_seed))


def _norm_by_onednn(tensor, epsilon: float):
  """`modeling.layer_norm` of [R, H], fast for matrices of any size."""
  with tf.variable_scope(None, default_name="LayerNorm"):
    beta, gamma = modeling.norm_weights(tensor.shape.as_list()[-1])

  def plain():
    vectors = tf.cast(tensor, tf.float32)
    normalized = modeling.normalize(vectors, beta, gamma, epsilon)
    return tf.cast(normalized, tensor.dtype)

  return onednn.layer_norm(tensor, gamma, beta, epsilon, plain)


def _attention_by_onednn(query, key, value, attention_mask):
  """`modeling.dot_product_attention` of bfloat16, in fewer passes.

  oneDNN scales and masks the scores in the pass of their product. Its softmax
  computes in float32, whatever it takes and returns.

  Args:
    query: [B, N, F, D], not scaled.
    key: [B, N, T, D].
    value: [B, N, T, D].
    attention_mask: see `modeling.attention_layer`.

  Returns:
    [B, N, F, D].
  """
  scale = tf.constant(query.shape.as_list()[-1] ** -0.5, query.dtype)
  scores = tf.matmul(query, key, transpose_b=True) * scale  # [B, N, F, T]
  scores += tf.cast(modeling.attention_bias(attention_mask), query.dtype)
  return tf.matmul(tf.nn.softmax(scores), value)


def _joined(weights: Sequence[tuple[Any, Any]]) -> tuple[Any, Any] | None:
  """One dense layer for several of the same matrix, side by side.

  Args:
    weights: kernel and bias of each layer.

  Returns:
    Its kernel and bias; None if the kernels are not constant, so that they
    would be joined in every batch.
  """
  kernels, biases = zip(*weights)
  if all(isinstance(kernel, int8.QuantizedKernel) for kernel in kernels):
    joined = int8.QuantizedKernel.concat(kernels)
  elif all(map(_is_constant, kernels)):
    joined = tf.concat(kernels, axis=1)
  else:
    return None
  return joined, tf.concat(biases, axis=0)


def _is_constant(kernel) -> bool:
  return isinstance(kernel, tf.Tensor) and kernel.op.type == "Const"


# Unpadding


@dataclasses.dataclass(frozen=True)
class UnpaddedCompute(FastCompute):
  """`FastCompute` for one unpadded batch.

  Attributes:
    rows: maps the batch's rows to tokens.
  """

  rows: UnpaddedRows | None = None

  @property
  def positions(self):
    """See base class."""
    return self.rows.positions

  def unpad_input(self, ids):
    """See base class."""
    return self.rows.unpad(ids)

  def pad_output(self, states):
    """See base class."""
    return self.rows.pad(modeling.reshape_to_matrix(states))

  def gather_positions(self, states, positions):
    """See base class; at padding, returns the state of an arbitrary token."""
    return self.rows.gather(modeling.reshape_to_matrix(states), positions)

  def attention_layer(
    self,
    from_tensor,
    to_tensor,
    attention_mask,
    *,
    num_attention_heads: int,
    size_per_head: int,
    attention_probs_dropout_prob: float,
    initializer_range: float,
    from_seq_length,
    dropout_seed,
    **_,
  ):
    """See base class; queries, keys and values are projected without padding.

    Args:
      from_tensor: float [R, H], the same object as `to_tensor`; or [B * F, H],
        hidden states from `gather_positions`.
      to_tensor: float [R, H].
      attention_mask: float or int [B, 1, S] or [B, S, S], 1 where a query may
        attend to a key, 0 where not; 0 for each key at padding.
      num_attention_heads: N.
      size_per_head: D.
      attention_probs_dropout_prob: dropout of the attention probabilities.
      initializer_range: standard deviation of the initial weights.
      from_seq_length: F, for hidden states from `gather_positions`.
      dropout_seed: see `modeling.dropout`.

    Returns:
      float [R, N * D], or [B * F, N * D].
    """
    heads = num_attention_heads, size_per_head
    width = num_attention_heads * size_per_head
    inputs = {"query": from_tensor, "key": to_tensor, "value": to_tensor}
    scopes, weights = [], []
    for name, rows in inputs.items():
      with tf.variable_scope(name) as scope:
        in_width = rows.shape.as_list()[-1]
        weights.append(
          modeling.dense_weights(in_width, width, initializer_range)
        )
      scopes.append(scope.original_name_scope)

    is_unpadded = from_tensor is to_tensor
    joined = is_unpadded and not self.is_training and _joined(weights)
    if joined:
      product = self.dense(to_tensor, *joined, None)  # [R, 3 * N * D]
      query, key, value = self.rows.split_layers(product, 3, *heads)
    else:
      products = []  # [R or B * F, N * D], and twice [R, N * D]
      for scope, rows, pair in zip(scopes, inputs.values(), weights):
        with tf.name_scope(scope):
          products.append(self.dense(rows, *pair, None))
      query, key, value = products
      if is_unpadded:
        query = self.rows.split_heads(query, *heads)  # [B, N, S, D]
      else:
        query = tf.reshape(query, [-1, from_seq_length, *heads])
        query = tf.transpose(query, [0, 2, 1, 3])  # [B, N, F, D]
      key = self.rows.split_heads(key, *heads)  # [B, N, S, D]
      value = self.rows.split_heads(value, *heads)  # [B, N, S, D]

    by_onednn = self.use_onednn and onednn.has_softmax(query.dtype)
    by_onednn = by_onednn and not self.is_training
    if not by_onednn:
      query *= 1.0 / math.sqrt(size_per_head)
    if by_onednn:
      context = _attention_by_onednn(query, key, value, attention_mask)
    else:
      attend = (
        fused_attention if self._fuses() else modeling.dot_product_attention
      )
      context = attend(
        query,
        key,
        value,
        attention_mask,
        attention_probs_dropout_prob,
        dropout_seed,
      )  # [B, N, S or F, D]

    if is_unpadded:
      return self.rows.merge_heads(context)  # [R, N * D]
    context = tf.transpose(context, [0, 2, 1, 3])  # [B, F, N, D]
    return tf.reshape(context, [-1, width])  # [B * F, N * D]


class UnpaddedRows:
  """Maps unpadded rows to (sequence, position), and back.

  The rows of a matrix [R, width] are the tokens of the batch in order. Kernel
  libraries set up kernels for each new shape, so R is rounded up, by at most
  12.5%, with rows of padding. These have no effect: no token attends to them,
  and no gradient reaches them.

  Args:
    input_mask: int32 [B, S], 1 at tokens, 0 at padding.

  Attributes:
    batch_size: B, int32 [].
    seq_length: S, int32 [].
    positions: int32 [1, R], the position of each row in its sequence.
  """

  def __init__(self, input_mask):
    shape = tf.shape(input_mask)
    self.batch_size, self.seq_length = shape[0], shape[1]
    self._is_token = input_mask > 0
    flat = tf.reshape(self._is_token, [-1])  # [B * S]
    self._num_tokens = tf.reduce_sum(tf.cast(flat, tf.int32))
    order = tf.concat([tf.where(flat), tf.where(~flat)], axis=0)[:, 0]
    num_rows = _rounded_up(tf.maximum(self._num_tokens, 1))
    # `_index`: for each row, its index among the B * S positions. `_row`: the
    # inverse; at padding, the row of the last token before it.
    self._index = tf.cast(order[:num_rows], tf.int32)  # [R]
    self._row = tf.maximum(tf.cumsum(tf.cast(flat, tf.int32)) - 1, 0)  # [B * S]
    self._position = self._index % self.seq_length  # [R]
    self.positions = self._position[tf.newaxis]

  def unpad(self, ids):
    """Removes padding: [B, S] to [1, R]."""
    return tf.gather(tf.reshape(ids, [-1]), self._index[tf.newaxis])

  def pad(self, rows):
    """Restores padding, with zeros: [R, width] to [B, S, width]."""
    width = rows.shape.as_list()[-1]
    tokens = rows[: self._num_tokens]
    indices = self._index[: self._num_tokens, tf.newaxis]
    shape = tf.stack([self.batch_size * self.seq_length, width])
    padded = tf.scatter_nd(indices, tokens, shape)
    return tf.reshape(padded, [self.batch_size, self.seq_length, width])

  def gather(self, rows, positions):
    """Gathers rows at `positions`, int32 [B, P]: [R, width] to [B * P, width].

    At padding, returns the row of an arbitrary token.
    """
    row = tf.reshape(self._row, [self.batch_size, self.seq_length])
    gathered = tf.gather(row, tf.cast(positions, tf.int32), batch_dims=1)
    return modeling.take_rows(rows, tf.reshape(gathered, [-1]))

  def split_heads(self, rows, num_heads: int, head_size: int):
    """Splits heads and restores padding: [R, N * D] to [B, N, S, D].

    At padding, returns the values of arbitrary tokens.
    """

    # `spread` and `collect` are each other's gradient. Each costs one copy;
    # padding and transposing one after the other would cost two.
    @tf.custom_gradient
    def spread(rows):
      return (
        self._spread(rows, num_heads, head_size),
        lambda gradient: self._collect(gradient, num_heads, head_size),
      )

    return spread(rows)

  def split_layers(
    self, rows, num_layers: int, num_heads: int, head_size: int
  ) -> list:
    """Splits layers and heads and restores padding, for prediction.

    Args:
      rows: [R, L * N * D], the outputs of L layers side by side.
      num_layers: L.
      num_heads: N.
      head_size: D.

    Returns:
      [B, N, S, D] for each layer; at padding, values of arbitrary tokens.
    """
    shape = [self.batch_size, self.seq_length, num_layers, num_heads, head_size]
    padded = tf.reshape(tf.gather(rows, self._row), shape)
    by_layer = tf.transpose(padded, [2, 0, 3, 1, 4])  # [L, B, N, S, D]
    return tf.unstack(by_layer, num_layers)  # copies nothing

  def merge_heads(self, heads):
    """Merges heads and removes padding: [B, N, S, D] to [R, N * D]."""
    _, num_heads, _, head_size = heads.shape.as_list()

    @tf.custom_gradient
    def collect(heads):
      def spread(gradient):
        # Queries at padding do not contribute to the result.
        is_token = tf.cast(self._is_token, gradient.dtype)
        by_head = self._spread(gradient, num_heads, head_size)
        return by_head * is_token[:, tf.newaxis, :, tf.newaxis]

      return self._collect(heads, num_heads, head_size), spread

    return collect(heads)

  def _spread(self, rows, num_heads, head_size):
    row = tf.reshape(self._row, [self.batch_size, 1, self.seq_length])
    head = tf.range(num_heads)[tf.newaxis, :, tf.newaxis]
    parts = tf.reshape(rows, [-1, head_size])  # [R * N, D]
    return tf.gather(parts, row * num_heads + head)  # [B, N, S, D]

  def _collect(self, heads, num_heads, head_size):
    first = self._index // self.seq_length * num_heads  # [R]
    head = first[:, tf.newaxis] + tf.range(num_heads)  # [R, N]
    part = head * self.seq_length + self._position[:, tf.newaxis]  # [R, N]
    parts = tf.reshape(heads, [-1, head_size])  # [B * N * S, D]
    return tf.reshape(tf.gather(parts, part), [-1, num_heads * head_size])


def _rounded_up(number):
  """Rounds up to 3-4 significant bits (at most 12.5% more)."""
  digits = tf.floor(tf.math.log(tf.cast(number, tf.float32)) / math.log(2.0))
  unit = tf.cast(2.0 ** tf.maximum(digits - 3.0, 0.0), tf.int32)
  return (number + unit - 1) // unit * unit


# XLA fusion


@functools.cache
def _jit(function: Callable, **constants) -> Callable:
  """Compiles a function of tensors by XLA; once for each shape."""
  return tf.function(
    functools.partial(function, **constants), jit_compile=True, autograph=False
  )


@functools.cache
def compiled(function: Callable, **constants) -> Callable:
  """Compiles a function and its gradient by XLA, computed in float32.

  The function and its gradient each read their inputs and write their results
  once. Only the inputs are stored for the gradient.

  Args:
    function: takes tensors, the first of which is float; returns a tensor.
    **constants: keyword arguments of `function`, compiled as constants.

  Returns:
    A function of the same tensors; its result has the dtype of the first.
  """

  def in_float32(*inputs):
    result = function(*map(_widened, inputs), **constants)
    return tf.cast(result, inputs[0].dtype)

  def backward(inputs, gradient):
    return tf.gradients(in_float32(*inputs), inputs, gradient)

  @tf.custom_gradient
  def call(*inputs):
    return _jit(in_float32)(*inputs), lambda g: _jit(backward)(inputs, g)

  return call


def _widened(tensor):
  """Casts 16-bit floats to float32."""
  return tf.cast(tensor, tf.float32) if tensor.dtype.is_floating else tensor


def fused_dense(inputs, kernel, bias, activation: Callable | None):
  """`modeling.Compute.dense` with faster gradients."""

  @tf.custom_gradient
  def layer(inputs, kernel, bias):
    product = tf.matmul(inputs, kernel)

    def gradients(upstream):
      if activation is not None:
        differentiate = _jit(_activation_gradient, activation=activation)
        upstream = differentiate(product, bias, upstream)
      return (
        tf.matmul(upstream, kernel, transpose_b=True),
        _product_of_transposed(inputs, upstream),
        _column_sums(upstream),
      )

    if activation is None and inputs.dtype == tf.float32:
      return tf.nn.bias_add(product, bias), gradients
    # TensorFlow would fuse a `bias_add` with the product, and in 16 bits then
    # use a slower product.
    return _jit(_activated, activation=activation)(product, bias), gradients

  return layer(inputs, kernel, bias)


def _activated(product, bias, *, activation):
  output = _widened(product) + _widened(bias)
  return tf.cast(activation(output) if activation else output, product.dtype)


def _activation_gradient(product, bias, upstream, *, activation):
  output = _activated(product, bias, activation=activation)
  return tf.gradients(output, product, upstream)[0]


def _product_of_transposed(inputs, upstream):
  """Gradient of a kernel: [R, width] and [R, units] to [width, units]."""
  # A product whose first operand is transposed takes longer than transposing a
  # narrow matrix, which query, key and value have in common.
  if inputs.shape.as_list()[1] > upstream.shape.as_list()[1]:
    return tf.matmul(inputs, upstream, transpose_a=True)
  # With three axes, or else Grappler would make it the above.
  columns = tf.transpose(inputs[:, tf.newaxis], [2, 1, 0])  # [width, 1, R]
  return tf.matmul(tf.squeeze(columns, axis=1), upstream)


def _column_sums(matrix):
  """Gradient of a bias, as a product: faster than a sum, in 16 bits."""
  ones = tf.ones([1, modeling.get_shape_list(matrix)[0]], matrix.dtype)
  return tf.matmul(ones, matrix)[0]


def fused_attention(
  query, key, value, attention_mask, dropout_prob: float, dropout_seed
):
  """`modeling.dot_product_attention` in fewer passes over [B, N, F, T]."""
  noise = mask_key(dropout_seed)
  bias = modeling.attention_bias(attention_mask)
  drop = _jit(_dropped_probs, dropout_prob=dropout_prob, dtype=value.dtype)
  softmax_gradient = _jit(_softmax_gradient, dropout_prob=dropout_prob)

  @tf.custom_gradient
  def average(scores, value):
    probs = tf.nn.softmax(tf.cast(scores, tf.float32) + bias)
    dropped = drop(probs, noise)
    context = tf.matmul(dropped, value)

    def gradients(upstream):
      by_prob = tf.matmul(upstream, value, transpose_b=True)
      by_value = tf.matmul(dropped, upstream, transpose_a=True)
      by_score = softmax_gradient(probs, by_prob, context, upstream, noise)
      return by_score, by_value

    return context, gradients

  return average(tf.matmul(query, key, transpose_b=True), value)


def _dropped_probs(probs, key, *, dropout_prob, dtype):
  return tf.cast(_dropped(probs, key, dropout_prob), dtype)


def _softmax_gradient(probs, by_prob, context, upstream, key, *, dropout_prob):
  """Gradient of the scores, from that of the probabilities after dropout.

  The gradient of softmax needs the mean gradient of each query: the sum over
  the keys of probability times gradient. That is also the product of `context`
  and its gradient, which have D columns instead of T.
  """
  gradient = _dropped(_widened(by_prob), key, dropout_prob)
  products = _widened(context) * _widened(upstream)
  means = tf.reduce_sum(products, axis=-1, keepdims=True)
  return tf.cast(probs * (gradient - means), by_prob.dtype)


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
  """Key of the dropout mask of a scope, for `keep_mask`: uint32 [2].

  `dropout_seed`: see `modeling.dropout`.
  """
  key, step = modeling.dropout_key(dropout_seed)
  if key is None:
    low, high = tf.int32.min, tf.int32.max
    words = tf.random.uniform([2], low, high, tf.int32)
  else:
    seed = [key, tf.cast(step, tf.int32)]
    words = tf.random.stateless_uniform([2], seed, None, None, tf.int32)
  return tf.bitcast(words, tf.uint32)


def keep_mask(shape, dropout_prob: float, key):
  """Dropout mask: a hash of the key and of each element's index.

  A hash that XLA fuses with what uses the mask: it takes less time than random
  bits in memory, and the gradient computes the mask again.

  Args:
    shape: int32 [rank].
    dropout_prob: drop probability.
    key: uint32 [2], see `mask_key`.

  Returns:
    bool of that shape, True at elements to keep.
  """
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


# Recomputation


def recomputed(layer: Callable, scope) -> Callable:
  """Wraps a layer so that only its input is stored for the gradient.

  Args:
    layer: maps a tensor to a tensor, with variables in the current scope; its
      random operations must be stateless.
    scope: the current `tf.VariableScope`.
  """

  def in_scope(tensor):
    with tf.variable_scope(
      scope,
      reuse=tf.AUTO_REUSE,
      use_resource=True,  # `tf.custom_gradient` supports no other variables
      auxiliary_name_scope=False,
    ):
      return layer(tensor)

  @tf.custom_gradient
  def call(tensor):
    def backward(gradient, variables):
      # The recomputation must wait for the gradient. `tf.recompute_grad` makes
      # it wait by arithmetic that Grappler optimizes away: all layers are then
      # recomputed at once, and their activations stored.
      with tf.control_dependencies([gradient]):
        output = in_scope(tensor)
      tensor_gradient, *variable_gradients = tf.gradients(
        output, [tensor, *variables], gradient
      )
      return tensor_gradient, variable_gradients

    return in_scope(tensor), backward

  return call
