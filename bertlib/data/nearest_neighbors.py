"""Exact search for the vectors with the largest dot products, in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bertlib.cli import terminal
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data.batch_predictor import blocks
from bertlib.data.beir import Retrieval
from bertlib.io import json_files
from bertlib.io.files import atomic_write

# Id of a query, ids of its documents, the best first, and their scores.
Ranked = tuple[str, Sequence[str], np.ndarray]

# Queries and documents whose scores are computed at a time: 32 MiB of float32.
_NUM_QUERIES, _NUM_DOCUMENTS = 1024, 8192


class TopK:
  """The k documents with the largest dot product, for each query."""

  # Documents are added in blocks, so that neither all their vectors nor all
  # scores have to be in memory.

  def __init__(self, queries: np.ndarray, k: int):
    """Stores the queries, float32 [queries, width], of length 1 for cosines."""
    self._queries = check_finite(queries)
    self._k = k
    # Scores and indices of the best documents of each query, the best first.
    nothing = np.empty(0, np.float32), np.empty(0, np.int64)
    self._best = [nothing] * len(queries)

  def add(self, block: np.ndarray, first_index: int) -> None:
    """Searches a block of documents, float32 [documents, width]."""
    # `first_index` must be greater than the indices of earlier blocks.
    check_finite(block)
    for row in range(0, len(self._queries), _NUM_QUERIES):
      scores = self._queries[row : row + _NUM_QUERIES] @ block.T
      for query, found in enumerate(scores, start=row):
        self._merge(query, found, first_index)

  def results(self) -> tuple[np.ndarray, np.ndarray]:
    """Scores, descending, and indices of the best documents: [queries, k]."""
    num_best = len(self._best[0][0]) if self._best else self._k
    scores = np.empty([len(self._best), num_best], np.float32)
    indices = np.empty(scores.shape, np.int64)
    for query, best in enumerate(self._best):
      scores[query], indices[query] = best
    return scores, indices

  def _merge(self, query: int, scores: np.ndarray, first_index: int) -> None:
    """Puts the documents with these scores among the best of a query."""
    best_scores, best_indices = self._best[query]
    is_full = len(best_scores) == self._k
    found = np.flatnonzero(scores > (best_scores[-1] if is_full else -np.inf))
    if len(found) > self._k:
      last = np.partition(scores[found], -self._k)[-self._k]
      found = found[scores[found] >= last]
    if len(found):
      scores = np.concatenate([best_scores, scores[found]])
      indices = np.concatenate([best_indices, first_index + found])
      # Stable: of equal scores, the lower index comes first.
      order = np.argsort(-scores, kind="stable")[: self._k]
      self._best[query] = scores[order], indices[order]


def check_finite(vectors: np.ndarray) -> np.ndarray:
  """Returns vectors [vectors, width]; InputError if one contains NaN or Inf."""
  num_wrong = int((~np.isfinite(vectors)).any(axis=1).sum())
  if num_wrong:
    raise InputError(
      f"{num_wrong} of {len(vectors)} vectors contain NaN or Inf. The weights"
      " of the model are unusable: use an earlier checkpoint"
    )
  return vectors


def unit_vectors(vectors: np.ndarray, dim: int | None = None) -> np.ndarray:
  """First `dim` values at length 1: float32 [vectors, dim]; zeros stay zero."""
  vectors = check_finite(vectors[:, :dim])
  vectors = vectors.astype(np.float32)
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


def search(
  query_vectors: np.ndarray,  # float32 [queries, width]
  document_vectors: Iterable[np.ndarray],  # read once, block by block
  k: int,  # documents to find for each query
  # Leading values of the vectors to search with; None for all.
  dims: Iterable[int | None] = (None,),
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Exact search by cosine similarity: results of `TopK` for each width."""
  searches = {dim: TopK(unit_vectors(query_vectors, dim), k) for dim in dims}
  first = 0
  for block in map(np.stack, blocks(document_vectors, _NUM_DOCUMENTS)):
    for dim, found in searches.items():
      found.add(unit_vectors(block, dim), first)
    first += len(block)
  return [found.results() for found in searches.values()]


def rank(
  retrieval: Retrieval,
  query_vectors: np.ndarray,
  document_vectors: Iterable[np.ndarray],
  k: int,
  dims: Iterable[int | None] = (None,),
) -> Iterator[list[Ranked]]:
  """Yields the best documents of each query, see `search`, for each width."""
  document_ids = [id_ for id_, _ in retrieval.corpus]
  # One more, since a document with the id of the query is left out, as in BEIR.
  for found in search(query_vectors, document_vectors, k + 1, dims):
    ranked = []
    for query, scores, indices in zip(retrieval.queries, *found):
      ids = [document_ids[index] for index in indices]
      kept = [n for n, id_ in enumerate(ids) if id_ != query][:k]
      ranked.append((query, [ids[n] for n in kept], scores[kept]))
    yield ranked


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
