"""Reads text files: encodings, lines and errors about invalid bytes.

Commands read all text files through this module. Text is UTF-8, with or without
a byte-order mark, unless --encoding says otherwise.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from absl import logging

from bertlib.cli.errors import InputError
from bertlib.io.files import open_any

_BLOCK_BYTES = 2**16  # fits into the processor's cache, which is faster


class Encoding(NamedTuple):
  """An encoding and its error handling."""

  name: str = "utf-8"  # of a Python codec
  # "strict" raises InputError at an invalid byte; "replace" makes it U+FFFD and
  # logs their number; other handlers of Python neither check nor log.
  errors: str = "strict"


UTF8 = Encoding()
# For functions that must behave like google-research/bert, which drops invalid
# bytes.
AS_ORIGINAL = Encoding("utf-8", "ignore")


# The command line


def encoding_of(name: str, errors: str) -> Encoding:
  """Encoding of the values of --encoding and --encoding_errors."""
  return Encoding(codecs.lookup(name).name, errors)


# Reading


def read_lines(
  path: str, encoding: Encoding | None = None, open_file=open_any
) -> Iterator[str]:
  """Yields lines with their line ends; "-" is stdin, .gz is decompressed."""
  for chunk in _read_chunks(path, encoding, open_file, unpacks=True):
    # Only a line feed ends a line; in a file without any, a carriage return.
    yield from io.StringIO(chunk, newline="\n")


def read_utf8_lines(
  path: str, encoding: Encoding | None = None, open_file=open_any
) -> Iterator[bytes]:
  """Reads lines like `read_lines`, each encoded as UTF-8."""
  for chunk in _read_chunks(path, encoding, open_file, unpacks=True):
    yield from io.BytesIO(chunk.encode())


def decode_lines(
  lines: Iterable[bytes], name: str, encoding: Encoding | None = None
) -> Iterator[str]:
  """Decodes lines of bytes as they arrive, for interactive use."""
  decoder = _Decoder(name, encoding)
  rest = ""
  for block in itertools.chain(lines, [b""]):
    *whole, rest = (rest + decoder.decode(block)).split("\n")
    yield from (f"{line}\n" for line in whole)
  yield from io.StringIO(decoder.end_lines(rest), newline="\n")


def read_text(path: str, encoding: Encoding | None = None) -> str:
  """Reads a whole text file, without decompression; see `read_lines`."""
  return "".join(_read_chunks(path, encoding))


def _read_chunks(
  path: str,
  encoding: Encoding | None = None,
  open_file=open_any,
  unpacks: bool = False,
) -> Iterator[str]:
  """Reads text in chunks that end at line ends."""
  decoder = _Decoder("standard input" if path == "-" else path, encoding)
  line: list[str] = []  # parts of a line that is not complete yet
  for block in itertools.chain(_read_blocks(path, open_file, unpacks), [b""]):
    text = decoder.decode(block)
    end = text.rfind("\n") + 1
    if end:
      yield "".join([*line, text[:end]])
      line = []
    line.append(text[end:])
  rest = decoder.end_lines("".join(line))
  if rest:
    yield rest


def _read_blocks(path: str, open_file, unpacks: bool) -> Iterator[bytes]:
  if path == "-":
    yield from iter(lambda: sys.stdin.buffer.read(_BLOCK_BYTES), b"")
    return
  with open_file(path, "rb") as file:
    if not (unpacks and path.endswith(".gz")):
      yield from iter(lambda: file.read(_BLOCK_BYTES), b"")
      return
    try:
      with gzip.open(file) as unpacked:
        yield from iter(lambda: unpacked.read(_BLOCK_BYTES), b"")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      raise InputError(
        f"{path}: not a complete gzip file ({error}). Download or compress it"
        " again"
      ) from error


class _Decoder:
  """Decodes a file block by block; errors name the line and byte."""

  def __init__(self, path: str, encoding: Encoding | None):
    self._path = path
    self._has_flag = encoding is not None
    self._encoding = encoding = encoding or UTF8
    self._is_checked = encoding.errors in ("strict", "replace")
    self._decoder = codecs.getincrementaldecoder(encoding.name)(
      "strict" if self._is_checked else encoding.errors
    )
    self._is_first = True
    self._num_lines = 0  # complete lines so far
    self._line: list[str] = []  # parts of the incomplete line after them
    self._num_replaced = 0

  def decode(self, block: bytes) -> str:
    """Decodes a block; an empty block ends the file."""
    if self._is_first and self._is_checked:
      self._check_mark(block)
    state = self._decoder.getstate()
    try:
      text = self._decoder.decode(block, final=not block)
      if self._is_checked and self._encoding.name != "utf-8":
        text.encode()  # raises at lone surrogates
    except UnicodeError as error:
      if self._encoding.errors != "replace":
        self._refuse(block, state, error)
      text = self._replace(block, state)
    if self._is_checked and "\0" in text:
      self._check_nulls(text)
    if self._is_first and text:
      text, self._is_first = text.removeprefix("\ufeff"), False
    if num_ends := text.count("\n"):
      self._num_lines += num_ends
      self._line = []
    self._line.append(text[text.rfind("\n") + 1 :])
    if not block and self._num_replaced:
      logging.warning(
        "%s: %d byte sequences are not %s, and were replaced by U+FFFD",
        self._path,
        self._num_replaced,
        self._encoding.name,
      )
    return text

  def end_lines(self, rest: str) -> str:
    """Makes line feeds of the carriage returns of a file without line feeds."""
    # `rest` is the text after the last line feed.
    if self._num_lines or "\r" not in rest:
      return rest
    logging.info("%s: its lines end in CR, without LF", self._path)
    return rest.replace("\r", "\n")

  def _replace(self, block: bytes, state) -> str:
    texts = []
    for errors in ("ignore", "replace"):
      self._decoder.setstate(state)
      self._decoder.errors = errors
      texts.append(self._decoder.decode(block, final=not block))
    self._decoder.errors = "strict"
    without, text = texts
    self._num_replaced += text.count("\ufffd") - without.count("\ufffd")
    return text.encode("utf-8", "replace").decode()

  def _check_mark(self, block: bytes) -> None:
    """Raises InputError for the byte-order mark of another encoding."""
    for mark, name in _BYTE_ORDER_MARKS:
      if block.startswith(mark):
        if not self._encoding.name.startswith(name):
          fault = f"begins with the byte-order mark of {name.upper()}"
          raise self._error(1, "", fault, name)
        return

  def _check_nulls(self, text: str) -> None:
    """Raises InputError for a line full of null bytes."""
    lines = "".join([*self._line, text]).split("\n")
    for number, line in enumerate(lines, self._num_lines + 1):
      num_nulls = line.count("\0")
      # UTF-16 has one per space at least; other text may have a few.
      if num_nulls > 1 and 30 * num_nulls >= len(line):
        fault = "has null bytes: this is UTF-16, UTF-32 or no text"
        raise self._error(number, line[: line.index("\0")], fault)

  def _refuse(self, block: bytes, state, error: UnicodeError) -> None:
    """Raises InputError for bytes that are invalid in the encoding."""
    start, invalid = 0, block[:1]
    if isinstance(error, UnicodeDecodeError):  # not UTF-16 without a mark
      # The decoder may have prepended bytes of the previous block.
      start = max(error.start - (len(error.object) - len(block)), 0)
      invalid = error.object[error.start : error.start + 1]
    self._decoder.setstate(state)
    before = "".join([*self._line, self._decoder.decode(block[:start])])
    if not self._num_lines and b"\n" not in block:
      before = before.replace("\r", "\n")  # see `end_lines`
    number = self._num_lines + before.count("\n") + 1
    fault = f"0x{invalid.hex().upper()} is not {self._encoding.name.upper()}"
    if not block:
      fault += ": the file ends within a character"
    raise self._error(number, before[before.rfind("\n") + 1 :], fault)

  def _error(
    self,
    line: int,
    before: str,  # text before the fault, in its line
    fault: str,
    encoding: str | None = None,  # the right one, if it is certain
  ) -> InputError:
    name = self._encoding.name
    byte = len(before.encode(name, "ignore")) - len("".encode(name)) + 1
    fix = "Convert it to UTF-8"
    if encoding == "utf-8":
      fix = "Leave out --encoding"
    elif self._has_flag and encoding:
      fix += f", or give --encoding={encoding}"
    elif self._has_flag:
      fix += ", or name its encoding with --encoding"
    return InputError(f"{self._path}, line {line}, byte {byte}: {fault}. {fix}")


_BYTE_ORDER_MARKS = (
  # UTF-32 first: its mark begins with that of UTF-16.
  (codecs.BOM_UTF32_LE, "utf-32"),
  (codecs.BOM_UTF32_BE, "utf-32"),
  (codecs.BOM_UTF16_LE, "utf-16"),
  (codecs.BOM_UTF16_BE, "utf-16"),
  (codecs.BOM_UTF8, "utf-8"),
)
