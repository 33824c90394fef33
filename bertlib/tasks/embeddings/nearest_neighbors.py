"""Exact search for the vectors with the largest dot products, in blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertlib.cli import terminal
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.io import json_files
from bertlib.io.files import atomic_write

# Queries and documents whose scores are computed at a time: 32 MiB of float32.
_NUM_QUERIES, _NUM_DOCUMENTS = 1024, 8192


class TopK:
  """The k documents with the largest dot product, for each query."""

  # Documents are added in blocks, so that neither all their vectors nor all
  # scores have to be in memory. A search for up to 1000 documents needs less
  # than 300 MiB.

  def __init__(self, queries: np.ndarray, k: int):
    """Stores the queries, float32 [queries, width], of length 1 for cosines."""
    self._queries = check_finite(queries)
    self._k = k
    # The best documents of each query so far, by ascending index.
    self._scores = np.empty([len(queries), 0], np.float32)
    self._indices = np.empty([len(queries), 0], np.int64)

  def add(self, block: np.ndarray, first_index: int) -> None:
    """Searches a block of documents, float32 [documents, width]."""
    # `first_index` must be greater than the indices of earlier blocks.
    check_finite(block)
    for start in range(0, len(block), _NUM_DOCUMENTS):
      documents = block[start : start + _NUM_DOCUMENTS]
      num_best = min(self._k, self._scores.shape[1] + len(documents))
      scores = np.empty([len(self._queries), num_best], np.float32)
      indices = np.empty([len(self._queries), num_best], np.int64)
      for row in range(0, len(self._queries), _NUM_QUERIES):
        rows = slice(row, row + _NUM_QUERIES)
        scores[rows], indices[rows] = _best(
          self._scores[rows],
          self._indices[rows],
          self._queries[rows] @ documents.T,
          first_index + start,
          num_best,
        )
      self._scores, self._indices = scores, indices

  def results(self) -> tuple[np.ndarray, np.ndarray]:
    """Scores, descending, and indices of the best documents: [queries, k]."""
    # Stable: of equal scores, the lower index comes first.
    order = np.argsort(-self._scores, axis=1, kind="stable")
    scores = np.take_along_axis(self._scores, order, axis=1)
    return scores, np.take_along_axis(self._indices, order, axis=1)


def check_finite(vectors: np.ndarray) -> np.ndarray:
  """Returns vectors [vectors, width]; InputError if one contains NaN or Inf."""
  num_wrong = int((~np.isfinite(vectors)).any(axis=1).sum())
  if num_wrong:
    raise InputError(
      f"{num_wrong} of {len(vectors)} vectors contain NaN or Inf. The weights"
      " of the model are unusable: use an earlier checkpoint"
    )
  return vectors


def _best(kept_scores, kept_indices, scores, first_index, num_best):
  """Scores and indices of the best documents, by ascending index."""
  # Arrays are [queries, documents]; `num_best` is at most the documents of
  # both.
  indices = np.arange(first_index, first_index + scores.shape[1])
  indices = np.broadcast_to(indices, scores.shape)
  if kept_scores.shape[1] == num_best:
    # Most documents are worse than all of those, which is quickly found.
    floor = kept_scores.min(axis=1, keepdims=True)
    scores, indices = _pack(scores, indices, scores > floor)
  scores = np.concatenate([kept_scores, scores], axis=1)
  indices = np.concatenate([kept_indices, indices], axis=1)
  last = np.partition(scores, -num_best, axis=1)[:, -num_best, np.newaxis]
  keep = scores >= last
  if np.count_nonzero(keep) > num_best * len(keep):
    # Several documents have the score of the last one. The first ones stay.
    better = scores > last
    room = num_best - np.count_nonzero(better, axis=1)[:, np.newaxis]
    rank = np.cumsum(scores == last, axis=1, dtype=np.int32)
    keep = better | (keep & (rank <= room))
  return (
    scores[keep].reshape(-1, num_best),
    indices[keep].reshape(-1, num_best),
  )


def _pack(scores, indices, keep):
  """Keeps some values of each row, in order, with -inf after the last ones."""
  counts = np.count_nonzero(keep, axis=1)
  used = np.arange(counts.max()) < counts[:, np.newaxis]
  packed_scores = np.full(used.shape, -np.inf, np.float32)
  packed_indices = np.zeros(used.shape, np.int64)
  packed_scores[used] = scores[keep]
  packed_indices[used] = indices[keep]
  return packed_scores, packed_indices


def write_search_results(
  path: str,
  queries: Sequence[str],
  corpus: Sequence[str],
  scores: np.ndarray,  # float32 [queries, k]
  indices: np.ndarray,  # into the corpus, [queries, k]
) -> None:
  """Writes the results of a search as JSON Lines, and prints the first ones."""
  with atomic_write(path) as file:
    for number, query in enumerate(queries):
      # Lines count from 1.
      results = [
        {"line": int(i) + 1, "score": round(float(s), 6), "text": corpus[i]}
        for s, i in zip(scores[number], indices[number])
      ]
      line = {"query": query, "results": results}
      file.write(json_files.dumps(line, ensure_ascii=False) + "\n")
      if number < 3:
        best = results[0]
        terminal.show(query)
        terminal.show(f"  {best['score']:.3f}", best["text"], sep="  ")
  logging.info("Results of %d queries: %s", len(queries), path)
