"""Dense layers in 8 bits: kernels that `FastCompute.dense` multiplies by.

A custom getter of `tf.get_variable` returns them instead of a kernel: a
`QuantizedKernel` computes in 8 bits, an `ObservedKernel` records the range of
its inputs for calibration.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.compute import onednn
from bertlib.compute.xla import cache_in_graph

# Activations that are computed in the same pass as the product.
_FUSED = {
  modeling.gelu: "GeluExact",
  modeling.gelu_tanh: "GeluApproximate",
  tf.nn.relu: "Relu",
  tf.tanh: "Tanh",
}

# Graph collection of the `Observation`s of `ObservedKernel`s, by layer.
_OBSERVED = "int8_observed_inputs"

# SmoothQuant migration strength alpha: 0 is a per-tensor range, 1 the maximum
# of each column.
_SMOOTHING = 0.65

# Upper limit of intermediate (FFN) activations, as a multiple of their 99.99th
# percentile. Outliers, such as those of [CLS], would waste most of the 8-bit
# range: the maximum is 24 in MiniLM's first layer, where 99.99% are below 4.2.
# As limit it cost 0.6 points of F1 in question answering
# (docs/results/earlier.md).
_INNER_LIMIT = 2.0

# Lowest range, so that nothing is divided by 0.
_TINY = 1e-20


class Observation(NamedTuple):
  """Observed inputs of a dense layer."""

  low: Any  # the lowest input
  # The highest input, or the limit above which inputs are clipped.
  high: Any
  # [width], largest magnitude of each column; None for one range of all.
  columns: Any = None
  # [units], largest magnitude of each output, for attention in 8 bits; those of
  # keys and values without their bias, which ONNX models add elsewhere.
  outputs: Any = None


@dataclasses.dataclass(frozen=True)
class ObservedKernel:
  """A kernel, float [width, units], that records its inputs for calibration."""

  layer: str  # name of the layer
  kernel: Any
  # The inputs are intermediate (FFN) activations, whose outliers are clipped.
  clips: bool = False

  def dense(self, inputs, bias, activation: Callable | None):
    """See `modeling.Compute.dense`."""
    high = tf.reduce_max(inputs)
    if self.clips:
      high = tf.minimum(high, _INNER_LIMIT * _high_percentile(inputs))
    output = modeling.Compute().dense(inputs, self.kernel, bias, activation)
    products = output if self.layer.endswith("/query") else output - bias
    observation = Observation(
      tf.reduce_min(inputs), high, *map(_magnitudes, (inputs, products))
    )
    tf.add_to_collection(_OBSERVED, (self.layer, observation))
    return output


def _magnitudes(matrix):
  """Largest magnitude of each column."""
  return tf.reduce_max(tf.abs(matrix), axis=0)


def _high_percentile(values):
  """99.99th percentile; the maximum of less than 10,000 values."""
  values = tf.reshape(values, [-1])
  return tf.math.top_k(values, tf.size(values) // 10_000 + 1).values[-1]


def observations() -> dict[str, Observation]:
  """Observations of the current graph by layer: float32 tensors."""
  return dict(tf.get_collection(_OBSERVED))


@dataclasses.dataclass(frozen=True, eq=False)  # a key of `_constant`
class QuantizedKernel:
  """A kernel in 8 bits."""

  values: np.ndarray  # int8 [width, units]
  # float32 [units]: what 127 stands for in each column, after the rows were
  # multiplied by `input_ranges`.
  ranges: np.ndarray
  # float32 [width]: what 127 stands for in each column of the inputs.
  input_ranges: np.ndarray
  # Limits of inputs that are 8-bit already, relative to `input_ranges`.
  # In a simulation, calibrated ranges were as accurate as those per row of each
  # batch (86.6 on STS-B), which take passes of their own over the inputs.
  input_limits: onednn.Limits
  # Limits of the outputs if the next layer takes them in 8 bits.
  output_limits: onednn.Limits | None = None
  dtype: Any = tf.float32  # of outputs that are not in 8 bits

  def dense(self, inputs, bias, activation: Callable | None):
    """See `modeling.Compute.dense`; takes and may return quint8."""
    limits = self.input_limits
    # The previous layer returns quint8 if it has `output_limits`.
    if inputs.dtype != tf.quint8:
      inputs = onednn.quantize(inputs, self.input_ranges)
      limits = onednn.Limits(-1.0, 1.0)
    fused = _FUSED.get(activation)
    output = onednn.int8_matmul(
      inputs,
      limits,
      _constant(self),
      self.ranges,
      bias,
      fused,
      self.output_limits if fused else None,
      self.dtype,
    )
    return activation(output) if activation and not fused else output


@cache_in_graph
def _constant(kernel: QuantizedKernel):
  """The values of a kernel, once in a graph."""
  return tf.constant(kernel.values, tf.int8)


def quantize_kernel(
  kernel: np.ndarray, inputs: Observation, **attributes: Any
) -> QuantizedKernel:
  """Quantizes a kernel, float32 [width, units], given its observed inputs."""
  if inputs.columns is None:
    magnitude = max(-inputs.low, inputs.high, _TINY)
    input_ranges = np.full(len(kernel), magnitude, np.float32)
  else:
    # Some columns of normalized hidden states are many times larger than
    # others. They get larger ranges, and the kernel's rows are scaled
    # accordingly (SmoothQuant, Xiao et al. 2023). MRPC outputs then differ by
    # 0.09 of their standard deviation, and by 0.17 with one range for all
    # (docs/results/earlier.md).
    largest = np.maximum(np.asarray(inputs.columns, np.float32), _TINY)
    scales = largest**_SMOOTHING
    # The largest input of every column fits into its range.
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
