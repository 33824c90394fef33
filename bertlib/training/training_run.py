"""The life of a training run: plan, Estimator, training, results."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import optimization
from bertlib import estimator_api, folder_lock
from bertlib.checkpoints import finding
from bertlib.compute import FastCompute
from bertlib.data import record_check
from bertlib.errors import InputError
from bertlib.settings.common import (
  CHOICES,
  ComputeSettings,
  RunSettings,
  TrainingSettings,
)
from bertlib.training import (
  checkpoint_hook,
  distribution,
  memory_plan,
  model_selection,
)
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


def build_estimator(
  settings: TrainingSettings,
  model_fn,
  model_dir: str,
  train_batch_size: int | None = None,
  eval_batch_size: int | None = None,
  predict_batch_size: int | None = None,
):
  """The Estimator of a script, on the devices that the flags name.

  Args:
    settings: of the command.
    model_fn: of the script.
    model_dir: folder of its checkpoints.
    train_batch_size: examples a step, where it trains.
    eval_batch_size: examples a step of scoring, where it scores.
    predict_batch_size: examples a step of prediction, where it predicts.

  Returns:
    An `estimator_api.TPUEstimator`, which serves a CPU or GPU too, or a
    `distribution.ReplicatedEstimator`.
  """
  sizes = {
    "train_batch_size": train_batch_size,
    "eval_batch_size": eval_batch_size,
    "predict_batch_size": predict_batch_size,
  }
  run_config = {}
  if train_batch_size:
    run_config = {
      "tf_random_seed": settings.run.seed,
      "save_checkpoints_steps": settings.run.steps_per_checkpoint,
      "keep_checkpoint_max": settings.run.keep_checkpoint_max,
      # On a TPU it shows examples a second; else `ProgressHook` does.
      "save_summary_steps": settings.run.log_steps
      if settings.devices.on_tpu
      else 0,
    }
  replicas = settings.devices.replicas
  if replicas:
    return distribution.ReplicatedEstimator(
      model_fn, model_dir, replicas, run_config, **sizes
    )
  cluster = settings.devices.tpu_cluster
  with distribution.without_tf_config():
    config = estimator_api.RunConfig(
      cluster=cluster,
      master=settings.devices.master,
      model_dir=model_dir,
      tpu_config=estimator_api.TPUConfig(
        iterations_per_loop=settings.devices.iterations_per_loop,
        num_shards=settings.devices.num_tpu_cores,
        per_host_input_for_training=(
          estimator_api.InputPipelineConfig.PER_HOST_V2
        ),
      ),
      **run_config,
    )
  estimator = estimator_api.TPUEstimator(
    use_tpu=settings.devices.on_tpu, model_fn=model_fn, config=config, **sizes
  )
  # What it writes for TensorBoard is dropped: `write_dev_scores` writes the
  # same under the names that training has.
  estimator.eval_dir = lambda name=None: "ram://eval"
  return estimator


def plan_training(
  settings: TrainingSettings,
  compute: FastCompute,
  config: modeling.BertConfig,
  num_train_steps: int,
  num_predictions: int = 0,
) -> tuple[FastCompute, optimization.StepOptions]:
  """How the flags want a step of training made.

  Args:
    settings: of the command.
    compute: from `read_execution`.
    config: the model's sizes.
    num_train_steps: length of training; 0 where there is none to plan.
    num_predictions: P, masked positions of a sequence.

  Returns:
    `compute`, which may recompute now, and the options of a step.

  Raises:
    InputError: the batch is not divisible as asked for, or nothing keeps
      training within the memory given.
  """
  if not num_train_steps:
    return compute, optimization.StepOptions()
  replicas = settings.devices.replicas
  if replicas and settings.compute.optimizer_on_cpu:
    raise InputError(
      "--optimizer_on_cpu is for one device: it cannot be with"
      f" {replicas.count} replicas"
    )
  batch_size = settings.run.train_batch_size // (
    replicas.count if replicas else 1
  )
  num_micro_batches = settings.compute.gradient_accumulation_steps
  recompute = settings.compute.recompute_activations
  if settings.compute.memory_gb is not None:
    plan = memory_plan.fit(
      config,
      batch_size,
      settings.model.max_seq_length,
      int(settings.compute.memory_gb * 10**9),
      compute.dtype.size,
      num_predictions,
    )
    if plan is None:
      raise InputError(
        f"--memory_gb={settings.compute.memory_gb:g}: not even one sequence of"
        f" {settings.model.max_seq_length} tokens fits. Give more, or a lower"
        " --max_seq_length"
      )
    num_micro_batches, recompute = plan.num_micro_batches, plan.recompute
    logging.info(
      "--memory_gb=%g: --gradient_accumulation_steps=%d, %d sequences at once,"
      " --%srecompute_activations; takes %.1f GB at most",
      settings.compute.memory_gb,
      num_micro_batches,
      batch_size // num_micro_batches,
      "" if recompute else "no",
      plan.num_bytes / 10**9,
    )
  if batch_size % num_micro_batches:
    raise InputError(
      f"--gradient_accumulation_steps={num_micro_batches} does not divide"
      f" --train_batch_size={settings.run.train_batch_size}"
      + (f" shared by {replicas.count} replicas" if replicas else "")
    )
  if settings.optimizer.freeze_layers > config.num_hidden_layers:
    raise InputError(
      f"--freeze_layers={settings.optimizer.freeze_layers}: the model has"
      f" {config.num_hidden_layers} layers"
    )
  compute = dataclasses.replace(compute, recompute=recompute)
  return compute, optimization.StepOptions(
    schedule=settings.optimizer.schedule,
    power=settings.optimizer.schedule_power,
    optimizer=settings.optimizer.optimizer,
    weight_decay=settings.optimizer.weight_decay,
    bias_correction=settings.optimizer.bias_correction,
    beta_1=settings.optimizer.beta_1,
    beta_2=settings.optimizer.beta_2,
    epsilon=settings.optimizer.epsilon,
    clip_norm=settings.optimizer.clip_norm,
    layer_decay=settings.optimizer.layer_decay,
    frozen=optimization.Frozen(
      settings.optimizer.freeze_layers, settings.optimizer.freeze_embeddings
    ),
    num_micro_batches=num_micro_batches,
    jit_compile=compute.jit_compile and not settings.compute.optimizer_on_cpu,
    on_cpu=settings.compute.optimizer_on_cpu,
  )


# From the first step to the last


def train(
  settings: TrainingSettings,
  estimator,
  input_fn,
  num_train_steps: int,
  what: str,
  unit: str,
  selection: Selection,
  evaluate: model_selection.Evaluate | None,
  find_bad_record: record_check.Find | None = None,
) -> None:
  """Trains, or goes on where training was stopped, as the flags say.

  Args:
    settings: of the command.
    estimator: the model.
    input_fn: of the training data, from the step on that has been reached.
    num_train_steps: the step at which training ends.
    what: what it trains on, for the log.
    unit: what a step takes some of.
    selection: how it is scored on the way.
    evaluate: scores a checkpoint, if it is scored on the way.
    find_bad_record: looks for the record at fault when training fails.
  """
  replicas, writes = settings.devices.replicas, settings.devices.is_chief
  if writes:
    finding.go_on_in(settings.run.output_dir)
  done = finding.steps_done(settings.run.output_dir)
  if done >= num_train_steps:
    logging.info(
      "%s is already at step %d of %d: nothing is left to train",
      settings.run.output_dir,
      done,
      num_train_steps,
    )
  else:
    logging.info(
      "Training on %s, from step %d to %d, %d %s a step",
      what,
      done,
      num_train_steps,
      settings.run.train_batch_size,
      unit,
    )
  with checkpoint_hook.StopRequest() as own:
    stop, hooks = own, []
    if replicas and replicas.num_processes > 1:
      stop = checkpoint_hook.StopRequest()
      hooks = [checkpoint_hook.SharedStop(own, stop)]
    if writes and not settings.devices.on_tpu:
      params = {
        "batch_size": settings.run.train_batch_size,
        "shard": replicas and replicas.shard,
      }
      hooks.append(
        checkpoint_hook.CheckpointHook(
          settings.run.output_dir,
          settings.run.steps_per_checkpoint,
          settings.run.save_checkpoints_secs,
          stop,
          own,
          functools.partial(checkpoint_hook.batch_at, input_fn, params),
          find_bad_record=find_bad_record,
        )
      )
    with record_check.named_at_failure(find_bad_record):
      model_selection.train(
        estimator,
        input_fn,
        num_train_steps,
        selection,
        evaluate if writes else None,
        hooks,
      )
  stop.exit_if_requested(settings.run.output_dir)


def checkpoint_to_use(settings: TrainingSettings) -> str | None:
  """The checkpoint to score and predict with; says which it is.

  Processes that are for training alone end here.

  Returns:
    See `finding.trained_checkpoint`.
  """
  if not settings.devices.is_chief:
    logging.info("This worker is done; the first one does the rest")
    sys.exit(0)
  checkpoint = finding.trained_checkpoint(settings.run.output_dir)
  if checkpoint:
    logging.info("The weights are those of %s", checkpoint)
  return checkpoint


# Afterwards


def write_dev_scores(
  settings: TrainingSettings,
  results: Mapping[str, Any],
  checkpoint: str | None,
  ending: str = "",
) -> None:
  """Writes the scores of a dev set for TensorBoard, to `dev/`.

  Args:
    settings: of the command.
    results: see `model_selection.plain_scores`.
    checkpoint: what was evaluated; None for a model without training.
    ending: of the folder's name, for a second dev set.
  """
  step = 0
  if checkpoint:
    reader = tf.train.load_checkpoint(checkpoint)
    step = int(reader.get_tensor("global_step"))
  model_selection.write_events(
    os.path.join(settings.run.output_dir, f"dev{ending}"),
    step,
    model_selection.plain_scores(results),
  )
