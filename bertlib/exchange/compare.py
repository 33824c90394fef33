"""Comparing the weights of two models."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bertlib.checkpoints import checkpoint_files
from bertlib.exchange import from_huggingface, initial_model, rewrite


def compare_weights(
  first: Mapping[str, np.ndarray],
  second: Mapping[str, np.ndarray],
  tolerance: float = 1e-4,  # largest difference of two numbers that agree
) -> bool:
  """Prints how the weights of two models differ; True if all agree."""
  largest = []  # of each variable that is not bitwise equal
  names = sorted(first.keys() | second.keys())
  for name in names:
    if name not in first or name not in second:
      largest.append(np.inf)
      print(f"{name}: only in the {'first' if name in first else 'second'}")
      continue
    values, others = first[name], second[name]
    if values.shape != others.shape:
      largest.append(np.inf)
      print(f"{name}: {values.shape} and {others.shape}")
    elif values.dtype != others.dtype or values.tobytes() != others.tobytes():
      largest.append(np.abs(values.astype(np.float64) - others).max())
      print(f"{name}: {largest[-1]:.3g}")
  num_equal = len(names) - len(largest)
  print(f"{num_equal} variables are bitwise equal, {len(largest)} are not")
  # A comparison with NaN is false.
  agree = all(value <= tolerance for value in largest)
  verdict = "agree" if agree else "do not agree"
  print(f"they {verdict} within {tolerance:g}")
  return agree


def read_weights(path: str) -> dict[str, np.ndarray]:
  """Reads the weights of a model in any format, by checkpoint name."""
  model_format = initial_model.model_format(path)
  if model_format == "huggingface":
    return from_huggingface.read_variables(path)
  if model_format == "tensorflow":
    return rewrite.read_weights(checkpoint_files.find_checkpoint(path))
  loaded = tf.saved_model.load(path)
  return {
    variable.name.partition(":")[0]: variable.numpy()
    for signature in loaded.signatures.values()
    for variable in signature.variables
  }
