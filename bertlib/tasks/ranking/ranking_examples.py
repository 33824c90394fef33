"""Queries with their documents, from tables and folders. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.data import beir, tables, text_groups
from bertlib.data.text_groups import Columns, kind_of

# Kinds of rows that have documents of a query, see `text_groups.kind_of`. Rows
# of the first two have a positive, and any number of negatives.
_OF_POSITIVES = ("pairs", "triplets")
_KINDS = (*_OF_POSITIVES, "labeled_pairs", "scored_pairs")

_MINING = "run_embeddings.py --mine_negatives"


class Group(NamedTuple):
  """A query with documents."""

  query: str
  documents: Sequence[str]
  labels: Sequence[float]  # of each document; above 0 for a relevant one
  teacher_scores: Sequence[float] | None = None  # of each document


@dataclasses.dataclass
class Groups:
  """Groups of a data set, read anew in each iteration."""

  # So the texts of a table are not in memory.
  read: Callable[[], Iterator[Group]]
  num_groups: int = 0
  num_documents: int = 0  # of the largest group

  def __iter__(self) -> Iterator[Group]:
    return self.read()

  def __len__(self) -> int:
    return self.num_groups


def has_lists(path: str, columns: Columns) -> bool:
  """True for data in which a row or folder has several documents of a query."""
  if beir.is_beir(path):
    return True
  kind = kind_of(columns)
  if kind not in _KINDS:
    raise InputError(
      f"--text_columns={','.join(columns.texts)}: {path} needs a query and its"
      " documents. Name two columns or more"
    )
  return kind in _OF_POSITIVES


def open_groups(
  settings: Any,  # `RankingSettings`
  loss: str,
  bad_rows: dict[str, list[str]],
) -> Groups:
  """Checks and counts the groups of --train_file for a loss."""
  path, columns = settings.train_file, settings.columns
  if beir.is_beir(path):
    groups = [*_judged_groups(beir.read(path, "train"), loss)]
    found = Groups(lambda: iter(groups))
  else:
    scores = settings.objective.teacher_scores_column
    max_score = settings.max_score if loss == "bce" else None
    arguments = settings, path, columns._replace(list_scores=scores), max_score
    found = Groups(lambda: read_table(*arguments, bad_rows))
    if loss != "bce" and not has_lists(path, columns):
      rows = found.read
      found.read = lambda: _for_loss(loss, _by_query(rows()))
  labels: set[float] = set()
  for group in found:
    _check(path, group, loss)
    labels.update(group.labels)
    found.num_groups += 1
    found.num_documents = max(found.num_documents, len(group.documents))
  if loss == "bce" and len(labels) == 1:
    raise InputError(
      f"{path}: all pairs have the label {labels.pop():g}, so that --loss=bce"
      f" has nothing to learn. Mine negatives by {_MINING}"
    )
  return found


def _check(path: str, group: Group, loss: str) -> None:
  """Refuses a group from which a loss of lists cannot learn."""
  problem = None
  if not any(group.labels):
    problem = "no relevant document. Remove it"
  elif len({*group.labels}) == 1:
    problem = f"no negative. Mine some by {_MINING}, or give --loss=bce"
  if problem and loss != "bce":
    raise InputError(f"{path}: the query {group.query!r} has {problem}")


def _judged_groups(found: beir.Retrieval, loss: str) -> Iterator[Group]:
  """The groups of a folder, by its judgments."""
  judged = {
    query: found.relevance[query] | found.irrelevant.get(query, {})
    for query in found.queries
  }
  needed = {id_ for grades in judged.values() for id_ in grades}
  texts = {id_: text for id_, text in found.corpus if id_ in needed}
  for query, grades in judged.items():
    known = {texts[id_]: max(g, 0) for id_, g in grades.items() if id_ in texts}
    # The others have labels up to 1.
    labels = [float(g if loss == "listwise" else g > 0) for g in known.values()]
    yield from _for_loss(loss, [Group(found.queries[query], [*known], labels)])


def read_table(
  settings: Any,  # `RankingSettings`
  path: str,
  columns: Columns,
  max_score: float | None,  # None for scores of any size
  bad_rows: dict[str, list[str]],
) -> Iterator[Group]:
  """Yields the groups of rows, without pairs that contradict earlier ones."""
  text, bad = settings.text, bad_rows.setdefault(path, [])
  rows, example = text_groups.open_table(path, columns, max_score, text)
  known: dict[int, float] = {}  # labels of pairs, by their hash
  num_others, bad[:] = 0, []
  for (query, *documents), score, label, scores in tables.read_examples(
    rows, example, text.bad_rows == "skip", bad
  ):
    labels = [1.0] + [0.0] * (len(documents) - 1)
    if label is not None or score is not None:
      labels = [float(label) if score is None else score]
      key = hash((query, *documents))
      if known.setdefault(key, labels[0]) != labels[0]:
        num_others += 1
        continue
    yield Group(query, documents, labels, scores)
  if num_others:
    terminal.warn_once(
      f"{path}: {num_others} pairs have another label or score than an equal"
      " pair before them, which counts"
    )


def _by_query(groups: Iterable[Group]) -> Iterator[Group]:
  """Joins the groups of each query."""
  joined: dict[str, Group] = {}
  for query, documents, labels, _ in groups:
    found = joined.setdefault(query, Group(query, [], []))
    found.documents.extend(documents)
    found.labels.extend(labels)
  return iter(joined.values())


def _for_loss(loss: str, groups: Iterable[Group]) -> Iterator[Group]:
  """Groups; for margins one for each positive, with all negatives after it."""
  for group in groups:
    if loss != "margin_mse":
      yield group
      continue
    pairs = [*zip(group.documents, group.labels)]
    negatives = [document for document, label in pairs if not label]
    labels = [1.0] + [0.0] * len(negatives)
    for document, label in pairs:
      if label:
        yield Group(group.query, [document, *negatives], labels)


# Pairs to score


def pair_rows(
  settings: Any,  # `RankingSettings`
) -> tuple[Iterable[Any], Callable[[Any], tuple[str, ...]]]:
  """Rows of --predict_file, and a function that gives the pair of each."""
  names = () if settings.flags.do_train else settings.text_columns or ()
  columns = Columns(names[:2] or ("1", "2"))
  rows, example = text_groups.open_table(
    settings.predict_file, columns, None, settings.text
  )
  return rows, lambda row: tuple(example(row).texts)
