"""Checkpoints: which one to use, and reading, checking and writing them."""

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

from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.io import files, model_files

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
_TEMPORARY_FOLDER = re.compile(
  r"(.*/)?model\.ckpt-\d+_temp(_[0-9a-f]+)?", re.ASCII
)
_TEMPORARY_PART = re.compile(r"part(-\d{5}-of-\d{5})?\..+", re.ASCII)

# TensorFlow's text file that lists the checkpoints of a folder, latest first.
STATE_FILE = "checkpoint"

# Its temporary form.
_TEMPORARY_STATE_FILE = re.compile(r"(.*/)?checkpoint\.tmp[0-9a-f]+", re.ASCII)


# Which checkpoint


def find_checkpoint(path: str) -> str:
  """Checkpoint that a path without `.index`, or a folder, stands for."""
  is_file_name = re.search(r"\.(index|meta|data-\d+-of-\d+)$", path)
  if exists(path) and not is_file_name:
    return path
  if not tf.gfile.IsDirectory(path):
    fix = "Name its files without .index or .data-00000-of-00001, or its folder"
    if not is_file_name:
      fix = files.did_you_mean(path, fix)
    raise InputError(f"{path}: no such checkpoint or folder. {fix}")
  if checkpoint := model_checkpoint(path):
    return checkpoint
  indexes = files.matching(path, "*.index")
  found = [index.removesuffix(".index") for index in indexes]
  if len(found) == 1:
    return found[0]
  if found:
    names = ", ".join(map(os.path.basename, found))
    raise InputError(f"{path}: has several checkpoints: {names}. Name one")
  fix = "Name a folder that contains one"
  if tf.gfile.Exists(os.path.join(path, "config.json")):
    fix = "convert_checkpoint.py converts a Hugging Face model to one"
  raise InputError(
    f"{path}: is a folder without a TensorFlow checkpoint. {fix}"
  )


def check_checkpoint(path: str) -> None:
  """Refuses a checkpoint, or folder of one, that cannot be read completely."""
  check(find_checkpoint(path))


def trained_checkpoint(model_dir: str | None) -> str | None:
  """Best checkpoint of a model's folder, else the last one, else None."""
  if not model_dir:
    return None
  best = last_checkpoint(os.path.join(model_dir, model_files.BEST))
  return best or last_checkpoint(model_dir)


def model_checkpoint(folder: str) -> str | None:
  """The `trained_checkpoint` of a folder, else `bert_model.ckpt`, else None."""
  # Written by convert_checkpoint.py, and in the cache of published models.
  released = os.path.join(folder, model_files.CHECKPOINT)
  has_released = exists(released)
  return trained_checkpoint(folder) or (released if has_released else None)


def last_checkpoint(folder: str) -> str | None:
  """Last usable checkpoint of a folder, or None without any checkpoint."""
  named = checkpoint_in_state_file(folder)
  while named and (problem := inspect(named).problem):
    latest = checkpoint_in_state_file(folder)
    if latest == named:
      break
    named = latest  # a training has replaced it
  candidates = {named: _step_of(named)} if named else {}
  if not named or problem:
    # Without a usable one that is named, the one of the highest step.
    found = sorted(_checkpoints_in(folder), key=_step_of, reverse=True)
    if not named and len(set(map(_step_of, found[:2]))) < len(found[:2]):
      raise InputError(
        f"{folder}: has {', '.join(map(os.path.basename, found[:2]))} and no"
        f" `{STATE_FILE}` file that names the last one. Name one, or move the"
        " other"
      )
    candidates |= {checkpoint: _step_of(checkpoint) for checkpoint in found}
  problems = []
  for checkpoint in candidates:
    problem = inspect(checkpoint).problem
    if not problem:
      if checkpoint != named:
        reasons = problems or [
          f"{folder}: no `{STATE_FILE}` file names the last checkpoint"
        ]
        terminal.warn_once(f"{'; '.join(reasons)}. Using {checkpoint} instead")
      return checkpoint
    problems.append(problem)
  # A run recreates a checkpoint of step 0.
  if any(candidates.values()):
    raise InputError(
      f"{'; '.join(problems)}. No usable checkpoint is left in {folder}:"
      f" restore one, or remove these and `{STATE_FILE}` to start over"
    )
  if problems:
    terminal.warn_once(f"{problems[0]}. Ignored: it was saved at step 0")
  return None


