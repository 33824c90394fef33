"""Pretraining in phases, each in its own subprocess.

Finished phases are recorded in `phases.json`, which alone decides whether a
phase is run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

from absl import logging

from bertlib.checkpoints import finding
from bertlib.cli.errors import InputError
from bertlib.io import files, json_files
from bertlib.settings.pretraining import PretrainingSettings
from bertlib.training import child_run, devices, distribution, heartbeat

STATE_FILE = "phases.json"

# Entry of a finished phase in `phases.json`.
_FINISHED = {
  "folder": str,
  "flags": str,
  "num_train_steps": int,
  "last_step": int,
}


class Phase(NamedTuple):
  """A phase, as the command line and its flag file define it."""

  file: str  # its flag file
  settings: PretrainingSettings  # of its subprocess, with its own --output_dir
  # The workers that train it; None for a single process.
  cluster: distribution.Cluster | None

  @property
  def folder(self) -> str:
    """Its --output_dir."""
    return self.settings.run.output_dir


def read_phases(settings: PretrainingSettings) -> list[Phase]:
  """Reads and checks the flags of all phases."""
  output_dir = settings.run.output_dir
  if finding.last_checkpoint(output_dir):
    raise InputError(
      f"{output_dir}: has a model trained without --phases. Give another"
      " --output_dir"
    )
  phases = []
  for number, file in enumerate(settings.phases, start=1):
    folder = os.path.join(output_dir, f"phase_{number}")
    weights = f"{output_dir}/weights" if phases else None
    try:
      phase_settings = child_run.read_settings(
        PretrainingSettings, folder, _flags(file, weights)
      )
      cluster = devices.find_cluster(phase_settings.devices)
    except InputError as error:
      raise InputError(f"{file}: {error}") from error
    phases.append(Phase(file, phase_settings, cluster))
  return phases


def with_cluster(
  settings: PretrainingSettings, phases: Sequence[Phase]
) -> PretrainingSettings:
  """Adds the cluster of the phases to the command's settings."""
  # This process only needs it to know whether it is the chief; it trains
  # nothing.
  clusters = [phase.cluster for phase in phases if phase.cluster]
  replicas = distribution.Replicas(1, clusters[0]) if clusters else None
  return dataclasses.replace(
    settings, devices=dataclasses.replace(settings.devices, replicas=replicas)
  )


def run_doctor(output_dir: str, phases: Sequence[Phase]) -> None:
  """Runs the doctor (--doctor) on each unfinished phase."""
  checkpoint = None
  for phase in phases:
    if not is_finished(output_dir, phase):
      child_run.run(phase.folder, _flags(phase.file, checkpoint))
    checkpoint = finding.last_checkpoint(phase.folder)


def run_phases(settings: PretrainingSettings, phases: Sequence[Phase]) -> None:
  """Runs the unfinished phases, each from the weights of the previous one."""
  output_dir, is_chief = settings.run.output_dir, settings.devices.is_chief
  watch = heartbeat.Watch(output_dir)
  heartbeats = contextlib.nullcontext()
  if is_chief and settings.devices.replicas:
    heartbeats = heartbeat.beat(output_dir)
  checkpoint = None
  with heartbeats:
    for number, phase in enumerate(phases, start=1):
      title = f"Phase {number} of {len(phases)} ({phase.file}, {phase.folder})"
      if is_finished(output_dir, phase):
        logging.info("%s: already finished", title)
      else:
        logging.info("%s", title)
        # Another worker takes part in phases with a cluster, and waits for the
        # chief to finish each phase.
        if is_chief or phase.cluster:
          child_run.run(phase.folder, _flags(phase.file, checkpoint))
        if is_chief:
          _record_finished(output_dir, phase)
        else:
          watch.wait_until(functools.partial(is_finished, output_dir, phase))
      checkpoint = finding.last_checkpoint(phase.folder)


def _flags(file: str, init_checkpoint: str | None) -> list[str]:
  """Flags of a phase in addition to those of the command line."""
  added = [f"--flagfile={file}", "--phases="]
  if init_checkpoint:
    added += [
      f"--init_checkpoint={init_checkpoint}",
      "--bert_hub_module_handle=",
    ]
  return added


# Finished phases


def is_finished(output_dir: str, phase: Phase) -> bool:
  """True if a phase is recorded as finished and its weights are there."""
  # In a folder of an older version no phase counts as finished: each is run
  # again, which at its last step only repeats the evaluation.
  entry = _read_state(output_dir).get(os.path.basename(phase.folder))
  return (
    entry is not None
    # A phase that has more steps than before is not finished.
    and entry["num_train_steps"] >= phase.settings.num_train_steps
    and finding.steps_done(phase.folder) >= entry["last_step"]
  )


def _record_finished(output_dir: str, phase: Phase) -> None:
  """Records that a phase is finished, after all its outputs are written."""
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
    ended = list(state.values())
    file.write(json_files.dumps({"ended": ended}, indent=1))
    file.write("\n")


def _read_state(output_dir: str) -> dict[str, dict]:
  """Entries of `phases.json` by folder name."""
  path = os.path.join(output_dir, STATE_FILE)
  if not files.exists(path):
    return {}
  state = json_files.read(
    path,
    {"ended": [_FINISHED]},
    "Remove it: phases at their last step are not trained again",
  )
  return {entry["folder"]: entry for entry in state["ended"]}
