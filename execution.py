"""How a model is computed, where what it computes is the same.

Number format, rows of real tokens alone, parts compiled into one pass over
memory, activations computed again rather than kept: `modeling` takes an
`Execution` that says which, and builds with what is here. Letters in shapes
are those of `modeling`, and T for the rows of a packed batch.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf


class Execution(NamedTuple):
  """How to compute.

  Attributes:
    dtype: what matrix products take and give, and activations are kept in:
      float32, bfloat16 or float16. Weights, layer normalisation, softmax and
      losses are float32 whatever it is.
    packs: whether dense layers see the tokens of a batch alone, and not its
      padding, whose states then are 0. Not for a TPU.
    compiles: whether, in training, XLA makes one pass over memory of what a
      layer does between matrix products, and dropout takes 16 random bits an
      element. Each shape is compiled once. Not for a TPU, which compiles all.
    recomputes: whether, in training, of each layer only the input is kept and
      the rest computed a second time for the gradient.
  """

  dtype: Any = tf.float32
  packs: bool = False
  compiles: bool = False
  recomputes: bool = False


# Tokens as rows of a matrix


class Rows:
  """Where the rows of a matrix [T, ...] are in the sequences of a batch."""

  def pick(self, rows, positions):
    """[T, W] to [B * P, W], those at int32 [B, P]."""
    picked = self._row_at(tf.cast(positions, tf.int32))
    return take_rows(rows, tf.reshape(picked, [-1]))

  def _row_at(self, positions):
    """int32 [B, P], the row of each place; at padding any."""
    raise NotImplementedError


class PaddedRows(Rows):
  """A matrix with a row for every place of a batch, [B * S, ...]."""

  def __init__(self, batch_size, seq_length):
    """Takes B and S, numbers or scalar tensors."""
    self._batch_size = batch_size
    self._seq_length = seq_length

  def to_heads(self, rows, num_heads: int, head_size: int):
    """[B * S, N * D] to [B, N, S, D]."""
    by_place = [self._batch_size, self._seq_length, num_heads, head_size]
    return tf.transpose(tf.reshape(rows, by_place), [0, 2, 1, 3])

  def from_heads(self, heads):
    """[B, N, S, D] to [B * S, N * D]."""
    _, num_heads, _, head_size = heads.shape.as_list()
    heads = tf.transpose(heads, [0, 2, 1, 3])  # [B, S, N, D]
    return tf.reshape(heads, [-1, num_heads * head_size])

  def to_sequence(self, rows):
    """[B * S, W] to [B, S, W]."""
    width = rows.shape.as_list()[-1]
    return tf.reshape(rows, [self._batch_size, self._seq_length, width])

  def _row_at(self, positions):
    starts = tf.range(self._batch_size) * self._seq_length  # [B]
    return positions + starts[:, tf.newaxis]


class PackedRows(Rows):
  """A matrix with a row for every token of a batch, [T, ...].

  Libraries prepare anew for each shape they meet, so T is rounded up, by an
  eighth at most, with rows of padding. These are computed like any padding and
  come to nothing: no token attends to them, and no gradient reaches them.

  Attributes:
    positions: int32 [T], each row's position in its sequence.
  """

  def __init__(self, input_mask):
    """Finds the tokens.

    Args:
      input_mask: int32 [B, S], 1 at tokens, 0 at padding.
    """
    shape = tf.shape(input_mask)
    self._batch_size, self._seq_length = shape[0], shape[1]
    self._is_token = input_mask > 0
    flat = tf.reshape(self._is_token, [-1])  # [B * S]
    self._num_tokens = tf.reduce_sum(tf.cast(flat, tf.int32))
    order = tf.concat([tf.where(flat), tf.where(~flat)], axis=0)[:, 0]
    num_rows = _rounded_up(tf.maximum(self._num_tokens, 1))
    # Of each row its place, and of each token's place its row.
    self._place = tf.cast(order[:num_rows], tf.int32)
    self._row = tf.maximum(tf.cumsum(tf.cast(flat, tf.int32)) - 1, 0)
    self.positions = self._place % self._seq_length

  def pack(self, by_place):
    """[B, S] to [T]."""
    return tf.gather(tf.reshape(by_place, [-1]), self._place)

  def to_heads(self, rows, num_heads: int, head_size: int):
    """[T, N * D] to [B, N, S, D]; at padding some token's values."""

    # Each is the other's gradient, and one copy, as a transposition would be.
    @tf.custom_gradient
    def spread(rows):
      return (
        self._spread(rows, num_heads, head_size),
        lambda gradient: self._collect(gradient, num_heads, head_size),
      )

    return spread(rows)

  def from_heads(self, heads):
    """[B, N, S, D] to [T, N * D]."""
    _, num_heads, _, head_size = heads.shape.as_list()

    @tf.custom_gradient
    def collect(heads):
      def spread(gradient):
        # Padding that attends is not in the result.
        is_token = tf.cast(self._is_token, gradient.dtype)
        by_head = self._spread(gradient, num_heads, head_size)
        return by_head * is_token[:, tf.newaxis, :, tf.newaxis]

      return self._collect(heads, num_heads, head_size), spread

    return collect(heads)

  def to_sequence(self, rows):
    """[T, W] to [B, S, W], 0 at padding."""
    width = rows.shape.as_list()[-1]
    tokens = rows[: self._num_tokens]
    places = self._place[: self._num_tokens, tf.newaxis]
    num_places = self._batch_size * self._seq_length
    by_place = tf.scatter_nd(places, tokens, tf.stack([num_places, width]))
    return tf.reshape(by_place, [self._batch_size, self._seq_length, width])

  def _row_at(self, positions):
    by_place = tf.reshape(self._row, [self._batch_size, self._seq_length])
    return tf.gather(by_place, positions, batch_dims=1)

  def _spread(self, rows, num_heads, head_size):
    row = tf.reshape(self._row, [self._batch_size, 1, self._seq_length])
    head = tf.range(num_heads)[tf.newaxis, :, tf.newaxis]
    parts = tf.reshape(rows, [-1, head_size])  # [T * N, D]
    return tf.gather(parts, row * num_heads + head)

  def _collect(self, heads, num_heads, head_size):
    first = self._place // self._seq_length * num_heads  # [T]
    head = first[:, tf.newaxis] + tf.range(num_heads)  # [T, N]
    part = head * self._seq_length + self.positions[:, tf.newaxis]
    parts = tf.reshape(heads, [-1, head_size])  # [B * N * S, D]
    return tf.reshape(tf.gather(parts, part), [-1, num_heads * head_size])


