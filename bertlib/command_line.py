"""What every command line shares: one-line errors, progress, files in and out.

Needs no TensorFlow, so that data making can use it without paying for that.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import gzip
import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from logging import Formatter
from typing import IO, Any, Callable

from absl import app, flags, logging
from tqdm import tqdm

# What a receipt has to hold, see `json_files`.
_FILE = {"what": str, "path": str, "flags": [str], "bytes": int, "sha256": str}
_RECEIPT = {
  "script": str,
  "given": [str],
  "path": str,
  "files": [_FILE],
  "code": dict,
  "versions": dict,
  "results": (dict, type(None)),
  "checkpoint?": (dict, type(None)),
}

# What the operating system says of a place that takes no more.
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS)

# Of each `files_read` that is open, the files read so far.
_watchers: list[dict[str, None]] = []


class InputError(ValueError):
  """Something that the person at the keyboard can mend.

  Its message is all that is shown: one line that names the file, the place in
  it and the cure. Anything else that goes wrong keeps its traceback.
  """


class Stopped(SystemExit):
  """SIGINT or SIGTERM ends the program.

  It passes through whatever is open, so that no file is left half-written. Its
  `code` is the status of the process, as shells report it.
  """

  def __init__(self, number: int):
    """Takes the signal's number."""
    super().__init__(128 + number)
    self.signal_name = signal.Signals(number).name


def run(main: Callable[[list[str]], Any]) -> None:
  """Runs `main` under absl; what the user can mend costs one line, status 1.

  Flags are checked first, see `rules.check`. An `InputError`, a file that
  cannot be opened and a full disk are things that the user can mend; the
  traceback is still there at `--verbosity=1`. `--rerun=run.json` puts the flags
  of that receipt before those of the command line.
  """
  from bertlib import tensorflow_log
  from bertlib.settings import (
    rules,  # it raises the errors that are defined here
  )

  tensorflow_log.define_flag()

  def parse_flags(argv):
    with _one_line():
      argv, receipt = with_receipt(argv)
    if receipt:
      # What this process starts by `sys.argv` repeats nothing by itself.
      sys.argv[:] = argv
      argv = [argv[0], f"--rerun={receipt}", *argv[1:]]
    with _one_line():
      return _parse_flags(argv)

  def main_or_one_line(argv):
    logging.get_absl_handler().setFormatter(
      _LogFormatter("%(asctime)s %(message)s", "%H:%M:%S")
    )
    with _one_line(), on_stop_signals(_stop):
      rules.check(flags.FLAGS)
      return main(argv)

  flags.FLAGS.set_default("verbosity", logging.INFO)
  app.run(main_or_one_line, flags_parser=parse_flags)


def _parse_flags(argv: list[str]) -> list[str]:
  """Parses flags; the help flags end the program with status 0.

  Raises:
    InputError: flags are unknown, missing or have values they cannot have.
  """
  try:
    return flags.FLAGS(argv)
  except (SystemExit, BrokenPipeError):  # absl has printed help
    try:
      sys.stdout.flush()
    except BrokenPipeError:  # as by `--help | head`
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
  except flags.Error as error:
    *others, last = _flag_errors(str(error))
    message = "; ".join([*others, last.rstrip(" .?")])
    raise InputError(f"{message}. --help lists the flags") from error


def _flag_errors(message: str) -> list[str]:
  """Rewrites absl's lines about flags; all that are required become one."""
  required = re.compile(r"flag --(\w+)=None: Flag .* other than None\.")
  names = required.findall(message)
  others = [
    re.sub(r"^flags? .*?: (?=--)", "", line)
    for line in message.splitlines()
    if not required.fullmatch(line)
  ]
  if not names:
    return others
  named = english_list(f"--{name}" for name in names)
  return [f"{named} {'are' if names[1:] else 'is'} required", *others]


def english_list(words: Iterable[str]) -> str:
  """Joins words as in "a, b and c"."""
  *first, last = words
  return f"{', '.join(first)} and {last}" if first else last


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
  """Ends the program by one line where something is wrong that is mendable."""
  try:
    yield
    return
  except Stopped as stopped:
    message, status = f"stopped by {stopped.signal_name}", stopped.code
    logging.debug("Where it was stopped:", exc_info=True)
  except Exception as error:
    problem = mendable(error)
    if problem is None:
      raise
    message, status = f"error: {problem}", 1
    logging.debug("Where it was found:", exc_info=True)
  logging.flush()
  program = os.path.basename(sys.argv[0])
  print(f"{program}: {message}", file=sys.stderr)
  sys.exit(status)


# Signals


