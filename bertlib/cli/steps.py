"""Steps of a command before its first write, which `--doctor` runs alone.

  config = step("config", load_config, path)

is `config = load_config(path)` in a run, which ends with the error of a step. A
dry run prints a line for each step and continues after a failed one: steps that
take its result are skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable

from bertlib.cli import terminal
from bertlib.cli.errors import InputError, user_error_message

# Result of a step that failed or was skipped.
FAILED = object()


class NeedsFailedStepError(Exception):
  """In a dry run, the result of a failed step is needed."""


class Steps:
  """Runs steps one after the other, see `__call__`."""

  def __init__(self, is_dry_run: bool = False):
    self.is_dry_run = is_dry_run
    self._num_failed = 0

  def __call__(
    self, name: str, function: Callable, *arguments: Any, instead: Any = FAILED
  ) -> Any:
    """Calls the function; a dry run returns `instead` if the step fails."""
    if not self.is_dry_run:
      return function(*arguments)
    status, text, result = "pass", "", instead
    try:
      self.need(*arguments)
      result = function(*arguments)
    except NeedsFailedStepError:
      status, text = "skip", "needs what a failed step would have found"
    except Exception as error:
      status, text = "fail", user_error_message(error)
      if not text:
        raise
      self._num_failed += 1
    terminal.show(f"{status}  {name:<11} {text}".rstrip())
    return result

  @staticmethod
  def need(*results: Any) -> None:
    """Skips the step, or outside of steps the rest, if one is `FAILED`."""
    if any(result is FAILED for result in results):
      raise NeedsFailedStepError

  @contextlib.contextmanager
  def until_end(self) -> Iterator[None]:
    """Runs the steps in its block; InputError if any has failed."""
    with contextlib.suppress(NeedsFailedStepError):
      yield
    if self._num_failed:
      raise InputError(f"--doctor: failed steps: {self._num_failed}")


# For callers without --doctor.
RUN = Steps()
