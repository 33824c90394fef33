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
  on_gpu: bool = False,
  jit_compile: bool = True,
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
    on_gpu: see `step_bytes`.
    jit_compile: see `step_bytes`.

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
        on_gpu,
        jit_compile,
      )
      if on_gpu:  # the estimate may be a tenth too low
        needed = int(1.1 * needed)
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
  on_gpu: bool = False,
  jit_compile: bool = True,
) -> int:
  """Estimate of the peak memory of a training step on one replica, in bytes.

  For a CPU it is an upper bound of what a process takes. Measured were
  BERT-Base, BERT-Large and MiniLM in TensorFlow 2.21 with XLA, by
  `benchmarks/peak_memory.py`. For a GPU it is what TensorFlow's allocator
  uses, within a tenth of the peak on an emulated GPU, see the check
  `planned_memory` of `benchmarks/gpu.py`; the driver takes more.

  Args:
    config: config of the encoder.
    batch_size: examples at once.
    shape: sizes of the step.
    recompute: see `compute.FastCompute`.
    accumulates: whether gradients of several micro-batches are accumulated.
    dtype_size: bytes of an activation.
    on_gpu: for a GPU instead of a CPU.
    jit_compile: see `compute.FastCompute`; for GPUs only.

  Returns:
    The number.
  """
  width = config.hidden_size
  num_sequences = batch_size * shape.num_rows
  tokens = num_sequences * shape.seq_length
  if on_gpu:
    sizes = _sizes_on_gpu(config, shape, recompute, dtype_size, jit_compile)
  else:
    sizes = _sizes_on_cpu(config, shape, dtype_size)
  layer = last = tokens * sizes.of_token
  if shape.num_output_positions is not None:
    # Keys and values of all tokens, and everything else of these positions.
    outputs = num_sequences * shape.num_output_positions * sizes.of_token
    last = min(layer, tokens * 3 * width * dtype_size + outputs)
  if recompute:
    layers = config.num_hidden_layers * tokens * width * dtype_size
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
    head = sizes.loop_factor * head + 4 * config.vocab_size * width * 4
  of_weight = sizes.of_weight + (4 if accumulates else 0)
  encoder = of_weight * loading.num_weights(config)
  encoder += sizes.factor * (layers + head) + tokens * sizes.of_embedding
  return int(sizes.fixed + encoder + shape.loss_bytes)


class _Sizes(NamedTuple):
  """Bytes of the parts of a step on one kind of device.

  Attributes:
    of_weight: a weight, its moments, its gradient, what updates it.
    of_token: activations that a layer stores per token.
    of_embedding: what the embeddings store per token.
    fixed: independent of the batch.
    num_recomputed: layers whose activations exist at once if recomputed.
    num_in_progress: layers of which everything exists twice, if stored.
    factor: how much more the allocator takes for activations.
    loop_factor: how much more it takes for the masked-LM head in a loop.
  """

  of_weight: float
  of_token: float
  of_embedding: int
  fixed: float
  num_recomputed: int
  num_in_progress: int
  factor: float
  loop_factor: float


def _sizes_on_cpu(
  config: modeling.BertConfig, shape: StepShape, dtype_size: int
) -> _Sizes:
  width, inner = config.hidden_size, config.intermediate_size
  # Kept of a layer: nine tensors as wide as it, two as wide as its inner part,
  # two drawn masks; and probabilities before and after their dropout.
  of_token = (9 * width + 2 * inner) * dtype_size + 2 * width
  of_token += config.num_attention_heads * shape.seq_length * (5 + dtype_size)
  return _Sizes(
    # Half as much as weight, moments and gradient for the gaps between what
    # comes and goes.
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
  config: modeling.BertConfig,
  shape: StepShape,
  recompute: bool,
  dtype_size: int,
  jit_compile: bool,
) -> _Sizes:
  width, inner = config.hidden_size, config.intermediate_size
  probs = config.num_attention_heads * shape.seq_length
  if jit_compile:
    of_token = (9.5 * width + 2 * inner) * dtype_size
    of_token += probs * 2 * dtype_size  # scores, and probabilities
    of_weight = 16
  else:
    # Results of all operations of GELU, dropout, layer normalization and Adam.
    of_token = (15 * width + 2 * inner) * dtype_size + 26 * width
    of_token += probs * (5 + dtype_size)
    of_weight = 28
  if dtype_size == 2 and (recompute or not jit_compile):
    of_weight += 4  # kernels and their gradients are cast
  return _Sizes(
    of_weight=of_weight,
    of_token=of_token,
    of_embedding=4 * width * 4,  # sums and norm
    fixed=8 * config.vocab_size * width * 4,  # gradients of word embeddings
    num_recomputed=1,
    num_in_progress=0,
    factor=1,
    loop_factor=1,
  )


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
