"""Reads text files: encodings, lines and errors about invalid bytes.

Commands read all text files through this module. Text is UTF-8, with or without
a byte-order mark, unless --encoding says otherwise.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.io import file_kinds
from bertlib.io.files import open_any

_BLOCK_BYTES = 2**16  # fits into the processor's cache, which is faster

_BYTE_ORDER_MARKS = (
  # UTF-32 first: its mark begins with that of UTF-16.
  (codecs.BOM_UTF32_LE, "utf-32"),
  (codecs.BOM_UTF32_BE, "utf-32"),
  (codecs.BOM_UTF16_LE, "utf-16"),
  (codecs.BOM_UTF16_BE, "utf-16"),
  (codecs.BOM_UTF8, "utf-8"),
)


class Encoding(NamedTuple):
  """An encoding and its error handling."""

  name: str = "utf-8"  # of a Python codec
  # "strict" raises InputError at an invalid byte; other handlers of Python do
  # not check.
  errors: str = "strict"


UTF8 = Encoding()
# For functions that must behave like google-research/bert, which drops invalid
# bytes.
AS_ORIGINAL = Encoding("utf-8", "ignore")

# Characters that separate columns or lines.
_SEPARATORS = dict.fromkeys(
  map(ord, "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"), " "
)

# Separates the two texts of a pair on one line.
SEPARATOR = " ||| "


def tsv_line(cells: Iterable[str]) -> str:
  """A line of a .tsv file; tabs and line breaks in cells become spaces."""
  return "\t".join(cell.translate(_SEPARATORS) for cell in cells) + "\n"


# Reading


def read_lines(
  path: str, encoding: Encoding | None = None, json_fix: str = ""
) -> Iterator[str]:
  """Yields lines with their line ends; "-" is stdin, .gz is decompressed."""
  for text in read_chunks(path, encoding):
    if json_fix:  # the advice of an error about JSON
      check_not_json(path, text, json_fix)
      json_fix = ""
    # Only a line feed ends a line; in a file without any, a carriage return.
    yield from io.StringIO(text, newline="\n")


def read_pairs(
  path: str, encoding: Encoding | None = None
) -> Iterator[tuple[str, str | None]]:
  """Reads (text_a, text_b) of each line, blank ones included; "-" is stdin."""
  fix = "Write its texts to a file, one per line"
  for line in read_lines(path, encoding, fix):
    yield split_pair(line.strip())


def split_pair(text: str) -> tuple[str, str | None]:
  """Splits at the last separator: (text_a, text_b), or (text, None)."""
  text_a, separator, text_b = text.rpartition(SEPARATOR)
  return (text_a, text_b) if separator else (text, None)


def read_text(path: str, encoding: Encoding | None = None) -> str:
  """Reads a whole text file, without decompression; see `read_lines`."""
  return "".join(_Decoder(path, encoding).decode(_read_blocks(path)))


def read_chunks(
  path: str, encoding: Encoding | None, open_file=open_any
) -> Iterator[str]:
  """Yields text in chunks that end at line ends; see `read_lines`."""
  blocks = _read_blocks(path, open_file, unpacks=path.endswith(".gz"))
  name = "standard input" if path == "-" else path
  return _Decoder(name, encoding).decode(blocks)


def _read_blocks(
  path: str, open_file=open_any, unpacks: bool = False
) -> Iterator[bytes]:
  if path == "-":
    yield from iter(lambda: sys.stdin.buffer.read(_BLOCK_BYTES), b"")
    return
  with open_file(path, "rb") as file:
    if not unpacks:
      yield from iter(lambda: file.read(_BLOCK_BYTES), b"")
      return
    try:
      with gzip.open(file) as unpacked:
        yield from iter(lambda: unpacked.read(_BLOCK_BYTES), b"")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      file.seek(0)
      start = file.read(_BLOCK_BYTES)
      if not start.startswith(b"\x1f\x8b"):
        file_kinds.check(path, start)
      raise InputError(
        f"{path}: not a complete gzip file ({error}). Download or compress it"
        " again"
      ) from error


def check_not_json(path: str, text: str, fix: str) -> None:
  """Refuses a file whose text begins with JSON."""
  if is_json(text):
    raise InputError(f"{path}: is JSON, not lines of text. {fix}")


# The first key of an object, which may be in a list.
_FIRST_KEY = re.compile(r'\s*\[?\s*\{\s*"(?:[^"\\\n]|\\.)*"\s*:')


def is_json(text: str) -> bool:
  """True if the first line of a text is JSON, or begins JSON of many lines."""
  if not _FIRST_KEY.match(text):
    return False
  line = text.lstrip().partition("\n")[0].strip()
  try:
    return line in ("{", "[", "[{") or json.loads(line) is not None
  except ValueError:
    return False


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
  """Joins blocks to chunks that end at line ends."""
  line = []  # parts of a line that is not complete yet
  for block in blocks:
    end = block.rfind(b"\n") + 1
    if end:
      yield b"".join([*line, block[:end]])
      line = []
    line.append(block[end:])
  yield b"".join(line)


class _Decoder:
  """Decodes a file; errors name the line and byte."""

  def __init__(self, path: str, encoding: Encoding | None):
    self._path = path
    self._has_flag = encoding is not None
    self._name, self._errors = encoding or UTF8
    self._is_checked = self._errors == "strict"
    self._num_lines = 0  # so far

  def decode(self, blocks: Iterable[bytes]) -> Iterator[str]:
    """Yields text in chunks that end at line ends."""
    blocks = iter(blocks)
    first = next(blocks, b"")
    file_kinds.check(self._path, first)
    if self._is_checked:
      self._check_mark(first)
    blocks, codec = itertools.chain([first], blocks), self._name
    # In UTF-16 a byte of that value is no line feed.
    if "\n".encode(codec) != b"\n":
      blocks, codec = self._as_utf8(blocks), "utf-8"
    for chunk in _whole_lines(blocks):
      if not self._num_lines and not chunk.endswith(b"\n") and b"\r" in chunk:
        logging.info("%s: its lines end in CR, without LF", self._path)
        chunk = chunk.replace(b"\r", b"\n")
      text = self._decode_lines(chunk, codec)
      yield text if self._num_lines else text.removeprefix("\ufeff")
      self._num_lines += chunk.count(b"\n")

  def _as_utf8(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
    try:
      for text in codecs.iterdecode(blocks, self._name, self._errors):
        yield text.encode()
    except UnicodeError as error:
      fault = f"is not {self._name.upper()}"
      raise InputError(f"{self._path}: {fault}. {self._fix()}") from error

  def _decode_lines(self, chunk: bytes, codec: str) -> str:
    """Decodes whole lines, and checks them."""
    if not self._is_checked:
      return chunk.decode(codec, self._errors)
    try:
      text = chunk.decode(codec)
      if codec != "utf-8":
        text.encode()  # raises at lone surrogates
    except UnicodeError as error:
      fault = f"0x{chunk[error.start]:02X} is not {self._name.upper()}"
      if error.reason == "unexpected end of data":
        fault += ": the file ends within a character"
      raise self._error(chunk[: error.start], fault) from error
    if "\0" in text:
      self._check_nulls(chunk)
    return text

  def _check_mark(self, first: bytes) -> None:
    """Raises InputError for the byte-order mark of another encoding."""
    for mark, name in _BYTE_ORDER_MARKS:
      if first.startswith(mark):
        if not self._name.startswith(name):
          fault = f"begins with the byte-order mark of {name.upper()}"
          raise self._error(b"", fault, name)
        return

  def _check_nulls(self, chunk: bytes) -> None:
    """Raises InputError for a line full of null bytes."""
    start = 0
    for line in io.BytesIO(chunk):
      num_nulls = line.count(b"\0")
      # UTF-16 has one per space at least; other text may have a few.
      if num_nulls > 1 and 30 * num_nulls >= len(line):
        fault = "has null bytes: this is UTF-16, UTF-32 or no text"
        raise self._error(chunk[: start + line.index(b"\0")], fault)
      start += len(line)

  def _error(
    self,
    before: bytes,  # of the chunk, before the fault
    fault: str,
    encoding: str | None = None,  # the right one, if it is certain
  ) -> InputError:
    line = self._num_lines + before.count(b"\n") + 1
    byte = len(before) - before.rfind(b"\n")
    where = f"line {line}, byte {byte}"
    return InputError(f"{self._path}, {where}: {fault}. {self._fix(encoding)}")

  def _fix(self, encoding: str | None = None) -> str:
    if encoding == "utf-8":
      return "Leave out --encoding"
    if not self._has_flag:
      return "Convert it to UTF-8"
    flag = f"give --encoding={encoding}"
    if encoding is None:
      flag = "name its encoding with --encoding"
    return f"Convert it to UTF-8, or {flag}"
