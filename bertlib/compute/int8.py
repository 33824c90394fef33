"""Dense layers in 8 bits: kernels that `FastCompute.dense` multiplies by.

A custom getter of `tf.get_variable` returns them instead of a kernel: a
`QuantizedKernel` computes in 8 bits, an `ObservedKernel` records the range of
its inputs for calibration.

Signed 8-bit values, -127 to 127, stand for numbers from -range to range;
unsigned ones for those between two limits. The product is oneDNN's, which has
no public name.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_library

import modeling
from bertlib.compute import onednn
from bertlib.compute.onednn import MAX_INT8
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


# The product


class Limits(NamedTuple):
  """Numbers that the lowest and the highest 8-bit value stand for."""

  low: float
  high: float

  def constants(self) -> list:
    """Both limits as graph constants."""
    return [tf.constant(limit, tf.float32) for limit in self]


def matmul(
  inputs,
  input_limits: Limits,
  kernel: np.ndarray,  # int8 [width, units]
  # float32 [units], what 127 stands for in each column.
  kernel_ranges: np.ndarray,
  bias,
  # "GeluExact", "GeluApproximate", "Relu" or "Tanh".
  activation: str | None = None,
  output_limits: Limits | None = None,
  dtype=tf.float32,
):
  """8-bit activation(inputs kernel + bias): [R, units] in quint8 or `dtype`."""
  # `inputs` are qint8 of `quantize`, or quint8 of this function. With
  # `output_limits` the result is clipped to them, in quint8. The sums are
  # exact, in 32 bits. oneDNN arranges the kernel for the processor at the first
  # call.
  ranges = np.asarray(kernel_ranges, np.float32)
  arguments = [
    inputs,
    tf.bitcast(tf.convert_to_tensor(kernel, tf.int8), tf.qint8),
    bias,
    *input_limits.constants(),
    tf.constant(-ranges),
    tf.constant(ranges),
  ]
  output_dtypes, last = [dtype], "Dequantize"
  if output_limits:
    arguments += output_limits.constants()
    output_dtypes, last = [tf.quint8, tf.float32, tf.float32], "Requantize"
  is_symmetric = inputs.dtype == tf.qint8
  outputs = op_def_library.apply_op(
    "_QuantizedMatMul",
    name="int8_matmul",
    device_inputs=arguments,
    host_inputs=[],
    Tdevice_outputs=output_dtypes,
    Thost_outputs=[],
    T1=inputs.dtype,
    T2=tf.qint8,
    Tbias=tf.float32,
    U=tf.float32,
    Tout=output_dtypes[0],
    transpose_a=False,
    transpose_b=False,
    is_weight_const=True,
    is_bias_const=True,
    fused_ops=["BiasAdd", *([activation] if activation else []), last],
    input_quant_mode="SCALED" if is_symmetric else "MIN_FIRST",
    output_quant_mode="MIN_FIRST" if output_limits else "SCALED",
    leakyrelu_alpha=0.2,
  )
  output = tf.nest.flatten(outputs)[0]
  output.set_shape([inputs.shape[0], kernel.shape[1]])
  return output


def quantize(tensor, ranges: np.ndarray):
  """Quantizes [R, width] to qint8, clipped to the `ranges` of columns."""
  scaled = tf.cast(tensor, tf.float32) * (MAX_INT8 / ranges)

  def in_one_pass():
    return tf.bitcast(
      tf.raw_ops.QuantizeV2(
        input=scaled,
        min_range=-MAX_INT8,
        max_range=MAX_INT8,
        T=tf.qint8,
        mode="SCALED",
        round_mode="HALF_TO_EVEN",
        narrow_range=True,
      ).output,
      tf.int8,
    )

  def in_several():
    clipped = tf.clip_by_value(tf.round(scaled), -MAX_INT8, MAX_INT8)
    return tf.cast(clipped, tf.int8)

  return tf.bitcast(onednn.by_size(scaled, in_one_pass, in_several), tf.qint8)


# Kernels


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
  input_limits: Limits
  # Limits of the outputs if the next layer takes them in 8 bits.
  output_limits: Limits | None = None
  dtype: Any = tf.float32  # of outputs that are not in 8 bits

  def dense(self, inputs, bias, activation: Callable | None):
    """See `modeling.Compute.dense`; takes and may return quint8."""
    limits = self.input_limits
    # The previous layer returns quint8 if it has `output_limits`.
    if inputs.dtype != tf.quint8:
      inputs = quantize(inputs, self.input_ranges)
      limits = Limits(-1.0, 1.0)
    fused = _FUSED.get(activation)
    output = matmul(
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
  ranges *= MAX_INT8 / onednn.max_kernel_value()
  return QuantizedKernel(
    np.rint(scaled * (MAX_INT8 / ranges)).astype(np.int8),
    ranges.astype(np.float32),
    input_ranges,
    Limits(inputs.low / input_ranges[0], inputs.high / input_ranges[0]),
    **attributes,
  )
