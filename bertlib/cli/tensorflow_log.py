"""Keeps TensorFlow's own log off the terminal of a command.

TensorFlow writes to file descriptor 2 while it is imported, before its settings
take effect, and later through its C++ and Python loggers. Commands show errors
only. Programs that use a `Predictor` also see warnings; a library must not hide
more from its process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from absl import flags

HELP = (
  "Show TensorFlow's own log: devices, compilers and warnings. Errors are"
  " always shown."
)


def hide_information() -> None:
  """Imports TensorFlow in a program, without the lines about what it can do.

  Warnings and errors are shown afterwards. No effect if TensorFlow is already
  imported, or if `TF_CPP_MIN_LOG_LEVEL` is 0.
  """
  if (
    "tensorflow" not in sys.modules
    and os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1") != "0"
  ):
    with stderr_on_failure():
      import tensorflow  # noqa: F401


def show_errors_only() -> None:
  """Hides TensorFlow's warnings and information once it is imported."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def import_quietly() -> None:
  """Imports TensorFlow without its log.

  Output of the import is discarded if it succeeds, and printed if it fails or
  ends the process. Afterwards TensorFlow logs errors only.
  """
  show_errors_only()
  with stderr_on_failure():
    import tensorflow as tf
  tf.get_logger().setLevel("ERROR")


def define_flag(flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `--tensorflow_log`, which commands read before they import it."""
  flags.DEFINE_bool("tensorflow_log", False, HELP, flag_values=flag_values)


@contextlib.contextmanager
def stderr_on_failure() -> Iterator[None]:
  """Captures file descriptor 2; prints it only if the block fails.

  A child process holds the captured output, so that it is printed even if this
  process crashes, for example because an instruction set is missing.
  """
  try:
    terminal = os.dup(2)
  except OSError:  # it is closed
    yield
    return
  if sys.stderr:
    sys.stderr.flush()
  source, sink = os.pipe()
  keeper = os.fork()
  if not keeper:
    os.close(sink)
    _print_at_end(source)
  os.close(source)
  os.dup2(sink, 2)
  os.close(sink)
  try:
    yield
    os.kill(keeper, signal.SIGKILL)
  finally:
    os.dup2(terminal, 2)  # ends the pipe
    os.close(terminal)
    os.waitpid(keeper, 0)


def _print_at_end(source: int) -> None:
  """Reads a pipe to its end, prints it and ends the process."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the command handles it
  kept = b""
  while part := os.read(source, 2**16):
    kept += part
  os.write(2, kept)
  os._exit(0)
