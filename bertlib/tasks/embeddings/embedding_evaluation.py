"""Evaluates sentence vectors, at the full width and at those of Matryoshka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.data import nearest_neighbors, retrieval_scores
from bertlib.data.text_groups import Example
from bertlib.tasks.embeddings import similarity_scores

# Documents of the ranking of a query.
_MAX_RANK = 1000

# Metrics by kind of dev set, the primary one first.
METRICS = {
  "scored_pairs": similarity_scores.SCORED_PAIRS,
  "labeled_pairs": similarity_scores.LABELED_PAIRS,
  "labeled_texts": similarity_scores.LABELED_TEXTS,
  "retrieval": retrieval_scores.METRICS,
}


class Evaluation(NamedTuple):
  """Metrics, and what those of the full width were computed from."""

  results: dict[str, float]  # by name
  cosines: np.ndarray | None = None  # float32 [pairs]
  # Ids of the documents found, the best first, by id of query.
  rankings: Mapping[str, Sequence[str]] | None = None
  neighbors: similarity_scores.Neighbors | None = None  # of texts with labels


def metric_names(kind: str, dims: Sequence[int]) -> list[str]:
  """Names of the metrics, the primary one first."""
  # `kind` is a key of `METRICS`, and `dims` are the widths of the vectors, the
  # largest first, whose metrics have no suffix.
  return [name + suffix for suffix in _suffixes(dims) for name in METRICS[kind]]


def _suffixes(dims: Sequence[int]) -> dict[str, int | None]:
  """Widths by the suffix of their metrics."""
  return {"": None, **{f"_{dim}": dim for dim in dims[1:]}}


def evaluate_examples(
  kind: str,  # a key of `METRICS`
  examples: Sequence[Example],
  vectors: np.ndarray,  # float32 [distinct texts, width]
  positions: np.ndarray,  # rows of `vectors`, [examples, texts]
  dims: Sequence[int],  # see `metric_names`
) -> Evaluation:
  """Evaluates pairs or texts with scores or labels."""
  gold = gold_values(kind, examples)

  def evaluate(dim: int | None) -> Evaluation:
    if kind == "labeled_texts":
      found = similarity_scores.find_neighbors(
        vectors[positions[:, 0]], gold, dim
      )
      scores = similarity_scores.labeled_texts(found)
      return Evaluation(scores, neighbors=found)
    first, second = (vectors[column] for column in positions.T)
    cosines = similarity_scores.cosine_similarities(first, second, dim)
    score = similarity_scores.labeled_pairs
    if kind == "scored_pairs":
      score = similarity_scores.scored_pairs
    return Evaluation(score(cosines, gold), cosines=cosines)

  by_suffix = {suffix: evaluate(dim) for suffix, dim in _suffixes(dims).items()}
  results = {
    f"eval_{name}{suffix}": value
    for suffix, evaluation in by_suffix.items()
    for name, value in evaluation.results.items()
  }
  return by_suffix[""]._replace(results=results)


def gold_values(kind: str, examples: Sequence[Example]) -> np.ndarray:
  """Scores of pairs, labels of pairs (1 or 0), or labels of texts: [rows]."""
  if kind == "scored_pairs":
    return np.array([example.score for example in examples])
  labels = np.array([example.label for example in examples])
  return labels.astype(int) if kind == "labeled_pairs" else labels


def evaluate_retrieval(
  query_ids: Sequence[str],
  query_vectors: np.ndarray,  # float32 [queries, width]
  document_ids: Sequence[str],
  document_vectors: Iterable[np.ndarray],  # read once, block by block
  # Grades by id of query and of relevant document.
  relevance: Mapping[str, Mapping[str, int]],
  dims: Sequence[int],  # see `metric_names`
) -> Evaluation:
  """Evaluates a search by cosine similarity in a corpus."""
  widths = _suffixes(dims)
  # One more, since a document with the id of the query is left out, as in BEIR.
  found = nearest_neighbors.search(
    query_vectors, document_vectors, _MAX_RANK + 1, widths.values()
  )
  rankings = {
    suffix: {
      query: [id_ for i in row if (id_ := document_ids[i]) != query][:_MAX_RANK]
      for query, row in zip(query_ids, indices)
    }
    for suffix, (_, indices) in zip(widths, found)
  }
  results = retrieval_scores.evaluate_all(relevance, rankings)
  return Evaluation(results, rankings=rankings[""])
