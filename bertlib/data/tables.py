"""Rows of tables: TSV, CSV, JSON Lines, Excel, Parquet and Feather."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import difflib
import functools
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar
from unicodedata import normalize

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, needs_package, some_of
from bertlib.io import file_kinds, files, json_files, text_files
from bertlib.io.text_files import Encoding

# As in the original, bytes of texts that are not UTF-8 are dropped; labels must
# be valid UTF-8.
LENIENT = Encoding("utf-8", "surrogateescape")

# The advice of errors about a row.
FIX_ROW = "Fix the row, or skip such rows with --bad_rows=skip"

# The advice for JSON where lines of text are read.
NAMED_JSONL = "Let its name end in .jsonl, with one object per line"

# Usual names of columns: a row of nothing else is a header.
_USUAL_NAME = re.compile(
  r"(text|sentence|sent|question|query|answer|passage|document|premise"
  r"|hypothesis|review|comment|tweet|message|content|title|body|utterance"
  r"|label|class|category|target|sentiment|score|similarity|rating"
  r"|id|guid|index)s?[ _-]?(\d{1,2}|[ab]|text|name|id)?",
  re.IGNORECASE,
)

_BOOLEANS = {"true": "1", "false": "0"}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

# A field of a .csv with a quote that is text, but may be meant as a mark: after
# a backslash, or around the field after white space.
_UNREAD_QUOTE = re.compile(r'(?s).*\\"|\s+"[^"]*"\Z')

# First line of a .csv by which Excel finds the delimiter.
_DELIMITER_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)

# Warnings of quotes that stay, with the file, the number of rows and the first.
_QUOTES_IN_CSV = (
  "%s: %d rows have a backslash before a quote, or white space before a quoted"
  " field, the first is row %d; both stay, and the quotes. Save it with doubled"
  " quotes, without white space"
)
_QUOTES_IN_TSV = (
  "%s: fields of %d rows look quoted, the first is row %d; in .tsv quotes have"
  " no meaning and stay. Save it as .csv if they are not text"
)

# White space around labels, zero-width characters included.
_WHITE_SPACE_AROUND = re.compile(
  r"^[\s\u200b\u2060\ufeff]+|[\s\u200b\u2060\ufeff]+$"
)

# Between the words of a label.
_WORD_SEPARATOR = re.compile(r"(?<=\w)[\s_\u2010-\u2015-]+(?=\w)")


@dataclasses.dataclass(frozen=True)
class Row(Sequence):
  """A row of a table, and the sequence of its texts."""

  path: str
  number: int  # row number, from 1
  # Text of each column, None if it is missing. Bytes that are not UTF-8 are
  # lone surrogates.
  fields: list[str | None]
  fault: str | None = None  # why columns are missing; None: the row is short
  # JSON values of the columns; `fields` are their texts
  values: Sequence[Any] = ()
  line: int | None = None  # line in the file, from 1; None if equal to `number`
  has_decimal_commas: bool = False

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

  def numeral(self, column: int) -> str:
    """The label of a column that is a number, with a decimal point."""
    label = self.label(column)
    has_comma = self.has_decimal_commas and "." not in label
    return label.replace(",", ".") if has_comma else label

  @property
  def where(self) -> str:
    """File and row, and its line if that is another number."""
    has_line = self.line not in (None, self.number)
    line = f" (line {self.line})" if has_line else ""
    return f"{self.path}, row {self.number}{line}"

  def error(self, message: str) -> InputError:
    """An error that names this row."""
    return InputError(f"{self.where}: {message}")

  def _field(self, column: int) -> str:
    length = len(self.fields)
    field = self.fields[column] if -length <= column < length else None
    if field is None:
      fault = f"has {length} columns, but column {column + 1} is needed"
      raise self.error(f"{self.fault or fault}. {FIX_ROW}")
    return field


# Tables


def read_tsv(path: str, encoding: Encoding | None = LENIENT) -> Iterator[Row]:
  """Rows of a tab-separated file, one per line; quotes have no meaning."""
  lines = read_lines(path, encoding, NAMED_JSONL)
  for number, line in enumerate(lines, start=1):
    yield Row(path, number, line.split("\t"))


def read_csv(
  path: str,
  encoding: Encoding | None = LENIENT,
  delimiter: str | None = None,  # None for that of a line `sep=`, or a comma
) -> Iterator[Row]:
  """Rows of a comma-separated file; quoted fields may contain line breaks."""
  # The mark of the file is gone already; files that were joined have more.
  lines = (line.removeprefix("\ufeff") for line in read_lines(path, encoding))
  first, number, line = next(lines), 0, 1
  if declared := _DELIMITER_LINE.fullmatch(first):
    # Excel does not show this line as a row.
    first, number = "", -1
    delimiter = delimiter or declared[1]
  # Excel writes semicolons where the comma is the decimal mark.
  has_commas = delimiter == ";"
  text = (f"{line}\n" for line in itertools.chain([first], lines))
  rows = csv.reader(text, delimiter=delimiter or ",", strict=True)
  # Texts may be longer than csv's default of 128 KB per field.
  csv.field_size_limit(sys.maxsize)
  try:
    for fields in rows:
      number += 1
      if fields:
        yield Row(path, number, fields, None, (), line, has_commas)
      line = rows.line_num + 1
  except csv.Error as error:
    raise Row(path, number + 1, [], line=line).error(
      f"{error}. A quote within a quoted field has to be doubled, not escaped"
      " by a backslash"
    ) from error


def read_jsonl(path: str, encoding: Encoding | None = LENIENT) -> Iterator[Row]:
  """Rows of a JSON Lines file; the first has the keys of the first object."""
  keys: list[str] = []
  for number, line in enumerate(read_lines(path, encoding), start=1):
    line = line.removeprefix("\ufeff")
    if not line.strip():
      continue
    values = json_object(line)
    if not keys:
      keys = list(values)
      if not keys:
        raise InputError(
          f"{path}, row {number}: is not a JSON object. Write one object per"
          " line, without a list"
        )
      yield Row(path, number, keys)
    columns = [values.get(key) for key in keys]
    # Of a line that is not an object, all are.
    missing = [key for key, value in zip(keys, columns) if value is None]
    yield Row(
      path,
      number,
      [as_text(value) for value in columns],
      f"has no {', '.join(missing)}" if values else "is not a JSON object",
      columns,
    )
  if not keys:
    raise InputError(f"{path}: is empty")


def read_workbook(path: str, encoding: Encoding | None = None) -> Iterator[Row]:
  """Rows of the first sheet of an Excel workbook, without blank ones."""
  package = "xlrd" if ending_of(path) == ".xls" else "openpyxl"
  as_it_is = {"header": None, "dtype": object, "na_filter": False}
  sheets = _by_pandas(path, package, "read_excel", sheet_name=None, **as_it_is)
  (name, frame), *others = sheets.items()
  if others:
    unread = some_of([other for other, _ in others])
    logging.warning("%s: the sheet %s is read, not %s", path, name, unread)
  if frame.empty:
    raise InputError(f"{path}: its sheet {name} is empty")
  for number, cells in enumerate(_rows(frame), start=1):
    if any(cells):
      yield Row(path, number, [cell or "" for cell in map(_cell_text, cells)])


def read_columns(path: str, encoding: Encoding | None = None) -> Iterator[Row]:
  """Rows of a Parquet or Feather file; the first has the names of columns."""
  name = f"read_{ending_of(path).removeprefix('.')}"
  frame = _by_pandas(path, "pyarrow", name, dtype_backend="pyarrow")
  if frame.index.names != [None]:
    frame = frame.reset_index()
  names = [*map(str, frame.columns)]
  yield Row(path, 1, names)
  for number, cells in enumerate(_rows(frame), start=1):
    missing = [name for name, cell in zip(names, cells) if cell is None]
    fault = f"has no {', '.join(missing)}"
    yield Row(path, number, [*map(_cell_text, cells)], fault, cells)


def _by_pandas(path: str, package: str, function: str, **options: Any):
  """Result of a pandas function that reads a file and needs `package`."""
  with needs_package(
    f"{path}: needs pandas and {package}: pip install pandas {package}. Or save"
    " it as .csv"
  ):
    import pandas

    with files.open_any(path, "rb") as file:
      content = file.read()
    file_kinds.check_binary(path, content[: 2**16])
    try:
      return getattr(pandas, function)(io.BytesIO(content), **options)
    except ImportError:
      raise
    except Exception as error:  # each format has its own
      fix = "Save it as .csv"
      raise InputError(f"{path}: cannot be read ({error}). {fix}") from error


def _rows(frame) -> Iterator[tuple]:
  """Rows of a pandas.DataFrame, with None for each missing value."""
  columns = []
  for _, column in frame.items():
    pairs = zip(column.tolist(), column.notna())
    cells = [value if is_present else None for value, is_present in pairs]
    present = [cell for cell in cells if cell is not None]
    # pandas makes floats of integers if some are missing.
    if len(present) < len(cells) and all(
      isinstance(cell, float) and cell.is_integer() for cell in present
    ):
      cells = [None if cell is None else int(cell) for cell in cells]
    columns.append(json_files.finite(cells))
  return zip(*columns)


def _cell_text(cell: Any) -> str | None:
  """Text of a value as pandas writes it to a CSV file; lists as JSON."""
  if cell is None or isinstance(cell, (str, list, dict)):
    return as_text(cell)
  return str(cell).removesuffix(" 00:00:00")


def parse_number(text: str) -> float | None:
  """Number that float32 can hold; None if the text is something else."""
  # `float` also takes "1_000", "nan" and digits of any script.
  if not _NUMBER.fullmatch(text.strip()):
    return None
  number = float(text)
  # The largest float32 is just below 2**128.
  return number if abs(number) < 2.0**128 else None


def parse_bit(text: str) -> int | None:
  """0 or 1, written as a number or as true or false; None for other texts."""
  number = parse_number(_BOOLEANS.get(text.lower(), text))
  return int(number) if number in (0, 1) else None


READERS = {
  ".tsv": read_tsv,
  ".txt": read_tsv,
  ".csv": read_csv,
  ".jsonl": read_jsonl,
  ".json": read_jsonl,
  ".xlsx": read_workbook,
  ".xls": read_workbook,
  ".parquet": read_columns,
  ".feather": read_columns,
}

# Other endings may be those of texts, one per line.
TABLE_ENDINGS = (".csv", ".xlsx", ".xls", ".parquet", ".feather")

# Readers whose first row always has the names of the columns.
_WITH_NAMES = (read_jsonl, read_columns)


class DividedRowError(InputError):
  """A part of a row that --bad_rows=skip must not skip alone."""


class Table(NamedTuple):
  """A custom table, and the columns that flags name."""

  path: str
  names: Sequence[str]  # fields of the first row, stripped
  has_names: bool  # whether it names the columns
  columns: list[int | None]  # index of each; None: not named, or not there
  rows: Iterator[Row]  # without a header
  is_tsv: bool

  def check_row(self, row: Row, fix: str = FIX_ROW) -> None:
    """Raises an InputError for a row that is a header, or has another width."""
    if len(row.fields) != len(self.names):
      if self.is_tsv:
        check_not_divided(row, len(self.names))
      raise row.error(f"{_other_width(row, len(self.names))}. {fix}")
    if all(
      strip_label(field or "") == name
      for field, name in zip(row.fields, self.names)
    ):
      if self.has_names:
        raise row.error(f"is the header again. {fix}")
      cells = [self.names[index] for index in self.columns if index is not None]
      if has_usual_names(cells):
        raise row.error(
          "looks like a header, but the columns are given by number. Give the"
          " names of the columns, or remove the row"
        )


def has_usual_names(cells: Iterable[str]) -> bool:
  """True if all cells are usual names of columns."""
  return all(map(_USUAL_NAME.fullmatch, map(strip_label, cells)))


def read_table(
  path: str,
  # Flag and value for each column: a name or a number from 1; None if the flag
  # is not given. A number that is a name in the header is a name.
  columns: Sequence[tuple[str, str | None]],
  encoding: Encoding | None = LENIENT,
  optional: Collection[str] = (),  # flags whose columns may be missing
  # Character between columns, or "\\t"; None for that of the format or, where
  # columns are found by name only so, another.
  delimiter: str | None = None,
  # Flag whose value may be several columns, separated by commas; each of them
  # is in the table's `columns`.
  several: str | None = None,
) -> Table:
  """Reads a table in the format of its file name, TSV if that is unknown."""
  reader = READERS.get(ending_of(path), read_tsv)
  delimiter = (delimiter or "").replace("\\t", "\t")
  is_tsv = reader is read_tsv and delimiter in ("", "\t")
  if delimiter and not is_tsv and reader in (read_tsv, read_csv):
    reader = functools.partial(read_csv, delimiter=delimiter)
  given = ",".join(c for _, c in columns if c is not None).split(",")
  try:
    rows = reader(path, encoding)
    header = next(rows)
    names = [strip_label(field) for field in header.fields]
    has_names = (
      reader in _WITH_NAMES
      or not all(map(is_number, given))
      or _are_numbers_in_order(names)
    )
    found = _find_columns(header, names, has_names, columns, optional, several)
  except InputError:
    needed = [c for flag, c in columns if c and flag not in optional]
    are_numbers = all(map(is_number, ",".join(needed).split(",")))
    may_differ = reader in (read_tsv, read_csv) and not delimiter
    for other in ";\t," if may_differ and not are_numbers else "":
      with contextlib.suppress(InputError):
        table = read_table(path, columns, encoding, optional, other, several)
        logging.info("%s: its columns are separated by %r", path, other)
        return table
    raise
  if not has_names:
    rows = itertools.chain([header], rows)
  is_known = any(
    strip_label(column) in names for column in given if not is_number(column)
  )
  if has_names and not is_known and reader not in _WITH_NAMES:
    logging.warning("%s: the first row, %s, is a header", path, header.fields)
  if reader not in (*_WITH_NAMES, read_workbook):
    rows = _with_warning_of_quotes(path, rows, is_tsv)
  return Table(path, names, has_names, found, rows, is_tsv)


def ending_of(path: str) -> str:
  """Ending of a file's name that says its format, without .gz."""
  return os.path.splitext(path.removesuffix(".gz"))[1].lower()


