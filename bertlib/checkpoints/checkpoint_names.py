"""Names of a checkpoint's files, and which of them are missing.

A checkpoint is an `.index` and as many `.data-0000i-of-0000N` as their names
say. Imports no TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from bertlib import errors

# A file of a checkpoint.
FILE = re.compile(
  r"(?P<checkpoint>\w[\w.-]*)"
  r"(?P<part>\.index|\.data-\d{5}-of-(?P<num_parts>\d{5}))",
  re.ASCII,
)


def missing_files(checkpoint: str, names: Collection[str]) -> list[str]:
  """The files that a checkpoint lacks; one with values at least.

  Args:
    checkpoint: its name, without `.index`.
    names: of the files in its folder.
  """
  found = (FILE.fullmatch(name) for name in names)
  num_parts = max(
    (
      int(match["num_parts"])
      for match in found
      if match and match["num_parts"] and match["checkpoint"] == checkpoint
    ),
    default=1,
  )
  data = [f".data-{i:05}-of-{num_parts:05}" for i in range(num_parts)]
  needed = [checkpoint + ending for ending in (".index", *data)]
  return [name for name in needed if name not in names]


def describe_missing(missing: Iterable[str]) -> str:
  """What an error says of a checkpoint, or its folder, without some files."""
  return f"is incomplete, it lacks {errors.english_list(missing)}"
