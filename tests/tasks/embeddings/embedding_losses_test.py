"""Tests of the losses of sentence embeddings, against formulas in NumPy."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from parametrize import parametrize

from bertlib.tasks.embeddings import embedding_losses
from bertlib.tasks.embeddings.embedding_losses import BatchLoss, LossOptions

pytestmark = pytest.mark.graph

TEMPERATURE, MARGIN = 0.3, 0.4


def evaluate(options, vectors, features):
  """A loss, and its gradient w.r.t. the vectors."""
  with tf.Graph().as_default(), tf.Session() as session:
    # Unknown shapes, as those of a batch whose size is not fixed.
    placeholder = tf.placeholder(tf.float32, [None, None, vectors.shape[-1]])
    features = {name: tf.constant(array) for name, array in features.items()}
    loss = embedding_losses.make_loss(options)(placeholder, features)
    gradient = tf.gradients(loss, placeholder)[0]
    return session.run([loss, gradient], {placeholder: vectors})


def make_batch(seed, num_texts, num_examples=5, width=6):
  """Random vectors, and a number for each text."""
  draw = np.random.default_rng(seed)
  vectors = draw.normal(size=[num_examples, num_texts, width])
  text_ids = np.arange(num_examples * num_texts, dtype=np.int32)
  return vectors, {"text_ids": text_ids.reshape(num_examples, num_texts)}


def unit(vectors):
  return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# The formulas, one term after the other


def rank(queries, query_ids, candidates, candidate_ids):
  """Cross-entropy of the candidate of each query, without false negatives."""
  losses = []
  for i, query in enumerate(queries):
    # A copy of a query has the same answer.
    same = [j for j in range(len(queries)) if query_ids[j] == query_ids[i]]
    answers = {candidate_ids[j] for j in same}
    total = 0.0
    for j, candidate in enumerate(candidates):
      is_false = candidate_ids[j] in {-1, query_ids[i], *answers}
      if i == j or not is_false:
        total += np.exp(query @ candidate / TEMPERATURE)
    losses.append(np.log(total) - query @ candidates[i] / TEMPERATURE)
  return np.mean(losses)


def infonce(vectors, features, symmetric=False):
  vectors, ids = unit(vectors), features["text_ids"]
  num_examples, num_texts, _ = vectors.shape
  candidates = [
    (vectors[row, column], ids[row, column])
    for column in range(1, num_texts)
    for row in range(num_examples)
  ]
  forward = rank(vectors[:, 0], ids[:, 0], *zip(*candidates))
  if not symmetric:
    return forward
  backward = rank(vectors[:, 1], ids[:, 1], vectors[:, 0], ids[:, 0])
  return (forward + backward) / 2


def triplet(vectors, features, normalized=True):
  vectors, ids = unit(vectors) if normalized else vectors, features["text_ids"]
  losses = np.zeros(len(vectors))
  for i, (row, row_ids) in enumerate(zip(vectors, ids)):
    far = [
      np.linalg.norm(row[0] - vector)
      for vector, id_ in zip(row[2:], row_ids[2:])
      if id_ not in (-1, row_ids[0], row_ids[1])
    ]
    if far:
      near = np.linalg.norm(row[0] - row[1])
      losses[i] = np.mean(np.maximum(0.0, near - np.array(far) + MARGIN))
  return np.mean(losses)


def cosine(vectors, features):
  cosines = np.array([first @ second for first, second in unit(vectors)])
  return np.mean((cosines - features["scores"]) ** 2)


def cosent(vectors, features):
  cosines = [first @ second for first, second in unit(vectors)]
  scores = features["scores"]
  total = 1.0
  for i, higher in enumerate(scores):
    for j, lower in enumerate(scores):
      if higher > lower:
        total += np.exp((cosines[j] - cosines[i]) / TEMPERATURE)
  return np.log(total)


def supervised_contrastive(vectors, features):
  texts, labels = unit(vectors)[:, 0], features["label_ids"]
  ids = features["text_ids"][:, 0]
  losses = []
  for i, text in enumerate(texts):
    others = [j for j in range(len(texts)) if j != i]
    others = [j for j in others if ids[j] != ids[i] or labels[j] == labels[i]]
    exponentials = {j: np.exp(text @ texts[j] / TEMPERATURE) for j in others}
    partners = [j for j in others if labels[j] == labels[i]]
    if partners:
      probs = [exponentials[j] / sum(exponentials.values()) for j in partners]
      losses.append(-np.mean(np.log(probs)))
  return np.mean(losses)


def distillation(vectors, features, normalized=True):
  teacher = features["teacher_vectors"]
  if normalized:
    vectors, teacher = unit(vectors), unit(teacher[..., : vectors.shape[-1]])
  return np.mean(np.sum((vectors - teacher) ** 2, axis=-1))


def features_for(name, features, seed=0):
  draw = np.random.default_rng(seed + 100)
  num_examples, num_texts = features["text_ids"].shape
  more = {
    "cosine": {"scores": draw.random(num_examples)},
    "cosent": {"scores": draw.integers(0, 3, num_examples) / 2},
    "supervised_contrastive": {
      "label_ids": np.array([0, 1, 0, 2, 0, 1, 1, 3][:num_examples], np.int32)
    },
    "distillation": {
      "teacher_vectors": draw.normal(size=[num_examples, num_texts, 6])
    },
  }
  return features | more.get(name, {})


def assert_equal(name, formula, vectors, features, **options):
  """Compares a loss with the formula; its gradient must be finite."""
  options = LossOptions(name, temperature=TEMPERATURE, margin=MARGIN, **options)
  narrow = {
    name: array.astype(np.float32) if array.dtype == np.float64 else array
    for name, array in features.items()
  }
  loss, gradient = evaluate(options, vectors, narrow)
  np.testing.assert_allclose(loss, formula(vectors, features), rtol=2e-6)
  assert np.isfinite(gradient).all() and gradient.any()


FORMULAS = {
  "infonce": (infonce, 4),
  "triplet": (triplet, 4),
  "cosine": (cosine, 2),
  "cosent": (cosent, 2),
  "supervised_contrastive": (supervised_contrastive, 1),
  "distillation": (distillation, 2),
}


@parametrize("seed", 0, 1)
@parametrize("name", *FORMULAS)
def test_loss_equals_the_formula(name, seed):
  formula, num_texts = FORMULAS[name]
  vectors, features = make_batch(seed, num_texts)
  features = features_for(name, features, seed)
  assert_equal(name, formula, vectors, features)


@parametrize("name", *FORMULAS)
def test_matryoshka_loss_is_the_weighted_sum_over_widths(name):
  formula, num_texts = FORMULAS[name]
  vectors, features = make_batch(2, num_texts)
  features = features_for(name, features)
  dims, weights = (6, 4, 3), (1.0, 0.5, 0.25)

  def total(vectors, features):
    parts = [formula(vectors[..., :dim], features) for dim in dims]
    return np.dot(weights, parts)

  assert_equal(name, total, vectors, features, dims=dims, weights=weights)


@parametrize("name", "triplet", "distillation")
def test_vectors_without_normalization_are_compared_as_they_are(name):
  formula, num_texts = FORMULAS[name]
  formula = functools.partial(formula, normalized=False)
  vectors, features = make_batch(4, num_texts)
  features = features_for(name, features)
  assert_equal(name, formula, vectors, features, normalize=False)


DUPLICATES = {
  "hard negative is missing": [[0, 1, -1], [2, 3, 4], [5, 6, -1]],
  "anchor is there twice": [[0, 1, 2], [0, 3, 4], [5, 6, 7]],
  "positive is there twice": [[0, 1, 2], [3, 1, 4], [5, 6, 7]],
  "positive is the anchor of another": [[0, 1, 2], [1, 3, 4], [5, 0, 6]],
  "hard negative is the positive of another": [[0, 1, 3], [2, 3, 1], [4, 5, 6]],
  "hard negative is the own positive": [[0, 1, 1], [2, 3, 4], [5, 6, 5]],
  "example is there twice": [[0, 1, 2], [0, 1, 2], [5, 6, 7]],
  "second positive is also that of another": [[0, 1, 2], [0, 3, 4], [5, 3, 6]],
  "second positive is a hard negative": [[0, 1, 3], [0, 3, 4], [5, 6, 7]],
  "anchor equals its positive": [[0, 0, 2], [3, 4, 5], [5, 6, 0]],
}


@parametrize("symmetric", False, True)
@parametrize("case", *DUPLICATES)
def test_no_copy_counts_as_its_own_negative(case, symmetric):
  vectors, _ = make_batch(5, 3, num_examples=3)
  features = {"text_ids": np.array(DUPLICATES[case], np.int32)}
  formula = functools.partial(infonce, symmetric=symmetric)
  assert_equal("infonce", formula, vectors, features, symmetric=symmetric)


def test_copies_and_missing_negatives_are_left_out_of_triplets():
  ids = [[0, 1, 8, 2], [3, 4, 4, 3], [5, 6, 7, -1]]
  vectors, _ = make_batch(6, 4, num_examples=3)
  features = {"text_ids": np.array(ids, np.int32)}
  assert_equal("triplet", triplet, vectors, features)


def test_copies_with_another_label_are_no_negatives():
  vectors, _ = make_batch(8, 1)
  ids = np.array([[0], [1], [0], [2], [1]], np.int32)
  features = {"text_ids": ids, "label_ids": np.array([0, 1, 1, 0, 1], np.int32)}
  formula = supervised_contrastive
  assert_equal("supervised_contrastive", formula, vectors, features)


def one_text(num_texts):
  """A batch of one text, many times."""
  return np.ones([4, num_texts, 3]), np.zeros([4, num_texts], np.int32)


ONE_SCORE = {"scores": np.full(4, 0.7, np.float32)}
ZERO_LOSSES = {
  "copies of one text": ("infonce", one_text(3), {}),
  "no hard negatives": ("triplet", one_text(2), {}),
  "one score": ("cosent", one_text(2), ONE_SCORE),
  "labels without partners": (
    "supervised_contrastive",
    one_text(1),
    {"label_ids": np.arange(4, dtype=np.int32)},
  ),
}


@parametrize("case", *ZERO_LOSSES)
def test_batch_without_any_comparison_has_loss_0(case):
  name, (vectors, ids), more = ZERO_LOSSES[case]
  options = LossOptions(name, symmetric=True)
  loss, gradient = evaluate(options, vectors, {"text_ids": ids, **more})
  assert loss == pytest.approx(0.0, abs=1e-6)
  np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


def test_distance_of_equal_vectors_has_a_finite_gradient():
  vectors, features = make_batch(9, 3)
  vectors[:, 1] = vectors[:, 0]
  _, gradient = evaluate(LossOptions("triplet", margin=3.0), vectors, features)
  assert np.isfinite(gradient).all() and gradient.any()


def test_cosent_is_finite_at_a_very_low_temperature():
  vectors = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]])
  features = {"text_ids": np.arange(4, dtype=np.int32).reshape(2, 2)}
  features["scores"] = np.array([1.0, 0.0], np.float32)
  options = LossOptions("cosent", temperature=1e-3)
  loss, gradient = evaluate(options, vectors, features)
  assert loss == pytest.approx(2.0 / 1e-3)
  assert np.isfinite(gradient).all()


@parametrize("name", *FORMULAS)
def test_only_means_over_examples_see_one_micro_batch_at_a_time(name):
  _, num_texts = FORMULAS[name]
  vectors, features = make_batch(12, num_texts, num_examples=6)
  features["text_ids"][1, 2:] = embedding_losses.MISSING
  features = features_for(name, features) | {"vectors": vectors}
  batch = {n: array.astype(np.float32) for n, array in features.items()}
  with tf.Graph().as_default(), tf.Session() as session:
    options, encode = LossOptions(name), lambda batch, _: batch["vectors"]
    loss = embedding_losses.training_loss(options, encode)
    sees_whole_batch = isinstance(loss, BatchLoss)

    def loss_of(rows):
      part = {n: tf.constant(array[rows]) for n, array in batch.items()}
      if sees_whole_batch:
        return loss.loss_fn(part["vectors"], part)
      return loss(part, None)[0]

    parts = slice(6), slice(3), slice(3, 6)
    whole, *parts = session.run([loss_of(rows) for rows in parts])
  assert (whole == pytest.approx(np.mean(parts), rel=1e-5)) != sees_whole_batch
  needs_memory = embedding_losses.num_bytes(LossOptions(name), 10**6, 3) > 0
  assert needs_memory == sees_whole_batch


# Peaks of resident memory of a process that computes gradients with TensorFlow
# 2.21 on two cores, less that of a loss that compares nothing, in gigabytes:
# B is 3,000, and the encoder one layer of 16 hidden units and 4 tokens.
@pytest.mark.unit
@parametrize(
  "num_texts, options, peak",
  (2, {"name": "infonce"}, 0.255),
  (2, {"name": "infonce", "symmetric": True}, 0.453),
  (3, {"name": "infonce", "symmetric": True}, 0.637),
  (2, {"name": "infonce", "dims": (16, 12, 8, 4)}, 0.367),
  (2, {"name": "infonce", "symmetric": True, "dims": (16, 12, 8, 4)}, 0.538),
  (2, {"name": "cosent"}, 0.096),
  (2, {"name": "cosent", "dims": (16, 12, 8, 4)}, 0.437),
  (1, {"name": "supervised_contrastive"}, 0.249),
  (1, {"name": "supervised_contrastive", "dims": (16, 12, 8, 4)}, 0.564),
)
def test_measured_losses_take_no_more_than_planned(num_texts, options, peak):
  options = LossOptions(**options)
  planned = embedding_losses.num_bytes(options, 3000, num_texts)
  assert peak <= planned / 1e9 < 1.7 * peak
