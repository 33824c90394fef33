"""The doctor's checks of training: weights, steps, disk, memory and time.

Functions that begin with `check_` raise an InputError for what would stop a
run, and warn in the log of what would not.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import subprocess
from types import SimpleNamespace
from typing import Any, Callable

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib import estimator_api, precision
from bertlib.checkpoints import checkpoint_files, loading
from bertlib.reporting.doctor import Doctor, Lengths, check_disk, size_in_words
from bertlib.settings.common import TrainingSettings
from bertlib.training import memory_plan, training_run


def check_weights(
  checkpoint: str | None, model_fn: Callable, layout, model_dir: str | None
) -> None:
  """Builds the graph of a model, and finds out where its weights are from.

  Args:
    checkpoint: that the weights are from; None for a new model.
    model_fn: the script's.
    layout: of its features, see `tf_records.Layout`.
    model_dir: whose checkpoint has all of the model, if it has one.

  Raises:
    InputError: a checkpoint is not of this model, or damaged.
  """
  if checkpoint:
    checkpoint_files.check(checkpoint)
    num_variables = len(tf.train.list_variables(checkpoint))
    logging.info("%s: %d variables, none corrupt", checkpoint, num_variables)
  with tf.Graph().as_default():
    batch = {
      name: tf.zeros([1, *shape], tf.float32 if is_float else tf.int32)
      for name, (shape, is_float, *_) in layout.items()
    }
    model_fn(
      batch,
      None,
      estimator_api.ModeKeys.PREDICT,
      {"batch_size": 1},
      SimpleNamespace(model_dir=model_dir),
    )


def check_start(
  settings: TrainingSettings,
  config,
  trained: str | None,
  check_weights: Callable[[], Any],
  num_predictions: int = 0,
) -> None:
  """Makes the last checks of a run, before which it writes nothing.

  What they log is logged again when the run comes to it, but for warnings.

  Args:
    settings: of the command.
    config: the model's sizes.
    trained: the checkpoint that has all of the model; None for a new one.
    check_weights: checks it, or else --init_checkpoint, against the model.
    num_predictions: P, masked positions of an example.

  Raises:
    InputError: devices, batches or weights are not as training needs them.
  """
  verbosity = logging.get_verbosity()
  logging.set_verbosity(min(verbosity, logging.WARNING))
  try:
    training_run.plan_training(
      settings,
      training_run.read_execution(settings),
      config,
      int(settings.run.do_train),
      num_predictions,
    )
    if trained or settings.model.init_checkpoint:
      check_weights()
  finally:
    logging.set_verbosity(verbosity)


def check_memory(num_bytes: int, available: int | None) -> None:
  """Warns if a step of training may take more memory than there is.

  Args:
    num_bytes: that it takes at most.
    available: that there are; None where that is not known.
  """
  if available is None:
    logging.info("training takes %s at most", size_in_words(num_bytes))
  elif num_bytes <= available:
    logging.info(
      "training takes %s at most, %s are free",
      size_in_words(num_bytes),
      size_in_words(available),
    )
  else:
    logging.warning(
      "training may take %s, but %s are free. Give --memory_gb=%.0f, which"
      " finds a way to do with less",
      size_in_words(num_bytes),
      size_in_words(available),
      available // 10**9,
    )


def available_memory() -> int | None:
  """Bytes that are free: of the first GPU or, without one, of this machine."""
  with contextlib.suppress(OSError, ValueError, IndexError):
    if tf.config.list_physical_devices("GPU"):
      query = "--query-gpu=memory.free --format=csv,noheader,nounits"
      told = subprocess.run(
        ["nvidia-smi", *query.split()],
        capture_output=True,
        text=True,
        check=False,
      ).stdout
      return int(told.splitlines()[0]) * 2**20
    with open("/proc/meminfo") as file:
      return int(re.search(r"MemAvailable:\s+(\d+) kB", file.read())[1]) * 1024
  return None


def tell_time(num_flops: float, rate: float) -> None:
  """Tells how long a run takes.

  Args:
    num_flops: floating-point operations of its matrix products.
    rate: of these a second, in a product alone.
  """
  # What else a step does takes about as long as its products.
  seconds = round(2 * num_flops / rate)
  logging.info(
    "an estimate: %s of training, for %.3g operations at %.3g a second",
    datetime.timedelta(seconds=seconds) if seconds else "less than a second",
    num_flops,
    rate,
  )


def check_training(
  settings: TrainingSettings,
  doctor: Doctor,
  config,
  lengths: Lengths,
  count_steps: Callable[[int], int],
  num_predictions: int = 0,
  writes_records: bool = True,
) -> None:
  """Checks what training takes: steps, disk, memory, time. Reads the flags.

  Args:
    settings: of the command.
    doctor: makes the checks.
    config: the model's sizes, or `SKIPPED`.
    lengths: of the examples, likewise.
    count_steps: gives the steps of training on so many examples.
    num_predictions: P, masked positions of an example.
    writes_records: whether the examples go to records in --output_dir.
  """

  def steps(lengths):
    num_steps = count_steps(lengths.num_examples)
    logging.info(
      "%d, of %d each, on %d",
      num_steps,
      settings.run.train_batch_size,
      lengths.num_examples,
    )
    return num_steps

  def plan(config, num_steps):
    return training_run.plan_training(
      settings,
      training_run.read_execution(settings),
      config,
      num_steps,
      num_predictions,
    )

  def disk(config, num_steps, lengths):
    num_bytes = 0
    if writes_records:
      num_rows = lengths.num_examples * lengths.num_rows
      num_bytes = 5 * num_rows * settings.model.max_seq_length
    if num_steps:
      num_bytes += checkpoint_bytes(
        settings, loading.num_weights(config), num_steps
      )
    check_disk(settings.run.output_dir, num_bytes)

  def memory(config, plan, lengths):
    compute, options = plan
    needed = memory_plan.step_bytes(
      config,
      settings.run.train_batch_size
      // options.num_micro_batches
      * lengths.num_rows,
      settings.model.max_seq_length,
      compute.recompute,
      options.num_micro_batches > 1,
      compute.dtype.size,
      num_predictions,
    )
    check_memory(needed, available_memory())

  def duration(config, plan, num_steps, lengths):
    compute, _ = plan
    batch_size = settings.run.train_batch_size * lengths.num_rows
    seq_length = max(round(lengths.num_tokens), 1)
    num_flops = memory_plan.step_flops(
      config, batch_size, seq_length, compute.recompute, num_predictions
    )
    (rate,) = precision.product_rates(
      [compute.dtype.name],
      min(batch_size * seq_length, 4096),
      config.hidden_size,
      config.intermediate_size,
      num_rounds=3,
    ).values()
    tell_time(num_steps * num_flops, rate)

  if not settings.run.do_train:
    doctor.check("disk", disk, config, 0, lengths)
    return
  num_steps = doctor.check("steps", steps, lengths)
  planned = doctor.check("batches", plan, config, num_steps)
  doctor.check("disk", disk, config, num_steps, lengths)
  doctor.check("memory", memory, config, planned, lengths)
  doctor.check("time", duration, config, planned, num_steps, lengths)


def checkpoint_bytes(
  settings: TrainingSettings, num_weights: int, num_train_steps: int
) -> int:
  """Bytes of the checkpoints that are kept, as the flags have it.

  A weight has two moments, but among the best ones. The folder has one more of
  each while it is written.
  """
  every = settings.run.eval_steps or settings.run.save_checkpoints_steps
  kept = min(settings.run.keep_checkpoint_max, num_train_steps // every + 1) + 1
  best = 2 if settings.run.eval_steps else 0
  return num_weights * 4 * (3 * kept + best)
