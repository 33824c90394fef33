"""oneDNN kernels of TensorFlow that have no public name.

TensorFlow reaches them only by rewrites of its own graphs. This is the one
module, beside `estimator_api`, that uses internal names. Signed 8-bit values,
-127 to 127, stand for numbers from -range to range; unsigned ones for those
between two limits.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels, op_def_library
from tensorflow.python.util import _pywrap_util_port

import modeling
from bertlib.cli.errors import InputError
from bertlib.io import processes

# The first release whose packages for x86 have `int8_matmul`.
FIRST_INT8_RELEASE = "2.17"

# Largest magnitude of an 8-bit value: -128 is not used.
MAX_INT8 = 127

# A kernel of oneDNN costs about a tenth of a millisecond per call. Below this
# number of elements, several plain operations together cost less.
_MANY_ELEMENTS = 2**16


class Limits(NamedTuple):
  """Numbers that the lowest and the highest 8-bit value stand for."""

  low: float
  high: float

  def constants(self) -> list:
    """Both limits as graph constants."""
    return [tf.constant(limit, tf.float32) for limit in self]


def int8_matmul(
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

  return tf.bitcast(_by_size(scaled, in_one_pass, in_several), tf.qint8)


def attention(query, key, value, biases, dropout_prob, dropout_seed):
  """`modeling.dot_product_attention` of bfloat16, with the bias of a mask."""
  del dropout_prob, dropout_seed
  scale = tf.constant(query.shape.as_list()[-1] ** -0.5, query.dtype)
  # oneDNN scales and masks the scores in the pass of their product.
  scores = tf.matmul(query, key, transpose_b=True) * scale  # [B, N, F, T]
  (bias,) = biases
  scores += tf.cast(bias, query.dtype)
  # oneDNN's softmax computes in float32, whatever it takes and returns.
  return tf.matmul(tf.nn.softmax(scores), value)


def add_and_norm(output, residual, dropout_prob, dropout_seed, epsilon: float):
  """`modeling.Compute.add_and_norm` without dropout, in one pass."""
  del dropout_prob, dropout_seed
  tensor = output + residual
  with tf.variable_scope(None, default_name="LayerNorm"):
    beta, gamma = modeling.norm_weights(tensor.shape.as_list()[-1])

  def plain():
    vectors = tf.cast(tensor, tf.float32)
    normalized = modeling.normalize(vectors, beta, gamma, epsilon)
    return tf.cast(normalized, tensor.dtype)

  return layer_norm(tensor, gamma, beta, epsilon, plain)


def layer_norm(tensor, gamma, beta, epsilon: float, plain):
  """Layer normalization of [R, H] in one pass; `plain()` if small."""

  def in_one_pass():
    outputs = op_def_library.apply_op(
      "_MklLayerNorm",
      name="layer_norm",
      x=tensor,
      scale=tf.cast(gamma, tensor.dtype),
      offset=tf.cast(beta, tensor.dtype),
      epsilon=epsilon,
    )
    return tf.nest.flatten(outputs)[0]

  output = _by_size(tensor, in_one_pass, plain)
  output.set_shape(tensor.shape)
  return output


def _by_size(tensor, in_one_pass, in_several):
  """Calls the cheaper of two functions that compute the same."""
  return tf.cond(tf.size(tensor) >= _MANY_ELEMENTS, in_one_pass, in_several)


def max_kernel_value() -> int:
  """Largest magnitude of a kernel's values for exact sums on this processor."""
  # Pairs of products with 7-bit kernels cannot exceed 16 bits.
  return MAX_INT8 if processes.has_exact_int8() else 63


def is_on() -> bool:
  """True if TensorFlow computes with oneDNN, by processor and environment."""
  return _pywrap_util_port.IsMklEnabled()


def is_available() -> bool:
  """True if `layer_norm` runs here: on an x86 processor without GPUs."""
  return _has_kernel("_MklLayerNorm") and not _gpus()


def takes_dtype(dtype) -> bool:
  """True if the kernels of this module take a dtype on this processor."""
  # Without AVX-512 they end the process when given bfloat16.
  has_avx512 = "avx512bw" in processes.features()
  return dtype == tf.float32 or (dtype == tf.bfloat16 and has_avx512)


def has_softmax(dtype) -> bool:
  """True if TensorFlow computes the softmax of a 16-bit dtype in float32."""
  # oneDNN does; without it, TensorFlow sums the exponentials in 16 bits.
  is_on = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower()
  return (
    dtype == tf.bfloat16
    and is_on not in ("0", "false")
    and not {"amx_bf16", "avx512_bf16"}.isdisjoint(processes.features())
    and is_available()
  )


def check_int8() -> None:
  """Raises InputError if `int8_matmul` does not run here."""
  if _gpus():
    raise InputError(
      "--precision=int8: for CPUs only. Give --precision=auto on a GPU, or hide"
      " the GPU by CUDA_VISIBLE_DEVICES=-1"
    )
  if not has_int8_matmul():
    raise InputError(
      f"--precision=int8: {missing_int8()}, or give --precision=auto"
    )


def has_int8_matmul() -> bool:
  """True if `int8_matmul` runs here."""
  return _has_kernel("_QuantizedMatMul")


def missing_int8() -> str:
  """Start of an error message where there is no `int8_matmul`."""
  return (
    f"TensorFlow {tf.__version__} on this processor has no 8-bit matrix"
    f" products. Install TensorFlow {FIRST_INT8_RELEASE} or newer for x86"
  )


def _has_kernel(operation: str) -> bool:
  """True if TensorFlow has a kernel of this operation."""
  return bool(kernels.get_registered_kernels_for_op(operation).kernel)


def _gpus() -> list:
  return tf.config.list_physical_devices("GPU")
