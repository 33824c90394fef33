"""Reads, validates and writes checkpoint files."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bertlib.cli import lazy_module
from bertlib.cli.errors import InputError
from bertlib.io import files, model_files

# Of object-based checkpoints, which are rare.
keras_files = lazy_module.load("bertlib.checkpoints.keras_files")

# What TensorFlow raises for a corrupt file; IndexError for a truncated one.
_ERRORS = (tf.errors.OpError, ValueError, RuntimeError, IndexError)


# File of a checkpoint that training saves, or its temporary form.
_SAVED_FILE = re.compile(
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


# Links to checkpoints by their paths; None outside of `keeping`.
_kept: ContextVar[dict[str, str] | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def keeping() -> Iterator[None]:
  """Keeps each checkpoint that is inspected in the block until its end."""
  # A training in its folder may remove it before it has been read. Names stay
  # those of the checkpoint; `kept` is what is read.
  if _kept.get() is not None:
    yield
    return
  token = _kept.set({})
  try:
    yield
  finally:
    for link in _kept.get().values():
      with contextlib.suppress(tf.errors.OpError):
        tf.gfile.DeleteRecursively(os.path.dirname(link))
    _kept.reset(token)


def kept(checkpoint: str | None) -> str | None:
  """Path from which to read a checkpoint."""
  return (_kept.get() or {}).get(checkpoint, checkpoint)


def _keep(checkpoint: str) -> None:
  """Links a checkpoint that training saved; copies it where links fail."""
  index, links = _index_of(checkpoint), _kept.get()
  is_saved = index and _SAVED_FILE.fullmatch(f"{checkpoint}.index")
  if links is None or checkpoint in links or not is_saved:
    return
  name = f"{checkpoint}-{uuid.uuid4().hex[:8]}"
  folder = files.temporary_name(name)
  try:
    tf.gfile.MakeDirs(folder)
    # The index last: it is removed first.
    for path in [*data_files(checkpoint), index]:
      files.link(path, os.path.join(folder, os.path.basename(path)))
  except (OSError, tf.errors.OpError):  # it is gone, or the folder read-only
    with contextlib.suppress(tf.errors.OpError):
      tf.gfile.DeleteRecursively(folder)
  else:
    links[checkpoint] = os.path.join(folder, os.path.basename(checkpoint))


class Inspection(NamedTuple):
  """Problems found in a checkpoint."""

  # The file that cannot be read and why; None if all can be read.
  problem: str | None = None
  non_finite: tuple[str, ...] = ()  # variables with NaN or Inf


def exists(checkpoint: str) -> bool:
  """True if there is a checkpoint with this path (without `.index`)."""
  return bool(_index_of(checkpoint))


def _index_of(checkpoint: str) -> str | None:
  """Index file of a checkpoint; in the V1 format, its only file."""
  checkpoint = kept(checkpoint)
  for path in (f"{checkpoint}.index", checkpoint):
    if tf.gfile.Exists(path) and not tf.gfile.IsDirectory(path):
      return path
  return None


def data_files(checkpoint: str) -> list[str]:
  """Paths of a checkpoint's data files."""
  return files.with_prefix(kept(checkpoint), ".data-*")


def open_reader(checkpoint: str) -> Any:
  """TensorFlow's reader of a checkpoint."""
  return tf.train.load_checkpoint(kept(checkpoint))


def shapes_of(checkpoint: str) -> dict[str, list[int]]:
  """Shapes of the variables of a checkpoint, by name."""
  return open_reader(checkpoint).get_variable_to_shape_map()


class SavedFile(NamedTuple):
  """File of a checkpoint that training saves."""

  path: str
  checkpoint: str  # its path, without `.index`
  is_temporary: bool  # it was being written


def saved_files(folder: str) -> list[SavedFile]:
  """Files in a folder that training saved; the user's own are left out."""
  paths = files.matching(folder, "*.ckpt-*")
  return [
    SavedFile(match[0], match["checkpoint"], bool(match["temporary"]))
    for match in map(_SAVED_FILE.fullmatch, paths)
    if match and not tf.gfile.IsDirectory(match[0])
  ]


@contextlib.contextmanager
def as_input_errors(checkpoint: str) -> Iterator[None]:
  """Converts TensorFlow's errors while reading a checkpoint to `InputError`."""
  try:
    yield
  except _ERRORS as error:
    problem = inspect(checkpoint).problem
    raise _input_error(problem or f"{checkpoint}: {_reason(error)}") from error


def check(checkpoint: str) -> None:
  """Refuses a checkpoint that is missing, incomplete or corrupt."""
  # An index file (`.index`) has a checksum of itself and of each variable.
  # TensorFlow verifies those of what it reads: read all once, before a run
  # depends on it.
  if problem := inspect(checkpoint).problem:
    raise _input_error(problem)


def check_finite(checkpoint: str, names: Container[str] | None = None) -> None:
  """Refuses a checkpoint with NaN or Inf, in these variables or in any."""
  check(checkpoint)
  for name in inspect(checkpoint).non_finite:
    if names is None or name in names:
      raise InputError(
        f"{checkpoint}: {name} contains NaN or Inf. Use another checkpoint"
      )


def _input_error(problem: str) -> InputError:
  return InputError(f"{problem}. Download or copy the checkpoint again")


def inspect(checkpoint: str) -> Inspection:
  """Problems of a checkpoint; reads all of it, once until files change."""
  _keep(checkpoint)
  index = _index_of(checkpoint)
  if not index:
    return Inspection(why_incomplete(checkpoint))
  states = []
  for path in [index, *data_files(checkpoint)]:
    with contextlib.suppress(tf.errors.NotFoundError):  # removed meanwhile
      state = tf.gfile.Stat(path)
      name = path.replace(kept(checkpoint), checkpoint)
      states.append((name, state.length, state.mtime_nsec))
  try:
    return _inspect(checkpoint, tuple(states))
  except _ERRORS:
    if exists(checkpoint):
      raise
    return Inspection(f"{checkpoint}: was removed while it was read")


