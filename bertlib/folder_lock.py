"""Locks that allow one writer per output folder or output file.

A writer of outputs is refused if another holds the lock; one that fills a cache
waits for the other.

A writer locks (`flock`) a hidden file that contains its host and process
number. The operating system releases the lock when the process ends for any
reason, so that a killed run leaves no lock behind. Subprocesses that inherit
the open files (`held_files`) hold the lock too.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import glob
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from typing import IO

from absl import logging

from bertlib import files
from bertlib.errors import InputError

try:
  import fcntl
except ImportError:  # not on Windows
  fcntl = None  # type: ignore[assignment]

# Name of a folder's lock file; for output files, its ending.
LOCK_FILE = ".lock"

# Errors of `flock` on a file that another process has locked.
_HELD = (errno.EWOULDBLOCK, errno.EACCES)

# Errors of `flock` on file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

# Maximum number of locked files per run; each lock needs an open file.
_MAX_FILES = 256

_held: list[int] = []


def held_files() -> tuple[int, ...]:
  """Descriptors of this process's locks, for `pass_fds` of a subprocess."""
  return tuple(_held)


@contextlib.contextmanager
def lock_folder(folder: str) -> Iterator[None]:
  """Holds the lock of an output folder within the block.

  Creates the folder if it is missing, and removes temporary files of killed
  runs from it.

  Args:
    folder: the `--output_dir`. A remote folder, or one on a file system without
      locks, is not locked; a warning is logged.

  Raises:
    InputError: another process holds the lock.
  """
  files.make_folder(folder)
  with _lock(os.path.join(folder, LOCK_FILE), folder, "output_dir"):
    files.remove_stale_files(os.path.join(glob.escape(folder), "*"))
    yield


def is_locked(folder: str) -> bool:
  """True if a process holds the lock of an output folder."""
  if fcntl is None or files.is_remote(folder):
    return False
  try:
    with open(os.path.join(folder, LOCK_FILE)) as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except OSError as error:
    return error.errno in _HELD
  return False


@contextlib.contextmanager
def lock_files(paths: Iterable[str]) -> Iterator[None]:
  """Holds the locks of output files within the block.

  Args:
    paths: the files, in existing folders. Each has its own lock, so that
      several runs can write different files to one folder.

  Raises:
    InputError: another process holds one of the locks.
  """
  with contextlib.ExitStack() as stack:
    for path in sorted({os.path.abspath(p) for p in paths if _is_file(p)})[
      :_MAX_FILES
    ]:
      folder, name = os.path.split(path)
      lock_file = os.path.join(folder, f".{name}{LOCK_FILE}")
      stack.enter_context(_lock(lock_file, path, "output_file"))
    yield


@contextlib.contextmanager
def wait_for_lock(lock_file: str) -> Iterator[None]:
  """Holds a lock file within the block; waits while another process holds it.

  Args:
    lock_file: local path in an existing folder; not removed at the end. On a
      file system without locks it is not locked; a warning is logged.
  """
  with open(lock_file, "w") as file:
    _wait_for(file)
    yield


def _wait_for(file: IO[str]) -> None:
  if fcntl is None:
    _warn_unlocked(file.name.removesuffix(LOCK_FILE))
    return
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    if error.errno in _NO_LOCKS:
      _warn_unlocked(file.name.removesuffix(LOCK_FILE))
    elif error.errno in _HELD:
      logging.info("%s: locked by another process; waiting", file.name)
      fcntl.flock(file, fcntl.LOCK_EX)
    else:
      raise


def _is_file(path: str) -> bool:
  """True for local files, present or not, but not for devices and pipes."""
  in_folder = os.path.isdir(os.path.dirname(path) or ".")
  if files.is_remote(path) or not in_folder:
    return False
  return os.path.isfile(path) or not os.path.exists(path)


@contextlib.contextmanager
def _lock(lock_file: str, target: str, flag: str) -> Iterator[None]:
  """Holds a lock within the block; the lock file is removed at its end."""
  descriptor = _acquire(lock_file, target, flag)
  if descriptor is None:
    yield
    return
  _held.append(descriptor)
  try:
    yield
  finally:
    _held.remove(descriptor)
    # Remove the file before releasing the lock: `_is_at` detects that.
    with contextlib.suppress(OSError):
      os.remove(lock_file)
    os.close(descriptor)


def _acquire(lock_file: str, target: str, flag: str) -> int | None:
  """Locks a file; returns its descriptor, or None if it cannot be locked."""
  if fcntl is None or files.is_remote(lock_file):
    _warn_unlocked(target)
    return None
  waits = True
  while True:
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if _is_at(descriptor, lock_file):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(_own()).encode())
        return descriptor
      os.close(descriptor)  # the previous holder has just removed the file
    except OSError as error:
      holder = _describe(os.pread(descriptor, 4096, 0))
      os.close(descriptor)
      if error.errno in _NO_LOCKS:
        with contextlib.suppress(OSError):
          os.remove(lock_file)
        _warn_unlocked(target)
        return None
      if error.errno not in _HELD:
        error.filename = lock_file
        raise
      if waits:  # `is_locked` holds a lock for a moment
        waits = False
        time.sleep(0.1)
        continue
      raise InputError(
        f"{target}: {holder} is writing to it. Wait for it to end, stop it, or"
        f" name another --{flag}"
      ) from error


def _is_at(descriptor: int, path: str) -> bool:
  """True if an open file is still the one at a path."""
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False


def _own() -> dict[str, str | int]:
  now = datetime.datetime.now().astimezone()
  return {
    "host": socket.gethostname(),
    "pid": os.getpid(),
    "since": now.isoformat(timespec="seconds"),
  }


def _describe(content: bytes) -> str:
  """Describes the holder of a lock, given the content of the lock file."""
  try:
    holder = json.loads(content)
    return (
      f"process {holder['pid']} on {holder['host']} (or one that it started),"
      f" since {holder['since']},"
    )
  except (ValueError, KeyError, TypeError):
    return "another process"


def _warn_unlocked(target: str) -> None:
  logging.warning(
    "%s: cannot be locked, so a second run could write to it at the same time",
    target,
  )
