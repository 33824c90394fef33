"""Losses of sentence embeddings, each of the vectors of a whole batch.

Shapes: a batch has B examples. An example is a group of texts: anchor,
positive, hard negatives. `text_ids` [B, texts] has the same number for
identical texts, and -1 for a missing hard negative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf

import modeling
import optimization
from bertlib.compute import pooling
from bertlib.data.text_groups import MISSING
from bertlib.training import train_step
from optimization import Frozen, Gradients

_FEATURES = ("text_ids", "scores", "label_ids", "teacher_vectors")


@dataclasses.dataclass(frozen=True)
class LossOptions:
  """A loss and its hyperparameters."""

  name: str  # a key of `LOSSES`
  # Divisor of the cosines in infonce, cosent and supervised_contrastive.
  temperature: float = 0.05
  # Whether infonce also ranks the anchors for each positive.
  symmetric: bool = False
  # Of triplet, in units of distance. Vectors of length 1 have distances from 0
  # to 2. By default a positive at cosine 0.8 is far enough from hard negatives
  # below cosine 0.36.
  margin: float = 0.5
  # Widths of Matryoshka representations; () for the output width alone.
  dims: tuple[int, ...] = ()
  weights: tuple[float, ...] = ()  # of the loss at each of `dims`; () for 1
  # Whether the model's vectors have length 1. Only triplet and distillation
  # differ: without, they compare the vectors as given.
  normalize: bool = True


def training_loss(
  options: LossOptions, encode_fn: Callable[[Mapping[str, Any], Any], Any]
):
  """Loss of a model for `train_step.train_spec`, from its `encode_fn`."""
  # `encode_fn` takes a batch or micro-batch and a `dropout_seed`; returns
  # vectors before normalization, float32 [B, texts, width].
  loss_fn = make_loss(options)
  # A loss that compares examples with each other needs the vectors of the whole
  # batch. Others may see one micro-batch at a time.
  if options.name in _NUM_MATRICES:
    return BatchLoss(encode_fn, loss_fn, _FEATURES)
  return lambda batch, seed: (loss_fn(encode_fn(batch, seed), batch), {})


def make_loss(options: LossOptions) -> Callable[[Any, Mapping[str, Any]], Any]:
  """Function of vectors [B, texts, width], not normalized, and features."""
  loss = LOSSES[options.name]
  compares_by_cosine = loss not in (_triplet, _distillation)
  normalizes = options.normalize or options.dims or compares_by_cosine
  dims = options.dims or (None,)
  weights = options.weights or (1.0,) * len(dims)

  def loss_fn(vectors, features):
    losses = []
    for dim, weight in zip(dims, weights):
      compared = pooling.normalize(vectors, dim) if normalizes else vectors
      losses.append(weight * loss(compared, features, options))
    return tf.add_n(losses)

  return loss_fn


# Losses: each takes vectors of one width, of length 1 where it needs cosines


def _infonce(vectors, features, options: LossOptions):
  """InfoNCE with in-batch negatives (van den Oord et al. 2018)."""
  # Also called multiple negatives ranking loss (Henderson et al. 2017). Each
  # anchor ranks its positive among all positives and hard negatives of the
  # batch.
  width, text_ids = vectors.shape[-1], features["text_ids"]
  anchors, anchor_ids = vectors[:, 0], text_ids[:, 0]
  positives, positive_ids = vectors[:, 1], text_ids[:, 1]
  num_candidates = modeling.get_shape_list(text_ids)[1] - 1  # per example
  number = _numbers(text_ids)
  loss = _ranking_loss(
    anchors,
    anchor_ids,
    tf.reshape(vectors[:, 1:], [-1, width]),
    tf.reshape(text_ids[:, 1:], [-1]),
    number * num_candidates,
    options.temperature,
  )
  if not options.symmetric:
    return loss
  # Each positive ranks its anchor among all anchors (Radford et al. 2021).
  reverse = _ranking_loss(
    positives, positive_ids, anchors, anchor_ids, number, options.temperature
  )
  return (loss + reverse) / 2.0


def _ranking_loss(
  queries, query_ids, candidates, candidate_ids, right, temperature: float
):
  """Mean cross-entropy of the right candidate of each query."""
  # Queries are [B, width], candidates [candidates, width]; ids are those of
  # texts, and `right` is the index of the right candidate, int32 [B].
  right_ids = tf.gather(candidate_ids, right)
  is_copy = _are_equal(query_ids, query_ids)  # [B, B]
  is_found = _are_equal(right_ids, candidate_ids)  # [B, candidates]
  num_found = tf.matmul(*(tf.cast(m, tf.float32) for m in (is_copy, is_found)))
  # No negatives of a query: missing texts, copies of the query, and copies of
  # all texts that are right for the query or for a copy of it.
  is_masked = (
    tf.equal(candidate_ids, MISSING)
    | _are_equal(query_ids, candidate_ids)
    | (num_found > 0.0)
  )
  is_positive = _are_equal(right, _numbers(candidate_ids))
  cosines = tf.matmul(queries, candidates, transpose_b=True)  # [B, candidates]
  logits = _masked(cosines / temperature, is_masked & ~is_positive)
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=right, logits=logits)
  )


def _triplet(vectors, features, options: LossOptions):
  """Triplet loss with Euclidean distances (Reimers and Gurevych 2019)."""
  text_ids = features["text_ids"]
  squares = _sum(tf.square(vectors[:, :1] - vectors[:, 1:]))  # [B, texts - 1]
  distances = tf.sqrt(tf.maximum(squares, 1e-12))  # with a gradient of 0 at 0
  losses = tf.nn.relu(distances[:, :1] - distances[:, 1:] + options.margin)
  negative_ids = text_ids[:, 2:]
  # Missing hard negatives, and copies of the anchor or the positive, do not
  # count.
  is_masked = (
    tf.equal(negative_ids, MISSING)
    | tf.equal(negative_ids, text_ids[:, :1])
    | tf.equal(negative_ids, text_ids[:, 1:2])
  )
  return tf.reduce_mean(_mean(losses, ~is_masked))


def _cosine(vectors, features, options: LossOptions):
  """Mean squared error of the cosines (Reimers and Gurevych 2019)."""
  del options
  return tf.reduce_mean(tf.square(_pair_cosines(vectors) - features["scores"]))


def _cosent(vectors, features, options: LossOptions):
  """CoSENT: a higher score means a higher cosine (Huang et al. 2024)."""
  # log(1 + sum of exp((cosine_j - cosine_i) / temperature)) over all i, j with
  # score_i > score_j.
  logits = _pair_cosines(vectors) / options.temperature
  scores = features["scores"]
  is_ordered = scores[:, tf.newaxis] > scores
  differences = logits - logits[:, tf.newaxis]  # [i, j]
  terms = tf.reshape(_masked(differences, ~is_ordered), [-1])
  return tf.reduce_logsumexp(tf.pad(terms, [[1, 0]]))  # exp(0) is the 1


def _supervised_contrastive(vectors, features, options: LossOptions):
  """Supervised contrastive loss, L_out, of texts (Khosla et al. 2020)."""
  # The mean over all texts that have a partner: another text of the same label.
  # Texts without one only serve as negatives of others.
  vectors, text_ids = vectors[:, 0], features["text_ids"][:, 0]
  is_same_label = _are_equal(features["label_ids"], features["label_ids"])
  is_copy = _are_equal(text_ids, text_ids)
  number = _numbers(text_ids)
  is_itself = _are_equal(number, number)
  logits = tf.matmul(vectors, vectors, transpose_b=True) / options.temperature
  # Copies of a text with another label do not count.
  log_probs = tf.nn.log_softmax(
    _masked(logits, is_itself | (is_copy & ~is_same_label))
  )
  is_partner = tf.cast(is_same_label & ~is_itself, tf.float32)
  num_partners = tf.reduce_sum(is_partner, axis=1)
  losses = -_sum(log_probs * is_partner)
  return _mean(tf.math.divide_no_nan(losses, num_partners), num_partners > 0.0)


def _distillation(vectors, features, options: LossOptions):
  """Mean squared error of a teacher's vectors (Reimers and Gurevych 2020)."""
  teacher = features["teacher_vectors"]
  if options.normalize or options.dims:
    teacher = pooling.normalize(teacher, vectors.shape[-1])
  return tf.reduce_mean(_sum(tf.square(vectors - teacher)))