def resumable_checkpoint(folder: str) -> str | None:
  """Last usable checkpoint, unless it has the initial weights alone."""
  # A run recreates these, and their moments, which are not saved at step 0.
  last = last_checkpoint(folder)
  if last and not _step_of(last) and not optimizer_variables(shapes_of(last)):
    return None
  return last


def step_in_state_file(folder: str) -> int:
  """Step of the checkpoint that the `checkpoint` file names; 0 if none."""
  return max(_step_of(checkpoint_in_state_file(folder) or ""), 0)


def checkpoint_in_state_file(folder: str) -> str | None:
  """Latest checkpoint that the `checkpoint` file names; None if unreadable."""
  try:
    state = tf.train.get_checkpoint_state(folder)
  except (ValueError, tf.errors.OpError):
    return None
  return state and state.model_checkpoint_path


def _checkpoints_in(folder: str) -> list[str]:
  """All training checkpoints in a folder, complete or not."""
  return [
    checkpoint
    for path, checkpoint, _ in saved_files(folder)
    if path == f"{checkpoint}.index"
  ]


def step_of(checkpoint: str) -> int:
  """Global step of a checkpoint; the one in its name if it is gone."""
  if not exists(checkpoint):
    return max(_step_of(checkpoint), 0)
  reader = open_reader(checkpoint)
  return int(reader.get_tensor("global_step"))


def _step_of(checkpoint: str) -> int:
  """Step in a checkpoint's name; -1 if it has none."""
  number = re.search(r"-(\d+)$", checkpoint)
  return int(number[1]) if number else -1


class Start(NamedTuple):
  """The checkpoints that a run starts from, found once, before it begins."""

  own: str | None = None  # the `trained_checkpoint` of --output_dir
  last: str | None = None  # the last one there, from which training resumes
  step: int = 0  # of `last`; 0 if nothing trains
  # Has all of the model: `own`, or --init_checkpoint of a run without training.
  trained: str | None = None
  ignored: str | None = None  # trained model in --output_dir that is not read


def find_start(
  init_checkpoint: str | None,  # of `find_checkpoint`
  output_dir: str,
  may_be_new: bool,
  # Whether the model is that of --init_checkpoint in any case.
  reads_initial: bool = False,
) -> Start:
  """Finds and checks what a run starts from; a new model may have nothing."""
  if reads_initial:
    check(init_checkpoint)
    ignored = trained_checkpoint(output_dir)
    return Start(trained=init_checkpoint, ignored=ignored)
  find = resumable_checkpoint if may_be_new else last_checkpoint
  last = find(output_dir)
  best = last_checkpoint(os.path.join(output_dir, model_files.BEST))
  start = Start(best or last, last, trained=best or last)
  if may_be_new and (last or init_checkpoint):
    check_finite(last or init_checkpoint)
  if may_be_new and last:
    start = start._replace(step=step_of(last))
  if start.own or may_be_new:
    return start
  if not init_checkpoint:
    raise model_files.untrained(output_dir)
  check(init_checkpoint)
  return start._replace(trained=init_checkpoint)


def check_resume(resume: str, output_dir: str, last: str | None) -> None:
  """Enforces --resume: "auto", "never" or "must"."""
  if resume == "never" and last:
    raise InputError(
      f"{output_dir}: holds {os.path.basename(last)}, and --resume=never does"
      " not resume from it. Name another --output_dir, or remove this one"
    )
  if resume == "must" and not last:
    raise InputError(
      f"{output_dir}: holds no checkpoint to resume from, which --resume=must"
      " requires. Give the --output_dir of the run, or --resume=auto"
    )


# Reading


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


# Entries of checkpoints with the names of other projects: the objects of
# `tf.train.Checkpoint`, and tables of google-research/electra.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_OF_OTHERS = (
  OBJECT_GRAPH,
  "electra/embeddings/word_embeddings",
  "bert/embeddings_added/word_embeddings",
)


def has_other_names(checkpoint: str) -> bool:
  """True for a checkpoint that only `foreign_checkpoint` reads."""
  try:
    return not shapes_of(checkpoint).keys().isdisjoint(_OF_OTHERS)
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

  def __getitem__(self, name: str) -> np.ndarray:
    if name not in self.shapes:
      raise KeyError(name)
    return self._read(name)

  def _read(self, name: str) -> np.ndarray:
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
    save = save_op(prefix, dict(zip(variables, values)))
    session.run(save, dict(zip(values, variables.values())))


