"""Plan of a training step: count, options, micro-batches within a memory."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from absl import logging

import modeling
import optimization
from bertlib.checkpoints import model_folder
from bertlib.cli.errors import InputError
from bertlib.cli.option import repeat_choices
from bertlib.compute.fast_compute import FastCompute
from bertlib.hardware.devices import Devices
from bertlib.settings.training import (
  OptimizerSettings,
  RunSettings,
  TrainingSettings,
)
from bertlib.task.task_record import StepShape


class Plan(NamedTuple):
  """Plan of a training step; fields of `TrainingArguments`."""

  compute: FastCompute
  options: optimization.StepOptions
  num_micro_batches: int = 1
  frozen: optimization.Frozen = optimization.Frozen()


def choice_flags(devices: Devices) -> list[str]:
  """Flags that give a subprocess the choices of this one for "auto"."""
  automatic = sorted(devices.automatic)
  return repeat_choices({name: devices.choices[name] for name in automatic})


def count_steps(flags: RunSettings, num_examples: int, unit: str) -> int:
  """Training steps of --num_train_epochs, at least one; else InputError."""
  batches = num_examples / flags.train_batch_size
  num_steps = int(batches * flags.num_train_epochs)
  if not num_steps:
    enough = math.ceil(10 / batches) / 10 if batches else 1
    raise InputError(
      f"--num_train_epochs={flags.num_train_epochs:g}: {num_examples} training"
      f" {unit} are not enough for one step of"
      f" --train_batch_size={flags.train_batch_size}. Give {enough:g} epochs or"
      " more, a smaller batch, or more data"
    )
  return num_steps


def plan_training(
  settings: TrainingSettings,
  devices: Devices,
  compute: FastCompute,
  config: modeling.BertConfig,
  shape: StepShape,
) -> Plan:
  """Plan of a training step, from the flags."""
  _check_flags(settings, devices, config)
  batch_size = devices.share_of(settings.flags.train_batch_size)
  num_micro_batches, recompute = plan_memory(
    settings, devices, compute, config, batch_size, shape
  )
  if batch_size % num_micro_batches:
    shared_by = ""
    if devices.num_parts > 1:
      shared_by = f" shared by {devices.num_parts} replicas"
    raise InputError(
      f"--gradient_accumulation_steps={num_micro_batches} does not divide"
      f" --train_batch_size={settings.flags.train_batch_size}{shared_by}"
    )
  has_copies = (
    compute.jit_compile
    and compute.dtype.size == 2
    and not recompute
    and devices.replicas.count == 1
  )
  flags = settings.optimizer
  return Plan(
    dataclasses.replace(
      compute,
      recompute=recompute,
      copy_weight=optimization.weight_copy if has_copies else None,
    ),
    step_options(flags)._replace(
      jit_compile=compute.jit_compile,
      jit_norm=compute.jit_compile and compute.on_gpu,
    ),
    num_micro_batches,
    optimization.Frozen(flags.freeze_layers, flags.freeze_embeddings),
  )


def _check_flags(
  settings: TrainingSettings, devices: Devices, config: modeling.BertConfig
) -> None:
  """Refuses flags of a step that the devices or the model do not allow."""
  count, batch_size = devices.replicas.count, settings.flags.train_batch_size
  if batch_size % count:
    raise InputError(
      f"--train_batch_size={batch_size} cannot be divided among {count}"
      " replicas. Give a multiple of that"
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
  num_bytes = int(asked.memory_gb * 10**9) // num_sharing
  plan = fit(config, batch_size, shape, compute, num_bytes)
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
  )


# Memory and FLOPs


class MemoryPlan(NamedTuple):
  """Plan of a training step that fits."""

  num_micro_batches: int
  recompute: bool
  num_bytes: int  # upper bound of its memory


def fit(
  config: modeling.BertConfig,
  batch_size: int,
  shape: StepShape,
  compute: FastCompute,  # but for its `recompute`
  num_bytes: int,
) -> MemoryPlan | None:
  """Fastest plan within a memory limit; None if nothing fits."""
  divisors = [n for n in range(1, batch_size + 1) if batch_size % n == 0]
  # Recomputation takes a third more time, smaller micro-batches take less than
  # that. So micro-batches become smaller first, down to one example.
  for recompute in (False, True):
    compute = dataclasses.replace(compute, recompute=recompute)
    for num_micro_batches in divisors:
      size = batch_size // num_micro_batches
      needed = step_bytes(config, size, shape, compute, num_micro_batches > 1)
      if compute.on_gpu:  # the estimate may be a tenth too low
        needed = int(1.1 * needed)
      if needed <= num_bytes:
        return MemoryPlan(num_micro_batches, recompute, needed)
  return None


def step_bytes(
  config: modeling.BertConfig,
  batch_size: int,
  shape: StepShape,
  compute: FastCompute,
  accumulates: bool = False,
) -> int:
  """Estimate of the peak memory of a training step on one replica, in bytes."""
  # For a CPU it is an upper bound of what a process takes. Measured were
  # BERT-Base, BERT-Large and MiniLM in TensorFlow 2.21 with XLA, by
  # `benchmarks/peak_memory.py`. For a GPU it is what TensorFlow's allocator
  # uses, within a tenth of the peak on an emulated GPU, see the check
  # `planned_memory` of `benchmarks/gpu.py`; the driver takes more.
  width = config.hidden_size
  num_sequences = batch_size * shape.num_rows
  tokens = num_sequences * shape.seq_length
  generator = 0
  if shape.generator:
    other, of_other = shape.generator
    generator = step_bytes(other, batch_size, of_other, compute, accumulates)
  sizes_on_device = _sizes_on_gpu if compute.on_gpu else _sizes_on_cpu
  sizes = sizes_on_device(config, shape, compute)
  layer = last = tokens * sizes.of_token
  if shape.num_output_positions is not None:
    # Keys and values of all tokens, and everything else of these positions.
    outputs = num_sequences * shape.num_output_positions * sizes.of_token
    last = min(layer, tokens * 3 * width * compute.dtype.size + outputs)
  if compute.recompute:
    layers = config.num_hidden_layers * tokens * width * compute.dtype.size
    layers += sizes.num_recomputed * layer
  else:
    layers = (config.num_hidden_layers - 1) * layer + last
    layers += sizes.num_in_progress * layer
  # Scores of the vocabulary, their softmax, both gradients.
  head = 4 * num_sequences * shape.num_predictions * config.vocab_size * 4
  if accumulates and shape.num_predictions:
    # Allocators need more for it in a loop. The word embeddings, which are
    # output weights too, have a dense gradient: that of the lookup, of the
    # scores, of both, and the accumulated one.
    table = config.vocab_size * (config.embedding_size or width)
    head = sizes.loop_factor * head + 4 * table * 4
  # The accumulated gradient.
  of_weight = sizes.of_weight + (4 if accumulates else 0)
  encoder = of_weight * model_folder.num_weights(config)
  encoder += sizes.factor * (layers + head) + tokens * sizes.of_embedding
  fixed = 0 if generator else sizes.fixed  # the generator has it
  return int(fixed + encoder + shape.loss_bytes + generator)


class _Sizes(NamedTuple):
  """Bytes of the parts of a step on one kind of device."""

  # A weight with its moments, its gradient, and what updates it.
  of_weight: float
  of_token: float  # activations that a layer stores per token
  of_embedding: int  # what the embeddings store per token
  fixed: float  # independent of the batch
  num_recomputed: int  # layers whose activations exist at once
  num_in_progress: int  # layers that exist twice, if stored
  factor: float  # allocator overhead of activations
  loop_factor: float  # that of the masked-LM head in a loop


def _sizes_on_cpu(
  config: modeling.BertConfig, shape: StepShape, compute: FastCompute
) -> _Sizes:
  width, inner = config.hidden_size, config.intermediate_size
  dtype_size = compute.dtype.size
  # Activations stored per layer: 9 of width H, 2 of the FFN width, 2 dropout
  # masks, and attention probabilities before and after dropout.
  of_token = (9 * width + 2 * inner) * dtype_size + 2 * width
  of_token += config.num_attention_heads * shape.seq_length * (5 + dtype_size)
  return _Sizes(
    # 16 bytes (weight, gradient, two moments) times 1.6 for allocator
    # fragmentation.
    of_weight=26 + dtype_size % 4,
    of_token=of_token,
    of_embedding=0,
    fixed=0.9e9,
    num_recomputed=4,
    num_in_progress=1,
    factor=1.3,
    loop_factor=1.5,
  )


def _sizes_on_gpu(
  config: modeling.BertConfig, shape: StepShape, compute: FastCompute
) -> _Sizes:
  # Within a tenth of the peaks of an emulated GPU in eleven cases.
  width, inner = config.hidden_size, config.intermediate_size
  dtype_size = compute.dtype.size
  probs = config.num_attention_heads * shape.seq_length
  if compute.jit_compile:
    of_token = (9.5 * width + 2 * inner) * dtype_size
    of_token += probs * 2 * dtype_size  # scores, and probabilities
    of_weight = 16
  else:
    # Results of all operations of GELU, dropout, layer normalization and Adam.
    of_token = (15 * width + 2 * inner) * dtype_size + 26 * width
    of_token += probs * (5 + dtype_size)
    of_weight = 28
  if dtype_size == 2 and (compute.recompute or not compute.jit_compile):
    of_weight += 4  # kernels and their gradients are cast
  return _Sizes(
    of_weight=of_weight,
    of_token=of_token,
    of_embedding=4 * width * 4,  # sums and norm
    # gradients of word embeddings
    fixed=8 * config.vocab_size * (config.embedding_size or width) * 4,
    num_recomputed=1,
    num_in_progress=0,
    factor=1,
    loop_factor=1,
  )


def step_flops(
  config: modeling.BertConfig,
  batch_size: float,
  shape: StepShape,
  recompute: bool = False,
) -> float:
  """Floating-point operations of a training step's matrix products."""
  # Heads other than the masked LM's, and padding, are left out.
  generator = 0.0
  if shape.generator:
    generator = step_flops(
      shape.generator[0],
      batch_size,
      shape.generator[1]._replace(seq_length=shape.seq_length),
      recompute,
    )
  width, inner = config.hidden_size, config.intermediate_size
  embedding_size = config.embedding_size or width
  of_token = 4 * width * width + 2 * width * inner
  # Attention scores, and the values weighted by them.
  of_token += 2 * shape.seq_length * width
  num_sequences = batch_size * shape.num_rows
  tokens = num_sequences * shape.seq_length
  layers = config.num_hidden_layers * tokens * of_token
  of_mask = embedding_size * (width + config.vocab_size)
  heads = num_sequences * (width * width + shape.num_predictions * of_mask)
  # A product of [m, k] by [k, n] takes m * n * k multiplications and as many
  # additions. Its gradient is two such products.
  return 2 * ((4 if recompute else 3) * layers + 3 * heads) + generator
