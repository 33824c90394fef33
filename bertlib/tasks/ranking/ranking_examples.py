"""Queries with their documents, from tables and folders. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data import beir, tables, text_groups
from bertlib.data.text_groups import Columns, Example, kind_of
from bertlib.settings.common import TableSettings

# Kinds of rows that have documents of a query, see `text_groups.kind_of`. Rows
# of the first two have a positive, and any number of negatives.
_OF_POSITIVES = ("pairs", "triplets")
_KINDS = (*_OF_POSITIVES, "labeled_pairs", "scored_pairs")


class Group(NamedTuple):
  """A query with documents."""

  query: str
  documents: Sequence[str]
  labels: Sequence[float]  # of each document; above 0 for a relevant one
  teacher_scores: Sequence[float] | None = None  # of each document


@dataclasses.dataclass
class Groups:
  """Groups of a data set, read anew in each iteration: no text is kept."""

  path: str
  read: Callable[[], Iterator[Group]]
  num_groups: int = 0
  num_documents: int = 0  # of the largest group

  def __iter__(self) -> Iterator[Group]:
    return self.read()

  def __len__(self) -> int:
    return self.num_groups


def has_lists(path: str, columns: Columns) -> bool:
  """True for data in which a query has several documents."""
  return beir.is_beir(path) or _kind(path, columns) in _OF_POSITIVES


def _kind(path: str, columns: Columns) -> str:
  kind = kind_of(columns)
  if kind not in _KINDS:
    raise InputError(
      f"--text_columns={','.join(columns.texts)}: {path} needs a query and its"
      " documents. Name two columns or more"
    )
  return kind


def open_groups(
  path: str,
  columns: Columns,
  loss: str,
  max_score: float,
  text: TableSettings,
  bad_rows: dict[str, list[str]],
) -> Groups:
  """Checks and counts the groups of a file or folder for a loss."""
  if beir.is_beir(path):
    groups = [*_judged_groups(beir.read(path, "train"), loss)]
    found = Groups(path, lambda: iter(groups))
  else:
    found = _open_table(path, columns, loss, max_score, text, bad_rows)
  labels: set[float] = set()
  for group in found:
    _check(path, group, loss)
    labels |= set(group.labels)
    found.num_groups += 1
    found.num_documents = max(found.num_documents, len(group.documents))
  if loss == "bce" and len(labels) == 1:
    raise InputError(
      f"{path}: all pairs have the label {labels.pop():g}, so that --loss=bce"
      " has nothing to learn. Add negatives, which run_embeddings.py"
      " --mine_negatives finds"
    )
  return found


def _check(path: str, group: Group, loss: str) -> None:
  """Refuses a group from which a loss of lists cannot learn."""
  if loss == "bce":
    return
  problem = None
  if not any(group.labels):
    problem = "no relevant document. Remove it"
  elif (loss == "margin_mse" and len(group.documents) == 1) or (
    loss == "listwise" and len({*group.labels}) == 1
  ):
    problem = (
      "no negative. Add some, which run_embeddings.py --mine_negatives finds,"
      " or give --loss=bce"
    )
  if problem:
    raise InputError(f"{path}: the query {group.query!r} has {problem}")


def _judged_groups(found: beir.Retrieval, loss: str) -> Iterator[Group]:
  """The groups of a folder, by its judgments."""
  needed = {
    document: ""
    for judgments in (found.relevance, found.irrelevant)
    for documents in judgments.values()
    for document in documents
  }
  needed = {id_: text for id_, text in found.corpus if id_ in needed}
  for query, text in found.queries.items():
    grades = found.relevance[query] | found.irrelevant.get(query, {})
    grades = {id_: max(g, 0) for id_, g in grades.items() if id_ in needed}
    labels = [
      float(g if loss == "listwise" else g > 0) for g in grades.values()
    ]
    group = Group(text, [needed[id_] for id_ in grades], labels)
    yield from _of_positives([group]) if loss == "margin_mse" else [group]


def _open_table(
  path: str,
  columns: Columns,
  loss: str,
  max_score: float,
  text: TableSettings,
  bad_rows: dict[str, list[str]],
) -> Groups:
  """The groups of a table."""
  kind = _kind(path, columns)

  def read() -> Iterator[Group]:
    rows, example = text_groups.open_table(
      path,
      columns,
      max_score if loss == "bce" else None,
      text.codec,
      text.delimiter,
    )
    bad: list[str] = []
    examples = tables.read_examples(rows, example, text.bad_rows == "skip", bad)
    yield from map(_group, examples)
    bad_rows[path] = bad

  if kind in _OF_POSITIVES:
    return Groups(path, read)
  kept = _without_contradictions(path, read)
  if loss == "bce":
    return Groups(path, kept)
  numbers = Counter(hash(group.query) for group in kept())
  by_query = lambda: _by_query(kept(), numbers)  # noqa: E731
  if loss == "listwise":
    return Groups(path, by_query)
  return Groups(path, lambda: _of_positives(by_query()))


def read_table(
  path: str,
  columns: Columns,
  text: TableSettings,
  bad_rows: dict[str, list[str]],
) -> Iterator[Group]:
  """Yields groups of a table; a query may have several."""
  return iter(_open_table(path, columns, "listwise", 1.0, text, bad_rows))


def _group(example: Example) -> Group:
  """The group of a row."""
  query, *documents = example.texts
  if example.score is not None:
    labels = [example.score]
  elif example.label is not None:
    labels = [float(example.label)]
  else:
    labels = [1.0] + [0.0] * (len(documents) - 1)
  return Group(query, documents, labels, example.list_scores)


def _without_contradictions(
  path: str, read: Callable[[], Iterator[Group]]
) -> Callable[[], Iterator[Group]]:
  """Pairs without those that have another label than an equal one before."""
  is_first = True

  def kept() -> Iterator[Group]:
    nonlocal is_first
    labels: dict[int, float] = {}  # by a hash of the pair
    num_others = 0
    for group in read():
      (label,) = group.labels
      key = hash((group.query, group.documents[0]))
      if labels.setdefault(key, label) == label:
        yield group
      else:
        num_others += 1
    if num_others and is_first:
      logging.warning(
        "%s: %d pairs have another label or score than an equal pair before"
        " them, which counts",
        path,
        num_others,
      )
    is_first = False

  return kept


def _by_query(
  groups: Iterable[Group], numbers: Counter[int]
) -> Iterator[Group]:
  """Joins the groups of each query, which `numbers` counts by its hash."""
  waiting: dict[str, list[Group]] = {}
  for group in groups:
    found = waiting.setdefault(group.query, [])
    found.append(group)
    if len(found) == numbers[hash(group.query)]:
      del waiting[group.query]
      documents = [document for g in found for document in g.documents]
      yield Group(group.query, documents, [x for g in found for x in g.labels])


def _of_positives(groups: Iterable[Group]) -> Iterator[Group]:
  """A group of each positive, which comes first, and all negatives."""
  for group in groups:
    pairs = [*zip(group.documents, group.labels)]
    negatives = [document for document, label in pairs if not label]
    labels = [1.0] + [0.0] * len(negatives)
    for document, label in pairs:
      if label:
        yield Group(group.query, [document, *negatives], labels)


# Pairs to score


def pair_rows(settings: Any) -> tuple[Iterable[Any], Callable[[Any], Any]]:
  """Rows of the --predict_file of `RankingSettings`; the pair of each."""
  path, text = settings.predict_file, settings.text
  names = () if settings.flags.do_train else settings.text_columns or ()
  rows, example = text_groups.open_table(
    path, Columns(names[:2] or ("1", "2")), None, text.codec, text.delimiter
  )
  return rows, lambda row: tuple(example(row).texts)
