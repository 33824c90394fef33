"""The `model_fn` of a run for evaluation and prediction."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

import modeling
import tokenization
from bertlib.checkpoints import quantization
from bertlib.settings.common import ComputeSettings


def model_fn_for_inference(
  model_fn,
  compute: ComputeSettings,
  config: modeling.BertConfig,
  checkpoint: str | None,
  folder: str,
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
  input_fn,
  batch_size: int,
):
  """Wraps a `model_fn` for --precision=int8; returns it for any other.

  With int8 the dense layers of the encoder are in 8 bits. The weights are
  constants, those of the checkpoint; Estimator restores only the global step.

  Args:
    model_fn: builds the graph of a model.
    compute: precision and calibration.
    config: config of the encoder.
    checkpoint: path of the weights; None without any.
    folder: `quantization.json` is read from it, or written to it.
    tokenizer: tokenizer of the model.
    max_seq_length: longer texts of --calibration_file are truncated.
    input_fn: batches to calibrate with, without --calibration_file.
    batch_size: rows of these batches.

  Raises:
    InputError: there is no checkpoint, or `quantization.json` is invalid.
  """
  if compute.precision != "int8":
    return model_fn

  def make_batches():
    if compute.calibration_file:
      return quantization.text_batches(
        compute.calibration_file, tokenizer, max_seq_length
      )
    return quantization.input_batches(input_fn, batch_size)

  getter = quantization.weight_getter(
    checkpoint,
    quantization.find(folder, checkpoint, config, make_batches),
    compute.int8_skip_layers,
  )

  def int8_model_fn(features, labels, mode, params, config=None):
    with tf.variable_scope("", custom_getter=getter):
      return model_fn(features, labels, mode, params, config)

  return int8_model_fn
