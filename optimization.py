"""Optimizers, learning-rate schedules, gradient clipping: one training step.

`create_optimizer` is the entry point of google-research/bert. `training_step`
is the same step with `StepOptions`: LAMB, other schedules, frozen layers,
layer-wise learning-rate decay. The file needs only TensorFlow and works in any
TensorFlow 1 style graph, with reference or resource variables.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf


class Gradients(NamedTuple):
  """Loss, metrics and gradients of a batch.

  Attributes:
    loss: float32 [], mean over the batch.
    scalars: further means over the batch, float32 [] by name.
    gradients: one per variable: a tensor, `tf.IndexedSlices`, or None; with
      loss scaling, gradients of the scaled loss. Those of variables with a
      16-bit copy, see `weight_copies`, have the dtype of the copy.
    variables: the trainable variables that are not frozen.
  """

  loss: Any
  scalars: dict[str, Any]
  gradients: list[Any]
  variables: list[Any]


class Frozen(NamedTuple):
  """Frozen weights: not trained, without gradients and moments.

  Attributes:
    num_layers: number of frozen encoder layers, counted from the lowest.
    embeddings: whether the embeddings and their layer norm are frozen.
  """

  num_layers: int = 0
  embeddings: bool = False


# Weights with one of these in their names are not pulled towards 0.
NO_WEIGHT_DECAY = ["LayerNorm", "layer_norm", "bias"]


class StepOptions(NamedTuple):
  """Options of a training step; the defaults are those of BERT.

  Attributes:
    optimizer: a key of `OPTIMIZERS`.
    weight_decay: weight decay rate; None for the optimizer's default.
    bias_correction: whether adamw corrects the bias of its moments; adam and
      lamb always do.
    beta_1: decay rate of the first moment.
    beta_2: decay rate of the second moment.
    epsilon: added to the root of the second moment.
    schedule: a key of `SCHEDULES`.
    power: exponent of the polynomial schedule.
    decay_proportion: see `learning_rate`.
    layer_decay: layer-wise learning-rate decay, see `rate_factors`.
    clip_norm: maximum global norm of the gradients; 0 or None for no clipping.
    jit_compile: whether XLA compiles the weight update; not for a TPU.
    jit_norm: whether XLA compiles the norm of the gradients, for one GPU: each
      is read once, without a copy in float32.
  """

  optimizer: str = "adamw"
  weight_decay: float | None = None
  bias_correction: bool = False
  beta_1: float = 0.9
  beta_2: float = 0.999
  epsilon: float = 1e-6
  schedule: str = "linear"
  power: float = 1.0
  decay_proportion: float = 0.1
  layer_decay: float = 1.0
  clip_norm: float | None = 1.0
  jit_compile: bool = False
  jit_norm: bool = False


class TrainingStep(NamedTuple):
  """One training step and its metrics.

  Attributes:
    train_op: applies the gradients, then increments the global step.
    learning_rate: float32 [], without layer-wise decay.
    gradient_norm: float32 [], global norm before clipping.
    loss: float32 [], mean over the global batch of all replicas.
    scalars: further means over the global batch, float32 [] by name.
  """

  train_op: Any
  learning_rate: Any
  gradient_norm: Any
  loss: Any
  scalars: dict[str, Any]


def create_optimizer(
  loss,
  init_lr: float,
  num_train_steps: int,
  num_warmup_steps: int | None,
  use_tpu: bool,
):
  """Builds the op of one step that minimizes a loss, see `training_step`.

  Args:
    loss: float [], mean over the replica's batch.
    init_lr: peak learning rate.
    num_train_steps: steps until the learning rate is 0.
    num_warmup_steps: steps of linear warm-up; None or 0 for none.
    use_tpu: whether the replicas are TPU cores.

  Returns:
    The op.
  """
  return training_step(
    gradients_of(loss), init_lr, num_train_steps, num_warmup_steps, use_tpu
  ).train_op


def training_step(
  gradients: Gradients,
  init_lr: float,
  num_train_steps: int,
  num_warmup_steps: int | None,
  use_tpu: bool = False,
  options: StepOptions | None = None,
  loss_scale=None,
  progress=None,
) -> TrainingStep:
  """Builds the graph of one optimizer step.

  Replicas that train together, TPU cores or those of a `tf.distribute`
  strategy, take one step with the mean of their gradients: each must have the
  same number of examples.

  Args:
    gradients: of the replica's batch, see `gradients_of`.
    init_lr: peak learning rate.
    num_train_steps: steps until the learning rate is 0.
    num_warmup_steps: steps of linear warm-up; None or 0 for none.
    use_tpu: whether the replicas are TPU cores.
    options: None for `StepOptions()`.
    loss_scale: for float16: an object with the loss scale `value`, float32 [],
      and `adapt(norm)`, which returns an op that sets the next loss scale; None
      for 1. A step whose gradient norm is NaN or Inf then counts as a step but
      changes no weight.
    progress: amount done of what the schedule runs over, a number []; the steps
      of schedule and warm-up count units of it. None for the global step.

  Raises:
    ValueError: the schedule or optimizer does not exist.
  """
  options = options or StepOptions()
  global_step = tf.train.get_or_create_global_step()
  rate = learning_rate(
    global_step if progress is None else progress,
    init_lr,
    num_train_steps,
    num_warmup_steps,
    options.schedule,
    options.power,
    options.decay_proportion,
  )
  mean, norm = mean_over_replicas(gradients, use_tpu, options.jit_norm)
  if loss_scale:
    norm /= loss_scale.value
  optimizer = _make_optimizer(
    rate, _gradient_scale(norm, options.clip_norm, loss_scale), options
  )
  update = optimizer.apply_gradients(
    zip(mean.gradients, mean.variables),
    is_finite=tf.math.is_finite(norm) if loss_scale else None,
  )
  if loss_scale:
    with tf.control_dependencies([update]):
      update = loss_scale.adapt(norm)
  # The update reads the global step, so it must finish before the increment.
  with tf.control_dependencies([update]):
    train_op = global_step.assign_add(1, read_value=False)
  return TrainingStep(train_op, rate, norm, mean.loss, mean.scalars)


# Gradients


def gradients_of(
  loss,
  scalars: Mapping[str, Any] | None = None,
  factor=None,
  frozen: Frozen | None = None,
) -> Gradients:
  """Gradients of `loss` w.r.t. the unfrozen trainable variables.

  Args:
    loss: float [].
    scalars: see `Gradients`.
    factor: loss scale, float []; None for 1.
    frozen: weights without gradients; None for none.

  Raises:
    ValueError: the model does not have the layers to freeze.
  """
  variables = trained_variables(tf.trainable_variables(), frozen or Frozen())
  scaled = loss if factor is None else loss * factor
  copies = weight_copies()
  gradients = tf.gradients(
    scaled, [copies.get(name_of(v), v) for v in variables]
  )
  return Gradients(loss, dict(scalars or {}), gradients, variables)


def in_float32(gradient):
  """A gradient that was computed in 16 bits, as float32."""
  if gradient is None or gradient.dtype == tf.float32:
    return gradient
  return tf.cast(gradient, tf.float32)


def _dense(gradient):
  """Converts a gradient to a dense tensor; rows of a repeated id are summed."""
  return tf.convert_to_tensor(gradient)


def _gradient_scale(norm, clip_norm, loss_scale):
  """Factor that clips gradients and undoes the loss scale.

  `norm` is the global norm of the unscaled gradients. Returns float32 [], or
  None for 1.
  """
  if not clip_norm:
    return 1.0 / loss_scale.value if loss_scale else None
  # The last term makes the factor NaN if the norm is NaN or Inf.
  scale = clip_norm * tf.minimum(1.0 / norm, 1.0 / clip_norm) + (norm - norm)
  return scale / loss_scale.value if loss_scale else scale


# 16-bit copies of weights

_COPIES = "weight_copies"


def weight_copy(weight, dtype):
  """A variable that is kept equal to a weight, rounded to a 16-bit dtype.

  A model that multiplies by it casts no weight in its steps: the update writes
  weight and copy in one pass. Checkpoints do not contain it.

  Args:
    weight: a float32 variable, whose updates are all those of
      `AdamWeightDecayOptimizer`.
    dtype: bfloat16 or float16.
  """
  name = f"{name_of(weight)}/{dtype.name}"
  for copy in tf.get_collection(_COPIES):
    if name_of(copy) == name:
      return copy
  with tf.name_scope(None):
    return tf.Variable(
      lambda: tf.cast(weight, dtype),
      trainable=False,
      name=name,
      collections=[tf.GraphKeys.LOCAL_VARIABLES, _COPIES],
    )


def weight_copies() -> dict[str, Any]:
  """The copies of `weight_copy` in this graph, by name of the weight."""
  copies = tf.get_collection(_COPIES)
  return {name_of(copy).rpartition("/")[0]: copy for copy in copies}


# Replicas


def num_replicas(use_tpu: bool = False):
  """Number of replicas that train together: an int; float32 [] on a TPU."""
  if use_tpu:
    return tf.tpu.cross_replica_sum(tf.constant(1.0))
  return tf.distribute.get_replica_context().num_replicas_in_sync


def sum_over_replicas(values, use_tpu: bool = False):
  """Sums values over all replicas that train together.

  Args:
    values: nested structure of tensors.
    use_tpu: whether the replicas are TPU cores.

  Returns:
    The sums, in the same structure.
  """
  if use_tpu:
    return tf.nest.map_structure(tf.tpu.cross_replica_sum, values)
  if num_replicas() == 1:
    return values

  def sum_all(strategy, *values):
    return strategy.extended.batch_reduce_to(
      tf.distribute.ReduceOp.SUM, [(value, value) for value in values]
    )

  # Not the context's own `all_reduce`: that one is differentiable, and to be so
  # looks up variables, which fails in other replicas.
  sums = tf.distribute.get_replica_context().merge_call(
    sum_all, tf.nest.flatten(values)
  )
  return tf.nest.pack_sequence_as(values, sums)


def mean_over_replicas(
  local: Gradients, use_tpu: bool = False, jit_norm: bool = False
) -> tuple[Gradients, Any]:
  """All-reduces per-replica gradients to those of the global batch.

  Args:
    local: gradients of the replica's batch.
    use_tpu: whether the replicas are TPU cores.
    jit_norm: see `StepOptions`; has no effect on several replicas.

  Returns:
    The `Gradients` of the global batch, dense if there are several replicas;
    and their global norm, float32 []. As in google-research/bert, the norm of a
    sparse gradient is that of its rows before those of a repeated id are
    summed.
  """
  count = num_replicas(use_tpu)
  present = [g for g in local.gradients if g is not None]
  if not use_tpu and count == 1:
    norm = _global_norm
    if jit_norm:
      norm = tf.function(norm, jit_compile=True, autograph=False)
    # Only the values of sparse gradients: XLA knows no `IndexedSlices`.
    return local, norm([getattr(g, "values", g) for g in present])
  is_sparse = [isinstance(g, tf.IndexedSlices) for g in present]
  means, squares = sum_over_replicas(
    (
      tf.nest.map_structure(
        lambda value: _dense(value) / count,
        (local.loss, local.scalars, present),
      ),
      [
        tf.nn.l2_loss(g.values / count)
        for g, sparse in zip(present, is_sparse)
        if sparse
      ],
    ),
    use_tpu,
  )
  loss, scalars, present = means
  squares += [
    tf.nn.l2_loss(g) for g, sparse in zip(present, is_sparse) if not sparse
  ]
  norm = tf.sqrt(2.0 * tf.add_n(squares))
  present = iter(present)
  gradients = [None if g is None else next(present) for g in local.gradients]
  return Gradients(loss, scalars, gradients, local.variables), norm


def _global_norm(gradients: Sequence[Any]):
  """Root of the sum of all squares, float32 []."""
  return tf.linalg.global_norm(list(map(in_float32, gradients)))


def _update_on_each_device(update_fn: Callable, variable, arguments):
  """Op that updates variables on every device that has copies of them.

  `update_fn` takes the `arguments` (nested variables and tensors) of one
  device; `variable` is any one of the variables.
  """
  if not tf.distribute.has_strategy():
    return update_fn(arguments)

  def update_all(strategy, arguments):
    return strategy.extended.update(
      variable, lambda _, local: update_fn(local), (arguments,)
    )

  return tf.distribute.get_replica_context().merge_call(
    update_all, (arguments,)
  )


# Frozen layers and layer-wise learning rates

_BELOW_HEADS = re.compile(
  r"\bbert/(?:embeddings(?:_project)?|encoder(?:/layer_(\d+))?)/"
)
_EMBEDDINGS = -1  # the layer below layer 0, with what all layers share


def trained_variables(variables: Iterable[Any], frozen: Frozen) -> list[Any]:
  """Removes the frozen variables, recognized by their names in `modeling`.

  Raises:
    ValueError: the model does not have the layers to freeze.
  """
  layers = [(v, _layer(v)) for v in variables]
  first = _EMBEDDINGS if frozen.embeddings else 0
  frozen_layers = range(first, frozen.num_layers)
  if not set(frozen_layers) <= {layer for _, layer in layers}:
    raise ValueError(f"{frozen}: the model has no such layers")
  return [v for v, layer in layers if layer not in frozen_layers]


def rate_factors(
  variables: Iterable[Any], layer_decay: float
) -> dict[str, float]:
  """Learning-rate factors of layer-wise decay (Howard and Ruder 2018).

  The factor of heads and pooler is 1, that of the top layer `layer_decay`. Each
  lower layer, down to the embeddings, has `layer_decay` times the factor of the
  layer above.

  Args:
    variables: all variables of a model.
    layer_decay: in (0, 1].

  Returns:
    Factors by variable name.

  Raises:
    ValueError: no variable belongs to an encoder.
  """
  layers = {name_of(v): _layer(v) for v in variables}
  encoder = [layer for layer in layers.values() if layer is not None]
  if not encoder:
    raise ValueError(f"layer_decay {layer_decay}: the model has no layers")
  num_layers = 1 + max(encoder)
  return {
    name: 1.0 if layer is None else layer_decay ** (num_layers - layer)
    for name, layer in layers.items()
  }


def name_of(variable) -> str:
  """Checkpoint name of a variable, the same on every replica."""
  return _without_output(variable.name)


def _without_output(name: str) -> str:
  return name.partition(":")[0]


def _layer(variable) -> int | None:
  """Encoder layer of a variable, `_EMBEDDINGS`, or None above the encoder."""
  found = _BELOW_HEADS.search(name_of(variable))
  if not found:
    return None
  return _EMBEDDINGS if found[1] is None else int(found[1])


# Learning-rate schedules

# Fraction of the peak rate, given the fraction of training done, the power and
# the share of the decay.
SCHEDULES: dict[str, Callable] = {
  "linear": lambda done, *_: 1.0 - done,
  "constant": lambda done, *_: tf.ones_like(done),
  "cosine": lambda done, *_: 0.5 * (1.0 + tf.cos(math.pi * done)),
  "polynomial": lambda done, power, _: (1.0 - done) ** power,
  "trapezoidal": lambda done, _, share: tf.minimum((1.0 - done) / share, 1.0),
}


def learning_rate(
  global_step,
  init_lr: float,
  num_train_steps: int,
  num_warmup_steps: int | None,
  schedule: str = "linear",
  power: float = 1.0,
  decay_proportion: float = 0.1,
):
  """Linear warm-up, then a decay computed from step 0.

  With the linear schedule and a tenth of the steps for warm-up, the rate after
  the warm-up is 0.9 of the peak rate, as in BERT.

  Args:
    global_step: integer [], steps done so far.
    init_lr: peak learning rate.
    num_train_steps: steps until the rate is 0, where it stays; `constant` does
      not decay.
    num_warmup_steps: steps of warm-up; None or 0 for none.
    schedule: a key of `SCHEDULES`.
    power: exponent of the polynomial schedule; 1 is linear.
    decay_proportion: share of the steps, the last ones, over which the
      trapezoidal schedule decays from the peak rate.

  Returns:
    float32 [].

  Raises:
    ValueError: the schedule does not exist.
  """
  step = tf.cast(global_step, tf.float32)
  done = tf.minimum(step / float(max(num_train_steps, 1)), 1.0)
  rate = init_lr * _chosen(SCHEDULES, schedule)(done, power, decay_proportion)
  if num_warmup_steps:
    rising = init_lr * (step / float(num_warmup_steps))
    rate = tf.where(step < num_warmup_steps, rising, rate)
  return rate


def _chosen(table: Mapping[str, Any], name: str):
  if name not in table:
    raise ValueError(f"{name!r} is none of {', '.join(table)}")
  return table[name]


# Optimizers


# Arguments of `AdamWeightDecayOptimizer` that distinguish the variants of Adam.
OPTIMIZERS: dict[str, dict[str, Any]] = {
  # Devlin et al. 2019, A.2
  "adamw": {"weight_decay_rate": 0.01},
  # Kingma and Ba 2015
  "adam": {"bias_correction": True},
  # You et al. 2020
  "lamb": {
    "weight_decay_rate": 0.01,
    "bias_correction": True,
    "scales_by_norm": True,
  },
}


def _make_optimizer(rate, gradient_scale, options: StepOptions):
  """Creates the optimizer that the options select."""
  variant = dict(_chosen(OPTIMIZERS, options.optimizer))
  if options.weight_decay is not None:
    variant["weight_decay_rate"] = options.weight_decay
  if options.bias_correction:
    variant["bias_correction"] = True
  factors = None
  if options.layer_decay != 1.0:
    factors = rate_factors(tf.trainable_variables(), options.layer_decay)
  return AdamWeightDecayOptimizer(
    learning_rate=rate,
    beta_1=options.beta_1,
    beta_2=options.beta_2,
    epsilon=options.epsilon,
    exclude_from_weight_decay=NO_WEIGHT_DECAY,
    gradient_scale=gradient_scale,
    jit_compile=options.jit_compile,
    rate_factors=factors,
    **variant,
  )


class AdamWeightDecayOptimizer(tf.train.Optimizer):
  """Adam (Kingma and Ba 2015) with decoupled weight decay, as in BERT.

  Weight decay is added to the update, not to the gradient, so that it does not
  enter the moments (Loshchilov and Hutter 2019). The moments of a variable are
  the variables `NAME/adam_m` and `NAME/adam_v`.

  BERT does not correct the bias of the moments towards their initial zeros.
  The first updates are then several times as large as with correction, and
  fine-tuning on small data sets can fail (Mosbach et al. 2021).
  `bias_correction` avoids that.
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
    jit_compile: bool = False,
    scales_by_norm: bool = False,
    rate_factors: Mapping[str, float] | None = None,
  ):
    """Stores the arguments.

    Args:
      learning_rate: a number or float [].
      weight_decay_rate: each step subtracts this fraction of a weight, times
        the learning rate.
      beta_1: decay rate of the first moment.
      beta_2: decay rate of the second moment.
      epsilon: added to the root of the second moment.
      exclude_from_weight_decay: regular expressions; variables with a match
        anywhere in their names do not decay.
      name: name of the update's operations.
      bias_correction: correct the bias of the moments, by the global step.
      gradient_scale: factor of the gradients, a number or float []; None for 1.
      jit_compile: compile the update by XLA, so that it reads and writes each
        variable once. Not for a TPU, which compiles everything.
      scales_by_norm: scale the update of a variable to the variable's norm, for
        very large batches (LAMB, You et al. 2020). Not applied to variables
        that are excluded from weight decay, or if either norm is 0.
      rate_factors: learning-rate factors by variable name; 1 for other names.
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
    self.jit_compile = jit_compile
    self.scales_by_norm = scales_by_norm
    self.rate_factors = rate_factors or {}
    # Of its own: TensorFlow keeps the graph of a function with the function.
    self._compiled_update = functools.cache(_compiled_update)
    # One initial value per shape, and not three operations per slot.
    self._zeros = functools.cache(lambda *shape: tf.zeros(shape))

  def apply_gradients(
    self, grads_and_vars, global_step=None, name=None, is_finite=None
  ):
    """Op that updates the variables; it does not increment `global_step`.

    Args:
      grads_and_vars: (gradient, variable) pairs; variables without a gradient
        do not change. Under a strategy, gradients of the global batch.
      global_step: not used; the caller increments it.
      name: name of the operation.
      is_finite: bool [], False to skip the update; None to always update.
    """
    pairs = [
      (gradient, weight)
      for gradient, weight in grads_and_vars
      if gradient is not None and weight is not None
    ]
    if not pairs:
      return tf.no_op(name)
    constants = [self._constants(weight) for _, weight in pairs]
    copies = weight_copies()
    copies = [copies.get(name_of(weight)) for _, weight in pairs]
    inputs = [self._inputs(gradient, weight) for gradient, weight in pairs]

    def update(arguments):
      is_finite, inputs = arguments

      def update_all():
        return tf.group(*map(self._update, constants, copies, inputs))

      if is_finite is None:
        return update_all()
      with tf.control_dependencies([is_finite]):
        return tf.group(tf.cond(is_finite, update_all, tf.no_op))

    update = _update_on_each_device(update, pairs[0][1], (is_finite, inputs))
    return tf.group(update, name=name)

  def _do_use_weight_decay(self, param_name: str) -> bool:
    """True if a variable decays; subclasses may override this."""
    return bool(self.weight_decay_rate) and not self._is_excluded(param_name)

  def _get_variable_name(self, param_name: str) -> str:
    """Name of a variable without its output number, ":0"."""
    return _without_output(param_name)

  def _inputs(self, gradient, weight):
    """Positional arguments of `_updated`; weight, m and v are variables."""
    name = self._get_variable_name(weight.name)
    m, v = (
      tf.get_variable(
        f"{name}/{slot}",
        weight.shape,
        tf.float32,
        lambda shape, **_: self._zeros(*shape),
        trainable=False,
      )
      for slot in ("adam_m", "adam_v")
    )
    gradient, scale, steps = _dense(gradient), self.gradient_scale, None
    if scale is not None:
      scale = tf.convert_to_tensor(scale, tf.float32)
    rate = tf.convert_to_tensor(self.learning_rate, tf.float32)
    factor = self.rate_factors.get(name, 1.0)
    if factor != 1.0:
      rate *= factor
    if self.bias_correction:
      steps = tf.cast(tf.train.get_or_create_global_step() + 1, tf.float32)
    return weight, m, v, gradient, scale, rate, steps

  def _constants(self, weight) -> dict[str, Any]:
    """Keyword arguments of `_updated`."""
    name = self._get_variable_name(weight.name)
    decays = self._do_use_weight_decay(name)
    return {
      "weight_decay_rate": self.weight_decay_rate if decays else 0.0,
      "beta_1": self.beta_1,
      "beta_2": self.beta_2,
      "epsilon": self.epsilon,
      "scales_by_norm": self.scales_by_norm and not self._is_excluded(name),
    }

  def _update(self, constants: dict[str, Any], copy, inputs):
    """Op that applies `_updated` to the weight, its copy and its moments."""
    # XLA updates variables in place through their handles; reference variables
    # have no handles.
    if self.jit_compile and all(hasattr(v, "handle") for v in inputs[:3]):
      return self._compiled_update(**constants)(copy, *inputs)
    weight, m, v, *_ = inputs
    new_weight, new_m, new_v = _updated(*inputs, **constants)
    updates = [weight.assign(new_weight), m.assign(new_m), v.assign(new_v)]
    if copy is not None:
      updates.append(copy.assign(tf.cast(new_weight, copy.dtype)))
    return tf.group(*updates)

  def _is_excluded(self, param_name: str) -> bool:
    excluded = self.exclude_from_weight_decay or ()
    return any(re.search(pattern, param_name) for pattern in excluded)


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
  scales_by_norm: bool,
):
  """New values of a weight and its two moments, each of the weight's shape."""
  gradient = in_float32(gradient)
  if gradient_scale is not None:
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
  if scales_by_norm:
    # The ratio is 0 if either norm is 0.
    ratio = tf.math.divide_no_nan(tf.norm(weight), tf.norm(step))
    step *= tf.where(ratio > 0.0, ratio, 1.0)
  return weight - learning_rate * step, m, v


def _compiled_update(**constants) -> Callable:
  """Function that applies `_updated` in place, compiled once per shape."""

  # The function takes handles, not variables: a strategy's copy of a variable
  # would be replaced by the copy that the function was traced with.
  @tf.function(jit_compile=True, autograph=False)
  def update(handles, copies, *inputs):
    read = tf.raw_ops.ReadVariableOp
    variables = [read(resource=handle, dtype=tf.float32) for handle in handles]
    values = _updated(*variables, *inputs, **constants)
    values += tuple(tf.cast(values[0], dtype) for _, dtype in copies)
    for handle, value in zip([*handles, *(h for h, _ in copies)], values):
      tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return tf.constant(0)  # callers need an output to depend on

  return lambda copy, weight, m, v, *inputs: update(
    [weight.handle, m.handle, v.handle],
    [] if copy is None else [(copy.handle, copy.dtype)],
    *inputs,
  )
