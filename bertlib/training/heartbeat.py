"""Heartbeat of the chief, for workers that wait for it.

The chief writes to a file in the shared folder. Workers check, by their own
clocks, that it changes: without locks, network or synchronized clocks, so it
works on every shared file system.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Callable

from absl import logging

from bertlib.cli.errors import InputError
from bertlib.io import files

HEARTBEAT_FILE = ".chief_heartbeat"

# Seconds between heartbeats.
_INTERVAL = 5.0

# Seconds without a heartbeat after which the chief counts as lost: after its
# first heartbeat, and before it.
_TIMEOUT = 60.0
_START_TIMEOUT = 600.0


@contextlib.contextmanager
def beat(folder: str, interval: float = _INTERVAL) -> Iterator[None]:
  """Writes heartbeats of this process, the chief, within the block."""
  path = os.path.join(folder, HEARTBEAT_FILE)
  ended = threading.Event()

  def write():
    run, warned = uuid.uuid4().hex, False
    for number in itertools.count():
      try:
        # Overwritten, not replaced, so that cached file handles see it.
        with files.open_any(path, "w") as file:
          file.write(f"{run} {number}\n")
      except Exception as error:  # each file system has its own errors
        if not warned:
          logging.warning(
            "%s: cannot be written (%s); waiting workers may give up",
            path,
            error,
          )
        warned = True
      if ended.wait(interval):
        return

  thread = threading.Thread(target=write, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join(interval)
    with contextlib.suppress(Exception):
      files.remove_file(path)


class Watch:
  """A worker's view of whether the chief is alive."""

  def __init__(
    self,
    folder: str,
    timeout: float = _TIMEOUT,
    start_timeout: float = _START_TIMEOUT,
  ):
    """Reads the last heartbeat, which an earlier run may have left."""
    self._folder = folder
    self._timeout = timeout
    self._current_timeout = start_timeout
    self._last = self._read()

  def wait_until(self, condition: Callable[[], bool]) -> None:
    """Waits for `condition()`; InputError if the chief is lost meanwhile."""
    # The chief may be restarted in the meantime.
    last_change = time.monotonic()
    while not condition():
      content = self._read()
      if content not in (None, self._last):
        self._last, self._current_timeout = content, self._timeout
        last_change = time.monotonic()
      elif time.monotonic() - last_change > self._current_timeout:
        raise InputError(
          f"{self._folder}: no heartbeat of the chief worker for"
          f" {self._current_timeout:.0f} seconds. See its log, then re-run the"
          " same command on all machines to resume"
        )
      time.sleep(min(1.0, self._timeout / 5))

  def _read(self) -> str | None:
    """Content of the heartbeat file; None if it cannot be read."""
    try:
      path = os.path.join(self._folder, HEARTBEAT_FILE)
      with files.open_any(path) as file:
        return file.read()
    except Exception:  # each file system has its own errors
      return None
