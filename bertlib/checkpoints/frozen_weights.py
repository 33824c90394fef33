"""Weights as constants of a graph, for prediction."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bertlib.checkpoints import initialize, rewrite


def weight_getter(
  checkpoint: str, convert: Callable[[str, np.ndarray], Any] | None = None
) -> Callable:
  """Custom getter of variables that returns weights of a checkpoint."""
  # TensorFlow lays out constant kernels for the processor once, and converts
  # constants to another precision once. It does both for variables in every
  # batch.
  stored = rewrite.Checkpoint(checkpoint)

  def get(getter, name, shape=None, **kwargs):
    # Created as usual.
    if name not in stored:
      return getter(name, shape=shape, **kwargs)
    initialize.check_shape(checkpoint, name, stored.shapes[name], shape)
    value = stored[name]
    return convert(name, value) if convert else tf.constant(value)

  return get