def _rounded_up(number):
  """To three or four binary digits and zeros: at most an eighth more."""
  digits = tf.floor(tf.math.log(tf.cast(number, tf.float32)) / math.log(2.0))
  unit = tf.cast(2.0 ** tf.maximum(digits - 3.0, 0.0), tf.int32)
  return (number + unit - 1) // unit * unit


@tf.custom_gradient
def take_rows(table, indices):
  """`tf.gather` from a table whose gradient is to be a dense table too.

  Args:
    table: float [R, W].
    indices: int32 [T].

  Returns:
    float [T, W].
  """

  def sum_rows(gradient):
    num_rows = table.shape.as_list()[0]
    if num_rows is None:
      num_rows = tf.shape(table)[0]
    return tf.math.unsorted_segment_sum(gradient, indices, num_rows), None

  return tf.gather(table, indices), sum_rows


# Fewer passes over memory


@functools.cache
def compiled(function: Callable, **constants) -> Callable:
  """A function of tensors, compiled by XLA, as is its gradient.

  The forward and the backward pass each read their inputs and write their
  results once; between them only the inputs are kept. It computes in float32.

  Args:
    function: of tensors, one of them at least float; gives a tensor.
    **constants: further arguments of it, which are compiled in.

  Returns:
    A function of the same tensors. The result has the dtype of the first.
  """

  def in_float32(*inputs):
    result = function(
      *(tf.cast(x, tf.float32) if x.dtype.is_floating else x for x in inputs),
      **constants,
    )
    return tf.cast(result, inputs[0].dtype)

  forward = tf.function(in_float32, jit_compile=True, autograph=False)

  @tf.function(jit_compile=True, autograph=False)
  def backward(inputs, gradient):
    return tf.gradients(in_float32(*inputs), inputs, gradient)

  @tf.custom_gradient
  def call(*inputs):
    return forward(*inputs), lambda gradient: backward(inputs, gradient)

  return call


def keep_mask(shape, dropout_prob: float, key: int | None, step):
  """Draws which elements a dropout keeps, from 16 random bits for each.

  Args:
    shape: a list of numbers or scalar tensors.
    dropout_prob: see `kept_share`.
    key: with the step, fixes the draw; None for one that nothing fixes.
    step: integer [], or None.

  Returns:
    bool of that shape.
  """
  size = tf.reduce_prod(tf.stack(shape))
  words = [(size + 1) // 2]
  if key is None:
    low, high = tf.int32.min, tf.int32.max
    bits = tf.random.uniform(words, low, high, tf.int32)
  else:
    bits = tf.random.stateless_uniform(
      words, [key, tf.cast(step, tf.int32)], None, None, tf.int32
    )
  halves = tf.reshape(tf.bitcast(bits, tf.int16), [-1])[:size]
  least = round(dropout_prob * 2**16) - 2**15
  if least > tf.int16.max:
    return tf.zeros(shape, tf.bool)
  return tf.reshape(halves >= tf.constant(least, tf.int16), shape)


def kept_share(dropout_prob: float) -> float:
  """The share that `keep_mask` keeps: within 1e-5 of 1 - dropout_prob."""
  return 1.0 - round(dropout_prob * 2**16) / 2**16


# Less memory


def recomputed(layer: Callable, scope) -> Callable:
  """A layer that keeps its input alone, and is computed twice.

  Args:
    layer: a function of a tensor that gives a tensor, with variables in its
      current scope and nothing random that is not stateless.
    scope: that scope, a `tf.VariableScope`.

  Returns:
    A function of the tensor.
  """

  def in_scope(tensor):
    with tf.variable_scope(
      scope, reuse=tf.AUTO_REUSE, auxiliary_name_scope=False
    ):
      return layer(tensor)

  @tf.custom_gradient
  def call(tensor):
    def backward(gradient, variables):
      # `tf.recompute_grad` has the second run wait by an arithmetic that
      # Grappler sees through; then all layers run at once and are kept.
      with tf.control_dependencies([gradient]):
        output = in_scope(tensor)
      of_tensor, *of_variables = tf.gradients(
        output, [tensor, *variables], gradient
      )
      return of_tensor, of_variables

    return in_scope(tensor), backward

  return call
