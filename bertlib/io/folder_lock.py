"""Locks that allow one writer per output folder or output file.

A writer locks (`flock`) a hidden file with its host and process number. The
system releases the lock when the process ends for any reason: a killed run
leaves none behind.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import errno
import glob
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import IO, Any

from absl import logging

from bertlib.cli.errors import InputError
from bertlib.io import files

try:
  import fcntl
except ImportError:  # not on Windows
  fcntl = None  # type: ignore[assignment]

# Name of a folder's lock file; of other lock files, the ending.
LOCK_FILE = ".lock"

# Beginning of the names of the lock files that list output files, and the lock
# file that is held while they are read and one is added.
_LIST = ".bert-files-"
_LISTS_LOCK = f"{_LIST}all{LOCK_FILE}"

# Errors of `flock` on a file that another process has locked.
_HELD = (errno.EWOULDBLOCK, errno.EACCES)

# Errors of `flock` on file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

_held: list[int] = []


def held_files() -> tuple[int, ...]:
  """Descriptors of this process's locks, for `pass_fds` of a subprocess."""
  return tuple(_held)


@contextlib.contextmanager
def lock_folder(folder: str) -> Iterator[None]:
  """Holds the lock of an --output_dir, which is created, within the block."""
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
def lock_files(
  paths: Iterable[str], flag: str = "output_file"
) -> Iterator[None]:
  """Holds the locks of output files or folders within the block."""
  # Those in missing folders are not locked.
  names = collections.defaultdict(set)
  for path in filter(_can_be_locked, paths):
    folder, name = os.path.split(os.path.abspath(path))
    names[folder].add(name)
  with contextlib.ExitStack() as stack:
    for folder in sorted(names):
      stack.enter_context(_lock_names(folder, names[folder], flag))
    yield


@contextlib.contextmanager
def _lock_names(folder: str, names: set[str], flag: str) -> Iterator[None]:
  """Holds the locks of files in a folder within the block."""
  # One lock per folder for any number of files: several processes can write
  # different files to it.
  lists_lock = os.path.join(folder, _LISTS_LOCK)
  with _lock(lists_lock, folder, flag, waits=True) as is_locked:
    if is_locked:
      _check_free(folder, names, flag)
      path = os.path.join(folder, f"{_LIST}{uuid.uuid4().hex}{LOCK_FILE}")
      descriptor = _acquire(path, folder, flag, files=sorted(names))
  if not is_locked:
    yield
    return
  with _hold(descriptor, path):
    yield


def _check_free(folder: str, names: set[str], flag: str) -> None:
  """Refuses names that are in the list of another process."""
  pattern = os.path.join(glob.escape(folder), f"{_LIST}*{LOCK_FILE}")
  for path in glob.glob(pattern):
    content = b"{}"
    if os.path.basename(path) != _LISTS_LOCK:
      with contextlib.suppress(OSError):
        content = _read_list(path)
    taken = sorted(names.intersection(json.loads(content).get("files", ())))
    if taken:
      raise _refusal(os.path.join(folder, taken[0]), content, flag)


def _read_list(path: str) -> bytes:
  """Content of the list of a process; removes that of a killed one."""
  with open(path, "rb") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
      if error.errno not in _HELD:
        raise
      return file.read()
    os.remove(path)
  return b"{}"


@contextlib.contextmanager
def wait_for_lock(lock_file: str) -> Iterator[None]:
  """Holds a lock file within the block; waits for another holder."""
  with open(lock_file, "w") as file:
    _wait_for(file)
    # The file stays: another process may wait for it.
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


def _can_be_locked(path: str) -> bool:
  """True for local paths, present or not, but not for devices and pipes."""
  in_folder = os.path.isdir(os.path.dirname(os.path.abspath(path)))
  if files.is_remote(path) or not in_folder:
    return False
  is_plain = os.path.isfile(path) or os.path.isdir(path)
  return is_plain or not os.path.exists(path)


@contextlib.contextmanager
def _lock(
  lock_file: str, target: str, flag: str, waits: bool = False
) -> Iterator[bool]:
  """Holds a lock within the block; yields False if it cannot be locked."""
  descriptor = _acquire(lock_file, target, flag, waits)
  if descriptor is None:
    yield False
    return
  with _hold(descriptor, lock_file):
    yield True


@contextlib.contextmanager
def _hold(descriptor: int, lock_file: str) -> Iterator[None]:
  """Releases a lock after the block; the lock file is removed."""
  # Subprocesses that inherit the descriptor hold the lock too.
  _held.append(descriptor)
  try:
    yield
  finally:
    _held.remove(descriptor)
    # Remove the file before releasing the lock: `_is_at` detects that.
    with contextlib.suppress(OSError):
      os.remove(lock_file)
    os.close(descriptor)


def _acquire(
  lock_file: str, target: str, flag: str, waits: bool = False, **content: Any
) -> int | None:
  """Locks a file; returns its descriptor, or None if it cannot be locked."""
  if fcntl is None or files.is_remote(lock_file):
    _warn_unlocked(target)
    return None
  waits_for_reader = True
  while True:
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
      if _is_at(descriptor, lock_file):
        os.ftruncate(descriptor, 0)
        with open(descriptor, "wb", closefd=False) as file:
          file.write(json.dumps({**_own(), **content}).encode())
        return descriptor
      os.close(descriptor)  # the previous holder has just removed the file
    except OSError as error:
      content_of_holder = os.pread(descriptor, 4096, 0)
      os.close(descriptor)
      if error.errno in _NO_LOCKS:
        with contextlib.suppress(OSError):
          os.remove(lock_file)
        _warn_unlocked(target)
        return None
      if error.errno not in _HELD:
        error.filename = lock_file
        raise
      if waits_for_reader:  # `is_locked` holds a lock for a moment
        waits_for_reader = False
        time.sleep(0.1)
        continue
      raise _refusal(target, content_of_holder, flag) from error


def _refusal(target: str, holder: bytes, flag: str) -> InputError:
  """The error for a target whose lock another process holds."""
  return InputError(
    f"{target}: {_describe(holder)} is writing to it. Wait for it to end, stop"
    f" it, or name another --{flag}"
  )


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
