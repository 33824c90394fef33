"""Rows of tables: TSV, CSV and JSON Lines."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from absl import logging

from bertlib import json_files, text_files
from bertlib.errors import InputError
from bertlib.text_files import Encoding

# As in the original, bytes of texts that are not UTF-8 are dropped; labels must
# be valid UTF-8.
LENIENT = Encoding("utf-8", "surrogateescape")

# The advice of errors about a row.
FIX_ROW = "Fix the row, or skip such rows with --bad_rows=skip"

# White space around labels, zero-width characters included.
_WHITE_SPACE_AROUND = re.compile(
  r"^[\s\u200b\u2060\ufeff]+|[\s\u200b\u2060\ufeff]+$"
)


@dataclasses.dataclass(frozen=True)
class Row(Sequence):
  """A row of a table, and the sequence of its texts.

  Attributes:
    path: the file.
    number: row number, from 1.
    fields: the text of each column, None if it is missing; bytes that are not
      UTF-8 are kept as lone surrogates.
    fault: reason for missing columns, for messages; None if the row is short.
    values: the value of each column in JSON Lines, whose texts are `fields`.
  """

  path: str
  number: int
  fields: list[str | None]
  fault: str | None = None
  values: Sequence[Any] = ()

  @functools.cached_property
  def texts(self) -> list[str]:
    """The text of every column; empty for a blank line."""
    if self.fields == [""]:
      return []
    return [self.text(column) for column in range(len(self.fields))]

  def __getitem__(self, column):
    return self.texts[column]

  def __len__(self) -> int:
    return len(self.texts)

  def text(self, column: int) -> str:
    """The text of a column, without bytes that are not UTF-8."""
    return self._field(column).encode("utf-8", "ignore").decode("utf-8")

  def label(self, column: int) -> str:
    """The text of a column, stripped; InputError if it is not UTF-8."""
    label = self._field(column)
    if not label.isprintable() and label != self.text(column):
      raise self.error(f"the label {label!r} is not UTF-8")
    return strip_label(label)

  def error(self, message: str) -> InputError:
    """An error that names this row."""
    return InputError(f"{self.path}, row {self.number}: {message}")

  def _field(self, column: int) -> str:
    length = len(self.fields)
    field = self.fields[column] if -length <= column < length else None
    if field is None:
      fault = f"has {length} columns, but column {column + 1} is needed"
      raise self.error(f"{self.fault or fault}. {FIX_ROW}")
    return field


# Tables


def read_tsv(path: str, encoding: Encoding | None = LENIENT) -> Iterator[Row]:
  """Reads a tab-separated file; quotes have no meaning.

  Args:
    path: the file; may have a byte-order mark and CRLF line ends.
    encoding: encoding of the file; None for UTF-8.

  Yields:
    One row per line.

  Raises:
    InputError: the file is missing or empty.
  """
  for number, line in enumerate(read_lines(path, encoding), start=1):
    yield Row(path, number, line.split("\t"))


def read_csv(path: str, encoding: Encoding | None = LENIENT) -> Iterator[Row]:
  """Reads a comma-separated file; quoted fields may contain line breaks.

  Args:
    path: the file; may have a byte-order mark and CRLF line ends.
    encoding: encoding of the file; None for UTF-8.

  Yields:
    The rows; blank lines are skipped.

  Raises:
    InputError: the file is missing or empty, or a quote is never closed.
  """
  text = io.StringIO("\n".join(read_lines(path, encoding)))
  rows = csv.reader(text, strict=True)
  csv.field_size_limit(sys.maxsize)
  number = 0
  try:
    for fields in rows:
      number += 1
      if fields:
        yield Row(path, number, fields)
  except csv.Error as error:
    raise InputError(f"{path}, row {number + 1}: {error}") from error


def read_jsonl(path: str, encoding: Encoding | None = LENIENT) -> Iterator[Row]:
  """Reads a JSON Lines file as a table whose header is the first keys.

  Args:
    path: the file; blank lines are skipped.
    encoding: encoding of the file; None for UTF-8.

  Yields:
    The keys of the first object; then the values of each object, which are
    missing for a line that is not an object.

  Raises:
    InputError: the file is missing or empty, or its first line is not an
      object.
  """
  keys: list[str] = []
  for number, line in enumerate(read_lines(path, encoding), start=1):
    if not line.strip():
      continue
    values = json_object(line)
    if not keys:
      keys = list(values)
      if not keys:
        raise InputError(f"{path}, row {number}: is not a JSON object")
      yield Row(path, number, keys)
    columns = [values.get(key) for key in keys]
    missing = [key for key, value in zip(keys, columns) if value is None]
    yield Row(
      path,
      number,
      [as_text(value) for value in columns],
      f"has no {', '.join(missing)}" if values else "is not a JSON object",
      columns,
    )


READERS = {
  ".tsv": read_tsv,
  ".txt": read_tsv,
  ".csv": read_csv,
  ".jsonl": read_jsonl,
  ".json": read_jsonl,
}


class Table(NamedTuple):
  """A table of the user's own, and the columns that flags name.

  Attributes:
    path: the file.
    header: the first row.
    columns: index of each column; None if none is named, or it is not there.
    rows: the rows, without a first one that has the names of columns.
  """

  path: str
  header: Row
  columns: list[int | None]
  rows: Iterator[Row]

  def check_width(self, row: Row, fix: str = FIX_ROW) -> None:
    """Raises an InputError if a row has not as many columns as the first."""
    if len(row.fields) != len(self.header.fields):
      raise row.error(
        f"has {len(row.fields)} columns, but the first row has"
        f" {len(self.header.fields)}. {fix}"
      )


def read_table(
  path: str,
  columns: Sequence[tuple[str, str | None]],
  encoding: Encoding | None = LENIENT,
  optional: Collection[str] = (),
) -> Table:
  """Reads a table in the format of its file name, TSV if that is unknown.

  Args:
    path: the file.
    columns: flag and value for each column that is needed: its name, or its
      number from 1; None if the flag is not given.
    encoding: encoding of the file; None for UTF-8.
    optional: flags whose columns may be missing.

  Raises:
    InputError: the file is missing or empty, or a column is not there.
  """
  ending = os.path.splitext(path.removesuffix(".gz"))[1].lower()
  reader = READERS.get(ending, read_tsv)
  rows = reader(path, encoding)
  header = next(rows)
  found = [
    None
    if column is None
    else _find_column(header, column, flag, flag in optional)
    for flag, column in columns
  ]
  has_names = any(
    index is not None and not _is_number(column)
    for (_, column), index in zip(columns, found)
  )
  if not has_names and reader is not read_jsonl:
    rows = itertools.chain([header], rows)
  return Table(path, header, found, rows)


def _is_number(column: str) -> bool:
  """True for a column's number, which is never a name: it may be a label."""
  return column.isdigit() and int(column) > 0


