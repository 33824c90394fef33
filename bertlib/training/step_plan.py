"""Plan of a training step: count, precision, micro-batches, options."""

from __future__ import annotations

import dataclasses
import math

from absl import logging

import modeling
import optimization
from bertlib.cli.errors import InputError
from bertlib.cli.option import repeat_choices
from bertlib.compute.fast_compute import FastCompute
from bertlib.hardware.devices import Devices
from bertlib.settings.training import (
  OptimizerSettings,
  RunSettings,
  TrainingSettings,
)
from bertlib.training import memory_plan
from bertlib.training.memory_plan import StepShape

# Computation and options of a training step.
Plan = tuple[FastCompute, optimization.StepOptions]


def choice_flags(devices: Devices) -> list[str]:
  """Flags that give a subprocess the choices of this one for "auto"."""
  automatic = sorted(devices.automatic)
  return repeat_choices({name: devices.choices[name] for name in automatic})


def count_steps(run: RunSettings, num_examples: int, unit: str) -> int:
  """Training steps of --num_train_epochs, at least one; else InputError."""
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


def may_be_too_few(run: RunSettings, num_examples: int) -> bool:
  """True if the examples make less than one training step."""
  # Only "may": each example may become several windows.
  return 0 < num_examples * run.num_train_epochs < run.train_batch_size


def plan_training(
  settings: TrainingSettings,
  devices: Devices,
  compute: FastCompute,
  config: modeling.BertConfig,
  shape: StepShape,
) -> Plan:
  """Computation and options of a training step, from the flags."""
  _check_flags(settings, devices, config)
  batch_size = devices.share_of(settings.run.train_batch_size)
  num_micro_batches, recompute = plan_memory(
    settings, devices, compute, config, batch_size, shape
  )
  if batch_size % num_micro_batches:
    num_parts = settings.run.train_batch_size // batch_size
    shared_by = f" shared by {num_parts} replicas" if num_parts > 1 else ""
    raise InputError(
      f"--gradient_accumulation_steps={num_micro_batches} does not divide"
      f" --train_batch_size={settings.run.train_batch_size}{shared_by}"
    )
  has_copies = (
    compute.jit_compile
    and compute.dtype.size == 2
    and not recompute
    and not devices.replicas
  )
  return (
    dataclasses.replace(
      compute,
      recompute=recompute,
      copy_weight=optimization.weight_copy if has_copies else None,
    ),
    step_options(settings.optimizer)._replace(
      num_micro_batches=num_micro_batches,
      jit_compile=compute.jit_compile,
      jit_norm=compute.jit_compile and compute.on_gpu,
    ),
  )


def _check_flags(
  settings: TrainingSettings, devices: Devices, config: modeling.BertConfig
) -> None:
  """Refuses flags of a step that the devices or the model do not allow."""
  replicas, batch_size = devices.replicas, settings.run.train_batch_size
  if replicas and batch_size % replicas.count:
    raise InputError(
      f"--train_batch_size={batch_size} cannot be divided among"
      f" {replicas.count} replicas. Give a multiple of that"
    )
  if settings.optimizer.freeze_layers > config.num_hidden_layers:
    raise InputError(
      f"--freeze_layers={settings.optimizer.freeze_layers}: the model has"
      f" {config.num_hidden_layers} layers"
    )


def plan_memory(
  settings: TrainingSettings,
  devices: Devices,
  compute: FastCompute,
  config: modeling.BertConfig,
  batch_size: int,
  shape: StepShape,
) -> tuple[int, bool]:
  """Number of micro-batches of a replica, and whether to recompute."""
  asked = settings.compute
  if asked.memory_gb is None:
    return asked.gradient_accumulation_steps, asked.recompute_activations
  num_sharing = devices.replicas_per_memory
  plan = memory_plan.fit(
    config,
    batch_size,
    shape,
    num_bytes=int(asked.memory_gb * 10**9) // num_sharing,
    dtype_size=compute.dtype.size,
    on_gpu=compute.on_gpu,
    jit_compile=compute.jit_compile,
  )
  if plan is None:
    beside = smaller = ""
    if shape.loss_bytes:  # which micro-batches do not change
      beside = " beside the loss of the whole batch"
      smaller = ", a smaller --train_batch_size"
    raise InputError(
      f"--memory_gb={asked.memory_gb:g}: not even one sequence of"
      f" {shape.seq_length} tokens fits{beside}. Give more{smaller}, or a lower"
      " --max_seq_length"
    )
  logging.info(
    "--memory_gb=%g: --gradient_accumulation_steps=%d, %d sequences at once,"
    " --%srecompute_activations; takes %.1f GB at most",
    asked.memory_gb,
    plan.num_micro_batches,
    batch_size // plan.num_micro_batches,
    "" if plan.recompute else "no",
    num_sharing * plan.num_bytes / 10**9,
  )
  return plan.num_micro_batches, plan.recompute


def step_options(optimizer: OptimizerSettings) -> optimization.StepOptions:
  """The options of a training step that the flags of the optimizer give."""
  return optimization.StepOptions(
    schedule=optimizer.schedule,
    decay_proportion=optimizer.decay_proportion,
    optimizer=optimizer.optimizer,
    weight_decay=optimizer.weight_decay,
    bias_correction=optimizer.bias_correction,
    beta_2=optimizer.beta_2,
    epsilon=optimizer.epsilon,
    clip_norm=optimizer.clip_norm,
    layer_decay=optimizer.layer_decay,
    frozen=optimization.Frozen(
      optimizer.freeze_layers, optimizer.freeze_embeddings
    ),
  )
