"""Costs of training, as a dry run estimates them."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import re
import subprocess
from typing import Callable

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import model_folder
from bertlib.cli.steps import Steps
from bertlib.compute import precision
from bertlib.data.example_checks import LengthSummary
from bertlib.io.files import check_disk, size_in_words
from bertlib.settings.training import TrainingSettings
from bertlib.training import step_plan
from bertlib.training.runs import Run

# All other operations together take about as long as the matrix products.
_OVERHEAD = 2


def check_memory(num_bytes: int, available: int | None) -> None:
  """Warns if training may need more memory than `available`, if known."""
  needed = f"memory: needs up to {size_in_words(num_bytes)}"
  if available is None:
    logging.info("%s", needed)
  elif num_bytes <= available:
    logging.info("%s, %s free", needed, size_in_words(available))
  else:
    logging.warning(
      "%s, only %s free. Give --memory_gb=%d, which lowers the memory use by"
      " micro-batches and recomputation",
      needed,
      size_in_words(available),
      available // 10**9,
    )


def available_memory() -> int | None:
  """Free bytes of the first GPU or, without one, of this machine."""
  with contextlib.suppress(OSError, ValueError, IndexError):
    if tf.config.list_physical_devices("GPU"):
      query = "--query-gpu=memory.free --format=csv,noheader,nounits"
      visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
      output = subprocess.run(
        ["nvidia-smi", *query.split(), f"--id={visible.partition(',')[0]}"],
        capture_output=True,
        text=True,
        check=False,
      ).stdout
      return int(output.splitlines()[0]) * 2**20
    with open("/proc/meminfo") as file:
      return int(re.search(r"MemAvailable:\s+(\d+) kB", file.read())[1]) * 1024
  return None


def estimate_training(
  step: Steps,
  run: Run,
  plan: step_plan.Plan | None,  # of `loop.check_start`
  lengths: LengthSummary,
  count_steps: Callable[[int], int] | None = None,
  writes_records: bool = True,
) -> None:
  """Estimates steps, disk, memory and time of a run, in steps of a dry run."""
  step.need(lengths)
  num_steps = 0
  if run.flags.do_train:
    num_steps = step(
      "steps", _count_steps, run, lengths, count_steps, instead=0
    )
  step("disk", _check_disk, run, num_steps, lengths, writes_records)
  if plan:
    step("memory", _check_memory_of, run, plan)
  if num_steps and plan:
    step("time", _estimate_time, run, plan, num_steps, lengths)


def _check_memory_of(run: Run, plan: step_plan.Plan) -> None:
  """Compares what the run needs with the free memory."""
  num_bytes = run.devices.replicas_per_memory * planned_bytes(run, plan)
  check_memory(num_bytes, available_memory())


def _count_steps(run: Run, lengths: LengthSummary, count_steps) -> int:
  """Counts the training steps and logs them."""
  if count_steps:
    num_steps = count_steps(lengths.num_examples)
  else:
    num_steps = step_plan.count_steps(
      run.flags, lengths.num_examples, run.task.unit
    )
  logging.info(
    "steps: %s with batch size %d, training set of %d",
    num_steps or "any number",
    run.flags.train_batch_size,
    lengths.num_examples,
  )
  return num_steps


def _check_disk(
  run: Run, num_steps: int, lengths: LengthSummary, writes_records: bool
) -> None:
  """Checks that --output_dir has enough free space for the run."""
  settings, num_bytes = run.settings, 0
  if writes_records:
    num_rows = lengths.num_examples * run.task.num_rows
    num_bytes = 5 * num_rows * settings.model.max_seq_length
  if run.flags.do_train:
    num_weights = model_folder.num_weights(run.config)
    if generator := run.step_shape.generator:
      num_weights += model_folder.num_weights(generator[0])
    num_bytes += checkpoint_bytes(settings, num_weights, num_steps)
  check_disk(run.output_dir, _count_runs(run) * num_bytes)


def _count_runs(run: Run) -> int:
  """Number of trainings, each in a folder of its own."""
  return max(len(run.seeds), 1)


def planned_bytes(run: Run, plan: step_plan.Plan) -> int:
  """Estimate of the memory of a training step, see `step_plan.step_bytes`."""
  batch_size = run.devices.share_of(run.flags.train_batch_size)
  return step_plan.step_bytes(
    run.config,
    batch_size // plan.num_micro_batches,
    run.step_shape,
    plan.compute,
    plan.num_micro_batches > 1,
  )


def _estimate_time(
  run: Run, plan: step_plan.Plan, num_steps: int, lengths: LengthSummary
) -> None:
  """Logs an estimate of the training time."""
  compute = plan.compute
  batch_size = run.flags.train_batch_size
  shape = run.step_shape._replace(seq_length=max(round(lengths.num_tokens), 1))
  num_flops = step_plan.step_flops(
    run.config, batch_size, shape, compute.recompute
  )
  (rate,) = precision.product_rates(
    [compute.dtype.name],
    min(batch_size * shape.num_rows * shape.seq_length, 4096),
    run.config.hidden_size,
    run.config.intermediate_size,
    num_rounds=3,
  ).values()
  num_flops *= num_steps * _count_runs(run)
  seconds = math.ceil(_OVERHEAD * num_flops / rate)
  logging.info(
    "time: estimated %s of training, for %.3g operations at %.3g per second",
    datetime.timedelta(seconds=seconds),
    num_flops,
    rate,
  )


def checkpoint_bytes(
  settings: TrainingSettings, num_weights: int, num_train_steps: int
) -> int:
  """Bytes of all checkpoints that are kept at the same time."""
  # A weight takes 4 bytes and its two moments 8; the best checkpoint has no
  # moments. While a new checkpoint is written, there is one more of each.
  flags = settings.flags
  kept = flags.keep_checkpoint_max
  if num_train_steps:  # which are not known within a budget
    kept = min(kept, num_train_steps // flags.steps_per_checkpoint + 1)
  best = 2 if flags.eval_steps else 0
  return num_weights * 4 * (3 * (kept + 1) + best)
