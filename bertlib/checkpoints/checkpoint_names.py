"""Names of a checkpoint's files: `.index`, N `.data`. Imports no TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from bertlib.cli import errors

# File name of a checkpoint's index or data file.
FILE = re.compile(
  r"(?P<checkpoint>\w[\w.-]*)"
  r"(?P<part>\.index|\.data-\d{5}-of-(?P<num_parts>\d{5}))",
  re.ASCII,
)

# File of a checkpoint that training saves, or its temporary form.
SAVED_FILE = re.compile(
  r"(?P<checkpoint>(.*/)?model\.ckpt-\d+)\.(index|meta|data-\d{5}-of-\d{5})"
  r"(?P<temporary>\.tempstate\d+|\.tmp[0-9a-f]+)?",
  re.ASCII,
)

# Folder in which TensorFlow collects the parts of such a checkpoint, and the
# name of a part.
TEMPORARY_FOLDER = re.compile(
  r"(.*/)?model\.ckpt-\d+_temp(_[0-9a-f]+)?", re.ASCII
)
TEMPORARY_PART = re.compile(r"part(-\d{5}-of-\d{5})?\..+", re.ASCII)

# Temporary form of the file `checkpoint`.
TEMPORARY_STATE_FILE = re.compile(r"(.*/)?checkpoint\.tmp[0-9a-f]+", re.ASCII)


def missing_files(checkpoint: str, names: Collection[str]) -> list[str]:
  """Names of missing files of a checkpoint, given all names in its folder."""
  found = (FILE.fullmatch(name) for name in names)
  num_parts = max(
    (
      int(match["num_parts"])
      for match in found
      if match and match["num_parts"] and match["checkpoint"] == checkpoint
    ),
    # Without any data file, one is expected.
    default=1,
  )
  data = [f".data-{i:05}-of-{num_parts:05}" for i in range(num_parts)]
  needed = [checkpoint + ending for ending in (".index", *data)]
  return [name for name in needed if name not in names]


def describe_missing(missing: Iterable[str]) -> str:
  """Formats `missing_files` for an error message."""
  return f"is incomplete, it lacks {errors.english_list(missing)}"
