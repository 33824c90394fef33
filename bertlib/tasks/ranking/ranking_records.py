"""Queries with their documents, and their TFRecords. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli import terminal
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data import beir, model_inputs, tables, text_groups, tf_records
from bertlib.data.text_groups import Columns, kind_of
from bertlib.io import files
from bertlib.settings.common import LongTextSettings

_MINING = "run_embeddings.py --mine_negatives"


class Group(NamedTuple):
  """A query with documents."""

  query: str
  documents: Sequence[str]
  labels: Sequence[float]  # of each document; above 0 for a relevant one
  teacher_scores: Sequence[float] | None = None  # of each document
  where: str = ""  # its file and first row, if it is of a table


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


# Reading


def has_lists(path: str, columns: Columns) -> bool:
  """True for data in which a row or folder has several documents of a query."""
  if beir.is_beir(path):
    return True
  kind = kind_of(columns)
  if kind in ("texts", "labeled_texts"):
    raise InputError(
      f"--text_columns={','.join(columns.texts)}: {path} needs a query and its"
      " documents. Name two columns or more"
    )
  return kind in ("pairs", "triplets")


def open_groups(
  settings: Any,  # `RankingSettings`
  loss: str,
  bad_rows: dict[str, list[str]],
) -> Groups:
  """Checks and counts the groups of --train_file for a loss."""
  path = settings.train_file
  if beir.is_beir(path):
    if settings.objective.teacher_scores_column:
      raise InputError(
        f"--teacher_scores_column: {path} has no columns. Give --teacher, or a"
        " table"
      )
    read = [*_judged_groups(beir.read(path, "train"), loss)].__iter__
  else:
    if not files.is_plain(path):
      raise InputError(f"--train_file={path}: is read twice. Name a file")
    scores = settings.objective.teacher_scores_column
    columns = settings.columns._replace(list_scores=scores)
    max_score = settings.max_score if loss == "bce" else None
    joins = not has_lists(path, columns) and loss != "bce"

    def read():
      groups = read_table(settings, path, columns, max_score, bad_rows)
      return _by_query(groups) if joins else groups

  has_margins, labels = loss == "margin_mse", set()
  found = Groups(lambda: _for_margins(read()) if has_margins else read())
  for group in found:
    problem = None
    if not any(group.labels):
      problem = "no relevant document. Remove it"
    elif len({*group.labels}) == 1:
      problem = f"no negative. Mine some by {_MINING}, or give --loss=bce"
    if problem and loss != "bce":
      where = group.where or path
      raise InputError(f"{where}: the query {group.query!r} has {problem}")
    labels.update(group.labels)
    found.num_groups += 1
    found.num_documents = max(found.num_documents, len(group.documents))
  if not found.num_groups:
    raise InputError(f"{path}: has no examples")
  if loss == "bce" and len(labels) == 1:
    raise InputError(
      f"{path}: all pairs have the label {labels.pop():g}, so that --loss=bce"
      f" has nothing to learn. Mine negatives by {_MINING}"
    )
  return found


def _judged_groups(found: beir.Retrieval, loss: str) -> Iterator[Group]:
  """The groups of a folder, by its judgments."""
  ids = itertools.chain.from_iterable(found.relevance.values())
  texts = found.texts_of(ids)
  for query, grades in found.relevance.items():
    known: dict[str, float] = {}
    for id_, grade in grades.items():
      if id_ in texts:  # of equal ones the highest grade counts
        known[texts[id_]] = max(grade, known.get(texts[id_], 0))
    # Other losses have labels up to 1.
    labels = [float(g if loss == "listwise" else g > 0) for g in known.values()]
    yield Group(found.queries[query], [*known], labels)


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
  examples = tables.read_examples(
    rows, lambda row: (row.where, example(row)), text.bad_rows == "skip", bad
  )
  for where, ((query, *documents), score, label, scores) in examples:
    labels = [1.0] + [0.0] * (len(documents) - 1)
    if label is not None or score is not None:
      labels = [float(label) if score is None else score]
      key = hash((query, *documents))
      if known.setdefault(key, labels[0]) != labels[0]:
        num_others += 1
        continue
    yield Group(query, documents, labels, scores, where)
  if bad:
    terminal.warn_once(f"bad rows skipped: {len(bad)}, the first: {bad[0]}")
  if num_others:
    terminal.warn_once(
      f"{path}: {num_others} pairs have another label or score than an equal"
      " pair before them, which counts"
    )


def _by_query(groups: Iterable[Group]) -> Iterator[Group]:
  """Joins the groups of each query."""
  joined: dict[str, Group] = {}
  for group in groups:
    scores = None if group.teacher_scores is None else []
    empty = group._replace(documents=[], labels=[], teacher_scores=scores)
    found = joined.setdefault(group.query, empty)
    found.documents.extend(group.documents)
    found.labels.extend(group.labels)
    if scores is not None:
      found.teacher_scores.extend(group.teacher_scores)
  return iter(joined.values())


def _for_margins(groups: Iterable[Group]) -> Iterator[Group]:
  """A group for each positive, with all negatives after it."""
  for group in groups:
    scores = group.teacher_scores or itertools.repeat(None)
    rows = [*zip(group.documents, group.labels, scores)]
    negatives = [row for row in rows if not row[1]]
    positives = [row for row in rows if row[1]]
    if not positives:
      yield group  # which is refused
    for positive in positives:
      documents, labels, scores = map(list, zip(positive, *negatives))
      yield group._replace(
        documents=documents,
        labels=labels,
        teacher_scores=group.teacher_scores and scores,
      )


# Writing


def layout(loss: str | None, num_documents: int, max_seq_length: int):
  """Layout of the records of groups: batches are [B, documents, S]."""
  features = tf_records.token_layout(max_seq_length, num_documents)
  name = "teacher_scores" if loss == "margin_mse" else "labels"
  if loss:
    features[name] = tf_records.Feature((num_documents,), is_float=True)
  return {name: f._replace(varies=True) for name, f in features.items()}


def write_records(
  path: str,
  groups: Iterable[Group],
  features: tf_records.Layout,
  tokenizer: tokenization.Tokenizer,
  cutting: LongTextSettings,  # not in windows
) -> None:
  """Encodes groups as TFRecords, and logs how many documents are cut."""
  max_seq_length = features["input_ids"].shape[-1]
  num_truncated = array("i")

  def records() -> Iterator[dict[str, Any]]:
    to_encode, to_write = itertools.tee(groups)
    pairs = ((g.query, text) for g in to_encode for text in g.documents)
    encoded = model_inputs.encode_pairs(
      tokenizer, pairs, max_seq_length, cutting, pads=False
    )
    for group in to_write:
      rows = [next(encoded) for _ in group.documents]
      num_truncated.extend(row.num_truncated_tokens for row in rows)
      lengths = [row.num_tokens for row in rows]
      values = group._asdict() | {tf_records.NUM_TOKENS: lengths}
      for name in model_inputs.TOKEN_FEATURES:
        values[name] = [x for row in rows for x in getattr(row, name)]
      yield values

  stored = {tf_records.NUM_TOKENS: tf_records.Feature((None,))}
  num_groups = tf_records.write_records(path, records(), features | stored)
  num_cut = sum(map(bool, num_truncated))
  logging.info(
    "%d queries with %d documents written to %s; %.1f%% of these are cut to %d"
    " tokens with the query",
    num_groups,
    len(num_truncated),
    path,
    100 * num_cut / max(len(num_truncated), 1),
    max_seq_length,
  )
