"""Memory and FLOPs of a training step, and a plan that fits a memory limit."""

from __future__ import annotations

from typing import NamedTuple

import modeling
from bertlib.checkpoints import loading
from bertlib.settings.common import DeviceSettings


class StepShape(NamedTuple):
  """Sizes of a training step, apart from those of model and batch.

  Attributes:
    seq_length: S, tokens of the longest sequence.
    num_rows: sequences per example.
    num_predictions: P, masked positions per sequence.
    num_output_positions: positions per sequence that the last layer computes,
      see `modeling.BertModel`; None for all.
    loss_bytes: see `task.Task`.
  """

  seq_length: int
  num_rows: int = 1
  num_predictions: int = 0
  num_output_positions: int | None = None
  loss_bytes: int = 0


class Plan(NamedTuple):
  """Plan of a training step.

  Attributes:
    num_micro_batches: micro-batches of a step.
    recompute: whether activations are recomputed for the gradient.
    num_bytes: upper bound of its memory.
  """

  num_micro_batches: int
  recompute: bool
  num_bytes: int


def fit(
  config: modeling.BertConfig,
  batch_size: int,
  shape: StepShape,
  num_bytes: int,
  dtype_size: int = 4,
) -> Plan | None:
  """Finds the fastest plan of a training step within a memory limit.

  Recomputation takes a third more time, smaller micro-batches take less than
  that. So it makes micro-batches smaller first, down to one example.

  Args:
    config: config of the encoder.
    batch_size: examples per step and replica.
    shape: sizes of the step.
    num_bytes: memory limit.
    dtype_size: bytes per activation.

  Returns:
    The plan; None if nothing fits.
  """
  divisors = [n for n in range(1, batch_size + 1) if batch_size % n == 0]
  for recompute in (False, True):
    for num_micro_batches in divisors:
      needed = step_bytes(
        config,
        batch_size // num_micro_batches,
        shape,
        recompute,
        num_micro_batches > 1,
        dtype_size,
      )
      if needed <= num_bytes:
        return Plan(num_micro_batches, recompute, needed)
  return None


def step_bytes(
  config: modeling.BertConfig,
  batch_size: int,
  shape: StepShape,
  recompute: bool = False,
  accumulates: bool = False,
  dtype_size: int = 4,
) -> int:
  """Upper bound of the bytes that one replica takes in a step on the CPU.

  What is counted is what a step holds; how much more the allocators take for
  it was measured, on BERT-Base, BERT-Large and MiniLM in TensorFlow 2.21 with
  XLA (`benchmarks/peak_memory.py`).

  Args:
    config: config of the encoder.
    batch_size: examples at once.
    shape: sizes of the step.
    recompute: see `compute.FastCompute`.
    accumulates: whether gradients of several micro-batches are accumulated.
    dtype_size: bytes of an activation.

  Returns:
    The number.
  """
  width, inner = config.hidden_size, config.intermediate_size
  num_sequences = batch_size * shape.num_rows
  tokens = num_sequences * shape.seq_length
  # A weight, its two moments, its gradient, and half as much for the gaps
  # between what comes and goes; a second gradient where they are added up.
  of_weight = 26 + (4 if accumulates else 0) + (dtype_size % 4)
  # Kept of a layer: nine tensors as wide as it, two as wide as its inner part,
  # two drawn masks; and probabilities before and after their dropout.
  of_token = (9 * width + 2 * inner) * dtype_size + 2 * width
  of_token += config.num_attention_heads * shape.seq_length * (5 + dtype_size)
  layer = last = tokens * of_token
  if shape.num_output_positions is not None:
    # Keys and values of all tokens, and everything else of these positions.
    outputs = num_sequences * shape.num_output_positions * of_token
    last = min(layer, tokens * 3 * width * dtype_size + outputs)
  if recompute:
    kept = config.num_hidden_layers * tokens * width * dtype_size
    layers = kept + 4 * layer
  else:
    layers = (config.num_hidden_layers - 1) * layer + last + layer
  # Scores of the vocabulary, their softmax, both gradients.
  head = 4 * num_sequences * shape.num_predictions * config.vocab_size * 4
  if accumulates and shape.num_predictions:
    # Allocators need more for it in a loop. The word embeddings, which are
    # output weights too, have a dense gradient: that of the lookup, of the
    # scores, of both, and the accumulated one.
    head = 1.5 * head + 4 * config.vocab_size * width * 4
  encoder = of_weight * loading.num_weights(config) + 1.3 * (layers + head)
  return int(0.9e9 + encoder + shape.loss_bytes)


def loss_too_large(loss_bytes: int) -> str:
  """Message about a loss over the batch that does not fit."""
  return (
    "the loss compares all examples of the batch with each other, which takes"
    f" {loss_bytes / 10**9:.1f} GB and no less with micro-batches. Give a"
    " smaller --train_batch_size, or a --loss without comparisons"
  )


def replica_batch_size(batch_size: int, devices: DeviceSettings) -> int:
  """Share of a batch of one replica: a GPU, a CPU or a core of a TPU."""
  if devices.on_tpu:
    return batch_size // devices.num_tpu_cores
  return batch_size // devices.num_replicas_in_sync


def replicas_per_memory(devices: DeviceSettings) -> int:
  """Replicas that share one memory: more than one only on the CPU."""
  replicas = devices.replicas
  return 1 if not replicas or replicas.on_gpu else replicas.num_local


def step_flops(
  config: modeling.BertConfig,
  batch_size: int,
  shape: StepShape,
  recompute: bool = False,
) -> int:
  """Floating-point operations of the matrix products of a step of training.

  A product of [m, k] by [k, n] takes m * n * k multiplications and as many
  additions. Its gradient is two such products.

  Args:
    config: config of the encoder.
    batch_size: examples per step.
    shape: sizes of the step; its sequences have no padding.
    recompute: see `compute.FastCompute`.

  Returns:
    The number; heads other than the masked LM's are left out.
  """
  width, inner = config.hidden_size, config.intermediate_size
  of_token = 4 * width * width + 2 * width * inner
  # Scores, and the values weighted by them.
  of_token += 2 * shape.seq_length * width
  num_sequences = batch_size * shape.num_rows
  tokens = num_sequences * shape.seq_length
  layers = config.num_hidden_layers * tokens * of_token
  of_mask = width * width + width * config.vocab_size
  heads = num_sequences * (width * width + shape.num_predictions * of_mask)
  return 2 * ((4 if recompute else 3) * layers + 3 * heads)