def holds_objects(path: str, encoding: Encoding | None) -> bool:
  """True for a .jsonl or .json file whose first line is an object."""
  if path == "-" or ending_of(path) not in (".jsonl", ".json"):
    return False
  return bool(json_object(next(read_lines(path, encoding))))


def is_number(column: str) -> bool:
  """True for a column's number, from 1."""
  return column.isascii() and column.isdigit() and int(column) > 0


def _are_numbers_in_order(names: Sequence[str]) -> bool:
  """True for a header of numbers, as pandas writes for unnamed columns."""
  # pandas' column of row numbers, which may come first, has no name.
  numbers = names[1:] if names[0] == "" else names
  return len(numbers) > 1 and any(
    list(numbers) == [*map(str, range(first, first + len(numbers)))]
    for first in (0, 1)
  )


def _find_columns(
  header: Row,
  names: Sequence[str],
  has_names: bool,
  columns: Sequence[tuple[str, str | None]],
  optional: Collection[str],
  several: str | None,
) -> list[int | None]:
  """Index of each column; None if it is not given, or missing and optional."""
  # As soon as one number is a name, all are.
  numbers_are_names = has_names and any(
    column is not None and column.isdigit() and column in names
    for _, column in columns
  )
  found: list[int | None] = []
  for flag, column in columns:
    index = None
    if column is None:
      pass
    elif is_number(column) and not numbers_are_names:
      index = int(column) - 1 if int(column) <= len(names) else None
    elif names.count(column) > 1:
      raise header.error(f"has several columns {column!r}")
    elif strip_label(column) in names:
      index = names.index(strip_label(column))
    if index is None and flag == several and "," in (column or ""):
      parts = [(flag, part.strip()) for part in column.split(",")]
      found += _find_columns(header, names, has_names, parts, optional, None)
      continue
    if index is None and column is not None and flag not in optional:
      fix, known = "", names
      if len(names) == 1:  # perhaps several, with another separator
        fix = ". If that is several columns, give --delimiter"
        known = re.split("[;,\t]", names[0].replace('"', ""))
      needed = (c for flag, c in columns if c and flag not in optional)
      missing = next((c for c in needed if c not in known), "")
      if similar := difflib.get_close_matches(missing, known, n=1):
        fix = f". Did you mean {similar[0]!r}?"
      raise header.error(
        f"there is no column {column!r} for {flag}. The first row has"
        f" {header.fields}{fix}"
      )
    found.append(index)
  return found


