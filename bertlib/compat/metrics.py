"""Streaming metrics: functions of `tf.contrib.metrics`, as in TensorFlow 1.

Each returns a value and the operation that updates it, as `tf.metrics` does.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import metrics_impl, weights_broadcast_ops


def _predictions_first(metric):
  def streaming(predictions, labels, *args, **kwargs):
    return metric(labels, predictions, *args, **kwargs)

  return streaming


# streaming_accuracy, streaming_auc, streaming_precision and so on.
for _name in dir(tf.metrics):
  if not _name.startswith(("_", "mean_tensor", "percentage", "recall_at_k")):
    _metric = getattr(tf.metrics, _name)
    globals()[f"streaming_{_name}"] = _predictions_first(_metric)

streaming_mean = tf.metrics.mean
streaming_mean_tensor = tf.metrics.mean_tensor
streaming_percentage_less = tf.metrics.percentage_below
streaming_sparse_recall_at_k = _predictions_first(tf.metrics.recall_at_k)


def f1_score(labels, predictions, weights=None, num_thresholds=200, **options):
  """Highest F1 of any threshold on `predictions`, which are from 0 to 1."""
  tiny = 1e-7
  inner = [i / (num_thresholds - 1) for i in range(1, num_thresholds - 1)]
  thresholds = [-tiny, *inner, 1 + tiny]

  def highest(counts):
    precision = counts["tp"] / (tiny + counts["tp"] + counts["fp"])
    recall = counts["tp"] / (tiny + counts["tp"] + counts["fn"])
    f1 = 2 * precision * recall / (precision + recall + tiny)
    return tf.reduce_max(f1)

  counts, updated = metrics_impl._confusion_matrix_at_thresholds(
    labels, predictions, thresholds, weights, includes=("tp", "fp", "fn")
  )
  return _value_and_update(highest, counts, updated, **options)


def streaming_covariance(predictions, labels, weights=None, **options):
  """Unbiased covariance of predictions and labels; `weights` are counts."""
  sums = _sums_of_products(predictions, labels, weights)
  return _value_and_update(lambda s: _covariances(s)[0, 1], *sums, **options)


def streaming_pearson_correlation(predictions, labels, weights=None, **options):
  """Pearson's correlation coefficient of predictions and labels."""

  def correlation(sums):
    matrix = _covariances(sums)
    return matrix[0, 1] / tf.sqrt(matrix[0, 0] * matrix[1, 1])

  sums = _sums_of_products(predictions, labels, weights)
  return _value_and_update(correlation, *sums, **options)


def streaming_concat(values, axis=0, max_size=None, **options):
  """Values of all batches along an axis, at most `max_size` of them."""
  axis %= values.shape.rank
  shape = values.shape.as_list()
  shape[axis] = 0
  array = metrics_impl.metric_variable(shape, values.dtype, False, "array")
  shape[axis] = None
  old = tf.ensure_shape(array.read_value(), shape)
  first = (slice(None),) * axis + (slice(max_size),)
  new = tf.concat([old, values], axis)[first]
  with tf.control_dependencies([tf.assign(array, new, validate_shape=False)]):
    size = tf.identity(tf.shape(new)[axis])
  return _collected(old, size, **options)


def _sums_of_products(predictions, labels, weights):
  """Sums [3, 3] of products of 1, predictions and labels: variable, update."""
  predictions, labels, weights = metrics_impl._remove_squeezable_dimensions(
    predictions, labels, 1.0 if weights is None else weights
  )
  weights = weights_broadcast_ops.broadcast_weights(weights, labels)
  columns = tf.ones_like(labels), predictions, labels, weights
  # In 64 bits these sums are precise enough.
  rows = tf.stack([tf.cast(tf.reshape(c, [-1]), tf.float64) for c in columns])
  of_batch = tf.matmul(rows[:3] * rows[3], rows[:3], transpose_b=True)
  variable = metrics_impl.metric_variable([3, 3], tf.float64, name="sums")
  return variable, tf.assign_add(variable, of_batch)


def _covariances(sums):
  count = sums[0, 0]
  products = sums[1:, 1:] - sums[1:, :1] * sums[:1, 1:] / count
  return tf.cast(products / (count - 1), tf.float32)


def _value_and_update(compute, variables, updated, **options):
  """`compute` of variables, summed over replicas, and of what they will be."""
  value = metrics_impl._aggregate_across_replicas(
    None, lambda _, variables: compute(variables), variables
  )
  return _collected(value, compute(updated), **options)


def _collected(
  value, update, metrics_collections=None, updates_collections=None, name=None
):
  """A value and its update, added to collections."""
  tf.add_to_collections(metrics_collections or (), value)
  tf.add_to_collections(updates_collections or (), update)
  return value, update
