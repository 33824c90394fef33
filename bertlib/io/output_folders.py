"""Outputs of commands that train nothing: folders, and sets of files.

They appear complete or not at all.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator

from absl import logging

from bertlib.cli.errors import InputError
from bertlib.io import files, folder_lock


@contextlib.contextmanager
def atomic_folder(path: str, overwrite: bool = False) -> Iterator[str]:
  """Yields a temporary path; the folder appears complete or not at all."""
  path = path.rstrip("/")
  if files.exists(path) and not overwrite:
    raise InputError(f"{path}: exists already; name a folder that does not")
  # An existing folder is replaced as a whole.
  system = files.file_system(path)
  with files.moved_on_success(
    path, system.rmtree, _replace_folder
  ) as temporary:
    yield temporary


def _replace_folder(source: str, path: str) -> None:
  """Renames a folder; one that is at `path` is removed afterwards."""
  system = files.file_system(path)
  if not system.exists(path):
    system.replace(source, path)
    return
  # Without the name of a temporary folder, an end of this process between the
  # two renames loses nothing.
  folder, name = os.path.split(path)
  old = os.path.join(folder, f".bert-old-{uuid.uuid4().hex[:8]}-{name}")
  system.replace(path, old)
  try:
    system.replace(source, path)
  except BaseException:
    system.replace(old, path)
    raise
  system.rmtree(old)


@contextlib.contextmanager
def atomic_files(
  folder: str, overwrite: bool = True, inputs: Iterable[str | None] = ()
) -> Iterator[str]:
  """Yields a temporary folder whose files are moved when all are written."""
  if not files.is_remote(folder):
    folder = os.path.abspath(folder)
  system = files.file_system(folder)

  def move_files(source: str, _: str) -> None:
    # In this order they are moved.
    names = sorted(
      os.path.relpath(os.path.join(parent, name), source)
      for parent, _, found in system.walk(source)
      for name in found
    )
    paths = {name: os.path.join(folder, name) for name in names}
    # Inputs are never replaced, whatever `overwrite` says.
    files.check_outputs(paths.values(), inputs)
    existing = [name for name in names if files.exists(paths[name])]
    if existing and not overwrite:
      raise InputError(
        f"{folder}: has {', '.join(existing)} already; name another folder or"
        " add --overwrite"
      )
    for name, path in paths.items():
      system.makedirs(os.path.dirname(path))
      system.replace(os.path.join(source, name), path)
    system.rmtree(source)

  # An existing folder may be a mount point, so that the temporary folder must
  # be inside of it.
  target = os.path.join(folder, "files") if system.exists(folder) else folder
  with files.moved_on_success(target, system.rmtree, move_files) as temporary:
    system.makedirs(temporary)
    yield temporary


@contextlib.contextmanager
def folders_for(paths: Iterable[str]) -> Iterator[None]:
  """Creates the folders of local files; removes them if the block fails."""
  created = []
  for folder in map(os.path.dirname, paths):
    while folder and not files.is_remote(folder) and not os.path.exists(folder):
      created.append(folder)
      folder = os.path.dirname(folder)
  for folder in created:
    os.makedirs(folder, exist_ok=True)
  try:
    yield
  except BaseException:
    for folder in sorted(created, key=len, reverse=True):
      with contextlib.suppress(OSError):  # not empty
        os.rmdir(folder)
    raise


def check_new(flag: str, path: str, overwrite: bool) -> None:
  """Refuses the output of a flag that exists, unless it may be replaced."""
  # Devices and pipes are written directly.
  is_kept = files.is_plain(path) or os.path.isdir(path)
  if is_kept and files.exists(path) and not overwrite:
    raise InputError(
      f"--{flag}={path}: exists already. Name another one or add --overwrite"
    )


@contextlib.contextmanager
def wait_for_lock(lock_file: str) -> Iterator[None]:
  """Holds a lock file within the block; waits for another holder."""
  target = lock_file.removesuffix(folder_lock.LOCK_FILE)
  with open(lock_file, "w") as file:
    try:
      folder_lock.flock(file, target)
    except BlockingIOError:
      logging.info("%s: locked by another process; waiting", lock_file)
      folder_lock.flock(file, target, waits=True)
    # The file stays: another process may wait for it.
    yield