# Quotes


def check_not_divided(row: Row, width: int) -> None:
  """Refuses a row of a .tsv that a quoted line break seems to divide."""
  # Its other lines may be whole rows, which --bad_rows=skip would keep.
  opens_quote = any(
    field and '"' in (field[0], field[-1]) and field.count('"') % 2
    for field in row.fields
  )
  if opens_quote and len(row.fields) != width:
    raise DividedRowError(
      f"{row.where}: {_other_width(row, width)}. Quotes have no meaning in"
      " .tsv. Save quoted fields as .csv, or remove the row"
    )


def _other_width(row: Row, width: int) -> str:
  return f"has {len(row.fields)} columns, but the first row has {width}"


def _with_warning_of_quotes(
  path: str, rows: Iterable[Row], is_tsv: bool
) -> Iterator[Row]:
  """Yields rows; then warns of quotes that stay, but were meant as marks."""
  is_unread, warning = _has_unread_quote, _QUOTES_IN_CSV
  if is_tsv:
    is_unread, warning = _looks_quoted, _QUOTES_IN_TSV
  first = number = 0
  for row in rows:
    if is_unread(row):
      first, number = first or row.number, number + 1
    yield row
  if first:
    logging.warning(warning, path, number, first)


def _has_unread_quote(row: Row) -> bool:
  return any(map(_UNREAD_QUOTE.match, row.fields))