@functools.lru_cache(maxsize=64)
def _inspect(checkpoint: str, states: tuple) -> Inspection:
  (index, *_), *data = states
  if missing := why_incomplete(checkpoint):
    return Inspection(missing)
  reader = open_reader(checkpoint)
  data_path = data[0][0] if len(data) == 1 else f"{checkpoint}.data-*"
  non_finite = []
  for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
    try:
      value = reader.get_tensor(name)
    except _ERRORS as error:
      return Inspection(
        f"{data_path if data else index}: is corrupt at {name}"
        f" ({_reason(error)})"
      )
    if dtype.is_floating and not np.isfinite(value).all():
      non_finite.append(name)
  return Inspection(None, tuple(non_finite))


def why_incomplete(checkpoint: str) -> str | None:
  """Reason why a checkpoint is incomplete, or None; verifies no checksums."""
  index = _index_of(checkpoint)
  if not index:
    return f"{checkpoint}: there is no such checkpoint"
  has_data_files = index != kept(checkpoint)  # not in the V1 format
  if has_data_files:
    names = map(os.path.basename, files.with_prefix(kept(checkpoint), ".*"))
    missing = model_files.missing_files(
      os.path.basename(checkpoint), set(names)
    )
    if missing:
      return f"{checkpoint}: {model_files.describe_missing(missing)}"
  try:
    reader = open_reader(checkpoint)
  except _ERRORS as error:
    return f"{index}: {_reason(error)}"
  return _missing_bytes(checkpoint, reader) if has_data_files else None


def _missing_bytes(checkpoint: str, reader: Any) -> str | None:
  """Message about truncated data files; None if they are complete."""
  dtypes = reader.get_variable_to_dtype_map()
  # Data files hold the values without gaps.
  expected = sum(
    int(np.prod(shape, dtype=np.int64)) * dtypes[name].size
    for name, shape in reader.get_variable_to_shape_map().items()
  )
  paths = data_files(checkpoint)
  found = sum(tf.gfile.Stat(path).length for path in paths)
  if found >= expected:
    return None
  path = paths[0] if len(paths) == 1 else f"{checkpoint}.data-*"
  return f"{path}: is incomplete, has {found} of {expected} bytes"


def _reason(error: Exception) -> str:
  """First sentence of a TensorFlow error, which can be pages long."""
  if "Checksum does not match" in str(error):
    return "the checksum does not match"
  text = str(error).strip().splitlines() or [type(error).__name__]
  return f"cannot be read ({text[0].partition('. ')[0][:300].rstrip('.')})"


# Entry of the checkpoints of `tf.train.Checkpoint`.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def has_objects(checkpoint: str) -> bool:
  """True for a checkpoint of `tf.train.Checkpoint` that can be read."""
  try:
    return open_reader(checkpoint).has_tensor(_OBJECT_GRAPH)
  except _ERRORS:
    return False


class Checkpoint(Mapping[str, np.ndarray]):
  """Variables of a TensorFlow checkpoint by name, read on access."""

  def __init__(self, path: str):
    """Opens a checkpoint, whose path is without `.index`."""
    self.path = path
    # Missing, incomplete or corrupt. Reading a variable can raise it too.
    with as_input_errors(self.path):
      self._reader = open_reader(path)
    # Lists of ints, and `tf.DType`s, by name.
    self.shapes = self._reader.get_variable_to_shape_map()
    self.dtypes = self._reader.get_variable_to_dtype_map()
    self._objects: dict[str, np.ndarray] = {}  # by our names
    if _OBJECT_GRAPH in self.shapes:
      self._objects = keras_files.read_objects(
        self.shapes, self._reader.get_tensor, path
      )
      self.shapes = {n: [*value.shape] for n, value in self._objects.items()}
      self.dtypes = dict.fromkeys(self.shapes, tf.float32)

  def __getitem__(self, name: str) -> np.ndarray:
    if name not in self.shapes:
      raise KeyError(name)
    if self._objects:
      return self._objects[name]
    with as_input_errors(self.path):
      return self._reader.get_tensor(name)

  def __contains__(self, name: object) -> bool:
    return name in self.shapes

  def __iter__(self) -> Iterator[str]:
    return iter(sorted(self.shapes))

  def __len__(self) -> int:
    return len(self.shapes)


# Writing


def write_variables(prefix: str, variables: Mapping[str, np.ndarray]) -> None:
  """Writes variables as a checkpoint with the path `prefix`."""
  # Saving needs no GPU, whose memory a session would take.
  on_cpu = tf.ConfigProto(device_count={"GPU": 0})
  with tf.Graph().as_default(), tf.Session(config=on_cpu) as session:
    values = [tf.placeholder(v.dtype, v.shape) for v in variables.values()]
    save = tf.raw_ops.SaveV2(
      prefix=prefix,
      tensor_names=list(variables),
      shape_and_slices=[""] * len(variables),
      tensors=values,
    )
    session.run(save, dict(zip(values, variables.values())))


# State of an optimizer, and of a training, beside its slots.
_STATE = re.compile(
  r"(.*/)?beta[12]_power(_\d+)?|loss_scale/.*|(budget|packing)/.*"
)


def optimizer_variables(names: Iterable[str]) -> set[str]:
  """Names of an optimizer's state, and of moving averages of weights."""
  # The name of a slot is NAME/SLOT beside the weight NAME, in any optimizer.
  known = set(names)
  return {
    name
    for name in known
    if name.rpartition("/")[0] in known or _STATE.fullmatch(name)
  }
