"""Writes vectors to .npy and .npz files, one vector after the other."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Iterable
from types import SimpleNamespace
from typing import IO

import numpy as np

from bertlib.cli.absl import logging
from bertlib.io.files import atomic_write


def write_npy(
  path: str, vectors: Iterable[np.ndarray], num_vectors: int
) -> None:
  """Writes vectors, float32 [D] each, as an .npy file, one after the other."""
  vectors = iter(vectors)
  first = next(vectors)
  with atomic_write(path, "wb") as file:
    # The header needs their number, at least 1, and width.
    rows = itertools.chain([first], vectors)
    _write_array(file, rows, num_vectors, len(first))
  logging.info("%d vectors, %d wide: %s", num_vectors, len(first), path)


def write_npz(
  file: IO[bytes], vectors: Iterable[np.ndarray], num_vectors: int, width: int
) -> None:
  """Writes the array `vectors`, float32 [num_vectors, width], row by row."""
  # TensorFlow's files cannot seek while writing, and `write` returns None.
  forward = SimpleNamespace(
    write=lambda data: file.write(data) or len(data), flush=file.flush
  )
  with (
    zipfile.ZipFile(forward, "w") as archive,
    archive.open("vectors.npy", "w", force_zip64=True) as member,
  ):
    _write_array(member, vectors, num_vectors, width)


def _write_array(
  file: IO[bytes], rows: Iterable[np.ndarray], num_rows: int, width: int
) -> None:
  """Writes rows, float32 [width] each, in the format .npy."""
  file.write(header(num_rows, width))
  for row in rows:
    file.write(row_bytes(row))


def header(num_rows: int, width: int) -> bytes:
  """The beginning of an .npy file, before its rows."""
  values = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, width)}
  file = io.BytesIO()
  np.lib.format.write_array_header_1_0(file, values)
  return file.getvalue()


def row_bytes(row: np.ndarray) -> bytes:
  """A vector in an .npy file."""
  return row.astype("<f4").tobytes()