@contextlib.contextmanager
def on_stop_signals(react: Callable[[int], Any]) -> Iterator[None]:
  """Has SIGINT and SIGTERM call a function within the block.

  A second SIGINT ends the process at once. Only the main thread can listen to
  signals; in another one the block changes nothing.

  Args:
    react: takes the signal's number.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return

  def handle(number, frame):
    del frame
    if number == signal.SIGINT:
      signal.signal(number, signal.SIG_DFL)
    react(number)

  before = {
    number: signal.signal(number, handle)
    for number in (signal.SIGINT, signal.SIGTERM)
  }
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler or signal.SIG_DFL)


def _stop(number: int) -> None:
  raise Stopped(number)


# Text for a terminal

# Control characters, marks that reorder text and separators of lines, which a
# terminal obeys; and surrogates, which it cannot print.
_CONTROLS = re.compile(
  r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
  """`text` with its control characters as Python escapes them."""
  return _CONTROLS.sub(
    lambda match: match[0].encode("unicode_escape").decode(), text
  )


def show(*fields: str, sep: str = "\t") -> None:
  """Prints data: on a terminal `printable`, into a pipe or file as they are.

  Args:
    *fields: the data.
    sep: between them.
  """
  if sys.stdout.isatty():
    fields = tuple(map(printable, fields))
  print(*fields, sep=sep, flush=True)


class _LogFormatter(Formatter):
  """Formats a record as one line; a traceback follows on lines of its own."""

  def formatMessage(self, record) -> str:
    record.message = printable(record.message)
    return super().formatMessage(record)


# What a run is repeated by


def with_receipt(argv: Sequence[str]) -> tuple[list[str], str | None]:
  """Replaces `--rerun=run.json` by the flags that the receipt has as given.

  Args:
    argv: program and arguments.

  Returns:
    Program and arguments, those of the receipt first, so that the others go
    before them; and the receipt's path, None where no `--rerun` is given.

  Raises:
    InputError: it cannot be read, or is of another script.
  """
  known = flags.FlagValues()
  known.set_gnu_getopt()
  flags.DEFINE_string("rerun", None, "A receipt.", flag_values=known)
  program, *arguments = known(argv, known_only=True)
  if not known.rerun:
    return [*argv], None
  receipt = read_receipt(known.rerun)
  if receipt["script"] != os.path.basename(program):
    raise InputError(
      f"{known.rerun}: is of {receipt['script']}; repeat it by that script"
    )
  return [program, *receipt["given"], *arguments], known.rerun


def read_receipt(path: str) -> dict[str, Any]:
  """Reads the receipt of a run, see `preflight.Receipt`.

  Args:
    path: a `run.json`.

  Returns:
    What it says.

  Raises:
    InputError: it is none, or damaged, or cannot be read.
  """
  from bertlib import json_files  # which needs this module

  return json_files.read(
    path, _RECEIPT, "Name the run.json of a run, as the run left it"
  )


# Files that appear whole or not at all


def temporary_name(path: str) -> str:
  """The name that `path` is written under until it is complete."""
  return f"{path}.{socket.gethostname()}.{os.getpid()}.tmp"


def remove_strays(pattern: str) -> None:
  """Removes what killed processes left half-written.

  Args:
    pattern: of the complete files, with wildcards. Those of another machine
      have to be a day old: whether their process is alive cannot be asked.
  """
  if "://" in pattern:
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
def whole_file(path: str) -> Iterator[str]:
  """Gives a name beside `path`, for a file that appears whole or not at all.

  The file written under that name takes its own at the end of the block; if
  the block fails it is removed, and an earlier file at `path` is untouched.

  Args:
    path: file to write; where it has a scheme (`gs://bucket/file`),
      TensorFlow's file systems rename it. A device or a pipe (`/dev/stdout`)
      is written as it is.

  Yields:
    The name to write to.
  """
  if os.path.exists(path) and not os.path.isfile(path):
    yield path
    return
  remove_strays(glob.escape(path))
  beside = temporary_name(path)
  replace, remove = os.replace, os.remove
  if "://" in path:
    from tensorflow.io import gfile

    replace = functools.partial(gfile.rename, overwrite=True)
    remove = gfile.remove
  try:
    yield beside
    replace(beside, path)
  except BaseException:
    with contextlib.suppress(Exception):
      remove(beside)
    raise


@contextlib.contextmanager
def whole_folder(path: str) -> Iterator[str]:
  """Gives a name beside `path`, for a folder that appears whole or not at all.

  Args:
    path: the folder, which must not be there; where it has a scheme,
      TensorFlow's file systems are used.

  Yields:
    The name to write to.

  Raises:
    InputError: it is there.
  """
  exists, rename, remove = os.path.exists, os.replace, shutil.rmtree
  if "://" in path:
    from tensorflow.io import gfile

    exists, rename, remove = gfile.exists, gfile.rename, gfile.rmtree
  path = path.rstrip("/")
  if exists(path):
    raise InputError(f"{path}: is there already; name a folder that is not")
  remove_strays(glob.escape(path))
  beside = temporary_name(path)
  try:
    yield beside
    rename(beside, path)
  except BaseException:
    with contextlib.suppress(Exception):
      remove(beside)
    raise


@contextlib.contextmanager
def write_whole(path: str, mode: str = "w") -> Iterator[IO[Any]]:
  """Opens a `whole_file` for writing.

  Args:
    path: file to write.
    mode: "w" for text (UTF-8, line ends as given) or "wb" for bytes.

  Yields:
    The open file.
  """
  with whole_file(path) as beside:
    try:
      with open_any(beside, mode) as file:
        yield file
    except OSError as error:
      unnamed = error.filename is None and error.errno in _NO_ROOM
      if unnamed or error.filename == beside:
        error.filename = path
      raise


def open_any(path: str, mode: str = "r") -> IO[Any]:
  """`open` with UTF-8 and line ends as they are; a TensorFlow path too.

  Args:
    path: a local path, or one with a scheme (`gs://bucket/file`).
    mode: as for `open`.

  Returns:
    The open file.
  """
  if "r" in mode:
    for paths in _watchers:
      paths[path] = None
  if "://" in path:
    from tensorflow.io import gfile

    return gfile.GFile(path, mode)
  text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
  return open(path, mode, **text)


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
  find: Callable[[str], list[str]] = glob.glob
  if "://" in folder:
    from tensorflow.io import gfile

    find = gfile.glob
  for name in names:
    check_outputs(find(os.path.join(glob.escape(folder), name)), inputs)


def checkpoint_files(prefix: str | None) -> list[str]:
  """The files of a checkpoint, which is named without their endings."""
  if not prefix or "://" in prefix:
    return []
  return glob.glob(f"{glob.escape(prefix)}.index") + glob.glob(
    f"{glob.escape(prefix)}.data-*"
  )


def _identity(path: str) -> Any:
  """Equal for paths of the same file; None where there is no such file."""
  path = path.removeprefix("file://")
  if "://" in path:
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


def find_files(patterns: Iterable[str]) -> list[str]:
  """The files of names and wildcards.

  Args:
    patterns: file names, `*` and `?` allowed. Hidden files and receipts
      (`.run.json`), which are nobody's input, match no wildcard.

  Returns:
    The files, those of one pattern in the order of their names, after those of
    the pattern before.

  Raises:
    InputError: a pattern matches nothing.
  """
  found = []
  for pattern in patterns:
    if "://" in pattern:
      from tensorflow.io import gfile

      names = gfile.glob(pattern)
    else:
      names = [pattern] if os.path.exists(pattern) else glob.glob(pattern)
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


def progress(total: int, unit: str, **options: Any) -> tqdm:
  """A progress bar; where there is no terminal, a line now and then.

  Args:
    total: how much there is to do.
    unit: what is counted.
    **options: more of tqdm's.

  Returns:
    The `tqdm` bar, to be updated and closed.
  """
  if not sys.stderr.isatty():
    lines = "{n_fmt} of {total_fmt} {unit}, {remaining} left"
    options = {"delay": 10, "mininterval": 10, "bar_format": lines} | options
    options["file"] = _LogFile()
  return tqdm(total=total, unit=unit, **options)


class _LogFile:
  """What tqdm writes to, as lines of the log."""

  def write(self, text: str) -> None:
    if text.strip():
      logging.info(text.strip())

  def flush(self) -> None:
    pass


def mendable(error: Exception) -> str | None:
  """The line to show for an error that the user can mend, or None.

  TensorFlow reports what is wrong with a file in many classes of error, whose
  texts have in common one line: "path; No space left on device". Outside a
  graph the operation stands around it: "{{...}} path; ... [Op:SaveV2]".
  """
  if isinstance(error, InputError):
    return printable(str(error))
  # For one of the system's words it has its own.
  text = str(error).replace(" is not a directory", "; Not a directory")
  if isinstance(error, OSError) and (error.filename or error.errno in _NO_ROOM):
    text = f"{error.filename or 'output'}; {error.strerror}"
  for line in re.sub(r"\{\{.*?\}\}|\[Op:.*", "", text).splitlines():
    path, _, reason = line.strip().rpartition("; ")
    if path and reason in map(os.strerror, _NO_ROOM):
      return (
        f"{path}: {reason}. Make room there or name another place; what was"
        " complete before is untouched"
      )
    if path and reason in map(os.strerror, errno.errorcode):
      return f"{path}: {reason}"
  return None
