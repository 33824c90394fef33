"""Options for time and memory: precision, unpadding, XLA fusion, recomputation.

They do not change what a model computes. `modeling.Compute` is the plain
implementation; `FastCompute` adds the options; `UnpaddedCompute` is
`FastCompute` for one unpadded batch. Each option overrides some methods:

- `dtype`: mixed precision; results differ only by rounding. Overrides no
  method.
- `unpad`: dense layers run on real tokens only. `for_batch` returns an
  `UnpaddedCompute`, which overrides `positions`, `unpad_input`, `pad_output`,
  `gather_positions` and `attention_layer`; `UnpaddedRows` maps rows to tokens.
- `jit_compile`: XLA fuses the operations between matrix products, `on_gpu` by
  functions that suit a GPU. Overrides `attend`, `dense` and `add_and_norm`; see
  `xla_fusion`.
- `copy_weights`: the optimizer keeps 16-bit copies of the kernels. Overrides
  `dense`.
- `use_onednn`: kernels of oneDNN outside training. Overrides `add_and_norm`;
  `UnpaddedCompute` then calls `_attention_by_onednn`.
- `recompute`: gradient checkpointing, that is, activations are recomputed for
  the gradient instead of stored. Overrides `run_layer`.

`for_inference` turns off `recompute` and `copy_weights`, which only training
needs, and `jit_compile`, unless `jit_inference` is set. Kernels may be those of
`int8`, which bring their own product. Shapes are those of `modeling`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Callable

import tensorflow.compat.v1 as tf

import modeling
import optimization
from bertlib.compute import int8, onednn, xla
from bertlib.compute.graph_state import custom_gradient


@dataclasses.dataclass(frozen=True)
class FastCompute(modeling.Compute):
  """`modeling.Compute` with options; by default all are off.

  Attributes:
    dtype: dtype of matrix products and hidden states: float32, bfloat16 or
      float16. Weights, layer normalization, softmax and losses are always
      float32.
    unpad: run dense layers on real tokens only. Hidden states at padding are
      then 0. Not for a TPU, which needs static shapes.
    jit_compile: in training, fuse the operations between matrix products by
      XLA, and draw the dropout masks inside of them, from a hash. Each shape
      is compiled once. Not for a TPU, where the whole model is compiled anyway.
    jit_inference: `jit_compile` is for inference too. Only for GPUs: on a CPU
      the kernels of oneDNN are faster.
    on_gpu: whether `jit_compile` is for a GPU.
    recompute: in training, store only the input of each layer and recompute
      its activations for the gradient.
    copy_weights: in training in 16 bits, multiply by copies of the kernels that
      the weight update writes, see `optimization.weight_copy`: no kernel is
      cast. Only for training by that optimizer, without `recompute`, on one
      device.
    use_onednn: outside training, normalize layers by a kernel of oneDNN. For
      CPUs only.
    is_training: False in evaluation and prediction, see `for_inference`.
  """

  dtype: Any = tf.float32
  unpad: bool = False
  jit_compile: bool = False
  jit_inference: bool = False
  on_gpu: bool = False
  recompute: bool = False
  copy_weights: bool = False
  use_onednn: bool = False
  is_training: bool = True

  def _fuses(self) -> bool:
    # TensorFlow 1 while loops cannot run functions compiled by XLA.
    return self.jit_compile and tf.control_flow_v2_enabled()

  def _infers_by_onednn(self) -> bool:
    return self.use_onednn and not self.is_training

  def for_inference(self) -> FastCompute:
    """See base class."""
    return dataclasses.replace(
      self,
      jit_compile=self.jit_inference and self.jit_compile,
      recompute=False,
      copy_weights=False,
      is_training=False,
    )

  def for_batch(self, input_mask) -> FastCompute:
    """See base class."""
    if not self.unpad:
      return self
    rows = UnpaddedRows(input_mask, self.is_training)
    return UnpaddedCompute(**vars(self), rows=rows)

  def attend(self, query, key, value, mask, dropout_prob, dropout_seed):
    """See base class."""
    arguments = query, key, value, mask, dropout_prob, dropout_seed
    if mask is None or not self._fuses():
      return super().attend(*arguments)
    if self.on_gpu:
      return xla.attention_on_gpu(*arguments)
    return xla.attention_on_cpu(*arguments)

  def run_layer(self, layer: Callable, hidden, scope, is_repeatable: bool):
    """See base class.

    Raises:
      ValueError: `recompute` is set and the layer is not repeatable.
    """
    if not self.recompute:
      return layer(hidden)
    if not is_repeatable:
      raise ValueError("Recomputing with dropout needs a dropout_seed")
    return recomputed(layer, scope)(hidden)

  def dense(self, inputs, kernel, bias, activation: Callable | None):
    """See base class; `kernel` may be one of `int8`."""
    if isinstance(kernel, (int8.QuantizedKernel, int8.ObservedKernel)):
      return kernel.dense(inputs, bias, activation)
    if not self._fuses():
      return super().dense(inputs, kernel, bias, activation)
    if self.copy_weights and inputs.dtype != tf.float32:
      kernel = optimization.weight_copy(kernel, inputs.dtype)
    kernel, bias = (tf.cast(v, inputs.dtype) for v in (kernel, bias))
    return xla.fused_dense(inputs, kernel, bias, activation, self.on_gpu)

  def add_and_norm(
    self, output, residual, dropout_prob, dropout_seed, epsilon: float
  ):
    """See base class."""
    if self._infers_by_onednn() and onednn.takes_dtype(output.dtype):
      return _norm_by_onednn(output + residual, epsilon)
    if not self._fuses():
      return super().add_and_norm(
        output, residual, dropout_prob, dropout_seed, epsilon
      )
    with tf.variable_scope(None, default_name="LayerNorm"):
      weights = modeling.norm_weights(output.shape.as_list()[-1])
    return xla.fused_add_and_norm(
      output, residual, weights, dropout_prob, dropout_seed, epsilon
    )


def _norm_by_onednn(tensor, epsilon: float):
  """`modeling.layer_norm` of [R, H], fast for matrices of any size."""
  with tf.variable_scope(None, default_name="LayerNorm"):
    beta, gamma = modeling.norm_weights(tensor.shape.as_list()[-1])

  def plain():
    vectors = tf.cast(tensor, tf.float32)
    normalized = modeling.normalize(vectors, beta, gamma, epsilon)
    return tf.cast(normalized, tensor.dtype)

  return onednn.layer_norm(tensor, gamma, beta, epsilon, plain)


def _attention_by_onednn(query, key, value, attention_mask):
  """`modeling.dot_product_attention` of bfloat16, in fewer passes.

  oneDNN scales and masks the scores in the pass of their product. Its softmax
  computes in float32, whatever it takes and returns.

  Args:
    query: [B, N, F, D], not scaled.
    key: [B, N, T, D].
    value: [B, N, T, D].
    attention_mask: see `modeling.attention_layer`.

  Returns:
    [B, N, F, D].
  """
  scale = tf.constant(query.shape.as_list()[-1] ** -0.5, query.dtype)
  scores = tf.matmul(query, key, transpose_b=True) * scale  # [B, N, F, T]
  scores += tf.cast(modeling.attention_bias(attention_mask), query.dtype)
  return tf.matmul(tf.nn.softmax(scores), value)


def _joined(weights: Sequence[tuple[Any, Any]]) -> tuple[Any, Any] | None:
  """One dense layer for several of the same matrix, side by side.

  Args:
    weights: kernel and bias of each layer.

  Returns:
    Its kernel and bias; None if the kernels are not constant, so that they
    would be joined in every batch.
  """
  kernels, biases = zip(*weights)
  if all(isinstance(kernel, int8.QuantizedKernel) for kernel in kernels):
    joined = int8.QuantizedKernel.concat(kernels)
  elif all(map(_is_constant, kernels)):
    joined = tf.concat(kernels, axis=1)
  else:
    return None
  return joined, tf.concat(biases, axis=0)


def _is_constant(kernel) -> bool:
  return isinstance(kernel, tf.Tensor) and kernel.op.type == "Const"


# Unpadding


@contextlib.contextmanager
def _on_host():
  with tf.device("/cpu:0"), tf.name_scope("unpadding"):
    yield


@dataclasses.dataclass(frozen=True)
class UnpaddedCompute(FastCompute):
  """`FastCompute` for one unpadded batch.

  Attributes:
    rows: maps the batch's rows to tokens.
  """

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

  def attention_layer(
    self,
    from_tensor,
    to_tensor,
    attention_mask,
    *,
    num_attention_heads: int,
    size_per_head: int,
    attention_probs_dropout_prob: float,
    initializer_range: float,
    from_seq_length,
    dropout_seed,
    **_,
  ):
    """See base class; queries, keys and values are projected without padding.

    Args:
      from_tensor: float [R, H], the same object as `to_tensor`; or [B * F, H],
        hidden states from `gather_positions`.
      to_tensor: float [R, H].
      attention_mask: float or int [B, 1, S] or [B, S, S], 1 where a query may
        attend to a key, 0 where not; 0 for each key at padding.
      num_attention_heads: N.
      size_per_head: D.
      attention_probs_dropout_prob: dropout of the attention probabilities.
      initializer_range: standard deviation of the initial weights.
      from_seq_length: F, for hidden states from `gather_positions`.
      dropout_seed: see `modeling.dropout`.

    Returns:
      float [R, N * D], or [B * F, N * D].
    """
    is_unpadded = from_tensor is to_tensor
    query, key, value = self._project(
      {"query": from_tensor, "key": to_tensor, "value": to_tensor},
      num_attention_heads,
      size_per_head,
      initializer_range,
      from_seq_length,
    )
    if self._infers_by_onednn() and onednn.has_softmax(query.dtype):
      context = _attention_by_onednn(query, key, value, attention_mask)
    else:
      context = self.attend(
        query * (1.0 / math.sqrt(size_per_head)),
        key,
        value,
        attention_mask,
        attention_probs_dropout_prob,
        dropout_seed,
      )  # [B, N, S or F, D]

    if is_unpadded:
      return self.rows.merge_heads(context)  # [R, N * D]
    context = tf.transpose(context, [0, 2, 1, 3])  # [B, F, N, D]
    return tf.reshape(context, [-1, num_attention_heads * size_per_head])

  def _project(
    self,
    inputs: dict[str, Any],
    num_heads: int,
    head_size: int,
    initializer_range: float,
    from_seq_length,
  ):
    """Queries, keys and values of each head: [B, N, F or S, D].

    `inputs` are matrices by the name of their layer, `query` first. The other
    arguments are those of `attention_layer`.
    """
    scopes, weights = [], []
    for name, rows in inputs.items():
      with tf.variable_scope(name) as scope:
        width = rows.shape.as_list()[-1]
        weights.append(
          modeling.dense_weights(
            width, num_heads * head_size, initializer_range
          )
        )
      scopes.append(scope.original_name_scope)

    from_tensor, to_tensor, _ = inputs.values()
    is_unpadded = from_tensor is to_tensor
    joined = is_unpadded and not self.is_training and _joined(weights)
    if joined:
      product = self.dense(to_tensor, *joined, None)  # [R, 3 * N * D]
      return self.rows.split_layers(product, 3, num_heads, head_size)

    products = []  # [R or B * F, N * D], and twice [R, N * D]
    for scope, rows, pair in zip(scopes, inputs.values(), weights):
      with tf.name_scope(scope):
        products.append(self.dense(rows, *pair, None))
    if is_unpadded:
      return [self.rows.split_heads(p, num_heads, head_size) for p in products]
    query, *others = products
    query = tf.reshape(query, [-1, from_seq_length, num_heads, head_size])
    return [
      tf.transpose(query, [0, 2, 1, 3]),
      *(self.rows.split_heads(p, num_heads, head_size) for p in others),
    ]


class UnpaddedRows:
  """Maps unpadded rows to (sequence, position), and back.

  The rows of a matrix [R, width] are the tokens of the batch in order. Kernel
  libraries set up kernels for each new shape, so R is rounded up, by at most
  12.5%, with rows of padding. These have no effect: no token attends to them,
  and no gradient reaches them.

  Indices are computed on the host, which needs R for the shapes of tensors, and
  where a batch is anyway: a GPU would have to copy R back, and has no
  arithmetic of int32.

  Args:
    input_mask: int32 [B, S], 1 at tokens, 0 at padding.
    is_training: whether gradients of `split_heads` and `merge_heads` are needed
      that take fewer passes.

  Attributes:
    batch_size: B, int32 [].
    seq_length: S, int32 [].
    positions: int32 [1, R], the position of each row in its sequence.
  """

  def __init__(self, input_mask, is_training: bool = True):
    self._is_training = is_training
    with _on_host():
      shape = tf.shape(input_mask)
      self.batch_size, self.seq_length = shape[0], shape[1]
      self._is_token = input_mask > 0
      flat = tf.reshape(self._is_token, [-1])  # [B * S]
      self._num_tokens = tf.reduce_sum(tf.cast(flat, tf.int32))
      order = tf.concat([tf.where(flat), tf.where(~flat)], axis=0)[:, 0]
      num_rows = _rounded_up(tf.maximum(self._num_tokens, 1))
      # `_index`: for each row, its index among the B * S positions. `_row`: the
      # inverse; at padding, the row of the last token before it.
      self._index = tf.cast(order[:num_rows], tf.int32)  # [R]
      tokens_before = tf.cumsum(tf.cast(flat, tf.int32)) - 1
      self._row = tf.maximum(tokens_before, 0)  # [B * S]
      self._position = self._index % self.seq_length  # [R]
      self.positions = self._position[tf.newaxis]
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
    """Gathers rows at `positions`, int32 [B, P]: [R, width] to [B * P, width].

    At padding, returns the row of an arbitrary token.
    """
    with _on_host():
      row = tf.reshape(self._row, [self.batch_size, self.seq_length])
      gathered = tf.gather(row, tf.cast(positions, tf.int32), batch_dims=1)
      gathered = tf.reshape(gathered, [-1])
    return modeling.take_rows(rows, gathered)

  def split_heads(self, rows, num_heads: int, head_size: int):
    """Splits heads and restores padding: [R, N * D] to [B, N, S, D].

    At padding, returns the values of arbitrary tokens.
    """

    # `spread` and `collect` are each other's gradient. Each costs one copy;
    # padding and transposing one after the other would cost two.
    @custom_gradient
    def spread(rows):
      return (
        self._spread(rows, num_heads, head_size),
        lambda gradient: self._collect(gradient, num_heads, head_size),
      )

    if not self._is_training:
      return self._spread(rows, num_heads, head_size)
    return spread(rows)

  def split_layers(
    self, rows, num_layers: int, num_heads: int, head_size: int
  ) -> list:
    """Splits layers and heads and restores padding, for prediction.

    Args:
      rows: [R, L * N * D], the outputs of L layers side by side.
      num_layers: L.
      num_heads: N.
      head_size: D.

    Returns:
      [B, N, S, D] for each layer; at padding, values of arbitrary tokens.
    """
    shape = [self.batch_size, self.seq_length, num_layers, num_heads, head_size]
    padded = tf.reshape(tf.gather(rows, self._row), shape)
    by_layer = tf.transpose(padded, [2, 0, 3, 1, 4])  # [L, B, N, S, D]
    return tf.unstack(by_layer, num_layers)  # copies nothing

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
    """Indices for `_spread`, [B, N, S], and for `_collect`, [R, N].

    All layers share them.
    """
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


def _rounded_up(number):
  """Rounds up to 3-4 significant bits (at most 12.5% more)."""
  digits = tf.floor(tf.math.log(tf.cast(number, tf.float32)) / math.log(2.0))
  unit = tf.cast(2.0 ** tf.maximum(digits - 3.0, 0.0), tf.int32)
  return (number + unit - 1) // unit * unit


# Recomputation


def recomputed(layer: Callable, scope) -> Callable:
  """Wraps a layer so that only its input is stored for the gradient.

  Args:
    layer: maps a tensor to a tensor, with variables in the current scope; its
      random operations must be stateless.
    scope: the current `tf.VariableScope`.
  """
  variables = {}

  def collect(getter, *args, **kwargs):
    variable = getter(*args, **kwargs)
    variables[variable.name] = variable
    return variable

  def in_scope(tensor):
    with tf.variable_scope(
      scope,
      reuse=tf.AUTO_REUSE,
      custom_getter=collect,
      use_resource=True,
      auxiliary_name_scope=False,
    ):
      return layer(tensor)

  def call(tensor):
    output = in_scope(tensor)
    weights = list(variables.values())

    # The inputs include the variables, so that they get gradients.
    @custom_gradient
    def stored(tensor, *_):
      def backward(gradient):
        # The recomputation must wait for the gradient. `tf.recompute_grad`
        # makes it wait by arithmetic that Grappler optimizes away: all layers
        # are then recomputed at once, and their activations stored.
        with tf.control_dependencies([gradient]):
          again = in_scope(tensor)
        return tf.gradients(again, [tensor, *weights], gradient)

      return output, backward

    return stored(tensor, *weights)

  return call
