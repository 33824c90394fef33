"""Errors that users can fix, and the wording of messages."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable

# What the operating system says of a place that takes no more.
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS)


class InputError(ValueError):
  """Something that the person at the keyboard can mend.

  Its message is all that is shown: one line that names the file, the place in
  it and the cure. Anything else that goes wrong keeps its traceback.
  """


def english_list(words: Iterable[str]) -> str:
  """Joins words as in "a, b and c"."""
  *first, last = words
  return f"{', '.join(first)} and {last}" if first else last


# Text for a terminal

# Control characters, marks that reorder text and separators of lines, which a
# terminal obeys; and surrogates, which it cannot print.
_CONTROLS = re.compile(
  r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
  """`text` with its control characters as Python escapes them."""
  return _CONTROLS.sub(
    lambda match: match[0].encode("unicode_escape").decode(), text
  )


def user_error_message(error: Exception) -> str | None:
  """The line to show for an error that the user can mend, or None.

  TensorFlow reports what is wrong with a file in many classes of error, whose
  texts have in common one line: "path; No space left on device". Outside a
  graph the operation stands around it: "{{...}} path; ... [Op:SaveV2]".
  """
  if isinstance(error, InputError):
    return printable(str(error))
  # For one of the system's words it has its own.
  text = str(error).replace(" is not a directory", "; Not a directory")
  if isinstance(error, OSError) and (error.filename or error.errno in NO_ROOM):
    text = f"{error.filename or 'output'}; {error.strerror}"
  for line in re.sub(r"\{\{.*?\}\}|\[Op:.*", "", text).splitlines():
    path, _, reason = line.strip().rpartition("; ")
    if path and reason in map(os.strerror, NO_ROOM):
      return (
        f"{path}: {reason}. Make room there or name another place; what was"
        " complete before is untouched"
      )
    if path and reason in map(os.strerror, errno.errorcode):
      return f"{path}: {reason}"
  return None
