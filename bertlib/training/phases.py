"""Pretraining in phases, each a process of its own.

A phase that has come to its end is noted in `phases.json`, which alone decides
whether it is run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags, logging

from bertlib import files, json_files
from bertlib.checkpoints import finding
from bertlib.errors import InputError
from bertlib.settings.pretraining import PretrainingSettings
from bertlib.training import child_run, devices, distribution, heartbeat

STATE_FILE = "phases.json"

# What `phases.json` has of each phase that has ended.
_ENDED = {
  "folder": str,
  "flags": str,
  "num_train_steps": int,
  "last_step": int,
}


class Phase(NamedTuple):
  """A phase, as the command line and its file of flags have it.

  Attributes:
    file: its flags.
    settings: of its process, whose --output_dir is a folder of its own.
    cluster: the processes that train it together; None for one alone.
  """

  file: str
  settings: PretrainingSettings
  cluster: distribution.Cluster | None

  @property
  def folder(self) -> str:
    """Its --output_dir."""
    return self.settings.run.output_dir


def read_phases(settings: PretrainingSettings) -> list[Phase]:
  """Reads the flags of all phases, and refuses those that could not be run.

  Args:
    settings: of the command.

  Raises:
    InputError: there is no training, the folder has a model of another run, or
      the flags of a phase are wrong.
  """
  output_dir = settings.run.output_dir
  if not settings.run.do_train:
    raise InputError("--phases is about training: add --do_train")
  if finding.last_checkpoint(output_dir):
    raise InputError(
      f"{output_dir}: was trained without --phases; name another --output_dir"
    )
  phases = []
  for number, file in enumerate(settings.phases, start=1):
    folder = os.path.join(output_dir, f"phase_{number}")
    weights = f"{output_dir}/weights" if phases else None
    try:
      own = child_run.read_settings(
        PretrainingSettings, folder, _flags(file, weights)
      )
      cluster = devices.find_cluster(own.devices, trains=True)
    except (flags.Error, InputError) as error:
      raise InputError(f"{file}: {error}") from error
    phases.append(Phase(file, own, cluster))
  return phases


def with_cluster(
  settings: PretrainingSettings, phases: Sequence[Phase]
) -> PretrainingSettings:
  """Settings of the command with the processes that train phases together.

  This process computes nothing: it has to know only whether it is the chief.
  """
  clusters = [phase.cluster for phase in phases if phase.cluster]
  replicas = distribution.Replicas(1, clusters[0]) if clusters else None
  return dataclasses.replace(
    settings, devices=dataclasses.replace(settings.devices, replicas=replicas)
  )


def examine_phases(output_dir: str, phases: Sequence[Phase]) -> None:
  """Runs what is left of the phases where the command asks for --doctor."""
  checkpoint = None
  for phase in phases:
    if not has_ended(output_dir, phase):
      child_run.run(phase.folder, _flags(phase.file, checkpoint))
    checkpoint = finding.last_checkpoint(phase.folder)


def run_phases(settings: PretrainingSettings, phases: Sequence[Phase]) -> None:
  """Runs what is left of the phases, each from the weights of the one before.

  The chief runs all of them. Another worker takes part in those that several
  processes train, and waits for the chief to end each of them.

  Args:
    settings: of `with_cluster`.
    phases: of `read_phases`.

  Raises:
    InputError: a phase failed, or the chief is lost.
    SystemExit: see `child_run.run`.
  """
  output_dir, is_chief = settings.run.output_dir, settings.devices.is_chief
  watch = heartbeat.Watch(output_dir)
  beating = contextlib.nullcontext()
  if is_chief and settings.devices.replicas:
    beating = heartbeat.beat(output_dir)
  checkpoint = None
  with beating:
    for number, phase in enumerate(phases, start=1):
      title = (
        f"Phase {number} of {len(phases)}, by {phase.file}, in {phase.folder}"
      )
      if has_ended(output_dir, phase):
        logging.info("%s: has ended", title)
      else:
        logging.info("%s", title)
        if is_chief or phase.cluster:
          child_run.run(phase.folder, _flags(phase.file, checkpoint))
        if is_chief:
          _note_end(output_dir, phase)
        else:
          watch.wait_until(functools.partial(has_ended, output_dir, phase))
      checkpoint = finding.last_checkpoint(phase.folder)


def _flags(file: str, init_checkpoint: str | None) -> list[str]:
  """Flags of a phase beside those of the command line.

  Args:
    file: its flags.
    init_checkpoint: the weights of the phase before; None for the first one.
  """
  own = [f"--flagfile={file}", "--phases="]
  if init_checkpoint:
    own += [f"--init_checkpoint={init_checkpoint}", "--bert_hub_module_handle="]
  return own


# Which phases have ended


def has_ended(output_dir: str, phase: Phase) -> bool:
  """Whether a phase has done all that it was to do.

  A phase that is to be longer than it was has not, nor has one whose weights
  are gone. In a folder of an older version none has, and each is run again:
  one that is at its last step trains nothing, and is evaluated a second time.

  Args:
    output_dir: that of the command.
    phase: the phase.

  Raises:
    InputError: `phases.json` is damaged.
  """
  noted = _read_state(output_dir).get(os.path.basename(phase.folder))
  return (
    noted is not None
    and noted["num_train_steps"] >= phase.settings.num_train_steps
    and finding.steps_done(phase.folder) >= noted["last_step"]
  )


def _note_end(output_dir: str, phase: Phase) -> None:
  """Notes that a phase has ended, after all that it writes is written."""
  name = os.path.basename(phase.folder)
  state = _read_state(output_dir) | {
    name: {
      "folder": name,
      "flags": phase.file,
      "num_train_steps": phase.settings.num_train_steps,
      "last_step": finding.steps_done(phase.folder),
    }
  }
  with files.atomic_write(os.path.join(output_dir, STATE_FILE)) as file:
    json.dump({"ended": list(state.values())}, file, indent=1)
    file.write("\n")


def _read_state(output_dir: str) -> dict[str, dict]:
  """What is noted of the phases that have ended, by the names of folders."""
  path = os.path.join(output_dir, STATE_FILE)
  if not files.exists(path):
    return {}
  state = json_files.read(
    path,
    {"ended": [_ENDED]},
    "Remove it: a phase at its last step is not trained again",
  )
  return {noted["folder"]: noted for noted in state["ended"]}
