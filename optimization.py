"""How BERT learns: Adam with decoupled weight decay, warm-up, clipping.

`compute_gradients` takes a batch whole or in parts, `training_step` turns
gradients into a step; `create_optimizer` is both under the name and with the
result that existing code expects.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf


class Gradients(NamedTuple):
  """What a batch says of the weights.

  Attributes:
    loss: float32 [], of the batch.
    scalars: further float32 [] by name, what the loss function told.
    gradients: one for each variable: a tensor, `tf.IndexedSlices`, or None.
      Those of a scaled loss are scaled.
    variables: the trainable variables.
  """

  loss: Any
  scalars: dict[str, Any]
  gradients: list[Any]
  variables: list[Any]


class StepOptions(NamedTuple):
  """How a step is made, where BERT's own way is not the only one.

  Attributes:
    bias_correction: see `AdamWeightDecayOptimizer`.
    num_micro_batches: see `compute_gradients`.
    compiles: see `AdamWeightDecayOptimizer`.
    on_cpu: likewise.
    scales_loss: whether there is a `LossScale`, as float16 needs.
  """

  bias_correction: bool = False
  num_micro_batches: int = 1
  compiles: bool = False
  on_cpu: bool = False
  scales_loss: bool = False


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
  """The `train_op` of a `training_step` that lowers `loss`."""
  return training_step(
    gradients_of(loss), init_lr, num_train_steps, num_warmup_steps, use_tpu
  ).train_op


def training_step(
  gradients: Gradients,
  init_lr: float,
  num_train_steps: int,
  num_warmup_steps: int | None,
  use_tpu: bool = False,
  clip_norm: float = 1.0,
  options: StepOptions | None = None,
  loss_scale: LossScale | None = None,
) -> TrainingStep:
  """Builds the graph of one step down the gradients.

  Weights decay at the rate 0.01, except for biases and layer normalisation
  (Devlin et al. 2019, A.2).

  Args:
    gradients: of `compute_gradients` or `gradients_of`.
    init_lr: highest learning rate.
    num_train_steps: steps until the rate is 0.
    num_warmup_steps: steps in which it rises from 0; None or 0 for none.
    use_tpu: whether gradients are averaged over TPU cores.
    clip_norm: gradients whose global norm is larger are scaled down to it.
    options: how else to make it; None for `StepOptions()`.
    loss_scale: by which the gradients are scaled; a step in which they are not
      finite is counted, and moves no weight.

  Returns:
    A `TrainingStep`.
  """
  options = options or StepOptions()
  global_step = tf.train.get_or_create_global_step()
  rate = learning_rate(global_step, init_lr, num_train_steps, num_warmup_steps)
  # The norm is that of the gradients as they come: where an embedding's are
  # sparse, rows of a repeated id count one by one, not as their sum.
  norm = tf.linalg.global_norm(gradients.gradients)
  if loss_scale:
    norm /= loss_scale.value
  # The last term makes all of it NaN where the norm is not finite.
  scale = clip_norm * tf.minimum(1.0 / norm, 1.0 / clip_norm) + (norm - norm)
  if loss_scale:
    scale /= loss_scale.value
  updated = gradients.gradients
  if use_tpu:
    # Each core clips its own, before the mean of all is taken.
    updated = [g if g is None else g * scale for g in map(_dense, updated)]
    scale = 1.0
  optimizer = AdamWeightDecayOptimizer(
    learning_rate=rate,
    weight_decay_rate=0.01,
    exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    bias_correction=options.bias_correction,
    gradient_scale=scale,
    compiles=options.compiles,
    on_cpu=options.on_cpu,
  )
  if use_tpu:
    optimizer = tf.tpu.CrossShardOptimizer(optimizer)
  pairs = list(zip(updated, gradients.variables))
  if loss_scale:
    update = loss_scale.guard(norm, lambda: optimizer.apply_gradients(pairs))
  else:
    update = optimizer.apply_gradients(pairs)
  # The rate is that of the step before it is counted: the update, which reads
  # the step, comes first.
  with tf.control_dependencies([update]):
    train_op = global_step.assign_add(1, read_value=False)
  return TrainingStep(train_op, rate, norm)


# Gradients


def gradients_of(
  loss, scalars: Mapping[str, Any] | None = None, factor=None
) -> Gradients:
  """Those of all trainable variables.

  Args:
    loss: float [].
    scalars: see `Gradients`.
    factor: float [] that scales them; None for 1.

  Returns:
    The `Gradients`.
  """
  variables = tf.trainable_variables()
  scaled = loss if factor is None else loss * factor
  return Gradients(
    loss, dict(scalars or {}), tf.gradients(scaled, variables), variables
  )


def compute_gradients(
  loss_fn: Callable[[dict[str, Any], Any], tuple[Any, dict[str, Any]]],
  batch: Mapping[str, Any],
  num_micro_batches: int = 1,
  loss_scale: LossScale | None = None,
) -> Gradients:
  """Gradients of a batch, taken whole or, to save memory, in equal parts.

  Parts come one after the other, and their sums are what the whole batch gives
  but for rounding. Sparse gradients stay sparse: their rows are joined.

  Args:
    loss_fn: of a batch and the part's number, int32 []; gives the mean loss of
      the examples, float32 [], and further means by name.
    batch: features by name, each with the examples as first axis.
    num_micro_batches: parts; divides the examples.
    loss_scale: scales the gradients; None for 1.

  Returns:
    The `Gradients`.
  """
  factor = loss_scale.value if loss_scale else None
  if num_micro_batches == 1:
    return gradients_of(*loss_fn(dict(batch), tf.constant(0)), factor)

  def compute_part(index):
    part = {}
    for name, tensor in batch.items():
      size = tf.shape(tensor)[0] // num_micro_batches
      part[name] = tensor[index * size : (index + 1) * size]
    loss, scalars = loss_fn(part, index)
    shares = {n: value / num_micro_batches for n, value in scalars.items()}
    return gradients_of(loss / num_micro_batches, shares, factor)

  # The first part, outside the loop, makes the variables and shows what there
  # is to add up.
  first = compute_part(tf.constant(0))
  sums, sparse = _split(first)
  rows = [_joined_rows(gradient, num_micro_batches) for gradient in sparse]

  def add_part(index, sums, rows):
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      more, sparse = _split(compute_part(index))
    sums = tf.nest.map_structure(tf.add, sums, more)
    rows = [
      (values.write(index, g.values), indices.write(index, g.indices))
      for (values, indices), g in zip(rows, sparse)
    ]
    return index + 1, sums, rows

  _, (loss, scalars, dense), rows = tf.while_loop(
    lambda index, *_: index < num_micro_batches,
    add_part,
    (tf.constant(1), sums, rows),
    parallel_iterations=1,
  )
  left = iter(dense), iter(rows)
  gradients = []
  for gradient in first.gradients:
    if isinstance(gradient, tf.IndexedSlices):
      values, indices = next(left[1])
      gradient = tf.IndexedSlices(
        values.concat(), indices.concat(), gradient.dense_shape
      )
    elif gradient is not None:
      gradient = next(left[0])
    gradients.append(gradient)
  return Gradients(loss, scalars, gradients, first.variables)


def _split(part: Gradients):
  """What of a part is added up, and its sparse gradients, which are not."""
  found = [g for g in part.gradients if g is not None]
  sparse = [g for g in found if isinstance(g, tf.IndexedSlices)]
  dense = [g for g in found if not isinstance(g, tf.IndexedSlices)]
  return (part.loss, part.scalars, dense), sparse


def _joined_rows(first: tf.IndexedSlices, num_parts: int):
  """Arrays that take the values and the indices of every part."""
  return tuple(
    tf.TensorArray(
      tensor.dtype,
      num_parts,
      infer_shape=False,
      element_shape=[None, *tensor.shape[1:]],
    ).write(0, tensor)
    for tensor in (first.values, first.indices)
  )


def _dense(gradient):
  """A gradient as a tensor; rows of a repeated id are added up."""
  return gradient if gradient is None else tf.convert_to_tensor(gradient)


class LossScale:
  """Scales the loss so that float16 holds its gradients.

  Small ones would be 0 without it. The scale is halved when they are too
  large, and doubled after many steps in which they were not (Micikevicius et
  al. 2018). It is saved with the model.

  Attributes:
    value: float32 [], the scale of this step.
  """

  def __init__(self, initial: float = 2.0**15, num_good_steps: int = 2000):
    """Makes its variables.

    Args:
      initial: the first scale.
      num_good_steps: finite steps in a row before it is doubled.
    """
    self._num_good_steps = num_good_steps
    with tf.variable_scope("loss_scale"):
      self._scale, self._good_steps = (
        tf.get_variable(name, initializer=value, trainable=False)
        for name, value in (("scale", initial), ("good_steps", 0))
      )
    self.value = tf.identity(self._scale)

  def guard(self, norm, update_fn: Callable[[], Any]):
    """Runs an update if the gradients are finite, then sets the next scale.

    Args:
      norm: float32 [], of the gradients.
      update_fn: makes the update.

    Returns:
      An operation.
    """
    is_finite = tf.math.is_finite(norm)
    with tf.control_dependencies([is_finite]):
      update = tf.cond(is_finite, lambda: tf.group(update_fn()), tf.no_op)
    good_steps = self._good_steps + 1
    is_due = good_steps >= self._num_good_steps
    grown = tf.where(is_due, self.value * 2.0, self.value)
    return tf.group(
      update,
      self._scale.assign(
        tf.where(is_finite, grown, tf.maximum(self.value / 2.0, 1.0))
      ),
      self._good_steps.assign(
        tf.where(is_finite & ~is_due, good_steps, tf.zeros_like(good_steps))
      ),
    )


# The update


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
    gradient_scale=1.0,
    compiles: bool = False,
    on_cpu: bool = False,
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
      gradient_scale: a number or float [], by which gradients are multiplied.
      compiles: whether XLA makes one pass over memory of the update of a
        weight. Not for a TPU, which compiles all.
      on_cpu: whether the moments are kept, and the update computed, in the
        host's memory and not on a GPU.
    """
    super().__init__(use_locking=False, name=name)
    self.learning_rate = learning_rate
    self.weight_decay_rate = weight_decay_rate
    self.beta_1 = beta_1
    self.beta_2 = beta_2
    self.epsilon = epsilon
    self.exclude_from_weight_decay = exclude_from_weight_decay
    self.bias_correction = bias_correction
    self.gradient_scale = gradient_scale
    self.compiles = compiles
    self.device = "/cpu:0" if on_cpu else ""  # "" is wherever it would be

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
      with tf.device(self.device):
        variables = [
          weight,
          *(self._moment(weight, slot) for slot in ("adam_m", "adam_v")),
        ]
        constants = {
          "weight_decay_rate": self._decay_rate(weight),
          "beta_1": self.beta_1,
          "beta_2": self.beta_2,
          "epsilon": self.epsilon,
        }
        inputs = [
          _dense(gradient),
          tf.convert_to_tensor(self.gradient_scale, tf.float32),
          tf.convert_to_tensor(self.learning_rate, tf.float32),
          self._steps(),
        ]
        if self.compiles:
          updates.append(_compiled_update(**constants)(*variables, *inputs))
        else:
          values = _updated(*variables, *inputs, **constants)
          updates += [v.assign(new) for v, new in zip(variables, values)]
    return tf.group(*updates, name=name)

  def _steps(self):
    """How many steps the moments hold, if they are to be corrected by it."""
    if not self.bias_correction:
      return None
    return tf.cast(tf.train.get_or_create_global_step() + 1, tf.float32)

  def _moment(self, weight, slot: str):
    return tf.get_variable(
      f"{weight.op.name}/{slot}",
      weight.shape,
      tf.float32,
      tf.zeros_initializer(),
      trainable=False,
    )

  def _decay_rate(self, weight) -> float:
    excluded = self.exclude_from_weight_decay or ()
    if any(re.search(pattern, weight.op.name) for pattern in excluded):
      return 0.0
    return self.weight_decay_rate


