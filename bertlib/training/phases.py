"""Pretraining in phases, each a process of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags, logging

from bertlib import app
from bertlib.checkpoints import finding
from bertlib.errors import InputError
from bertlib.settings import option
from bertlib.settings.pretraining import PretrainingSettings
from bertlib.training import multi_run


def run_each_phase(
  settings: PretrainingSettings, num_steps: Sequence[int]
) -> str:
  """Runs what is left of the phases; gives the folder of the last one.

  Args:
    settings: of the command.
    num_steps: the step at which each ends.
  """
  checkpoint = None
  for number, (file, steps) in enumerate(
    zip(settings.phases, num_steps), start=1
  ):
    folder = os.path.join(settings.run.output_dir, f"phase_{number}")
    told = f"Phase {number} of {len(num_steps)}, by {file}, in {folder}"
    if finding.steps_done(folder) >= steps and has_ended(folder):
      logging.info("%s: has ended, at step %d", told, steps)
    else:
      logging.info("%s", told)
      multi_run.run_again(folder, flags_of_phase(file, checkpoint))
    if not (settings.receipt.doctor or settings.devices.is_chief):
      wait_for_chief(folder)
    checkpoint = finding.last_checkpoint(folder)
  return folder


def check_phases(settings: PretrainingSettings) -> list[int]:
  """Refuses phases that could not be run; gives the last step of each."""
  if not settings.run.do_train:
    raise InputError("--phases is about training: add --do_train")
  if finding.last_checkpoint(settings.run.output_dir):
    raise InputError(
      f"{settings.run.output_dir}: was trained without --phases; name another"
      " --output_dir"
    )
  num_steps = []
  for number, file in enumerate(settings.phases):
    own = flags_of_phase(
      file, f"{settings.run.output_dir}/weights" if number else None
    )
    try:
      phase = option.parse_again(PretrainingSettings, [*sys.argv, *own])
    except (flags.Error, InputError) as error:
      raise InputError(f"{file}: {error}") from error
    num_steps.append(phase.num_train_steps)
  return num_steps


def flags_of_phase(file: str, init_checkpoint: str | None) -> list[str]:
  """What a phase is told beside what the command line says.

  Args:
    file: its flags.
    init_checkpoint: the weights of the phase before; None for the first one.
  """
  own = [f"--flagfile={file}", "--phases="]
  if init_checkpoint:
    own += [f"--init_checkpoint={init_checkpoint}", "--bert_hub_module_handle="]
  return own


def has_ended(folder: str) -> bool:
  """Whether a phase has done all that it was to do."""
  return read_phase_receipt(folder).get("results") is not None


def read_phase_receipt(folder: str) -> dict[str, Any]:
  """The receipt of a phase; an empty one where it has not begun."""
  path = os.path.join(folder, "run.json")
  return app.read_receipt(path) if tf.gfile.Exists(path) else {}


def wait_for_chief(folder: str, most_seconds: float = 3600.0) -> None:
  """Waits until the first process, which scores too, has ended a phase.

  Args:
    folder: of the phase.
    most_seconds: to wait.

  Raises:
    InputError: it has not.
  """
  deadline = time.monotonic() + most_seconds
  while not has_ended(folder):
    if time.monotonic() > deadline:
      raise InputError(
        f"{folder}: the first worker did not come to its end there. Start the"
        " same command on all machines again"
      )
    time.sleep(1)
