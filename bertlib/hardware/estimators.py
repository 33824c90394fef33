"""The Estimator of a run, on its devices."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import checkpoint_files
from bertlib.compat import estimator_api
from bertlib.data import tf_records
from bertlib.hardware import distribution
from bertlib.hardware.devices import Devices
from bertlib.settings.command import EstimatorSettings
from bertlib.settings.training import RunSettings


def build(
  settings: EstimatorSettings,
  devices: Devices,
  model_fn,
  model_dir: str,
  predict_batch_size: int | None = None,
  trains: bool = False,
):
  """Builds a TPUEstimator, which serves CPU and GPU too, or one of replicas."""
  run, flags = settings.run, devices.flags
  # A command without a run, such as feature extraction, only predicts.
  sizes = {"predict_batch_size": predict_batch_size}
  if run:
    sizes = {
      "train_batch_size": run.train_batch_size,
      "eval_batch_size": run.eval_batch_size,
      "predict_batch_size": predict_batch_size or run.predict_batch_size,
    }
  for_training = _training_config(run, devices.on_tpu) if trains else {}
  if devices.replicas:
    return distribution.ReplicatedEstimator(
      model_fn, model_dir, devices.replicas, for_training, **sizes
    )
  with distribution.without_tf_config():
    run_config = estimator_api.RunConfig(
      cluster=devices.tpu_cluster,
      master=flags.master,
      model_dir=model_dir,
      tpu_config=estimator_api.TPUConfig(
        iterations_per_loop=flags.iterations_per_loop,
        num_shards=flags.num_tpu_cores,
        per_host_input_for_training=(
          estimator_api.InputPipelineConfig.PER_HOST_V2
        ),
      ),
      **for_training,
    )
  estimator = estimator_api.TPUEstimator(
    use_tpu=devices.on_tpu, model_fn=model_fn, config=run_config, **sizes
  )
  # What it writes for TensorBoard is dropped: `run.write_metrics` writes
  # the same under the names that training has.
  estimator.eval_dir = lambda name=None: "ram://eval"
  return estimator


def _training_config(run: RunSettings, on_tpu: bool) -> dict[str, Any]:
  """Arguments of a `RunConfig` that only training needs."""
  return {
    "tf_random_seed": run.seed,
    "save_checkpoints_steps": run.steps_per_checkpoint,
    "keep_checkpoint_max": run.keep_checkpoint_max,
    # On a TPU it logs examples per second; elsewhere `ProgressHook` does.
    "save_summary_steps": run.log_steps if on_tpu else 0,
    # Elsewhere TPUEstimator would run the session twice per step, to read the
    # number of the step.
    "log_step_count_steps": 100 if on_tpu else None,
  }


def check_model_fn(
  checkpoint: str | None, model_fn: Callable, layout: tf_records.Layout
) -> None:
  """Refuses a checkpoint that is corrupt, or of another model."""
  if checkpoint:
    checkpoint_files.check(checkpoint)
    num_variables = len(tf.train.list_variables(checkpoint))
    logging.info("%s: %d variables, none corrupt", checkpoint, num_variables)
  # Building the graph of a prediction logs what would be restored.
  with tf.Graph().as_default():
    batch = {
      name: tf.zeros([1, *shape], tf.float32 if is_float else tf.int32)
      for name, (shape, is_float, *_) in layout.items()
    }
    model_fn(batch, None, estimator_api.ModeKeys.PREDICT, {"batch_size": 1})
