"""Signs of life of the chief, for workers that wait for it.

The chief writes to a file of the shared folder every few seconds. A worker
looks whether the content changes, by its own clock: this needs no locks, no
network and no clocks that agree, so it works on every shared file system.
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

from bertlib import files
from bertlib.errors import InputError

HEARTBEAT_FILE = ".chief_heartbeat"

# Seconds between two signs of life.
_INTERVAL = 5.0

# Seconds of silence after which a chief is lost: one that was alive before, and
# one that has yet to be started.
_SILENCE = 60.0
_START = 600.0


@contextlib.contextmanager
def beat(folder: str, interval: float = _INTERVAL) -> Iterator[None]:
  """Shows within the block that this process, the chief, is alive.

  Args:
    folder: the shared folder, local or remote; it exists.
    interval: seconds between two signs of life.
  """
  path = os.path.join(folder, HEARTBEAT_FILE)
  ended = threading.Event()

  def write():
    run, warned = uuid.uuid4().hex, False
    for number in itertools.count():
      try:
        # In place: who has the old file cached sees that it has changed.
        with files.open_any(path, "w") as file:
          file.write(f"{run} {number}\n")
      except Exception as error:  # of whatever file system it is
        if not warned:
          logging.warning(
            "%s: cannot be written (%s); workers that wait may give up",
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
    self, folder: str, silence: float = _SILENCE, start: float = _START
  ):
    """Looks at the folder for the first time.

    Args:
      folder: of `beat`; it may be missing.
      silence: seconds after which a chief that was alive is lost.
      start: seconds to wait for the first sign of life.
    """
    self._folder = folder
    self._silence = silence
    self._patience = start
    self._seen = self._read()

  def wait_until(self, condition: Callable[[], bool]) -> None:
    """Waits for what the chief does, for as long as it is alive.

    A chief that is started again in the meantime is the chief.

    Args:
      condition: whether it has done that.

    Raises:
      InputError: it is lost.
    """
    last_change = time.monotonic()
    while not condition():
      content = self._read()
      if content not in (None, self._seen):
        self._seen, self._patience = content, self._silence
        last_change = time.monotonic()
      elif time.monotonic() - last_change > self._patience:
        raise InputError(
          f"{self._folder}: the chief worker has shown no sign of life for"
          f" {self._patience:.0f} seconds. See its log, then start the same"
          " command on all machines again: it resumes from there"
        )
      time.sleep(min(1.0, self._silence / 5))

  def _read(self) -> str | None:
    """What the file has; None where it cannot be read."""
    try:
      path = os.path.join(self._folder, HEARTBEAT_FILE)
      with files.open_any(path) as file:
        return file.read()
    except Exception:  # of whatever file system it is
      return None
