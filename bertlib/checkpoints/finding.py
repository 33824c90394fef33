"""Finding the checkpoint to use, and removing incomplete ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bertlib.checkpoints import checkpoint_files
from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.io import files, model_files

# Subfolder of a model's folder with its best checkpoint.
BEST = "best"

# TensorFlow's text file that lists the checkpoints of a folder, latest first.
STATE_FILE = "checkpoint"


def find_checkpoint(path: str) -> str:
  """Checkpoint that a path without `.index`, or a folder, stands for."""
  is_file_name = re.search(r"\.(index|meta|data-\d+-of-\d+)$", path)
  if checkpoint_files.exists(path) and not is_file_name:
    return path
  if not tf.gfile.IsDirectory(path):
    raise InputError(
      f"{path}: no such checkpoint or folder. Name its files without .index or"
      " .data-00000-of-00001, or its folder"
    )
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
  checkpoint_files.check(find_checkpoint(path))


def trained_checkpoint(model_dir: str | None) -> str | None:
  """Best checkpoint of a model's folder, else the last one, else None."""
  if not model_dir:
    return None
  best = last_checkpoint(os.path.join(model_dir, BEST))
  return best or last_checkpoint(model_dir)


def model_checkpoint(folder: str) -> str | None:
  """The `trained_checkpoint` of a folder, else `bert_model.ckpt`, else None."""
  # Written by convert_checkpoint.py, and in the cache of published models.
  released = os.path.join(folder, model_files.CHECKPOINT)
  has_released = checkpoint_files.exists(released)
  return trained_checkpoint(folder) or (released if has_released else None)


def last_checkpoint(folder: str) -> str | None:
  """Last usable checkpoint of a folder, or None without any checkpoint."""
  named = checkpoint_in_state_file(folder)
  while named and (problem := checkpoint_files.inspect(named).problem):
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
    problem = checkpoint_files.inspect(checkpoint).problem
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


def step_in_state_file(folder: str) -> int:
  """Step of the checkpoint that the `checkpoint` file names; 0 if none."""
  return max(_step_of(checkpoint_in_state_file(folder) or ""), 0)


def prepare_resume(folder: str, last: str | None) -> None:
  """Makes the checkpoint of `find_start` the one that Estimator restores."""
  if last_checkpoint(folder) != last:  # found before the folder was locked
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
      and not checkpoint_files.why_incomplete(checkpoint)
    ]
    write_state_file(folder, last, before)
  elif named and not last:
    tf.gfile.Remove(os.path.join(folder, STATE_FILE))
  # A run that is killed after its first save leaves its initial weights.
  if last and _step_of(last):
    tf.train.remove_checkpoint(os.path.join(folder, "model.ckpt-0"))
  for checkpoint_dir in (folder, os.path.join(folder, BEST)):
    remove_incomplete(checkpoint_dir)


def remove_incomplete(folder: str) -> None:
  """Removes files of interrupted saves, except the checkpoint named last."""
  named = os.path.basename(checkpoint_in_state_file(folder) or "")
  for path in files.matching(folder, f"{STATE_FILE}.tmp*"):
    if checkpoint_files.TEMPORARY_STATE_FILE.fullmatch(path):
      tf.gfile.Remove(path)
  for path in files.matching(folder, "*.ckpt-*_temp*"):
    is_temporary = checkpoint_files.TEMPORARY_FOLDER.fullmatch(path)
    if is_temporary and tf.gfile.IsDirectory(path):
      is_part = checkpoint_files.TEMPORARY_PART.fullmatch
      if all(map(is_part, tf.gfile.ListDirectory(path))):  # no other files
        tf.gfile.DeleteRecursively(path)
  saved: dict[str, list[str]] = {}
  for path, checkpoint, is_temporary in checkpoint_files.saved_files(folder):
    if is_temporary:
      tf.gfile.Remove(path)
    elif os.path.basename(checkpoint) != named:
      saved.setdefault(checkpoint, []).append(path)
  for checkpoint, paths in saved.items():
    if checkpoint_files.why_incomplete(checkpoint):
      for path in paths:
        tf.gfile.Remove(path)


def save_best(model_dir: str, checkpoint: str) -> str:
  """Copies a checkpoint without optimizer to `best/`; returns its path."""
  best_dir = os.path.join(model_dir, BEST)
  tf.gfile.MakeDirs(best_dir)
  for name in model_files.COMPANIONS:
    source = os.path.join(model_dir, name)
    if tf.gfile.Exists(source):
      tf.gfile.Copy(source, os.path.join(best_dir, name), overwrite=True)
  stored = checkpoint_files.Checkpoint(checkpoint)
  state = checkpoint_files.optimizer_variables(stored)
  path = os.path.join(best_dir, os.path.basename(checkpoint))
  checkpoint_files.write_variables(
    path, {n: stored[n] for n in stored if n not in state}
  )
  # The state file switches to the new checkpoint atomically.
  write_state_file(best_dir, path)
  # Last, so that there is a complete checkpoint at any time.
  for file, saved, _ in checkpoint_files.saved_files(best_dir):
    if saved != path:
      tf.gfile.Remove(file)
  return path


def checkpoint_in_state_file(folder: str) -> str | None:
  """Latest checkpoint that the `checkpoint` file names; None if unreadable."""
  try:
    state = tf.train.get_checkpoint_state(folder)
  except (ValueError, tf.errors.OpError):
    return None
  return state and state.model_checkpoint_path


def write_state_file(
  folder: str, last: str, before: Iterable[str] = ()
) -> None:
  """Writes a folder's `checkpoint` file: the last one, and those before it."""
  # Names without folder: the folder can be moved.
  names = [os.path.basename(checkpoint) for checkpoint in (*before, last)]
  lines = [f'all_model_checkpoint_paths: "{name}"\n' for name in names]
  with files.atomic_write(os.path.join(folder, STATE_FILE)) as file:
    file.writelines([f'model_checkpoint_path: "{names[-1]}"\n', *lines])


def _checkpoints_in(folder: str) -> list[str]:
  """All training checkpoints in a folder, complete or not."""
  return [
    checkpoint
    for path, checkpoint, _ in checkpoint_files.saved_files(folder)
    if path == f"{checkpoint}.index"
  ]


def step_of(checkpoint: str) -> int:
  """Global step of a checkpoint; the one in its name if it is gone."""
  if not checkpoint_files.exists(checkpoint):
    return max(_step_of(checkpoint), 0)
  reader = checkpoint_files.open_reader(checkpoint)
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
  init_checkpoint: str | None,
  output_dir: str,
  may_be_new: bool,
  # Whether the model is that of --init_checkpoint in any case.
  reads_initial: bool = False,
) -> Start:
  """Finds and checks what a run starts from; a new model may have nothing."""
  if init_checkpoint:
    init_checkpoint = find_checkpoint(init_checkpoint)
  if reads_initial:
    checkpoint_files.check(init_checkpoint)
    ignored = trained_checkpoint(output_dir)
    return Start(trained=init_checkpoint, ignored=ignored)
  last = last_checkpoint(output_dir)
  best = last_checkpoint(os.path.join(output_dir, BEST))
  start = Start(best or last, last, trained=best or last)
  if may_be_new and (last or init_checkpoint):
    checkpoint_files.check_finite(last or init_checkpoint)
  if may_be_new and last:
    start = start._replace(step=step_of(last))
  if start.own or may_be_new:
    return start
  if not init_checkpoint:
    raise model_files.untrained(output_dir)
  checkpoint_files.check(init_checkpoint)
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
