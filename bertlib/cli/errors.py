"""Errors that users can fix, and the wording of messages."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence

# Errors of a full or read-only disk.
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS)


class InputError(ValueError):
  """An error that the user can fix: a command prints only its message."""


@contextlib.contextmanager
def needs_package(problem: str) -> Iterator[None]:
  """Turns a failed import in its block into an InputError."""
  try:
    yield
  except ImportError as error:
    raise InputError(problem) from error


def english_list(words: Iterable[str]) -> str:
  """Joins words as in "a, b and c"."""
  *first, last = words
  return f"{', '.join(first)} and {last}" if first else last


def some_of(words: Sequence[str], limit: int = 20) -> str:
  """Joins words by commas: of many, the first ones, and how many follow."""
  shown = ", ".join(words[:limit])
  num_left = len(words) - limit
  return f"{shown} and {num_left:,} more" if num_left > 0 else shown


# Text for a terminal

# Control characters, line separators and marks that reorder text, which would
# affect the terminal; and surrogates, which cannot be printed.
CONTROLS = re.compile(
  r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
  """Escapes the control characters of `text`, as in Python literals."""
  return CONTROLS.sub(
    lambda match: match[0].encode("unicode_escape").decode(), text
  )


def user_error_message(error: Exception) -> str | None:
  """One-line message of an error that the user can fix, or None."""
  if isinstance(error, InputError):
    return printable(str(error))
  # TensorFlow's own wording of one of the system's errors.
  text = str(error).replace(" is not a directory", "; Not a directory")
  if isinstance(error, OSError) and (error.filename or error.errno in NO_ROOM):
    text = f"{error.filename or 'output'}; {error.strerror}"
  # TensorFlow reports file errors in many exception classes, whose texts all
  # contain a line such as "path; No space left on device". In eager mode the
  # operation surrounds it: "{{...}} path; ... [Op:SaveV2]".
  for line in re.sub(r"\{\{.*?\}\}|\[Op:.*", "", text).splitlines():
    path, _, reason = line.strip().rpartition("; ")
    if path and reason == os.strerror(errno.EROFS):
      return f"{path}: {reason}. Name another path"
    if path and reason == os.strerror(errno.EEXIST):
      return f"{path}: is a file. Name a folder"
    if path and reason in map(os.strerror, NO_ROOM):
      return (
        f"{path}: {reason}. Make room there or name another path; files that"
        " were complete before are unchanged"
      )
    if path and reason in map(os.strerror, errno.errorcode):
      return f"{path}: {reason}"
  return None
