"""Documents to rank for queries: candidates, run files, orders. No TensorFlow.

A run file of TREC has six columns: the id of a query, Q0, the id of a document,
rank, score and the name of the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data import beir, tables
from bertlib.io import json_files, text_files
from bertlib.io.files import atomic_write
from bertlib.tasks.ranking import ranking_examples

_FIX = "Fix the file, or write it again"

# Id of a query, ids of its documents, the best first, and their logits.
Ranked = tuple[str, Sequence[str], np.ndarray]


class Search(NamedTuple):
  """Queries, and documents to rank for them."""

  queries: Mapping[str, str]  # texts by id
  # Ids and texts, read anew in each iteration.
  corpus: Iterable[tuple[str, str]]
  # Grades by id of query and of relevant document; empty if nothing is judged.
  relevance: Mapping[str, Mapping[str, float]]
  # Ids of documents by id of query, the best first.
  candidates: Mapping[str, Sequence[str]] = {}
  documents: Mapping[str, str] = {}  # their texts
  is_ordered: bool = True  # False where a file has the candidates of a query
  texts: Any = None  # `text_sets.TextSet` of the `pairs`, when it is written

  def with_candidates(self, candidates: Mapping[str, Sequence[str]]) -> Search:
    """Reads the texts of candidates; warns of those that are empty or wrong."""
    candidates = {query: candidates.get(query, ()) for query in self.queries}
    needed = {document for ids in candidates.values() for document in ids}
    found = {id_: text for id_, text in self.corpus if id_ in needed}
    lost = [
      query
      for query, grades in self.relevance.items()
      if grades.keys().isdisjoint(candidates[query])
    ]
    if lost:
      logging.warning(
        "%d of %d queries have no right document among their candidates, such"
        " as %r",
        len(lost),
        len(self.queries),
        self.queries[lost[0]],
      )
    if num_empty := sum(not text for text in found.values()):
      logging.warning("%d documents to rank have no text", num_empty)
    return self._replace(candidates=candidates, documents=found)

  def pairs(self) -> Iterator[tuple[str, str]]:
    """Yields each query with each of its candidates."""
    for query, ids in self.candidates.items():
      for id_ in ids:
        yield self.queries[query], self.documents[id_]

  def ranked(self, logits: Iterable[float]) -> Iterator[Ranked]:
    """Yields queries with their candidates by logit, given those of `pairs`."""
    logits = iter(logits)
    for query, ids in self.candidates.items():
      found = np.array([next(logits) for _ in ids], np.float32)
      # Stable: of equal logits, the better candidate comes first.
      order = np.argsort(-found, kind="stable")
      yield query, [ids[index] for index in order], found[order]


# Reading


def of_folder(
  settings: Any,  # `RankingSettings`
  flag: str,  # names the folder
  is_judged: bool,
) -> Search:
  """The search of a folder in the layout of BEIR."""
  path, run_file = getattr(settings, flag), settings.candidates
  settings.need("candidates", f"{flag}={path}")
  everything = beir.read_unjudged(path)
  found = beir.read(path) if is_judged else everything
  search = Search(found.queries, found.corpus, found.relevance)
  if os.path.isdir(run_file):  # an encoder, which finds them in the run
    return search
  run = read_run(run_file, everything.queries)
  best = {query: ids[: settings.top_k] for query, ids in run.items()}
  search = search.with_candidates(best)
  for query, ids in search.candidates.items():
    for id_ in ids:
      if id_ not in search.documents:
        raise InputError(
          f"{run_file}: the document {id_!r} of query {query!r} is not in the"
          f" corpus of {path}. Use the run and the corpus of one data set"
        )
  return search


def read_run(path: str, queries: Mapping[str, str]) -> dict[str, list[str]]:
  """Reads a run file, in the order of trec_eval: by score, then by id."""
  scores: dict[str, dict[str, float]] = {}
  for number, line in enumerate(text_files.read_lines(path), start=1):
    where, cells = f"{path}, line {number}", line.split()
    if len(cells) != 6:
      raise InputError(
        f"{where}: has {len(cells)} columns, not six: query, Q0, document,"
        f" rank, score, name. {_FIX}"
      )
    query, _, document, _, score, _ = cells
    value, of_query = tables.parse_number(score), scores.setdefault(query, {})
    if query not in queries:
      problem = f"the query {query!r} is not in the queries.jsonl of the folder"
    elif document in of_query:
      problem = f"query {query!r} has the document {document!r} twice"
    elif value is None:
      problem = f"the score {score!r} is not a number"
    else:
      of_query[document] = value
      continue
    raise InputError(f"{where}: {problem}. {_FIX}")
  if not scores:
    raise InputError(f"{path}: is empty. {_FIX}")

  def order(found):
    by_id = sorted(found, reverse=True)
    return sorted(by_id, key=lambda id_: -np.float32(found[id_]))

  return {query: order(found) for query, found in scores.items()}


def of_table(
  settings: Any,  # `RankingSettings`
  bad_rows: dict[str, list[str]],
) -> Search:
  """The search for the right documents among those of each query."""
  path, columns = settings.dev_file, settings.columns
  ranking_examples.has_lists(path, columns)  # refuses other columns
  ids: dict[str, str] = {}  # of queries and documents, by their texts
  relevance: dict[str, dict[str, float]] = {}
  others: dict[str, dict[str, None]] = {}
  for group in ranking_examples.read_table(
    settings, path, columns, None, bad_rows
  ):
    query = ids.setdefault(group.query, f"{len(ids)}")
    for document, label in zip(group.documents, group.labels):
      id_ = ids.setdefault(document, f"{len(ids)}")
      if label > 0:
        relevance.setdefault(query, {})[id_] = label
      else:
        others.setdefault(query, {})[id_] = None
  # The right ones come last: a model that gives equal logits has found none.
  candidates = {
    query: [*(id_ for id_ in others.get(query, ()) if id_ not in found), *found]
    for query, found in relevance.items()
  }
  if max(map(len, candidates.values()), default=0) < 2:
    raise InputError(
      f"{path}: no query has a relevant document and another, so that there is"
      " nothing to rank. Name other columns, or a file with negatives"
    )
  texts = {id_: text for text, id_ in ids.items()}
  queries = {query: texts[query] for query in relevance}
  search = Search(queries, texts.items(), relevance, is_ordered=False)
  return search.with_candidates(candidates)


# Writing


def write_run(path: str, ranked: Iterable[Ranked]) -> None:
  """Writes a run file; scores are float32 and fall."""
  with atomic_write(path) as file:
    for query, ids, logits in ranked:
      last = np.float32(np.inf)
      for rank, (id_, logit) in enumerate(zip(ids, logits), start=1):
        # Programs order equal scores by id; nine digits keep a float32.
        last = min(logit, np.nextafter(last, np.float32(-np.inf)))
        file.write(f"{query} Q0 {id_} {rank} {last:.9g} run_reranker\n")


def write_lines(
  path: str,
  search: Search,
  ranked: Iterable[Ranked],
  activate: Callable[[np.ndarray], np.ndarray],  # makes scores of logits
) -> None:
  """Writes each query with its documents as a line of JSON."""
  with atomic_write(path) as file:
    for query, ids, logits in ranked:
      documents = [
        {"id": id_, "score": float(score), "text": search.documents[id_]}
        for id_, score in zip(ids, activate(logits))
      ]
      line = {"id": query, "query": search.queries[query]}
      line |= {"documents": documents}
      file.write(json_files.dumps(line, ensure_ascii=False) + "\n")
