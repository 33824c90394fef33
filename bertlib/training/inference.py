"""The `model_fn` of a run for evaluation and prediction."""

from __future__ import annotations

from typing import Callable

import tensorflow.compat.v1 as tf

from bertlib.checkpoints import quantization
from bertlib.settings.common import EstimatorSettings


def model_fn_for_inference(
  model_fn: Callable,
  settings: EstimatorSettings,
  encoder: quantization.TrainedEncoder,
  default_batches: Callable,
) -> Callable:
  """Wraps a `model_fn` for --precision=int8; returns it for any other."""
  if settings.compute.precision != "int8":
    return model_fn
  # The weights are constants of the graph, those of the checkpoint; Estimator
  # restores only the global step.
  getter = quantization.weight_getter(
    encoder, settings.quantization, default_batches
  )

  def int8_model_fn(features, labels, mode, params, config=None):
    with tf.variable_scope("", custom_getter=getter):
      return model_fn(features, labels, mode, params, config)

  return int8_model_fn
