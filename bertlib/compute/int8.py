"""Dense layers in 8 bits: kernels that `FastCompute.dense` multiplies by.

Graph code gets its weights by `tf.get_variable`. A custom getter may return an
object of this module in place of a kernel: a `QuantizedKernel`, whose product
is computed in 8 bits, or an `ObservedKernel`, which records the range of its
inputs for calibration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.compute import onednn

# Activations that are computed in the same pass as the product.
_FUSED = {
  modeling.gelu: "GeluExact",
  modeling.gelu_tanh: "GeluApproximate",
  tf.nn.relu: "Relu",
  tf.tanh: "Tanh",
}

# Graph collection of the `Observation`s of `ObservedKernel`s, by layer.
_OBSERVED = "int8_observed_inputs"

# Exponent of a column's largest input in its range: 0 for one range of all
# columns, 1 for the largest input itself.
_SMOOTHING = 0.65

# Upper limit of inner values, as a multiple of their 99.99th percentile. A few
# are several times larger, such as those of [CLS], and would leave all others a
# handful of the 256 steps.
_INNER_LIMIT = 2.0

_TINY = 1e-20


class Observation(NamedTuple):
  """Observed inputs of a dense layer.

  Attributes:
    low: the lowest input.
    high: the highest input, or the limit above which they are clipped.
    columns: [width], largest magnitude of each column; None if not needed.
  """

  low: Any
  high: Any
  columns: Any = None


@dataclasses.dataclass(frozen=True)
class ObservedKernel:
  """A kernel whose product records its inputs, for calibration.

  Attributes:
    layer: name of the layer.
    kernel: float [width, units].
    clips: whether the inputs are inner values of a feed-forward network, whose
      highest ones are clipped.
  """

  layer: str
  kernel: Any
  clips: bool = False

  def dense(self, inputs, bias, activation: Callable | None):
    """See `modeling.Compute.dense`."""
    high = tf.reduce_max(inputs)
    if self.clips:
      high = tf.minimum(high, _INNER_LIMIT * _high_percentile(inputs))
    observation = Observation(
      tf.reduce_min(inputs), high, tf.reduce_max(tf.abs(inputs), axis=0)
    )
    tf.add_to_collection(_OBSERVED, (self.layer, observation))
    return modeling.Compute().dense(inputs, self.kernel, bias, activation)


def _high_percentile(values):
  """The 99.99th percentile; the highest of less than 10,000 values."""
  values = tf.reshape(values, [-1])
  return tf.math.top_k(values, tf.size(values) // 10_000 + 1).values[-1]


def observations() -> dict[str, Observation]:
  """Observations of the current graph by layer: float32 tensors."""
  return dict(tf.get_collection(_OBSERVED))


@dataclasses.dataclass(frozen=True)
class QuantizedKernel:
  """A kernel in 8 bits.

  Attributes:
    values: int8 [width, units].
    ranges: float32 [units], number that 127 stands for in each column, after a
      multiplication of the rows by `input_ranges`.
    input_ranges: float32 [width], number that 127 stands for in each column of
      the inputs.
    input_limits: limits of inputs that come in 8 bits, relative to their range.
    output_limits: limits of the outputs where the next layer takes them in 8
      bits; else None.
    dtype: dtype of other outputs.
  """

  values: np.ndarray
  ranges: np.ndarray
  input_ranges: np.ndarray
  input_limits: onednn.Limits
  output_limits: onednn.Limits | None = None
  dtype: Any = tf.float32

  @classmethod
  def concat(cls, kernels: Sequence[QuantizedKernel]) -> QuantizedKernel:
    """One kernel for several layers of the same inputs, side by side."""
    return dataclasses.replace(
      kernels[0],
      values=np.concatenate([kernel.values for kernel in kernels], axis=1),
      ranges=np.concatenate([kernel.ranges for kernel in kernels]),
    )

  def dense(self, inputs, bias, activation: Callable | None):
    """See `modeling.Compute.dense`; takes and may return quint8."""
    limits = self.input_limits
    if inputs.dtype != tf.quint8:
      inputs = onednn.quantize(inputs, self.input_ranges)
      limits = onednn.Limits(-1.0, 1.0)
    fused = _FUSED.get(activation)
    output = onednn.int8_matmul(
      inputs,
      limits,
      self.values,
      self.ranges,
      bias,
      fused,
      self.output_limits if fused else None,
      self.dtype,
    )
    return activation(output) if activation and not fused else output


def quantize_kernel(
  kernel: np.ndarray, inputs: Observation, **attributes: Any
) -> QuantizedKernel:
  """Quantizes a kernel.

  Some columns of normalized hidden states are many times larger than others.
  These have larger ranges, and the rows of the kernel are scaled accordingly
  (Xiao et al. 2023, SmoothQuant).

  Args:
    kernel: float32 [width, units].
    inputs: observed inputs of the layer, with `columns` for a range of each
      column.
    **attributes: `output_limits` and `dtype` of the `QuantizedKernel`.
  """
  if inputs.columns is None:
    magnitude = max(-inputs.low, inputs.high, _TINY)
    input_ranges = np.full(len(kernel), magnitude, np.float32)
  else:
    largest = np.maximum(np.asarray(inputs.columns, np.float32), _TINY)
    scales = largest**_SMOOTHING
    input_ranges = scales * np.max(largest / scales)
  scaled = kernel * input_ranges[:, np.newaxis]
  ranges = np.maximum(np.abs(scaled).max(axis=0), _TINY)
  ranges *= onednn.MAX_INT8 / onednn.max_kernel_value()
  return QuantizedKernel(
    np.rint(scaled * (onednn.MAX_INT8 / ranges)).astype(np.int8),
    ranges.astype(np.float32),
    input_ranges,
    onednn.Limits(inputs.low / input_ranges[0], inputs.high / input_ranges[0]),
    **attributes,
  )