def save_op(prefix: str, tensors: Mapping[str, Any]):
  """Op that writes tensors as a checkpoint with the path `prefix`."""
  return tf.raw_ops.SaveV2(
    prefix=prefix,
    tensor_names=list(tensors),
    shape_and_slices=[""] * len(tensors),
    tensors=list(tensors.values()),
  )


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


def warn_of_averages(checkpoint: str, names: Iterable[str]) -> None:
  """Warns of averages of weights, which are not read, and says how to."""
  num_averages = sum(
    name.endswith("/ExponentialMovingAverage") for name in names
  )
  if num_averages:
    terminal.warn_once(
      f"{checkpoint}: has {num_averages} averages of weights, which are not"
      " read. convert_checkpoint.py --strip_optimizer"
      " --rename='/ExponentialMovingAverage$=>' makes them the weights"
    )


def write_state_file(
  folder: str, last: str, before: Iterable[str] = ()
) -> None:
  """Writes a folder's `checkpoint` file: the last one, and those before it."""
  # Names without folder: the folder can be moved.
  names = [os.path.basename(checkpoint) for checkpoint in (*before, last)]
  lines = [f'all_model_checkpoint_paths: "{name}"\n' for name in names]
  with files.atomic_write(os.path.join(folder, STATE_FILE)) as file:
    file.writelines([f'model_checkpoint_path: "{names[-1]}"\n', *lines])


def save_best(model_dir: str, checkpoint: str) -> str:
  """Copies a checkpoint without optimizer to `best/`; returns its path."""
  best_dir = os.path.join(model_dir, model_files.BEST)
  tf.gfile.MakeDirs(best_dir)
  for name in model_files.COMPANIONS:
    source = os.path.join(model_dir, name)
    if tf.gfile.Exists(source):
      tf.gfile.Copy(source, os.path.join(best_dir, name), overwrite=True)
  stored = Checkpoint(checkpoint)
  state = optimizer_variables(stored)
  path = os.path.join(best_dir, os.path.basename(checkpoint))
  write_variables(path, {n: stored[n] for n in stored if n not in state})
  # The state file switches to the new checkpoint atomically.
  write_state_file(best_dir, path)
  # Last, so that there is a complete checkpoint at any time.
  for file, saved, _ in saved_files(best_dir):
    if saved != path:
      tf.gfile.Remove(file)
  return path


def prepare_resume(folder: str, last: str | None) -> None:
  """Makes the checkpoint of `find_start` the one that Estimator restores."""
  if resumable_checkpoint(folder) != last:  # found before the folder was locked
    raise InputError(
      f"{folder}: another run has trained there meanwhile. Re-run the same"
      " command to resume"
    )
  named = checkpoint_in_state_file(folder)
  if last and last != named:
    before = [
      checkpoint
      for checkpoint in sorted(_checkpoints_in(folder), key=_step_of)
      if _step_of(checkpoint) < _step_of(last)
      and not why_incomplete(checkpoint)
    ]
    write_state_file(folder, last, before)
  elif named and not last:
    tf.gfile.Remove(os.path.join(folder, STATE_FILE))
  # A run that is killed after its first save leaves its initial weights.
  if last and _step_of(last):
    tf.train.remove_checkpoint(os.path.join(folder, "model.ckpt-0"))
  for checkpoint_dir in (folder, os.path.join(folder, model_files.BEST)):
    remove_incomplete(checkpoint_dir)


def remove_incomplete(folder: str) -> None:
  """Removes files of interrupted saves, except the checkpoint named last."""
  named = os.path.basename(checkpoint_in_state_file(folder) or "")
  for path in files.matching(folder, f"{STATE_FILE}.tmp*"):
    if _TEMPORARY_STATE_FILE.fullmatch(path):
      tf.gfile.Remove(path)
  for path in files.matching(folder, "*.ckpt-*_temp*"):
    is_temporary = _TEMPORARY_FOLDER.fullmatch(path)
    if is_temporary and tf.gfile.IsDirectory(path):
      is_part = _TEMPORARY_PART.fullmatch
      if all(map(is_part, tf.gfile.ListDirectory(path))):  # no other files
        tf.gfile.DeleteRecursively(path)
  saved: dict[str, list[str]] = {}
  for path, checkpoint, is_temporary in saved_files(folder):
    if is_temporary:
      tf.gfile.Remove(path)
    elif os.path.basename(checkpoint) != named:
      saved.setdefault(checkpoint, []).append(path)
  for checkpoint, paths in saved.items():
    if why_incomplete(checkpoint):
      for path in paths:
        tf.gfile.Remove(path)
