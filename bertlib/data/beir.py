"""Queries, a corpus and judgments of relevance, in the file layout of BEIR.

A folder has `corpus.jsonl` with `_id`, `title` and `text`, `queries.jsonl` with
`_id` and `text`, and `qrels/SPLIT.tsv` with the columns `query-id`, `corpus-id`
and `score` (Thakur et al. 2021). Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data import tables
from bertlib.io import files, json_files, text_files

_CORPUS = "corpus.jsonl"
_QUERIES = "queries.jsonl"
_QRELS = "qrels"
# Columns of judgments.
_COLUMNS = ("query-id", "corpus-id", "score")
_FIX = "Fix the file, or download it again"


class Retrieval(NamedTuple):
  """Queries and a corpus, with relevance judgments (qrels)."""

  queries: Mapping[str, str]  # texts by id
  # Id and text of each document; may be larger than the memory. A document with
  # the id of a query is not among the results of that query.
  corpus: Iterable[tuple[str, str]]
  # Grades by id of query and of document, above 0 for a relevant one, of which
  # each query has one. Empty if nothing is judged.
  relevance: Mapping[str, Mapping[str, float]]

  def texts_of(self, ids: Iterable[str]) -> dict[str, str]:
    """Texts of documents by id, in one pass; without those it lacks."""
    needed = {*ids}
    return {id_: text for id_, text in self.corpus if id_ in needed}


@dataclasses.dataclass
class _Corpus:
  """The documents of a folder, read anew in each iteration."""

  folder: str

  def __iter__(self) -> Iterator[tuple[str, str]]:
    for _, id_, text in _read_lines(os.path.join(self.folder, _CORPUS)):
      yield id_, text


def is_beir(path: str) -> bool:
  """True for a folder, and for judgments in the layout of BEIR."""
  corpus = os.path.join(_find_folder(path)[0], _CORPUS)
  return path != "-" and (os.path.isdir(path) or files.exists(corpus))


def _find_folder(path: str, split: str = "test") -> tuple[str, str]:
  """The folder with corpus and queries, and the file of judgments."""
  parent = os.path.dirname(path)
  if os.path.basename(parent) == _QRELS and path.endswith(".tsv"):
    return os.path.dirname(parent), path
  return path, os.path.join(path, _QRELS, f"{split}.tsv")


def data_files(path: str, split: str = "test") -> list[str]:
  """Paths of the files that `read` reads; of other data, that of its file."""
  if not is_beir(path):
    return [path]
  folder, qrels = _find_folder(path, split)
  return [os.path.join(folder, _CORPUS), os.path.join(folder, _QUERIES), qrels]


def read(path: str, split: str = "test") -> Retrieval:
  """Reads queries and judgments, checks the corpus, and logs omissions."""
  # `path` is a folder in the layout of BEIR, or a file in its folder `qrels`.
  folder, qrels = _find_folder(path, split)
  for name in data_files(path, split):
    if not files.exists(name):
      raise InputError(
        f"{name}: no such file. Give a folder with {_CORPUS}, {_QUERIES} and"
        f" {_QRELS}/{split}.tsv, or another file in its {_QRELS}"
      )
  judgments = _read_judgments(qrels)
  queries = _read_queries(folder, judgments)
  num_documents = _check_corpus(folder, judgments)
  relevance: dict[str, dict[str, int]] = {}
  # A document that the corpus lacks counts as not found, as in trec_eval.
  for query, document, grade, _ in judgments:
    relevance.setdefault(query, {})[document] = grade
  found = _judged(queries, _Corpus(folder), relevance)
  if not found.queries:
    raise InputError(
      f"{qrels}: no document is relevant: no score is above 0. {_FIX}"
    )
  logging.info(
    "%s: %d queries, %d documents; %d queries without relevant documents left"
    " out",
    qrels,
    len(found.queries),
    num_documents,
    len(queries) - len(found.queries),
  )
  return found


def _judged(
  texts: Mapping[str, str],
  corpus: Iterable[tuple[str, str]],
  relevance: Mapping[str, Mapping[str, float]],
) -> Retrieval:
  """The search for the queries that have a relevant document."""
  kept = {
    q: grades for q, grades in relevance.items() if max(grades.values()) > 0
  }
  return Retrieval({query: texts[query] for query in kept}, corpus, kept)


def read_unjudged(path: str) -> Retrieval:
  """Reads all queries of a folder, with its corpus."""
  folder, _ = _find_folder(path)
  rows = _read_unique(os.path.join(folder, _QUERIES))
  return Retrieval({id_: text for _, id_, text in rows}, _Corpus(folder), {})


# Judgments


class _Judgment(NamedTuple):
  """Grade of a document for a query, and the row that has it."""

  query: str
  document: str
  grade: int
  row: tables.Row


def _read_judgments(path: str) -> list[_Judgment]:
  """Reads all judgments, those of irrelevant documents too."""
  table = tables.read_table(
    path, [("the judgments", name) for name in _COLUMNS], encoding=None
  )
  judgments: dict[tuple[str, str], _Judgment] = {}
  for row in table.rows:
    table.check_row(row, _FIX)
    query, document, text = (row.text(column) for column in table.columns)
    number = tables.parse_number(text)
    if number is None or number % 1:
      raise row.error(f"the score {text!r} is not an integer. {_FIX}")
    grade = int(number)
    earlier = judgments.get((query, document))
    if earlier and earlier.grade != grade:
      raise row.error(
        f"the score of query {query!r} and document {document!r} is {grade},"
        f" but {earlier.grade} in row {earlier.row.number}. {_FIX}"
      )
    judgments[query, document] = _Judgment(query, document, grade, row)
  if not judgments:
    raise InputError(f"{path}: has no judgments. {_FIX}")
  return [*judgments.values()]


def _missing(judgment: _Judgment, field: str, path: str) -> InputError:
  """The error of a judgment with an id that is not in a file."""
  return judgment.row.error(
    f"{field} {getattr(judgment, field)!r} is not in {path}. Use the"
    f" judgments and the {os.path.basename(path)} of one data set"
  )


def _check_corpus(folder: str, judgments: Sequence[_Judgment]) -> int:
  """Checks a corpus; returns the number of its documents."""
  # Missing documents are logged; if all are missing, that is an error.
  path = os.path.join(folder, _CORPUS)
  missing = {judgment.document for judgment in judgments}
  num_documents = 0
  for _, id_, _ in _read_unique(path):
    missing.discard(id_)
    num_documents += 1
  lost = [judged for judged in judgments if judged.document in missing]
  if len(lost) == len(judgments):
    raise _missing(lost[0], "document", path)
  if lost:
    logging.warning(
      "%s: lacks the documents of %d of %d judgments, such as %r; %d of them"
      " are relevant and count as not found",
      path,
      len(lost),
      len(judgments),
      lost[0].document,
      sum(judged.grade > 0 for judged in lost),
    )
  return num_documents


# Queries and documents


def _read_queries(
  folder: str, judgments: Sequence[_Judgment]
) -> dict[str, str]:
  """Texts of the queries with judgments, by id."""
  path = os.path.join(folder, _QUERIES)
  judged = {judgment.query for judgment in judgments}
  queries = {}
  for number, id_, text in _read_unique(path):
    if id_ in judged:
      if not text:
        raise InputError(
          f"{path}, line {number}: query {id_!r} has no text. {_FIX}"
        )
      queries[id_] = text
  for judgment in judgments:
    if judgment.query not in queries:
      raise _missing(judgment, "query", path)
  return queries


def _read_unique(path: str) -> Iterator[tuple[int, str, str]]:
  """`_read_lines`; raises InputError if an id occurs twice."""
  ids: set[str] = set()
  for number, id_, text in _read_lines(path):
    if id_ in ids:
      raise InputError(
        f"{path}, line {number}: the id {id_!r} is that of an earlier line too."
        f" {_FIX}"
      )
    ids.add(id_)
    yield number, id_, text


def _read_lines(path: str) -> Iterator[tuple[int, str, str]]:
  """Line, id, and title (if any) and text joined by a space, one at a time."""
  schema = {"_id": str, "title?": (str, json_files.NULL), "text": str}
  for number, entry in json_files.parse_lines(
    text_files.read_lines(path), path, schema, _FIX
  ):
    text = f"{entry.get('title') or ''} {entry['text']}"
    yield number, entry["_id"], text.strip()


# Lists


def from_lists(
  # Queries, each with documents and their labels: above 0 for the right ones.
  lists: Iterable[tuple[str, Sequence[str], Sequence[float]]],
) -> Retrieval:
  """Makes a search of lists, in a corpus of all of their documents."""
  # Equal texts have the same id, also that of a query and a document.
  ids: dict[str, str] = {}
  corpus: dict[str, str] = {}
  relevance: dict[str, dict[str, float]] = {}
  for query, documents, labels in lists:
    grades = relevance.setdefault(ids.setdefault(query, str(len(ids))), {})
    for document, label in zip(documents, labels):
      id_ = ids.setdefault(document, str(len(ids)))
      corpus[id_] = document
      grades[id_] = max(label, grades.get(id_, label))
  texts = {id_: text for text, id_ in ids.items()}
  return _judged(texts, corpus.items(), relevance)
