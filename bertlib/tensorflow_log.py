"""Keeps TensorFlow's own log off the terminal of a command.

TensorFlow writes lines to file descriptor 2 while it is imported, before any of
its settings applies, and more by its loggers in C++ and in Python later. Only
commands call what is here; a library leaves the log of its process alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from absl import flags

HELP = (
  "Whether TensorFlow's own log is shown: its devices, compilers and warnings."
  " Errors always are."
)


def import_quietly() -> None:
  """Imports TensorFlow without its log.

  What it writes during the import is dropped if that succeeds, and printed if
  it fails or ends the process. From then on it logs errors alone.
  """
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  with stderr_on_failure():
    import tensorflow as tf
  tf.get_logger().setLevel("ERROR")


def define_flag(flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `--tensorflow_log`, which commands read before they import."""
  flags.DEFINE_bool("tensorflow_log", False, HELP, flag_values=flag_values)


@contextlib.contextmanager
def stderr_on_failure() -> Iterator[None]:
  """Holds back file descriptor 2; prints what it got unless the block succeeds.

  A process of its own keeps it, so that the last words of a process that
  crashes, as for want of an instruction set, are not lost.
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
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for the command
  kept = b""
  while part := os.read(source, 2**16):
    kept += part
  os.write(2, kept)
  os._exit(0)
