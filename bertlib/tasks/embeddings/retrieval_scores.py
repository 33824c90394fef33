"""Metrics of ranked documents: nDCG, reciprocal rank, recall, precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

# The primary one first.
METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100", "map")


def evaluate(
  relevance: Mapping[str, Mapping[str, int]],
  rankings: Mapping[str, Sequence[str]],
) -> dict[str, float]:
  """Means of the metrics over all queries that have a relevant document.

  The definitions are those of trec_eval. Gains are linear: the gain of a
  document is its relevance, and that of a negative one is 0. A document
  without a judgment is not relevant.

  Args:
    relevance: relevance of judged documents, by query and document; above 0 for
      a relevant document.
    rankings: documents by query, the best first. A query without a ranking has
      found nothing; a query without judgments is ignored.

  Returns:
    `METRICS`, each in [0, 1]: nDCG and reciprocal rank of the first 10
    documents; recall of the first 1, 10 and 100; and mean average precision of
    the whole ranking, for which a relevant document that is not in it has
    precision 0. NaN if no query has a relevant document.
  """
  rows = evaluate_queries(relevance, rankings)
  means = rows.mean(axis=0) if len(rows) else [float("nan")] * len(METRICS)
  return dict(zip(METRICS, map(float, means)))


def evaluate_queries(
  relevance: Mapping[str, Mapping[str, int]],
  rankings: Mapping[str, Sequence[str]],
) -> np.ndarray:
  """Metrics of each query, see `evaluate`.

  Returns:
    float64 [Q, M], `METRICS` of each query that has a relevant document.
  """
  rows = [
    _metrics_of_query(gains, rankings.get(query, ()))
    for query, judgments in relevance.items()
    if (gains := {doc: r for doc, r in judgments.items() if r > 0})
  ]
  return np.array(rows, np.float64).reshape(len(rows), len(METRICS))


def _metrics_of_query(
  gains: Mapping[str, int], ranking: Sequence[str]
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
