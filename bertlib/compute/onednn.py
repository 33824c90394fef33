"""oneDNN kernels of TensorFlow that have no public name.

TensorFlow reaches them only by rewrites of its own graphs. This, the matrix
product of `int8`, and `estimator_api` alone use internal names.
"""

from __future__ import annotations

import os

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels, op_def_library
from tensorflow.python.util import _pywrap_util_port

import modeling
from bertlib.cli.errors import InputError
from bertlib.io import processes

# The first release whose packages for x86 have `int8.matmul`.
FIRST_INT8_RELEASE = "2.17"

# Largest magnitude of an 8-bit value: -128 is not used.
MAX_INT8 = 127

# A kernel of oneDNN costs about a tenth of a millisecond per call. Below this
# number of elements, several plain operations together cost less.
_MANY_ELEMENTS = 2**16


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

  output = by_size(tensor, in_one_pass, plain)
  output.set_shape(tensor.shape)
  return output


def by_size(tensor, in_one_pass, in_several):
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
  """Raises InputError if `int8.matmul` does not run here."""
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
  """True if `int8.matmul` runs here."""
  return _has_kernel("_QuantizedMatMul")


def missing_int8() -> str:
  """Start of an error message where there is no `int8.matmul`."""
  return (
    f"TensorFlow {tf.__version__} on this processor has no 8-bit matrix"
    f" products. Install TensorFlow {FIRST_INT8_RELEASE} or newer for x86"
  )


def _has_kernel(operation: str) -> bool:
  """True if TensorFlow has a kernel of this operation."""
  return bool(kernels.get_registered_kernels_for_op(operation).kernel)


def _gpus() -> list:
  return tf.config.list_physical_devices("GPU")
