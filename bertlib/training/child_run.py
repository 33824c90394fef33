"""Runs this command again in a subprocess, with further flags."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from absl import logging

from bertlib.cli.errors import InputError
from bertlib.io import folder_lock
from bertlib.training import checkpoint_hook


def run(output_dir: str, flags: Sequence[str]) -> None:
  """Runs this command in a subprocess; a signal to this one stops both."""
  # `flags` come last, and so take precedence over those of this command.
  script, *arguments = [*sys.argv, *flags, f"--output_dir={output_dir}"]
  module = sys.modules["__main__"].__spec__
  is_module = module and module.origin == script  # `python -m MODULE`
  program = ["-m", module.name] if is_module else [script]
  command = [sys.executable, *program, *arguments]
  with (
    checkpoint_hook.StopRequest() as stop,
    # The locks of this process are held until both processes have ended.
    subprocess.Popen(command, pass_fds=folder_lock.held_files()) as process,
  ):
    while process.poll() is None and not stop.requested:
      time.sleep(0.1)
    if stop.requested:
      process.terminate()
  status = process.returncode
  if status < 0:  # the signal came before its handler was set
    status = 128 - status
  if stop.requested or status in checkpoint_hook.STOPPED_STATUSES:
    logging.warning(
      "%s: stopped. Re-run the same command to resume", output_dir
    )
    sys.exit(stop.status if stop.requested else status)
  if process.returncode:
    raise InputError(
      f"{output_dir}: the run failed, see the error above. Re-run the same"
      " command to resume"
    )
