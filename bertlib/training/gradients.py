"""Gradients of a batch: micro-batches, loss scale and dropout draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

import tensorflow.compat.v1 as tf

import optimization
from optimization import Frozen, Gradients


def compute_gradients(
  loss_fn: Callable[[dict[str, Any], Any], tuple[Any, dict[str, Any]]],
  batch: Mapping[str, Any],
  num_micro_batches: int = 1,
  loss_scale: LossScale | FixedLossScale | None = None,
  frozen: Frozen | None = None,
) -> Gradients:
  """Gradients of a batch, accumulated over micro-batches to save memory."""
  # `loss_fn` takes a micro-batch and its index, int32 []; it returns the mean
  # loss of the examples, float32 [], and further means by name. Up to rounding,
  # the result is that of the whole batch.
  factor = loss_scale.value if loss_scale else None
  if num_micro_batches == 1:
    loss, scalars = loss_fn(dict(batch), tf.constant(0))
    return optimization.gradients_of(loss, scalars, factor, frozen)

  micro_batch = micro_batches(batch, num_micro_batches)

  def compute(index):
    loss, scalars = loss_fn(micro_batch(index), index)
    shares = {n: value / num_micro_batches for n, value in scalars.items()}
    return optimization.gradients_of(
      loss / num_micro_batches, shares, factor, frozen
    )

  # The first micro-batch, outside the loop, makes the variables and shows which
  # gradients there are.
  return accumulate(compute(tf.constant(0)), compute, num_micro_batches)


def micro_batches(
  batch: Mapping[str, Any], num_micro_batches: int
) -> Callable[[Any], dict[str, Any]]:
  """Divides a batch: returns a function from index, int32 [], to features."""
  if num_micro_batches == 1:
    return lambda _: dict(batch)
  divided = {
    name: tf.reshape(
      tensor, tf.concat([[num_micro_batches, -1], tf.shape(tensor)[1:]], axis=0)
    )
    for name, tensor in batch.items()
  }
  # Index, do not slice: a TPU needs a static size.
  return lambda index: {name: t[index] for name, t in divided.items()}


def accumulate(
  first: Gradients, compute: Callable[[Any], Gradients], num_micro_batches: int
) -> Gradients:
  """Sums the gradients of micro-batches, computed one after the other."""
  if num_micro_batches == 1:
    return first
  sums, sparse = _split(first)
  # Sparse gradients stay sparse: the word embeddings have few rows in a batch.
  rows = [_row_arrays(gradient, num_micro_batches) for gradient in sparse]

  def add(index, sums, rows):
    # A micro-batch waits for the one before, so that only one has activations.
    with tf.control_dependencies(tf.nest.flatten(sums)):
      index = tf.identity(index)
    # `compute` must not create variables inside the loop.
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      more, sparse = _split(compute(index))
    sums = tf.nest.map_structure(tf.add, sums, more)
    rows = [
      (values.write(index, g.values), indices.write(index, g.indices))
      for (values, indices), g in zip(rows, sparse)
    ]
    return index + 1, sums, rows

  _, sums, rows = tf.while_loop(
    lambda index, *_: index < num_micro_batches,
    add,
    (tf.constant(1), sums, rows),
    parallel_iterations=1,
  )
  return _join(first, sums, rows)


def _split(gradients: Gradients):
  """Values that are summed, and the sparse gradients, whose rows are joined."""
  present = [g for g in gradients.gradients if g is not None]
  sparse = [g for g in present if isinstance(g, tf.IndexedSlices)]
  dense = [
    optimization.in_float32(g)
    for g in present
    if not isinstance(g, tf.IndexedSlices)
  ]
  return (gradients.loss, gradients.scalars, dense), sparse


def _join(first: Gradients, sums, rows) -> Gradients:
  """Inverse of `_split`; `first` shows which gradients are sparse or None."""
  loss, scalars, dense = sums
  dense, rows = iter(dense), iter(rows)
  gradients = []
  for gradient in first.gradients:
    if isinstance(gradient, tf.IndexedSlices):
      values, indices = next(rows)
      gradient = tf.IndexedSlices(
        values.concat(), indices.concat(), gradient.dense_shape
      )
    elif gradient is not None:
      gradient = next(dense)
    gradients.append(gradient)
  return Gradients(loss, scalars, gradients, first.variables)


def _row_arrays(first: tf.IndexedSlices, num_micro_batches: int):
  """Arrays for the values and the indices of every micro-batch."""
  return tuple(
    tf.TensorArray(
      tensor.dtype,
      num_micro_batches,
      infer_shape=False,
      element_shape=[None, *tensor.shape[1:]],
    ).write(0, tensor)
    for tensor in (first.values, first.indices)
  )


class LossScale:
  """Loss scale of float16; `value` is that of this step, float32 []."""

  # Small gradients would be 0 without it. Halved when gradients overflow,
  # doubled after `num_good_steps` consecutive steps in which they do not
  # (Micikevicius et al. 2018). It is saved with the model.
  def __init__(self, initial: float = 2.0**15, num_good_steps: int = 2000):
    """Creates its variables."""
    self._num_good_steps = num_good_steps
    with tf.variable_scope("loss_scale"):
      self._scale, self._good_steps = (
        tf.get_variable(
          name,
          dtype=dtype,  # the second replica does not take it from the value
          initializer=value,
          trainable=False,
          aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        for name, dtype, value in (
          ("scale", tf.float32, initial),
          ("good_steps", tf.int32, 0),
        )
      )
    self.value = tf.identity(self._scale)

  def adapt(self, norm):
    """Op that sets the next step's scale, given the gradients' norm."""
    is_finite = tf.math.is_finite(norm)
    good_steps = self._good_steps + 1
    is_due = good_steps >= self._num_good_steps
    grown = tf.where(is_due, self.value * 2.0, self.value)
    return tf.group(
      self._scale.assign(
        tf.where(is_finite, grown, tf.maximum(self.value / 2.0, 1.0))
      ),
      self._good_steps.assign(
        tf.where(is_finite & ~is_due, good_steps, tf.zeros_like(good_steps))
      ),
    )


class FixedLossScale:
  """A loss scale that does not change, see `LossScale`; has no variables."""

  def __init__(self, value: float):
    self.value = tf.constant(value, tf.float32)

  def adapt(self, norm):
    """Op that does nothing."""
    del norm
    return tf.no_op()


# Dropout draws


def dropout_draws(
  global_step, num_micro_batches: int, num_tpu_cores: int = 1
) -> Callable[[Any], Any]:
  """Maps (step, replica, micro-batch) to a unique dropout counter, int32 []."""
  # A GPU computes in int64, but the host in int32, and seeds are read on the
  # host: each draw made from the int64 step would be copied from the GPU.
  step = tf.cast(global_step, tf.int32, name="dropout_step")
  num_replicas = num_tpu_cores * optimization.num_replicas()
  replica_step = step * num_replicas + replica_number(num_tpu_cores)
  # Wraps around after 2**32 draws.
  return lambda micro_batch: replica_step * num_micro_batches + micro_batch


def replica_number(num_tpu_cores: int = 1):
  """Index of this replica, int32 []."""
  if num_tpu_cores == 1:
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.convert_to_tensor(number, tf.int32)
  # Under TPUEstimator a core cannot ask for its number. But when every core
  # sends each core that core's number, core n receives n from everyone.
  numbers = list(range(num_tpu_cores))
  received = tf.raw_ops.AllToAll(
    input=numbers,
    group_assignment=[numbers],
    concat_dimension=0,
    split_dimension=0,
    split_count=num_tpu_cores,
  )
  return received[0]
