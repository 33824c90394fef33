"""The training step of a `model_fn`, and what TensorBoard shows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf_v2
import tensorflow.compat.v1 as tf

import optimization
from bertlib import estimator_api
from bertlib.checkpoints import finding, initialize
from bertlib.training import checkpoint_hook, distribution, session_hooks

# While it runs


def train_spec(
  loss_fn,
  batch: Mapping[str, Any],
  learning_rate: float,
  num_train_steps: int,
  num_warmup_steps: int,
  use_tpu: bool,
  options: optimization.StepOptions,
  seed: int | None,
  init_checkpoint: str | None,
  config,
  batch_size: int,
  log_steps: int,
):
  """What a `model_fn` gives for training: a step of it, and how it is shown.

  Loss, learning rate, gradient norm and what else `loss_fn` tells go to
  TensorBoard every `log_steps` steps, on a TPU too.

  Args:
    loss_fn: of a batch, or an equal part of one, and the `dropout_seed`; gives
      the examples' mean loss, float32 [], and by name what else to show of
      them, float32 [].
    batch: features by name.
    learning_rate: the highest.
    num_train_steps: the step at which training ends.
    num_warmup_steps: steps until the highest learning rate.
    use_tpu: whether it runs on a TPU, where no line of progress is shown: many
      steps run between two visits to the host.
    options: how the step is made.
    seed: of dropout, or None for masks that nothing fixes.
    init_checkpoint: where the weights start, or None.
    config: the Estimator's `RunConfig`, or None where there is none.
    batch_size: examples a step.
    log_steps: steps between two lines of progress.

  Returns:
    A `TPUEstimatorSpec`.
  """
  global_step = tf.train.get_or_create_global_step()

  def part_loss(part, index):
    if seed is None:
      return loss_fn(part, None)
    draw = global_step
    if not use_tpu:  # whose cores do not tell their number
      draw = draw * optimization.num_replicas() + optimization.replica_number()
    draw = draw * options.num_micro_batches + tf.cast(index, tf.int64)
    return loss_fn(part, (seed, draw))

  loss_scale = optimization.LossScale() if options.scales_loss else None
  gradients = optimization.compute_gradients(
    part_loss, batch, options.num_micro_batches, loss_scale, options.frozen
  )
  model_dir = config and config.model_dir
  writes = model_dir and distribution.writes_summaries()
  last = model_dir and finding.last_checkpoint(model_dir)
  scaffold_fn = initialize.initialize_from_checkpoint(
    init_checkpoint, last, use_tpu
  )
  step = optimization.training_step(
    gradients,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    options=options,
    loss_scale=loss_scale,
  )
  shown = {
    "loss": step.loss,
    **step.scalars,
    "learning_rate": step.learning_rate,
    "gradient_norm": step.gradient_norm,
  }
  if loss_scale:
    shown["loss_scale"] = loss_scale.value
  hooks = []
  if not use_tpu:
    # A scaled loss may have a gradient without end: that step is left out.
    finite = ["loss"] if loss_scale else ["loss", "gradient_norm"]
    checkpoint_hook.watch(shown, finite)
    if optimization.num_replicas() > 1:
      checkpoint_hook.share_stop_requests()
    tensors = {name.replace("_", " "): value for name, value in shown.items()}
    hooks = [
      session_hooks.ProgressHook(
        tensors,
        num_train_steps,
        batch_size,
        log_steps,
        model_dir if writes else None,
      )
    ]
  return estimator_api.TPUEstimatorSpec(
    mode=estimator_api.ModeKeys.TRAIN,
    loss=step.loss,
    train_op=step.train_op,
    scaffold_fn=scaffold_fn,
    training_hooks=hooks,
    host_call=write_scalars(
      model_dir, step.train_op, shown, log_steps, num_train_steps
    )
    if writes
    else None,
  )


def write_scalars(
  model_dir: str,
  train_op,
  scalars: Mapping[str, Any],
  log_steps: int,
  num_train_steps: int,
):
  """A `host_call` that writes scalars for TensorBoard.

  The first and the last step are written whatever `log_steps` is.

  The host writes what the device gives, which is how a TPU's graph, that has no
  operations for files, can show its numbers.

  Args:
    model_dir: the folder.
    train_op: counts the step.
    scalars: float [] by name.
    log_steps: steps between two values.
    num_train_steps: the last step.

  Returns:
    The function and its tensors, with an axis over the TPU's cores.
  """
  with tf.control_dependencies([train_op]):
    done = tf.train.get_or_create_global_step().read_value()

  # What `tf.summary.scalar` adds, for which TensorBoard has to be installed.
  metadata = tf.SummaryMetadata(
    plugin_data=tf.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
  )

  def write(step, *values):
    is_due = (
      tf.equal(step[0] % max(log_steps, 1), 0)
      | tf.equal(step[0], 1)
      | tf.equal(step[0], num_train_steps)
    )
    with (
      tf_v2.summary.create_file_writer(model_dir).as_default(),
      tf_v2.summary.record_if(is_due),
    ):
      for name, value in zip(scalars, values):
        tf_v2.summary.write(name, tf.reduce_mean(value), step[0], metadata)
    return tf.summary.all_v2_summary_ops()

  return write, [tf.reshape(t, [1]) for t in (done, *scalars.values())]


def part_weight(
  weights, options: optimization.StepOptions, use_tpu: bool = False
):
  """By what a part of a batch divides its weighted sum.

  Parts may have more weight or less (more masks, more words), and the mean of
  their sums is the batch's mean if all divide by the same.

  Args:
    weights: float [...], of all examples of a replica.
    options: has the number of parts.
    use_tpu: see `optimization.sum_over_replicas`.

  Returns:
    float32 [].
  """
  total = tf.reduce_sum(tf.cast(weights, tf.float32))
  total = optimization.sum_over_replicas(total, use_tpu)
  num_replicas = optimization.num_replicas(use_tpu)
  return total / num_replicas / options.num_micro_batches


def restore_trained(init_checkpoint: str | None, config, use_tpu: bool):
  """What weights start from where they are not trained.

  Args:
    init_checkpoint: a checkpoint, for a folder without one.
    config: the Estimator's `RunConfig`, or None where there is none.
    use_tpu: whether it runs on a TPU.

  Returns:
    See `initialize.initialize_from_checkpoint`.
  """
  trained = finding.trained_checkpoint(config and config.model_dir)
  return initialize.initialize_from_checkpoint(
    init_checkpoint, trained, use_tpu
  )
