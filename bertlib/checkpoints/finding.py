"""Finds the checkpoint to use; removes those that are incomplete."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import checkpoint_files
from bertlib.errors import InputError
from bertlib.files import atomic_write

# Name of a released checkpoint in its folder.
RELEASED = "bert_model.ckpt"

# Folder, in that of a model, of its best weights.
BEST = "best"

# In a folder, the text that names its checkpoints, the last one first.
STATE_FILE = "checkpoint"


def find_checkpoint(path: str) -> str:
  """The checkpoint that a path means.

  Args:
    path: that of a checkpoint, named as its files are without `.index`; or a
      folder that has one.

  Returns:
    The checkpoint. Of a folder it is the one that its `trained_checkpoint` is;
    of one that nothing was trained in, `bert_model.ckpt` or the only one.

  Raises:
    InputError: there is none, or it is ambiguous which.
  """
  is_part = re.search(r"\.(index|meta|data-\d+-of-\d+)$", path)
  if checkpoint_files.exists(path) and not is_part:
    return path
  if not tf.gfile.IsDirectory(path):
    raise InputError(
      f"{path}: no such checkpoint or folder. Name it as its files are, without"
      " .index or .data-00000-of-00001, or name its folder"
    )
  trained = trained_checkpoint(path)
  if trained:
    return trained
  indexes = tf.gfile.Glob(os.path.join(path, "*.index"))
  found = sorted(index.removesuffix(".index") for index in indexes)
  usual = [name for name in found if os.path.basename(name) == RELEASED]
  if len(usual or found) == 1:
    return (usual or found)[0]
  if found:
    names = ", ".join(map(os.path.basename, found))
    raise InputError(f"{path}: has several checkpoints: {names}. Name one")
  raise InputError(
    f"{path}: is a folder without a TensorFlow checkpoint."
    + (
      " Convert this Hugging Face model by convert_checkpoint.py"
      if tf.gfile.Exists(os.path.join(path, "config.json"))
      else " Name the folder that has one"
    )
  )


def check_checkpoint(path: str) -> None:
  """Refuses a checkpoint that is missing, incomplete or corrupt.

  Args:
    path: see `find_checkpoint`.

  Raises:
    InputError: there is none, or a file of it cannot be read.
  """
  checkpoint_files.check(find_checkpoint(path))


def trained_checkpoint(model_dir: str | None) -> str | None:
  """The checkpoint that a folder's model is used by.

  Args:
    model_dir: the folder, or None.

  Returns:
    The best, if training scored on the way; else the last; None without any.

  Raises:
    InputError: see `last_checkpoint`.
  """
  if not model_dir:
    return None
  best = last_checkpoint(os.path.join(model_dir, BEST))
  return best or last_checkpoint(model_dir)


def last_checkpoint(folder: str) -> str | None:
  """The last checkpoint of a folder that is complete and not corrupt.

  It is the one that the folder's `checkpoint` file names. Where that one is
  damaged, or there is no such file, it is the undamaged one of the highest
  step; a warning says so.

  Args:
    folder: the folder; may be missing.

  Returns:
    The checkpoint; None without any. A first one, of step 0, that is damaged
    counts for none: it has nothing that is not made again.

  Raises:
    InputError: there were checkpoints, and all of them are damaged; or without
      a `checkpoint` file there are several of one step.
  """
  named = checkpoint_in_state_file(folder)
  candidates = {named: _step_of(named)} if named else {}
  if not named or checkpoint_files.inspect(named).damage:
    found = sorted(_checkpoints_in(folder), key=_step_of, reverse=True)
    if not named and len(set(map(_step_of, found[:2]))) < len(found[:2]):
      raise InputError(
        f"{folder}: has {', '.join(map(os.path.basename, found[:2]))} and no"
        f" `{STATE_FILE}` that names the last one. Name one, or move the other"
      )
    candidates |= {checkpoint: _step_of(checkpoint) for checkpoint in found}
  passed_over = []
  for checkpoint in candidates:
    damage = checkpoint_files.inspect(checkpoint).damage
    if not damage:
      if checkpoint != named:
        why = passed_over or [f"{folder}: no `{STATE_FILE}` names the last one"]
        _warn_once(f"{'; '.join(why)}. Used instead: {checkpoint}")
      return checkpoint
    passed_over.append(damage)
  if any(candidates.values()):
    raise InputError(
      f"{'; '.join(passed_over)}. No undamaged checkpoint is left in {folder}:"
      f" restore one, or remove these and `{STATE_FILE}` to start over"
    )
  if passed_over:
    _warn_once(f"{passed_over[0]}. It was the first, and is made again")
  return None


def step_in_state_file(folder: str) -> int:
  """The step of the checkpoint that a folder names as its last; else 0."""
  named = checkpoint_in_state_file(folder)
  return max(_step_of(named), 0) if named else 0


def prepare_resume(folder: str) -> None:
  """Makes a folder ready for training to go on in.

  The last undamaged checkpoint becomes the one that Estimator restores. What
  killed runs left half-written is removed.

  Args:
    folder: the folder; may be missing.

  Raises:
    InputError: see `last_checkpoint`.
  """
  named, last = checkpoint_in_state_file(folder), last_checkpoint(folder)
  if last and last != named:
    write_state_file(
      folder,
      last,
      [
        checkpoint
        for checkpoint in sorted(_checkpoints_in(folder), key=_step_of)
        if _step_of(checkpoint) < _step_of(last)
        and not checkpoint_files.why_incomplete(checkpoint)
      ],
    )
  elif named and not last:
    tf.gfile.Remove(os.path.join(folder, STATE_FILE))
  for one in (folder, os.path.join(folder, BEST)):
    remove_incomplete(one)


def remove_incomplete(folder: str) -> None:
  """Removes what saves that did not come to their end have left.

  Args:
    folder: the folder; may be missing. The checkpoint that it names stays.
  """
  named = os.path.basename(checkpoint_in_state_file(folder) or "")
  for path in tf.gfile.Glob(os.path.join(folder, f"{STATE_FILE}.tmp*")):
    tf.gfile.Remove(path)
  files: dict[str, list[str]] = {}
  for path in tf.gfile.Glob(os.path.join(folder, "*.ckpt-*")):
    checkpoint, ending = re.fullmatch(r"(.*\.ckpt-\d*)(.*)", path).groups()
    if tf.gfile.IsDirectory(path):  # model.ckpt-7_temp
      tf.gfile.DeleteRecursively(path)
    elif re.search(r"\.(tempstate\d+|tmp[0-9a-f]+)$", ending):
      tf.gfile.Remove(path)
    elif os.path.basename(checkpoint) != named:
      files.setdefault(checkpoint, []).append(path)
  for checkpoint, paths in files.items():
    if checkpoint_files.why_incomplete(checkpoint):
      for path in paths:
        tf.gfile.Remove(path)


def checkpoint_in_state_file(folder: str) -> str | None:
  """What a folder's `checkpoint` file names, if it can be read."""
  try:
    state = tf.train.get_checkpoint_state(folder)
  except (ValueError, tf.errors.OpError):
    return None
  return state and state.model_checkpoint_path


