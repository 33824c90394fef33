"""Unpadding: maps the rows of real tokens to positions in a batch, and back."""

from __future__ import annotations

import contextlib
import math

import tensorflow.compat.v1 as tf

import modeling
from bertlib.compute.graph_state import custom_gradient


@contextlib.contextmanager
def _on_host():
  with tf.device("/cpu:0"), tf.name_scope("unpadding"):
    yield


class UnpaddedRows:
  """Maps the unpadded rows of a batch, [R, width], to (sequence, position)."""

  def __init__(self, input_mask, is_training: bool = True):
    # Gradients of their own, in fewer passes, are only needed in training.
    # Without them an inference graph can be freed.
    self._is_training = is_training
    # The host needs R for the shapes of tensors, and has the batch anyway. A
    # GPU would have to copy R back, and has no arithmetic of int32.
    with _on_host():
      shape = tf.shape(input_mask)
      self.batch_size, self.seq_length = shape[0], shape[1]
      self._is_token = input_mask > 0
      flat = tf.reshape(self._is_token, [-1])  # [B * S]
      self._num_tokens = tf.reduce_sum(tf.cast(flat, tf.int32))
      order = tf.concat([tf.where(flat), tf.where(~flat)], axis=0)[:, 0]
      # Kernel libraries set up kernels for each new shape, so R is rounded up
      # with rows of padding. No token attends to them, and no gradient reaches
      # them.
      num_rows = _rounded_up(tf.maximum(self._num_tokens, 1))
      # `_index`: for each row, its index among the B * S positions. `_row`: the
      # inverse; at padding, the row of the last token before it.
      self._index = tf.cast(order[:num_rows], tf.int32)  # [R]
      tokens_before = tf.cumsum(tf.cast(flat, tf.int32)) - 1
      self._row = tf.maximum(tokens_before, 0)  # [B * S]
      self._position = self._index % self.seq_length  # [R]
      self.positions = self._position[tf.newaxis]  # [1, R]
    self._indices_of_heads = {}

  def unpad(self, ids):
    """Removes padding: [B, S] to [1, R]."""
    with _on_host():
      return tf.gather(tf.reshape(ids, [-1]), self._index[tf.newaxis])

  def pad(self, rows):
    """Restores padding, with zeros: [R, width] to [B, S, width]."""
    width = rows.shape.as_list()[-1]
    tokens = rows[: self._num_tokens]
    with _on_host():
      indices = self._index[: self._num_tokens, tf.newaxis]
      shape = tf.stack([self.batch_size * self.seq_length, width])
    padded = tf.scatter_nd(indices, tokens, shape)
    return tf.reshape(padded, [self.batch_size, self.seq_length, width])

  def gather(self, rows, positions):
    """Gathers at [B, P]: [R, width] to [B * P, width]; arbitrary at padding."""
    with _on_host():
      row = tf.reshape(self._row, [self.batch_size, self.seq_length])
      gathered = tf.gather(row, tf.cast(positions, tf.int32), batch_dims=1)
      gathered = tf.reshape(gathered, [-1])
    return modeling.take_rows(rows, gathered)

  def split_heads(self, rows, num_heads: int, head_size: int):
    """Splits heads and restores padding: [R, N * D] to [B, N, S, D]."""

    # `spread` and `collect` are each other's gradient. Each costs one copy;
    # padding and transposing one after the other would cost two.
    # At padding, `_row` gives values of arbitrary tokens, as in `gather`.
    @custom_gradient
    def spread(rows):
      return (
        self._spread(rows, num_heads, head_size),
        lambda gradient: self._collect(gradient, num_heads, head_size),
      )

    if not self._is_training:
      return self._spread(rows, num_heads, head_size)
    return spread(rows)

  def split_layers(
    self, rows, num_layers: int, num_heads: int, head_size: int
  ) -> list:
    """[R, layers * N * D] to [B, N, S, D] per layer, for prediction only."""
    shape = [self.batch_size, self.seq_length, num_layers, num_heads, head_size]
    padded = tf.reshape(tf.gather(rows, self._row), shape)
    # One copy for all layers.
    by_layer = tf.transpose(padded, [2, 0, 3, 1, 4])  # [layers, B, N, S, D]
    return tf.unstack(by_layer, num_layers)  # copies nothing

  def merge_heads(self, heads):
    """Merges heads and removes padding: [B, N, S, D] to [R, N * D]."""
    _, num_heads, _, head_size = heads.shape.as_list()

    @custom_gradient
    def collect(heads):
      def spread(gradient):
        # Queries at padding do not contribute to the result.
        is_token = tf.cast(self._is_token, gradient.dtype)
        by_head = self._spread(gradient, num_heads, head_size)
        return by_head * is_token[:, tf.newaxis, :, tf.newaxis]

      return self._collect(heads, num_heads, head_size), spread

    if not self._is_training:
      return self._collect(heads, num_heads, head_size)
    return collect(heads)

  def _spread(self, rows, num_heads, head_size):
    parts = tf.reshape(rows, [-1, head_size])  # [R * N, D]
    return tf.gather(parts, self._head_indices(num_heads)[0])  # [B, N, S, D]

  def _collect(self, heads, num_heads, head_size):
    parts = tf.reshape(heads, [-1, head_size])  # [B * N * S, D]
    collected = tf.gather(parts, self._head_indices(num_heads)[1])
    return tf.reshape(collected, [-1, num_heads * head_size])

  def _head_indices(self, num_heads: int):
    """Indices for `_spread`, [B, N, S], and `_collect`, [R, N]."""
    if num_heads not in self._indices_of_heads:
      with _on_host():
        head = tf.range(num_heads)
        row = tf.reshape(self._row, [self.batch_size, 1, self.seq_length])
        first = self._index // self.seq_length * num_heads  # [R]
        part = (first[:, tf.newaxis] + head) * self.seq_length
        self._indices_of_heads[num_heads] = (
          row * num_heads + head[:, tf.newaxis],
          part + self._position[:, tf.newaxis],
        )
    return self._indices_of_heads[num_heads]


def _rounded_up(number):
  """Rounds up to 3-4 significant bits (at most 12.5% more)."""
  digits = tf.floor(tf.math.log(tf.cast(number, tf.float32)) / math.log(2.0))
  unit = tf.cast(2.0 ** tf.maximum(digits - 3.0, 0.0), tf.int32)
  return (number + unit - 1) // unit * unit
