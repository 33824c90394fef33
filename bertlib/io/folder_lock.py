"""Locks that allow one writer per output folder or output file.

A writer locks (`flock`) a hidden file that names it. The system releases the
lock when the process ends for any reason: a killed run leaves none behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import socket
from collections.abc import Iterable, Iterator
from typing import IO

from absl import logging

from bertlib.cli.errors import InputError
from bertlib.io import files

# Name of a folder's lock file; of other lock files, the ending.
LOCK_FILE = ".lock"

# Errors of `flock` on file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

_held: list[int] = []


def held_files() -> tuple[int, ...]:
  """Descriptors of this process's locks, for `pass_fds` of a subprocess."""
  return tuple(_held)


def _close_in_fork() -> None:
  """Closes the locks of the parent, which a forked process would keep."""
  while _held:
    os.close(_held.pop())


os.register_at_fork(after_in_child=_close_in_fork)


@contextlib.contextmanager
def lock_folder(folder: str) -> Iterator[None]:
  """Holds the lock of an --output_dir, which is created, within the block."""
  files.make_folder(folder)
  with _lock(os.path.join(folder, LOCK_FILE), folder, "output_dir"):
    files.remove_stale_files(os.path.join(glob.escape(folder), "*"))
    yield


def is_locked(folder: str) -> bool:
  """True if a process holds the lock of an output folder."""
  if files.is_remote(folder):
    return False
  try:
    with open(os.path.join(folder, LOCK_FILE)) as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except OSError as error:
    return isinstance(error, BlockingIOError)
  return False


@contextlib.contextmanager
def lock_files(
  paths: Iterable[str], flag: str = "output_file"
) -> Iterator[None]:
  """Holds the locks of output files or folders within the block."""
  # Those in missing folders are not locked.
  locked = {os.path.abspath(path) for path in paths if _can_be_locked(path)}
  with contextlib.ExitStack() as stack:
    for path in sorted(locked):
      folder, name = os.path.split(path)
      lock_file = os.path.join(folder, f".{name}{LOCK_FILE}")
      stack.enter_context(_lock(lock_file, path, flag))
    yield


@contextlib.contextmanager
def changing(folder: str) -> Iterator[None]:
  """Waits for, and holds off, other processes in a block like this one."""
  if files.is_remote(folder):
    yield
    return
  # The folder itself is locked, so that no file stays behind.
  descriptor = os.open(folder or ".", os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):  # of file systems without such locks
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
  finally:
    os.close(descriptor)


def _can_be_locked(path: str) -> bool:
  """True for local paths, present or not, but not for devices and pipes."""
  in_folder = os.path.isdir(os.path.dirname(os.path.abspath(path)))
  if files.is_remote(path) or not in_folder:
    return False
  return files.is_plain(path) or os.path.isdir(path)


@contextlib.contextmanager
def _lock(lock_file: str, target: str, flag: str) -> Iterator[None]:
  """Holds a lock within the block; the lock file is removed afterwards."""
  if files.is_remote(lock_file):
    _warn_unlocked(target)
    yield
    return
  descriptor = _acquire(lock_file, target, flag)
  # Subprocesses that inherit the descriptor hold the lock too.
  _held.append(descriptor)
  try:
    yield
  finally:
    _held.remove(descriptor)
    # Removed before it is released, which `_acquire` detects.
    with contextlib.suppress(OSError):
      os.remove(lock_file)
    os.close(descriptor)


def _acquire(lock_file: str, target: str, flag: str) -> int:
  """Locks a file and writes this process into it; returns its descriptor."""
  descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)
  try:
    flock(descriptor, target)
  except OSError as error:
    holder = os.read(descriptor, 4096).decode(errors="replace")
    os.close(descriptor)
    if not isinstance(error, BlockingIOError):
      raise
    raise InputError(
      f"{target}: {holder or 'another process'} is writing to it. Wait for it"
      f" to end, stop it, or name another --{flag}"
    ) from error
  if not _is_at(descriptor, lock_file):
    os.close(descriptor)  # the previous holder has just removed the file
    return _acquire(lock_file, target, flag)
  content = f"process {os.getpid()} on {socket.gethostname()}"
  os.ftruncate(descriptor, 0)
  os.write(descriptor, content.encode())
  return descriptor


def flock(file: IO[str] | int, target: str, waits: bool = False) -> None:
  """Locks an open file; where locks do not work, a warning."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
  except OSError as error:
    error.filename = target
    if error.errno not in _NO_LOCKS:
      raise
    _warn_unlocked(target)


def _is_at(descriptor: int, path: str) -> bool:
  """True if an open file is still the one at a path."""
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False


def _warn_unlocked(target: str) -> None:
  logging.warning(
    "%s: cannot be locked, so a second run could write to it at the same time",
    target,
  )
