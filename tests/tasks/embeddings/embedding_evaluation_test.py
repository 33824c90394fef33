"""Tests of the metrics of similarities beside direct counts."""

import math

import numpy as np
import pytest
from parametrize import parametrize
from sklearn import metrics

from bertlib.data import nearest_neighbors
from bertlib.tasks.embeddings import embedding_evaluation as similarity

pytestmark = pytest.mark.unit


def random_vectors(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@parametrize("dim", None, 3)
def test_cosine_similarities_equal_sklearn(dim):
  first, second = random_vectors(20, 8), random_vectors(20, 8, seed=1)
  expected = metrics.pairwise.cosine_similarity(first[:, :dim], second[:, :dim])
  actual = similarity.cosine_similarities(first, second, dim)
  np.testing.assert_allclose(actual, np.diag(expected), atol=1e-6)


def test_zero_vector_has_similarity_0():
  vectors = np.float32([[0, 0], [3, 4]])
  expected = np.float32([[0, 0], [0.6, 0.8]])
  found = nearest_neighbors.unit_vectors(vectors)
  np.testing.assert_array_equal(found, expected)
  actual = similarity.cosine_similarities(vectors, vectors[[1, 1]])
  np.testing.assert_allclose(actual, [0, 1], atol=1e-7)


def test_correlations_equal_numpy_with_ties():
  similarities = random_vectors(50).round(1)
  scores = similarities + random_vectors(50, seed=1).round(0)
  actual = similarity.scored_pairs(similarities, scores)

  def mean_ranks(values):
    below = (values < values[:, np.newaxis]).sum(axis=1)
    return below + (values == values[:, np.newaxis]).sum(axis=1) / 2

  ranks = np.corrcoef(mean_ranks(similarities), mean_ranks(scores))[0, 1]
  pearson = np.corrcoef(similarities, scores)[0, 1]
  assert actual == {
    "spearman": pytest.approx(ranks),
    "pearson": pytest.approx(pearson, rel=1e-5),
  }


@pytest.mark.parametrize(
  ("similarities", "scores"),
  [([0.5, 0.5, 0.5], [1, 2, 3]), ([0.1, 0.2], [4, 4]), ([0.1], [1])],
)
def test_undefined_correlations_are_nan(similarities, scores):
  actual = similarity.scored_pairs(np.float32(similarities), np.float32(scores))
  assert list(actual) == ["spearman", "pearson"]
  assert all(map(math.isnan, actual.values()))


@parametrize("seed", *range(5))
@parametrize("name", "accuracy", "f1")
def test_accuracy_and_f1_are_the_best_of_all_thresholds(name, seed):
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, 2, 40)
  similarities = (rng.normal(size=40) / 4 + labels / 4).clip(-1, 1).round(1)
  actual = similarity.labeled_pairs(similarities, labels)
  metric = getattr(metrics, f"{name}_score")
  thresholds = np.arange(-1.05, 1.2, 0.1)
  every = [metric(labels, similarities >= t) for t in thresholds]
  assert actual[name] == pytest.approx(max(every))
  predicted = similarities >= actual[f"{name}_threshold"]
  assert metric(labels, predicted) == pytest.approx(actual[name])


def test_threshold_is_the_midpoint_between_similarities():
  similarities, labels = np.float32([0.25, 0.75, 0.5]), np.array([0, 1, 1])
  actual = similarity.labeled_pairs(similarities, labels)
  thresholds = {"accuracy_threshold": 0.375, "f1_threshold": 0.375}
  perfect = dict.fromkeys(("accuracy", "f1", "average_precision"), 1.0)
  assert actual == thresholds | perfect


@parametrize("label", 0, 1)
def test_pairs_with_one_label_have_a_threshold_beyond_all(label):
  similarities, labels = np.float32([-1, 0.5, 1]), np.full(3, label)
  actual = similarity.labeled_pairs(similarities, labels)
  assert actual["accuracy"] == 1.0
  predicted = similarities >= actual["accuracy_threshold"]
  np.testing.assert_array_equal(predicted, labels)
  undefined = {"average_precision", "f1", "f1_threshold"}
  found = {name for name, value in actual.items() if math.isnan(value)}
  assert found == (set() if label else undefined)


@parametrize("dim", None, 3)
@parametrize("num_similarities", 1, 200, 10**6)
def test_retrieval_of_labels_equals_sklearn(dim, num_similarities, monkeypatch):
  monkeypatch.setattr(similarity, "_NUM_SIMILARITIES", num_similarities)
  vectors = random_vectors(30, 6)
  labels = np.append(np.random.default_rng(1).integers(0, 4, 29), 99)
  found = similarity.find_neighbors(vectors, labels, dim)
  actual = similarity.labeled_texts(found)
  cosines = metrics.pairwise.cosine_similarity(vectors[:, :dim])
  precisions, are_correct = [], []
  for text in range(29):  # the last one's label is the only one of its kind
    others = np.arange(30) != text
    same, similarities = labels[others] == labels[text], cosines[text, others]
    precisions.append(metrics.average_precision_score(same, similarities))
    are_correct.append(same[similarities.argmax()])
  assert actual == {
    "map": pytest.approx(np.mean(precisions)),
    "neighbor_accuracy": pytest.approx(np.mean(are_correct)),
  }
  np.testing.assert_allclose(found.precisions, precisions)
  np.fill_diagonal(cosines, -1)
  assert found.queries.tolist() == list(range(29))
  assert found.nearest.tolist() == cosines[:29].argmax(axis=1).tolist()
  np.testing.assert_allclose(found.cosines, cosines[:29].max(axis=1), rtol=1e-5)


def test_copies_of_a_text_do_not_find_themselves():
  vectors, labels = np.float32([[1, 0]] * 4), np.array([0, 1, 0, 1])
  actual = similarity.labeled_texts(similarity.find_neighbors(vectors, labels))
  # The first finds texts 1, 2, 3; the second 0, 2, 3; and so on.
  expected = {"map": (1 / 2 + 1 / 3 + 1 + 1 / 2) / 4, "neighbor_accuracy": 0.25}
  assert actual == pytest.approx(expected)
