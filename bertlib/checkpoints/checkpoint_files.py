"""Reading checkpoint files, which may be incomplete or corrupt.

A checkpoint is a table of contents (`.index`), which has a checksum of itself
and of each variable, and data files. TensorFlow compares the checksums of what
it reads; `inspect` reads everything once before a run depends on it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bertlib.checkpoints import checkpoint_names
from bertlib.errors import InputError

# What TensorFlow raises for a damaged file; an IndexError where it ends early.
_ERRORS = (tf.errors.OpError, ValueError, RuntimeError, IndexError)


class Inspection(NamedTuple):
  """Damage of a checkpoint.

  Attributes:
    damage: the file that cannot be read and what is wrong with it; or None.
    non_finite: variables that contain NaN or Inf.
  """

  damage: str | None = None
  non_finite: tuple[str, ...] = ()


def exists(checkpoint: str) -> bool:
  """True if there is a checkpoint of this name, given without `.index`."""
  return bool(_index_of(checkpoint))


def _index_of(checkpoint: str) -> str | None:
  """The table of a checkpoint, whose first format is one file of its name."""
  for path in (f"{checkpoint}.index", checkpoint):
    if tf.gfile.Exists(path) and not tf.gfile.IsDirectory(path):
      return path
  return None


def data_files(checkpoint: str) -> list[str]:
  """The files of a checkpoint's values."""
  return sorted(tf.gfile.Glob(f"{checkpoint}.data-*"))


@contextlib.contextmanager
def as_input_errors(checkpoint: str) -> Iterator[None]:
  """Turns TensorFlow's errors of reading a checkpoint into an `InputError`."""
  try:
    yield
  except InputError:
    raise
  except _ERRORS as error:
    condition = inspect(checkpoint)
    raise _refusal(condition.damage or f"{checkpoint}: {_reason(error)}") from (
      error
    )


def check(checkpoint: str) -> None:
  """Reads a checkpoint from end to end, by which its checksums are compared.

  Args:
    checkpoint: its path, without `.index`.

  Raises:
    InputError: it is missing, incomplete or corrupt.
  """
  damage = inspect(checkpoint).damage
  if damage:
    raise _refusal(damage)


def check_finite(checkpoint: str) -> None:
  """Refuses a checkpoint with NaN or Inf in it, as a start of training.

  Args:
    checkpoint: its path, without `.index`.

  Raises:
    InputError: it has such weights, or see `check`.
  """
  check(checkpoint)
  names = inspect(checkpoint).non_finite
  if names:
    raise InputError(
      f"{checkpoint}: {names[0]} contains NaN or Inf, so nothing can be trained"
      " from there. Start from another checkpoint"
    )


def _refusal(damage: str) -> InputError:
  return InputError(f"{damage}. Fetch or copy the checkpoint again")


def inspect(checkpoint: str) -> Inspection:
  """Reads all of a checkpoint, once per process unless its files change.

  Args:
    checkpoint: its path, without `.index`.

  Returns:
    What is wrong with it.
  """
  index = _index_of(checkpoint)
  if not index:
    return Inspection(why_incomplete(checkpoint))
  states = []
  for path in [index, *data_files(checkpoint)]:
    with contextlib.suppress(tf.errors.NotFoundError):  # removed just now
      state = tf.gfile.Stat(path)
      states.append((path, state.length, state.mtime_nsec))
  return _inspect(checkpoint, tuple(states))


@functools.lru_cache(maxsize=64)
def _inspect(checkpoint: str, states: tuple) -> Inspection:
  (index, *_), *data = states
  missing = why_incomplete(checkpoint)
  if missing:
    return Inspection(missing)
  reader = tf.train.load_checkpoint(checkpoint)
  named = data[0][0] if len(data) == 1 else f"{checkpoint}.data-*"
  non_finite = []
  for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
    try:
      value = reader.get_tensor(name)
    except _ERRORS as error:
      return Inspection(
        f"{named if data else index}: is corrupt at {name} ({_reason(error)})"
      )
    if dtype.is_floating and not np.isfinite(value).all():
      non_finite.append(name)
  return Inspection(None, tuple(non_finite))


def why_incomplete(checkpoint: str) -> str | None:
  """Reason why a checkpoint is incomplete; its checksums are not compared.

  Args:
    checkpoint: its path, without `.index`.

  Returns:
    The file that is missing, cannot be read or ends early; None where the
    checkpoint is complete.
  """
  index = _index_of(checkpoint)
  if not index:
    return f"{checkpoint}: there is no such checkpoint"
  has_data_files = index != checkpoint  # as all formats but the first
  if has_data_files:
    names = map(os.path.basename, tf.gfile.Glob(f"{checkpoint}.*"))
    missing = checkpoint_names.missing_files(
      os.path.basename(checkpoint), set(names)
    )
    if missing:
      return f"{checkpoint}: {checkpoint_names.describe_missing(missing)}"
  try:
    reader = tf.train.load_checkpoint(checkpoint)
  except _ERRORS as error:
    return f"{index}: {_reason(error)}"
  return _missing_bytes(checkpoint, reader) if has_data_files else None


def _missing_bytes(checkpoint: str, reader: Any) -> str | None:
  """Says how many bytes its data files lack; None where they are complete."""
  dtypes = reader.get_variable_to_dtype_map()
  # The values stand in the data files without a gap.
  expected = sum(
    int(np.prod(shape, dtype=np.int64)) * dtypes[name].size
    for name, shape in reader.get_variable_to_shape_map().items()
  )
  files = data_files(checkpoint)
  found = sum(tf.gfile.Stat(path).length for path in files)
  if found >= expected:
    return None
  named = files[0] if len(files) == 1 else f"{checkpoint}.data-*"
  return f"{named}: is incomplete, {found} of {expected} bytes are there"


def _reason(error: Exception) -> str:
  """The first line of an error of TensorFlow's, which has pages."""
  text = str(error).strip().splitlines() or [type(error).__name__]
  return f"cannot be read ({text[0][:120].rstrip('.')})"