def _updated(
  weight,
  m,
  v,
  gradient,
  gradient_scale,
  learning_rate,
  steps,
  weight_decay_rate: float,
  beta_1: float,
  beta_2: float,
  epsilon: float,
):
  """A weight and its moments after a step: three tensors of its shape."""
  gradient = gradient * gradient_scale
  m = beta_1 * m + (1.0 - beta_1) * gradient
  v = beta_2 * v + (1.0 - beta_2) * tf.square(gradient)
  mean, square = m, v
  if steps is not None:
    mean = m / (1.0 - beta_1**steps)
    square = v / (1.0 - beta_2**steps)
  step = mean / (tf.sqrt(square) + epsilon)
  if weight_decay_rate:
    step += weight_decay_rate * weight
  return weight - learning_rate * step, m, v


@functools.cache
def _compiled_update(**constants) -> Callable:
  """A function of what `_updated` takes that assigns what it gives.

  It reads and writes each variable once, in place; variables of one shape
  share what XLA has compiled.
  """

  @tf.function(jit_compile=True, autograph=False)
  def update(weight, m, v, *inputs):
    values = _updated(weight, m, v, *inputs, **constants)
    for variable, value in zip((weight, m, v), values):
      variable.assign(value)
    return tf.constant(0)  # something to wait for

  return update