def _looks_quoted(row: Row) -> bool:
  """True if all fields are in quotes, or one with doubled quotes in it."""
  quoted = [f[1:-1] for f in row.fields if len(f) > 1 and f[0] == f[-1] == '"']
  return len(quoted) == len(row.fields) > 1 or any(
    '""' in field and '"' not in field.replace('""', "") for field in quoted
  )


# Examples


_Example = TypeVar("_Example")


def read_examples(
  rows: Iterable[Row],
  make_example: Callable[[Row], _Example],  # raises InputError for a bad row
  skip_bad_rows: bool,
  bad: list[str],  # receives the messages of the skipped rows
) -> Iterator[_Example]:
  """Yields the examples of rows, as they are read."""
  for row in rows:
    try:
      example = make_example(row)
    except InputError as error:
      if not skip_bad_rows or isinstance(error, DividedRowError):
        raise
      bad.append(str(error).replace(f". {FIX_ROW}", ""))
      continue
    yield example


def collect_examples(
  path: str,
  rows: Iterable[Row],
  make_example: Callable[[Row], _Example],  # raises InputError for a bad row
  skip_bad_rows: bool,
  # Receives the messages of the skipped rows, by `path`.
  bad_rows: dict[str, list[str]] | None = None,
) -> list[_Example]:
  """Examples of rows, at least one or InputError; logs skipped rows."""
  bad: list[str] = []
  examples = [*read_examples(rows, make_example, skip_bad_rows, bad)]
  if bad_rows is not None:
    bad_rows[path] = bad
  if bad:
    logging.warning("bad rows skipped: %d, the first: %s", len(bad), bad[0])
  if not examples:
    raise InputError(f"{path}: has no examples")
  return examples


