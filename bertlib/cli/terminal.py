"""The terminal of a command: output, progress, a quiet log, and signals."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from logging import LogRecord
from typing import Any, Callable

from bertlib.cli import errors
from bertlib.cli.absl import logging

# What a command undoes when it ends, as a context around its `main`.
at_end = contextlib.ExitStack()


def show(*fields: str, sep: str = "\t") -> None:
  """Prints data; control characters are escaped on a terminal only."""
  if sys.stdout.isatty():
    fields = tuple(map(errors.printable, fields))
  try:
    print(*fields, sep=sep, flush=True)
  except BrokenPipeError:
    # The reader of a pipe has ended, as in `| head`. The command continues: it
    # may write files too. What was not written yet is discarded.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
  """Prints rows, which have the same keys, as an aligned table."""
  cells = [list(rows[0])]
  for row in rows:
    cells.append(
      [f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()]
    )
  widths = [max(map(len, column)) for column in zip(*cells)]
  for row in cells:
    show(*map(str.rjust, row, widths), sep="  ")


@functools.cache
def warn_once(message: str) -> None:
  """Logs a warning once per process."""
  logging.warning("%s", message)


@contextlib.contextmanager
def quiet(level: int) -> Iterator[None]:
  """Drops log lines below a level of absl within its block."""
  lowest = logging.converter.absl_to_standard(level)

  # A filter, since TensorFlow changes the level of the logger when it saves a
  # SavedModel.
  def is_shown(record: LogRecord) -> bool:
    return record.levelno >= lowest

  logger = logging.get_absl_logger()
  logger.addFilter(is_shown)
  try:
    yield
  finally:
    logger.removeFilter(is_shown)


def progress(total: int, unit: str, **options: Any) -> Any:
  """A tqdm bar; without a terminal, a log line every 10 seconds."""
  from tqdm import tqdm  # not installed where an exported model predicts

  if not sys.stderr.isatty():
    lines = "{n_fmt} of {total_fmt} {unit}, {remaining} left"
    options = {"delay": 10, "mininterval": 10, "bar_format": lines} | options
    options["file"] = _LogFile()
  return tqdm(total=total, unit=unit, **options)


def follow(rows: Iterable[Any], total: int, unit: str) -> Iterator[Any]:
  """Yields predictions with a progress bar; `unit` is a plural noun."""
  logging.info("Compiling the prediction step")
  with progress(total, unit) as bar:
    for row in rows:
      bar.update()
      yield row


class _LogFile:
  """File object for tqdm that writes to the log."""

  def write(self, text: str) -> None:
    if text.strip():
      logging.info(text.strip())

  def flush(self) -> None:
    pass


# Signals


class Stopped(SystemExit):
  """Raised by SIGINT or SIGTERM to end the program.

  An exception closes context managers, so that no file is left incomplete.
  """

  def __init__(self, number: int):
    # An exit status as shells use it.
    super().__init__(128 + number)
    self.signal_name = signal.Signals(number).name


@contextlib.contextmanager
def on_stop_signals(react: Callable[[int], Any]) -> Iterator[None]:
  """Handles SIGINT and SIGTERM by a function within the block."""
  # Only the main thread can handle signals.
  if threading.current_thread() is not threading.main_thread():
    yield
    return

  def handle(number, frame):
    del frame
    # The second one ends the process at once.
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


def stop(number: int) -> None:
  """Ends the program because of a signal, by raising `Stopped`."""
  raise Stopped(number)
