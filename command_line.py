"""What every command line shares: one-line errors and files written whole.

Needs no TensorFlow, so that data making can use it without paying for that.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import IO, Any, Callable

from absl import app, logging


class InputError(ValueError):
  """Something that the person at the keyboard can mend.

  Its message is all that is shown: one line that names the file, the place in
  it and the cure. Anything else that goes wrong keeps its traceback.
  """


def run(main: Callable[[list[str]], Any]) -> None:
  """Runs `main` under absl; what the user can mend costs one line, status 1.

  An `InputError` and an `OSError` that names a file are such things. The
  traceback is still there at `--verbosity=1`.
  """

  def main_or_one_line(argv):
    try:
      return main(argv)
    except InputError as error:
      message = str(error)
    except OSError as error:
      if error.filename is None:
        raise
      message = f"{error.filename}: {error.strerror}"
    logging.debug("%s", traceback.format_exc())
    logging.flush()
    program = os.path.basename(sys.argv[0])
    print(f"{program}: error: {message}", file=sys.stderr)
    sys.exit(1)

  app.run(main_or_one_line)


@contextlib.contextmanager
def write_whole(path: str, mode: str = "w") -> Iterator[IO[Any]]:
  """Opens `path` for writing so that it appears whole or not at all.

  What is written goes to a file beside it, which takes its name at the end of
  the block; if the block fails, an earlier file at `path` is untouched.

  Args:
    path: file to write. Where it has a scheme (`gs://bucket/file`),
      TensorFlow's file systems write it.
    mode: "w" for text (UTF-8, line ends as given) or "wb" for bytes.

  Yields:
    The open file.

  Raises:
    InputError: the file cannot be written (no such folder, disk full).
  """
  beside = f"{path}.{os.getpid()}.tmp"
  if "://" in path:
    from tensorflow import io

    opened = io.gfile.GFile(beside, mode)
    replace, remove = _gfile_replace, io.gfile.remove
  else:
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
      opened = open(beside, mode, **text)  # noqa: SIM115 (closed below)
    except OSError as error:
      raise _cannot_write(path, error) from error
    replace, remove = os.replace, os.remove
  try:
    with opened as file:
      yield file
    replace(beside, path)
  except BaseException as error:
    with contextlib.suppress(Exception):
      remove(beside)
    if isinstance(error, OSError) and error.filename in (None, beside):
      raise _cannot_write(path, error) from error
    raise


def _gfile_replace(source: str, target: str) -> None:
  from tensorflow import io

  io.gfile.rename(source, target, overwrite=True)


def _cannot_write(path: str, error: OSError) -> InputError:
  return InputError(
    f"{path}: cannot be written ({error.strerror}); an earlier file of that"
    " name is untouched. Make room or name another place"
  )
