"""Rows of tables: TSV, CSV and JSON Lines."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from bertlib import json_files, text_files
from bertlib.errors import InputError
from bertlib.text_files import Encoding

# As in the original, what is not UTF-8 is left out of texts; labels need all.
LENIENT = Encoding("utf-8", "surrogateescape")

# White space around labels, also such as has no width.
_AROUND_LABEL = re.compile(r"^[\s\u200b\u2060\ufeff]+|[\s\u200b\u2060\ufeff]+$")


@dataclasses.dataclass(frozen=True)
class Row(Sequence):
  """A row of a table; also the sequence of its texts.

  Attributes:
    path: the file.
    number: of the row, the first one 1.
    fields: the text of each column, None where it has none; bytes that are
      not UTF-8 are kept as lone surrogates.
    fault: why it has none; None if there are just too few columns.
  """

  path: str
  number: int
  fields: list[str | None]
  fault: str | None = None

  @functools.cached_property
  def texts(self) -> list[str]:
    """The text of every column; none for a blank line."""
    if self.fields == [""]:
      return []
    return [self.text(column) for column in range(len(self.fields))]

  def __getitem__(self, column):
    return self.texts[column]

  def __len__(self) -> int:
    return len(self.texts)

  def text(self, column: int) -> str:
    """The text of a column without what is not UTF-8."""
    return self._field(column).encode("utf-8", "ignore").decode("utf-8")

  def label(self, column: int) -> str:
    """The text of a column, which has to be UTF-8, without space around it."""
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
      raise self.error(
        f"{self.fault or fault}. Mend the row, or leave such rows out with"
        " --bad_rows=skip"
      )
    return field


# Tables


def read_tsv(path: str, encoding: Encoding = LENIENT) -> Iterator[Row]:
  """The rows of a tab-separated file, in which quotes mean nothing.

  Args:
    path: the file; a byte-order mark and CRLF are read.
    encoding: of the file.

  Yields:
    A row a line.

  Raises:
    InputError: the file is missing or empty.
  """
  for number, line in enumerate(read_lines(path, encoding), start=1):
    yield Row(path, number, line.split("\t"))


def read_csv(path: str, encoding: Encoding = LENIENT) -> Iterator[Row]:
  """The rows of a comma-separated file, in which quoted fields may have lines.

  Args:
    path: the file; a byte-order mark and CRLF are read.
    encoding: of the file.

  Yields:
    Its rows, numbered; blank lines are passed over.

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


def read_jsonl(path: str, encoding: Encoding = LENIENT) -> Iterator[Row]:
  """The objects of a JSON-lines file as a table: first a row with the keys.

  Args:
    path: the file; blank lines are passed over.
    encoding: of the file.

  Yields:
    The keys of the first object; then, for each object, its values. A line
    that is no object has none.

  Raises:
    InputError: the file is missing or empty, or its first line no object.
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
    missing = [key for key in keys if values.get(key) is None]
    yield Row(
      path,
      number,
      [as_text(values.get(key)) for key in keys],
      f"has no {', '.join(missing)}" if values else "is not a JSON object",
    )


READERS = {
  ".tsv": read_tsv,
  ".txt": read_tsv,
  ".csv": read_csv,
  ".jsonl": read_jsonl,
  ".json": read_jsonl,
}


def strip_label(label: str) -> str:
  """A label without white space around it, of any kind."""
  return _AROUND_LABEL.sub("", label)


def read_lines(path: str, encoding: Encoding) -> Iterator[str]:
  """Lines without their ends, and without blank ones at the end."""
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
  """The object that a line holds; an empty one if it does not."""
  try:
    return json_files.parse(line, "", dict)
  except InputError:
    return {}


def as_text(value: Any) -> str | None:
  """A value of JSON as the text of a cell; None for null."""
  return value if value is None or isinstance(value, str) else json.dumps(value)
