"""Metrics of a search, and a report: its worst queries, and intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.data.beir import Retrieval
from bertlib.reporting import html_report, statistics
from bertlib.reporting.html_report import Section
from bertlib.reporting.statistics import Interval

# nDCG, reciprocal rank, recall, precision; the primary one first.
METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100", "map")

# Sections, and intervals by metric.
Report = tuple[list[Section], dict[str, "Interval | None"]]

# Ids of documents by id of query, the best first.
Rankings = Mapping[str, Sequence[str]]


class Evaluation(NamedTuple):
  """Metrics, and what the report shows of those without a suffix."""

  results: dict[str, float]  # as in `eval_results.txt`
  report: Callable[[], Report]  # computed where it is needed


def evaluate(
  retrieval: Retrieval,
  # By the suffix of their metrics; "_before" for candidates that are ranked.
  rankings: Mapping[str, Rankings],
) -> Evaluation:
  """Evaluates rankings of one search."""
  relevance, found = retrieval.relevance, rankings[""]

  def report():
    sections = [errors(retrieval, found)]
    if before := rankings.get("_before"):
      sections.insert(0, made_worse(retrieval, before, found))
    values = evaluate_queries(relevance, found)
    return sections, {
      name: statistics.bootstrap(np.mean, column)
      for name, column in zip(METRICS, values.T)
    }

  results = {
    f"eval_{name}{suffix}": float(mean)
    for suffix, ranking in rankings.items()
    for name, mean in zip(
      METRICS, evaluate_queries(relevance, ranking).mean(axis=0)
    )
  }
  return Evaluation(results, report)


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


def errors(retrieval: Retrieval, rankings: Rankings) -> Section:
  """Section on the queries whose right document is ranked lowest."""
  lowest = []
  for query, found in rankings.items():
    grades = retrieval.relevance[query]
    relevant = [id_ for id_, grade in grades.items() if grade > 0]
    rank, right = next(
      ((rank, id_) for rank, id_ in enumerate(found, 1) if id_ in relevant),
      (len(found) + 1, relevant[0]),
    )
    if rank > 1 and found:
      lowest.append((rank, query, found[0], right))
  lowest.sort(key=lambda error: -error[0])
  lowest = lowest[: html_report.NUM_ERRORS]
  texts = retrieval.texts_of(id_ for _, _, *ids in lowest for id_ in ids)
  rows = [
    {
      "rank": rank if rank <= len(rankings[query]) else f"over {rank - 1}",
      "query": retrieval.queries[query],
      "found first": texts[found],
      "right": texts.get(right, f"{right} (not in the corpus)"),
    }
    for rank, query, found, right in lowest
  ]
  return html_report.table("Worst errors", rows)


def made_worse(
  retrieval: Retrieval, before: Rankings, after: Rankings
) -> Section:
  """Section on the queries whose ranking was better before."""
  queries = [*retrieval.relevance]
  first, last = (
    evaluate_queries(retrieval.relevance, rankings)[:, 0]
    for rankings in (before, after)
  )
  order = np.argsort(last - first, kind="stable")[: html_report.NUM_ERRORS]
  worst = [(i, queries[i]) for i in order if last[i] < first[i]]
  texts = retrieval.texts_of(
    ids[query][0] for _, query in worst for ids in (before, after)
  )
  rows = [
    {
      "nDCG@10 before": first[index],
      "after": last[index],
      "query": retrieval.queries[query],
      "first before": texts[before[query][0]],
      "first after": texts[after[query][0]],
    }
    for index, query in worst
  ]
  about = f"{np.sum(last < first)} of {len(queries)} queries are made worse."
  return html_report.table("Made worse", rows, about)
