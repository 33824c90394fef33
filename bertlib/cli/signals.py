"""SIGINT and SIGTERM end a command so that no file is left incomplete."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, Callable


class Stopped(SystemExit):
  """Raised by SIGINT or SIGTERM to end the program."""

  def __init__(self, number: int):
    # An exit status as shells use it. An exception closes context managers, so
    # that no file is left incomplete.
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
