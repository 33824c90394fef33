"""The `model_fn` of a run for evaluation and prediction in 8 bits."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

import modeling
import tokenization
from bertlib.checkpoints import quantization
from bertlib.settings.common import ComputeSettings


def in_int8(
  model_fn,
  compute: ComputeSettings,
  config: modeling.BertConfig,
  checkpoint: str | None,
  make_batches,
  folder: str,
):
  """Wraps a `model_fn` so that dense layers of the encoder are in 8 bits.

  Its weights are constants, those of the checkpoint. Estimator restores only
  the global step.

  Args:
    model_fn: builds the graph of a model.
    compute: settings with --precision=int8.
    config: config of the encoder.
    checkpoint: path of the weights; None without any.
    make_batches: makes batches to calibrate with, see `quantization.calibrate`.
    folder: has `quantization.json`, or gets it.

  Raises:
    InputError: there is no checkpoint, or `quantization.json` is invalid.
  """
  ranges = quantization.find(folder, checkpoint, config, make_batches)
  getter = quantization.weight_getter(
    checkpoint, ranges, compute.int8_skip_layers
  )

  def int8_model_fn(features, labels, mode, params, config=None):
    with tf.variable_scope("", custom_getter=getter):
      return model_fn(features, labels, mode, params, config)

  return int8_model_fn


def calibration_batches(
  compute: ComputeSettings,
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
  input_fn,
  batch_size: int,
):
  """Batches to calibrate with: of --calibration_file, or else of the run.

  Args:
    compute: settings with --precision=int8.
    tokenizer: tokenizer of the model.
    max_seq_length: longer texts are truncated.
    input_fn: batches that the run evaluates or predicts.
    batch_size: rows of these batches.
  """
  if compute.calibration_file:
    return quantization.text_batches(
      compute.calibration_file, tokenizer, max_seq_length
    )
  return quantization.input_batches(input_fn, batch_size)
