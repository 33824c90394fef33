"""Reads text files: encodings, lines and errors about invalid bytes.

Commands read all text files through this module. Text is UTF-8, with or without
a byte-order mark, unless --encoding says otherwise.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import re
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
    self._head = b""
    self._is_first = True
    self._is_ascii = True
    self._num_lines = 0  # complete lines so far
    self._line: list[str] = []  # parts of the incomplete line after them
    self._num_replaced = 0

  def decode(self, block: bytes) -> str:
    """Decodes a block; an empty block ends the file."""
    if self._is_first and block:
      self._head = block[:4096]
      if self._is_checked:
        self._check_head()
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
    self._is_ascii = self._is_ascii and text.isascii()
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

  def _check_head(self) -> None:
    """Raises InputError if the file cannot be text in the encoding."""
    head, name = self._head, self._encoding.name
    file_format = _known_format(head)
    is_wide = name.startswith(("utf-16", "utf-32"))
    if file_format:
      raise self._error(1, 1, f"this is {file_format}, not text")
    for mark, shown, codec in _BYTE_ORDER_MARKS:
      if head.startswith(mark):
        if not name.startswith(codec):
          raise self._error(
            1, 1, f"begins with the byte-order mark of {shown}", codec
          )
        return
    if is_wide and head.isascii() and b"\0" not in head:
      raise self._error(
        1, 1, f"has a byte per character, unlike {name}", "utf-8"
      )

  def _check_nulls(self, text: str) -> None:
    """Raises InputError for UTF-16 and binary data; single nulls are text."""
    name = _wide_encoding(self._head)
    lines = "".join([*self._line, text]).split("\n")
    for number, line in enumerate(lines, self._num_lines + 1):
      num_nulls = line.count("\0")
      if (name and num_nulls) or (num_nulls > 1 and 5 * num_nulls >= len(line)):
        content = (
          f"probably {name.upper()}" if name else "binary data, not text"
        )
        fault = f"has null bytes: this is {content}"
        byte = len(line[: line.find("\0")].encode("utf-8", "ignore")) + 1
        raise self._error(number, byte, fault, name)

  def _refuse(self, block: bytes, state, error: UnicodeError) -> None:
    """Raises InputError for bytes that are invalid in the encoding."""
    if not isinstance(error, UnicodeDecodeError):  # UTF-16 without a mark
      fault = f"0x{block[0]:02X} is not {self._encoding.name.upper()}"
      raise self._error(self._num_lines + 1, 1, fault)
    # The decoder may have prepended bytes of the previous block.
    start = error.start - (len(error.object) - len(block))
    self._decoder.setstate(state)
    text = self._decoder.decode(block[: max(start, 0)])
    before = "".join([*self._line, text])
    if not self._num_lines and b"\n" not in block:
      before = before.replace("\r", "\n")  # see `end_lines`
    number = self._num_lines + before.count("\n") + 1
    line = before[before.rfind("\n") + 1 :]
    name = self._encoding.name
    byte = len(line.encode(name, "ignore")) - len("".encode(name)) + 1
    fault = f"0x{error.object[error.start]:02X} is not {name.upper()}"
    if name != "utf-8":
      raise self._error(number, byte, fault)
    if not block and not self._is_ascii:
      raise self._error(
        number, byte, f"{fault}: the file ends within a character"
      )
    codec = _wide_encoding(self._head)
    content = f"probably {codec and codec.upper()}"
    if not codec:
      context = error.object[max(error.start - 1000, 0) : error.start + 3000]
      content, codec = _probable_encoding(context)
    raise self._error(number, byte, f"{fault}; this is {content}", codec)

  def _error(
    self, line: int, byte: int, fault: str, encoding: str | None = None
  ) -> InputError:
    fix = "Name a text file, or convert this one to UTF-8"
    if encoding == "utf-8":
      fix = "Leave out --encoding"
    elif encoding and self._has_flag:
      fix = f"Convert it to UTF-8, or give --encoding={encoding}"
    elif encoding:
      fix = f"Convert it from {encoding} to UTF-8"
    return InputError(f"{self._path}, line {line}, byte {byte}: {fault}. {fix}")


# Guessing formats and encodings

# First bytes of other file formats.
_FORMATS = (
  (b"\x1f\x8b", "a gzip file, which has to be unpacked"),
  (b"PK\x03\x04", "a zip archive, as office documents are"),
  (b"\x89PNG\r\n", "a PNG image"),
  (b"\xff\xd8\xff", "a JPEG image"),
  (b"GIF87a", "a GIF image"),
  (b"GIF89a", "a GIF image"),
  (b"II*\x00", "a TIFF image"),
  (b"MM\x00*", "a TIFF image"),
  (b"%PDF-", "a PDF document"),
  (b"\xd0\xcf\x11\xe0", "an office document of before 2007"),
  (b"BZh91AY", "a bzip2 file"),
  (b"\xfd7zXZ\x00", "an xz file"),
  (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
  (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
  (b"\x04\x22\x4d\x18", "an LZ4 file"),
  (b"Rar!\x1a\x07", "a RAR archive"),
  (b"\x7fELF", "a program"),
  (b"SQLite format 3\x00", "an SQLite database"),
  (b"PAR1", "a Parquet file"),
  (b"ARROW1\x00", "an Arrow file"),
  (b"\x89HDF\r\n", "an HDF5 file"),
  (b"\x93NUMPY", "a NumPy array"),
  (b"\x80\x02", "a Python pickle"),
  (b"\x80\x03", "a Python pickle"),
  (b"\x80\x04", "a Python pickle"),
  (b"\x80\x05", "a Python pickle"),
)

_BYTE_ORDER_MARKS = (
  # UTF-32 first: its mark begins with that of UTF-16.
  (codecs.BOM_UTF32_LE, "UTF-32", "utf-32"),
  (codecs.BOM_UTF32_BE, "UTF-32", "utf-32"),
  (codecs.BOM_UTF16_LE, "UTF-16", "utf-16"),
  (codecs.BOM_UTF16_BE, "UTF-16", "utf-16"),
  (codecs.BOM_UTF8, "UTF-8", "utf-8"),
)

# Multi-byte encodings: codec, name, letters that are typical of the language,
# and their minimum share of the characters that are not ASCII.
_KANA = r"[\u3040-\u30ff]"
_MULTI_BYTE = (
  ("euc_kr", "EUC-KR (Korean)", r"[\uac00-\ud7a3]", 0.8),
  ("shift_jis", "Shift-JIS (Japanese)", _KANA, 0.3),
  ("euc_jp", "EUC-JP (Japanese)", _KANA, 0.3),
  ("gb2312", "GB2312 (Chinese)", r"[\u4e00-\u9fff]", 0.6),
  ("big5", "Big5 (Chinese)", r"[\u4e00-\u9fff]", 0.6),
  ("gb18030", "GB18030 (Chinese)", r"[\u4e00-\u9fff]", 0.6),
)


def _known_format(head: bytes) -> str | None:
  """Name of the binary format that a file starts with, if known."""
  if head[257:262] == b"ustar":
    return "a tar archive"
  return next(
    (name for start, name in _FORMATS if head.startswith(start)), None
  )


# Characters that most texts consist of, in nearly all languages.
_LETTERS = re.compile(
  r"[\t\n\r -~\u00a0-\u07ff\u0900-\u0e7f\u2010-\u203a\u3000-\u30ff"
  r"\u4e00-\u9fff\uac00-\ud7a3\uff00-\uff65]"
)


def _wide_encoding(head: bytes) -> str | None:
  """Detects UTF-16 and UTF-32 without a byte-order mark; else None."""
  if head.count(0) < 2:  # spaces and line ends contain null bytes
    return None
  for name in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
    text = head.decode(name, "replace")
    if len(_LETTERS.findall(text)) > 0.95 * len(text):
      return name
  return None


def _probable_encoding(content: bytes) -> tuple[str, str | None]:
  """Guesses the encoding of bytes: its description, and its codec if known."""
  num_controls = len(re.findall(rb"[\x00-\x08\x0e-\x1f]", content))
  if num_controls > len(content) / 50:
    return "binary data", None
  text = content.decode("utf-8", "ignore")
  num_bad = content.decode("utf-8", "replace").count("\ufffd")
  if len(re.findall(r"[^\x00-\x7f]", text)) > 2 * num_bad:
    return (
      "corrupt UTF-8, or UTF-8 joined with text of another encoding"
    ), None
  high = re.findall(rb"[\x80-\xff]+", content)
  num_high = sum(map(len, high))
  if sum(len(run) for run in high if len(run) > 1) > 0.6 * num_high:
    for name, shown, letters, share in _MULTI_BYTE:
      # The first and last characters may be incomplete.
      text = content.decode(name, "replace")[1:-1]
      others = re.findall(r"[^\x00-\x7f]", text)
      if (
        text.count("\ufffd") <= 1
        and len(re.findall(letters, text)) >= share * len(others) > 0
      ):
        return f"probably {shown}", name
    if re.search(rb"[\xc0-\xff]{3}", content):
      return "probably Windows-1251 or KOI8-R (Cyrillic)", "cp1251"
  if re.search(rb"[\x80-\x9f]", content):
    return "probably Windows-1252 (cp1252)", "cp1252"
  return "probably Latin-1 (ISO 8859-1)", "latin-1"