def _find_column(
  header: Row, column: str, flag: str, is_optional: bool
) -> int | None:
  """Index of a column by its name or number; None if it may be missing."""
  if _is_number(column):
    index = int(column) - 1
    if index < len(header.fields):
      return index
  elif header.fields.count(column) > 1:
    raise header.error(f"has several columns {column!r}")
  elif column in header.fields:
    return header.fields.index(column)
  if is_optional:
    return None
  raise header.error(
    f"there is no column {column!r} for {flag}. The first row has"
    f" {header.fields}"
  )


_Example = TypeVar("_Example")


def collect_examples(
  path: str,
  rows: Iterable[Row],
  make_example: Callable[[Row], _Example],
  skip_bad_rows: bool,
) -> list[_Example]:
  """Makes examples of rows; logs how many were skipped.

  Args:
    path: the file, for messages.
    rows: rows of the file, without its header.
    make_example: makes the example of a row, or raises InputError.
    skip_bad_rows: whether to skip rows that raise.

  Returns:
    The examples, at least one.

  Raises:
    InputError: a row is bad and not skipped, or there are no examples.
  """
  examples, bad = [], []
  for row in rows:
    try:
      examples.append(make_example(row))
    except InputError as error:
      if not skip_bad_rows:
        raise
      bad.append(str(error))
  if bad:
    logging.warning("%d bad rows skipped, the first: %s", len(bad), bad[0])
  if not examples:
    raise InputError(f"{path}: has no examples")
  return examples


def strip_label(label: str) -> str:
  """Removes white space of any kind around a label."""
  return _WHITE_SPACE_AROUND.sub("", label)


def read_lines(path: str, encoding: Encoding | None) -> Iterator[str]:
  """Lines of a file without line ends and without trailing blank lines.

  Raises:
    InputError: the file is missing or empty.
  """
  try:
    lines = list(text_files.read_lines(path, encoding))
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({error.strerror})") from error
  while lines and lines[-1] in ("\n", "\r\n", "\r"):
    del lines[-1]
  if not lines:
    raise InputError(f"{path}: is empty")
  for line in lines:
    yield line.removesuffix("\n").removesuffix("\r")


def json_object(line: str) -> dict[str, Any]:
  """Parses a line as a JSON object; an empty one if it is not."""
  try:
    return json_files.parse(line, "", dict)
  except InputError:
    return {}


def as_text(value: Any) -> str | None:
  """Text of a JSON value as a table cell; None for null."""
  return value if value is None or isinstance(value, str) else json.dumps(value)
