"""Report of a search: its worst queries, and intervals of its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.data import retrieval_scores
from bertlib.data.beir import Retrieval
from bertlib.reporting import html_report, statistics
from bertlib.reporting.html_report import Section
from bertlib.reporting.statistics import Interval

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
    values = retrieval_scores.evaluate_queries(relevance, found)
    return sections, {
      name: statistics.bootstrap(np.mean, column)
      for name, column in zip(retrieval_scores.METRICS, values.T)
    }

  return Evaluation(retrieval_scores.evaluate(relevance, rankings), report)


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
    retrieval_scores.evaluate_queries(retrieval.relevance, rankings)[:, 0]
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
