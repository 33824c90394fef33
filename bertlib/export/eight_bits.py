"""Dense layers in 8 bits, for --precision=int8 alone.

What computes them is imported where it is needed.
"""

from __future__ import annotations

from typing import Any, Callable

from bertlib.cli import lazy_module
from bertlib.settings.command import EstimatorSettings
from bertlib.settings.common import QuantizationSettings

quantization = lazy_module.load("bertlib.export.quantization")


def weight_getter(
  settings: QuantizationSettings,
  **encoder: Any,  # fields of a `quantization.TrainedEncoder`
) -> Callable:
  """See `quantization.weight_getter`."""
  return quantization.weight_getter(
    quantization.TrainedEncoder(**encoder), settings
  )


def inference_model_fn(
  model_fn: Callable,
  settings: EstimatorSettings,
  input_fn: Callable,
  batch_size: int,
  **encoder: Any,  # see `weight_getter`
) -> Callable:
  """The `model_fn` of evaluation or prediction in the precision of a run."""
  if settings.compute.precision != "int8":
    return model_fn
  return quantization.int8_model_fn(
    model_fn,
    settings.quantization,
    quantization.TrainedEncoder(
      max_seq_length=settings.model.max_seq_length,
      encoding=settings.text.codec,
      **encoder,
    ),
    # Calibrates if there are neither ranges in the folder nor a
    # --calibration_file.
    lambda: quantization.input_batches(input_fn, batch_size),
  )
