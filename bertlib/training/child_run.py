"""Runs this command again, as a process with flags of its own.

Nothing else starts a command by `sys.argv`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from absl import logging

from bertlib import folder_lock
from bertlib.errors import InputError
from bertlib.settings import option
from bertlib.training import checkpoint_hook


def read_settings(
  settings: type[option.Settings], output_dir: str, flags: Sequence[str]
) -> option.Settings:
  """Makes the settings that the process of `run` would have.

  Args:
    settings: class of the command.
    output_dir: see `run`.
    flags: see `run`.

  Raises:
    absl.flags.Error: flags are unknown or missing.
    InputError: see `rules.check`.
  """
  return option.parse_again(settings, _arguments(output_dir, flags))


def run(output_dir: str, flags: Sequence[str]) -> None:
  """Runs this command in a subprocess, which is stopped when this one is.

  The locks of this process stay held as long as either of the two runs.

  Args:
    output_dir: the folder that the subprocess writes to.
    flags: take precedence over what this command was given.

  Raises:
    InputError: it failed.
    SystemExit: it was stopped; with one of `checkpoint_hook.STOPPED_STATUSES`.
  """
  command = [sys.executable, *_arguments(output_dir, flags)]
  with (
    checkpoint_hook.StopRequest() as stop,
    subprocess.Popen(command, pass_fds=folder_lock.held_files()) as process,
  ):
    while process.poll() is None and not stop.requested:
      time.sleep(0.1)
    if stop.requested:
      process.terminate()
  status = process.returncode
  if status < 0:  # it ended before it could listen
    status = 128 - status
  if stop.requested or status in checkpoint_hook.STOPPED_STATUSES:
    logging.warning("%s: stopped; the same command resumes it", output_dir)
    sys.exit(stop.status if stop.requested else status)
  if process.returncode:
    raise InputError(
      f"{output_dir}: the run failed, for the reason above. The same command"
      " goes on from there"
    )


def _arguments(output_dir: str, flags: Sequence[str]) -> list[str]:
  return [*sys.argv, *flags, f"--output_dir={output_dir}"]