def warn_of_forms(path: str, labels: Iterable[str]) -> None:
  """Warns of labels that may be one that is written in two ways."""
  by_form: dict[float | str, str] = {}
  pairs = []
  for name in labels:
    other = by_form.setdefault(_form(name), name)
    if other != name:
      is_seen = normalize("NFC", other) != normalize("NFC", name)
      show = repr if is_seen else ascii
      pairs.append(f"{show(other)} and {show(name)}")
  if pairs:
    logging.warning(
      "%s: labels that may be one written in two ways: %s. Write it in one way",
      path,
      some_of(pairs),
    )


def _form(label: str) -> float | str:
  """Key of a label: a number or text, equal for all ways of writing it."""
  visible = filter(str.isprintable, normalize("NFKC", label).casefold())
  text = _WORD_SEPARATOR.sub(" ", "".join(visible)).strip(" '\".,:;") or label
  number = parse_number(_BOOLEANS.get(text, text.replace(",", ".")))
  return text if number is None else number


def strip_label(label: str) -> str:
  """Removes white space of any kind around a label."""
  return _WHITE_SPACE_AROUND.sub("", label)


def read_lines(
  path: str, encoding: Encoding | None, json_fix: str = ""
) -> Iterator[str]:
  """Lines without line ends and trailing blank lines; InputError if none."""
  num_blank, is_empty = 0, True
  try:
    for line in text_files.read_lines(path, encoding, json_fix):
      line = line.removesuffix("\n").removesuffix("\r")
      if not line:
        num_blank += 1
        continue
      if num_blank:
        yield from itertools.repeat("", num_blank)
        num_blank = 0
      is_empty = False
      yield line
  except OSError as error:
    raise InputError(
      f"{path}: cannot be read ({error.strerror}). Name another file"
    ) from error
  if is_empty:
    raise InputError(f"{path}: is empty")


def json_object(line: str) -> dict[str, Any]:
  """Parses a line as a JSON object; an empty one if it is not."""
  try:
    # Python writes a missing value of a table as NaN.
    return json_files.finite(json_files.parse(line, "", dict))
  except InputError:
    return {}


def as_text(value: Any) -> str | None:
  """Text of a JSON value as a table cell; None for null."""
  return value if value is None or isinstance(value, str) else json.dumps(value)
