"""Checks a checkpoint against the graph of a model, before a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Callable

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import checkpoint_files
from bertlib.compat import estimator_api
from bertlib.data import tf_records


def check(
  checkpoint: str | None,
  model_fn: Callable,
  layout: tf_records.Layout,
  model_dir: str | None,
) -> None:
  """Refuses a checkpoint that is corrupt, or of another model."""
  if checkpoint:
    checkpoint_files.check(checkpoint)
    num_variables = len(tf.train.list_variables(checkpoint))
    logging.info("%s: %d variables, none corrupt", checkpoint, num_variables)
  # Building the graph of a prediction logs what would be restored. A checkpoint
  # in `model_dir` takes precedence.
  with tf.Graph().as_default():
    batch = {
      name: tf.zeros([1, *shape], tf.float32 if is_float else tf.int32)
      for name, (shape, is_float, *_) in layout.items()
    }
    model_fn(
      batch,
      None,
      estimator_api.ModeKeys.PREDICT,
      {"batch_size": 1},
      SimpleNamespace(model_dir=model_dir),
    )