LOSSES: dict[str, Callable] = {
  "infonce": _infonce,
  "triplet": _triplet,
  "cosine": _cosine,
  "cosent": _cosent,
  "supervised_contrastive": _supervised_contrastive,
  "distillation": _distillation,
}

# Losses that compare the examples of a batch with each other, and the float32
# matrices [B, B] that each holds at a time, for pairs and a single width. These
# numbers, and those in `num_bytes`, bound the peaks of resident memory that
# were measured with TensorFlow 2.21 on two CPU cores, B = 3,000.
_NUM_MATRICES = {"infonce": 8, "cosent": 4, "supervised_contrastive": 8}


def num_bytes(options: LossOptions, batch_size: int, num_texts: int) -> int:
  """Upper bound of the bytes of a loss that compares examples, per replica."""
  # `batch_size` is that of all replicas.
  if options.name not in _NUM_MATRICES:
    return 0
  num_matrices = _NUM_MATRICES[options.name]
  num_matrices += 3 * max(len(options.dims) - 1, 0)
  if options.name == "infonce":
    num_matrices += 5 * (num_texts - 2) + 6 * options.symmetric
  return 4 * num_matrices * batch_size**2


# Arithmetic


def _are_equal(rows, columns):
  """Compares all pairs of integers: bool [rows, columns]."""
  # A GPU compares in int64; int32 would be compared on the host.
  rows, columns = (tf.cast(ids, tf.int64) for ids in (rows, columns))
  return tf.equal(rows[:, tf.newaxis], columns)


def _numbers(tensor):
  """Number of each row of a tensor, from 0: int32 [B]."""
  return tf.range(modeling.get_shape_list(tensor)[0])


def _masked(logits, is_masked):
  """Logits whose exponential is 0 where masked."""
  return tf.where_v2(is_masked, -1e30, logits)


def _mean(losses, counts):
  """Mean of the losses that count, along the last axis; 0 without any."""
  counts = tf.cast(counts, tf.float32)
  return tf.math.divide_no_nan(_sum(losses * counts), _sum(counts))


def _sum(tensor):
  """Sum along the last axis."""
  # Without `keepdims` the gradient copies a shape from the GPU.
  return tf.squeeze(tf.reduce_sum(tensor, axis=-1, keepdims=True), axis=-1)


def _pair_cosines(vectors):
  """Cosine of the two texts of each example: [B, 2, width] to [B]."""
  return _sum(vectors[:, 0] * vectors[:, 1])


# Gradient caching


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
    loss_scale: train_step.LossScale | train_step.FixedLossScale | None = None,
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
    micro_batch = train_step.micro_batches(batch, num_micro_batches)

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
    accumulated = train_step.accumulate(
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
  number = train_step.replica_number(num_tpu_cores)

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
