"""Report of a search: its worst queries, and intervals of its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.data import retrieval_scores
from bertlib.reporting import html_report, statistics
from bertlib.reporting.html_report import Section
from bertlib.reporting.statistics import Interval


def errors(
  retrieval: Any,  # `beir.Retrieval`, or what has its texts and judgments
  rankings: Mapping[str, Sequence[str]],
) -> Section:
  """Section on the queries whose right document is ranked lowest."""
  lowest = []
  for query, found in rankings.items():
    relevant = retrieval.relevance[query]
    rank, right = next(
      ((rank, id_) for rank, id_ in enumerate(found, 1) if id_ in relevant),
      (len(found) + 1, next(iter(relevant))),
    )
    if rank > 1 and found:
      lowest.append((rank, query, found[0], right))
  lowest.sort(key=lambda error: -error[0])
  lowest = lowest[: html_report.NUM_ERRORS]
  needed = {id_ for _, _, *ids in lowest for id_ in ids}
  texts = {id_: text for id_, text in retrieval.corpus if id_ in needed}
  rows: list[dict[str, Any]] = [
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
  retrieval: Any,  # see `errors`
  before: Mapping[str, Sequence[str]],
  after: Mapping[str, Sequence[str]],
) -> Section:
  """Section on the queries whose ranking was better before."""
  queries = [*retrieval.relevance]
  first, last = (
    retrieval_scores.evaluate_queries(retrieval.relevance, rankings)[:, 0]
    for rankings in (before, after)
  )
  order = np.argsort(last - first, kind="stable")[: html_report.NUM_ERRORS]
  worst = [(i, queries[i]) for i in order if last[i] < first[i]]
  needed = {ids[query][0] for _, query in worst for ids in (before, after)}
  texts = {id_: text for id_, text in retrieval.corpus if id_ in needed}
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


def intervals(
  relevance: Mapping[str, Mapping[str, int]],
  rankings: Mapping[str, Sequence[str]],
) -> dict[str, Interval | None]:
  """Intervals of the metrics of a search."""
  values = retrieval_scores.evaluate_queries(relevance, rankings)
  return {
    name: statistics.bootstrap(np.mean, values[:, column])
    for column, name in enumerate(retrieval_scores.METRICS)
  }