def write_state_file(
  folder: str, last: str, before: Iterable[str] = ()
) -> None:
  """Writes a folder's `checkpoint` file.

  The names alone are written, so that the folder can be moved.
  """
  names = [os.path.basename(checkpoint) for checkpoint in (*before, last)]
  lines = [f'all_model_checkpoint_paths: "{name}"\n' for name in names]
  with atomic_write(os.path.join(folder, STATE_FILE)) as file:
    file.writelines([f'model_checkpoint_path: "{names[-1]}"\n', *lines])


def _checkpoints_in(folder: str) -> list[str]:
  """All checkpoints of training in a folder, whole or not."""
  indexes = tf.gfile.Glob(os.path.join(folder, "*.ckpt-*.index"))
  names = [index.removesuffix(".index") for index in indexes]
  return [name for name in names if re.search(r"\.ckpt-\d+$", name)]


def _step_of(checkpoint: str) -> int:
  """The step in a checkpoint's name; -1 without one."""
  number = re.search(r"-(\d+)$", checkpoint)
  return int(number[1]) if number else -1


@functools.cache
def _warn_once(message: str) -> None:
  """Warns of what several parts of a run come upon."""
  logging.warning("%s", message)


def find_model(
  init_checkpoint: str | None, output_dir: str, may_be_new: bool
) -> str | None:
  """Finds the checkpoint that has to hold all of the model.

  Args:
    init_checkpoint: `--init_checkpoint`, or None.
    output_dir: whose `trained_checkpoint` goes first.
    may_be_new: whether the run makes do with a model that is new, in whole or
      in part, as training does.

  Returns:
    The checkpoint; None for a model that is new.

  Raises:
    InputError: `init_checkpoint` is not there, there is no model, the
      checkpoint to use is damaged or, for training, contains NaN or Inf.
  """
  if init_checkpoint:
    init_checkpoint = find_checkpoint(init_checkpoint)
  trained = trained_checkpoint(output_dir)
  start = last_checkpoint(output_dir) or init_checkpoint
  if may_be_new and start:
    checkpoint_files.check_finite(start)
  if trained or may_be_new:
    return trained
  if not init_checkpoint:
    raise InputError(
      f"{output_dir}: holds no trained model; add --do_train, or name"
      " one with --init_checkpoint"
    )
  checkpoint_files.check(init_checkpoint)
  return init_checkpoint


def check_resume(resume: str, output_dir: str) -> None:
  """Refuses to train on where that is not wanted, or to begin anew likewise.

  Args:
    resume: "auto" for neither; "never" and "must" speak of training on.
    output_dir: the folder.

  Raises:
    InputError: it has a checkpoint, or none, against what is wanted.
  """
  last = last_checkpoint(output_dir)
  if resume == "never" and last:
    raise InputError(
      f"{output_dir}: holds {os.path.basename(last)}, and --resume=never does"
      " not go on from it. Name another --output_dir, or remove this one"
    )
  if resume == "must" and not last:
    raise InputError(
      f"{output_dir}: holds no checkpoint to go on from, which --resume=must"
      " needs. Give the --output_dir of the run, or --resume=auto"
    )


def steps_done(model_dir: str) -> int:
  """The step of the `last_checkpoint` in a folder; 0 where there is none."""
  checkpoint = last_checkpoint(model_dir)
  if checkpoint is None:
    return 0
  return int(tf.train.load_checkpoint(checkpoint).get_tensor("global_step"))
