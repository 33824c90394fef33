"""Tests of exact search beside a sort of all scores."""

import numpy as np
import pytest
from parametrize import parametrize
from refused import assert_refused

from bertlib.data import nearest_neighbors

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
  monkeypatch.setattr(nearest_neighbors, "_NUM_QUERIES", 3)
  monkeypatch.setattr(nearest_neighbors, "_NUM_DOCUMENTS", 5)


def whole_numbers(*shape, seed=0):
  """Vectors whose dot products are exact, with many equal ones."""
  return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def search(queries, documents, k, block_size):
  top = nearest_neighbors.TopK(queries, k)
  for first in range(0, len(documents), block_size):
    top.add(documents[first : first + block_size], first)
  return top.results()


@parametrize("block_size", 1, 4, 5, 7, 40)
@parametrize("k", 1, 3, 6, 39)
def test_results_equal_a_stable_sort_of_all_scores(k, block_size):
  queries, documents = whole_numbers(8, 4), whole_numbers(40, 4, seed=1)
  scores, indices = search(queries, documents, k, block_size)
  expected = queries @ documents.T
  order = np.argsort(-expected, axis=1, kind="stable")[:, :k]
  np.testing.assert_array_equal(indices, order)
  found = np.take_along_axis(expected, order, axis=1)
  np.testing.assert_array_equal(scores, found)


def test_fewer_documents_than_k_give_fewer_columns():
  documents = whole_numbers(3, 4)
  scores, indices = search(whole_numbers(2, 4, seed=1), documents, 10, 2)
  assert scores.shape == indices.shape == (2, 3)
  assert scores.dtype == np.float32 and indices.dtype == np.int64
  np.testing.assert_array_equal(np.sort(indices), [[0, 1, 2]] * 2)


def test_indices_continue_from_that_of_the_block():
  top = nearest_neighbors.TopK(np.ones([1, 1], np.float32), 2)
  top.add(np.float32([[1], [5]]), 10)
  top.add(np.float32([[3], [4]]), 2**40)
  np.testing.assert_array_equal(top.results()[1], [[11, 2**40 + 1]])


def test_no_documents_and_no_queries_give_empty_results():
  queries, documents = whole_numbers(2, 4), whole_numbers(9, 4)
  assert search(queries, documents[:0], 3, 4)[0].shape == (2, 0)
  assert search(queries[:0], documents, 3, 4)[1].shape == (0, 3)


@parametrize("value", np.nan, np.inf)
def test_vectors_that_are_not_finite_are_refused(value):
  vectors = np.ones([3, 2], np.float32)
  wrong = vectors.copy()
  wrong[1, 0] = value
  message = "1 of 3 vectors contain NaN or Inf"
  assert_refused(message, nearest_neighbors.TopK, wrong, 1)
  assert_refused(message, nearest_neighbors.TopK(vectors, 1).add, wrong, 0)
