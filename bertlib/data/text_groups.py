"""Readers of groups of texts: pairs, triplets, labeled texts, single texts.

Imports no TensorFlow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bertlib.cli.errors import InputError
from bertlib.data import tables
from bertlib.data.tables import FIX_ROW, Row
from bertlib.io import json_files
from bertlib.settings.common import TableSettings

# Id of a missing negative, where texts have ids.
MISSING = -1


class Columns(NamedTuple):
  """Columns of a file, each by its name or its number from 1.

  Attributes:
    texts: the anchor, the positive, and the hard negatives.
    score: similarity of the two texts, or None.
    label: label of the two texts or of the text, or None.
    list_scores: a list of the scores of all texts but the first, or None.
  """

  texts: Sequence[str]
  score: str | None = None
  label: str | None = None
  list_scores: str | None = None


def kind_of(columns: Columns) -> str:
  """Kind of the rows, by the columns that are named.

  Raises:
    InputError: the columns do not go together, or one is named twice.
  """
  if not columns.texts:
    raise InputError(
      "--text_columns must be given: the columns of the texts, such as"
      " question,answer"
    )
  value = f"--text_columns={','.join(columns.texts)}"
  if not all(columns.texts) or len(set(columns.texts)) < len(columns.texts):
    raise InputError(
      f"{value}: has an empty or repeated name. Name each column once"
    )
  has_score, has_label = columns.score is not None, columns.label is not None
  kinds = {
    # Two texts that belong together are a pair; with more that do not belong to
    # the first (hard negatives), a triplet.
    (1, False, False): "texts",
    (1, False, True): "labeled_texts",
    (2, False, False): "pairs",
    (2, True, False): "scored_pairs",
    (2, False, True): "labeled_pairs",
    (3, False, False): "triplets",
  }
  kind = kinds.get((min(len(columns.texts), 3), has_score, has_label))
  if kind is None:
    raise InputError(
      f"{value} with --score_column={columns.score or ''} and"
      f" --label_column={columns.label or ''}: a score belongs to two texts, a"
      " label to one or two. Name the columns of one kind of data"
    )
  return kind


class Example(NamedTuple):
  """One row of a file; its texts have no white space around them."""

  # The anchor, the positive and any number of hard negatives; two texts of a
  # scored or labeled pair; or a single text.
  texts: list[str]
  score: float | None = None  # similarity of a pair, from 0 to 1
  label: str | None = None  # "1" or "0" of a pair, or the class of a text
  list_scores: list[float] | None = None  # of all texts but the first


def read_examples(
  path: str,
  columns: Columns,  # also decide what its rows are, see `kind_of`
  max_score: float,  # of two texts that mean the same; others have 0
  text: TableSettings,
  bad_rows: dict[str, list[str]] | None = None,
) -> list[Example]:
  """Reads the rows of a .tsv, .csv or .jsonl file, at least one."""
  examples = tables.collect_examples(
    path,
    *open_table(path, columns, max_score, text),
    text.bad_rows == "skip",
    bad_rows,
  )
  if kind_of(columns) == "labeled_texts":
    counts = Counter(example.label for example in examples)
    if max(counts.values()) == 1 or len(counts) == 1:
      raise InputError(
        f"{path}: {len(examples)} texts have {len(counts)} labels, but two"
        " labels or more are needed, and two texts of one label. Is"
        " --label_column the right one?"
      )
    tables.warn_of_forms(path, sorted(counts))
  return examples


def open_table(
  path: str,
  columns: Columns,
  max_score: float | None,  # None: scores have no limit and stay as they are
  text: TableSettings,
) -> tuple[Iterator[Row], Callable[[Row], Example]]:
  """The rows of a table, and a function that makes the example of each."""
  # A hard negative may be missing: an empty cell, or null in JSON Lines, whose
  # first line has all columns, and where a list holds any number of negatives.
  kind = kind_of(columns)
  table = tables.read_table(
    path,
    [
      *(("--text_columns", name) for name in columns.texts),
      ("--score_column", columns.score),
      ("--label_column", columns.label),
      ("--teacher_scores_column", columns.list_scores),
    ],
    text.codec,
    delimiter=text.delimiter,
  )
  *text_columns, score_column, label_column, list_column = table.columns

  def example(row: Row) -> Example:
    table.check_row(row)
    texts = _texts(row, columns.texts, text_columns)
    score = label = list_scores = None
    if score_column is not None:
      score = _score(row, row.numeral(score_column), max_score)
    if label_column is not None:
      label = _label(row, label_column, kind)
    if list_column is not None:
      list_scores = _list_scores(row, list_column, len(texts) - 1)
    return Example(texts, score, label, list_scores)

  return table.rows, example


def _texts(row: Row, names: Sequence[str], columns: Sequence[int]) -> list[str]:
  """The texts of a row, without missing negatives."""
  texts = []
  for name, column in zip(names[:2], columns):
    if row.values and isinstance(row.values[column], (list, dict)):
      raise row.error(f"{name!r} is not a text. {FIX_ROW}")
    texts.append(tables.strip_label(row.text(column)))
    if not texts[-1]:
      one_sided = "" if len(columns) == 1 else ": a pair needs both texts"
      raise row.error(f"{name!r} is empty{one_sided}. {FIX_ROW}")
  for name, column in zip(names[2:], columns[2:]):
    for text in _negatives(row, name, column):
      if text in texts[:2]:
        role = names[texts.index(text)]
        raise row.error(f"{name!r} has the same text as {role!r}. {FIX_ROW}")
      texts.append(text)
  return texts


def _negatives(row: Row, name: str, column: int) -> Iterator[str]:
  """The negatives in a cell: a text, a list of texts, or nothing."""
  value = row.values[column] if row.values else None
  if isinstance(value, list):
    for text in value:
      if not isinstance(text, str) or not tables.strip_label(text):
        raise row.error(f"{name!r} is not a list of texts. {FIX_ROW}")
      yield tables.strip_label(text.encode("utf-8", "ignore").decode())
  elif isinstance(value, dict):
    raise row.error(f"{name!r} is not a text. {FIX_ROW}")
  elif row.fields[column] is not None:
    text = tables.strip_label(row.text(column))
    if text:
      yield text


def _score(row: Row, text: str, max_score: float | None) -> float:
  """Scales a score to the range from 0 to 1, or takes one of 0 or more."""
  score = tables.parse_number(text)
  if score is None:
    raise row.error(f"the score {text!r} is not a number. {FIX_ROW}")
  if max_score is None and score >= 0:
    return score
  if max_score is None:
    raise row.error(f"the score {text} is below 0. {FIX_ROW}")
  if not 0 <= score <= max_score:
    raise row.error(
      f"the score {text} is not between 0 and {max_score:g}. Give the highest"
      " score by --max_score, or fix the row"
    )
  return score / max_score


def _list_scores(row: Row, column: int, number: int) -> list[float]:
  """The list of scores in a cell, one for each of `number` texts."""
  text = row.text(column)
  scores = json_files.parse(text, row.where, fix=FIX_ROW)
  problem = json_files.mismatch(scores, [float])
  if problem or not all(map(math.isfinite, scores)) or len(scores) != number:
    raise row.error(
      f"{text!r} is not a list of {number} numbers, one for each text but the"
      f" first. {FIX_ROW}"
    )
  return scores


def _label(row: Row, column: int, kind: str) -> str:
  """The label of a text, or 0 or 1 for a pair; InputError for others."""
  label = row.label(column)
  if kind == "labeled_pairs":
    if (bit := tables.parse_bit(row.numeral(column))) is not None:
      return str(bit)
    raise row.error(
      f"the label {label!r} of the pair is not 1 (the texts belong together) or"
      f" 0. {FIX_ROW}"
    )
  if not label:
    raise row.error(f"the label is empty. {FIX_ROW}")
  return label


def text_rows(
  path: str,  # "-" for standard input; a .csv file is a table
  settings: TableSettings,
  columns: Sequence[str] | None = None,  # a table needs a single one
) -> tuple[Iterable[Any], Callable[[Any], str]]:
  """The rows or lines of a file, and a function that gives the text of each."""
  is_table = path != "-" and tables.ending_of(path) in tables.TABLE_ENDINGS
  if is_table or tables.holds_objects(path, settings.codec):
    if len(columns or ()) != 1:
      raise InputError(
        f"{path}: is a table. Name the column of its texts by --text_columns,"
        " or give a file of one text per line"
      )
    rows, example = open_table(path, Columns(columns), 1.0, settings)
    return rows, lambda row: example(row).texts[0]

  def text(numbered):
    number, line = numbered
    if found := tables.strip_label(line):
      return found
    raise InputError(
      f"{path}, line {number}: is empty. Remove the line, or write a text"
    )

  lines = tables.read_lines(path, settings.codec, tables.NAMED_JSONL)
  return enumerate(lines, start=1), text


def read_texts(
  path: str,
  settings: TableSettings,
  columns: Sequence[str] | None = None,
  bad_rows: dict[str, list[str]] | None = None,
) -> list[str]:
  """Reads texts, one per line, without white space around them."""
  rows = text_rows(path, settings, columns)
  skips = settings.bad_rows == "skip"
  return tables.collect_examples(path, *rows, skips, bad_rows)
