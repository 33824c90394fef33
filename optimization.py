"""How BERT learns: Adam with decoupled weight decay, warm-up, clipping.

`training_step` puts the three together; `create_optimizer` is the same under
the name and with the result that existing code expects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf


class TrainingStep(NamedTuple):
  """One step of training, and what it can tell of itself.

  Attributes:
    train_op: applies the gradients, then counts the step.
    learning_rate: float32 [], that of this step.
    gradient_norm: float32 [], before clipping; what clipping goes by.
  """

  train_op: Any
  learning_rate: Any
  gradient_norm: Any


def create_optimizer(
  loss, init_lr: float, num_train_steps: int, num_warmup_steps: int, use_tpu
):
  """The `train_op` of `training_step`."""
  return training_step(
    loss, init_lr, num_train_steps, num_warmup_steps, use_tpu
  ).train_op


def training_step(
  loss,
  init_lr: float,
  num_train_steps: int,
  num_warmup_steps: int | None,
  use_tpu: bool = False,
  clip_norm: float = 1.0,
  bias_correction: bool = False,
) -> TrainingStep:
  """Builds the graph that lowers `loss` by one step.

  Weights decay at the rate 0.01, except for biases and layer normalisation
  (Devlin et al. 2019, A.2).

  Args:
    loss: float [].
    init_lr: highest learning rate.
    num_train_steps: steps until the rate is 0.
    num_warmup_steps: steps in which it rises from 0; None or 0 for none.
    use_tpu: whether gradients are averaged over TPU cores.
    clip_norm: gradients whose global norm is larger are scaled down to it.
    bias_correction: see `AdamWeightDecayOptimizer`.

  Returns:
    A `TrainingStep`.
  """
  global_step = tf.train.get_or_create_global_step()
  rate = learning_rate(global_step, init_lr, num_train_steps, num_warmup_steps)
  optimizer = AdamWeightDecayOptimizer(
    learning_rate=rate,
    weight_decay_rate=0.01,
    exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    bias_correction=bias_correction,
  )
  if use_tpu:
    optimizer = tf.tpu.CrossShardOptimizer(optimizer)
  variables = tf.trainable_variables()
  gradients = tf.gradients(loss, variables)
  # The norm is that of the gradients as they come: where an embedding's are
  # sparse, rows of a repeated id count one by one, not as their sum.
  norm = tf.linalg.global_norm(gradients)
  gradients, _ = tf.clip_by_global_norm(gradients, clip_norm, use_norm=norm)
  update = optimizer.apply_gradients(zip(gradients, variables))
  # The rate is that of the step before it is counted: the update, which reads
  # the step, comes first.
  with tf.control_dependencies([update]):
    train_op = global_step.assign_add(1, read_value=False)
  return TrainingStep(train_op, rate, norm)


def learning_rate(
  global_step,
  init_lr: float,
  num_train_steps: int,
  num_warmup_steps: int | None,
):
  """Linear rise over the warm-up, then the linear fall that began at step 0.

  Args:
    global_step: integer [], steps done so far.
    init_lr: the highest rate.
    num_train_steps: steps until 0; the rate stays 0 after that.
    num_warmup_steps: steps of the rise; None or 0 for none.

  Returns:
    float32 [].
  """
  step = tf.cast(global_step, tf.float32)
  done = tf.minimum(step / float(max(num_train_steps, 1)), 1.0)
  rate = init_lr * (1.0 - done)
  if num_warmup_steps:
    rising = init_lr * (step / float(num_warmup_steps))
    rate = tf.where(step < num_warmup_steps, rising, rate)
  return rate


class AdamWeightDecayOptimizer(tf.train.Optimizer):
  """Adam (Kingma and Ba 2015) with decoupled weight decay, as BERT has it.

  The decay is added to the step and not to the gradient, so that it does not
  pass through the moments (Loshchilov and Hutter 2019). The moments live in
  variables named after the weight: `NAME/adam_m` and `NAME/adam_v`.

  BERT does not correct them for their start at zero, which makes early steps
  several times as long as the learning rate says; on small data sets a run can
  fail by it (Mosbach et al. 2021). `bias_correction` is for those.
  """

  def __init__(
    self,
    learning_rate,
    weight_decay_rate: float = 0.0,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    exclude_from_weight_decay: Sequence[str] | None = None,
    name: str = "AdamWeightDecayOptimizer",
    bias_correction: bool = False,
  ):
    """Takes the constants.

    Args:
      learning_rate: a number or float [].
      weight_decay_rate: share of a weight, times the learning rate, taken off
        at each step.
      beta_1: how much of the first moment is kept.
      beta_2: how much of the second moment is kept.
      epsilon: added to the root of the second moment.
      exclude_from_weight_decay: regular expressions; a weight whose name has
        one of them anywhere in it does not decay.
      name: of the update's operations.
      bias_correction: whether moments are corrected for their start at zero,
        by the number of steps that the global step has counted.
    """
    super().__init__(use_locking=False, name=name)
    self.learning_rate = learning_rate
    self.weight_decay_rate = weight_decay_rate
    self.beta_1 = beta_1
    self.beta_2 = beta_2
    self.epsilon = epsilon
    self.exclude_from_weight_decay = exclude_from_weight_decay
    self.bias_correction = bias_correction

  def apply_gradients(self, grads_and_vars, global_step=None, name=None):
    """Moves each weight by its gradient; `global_step` is not counted on.

    Args:
      grads_and_vars: (gradient, variable) pairs; a pair with None is passed
        over, and that weight stays as it is.
      global_step: not used; whoever calls counts the steps.
      name: of the operation.

    Returns:
      An operation.
    """
    updates = []
    for gradient, weight in grads_and_vars:
      if gradient is None or weight is None:
        continue
      # Rows of a repeated id are added up here.
      gradient = tf.convert_to_tensor(gradient)
      m, v = (self._moment(weight, slot) for slot in ("adam_m", "adam_v"))
      next_m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
      next_v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(gradient)
      mean, square = next_m, next_v
      if self.bias_correction:
        steps = tf.cast(tf.train.get_or_create_global_step() + 1, tf.float32)
        mean /= 1.0 - self.beta_1**steps
        square /= 1.0 - self.beta_2**steps
      step = mean / (tf.sqrt(square) + self.epsilon)
      if self._decays(weight):
        step += self.weight_decay_rate * weight
      updates += [
        m.assign(next_m),
        v.assign(next_v),
        weight.assign_sub(self.learning_rate * step),
      ]
    return tf.group(*updates, name=name)

  def _moment(self, weight, slot: str):
    return tf.get_variable(
      f"{weight.op.name}/{slot}",
      weight.shape,
      tf.float32,
      tf.zeros_initializer(),
      trainable=False,
    )

  def _decays(self, weight) -> bool:
    return bool(self.weight_decay_rate) and not any(
      re.search(pattern, weight.op.name)
      for pattern in self.exclude_from_weight_decay or ()
    )
