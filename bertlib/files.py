"""Local and remote files: opened, found, and written whole or not at all.

A remote path has a scheme (`gs://bucket/file`); TensorFlow's file systems, and
TensorFlow itself, are imported for no other.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import gzip
import json
import os
import re
import shutil
import socket
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import IO, Any, Callable

from bertlib import errors
from bertlib.errors import InputError

# Of each `files_read` that is open, the files read so far.
_watchers: list[dict[str, None]] = []


def is_remote(path: str) -> bool:
  """True for a path with a scheme, such as `gs://bucket/file`."""
  return "://" in path


def _file_system(path: str) -> Any:
  """Functions for local files, or the same of TensorFlow for remote ones."""
  if not is_remote(path):
    return SimpleNamespace(
      exists=os.path.exists,
      glob=glob.glob,
      listdir=os.listdir,
      makedirs=functools.partial(os.makedirs, exist_ok=True),
      open=_open_local,
      remove=os.remove,
      replace=os.replace,
      rmtree=shutil.rmtree,
      state=_state_of_local,
    )
  from tensorflow.io import gfile

  return SimpleNamespace(
    exists=gfile.exists,
    glob=gfile.glob,
    listdir=gfile.listdir,
    makedirs=gfile.makedirs,
    open=gfile.GFile,
    remove=gfile.remove,
    replace=functools.partial(gfile.rename, overwrite=True),
    rmtree=gfile.rmtree,
    state=lambda path: (gfile.stat(path).length, 0),
  )


def _state_of_local(path: str) -> tuple[int, int]:
  state = os.stat(path)
  return state.st_size, state.st_mtime_ns


def _open_local(path: str, mode: str) -> IO[Any]:
  text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
  return open(path, mode, **text)


# Files that appear whole or not at all


def temporary_name(path: str) -> str:
  """The name that `path` is written under until it is complete."""
  return f"{path}.{socket.gethostname()}.{os.getpid()}.tmp"


def remove_stale_files(pattern: str) -> None:
  """Removes what killed processes left half-written.

  Args:
    pattern: of the complete files, with wildcards. Those of another machine
      have to be a day old: whether their process is alive cannot be asked.
  """
  if is_remote(pattern):
    return
  for path in glob.glob(f"{pattern}.*.*.tmp"):
    name = re.search(r"\.([^/]+?)\.(\d+)\.tmp$", path)
    if not name:
      continue
    with contextlib.suppress(OSError):
      if path.endswith(f".{socket.gethostname()}.{name[2]}.tmp"):
        is_stray = not _is_alive(int(name[2]))
      else:
        is_stray = time.time() - os.path.getmtime(path) > 24 * 3600
      if is_stray:
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def _is_alive(pid: int) -> bool:
  """Whether another process of this machine has this number."""
  if pid == os.getpid():
    return False
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  except OSError:  # it is another user's
    pass
  return True


@contextlib.contextmanager
def atomic_path(path: str) -> Iterator[str]:
  """Gives a name beside `path`, for a file that appears whole or not at all.

  The file written under that name takes its own at the end of the block; if
  the block fails it is removed, and an earlier file at `path` is untouched.

  Args:
    path: file to write, local or remote. A device or a pipe (`/dev/stdout`) is
      written as it is.

  Yields:
    The name to write to.
  """
  if os.path.exists(path) and not os.path.isfile(path):
    yield path
    return
  with _moved_on_success(path, _file_system(path).remove) as beside:
    yield beside


@contextlib.contextmanager
def atomic_folder(path: str) -> Iterator[str]:
  """Gives a name beside `path`, for a folder that appears whole or not at all.

  Args:
    path: the folder, local or remote, which must not be there.

  Yields:
    The name to write to.

  Raises:
    InputError: it is there.
  """
  path = path.rstrip("/")
  if exists(path):
    raise InputError(f"{path}: is there already; name a folder that is not")
  with _moved_on_success(path, _file_system(path).rmtree) as beside:
    yield beside


@contextlib.contextmanager
def _moved_on_success(path: str, remove: Callable[[str], Any]) -> Iterator[str]:
  """A temporary name, renamed to `path` after the block, or removed."""
  remove_stale_files(glob.escape(path))
  beside = temporary_name(path)
  try:
    yield beside
    _file_system(path).replace(beside, path)
  except BaseException:
    with contextlib.suppress(Exception):
      remove(beside)
    raise


@contextlib.contextmanager
def atomic_files(
  folder: str, overwrite: bool = True, inputs: Iterable[str | None] = ()
) -> Iterator[str]:
  """Gives a folder whose files move into another when all are written.

  Args:
    folder: where they are to be, local or remote; made if it is missing.
    overwrite: whether files of the same names there may be replaced.
    inputs: files that may not be replaced in any case.

  Yields:
    The folder to write to. Its files are moved in the order of their names.

  Raises:
    InputError: a file is there and may not be replaced; nothing is written.
  """
  if not is_remote(folder):
    folder = os.path.abspath(folder)
  system = _file_system(folder)
  # Within a folder that is there, which may be a file system of its own.
  whole = os.path.join(folder, "files") if system.exists(folder) else folder
  remove_stale_files(glob.escape(whole))
  beside = temporary_name(whole)
  system.makedirs(beside)
  try:
    yield beside
    names = sorted(system.listdir(beside))
    paths = {name: os.path.join(folder, name) for name in names}
    check_outputs(paths.values(), inputs)
    there = [name for name in names if system.exists(paths[name])]
    if there and not overwrite:
      raise InputError(
        f"{folder}: has {', '.join(there)} already; name another folder or"
        " add --overwrite"
      )
    system.makedirs(folder)
    for name, path in paths.items():
      system.replace(os.path.join(beside, name), path)
  finally:
    system.rmtree(beside)


@contextlib.contextmanager
def resumable_file(path: str) -> Iterator[str]:
  """Gives the name `path` + ".part" for a file that several runs may write.

  As of `atomic_path`, but what a failed block has written stays for the next.
  """
  part = f"{path}.part"
  yield part
  os.replace(part, path)


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w") -> Iterator[IO[Any]]:
  """Opens an `atomic_path` for writing.

  Args:
    path: file to write.
    mode: "w" for text (UTF-8, line ends as given) or "wb" for bytes.

  Yields:
    The open file.
  """
  with atomic_path(path) as beside:
    try:
      with open_any(beside, mode) as file:
        yield file
    except OSError as error:
      unnamed = error.filename is None and error.errno in errors.NO_ROOM
      if unnamed or error.filename == beside:
        error.filename = path
      raise


def open_any(path: str, mode: str = "r") -> IO[Any]:
  """`open` with UTF-8 and line ends as they are, for remote files too.

  Args:
    path: of the file, local or remote.
    mode: as for `open`.

  Returns:
    The open file.
  """
  if "r" in mode:
    for paths in _watchers:
      paths[path] = None
  return _file_system(path).open(path, mode)


@contextlib.contextmanager
def files_read() -> Iterator[dict[str, None]]:
  """Watches which files `open_any` opens for reading.

  A processor of one's own need not say which files its data are in.

  Yields:
    Their paths as keys, each once and in order, as they come.
  """
  paths: dict[str, None] = {}
  _watchers.append(paths)
  try:
    yield paths
  finally:
    _watchers.pop()


def exists(path: str) -> bool:
  """Whether there is a file or a folder, local or remote."""
  return _file_system(path).exists(path)


def remove_file(path: str) -> None:
  """Removes a file, local or remote."""
  _file_system(path).remove(path)


def file_state(path: str) -> tuple[int, int]:
  """Size of a file in bytes and, if it is local, its modification time."""
  return _file_system(path).state(path)


def make_folder(path: str) -> None:
  """Makes a folder, local or remote, and those that it is in.

  Args:
    path: the folder, which may be there; "" for the current one.
  """
  if path:
    _file_system(path).makedirs(path)


def check_outputs(outputs: Iterable[str], inputs: Iterable[str | None]) -> None:
  """Refuses outputs that would take the place of inputs.

  A file is the same under another path, through a link and as standard input.

  Args:
    outputs: files to write; they may be missing.
    inputs: files to read; "-" for standard input, None for nothing.

  Raises:
    InputError: one is both.
  """
  read = {_identity(path): path for path in inputs if path}
  read.pop(None, None)
  for path in outputs:
    if _identity(path) in read:
      raise InputError(
        f"{path}: would overwrite {read[_identity(path)]}, which is an input."
        " Name another output"
      )


def check_output_dir(
  folder: str, names: Iterable[str], inputs: Iterable[str | None]
) -> None:
  """Refuses a folder where what is written would take the place of inputs.

  Args:
    folder: the folder; it may be missing.
    names: patterns of the names of the files that will be written there.
    inputs: see `check_outputs`.

  Raises:
    InputError: an input is a file of such a name, or linked to one.
  """
  find = _file_system(folder).glob
  for name in names:
    check_outputs(find(os.path.join(glob.escape(folder), name)), inputs)


def checkpoint_files(prefix: str | None) -> list[str]:
  """The files of a checkpoint, which is named without their endings."""
  if not prefix:
    return []
  find = _file_system(prefix).glob
  return [
    path
    for ending in (".index", ".data-*")
    for path in find(glob.escape(prefix) + ending)
  ]


def _identity(path: str) -> Any:
  """Equal for paths of the same file; None where there is no such file."""
  path = path.removeprefix("file://")
  if is_remote(path):
    scheme, _, rest = path.partition("://")
    return scheme, os.path.normpath(rest)
  try:
    state = os.fstat(0) if path == "-" else os.stat(path)
  except OSError:
    return None
  is_file = stat.S_ISREG(state.st_mode)
  return (state.st_dev, state.st_ino) if is_file else None


def file_within(folder: str, name: Any, source: str) -> str:
  """The path of a file that another file names.

  Args:
    folder: of both.
    name: of the file, as `source` has it.
    source: the path of the other file.

  Returns:
    The path.

  Raises:
    InputError: it is not a name of a file in the folder, or a link that leads
      out of it. Where the folder is itself made of links into another, as a
      Hugging Face cache is, files beside the linked `source` are in it too.
  """
  fault = None
  path = os.path.join(folder, str(name))
  if not isinstance(name, str) or not name or "\0" in name:
    fault = "is not a file name"
  elif os.path.isabs(name) or ".." in re.split(r"[/\\]", name):
    fault = "is outside its folder"
  elif not os.path.isfile(path):
    fault = "is not there"
  else:
    folders = (
      os.path.realpath(folder),
      os.path.dirname(os.path.realpath(source)),
    )
    real = os.path.realpath(path)
    if not any(real.startswith(os.path.join(one, "")) for one in folders):
      fault = "is a link to a file outside its folder"
  if fault:
    raise InputError(
      f"{source}: names {json.dumps(name)}, which {fault}. Fetch the files"
      " again"
    )
  return path


def split_names(names: str | Sequence[str] | None) -> list[str]:
  """Splits the value of a flag that names files.

  Args:
    names: comma-separated names; or, from Python, a sequence of names.

  Returns:
    The names without the spaces around them. An empty list for None or "".
  """
  if isinstance(names, str):
    names = names.split(",") if names else []
  return [name.strip() for name in names or []]


def find_files(
  patterns: Iterable[str],
  remote_glob: Callable[[str], list[str]] | None = None,
) -> list[str]:
  """The files of names and wildcards.

  Args:
    patterns: file names, `*` and `?` allowed. Hidden files and receipts
      (`.run.json`), which are nobody's input, match no wildcard.
    remote_glob: finds the remote files of a pattern; None for TensorFlow's.

  Returns:
    The files, those of one pattern in the order of their names, after those of
    the pattern before.

  Raises:
    InputError: a pattern matches nothing.
  """
  found = []
  for pattern in patterns:
    if not is_remote(pattern) and os.path.exists(pattern):
      names = [pattern]
    elif is_remote(pattern) and remote_glob:
      names = remote_glob(pattern)
    else:
      names = _file_system(pattern).glob(pattern)
    names = [
      name
      for name in names
      if name == pattern
      or (
        not os.path.basename(name).startswith(".")
        and not name.endswith(".run.json")
      )
    ]
    if not names:
      raise InputError(f"{pattern}: no such file")
    found += sorted(names)
  return found


def read_lines(path: str, open_file=open_any) -> Iterator[bytes]:
  """The lines of a file.

  Args:
    path: the file; if its name ends in .gz it is unpacked.
    open_file: opens it, given the path and "rb".

  Yields:
    Lines with their ends.

  Raises:
    InputError: the file is not a whole gzip file, though its name says so.
  """
  with open_file(path, "rb") as file:
    if not path.endswith(".gz"):
      yield from file
      return
    try:
      with gzip.open(file) as unpacked:
        yield from unpacked
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      raise InputError(
        f"{path}: not a whole gzip file ({error}). Fetch or pack it again"
      ) from error
