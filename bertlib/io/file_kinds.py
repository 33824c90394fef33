"""Formats of files that are not what is read, by their first bytes."""

from __future__ import annotations

import codecs
import re

from bertlib.cli.errors import InputError

_SAVE = "Save it as text, or a table as .csv, in UTF-8"
_CONVERT = "Convert it to .csv, such as by pandas"
RECORDS = rb".{4}\0{4}.{4}\n"  # a TFRecord file

# What files begin with, what they are, and how to fix it; the first counts.
_TEXTS = {
  rb"version https://git-lfs": "a pointer of Git LFS, not the file itself. Get"
  " the file by `git lfs pull`, or download it",
  rb"\{\\rtf\d": f"an RTF document. {_SAVE}",
  # A table of pages has tabs; lines that are pages have several ends.
  rb"(?i)\s*<(!doctype )?html\b(?!.*</html>.*</html>)[^\t\n]*(\n|\Z)": "a web"
  " page (HTML). If a download failed, download the file again",
}
_OTHERS = {
  rb"\x1f\x8b": "compressed by gzip. Decompress it by gunzip",
  rb"\x78[\x9c\xda]": "compressed by zlib. Write it uncompressed",
  rb"BZh\d1AY": "compressed by bzip2. Decompress it by bunzip2",
  rb"\xfd7zXZ": "compressed by xz. Decompress it by unxz",
  rb"\x28\xb5\x2f\xfd": "compressed by zstd. Decompress it by unzstd",
  rb"PK\x03\x04.*xl/": f"an Excel workbook. {_SAVE}",
  rb"PK\x03\x04.*(word/|opendocument)": f"an office document. {_SAVE}",
  rb"\xd0\xcf\x11\xe0": f"an old Excel or Word file. {_SAVE}",
  rb"%PDF-": f"a PDF document. {_SAVE}",
  rb"PK\x03\x04|7z\xbc\xaf|Rar!\x1a": "an archive. Unpack it",
  rb".{257}ustar(\x0000|  \0)": "a tar archive. Unpack it",
  rb"PAR1.*\0": f"a Parquet file. {_CONVERT}",
  rb"(ARROW1|FEA1|\xff{4}..\0).*\0": f"an Arrow or Feather file. {_CONVERT}",
  rb"ORC.*\0": f"an ORC file. {_CONVERT}",
  rb"Obj\x01": f"an Avro file. {_CONVERT}",
  rb"SQLite format 3\0": "an SQLite database. Export a table as .csv",
  rb"\x89HDF": "an HDF5 file. Name another file",
  rb"\x93NUMPY": "an array of NumPy. Name another file",
  rb"\x80[\x02-\x05]": "a pickle of Python. Name another file",
  rb"\x89PNG|\xff\xd8\xff|GIF8[79]a": "an image. Name another file",
  RECORDS: "a TFRecord file. Name the text that it was made of",
}


def check(path: str, start: bytes, expected: bytes = b"") -> None:
  """Refuses a file of a known format, by the bytes that it begins with."""
  kinds = _TEXTS if _is_text(start) else _TEXTS | _OTHERS
  for pattern, kind in kinds.items():
    if pattern != expected and re.match(pattern, start, re.DOTALL):
      raise InputError(f"{path}: is {kind}")


def check_binary(path: str, start: bytes) -> None:
  """`check` where no text is read: names a pointer, or a saved web page."""
  if _is_text(start):
    check(path, start)


def _is_text(start: bytes) -> bool:
  """True for UTF-8 without null bytes, at the start of a file."""
  try:
    codecs.getincrementaldecoder("utf-8")().decode(start)
  except UnicodeDecodeError:
    return False
  return b"\0" not in start
