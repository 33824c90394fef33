"""The report of rerankers: queries that they make worse."""

from __future__ import annotations

import numpy as np

from bertlib.data import beir, retrieval_scores
from bertlib.reporting import html_report, search_report
from bertlib.reporting.html_report import Section
from bertlib.tasks.ranking.rankings import Rankings, Search


def sections(search: Search, found: Rankings) -> list[Section]:
  """Sections on rerankers, for `run_report.Findings`."""
  retrieval = beir.Retrieval(
    search.queries, search.documents.items(), search.relevance
  )
  worst = search_report.errors(retrieval, found)
  return [_made_worse(search, found), worst] if search.is_ordered else [worst]


def _made_worse(search: Search, found: Rankings) -> Section:
  """Section on the queries whose candidates had a better order."""
  before, after = (
    retrieval_scores.evaluate_queries(search.relevance, rankings)[:, 0]
    for rankings in (search.candidates, found)
  )
  queries, rows = [*search.relevance], []
  order = np.argsort(after - before, kind="stable")
  for index in order[: search_report.NUM_ERRORS]:
    if after[index] < before[index]:
      query = queries[index]
      rows.append(
        {
          "nDCG@10 before": before[index],
          "after": after[index],
          "query": search.queries[query],
          "first before": search.documents[search.candidates[query][0]],
          "first after": search.documents[found[query][0]],
        }
      )
  about = f"{np.sum(after < before)} of {len(queries)} queries are made worse."
  return html_report.table("Made worse", rows, about)
