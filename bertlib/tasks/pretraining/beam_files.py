"""The functions of `bertlib.io.files` on the file systems of Apache Beam.

Imports Apache Beam and no TensorFlow.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from typing import IO, Any

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from bertlib.io import files


def find_files(patterns: Iterable[str]) -> list[str]:
  """See `files.find_files`."""

  def glob(pattern: str) -> list[str]:
    return [file.path for file in FileSystems.match([pattern])[0].metadata_list]

  return files.find_files(patterns, glob)


def size_and_mtime(path: str) -> tuple[int, int]:
  """See `files.size_and_mtime`."""
  if not files.is_remote(path):
    return files.size_and_mtime(path)
  return FileSystems.match([path])[0].metadata_list[0].size_in_bytes, 0


def open_any(path: str, mode: str = "r") -> IO[Any]:
  """See `files.open_any`; does not decompress .gz files."""
  open_file = FileSystems.open if "r" in mode else FileSystems.create
  file = open_file(path, compression_type=CompressionTypes.UNCOMPRESSED)
  return file if "b" in mode else io.TextIOWrapper(file, "utf-8", newline="")


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w") -> Iterator[IO[Any]]:
  """See `files.atomic_write`."""
  temporary_path = files.temporary_name(path)
  try:
    with open_any(temporary_path, mode) as file:
      yield file
    FileSystems.rename([temporary_path], [path])
  except BaseException:
    with contextlib.suppress(Exception):
      FileSystems.delete([temporary_path])
    raise
