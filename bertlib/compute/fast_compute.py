"""Options for time and memory: precision, unpadding, kernels, recomputation.

Each option of `FastCompute` overrides methods of `modeling.Compute`, the leaves
of the formula. They do not change what a model computes: `same_formula`
compares each kernel with `modeling`, whose shapes they have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Callable

import tensorflow.compat.v1 as tf

import modeling
from bertlib.compute import onednn, same_formula, xla
from bertlib.compute.xla import custom_gradient


@dataclasses.dataclass(frozen=True)
class FastCompute(modeling.Compute):
  """`modeling.Compute` with options; by default all are off.

  Attributes:
    dtype: dtype of matrix products and hidden states: float32, bfloat16 or
      float16. Weights, layer normalization, softmax and losses stay float32.
    unpad: run dense layers on real tokens only; hidden states at padding are 0.
      Not for a TPU, which needs static shapes.
    jit_compile: in training, fuse the operations between matrix products by
      XLA, once for each shape. Not for a TPU, which compiles the whole model.
    jit_inference: use `jit_compile` for inference too; for GPUs.
    on_gpu: `jit_compile` is for a GPU.
    recompute: in training, store only the input of each layer and recompute its
      activations for the gradient (gradient checkpointing).
    copy_weight: in 16-bit training, gives the copy of a kernel that the weight
      update writes, see `optimization.weight_copy`; None to cast kernels. For
      one device, without `recompute`.
    use_onednn: outside training, use kernels of oneDNN; for CPUs.
    is_training: False in evaluation and prediction, see `for_inference`.
    compares: compare kernels with `modeling` before they are used.
  """

  dtype: Any = tf.float32
  unpad: bool = False
  jit_compile: bool = False
  jit_inference: bool = False
  on_gpu: bool = False
  recompute: bool = False
  copy_weight: Callable | None = None
  use_onednn: bool = False
  is_training: bool = True
  compares: bool = True

  def for_inference(self) -> FastCompute:
    """See base class."""
    return dataclasses.replace(
      self,
      # On a CPU the kernels of oneDNN are faster than XLA's.
      jit_compile=self.jit_inference and self.jit_compile,
      recompute=False,
      copy_weight=None,
      is_training=False,
    )

  def for_batch(self, input_mask) -> FastCompute:
    """See base class."""
    if not (self.unpad and self._is_same("padding", FastCompute)):
      return self
    rows = UnpaddedRows(input_mask, self.is_training)
    return UnpaddedCompute(**vars(self), rows=rows)

  @property
  def skips_positions(self) -> bool:
    """See base class."""
    return self._is_same("chosen positions", FastCompute)

  def attend(self, query, key, value, biases, dropout_prob, dropout_seed):
    """See base class."""
    arguments = query, key, value, biases, dropout_prob, dropout_seed
    kernel = self._attention_kernel(query.dtype)
    if kernel is onednn.attention and len(biases) != 1:
      kernel = None  # it is for a mask alone, which it rounds to bfloat16
    if kernel and self._is_same("attention", kernel, draws=bool(dropout_prob)):
      return kernel(*arguments)
    return super().attend(*arguments)

  def run_layer(self, layer: Callable, inputs, scope, is_repeatable: bool):
    """See base class; ValueError if the layer must be recomputed but cannot."""
    if not self.recompute:
      return layer(*inputs)
    if not is_repeatable:
      raise ValueError("Recomputing with dropout needs a dropout_seed")
    return recomputed(layer, scope)(*inputs)

  def dense(self, inputs, kernel, bias, activation: Callable | None):
    """See base class; `kernel` may be one of `int8`."""
    # Those bring their own product.
    if hasattr(kernel, "dense"):
      return kernel.dense(inputs, bias, activation)
    product = self._dense_kernel()
    if not (product and self._is_same("dense layers", product, activation)):
      return super().dense(inputs, kernel, bias, activation)
    # No kernel is cast in the forward pass: the update has done it.
    if self.copy_weight and inputs.dtype != tf.float32:
      kernel = self.copy_weight(kernel, inputs.dtype)
    return product(inputs, kernel, bias, activation)

  def add_and_norm(
    self, output, residual, dropout_prob, dropout_seed, epsilon: float
  ):
    """See base class."""
    arguments = output, residual, dropout_prob, dropout_seed, epsilon
    kernel = self._norm_kernel(output.dtype)
    if kernel and self._is_same(
      "normalization", kernel, draws=bool(dropout_prob)
    ):
      return kernel(*arguments)
    return super().add_and_norm(*arguments)

  def describe(self, hidden_act: str | Callable | None) -> str:
    """Describes what computes what, for the log."""
    activation = modeling.get_activation(hidden_act)
    kernels = {
      "attention": [self._attention_kernel(self.dtype)],
      "dense layers": [self._dense_kernel(), activation],
      "normalization": [self._norm_kernel(self.dtype)],
    }
    parts = ["modeling.py"]
    if self.unpad and self._is_same("padding", FastCompute):
      parts.append("without padding")
    for part, (kernel, *details) in kernels.items():
      if kernel and self._is_same(part, kernel, *details):
        name = "XLA" if kernel.__module__ == xla.__name__ else "oneDNN"
        parts.append(f"{part} by {name}")
    return ", ".join(parts)

  def _is_same(self, *arguments: Any, draws: bool = False) -> bool:
    return not self.compares or same_formula.is_used(*arguments, draws=draws)

  def _fuses(self) -> bool:
    # TensorFlow 1 while loops cannot run functions compiled by XLA.
    return self.jit_compile and tf.control_flow_v2_enabled()

  def _infers_by_onednn(self) -> bool:
    return self.use_onednn and not self.is_training

  def _attention_kernel(self, dtype) -> Callable | None:
    if self._infers_by_onednn() and onednn.has_softmax(dtype):
      return onednn.attention
    if not self._fuses():
      return None
    return xla.attention_on_gpu if self.on_gpu else xla.attention_on_cpu

  def _dense_kernel(self) -> Callable | None:
    if not self._fuses():
      return None
    return xla.dense_on_gpu if self.on_gpu else xla.dense_on_cpu

  def _norm_kernel(self, dtype) -> Callable | None:
    if self._infers_by_onednn() and onednn.takes_dtype(dtype):
      return onednn.add_and_norm
    return xla.add_and_norm if self._fuses() else None


# Unpadding


@contextlib.contextmanager
def _on_host():
  with tf.device("/cpu:0"), tf.name_scope("unpadding"):
    yield


class UnpaddedRows:
  """Maps the unpadded rows of a batch, [R, width], to (sequence, position)."""

  def __init__(self, input_mask, is_training: bool = True):
    # Gradients of their own, in fewer passes, are only needed in training.
    # Without them an inference graph can be freed.
    self._is_training = is_training
    # The host needs R for the shapes of tensors, and has the batch anyway. A
    # GPU would have to copy R back, and has no arithmetic of int32.
    with _on_host():
      shape = tf.shape(input_mask)
      self.batch_size, self.seq_length = shape[0], shape[1]
      self._is_token = input_mask > 0
      flat = tf.reshape(self._is_token, [-1])  # [B * S]
      self._num_tokens = tf.reduce_sum(tf.cast(flat, tf.int32))
      order = tf.concat([tf.where(flat), tf.where(~flat)], axis=0)[:, 0]
      # Kernel libraries set up kernels for each new shape, so R is rounded up
      # with rows of padding. No token attends to them, and no gradient reaches
      # them.
      num_rows = _rounded_up(tf.maximum(self._num_tokens, 1))
      # `_index`: for each row, its index among the B * S positions. `_row`: the
      # inverse; at padding, the row of the last token before it.
      self._index = tf.cast(order[:num_rows], tf.int32)  # [R]
      tokens_before = tf.cumsum(tf.cast(flat, tf.int32)) - 1
      self._row = tf.maximum(tokens_before, 0)  # [B * S]
      self._position = self._index % self.seq_length  # [R]
      self.positions = self._position[tf.newaxis]  # [1, R]
    self._indices_of_heads = {}

  def unpad(self, ids):
    """Removes padding: [B, S] to [1, R]."""
    with _on_host():
      return tf.gather(tf.reshape(ids, [-1]), self._index[tf.newaxis])

  def pad(self, rows):
    """Restores padding, with zeros: [R, width] to [B, S, width]."""
    width = rows.shape.as_list()[-1]
    tokens = rows[: self._num_tokens]
    with _on_host():
      indices = self._index[: self._num_tokens, tf.newaxis]
      shape = tf.stack([self.batch_size * self.seq_length, width])
    padded = tf.scatter_nd(indices, tokens, shape)
    return tf.reshape(padded, [self.batch_size, self.seq_length, width])

  def gather(self, rows, positions):
    """Gathers at [B, P]: [R, width] to [B * P, width]; arbitrary at padding."""
    with _on_host():
      row = tf.reshape(self._row, [self.batch_size, self.seq_length])
      gathered = tf.gather(row, tf.cast(positions, tf.int32), batch_dims=1)
      gathered = tf.reshape(gathered, [-1])
    return modeling.take_rows(rows, gathered)

  def split_heads(self, rows, num_heads: int, head_size: int):
    """Splits heads and restores padding: [R, N * D] to [B, N, S, D]."""

    # `spread` and `collect` are each other's gradient. Each costs one copy;
    # padding and transposing one after the other would cost two.
    # At padding, `_row` gives values of arbitrary tokens, as in `gather`.
    @custom_gradient
    def spread(rows):
      return (
        self._spread(rows, num_heads, head_size),
        lambda gradient: self._collect(gradient, num_heads, head_size),
      )

    if not self._is_training:
      return self._spread(rows, num_heads, head_size)
    return spread(rows)

  def merge_heads(self, heads):
    """Merges heads and removes padding: [B, N, S, D] to [R, N * D]."""
    _, num_heads, _, head_size = heads.shape.as_list()

    @custom_gradient
    def collect(heads):
      def spread(gradient):
        # Queries at padding do not contribute to the result.
        is_token = tf.cast(self._is_token, gradient.dtype)
        by_head = self._spread(gradient, num_heads, head_size)
        return by_head * is_token[:, tf.newaxis, :, tf.newaxis]

      return self._collect(heads, num_heads, head_size), spread

    if not self._is_training:
      return self._collect(heads, num_heads, head_size)
    return collect(heads)

  def _spread(self, rows, num_heads, head_size):
    parts = tf.reshape(rows, [-1, head_size])  # [R * N, D]
    return tf.gather(parts, self._head_indices(num_heads)[0])  # [B, N, S, D]

  def _collect(self, heads, num_heads, head_size):
    parts = tf.reshape(heads, [-1, head_size])  # [B * N * S, D]
    collected = tf.gather(parts, self._head_indices(num_heads)[1])
    return tf.reshape(collected, [-1, num_heads * head_size])

  def _head_indices(self, num_heads: int):
    """Indices for `_spread`, [B, N, S], and `_collect`, [R, N]."""
    if num_heads not in self._indices_of_heads:
      with _on_host():
        head = tf.range(num_heads)
        row = tf.reshape(self._row, [self.batch_size, 1, self.seq_length])
        first = self._index // self.seq_length * num_heads  # [R]
        part = (first[:, tf.newaxis] + head) * self.seq_length
        self._indices_of_heads[num_heads] = (
          row * num_heads + head[:, tf.newaxis],
          part + self._position[:, tf.newaxis],
        )
    return self._indices_of_heads[num_heads]


def present_rows(is_present):
  """Indices of the rows with a 1, int32 [rows]; some of others follow."""
  # Each number of rows is a shape of its own, see `UnpaddedRows`.
  with _on_host():
    flags = tf.cast(is_present > 0, tf.int32)
    order = tf.argsort(-flags, stable=True)
    number = tf.minimum(_rounded_up(tf.reduce_sum(flags)), tf.size(flags))
    return order[:number]


def _rounded_up(number):
  """Rounds up to 3-4 significant bits (at most 12.5% more)."""
  digits = tf.floor(tf.math.log(tf.cast(number, tf.float32)) / math.log(2.0))
  unit = tf.cast(2.0 ** tf.maximum(digits - 3.0, 0.0), tf.int32)
  return (number + unit - 1) // unit * unit


@dataclasses.dataclass(frozen=True)
class UnpaddedCompute(FastCompute):
  """`FastCompute` for one unpadded batch."""

  # Maps the rows of the batch to tokens.
  rows: UnpaddedRows | None = None

  @property
  def positions(self):
    """See base class."""
    return self.rows.positions

  def unpad_input(self, ids):
    """See base class."""
    return self.rows.unpad(ids)

  def pad_output(self, states):
    """See base class."""
    return self.rows.pad(modeling.reshape_to_matrix(states))

  def gather_positions(self, states, positions):
    """See base class; at padding, returns the state of an arbitrary token."""
    return self.rows.gather(modeling.reshape_to_matrix(states), positions)

  def split_heads(self, matrix, batch_size, seq_length, num_heads: int):
    """See base class; at padding, returns the values of arbitrary tokens."""
    del batch_size, seq_length
    head_size = matrix.shape.as_list()[-1] // num_heads
    return self.rows.split_heads(matrix, num_heads, head_size)

  def merge_heads(self, heads):
    """See base class."""
    return self.rows.merge_heads(heads)


# Recomputation


def recomputed(layer: Callable, scope) -> Callable:
  """Wraps a layer so that only its inputs are stored for the gradient."""
  variables = {}

  def collect(getter, *args, **kwargs):
    variable = getter(*args, **kwargs)
    variables[variable.name] = variable
    return variable

  def in_scope(*inputs):
    # The layer runs twice, so its random operations must be stateless. The
    # second call finds the variables of the first.
    with tf.variable_scope(
      scope,
      reuse=tf.AUTO_REUSE,
      custom_getter=collect,
      use_resource=True,
      auxiliary_name_scope=False,
    ):
      return layer(*inputs)

  def call(*inputs):
    output = in_scope(*inputs)
    weights = list(variables.values())

    # The inputs include the variables, so that they get gradients.
    @custom_gradient
    def stored(*tensors):
      def backward(gradient):
        # The recomputation must wait for the gradient. `tf.recompute_grad`
        # makes it wait by arithmetic that Grappler optimizes away: all layers
        # are then recomputed at once, and their activations stored.
        with tf.control_dependencies([gradient]):
          again = in_scope(*tensors[: len(inputs)])
        sources = [*tensors[: len(inputs)], *weights]
        # One input may depend on another: hidden states on a bias of scores.
        return tf.gradients(again, sources, gradient, stop_gradients=sources)

      return output, backward

    return stored(*inputs, *weights)

  return call
