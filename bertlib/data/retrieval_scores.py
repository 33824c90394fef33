"""Metrics of ranked documents: nDCG, reciprocal rank, recall, precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

# The primary one first.
METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100", "map")


def evaluate(
  relevance: Mapping[str, Mapping[str, float]],
  rankings: Mapping[str, Mapping[str, Sequence[str]]],  # by suffix
) -> dict[str, float]:
  """Means of `evaluate_queries`, as in `eval_results.txt`."""
  return {
    f"eval_{name}{suffix}": float(mean)
    for suffix, ranking in rankings.items()
    for name, mean in zip(
      METRICS, evaluate_queries(relevance, ranking).mean(axis=0)
    )
  }


def evaluate_queries(
  # Grades by query and document, above 0 for a relevant one. Gains are linear:
  # the grade; 0 for a negative one or a document without any.
  relevance: Mapping[str, Mapping[str, float]],
  # Documents by query, the best first. A query without a ranking has found
  # nothing.
  rankings: Mapping[str, Sequence[str]],
) -> np.ndarray:
  """float64 [queries with a relevant document, `METRICS`], as in trec_eval."""
  rows = [
    _metrics_of_query(gains, rankings.get(query, ()))
    for query, judgments in relevance.items()
    if (gains := {doc: r for doc, r in judgments.items() if r > 0})
  ]
  return np.array(rows, np.float64)


def _metrics_of_query(
  gains: Mapping[str, float], ranking: Sequence[str]
) -> list[float]:
  """Values of `METRICS`; `gains` has the relevant documents only."""
  ranked = np.array([gains.get(doc, 0) for doc in ranking], np.float64)
  ideal = np.array(sorted(gains.values(), reverse=True), np.float64)
  ranks = np.flatnonzero(ranked) + 1
  precisions = np.arange(1, len(ranks) + 1) / ranks
  return [
    _discounted_gain(ranked[:10]) / _discounted_gain(ideal[:10]),
    1 / ranks[0] if len(ranks) and ranks[0] <= 10 else 0.0,
    *(np.count_nonzero(ranked[:k]) / len(gains) for k in (1, 10, 100)),
    precisions.sum() / len(gains),
  ]


def _discounted_gain(gains: np.ndarray) -> float:
  return float((gains / np.log2(np.arange(len(gains)) + 2)).sum())
