"""Steps of a command before its first write, which `--doctor` runs alone.

  with step("config"):
    config = load_config(path)

A run ends with the error of a step. A dry run prints a line for each step and
goes on: a failed step binds no name, and a later one that needs it is skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bertlib.cli import terminal
from bertlib.cli.errors import InputError, user_error_message


class Steps:
  """Runs steps one after the other; `step(name)` is the context of one."""

  def __init__(self, is_dry_run: bool = False):
    self.is_dry_run = is_dry_run
    self._num_failed = 0

  @contextlib.contextmanager
  def __call__(self, name: str) -> Iterator[None]:
    """Runs the step in its block."""
    if not self.is_dry_run:
      yield
      return
    status, text = "pass", ""
    try:
      yield
    except Exception as error:
      if self._lacks_a_name(error):
        status, text = "skip", "needs what a failed step would have found"
      elif message := user_error_message(error):
        self._num_failed += 1
        status, text = "fail", message
      else:
        raise
    terminal.show(f"{status}  {name:<11} {text}".rstrip())

  def _lacks_a_name(self, error: Exception) -> bool:
    return bool(self._num_failed) and isinstance(error, UnboundLocalError)

  @contextlib.contextmanager
  def until_end(self) -> Iterator[None]:
    """Runs the steps in its block; InputError if any has failed."""
    try:
      yield
    except UnboundLocalError as error:
      if not self._lacks_a_name(error):
        raise
    if self._num_failed:
      raise InputError(f"--doctor: failed steps: {self._num_failed}")


# For callers without --doctor.
RUN = Steps()
