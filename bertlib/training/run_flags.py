"""What the settings of a training command stand for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bertlib import folder_lock
from bertlib.compute import FastCompute
from bertlib.errors import InputError
from bertlib.settings.common import (
  CHOICES,
  ComputeSettings,
  RunSettings,
  TrainingSettings,
)
from bertlib.training import model_selection
from bertlib.training.model_selection import Selection


def lock_output_dir(
  settings: TrainingSettings,
) -> contextlib.AbstractContextManager[None]:
  """Holds the lock of --output_dir in its block, if this process trains there.

  Evaluation and prediction need no lock, and of several workers the first one
  writes alone.
  """
  if settings.run.do_train and settings.devices.is_chief:
    return folder_lock.lock_folder(settings.run.output_dir)
  return contextlib.nullcontext()


def read_selection(run: RunSettings, metrics: Sequence[str]) -> Selection:
  """How the flags want the best weights found.

  Args:
    run: settings of the run.
    metrics: scores that there are, the task's own first.

  Returns:
    The `Selection`.

  Raises:
    InputError: there is no such score.
  """
  metric = model_selection.plain_name(run.best_metric or metrics[0])
  if metric not in metrics:
    raise InputError(
      f"--best_metric={run.best_metric}: there is no such score; there are"
      f" {', '.join(metrics)}"
    )
  eval_steps = run.eval_steps if run.do_train else None
  return Selection(eval_steps or 0, metric, run.patience)


def read_seeds(run: RunSettings) -> list[int]:
  """The seeds of `--seeds`; none where there is one run alone.

  Raises:
    InputError: the runs could not be compared.
  """
  if run.seeds and not (run.do_train and run.do_eval):
    raise InputError("--seeds compares dev scores: add --do_train, --do_eval")
  if run.seeds == 1:
    raise InputError("--seeds=1: give 2 or more, or --seed=... for one run")
  return [run.seed + index for index in range(run.seeds)]


def read_execution(
  settings: TrainingSettings, unpad: bool = True
) -> FastCompute:
  """How the flags want the model computed.

  Args:
    settings: with devices and computation decided, see `setup.resolved`.
    unpad: whether padding may be left out.

  Returns:
    The `FastCompute`, with `recompute` off.
  """
  on_tpu = settings.devices.on_tpu
  return FastCompute(
    dtype=tf.as_dtype(settings.compute.precision),
    unpad=unpad and not on_tpu,
    jit_compile=settings.compute.xla == "on" and not on_tpu,
  )


def choice_flags(compute: ComputeSettings) -> list[str]:
  """Flags by which another process makes the choices of this one."""
  return [f"--{name}={getattr(compute, name)}" for name in CHOICES]


def count_steps(run: RunSettings, num_examples: int, unit: str) -> int:
  """Steps of training that --num_train_epochs asks for.

  Args:
    run: settings of the run.
    num_examples: of an epoch.
    unit: plural noun of what these are.

  Returns:
    The steps, at least one.

  Raises:
    InputError: there are not enough for one.
  """
  batches = num_examples / run.train_batch_size
  num_steps = int(batches * run.num_train_epochs)
  if not num_steps:
    enough = math.ceil(10 / batches) / 10 if batches else 1
    raise InputError(
      f"--num_train_epochs={run.num_train_epochs:g}: {num_examples} training"
      f" {unit} are not enough for one step of"
      f" --train_batch_size={run.train_batch_size}. Give {enough:g} epochs or"
      " more, a smaller batch, or more data"
    )
  return num_steps
