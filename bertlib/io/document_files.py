"""Reads documents: text to pretrain on, or to learn a vocabulary from."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator

from bertlib.cli.errors import InputError
from bertlib.io import text_files
from bertlib.io.files import open_any
from bertlib.io.text_files import Encoding


def read_lines(
  path: str, encoding: Encoding | None = None, open_file=open_any
) -> Iterator[bytes]:
  """Reads lines of text, each as UTF-8; of JSON Lines those under "text"."""
  chunks = text_files.read_chunks(path, encoding, open_file)
  numbers = itertools.count(1)
  first = next(chunks, "")
  is_json = text_files.is_json(first)
  for text in itertools.chain([first], chunks):
    if is_json:
      lines = zip(io.StringIO(text, newline="\n"), numbers)
      text = "".join(_document(line, f"{path}, line {n}") for line, n in lines)
    # A half of a character, as "\ud83d" in JSON, is dropped.
    yield from io.BytesIO(text.encode("utf-8", "ignore"))


def _document(line: str, where: str) -> str:
  """The lines of the text of an object of JSON, then a blank one."""
  if not line.strip():
    return ""
  try:
    lines = re.split(r"[\r\n]+", json.loads(line)["text"])
  except (ValueError, LookupError, TypeError) as error:
    raise InputError(
      f'{where}: is not an object of JSON with its text under "text". Write one'
      " object per line, or the texts without JSON"
    ) from error
  return "\n".join([*filter(str.strip, lines), "\n"])
