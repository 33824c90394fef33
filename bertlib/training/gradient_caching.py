"""Gradients of a loss that compares all examples of a batch with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf

import modeling
import optimization
from bertlib.training import gradients
from optimization import Frozen, Gradients


class BatchLoss(NamedTuple):
  """Loss of the vectors of a whole batch."""

  # Takes a batch or micro-batch and a `dropout_seed`, see `modeling.dropout`;
  # returns the vectors of its examples, float32 [B, ...].
  encode_fn: Callable[[Mapping[str, Any], Any], Any]
  # Takes the vectors and features of the whole batch; returns float32 [].
  loss_fn: Callable[[Any, Mapping[str, Any]], Any]
  # Names of the features that `loss_fn` takes, where the batch has them.
  features: Sequence[str]

  def compute_gradients(
    self,
    batch: Mapping[str, Any],
    num_micro_batches: int = 1,
    loss_scale: gradients.LossScale | gradients.FixedLossScale | None = None,
    frozen: Frozen | None = None,
    num_tpu_cores: int = 1,
  ) -> Gradients:
    """Gradients of a whole batch in the memory of a micro-batch."""
    # Gradient caching (Gao et al. 2021): all micro-batches are encoded without
    # storing activations; the loss gives the gradients of their vectors; then
    # the micro-batches are encoded again, with the same dropout masks, and the
    # gradients propagated to the weights. `encode_fn` takes the index of a
    # micro-batch instead of a dropout seed.
    factor = loss_scale.value if loss_scale else None
    micro_batch = gradients.micro_batches(batch, num_micro_batches)

    def encode(index):
      return self.encode_fn(micro_batch(index), index)

    def propagate(vectors, index):
      # The gradient of this sum w.r.t. the vectors is that of the loss.
      total = tf.reduce_sum(vectors * vector_gradients[index])
      return optimization.gradients_of(total, None, factor, frozen)

    # Encoded once: its activations are stored. It also makes the variables.
    first = encode(tf.constant(0))
    vectors = _encode_all(first, encode, num_micro_batches)
    features = {n: batch[n] for n in self.features if n in batch}
    loss, vector_gradients = _global_loss(
      self.loss_fn, vectors, features, num_tpu_cores
    )
    vector_gradients = tf.reshape(
      tf.stop_gradient(vector_gradients),
      [num_micro_batches, *modeling.get_shape_list(first)],
    )
    accumulated = gradients.accumulate(
      propagate(first, 0),
      lambda index: propagate(encode(index), index),
      num_micro_batches,
    )
    return accumulated._replace(loss=loss)


def _encode_all(first, encode: Callable[[Any], Any], num_micro_batches: int):
  """Vectors of all examples, [B, ...], given those of the first micro-batch."""
  if num_micro_batches == 1:
    return first
  arrays = tf.TensorArray(
    first.dtype, num_micro_batches, infer_shape=False, element_shape=first.shape
  )

  def add(index, arrays):
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      return index + 1, arrays.write(index, encode(index))

  _, arrays = tf.while_loop(
    lambda index, _: index < num_micro_batches,
    add,
    (tf.constant(1), arrays.write(0, first)),
    parallel_iterations=1,
  )
  return _join_rows(arrays.stack(), first)


def _global_loss(
  loss_fn, vectors, features: Mapping[str, Any], num_tpu_cores: int
):
  """Loss of the global batch; its gradient w.r.t. this replica's vectors."""
  num_replicas = num_tpu_cores * optimization.num_replicas()
  if num_replicas == 1:
    loss = loss_fn(vectors, features)
    return loss, tf.gradients(loss, vectors)[0]
  number = gradients.replica_number(num_tpu_cores)

  def gather(tensor):
    return _gather(tensor, number, num_replicas, num_tpu_cores > 1)

  all_vectors = gather(vectors)
  loss = loss_fn(all_vectors, {n: gather(t) for n, t in features.items()})
  gradient = tf.reshape(
    tf.gradients(loss, all_vectors)[0],
    [num_replicas, *modeling.get_shape_list(vectors)],
  )
  # Propagated gradients are averaged over the replicas: hence the factor.
  return loss, num_replicas * gradient[number]


def _gather(tensor, number, num_replicas: int, use_tpu: bool):
  """Rows of all replicas, in their order: [B, ...] to [replicas * B, ...]."""
  if tensor.dtype.is_integer:
    # Not every device can sum integers; float32 is exact for half of the bits.
    halves = [tensor // 2**16, tensor % 2**16]
    high, low = (
      tf.cast(
        _gather(tf.cast(half, tf.float32), number, num_replicas, use_tpu),
        tensor.dtype,
      )
      for half in halves
    )
    return high * 2**16 + low
  # Each replica adds its rows to zeros, so that a sum gathers those of all.
  own = tf.one_hot(number, num_replicas, dtype=tensor.dtype)
  own = tf.reshape(own, [num_replicas, *[1] * len(tensor.shape)])
  rows = optimization.sum_over_replicas(own * tensor, use_tpu)
  return _join_rows(rows, tensor)


def _join_rows(blocks, like):
  """Joins the first two axes: [blocks, B, ...] to [blocks * B, ...]."""
  return tf.reshape(blocks, [-1, *modeling.get_shape_list(like)[1:]])
