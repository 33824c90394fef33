"""Selects the dtype of --precision=auto by instruction set and measurement."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.io import processes

# Lowest compute capability of a GPU that multiplies matrices in each dtype.
_COMPUTE_CAPABILITY = {"bfloat16": (8, 0), "float16": (7, 0)}

# Minimum speedup of matrix products. A smaller one is not worth it, since all
# other operations stay in float32. Instructions alone do not decide: with
# AVX512_BF16, but without AMX, products in bfloat16 took 1.2 to 2.6 times as
# long as in float32 on an Intel processor (docs/results/earlier.md).
_MIN_SPEEDUP = 1.5


def hidden_dtype(precision: str):
  """Dtype of hidden states; with int8, only dense layers are in 8 bits."""
  return tf.float32 if precision == "int8" else tf.as_dtype(precision)


def supported_dtypes() -> list[str]:
  """Dtypes that the devices have instructions for: "float32" is the first."""
  gpus = tf.config.list_physical_devices("GPU")
  if not gpus:
    has_bfloat16 = bool(processes.features() & processes.BFLOAT16)
    return ["float32", "bfloat16"] if has_bfloat16 else ["float32"]
  capability = min(
    tf.config.experimental.get_device_details(gpu).get(
      "compute_capability", (0, 0)
    )
    for gpu in gpus
  )
  return [
    "float32",
    *(n for n, lowest in _COMPUTE_CAPABILITY.items() if capability >= lowest),
  ]


def warn_if_emulated(precision: str) -> None:
  """Warns of a precision for which the devices have no instructions."""
  supported = supported_dtypes()
  if processes.has_exact_int8():
    supported.append("int8")
  if precision not in supported:
    logging.warning(
      "--precision=%s: this device has no instructions for it, so it may be"
      " slower than float32",
      precision,
    )


@functools.cache
def fastest_dtype(measures: bool = True) -> str:
  """Selects and logs the dtype in which this device multiplies fastest."""
  dtypes = supported_dtypes()
  # GPUs with the instructions are always faster with them. On a CPU, only
  # dtypes with instructions are measured: on a busy machine, the measurement
  # alone would not be reproducible.
  measures = measures and not tf.config.list_physical_devices("GPU")
  chosen, reason = dtypes[0], "no instructions for a narrower format here"
  if len(dtypes) > 1 and not measures:
    # The same on all machines of a kind, which workers must agree on.
    chosen, reason = dtypes[1], "has instructions here"
  elif len(dtypes) > 1:
    rates = product_rates(dtypes)
    for name in dtypes[1:]:
      if rates[name] > _MIN_SPEEDUP * rates[chosen]:
        chosen = name
    shown = ", ".join(
      f"{name} {rate / 1e12:.3g}" for name, rate in rates.items()
    )
    reason = f"matrix products here, in TFLOP/s: {shown}"
  logging.info("--precision=auto: %s (%s)", chosen, reason)
  return chosen


def product_rates(
  dtypes: Sequence[str],
  rows: int = 512,
  inner: int = 768,
  columns: int = 3072,
  num_rounds: int = 7,
) -> dict[str, float]:
  """Floating-point operations per second of matrix products, by dtype."""
  # On a GPU, launching one product takes longer than computing it.
  num_pairs = 32 if tf.config.list_physical_devices("GPU") else 0
  with tf.Graph().as_default():
    weights = [
      tf.get_variable("first", [rows, inner]),
      tf.get_variable("second", [inner, columns]),
    ]

    def product(dtype):
      first, second = (tf.cast(weight, dtype) for weight in weights)
      for _ in range(num_pairs):
        wide = tf.matmul(first, second)
        first = tf.matmul(wide, second, transpose_b=True)  # [rows, inner]
      return tf.reduce_sum(tf.matmul(first, second)[:1])

    results = {name: product(name) for name in dtypes}
    seconds = dict.fromkeys(dtypes, math.inf)
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      for result in results.values():  # kernels are chosen at the first call
        session.run(result)
      # In turn: other load on the machine changes the order only if it slows
      # down all rounds of one dtype and some round of another not at all.
      for _ in range(num_rounds):
        for name, result in results.items():
          start = time.perf_counter()
          session.run(result)
          elapsed = time.perf_counter() - start
          seconds[name] = min(seconds[name], elapsed)
  flops = 2 * rows * inner * columns * (2 * num_pairs + 1)
  return {name: flops / best for name, best in seconds.items()}
