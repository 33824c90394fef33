"""How BERT learns: Adam with decoupled weight decay, warm-up, clipping.

`compute_gradients` takes a batch whole or in parts, `training_step` turns
gradients into a step; `create_optimizer` is both under the name and with the
result that existing code expects. `StepOptions` is for other ways to learn.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf


class Gradients(NamedTuple):
  """What a batch says of the weights.

  Attributes:
    loss: float32 [], of the batch.
    scalars: further float32 [] by name, what the loss function told.
    gradients: one for each variable: a tensor, `tf.IndexedSlices`, or None.
      Those of a scaled loss are scaled.
    variables: the trainable variables, but for those that are frozen.
  """

  loss: Any
  scalars: dict[str, Any]
  gradients: list[Any]
  variables: list[Any]


class Frozen(NamedTuple):
  """Which weights stay as they are, by the names that `modeling` gives.

  They get no gradient and keep no moments.

  Attributes:
    num_layers: of the encoder, from the lowest up.
    embeddings: whether those too, with their layer normalisation.
  """

  num_layers: int = 0
  embeddings: bool = False


class StepOptions(NamedTuple):
  """How a step is made, where BERT's own way is not the only one.

  Attributes:
    schedule: a key of `SCHEDULES`.
    power: see `learning_rate`.
    optimizer: a key of `OPTIMIZERS`.
    weight_decay: see `AdamWeightDecayOptimizer`; None for the optimizer's own.
    bias_correction: likewise; an optimizer that corrects does so without.
    beta_1: likewise.
    beta_2: likewise.
    epsilon: likewise.
    clip_norm: gradients whose global norm is larger are scaled down to it; 0
      or None for gradients as they are.
    layer_decay: see `rate_factors`.
    frozen: the weights that stay.
    num_micro_batches: see `compute_gradients`.
    compiles: see `AdamWeightDecayOptimizer`.
    on_cpu: likewise.
    scales_loss: whether there is a `LossScale`, as float16 needs.
  """

  schedule: str = "linear"
  power: float = 1.0
  optimizer: str = "adamw"
  weight_decay: float | None = None
  bias_correction: bool = False
  beta_1: float = 0.9
  beta_2: float = 0.999
  epsilon: float = 1e-6
  clip_norm: float | None = 1.0
  layer_decay: float = 1.0
  frozen: Frozen = Frozen()
  num_micro_batches: int = 1
  compiles: bool = False
  on_cpu: bool = False
  scales_loss: bool = False


class TrainingStep(NamedTuple):
  """One step of training, and what it can tell of itself.

  Attributes:
    train_op: applies the gradients, then counts the step.
    learning_rate: float32 [], that of this step, for the highest weights.
    gradient_norm: float32 [], before clipping; what clipping goes by.
    loss: float32 [], of the whole batch, over all replicas.
    scalars: likewise what else was told, by name.
  """

  train_op: Any
  learning_rate: Any
  gradient_norm: Any
  loss: Any
  scalars: dict[str, Any]


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
  options: StepOptions | None = None,
  loss_scale: LossScale | None = None,
) -> TrainingStep:
  """Builds the graph of one step down the gradients.

  Where replicas train together, on TPU cores or in a `tf.distribute` strategy,
  the step is that of all their examples: each takes the same number of them.

  Args:
    gradients: of `compute_gradients` or `gradients_of`.
    init_lr: highest learning rate.
    num_train_steps: steps until the rate is 0.
    num_warmup_steps: steps in which it rises from 0; None or 0 for none.
    use_tpu: whether the replicas are TPU cores, not those of a strategy.
    options: how else to make it; None for `StepOptions()`.
    loss_scale: by which the gradients are scaled; a step in which they are not
      finite is counted, and moves no weight.

  Returns:
    A `TrainingStep`.

  Raises:
    ValueError: there is no such schedule or optimizer.
  """
  options = options or StepOptions()
  global_step = tf.train.get_or_create_global_step()
  rate = learning_rate(
    global_step,
    init_lr,
    num_train_steps,
    num_warmup_steps,
    options.schedule,
    options.power,
  )
  whole, norm = mean_over_replicas(gradients, use_tpu)
  if loss_scale:
    norm /= loss_scale.value
  optimizer = _make_optimizer(
    rate, _gradient_scale(norm, options.clip_norm, loss_scale), options
  )
  update = optimizer.apply_gradients(
    zip(whole.gradients, whole.variables),
    is_finite=tf.math.is_finite(norm) if loss_scale else None,
  )
  if loss_scale:
    with tf.control_dependencies([update]):
      update = loss_scale.adapt(norm)
  # The rate is that of the step before it is counted: the update, which reads
  # the step, comes first.
  with tf.control_dependencies([update]):
    train_op = global_step.assign_add(1, read_value=False)
  return TrainingStep(train_op, rate, norm, whole.loss, whole.scalars)


# Gradients


def gradients_of(
  loss,
  scalars: Mapping[str, Any] | None = None,
  factor=None,
  frozen: Frozen | None = None,
) -> Gradients:
  """Those of the trainable variables that are not frozen.

  Args:
    loss: float [].
    scalars: see `Gradients`.
    factor: float [] that scales them; None for 1.
    frozen: the weights that stay; None for none.

  Returns:
    The `Gradients`.

  Raises:
    ValueError: what is to be frozen is not there.
  """
  variables = trained_variables(tf.trainable_variables(), frozen or Frozen())
  scaled = loss if factor is None else loss * factor
  return Gradients(
    loss, dict(scalars or {}), tf.gradients(scaled, variables), variables
  )


def compute_gradients(
  loss_fn: Callable[[dict[str, Any], Any], tuple[Any, dict[str, Any]]],
  batch: Mapping[str, Any],
  num_micro_batches: int = 1,
  loss_scale: LossScale | None = None,
  frozen: Frozen | None = None,
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
    frozen: the weights that stay; None for none.

  Returns:
    The `Gradients`.

  Raises:
    ValueError: what is to be frozen is not there.
  """
  factor = loss_scale.value if loss_scale else None
  if num_micro_batches == 1:
    loss, scalars = loss_fn(dict(batch), tf.constant(0))
    return gradients_of(loss, scalars, factor, frozen)

  parts = {
    name: tf.reshape(
      tensor,
      tf.concat([[num_micro_batches, -1], tf.shape(tensor)[1:]], axis=0),
    )
    for name, tensor in batch.items()
  }

  def compute_part(index):
    # Not by rows from one number to another: a TPU has to know how many.
    part = {name: tensor[index] for name, tensor in parts.items()}
    loss, scalars = loss_fn(part, index)
    shares = {n: value / num_micro_batches for n, value in scalars.items()}
    return gradients_of(loss / num_micro_batches, shares, factor, frozen)

  return _sum_parts(compute_part, num_micro_batches)


def _sum_parts(
  compute_part: Callable[[Any], Gradients], num_parts: int
) -> Gradients:
  """Computes parts by their number, in a loop, and adds them up."""
  # The first part, outside the loop, makes the variables and shows what there
  # is to add up.
  first = compute_part(tf.constant(0))
  sums, sparse = _split(first)
  rows = [_joined_rows(gradient, num_parts) for gradient in sparse]

  def add_part(index, sums, rows):
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      more, sparse = _split(compute_part(index))
    sums = tf.nest.map_structure(tf.add, sums, more)
    rows = [
      (values.write(index, g.values), indices.write(index, g.indices))
      for (values, indices), g in zip(rows, sparse)
    ]
    return index + 1, sums, rows

  _, sums, rows = tf.while_loop(
    lambda index, *_: index < num_parts,
    add_part,
    (tf.constant(1), sums, rows),
    parallel_iterations=1,
  )
  return _unsplit(first, sums, rows)


def _split(part: Gradients):
  """What of a part is added up, and its sparse gradients, which are not."""
  found = [g for g in part.gradients if g is not None]
  sparse = [g for g in found if isinstance(g, tf.IndexedSlices)]
  dense = [g for g in found if not isinstance(g, tf.IndexedSlices)]
  return (part.loss, part.scalars, dense), sparse


def _unsplit(first: Gradients, sums, rows) -> Gradients:
  """What `_split` took apart, of all parts; the first shows what is where."""
  loss, scalars, dense = sums
  dense, rows = iter(dense), iter(rows)
  gradients = []
  for gradient in first.gradients:
    if isinstance(gradient, tf.IndexedSlices):
      values, indices = next(rows)
      gradient = tf.IndexedSlices(
        values.concat(), indices.concat(), gradient.dense_shape
      )
    elif gradient is not None:
      gradient = next(dense)
    gradients.append(gradient)
  return Gradients(loss, scalars, gradients, first.variables)


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


# Replicas


def sum_over_replicas(values, use_tpu: bool = False):
  """Adds values up over all replicas that train together.

  Args:
    values: tensors, nested in any way.
    use_tpu: whether the replicas are TPU cores, not those of a strategy.

  Returns:
    Their sums, nested likewise.
  """
  if use_tpu:
    return tf.nest.map_structure(tf.tpu.cross_replica_sum, values)
  if num_replicas() == 1:
    return values

  def add_up(strategy, *values):
    return strategy.extended.batch_reduce_to(
      tf.distribute.ReduceOp.SUM, [(value, value) for value in values]
    )

  # The context's own `all_reduce` can be differentiated, for which it looks for
  # variables that other replicas do not find.
  sums = tf.distribute.get_replica_context().merge_call(
    add_up, tf.nest.flatten(values)
  )
  return tf.nest.pack_sequence_as(values, sums)


def num_replicas(use_tpu: bool = False):
  """How many replicas train together: a number, float32 [] on a TPU."""
  if use_tpu:
    return tf.tpu.cross_replica_sum(tf.constant(1.0))
  return tf.distribute.get_replica_context().num_replicas_in_sync


def replica_number():
  """Which of a strategy's replicas this is, from 0: int64 []."""
  number = tf.distribute.get_replica_context().replica_id_in_sync_group
  return tf.cast(number, tf.int64)


def mean_over_replicas(own: Gradients, use_tpu: bool = False):
  """Makes of what each replica has what the whole batch says.

  There is one exchange, of all at once, however many parts a batch is taken in.

  Args:
    own: of the replica.
    use_tpu: see `sum_over_replicas`.

  Returns:
    The `Gradients`, all of them dense if there are replicas; and their global
    norm, float32 [], which is that of the gradients as they came: where an
    embedding's are sparse, rows of a repeated id count one by one, not as
    their sum.
  """
  count = num_replicas(use_tpu)
  if not use_tpu and count == 1:
    return own, tf.linalg.global_norm(own.gradients)
  (loss, scalars, dense), sparse = _split(own)
  shares = tf.nest.map_structure(
    lambda value: value / count,
    (loss, scalars, dense, [_dense(gradient) for gradient in sparse]),
  )
  squares = [tf.nn.l2_loss(g.values / count) for g in sparse]
  (loss, scalars, dense, made_dense), squares = sum_over_replicas(
    (shares, squares), use_tpu
  )
  squares += [tf.nn.l2_loss(gradient) for gradient in dense]
  norm = tf.sqrt(2.0 * tf.add_n(squares))
  dense, made_dense = iter(dense), iter(made_dense)
  gradients = [
    g
    if g is None
    else next(made_dense if isinstance(g, tf.IndexedSlices) else dense)
    for g in own.gradients
  ]
  return Gradients(loss, scalars, gradients, own.variables), norm


def _on_each_device(update_fn: Callable, variable, arguments):
  """Makes a change of variables on every device that has copies of them.

  Args:
    update_fn: makes it, of the arguments that are one device's.
    variable: any of them.
    arguments: variables and tensors of the replica, nested in any way.

  Returns:
    An operation.
  """
  if not tf.distribute.has_strategy():
    return update_fn(arguments)

  def update_all(strategy, arguments):
    return strategy.extended.update(
      variable, lambda _, own: update_fn(own), (arguments,)
    )

  return tf.distribute.get_replica_context().merge_call(
    update_all, (arguments,)
  )


def _dense(gradient):
  """A gradient as a tensor; rows of a repeated id are added up."""
  return tf.convert_to_tensor(gradient)


def _scaled(gradient, scale):
  """A dense gradient times a number; None for 1."""
  return gradient if scale is None else gradient * scale


def _gradient_scale(norm, clip_norm, loss_scale: LossScale | None):
  """What clips gradients of a norm and takes the loss's scale off them.

  Args:
    norm: float32 [], without the loss's scale.
    clip_norm: see `StepOptions`.
    loss_scale: or None.

  Returns:
    float32 [], or None where gradients stay as they are.
  """
  if not clip_norm:
    return 1.0 / loss_scale.value if loss_scale else None
  # The last term makes all of it NaN where the norm is not finite.
  scale = clip_norm * tf.minimum(1.0 / norm, 1.0 / clip_norm) + (norm - norm)
  return scale / loss_scale.value if loss_scale else scale


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
        tf.get_variable(
          name,
          initializer=value,
          trainable=False,
          aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        for name, value in (("scale", initial), ("good_steps", 0))
      )
    self.value = tf.identity(self._scale)

  def adapt(self, norm):
    """Sets the scale of the next step.

    Args:
      norm: float32 [], of the gradients.

    Returns:
      An operation.
    """
    is_finite = tf.math.is_finite(norm)
    good_steps = self._good_steps + 1
    is_due = good_steps >= self._num_good_steps
    grown = tf.where(is_due, self.value * 2.0, self.value)
    return tf.group(
      self._scale.assign(
        tf.where(is_finite, grown, tf.maximum(self.value / 2.0, 1.0))
      ),
      self._good_steps.assign(
        tf.where(is_finite & ~is_due, good_steps, tf.zeros_like(good_steps))
      ),
    )


# Which weights learn, and how fast

_BELOW_HEADS = re.compile(r"\bbert/(?:embeddings|encoder/layer_(\d+))/")
_EMBEDDINGS = -1  # the layer below the first


def trained_variables(variables: Iterable[Any], frozen: Frozen) -> list[Any]:
  """Those that are not frozen.

  Args:
    variables: of a model.
    frozen: the weights that stay.

  Returns:
    Some of the variables, in their order.

  Raises:
    ValueError: what is to be frozen is not there.
  """
  layers = [(v, _layer(v)) for v in variables]
  first = _EMBEDDINGS if frozen.embeddings else 0
  stays = range(first, frozen.num_layers)
  if not set(stays) <= {layer for _, layer in layers}:
    raise ValueError(f"{frozen}: the model has no such layers")
  return [v for v, layer in layers if layer not in stays]


def rate_factors(
  variables: Iterable[Any], layer_decay: float
) -> dict[str, float]:
  """By what each weight's learning rate is multiplied: less, further down.

  What is low in the model is general, and is to change the least (Howard and
  Ruder 2018). Heads and pooler have 1, the top layer `layer_decay`, each one
  below it `layer_decay` times that of the one above, the embeddings least.

  Args:
    variables: of a whole model.
    layer_decay: in (0, 1]; 1 for the same rate everywhere.

  Returns:
    Factors by variable name.
  """
  layers = {name_of(v): _layer(v) for v in variables}
  encoder = [layer for layer in layers.values() if layer is not None]
  num_layers = 1 + max(encoder, default=_EMBEDDINGS)
  return {
    name: 1.0 if layer is None else layer_decay ** (num_layers - layer)
    for name, layer in layers.items()
  }


def name_of(variable) -> str:
  """The variable's checkpoint name, the same on every replica."""
  return _without_output(variable.name)


def _without_output(name: str) -> str:
  return name.partition(":")[0]


def _layer(variable) -> int | None:
  """Number of the encoder layer, _EMBEDDINGS, or None for what is above."""
  found = _BELOW_HEADS.search(name_of(variable))
  if not found:
    return None
  return _EMBEDDINGS if found[1] is None else int(found[1])


# The schedule

# Shares of the highest rate, by the share of training that is done, and power.
SCHEDULES: dict[str, Callable] = {
  "linear": lambda done, _: 1.0 - done,
  "constant": lambda done, _: tf.ones_like(done),
  "cosine": lambda done, _: 0.5 * (1.0 + tf.cos(math.pi * done)),
  "polynomial": lambda done, power: (1.0 - done) ** power,
}


def learning_rate(
  global_step,
  init_lr: float,
  num_train_steps: int,
  num_warmup_steps: int | None,
  schedule: str = "linear",
  power: float = 1.0,
):
  """Linear rise over the warm-up, then the fall that began at step 0.

  All schedules fall from step 0, as BERT's does, and the warm-up hides the
  first part of it: after a tenth of training, a linear rate goes on at 0.9 of
  the highest, a cosine at 0.98. So one differs from another in shape alone.

  Args:
    global_step: integer [], steps done so far.
    init_lr: the highest rate.
    num_train_steps: steps until 0, where the rate stays; `constant` knows no
      end.
    num_warmup_steps: steps of the rise; None or 0 for none.
    schedule: a key of `SCHEDULES`.
    power: of what is left of training, for `polynomial`; 1 is linear.

  Returns:
    float32 [].

  Raises:
    ValueError: there is no such schedule.
  """
  step = tf.cast(global_step, tf.float32)
  done = tf.minimum(step / float(max(num_train_steps, 1)), 1.0)
  rate = init_lr * _chosen(SCHEDULES, schedule)(done, power)
  if num_warmup_steps:
    rising = init_lr * (step / float(num_warmup_steps))
    rate = tf.where(step < num_warmup_steps, rising, rate)
  return rate


def _chosen(table: Mapping[str, Any], name: str):
  if name not in table:
    raise ValueError(f"{name!r} is none of {', '.join(table)}")
  return table[name]


# The update


class AdamKind(NamedTuple):
  """What tells one optimizer from another, all of them being kinds of Adam.

  Attributes:
    weight_decay: see `AdamWeightDecayOptimizer`.
    bias_correction: likewise.
    scales_by_norm: likewise.
  """

  weight_decay: float = 0.0
  bias_correction: bool = False
  scales_by_norm: bool = False


OPTIMIZERS = {
  "adamw": AdamKind(weight_decay=0.01),  # Devlin et al. 2019, A.2
  "adam": AdamKind(bias_correction=True),  # Kingma and Ba 2015
  "lamb": AdamKind(  # You et al. 2020
    weight_decay=0.01, bias_correction=True, scales_by_norm=True
  ),
}


def _make_optimizer(rate, gradient_scale, options: StepOptions):
  """The one that is chosen by name, with what is asked of it."""
  kind = _chosen(OPTIMIZERS, options.optimizer)
  decay = options.weight_decay
  factors = None
  if options.layer_decay != 1.0:
    factors = rate_factors(tf.trainable_variables(), options.layer_decay)
  return AdamWeightDecayOptimizer(
    learning_rate=rate,
    weight_decay_rate=kind.weight_decay if decay is None else decay,
    beta_1=options.beta_1,
    beta_2=options.beta_2,
    epsilon=options.epsilon,
    exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    bias_correction=kind.bias_correction or options.bias_correction,
    gradient_scale=gradient_scale,
    compiles=options.compiles,
    on_cpu=options.on_cpu,
    scales_by_norm=kind.scales_by_norm,
    rate_factors=factors,
  )


class AdamWeightDecayOptimizer(tf.train.Optimizer):
  """Adam (Kingma and Ba 2015) with decoupled weight decay, as BERT has it.

  The decay is added to the step and not to the gradient, so that it does not
  pass through the moments (Loshchilov and Hutter 2019). The moments live in
  variables named after the weight: `NAME/adam_m` and `NAME/adam_v`.

  BERT does not correct them for their start at zero, which makes early steps
  several times as long as the learning rate says; on small data sets a run can
  fail by it (Mosbach et al. 2021). `bias_correction` is for those.

  With `scales_by_norm`, for very large batches, a weight moves by the learning
  rate times its own norm, whatever the length of the step (LAMB, You et al.
  2020).
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
    scales_by_norm: bool = False,
    rate_factors: Mapping[str, float] | None = None,
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
      gradient_scale: a number or float [], by which gradients are multiplied;
        None for gradients as they are.
      compiles: whether XLA makes one pass over memory of the update of a
        weight. Not for a TPU, which compiles all.
      on_cpu: whether the moments are kept, and the update computed, in the
        host's memory and not on a GPU.
      scales_by_norm: whether a weight's step is scaled to the weight's norm. It
        is not where either norm is 0, nor for weights that are excluded from
        weight decay.
      rate_factors: numbers by which the learning rate is multiplied, by the
        weight's name; None, or a name that is not there, for 1.
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
    self.scales_by_norm = scales_by_norm
    self.rate_factors = rate_factors or {}

  def apply_gradients(
    self, grads_and_vars, global_step=None, name=None, is_finite=None
  ):
    """Moves each weight by its gradient; `global_step` is not counted on.

    Args:
      grads_and_vars: (gradient, variable) pairs; a pair with None is passed
        over, and that weight stays as it is. In a strategy the gradients are
        those of all replicas.
      global_step: not used; whoever calls counts the steps.
      name: of the operation.
      is_finite: bool [], whether to move any; None for always.

    Returns:
      An operation.
    """
    pairs = [
      (gradient, weight)
      for gradient, weight in grads_and_vars
      if gradient is not None and weight is not None
    ]
    if not pairs:
      return tf.no_op(name)
    constants = [self._constants(weight) for _, weight in pairs]
    with tf.device(self.device):
      inputs = [
        (
          weight,
          self._moment(weight, "adam_m"),
          self._moment(weight, "adam_v"),
          _dense(gradient),
          self._scale(),
          self._rate(weight),
          self._steps(),
        )
        for gradient, weight in pairs
      ]

    def update(arguments):
      is_finite, inputs = arguments

      def update_all():
        with tf.device(self.device):
          return tf.group(*map(self._update, constants, inputs))

      if is_finite is None:
        return update_all()
      with tf.control_dependencies([is_finite]):
        return tf.group(tf.cond(is_finite, update_all, tf.no_op))

    update = _on_each_device(update, pairs[0][1], (is_finite, inputs))
    return tf.group(update, name=name)

  def _do_use_weight_decay(self, param_name: str) -> bool:
    """Whether a weight decays; subclasses may override this."""
    return bool(self.weight_decay_rate) and not self._is_excluded(param_name)

  def _get_variable_name(self, param_name: str) -> str:
    """The name of a variable without the output number, ":0"."""
    return _without_output(param_name)

  def _constants(self, weight) -> dict[str, Any]:
    """What `_updated` takes that never changes."""
    name = self._get_variable_name(weight.name)
    decays = self._do_use_weight_decay(name)
    return {
      "weight_decay_rate": self.weight_decay_rate if decays else 0.0,
      "beta_1": self.beta_1,
      "beta_2": self.beta_2,
      "epsilon": self.epsilon,
      "scales_by_norm": self.scales_by_norm and not self._is_excluded(name),
    }

  def _update(self, constants: dict[str, Any], inputs):
    """An operation that makes of what `_updated` takes what it gives."""
    # XLA updates variables in place by their handles, which reference variables
    # do not have.
    if self.compiles and all(hasattr(v, "handle") for v in inputs[:3]):
      return _compiled_update(**constants)(*inputs)
    values = _updated(*inputs, **constants)
    return tf.group(*(v.assign(new) for v, new in zip(inputs, values)))

  def _scale(self):
    if self.gradient_scale is None:
      return None
    return tf.convert_to_tensor(self.gradient_scale, tf.float32)

  def _rate(self, weight):
    rate = tf.convert_to_tensor(self.learning_rate, tf.float32)
    name = self._get_variable_name(weight.name)
    factor = self.rate_factors.get(name, 1.0)
    return rate if factor == 1.0 else rate * factor

  def _steps(self):
    """How many steps the moments hold, if they are to be corrected by it."""
    if not self.bias_correction:
      return None
    return tf.cast(tf.train.get_or_create_global_step() + 1, tf.float32)

  def _moment(self, weight, slot: str):
    return tf.get_variable(
      f"{self._get_variable_name(weight.name)}/{slot}",
      weight.shape,
      tf.float32,
      tf.zeros_initializer(),
      trainable=False,
    )

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
  """A weight and its moments after a step: three tensors of its shape."""
  gradient = _scaled(gradient, gradient_scale)
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
    ratio = tf.math.divide_no_nan(tf.norm(weight), tf.norm(step))
    step *= tf.where(ratio > 0.0, ratio, 1.0)  # 0 where either norm is
  return weight - learning_rate * step, m, v


@functools.cache
def _compiled_update(**constants) -> Callable:
  """A function of what `_updated` takes that assigns what it gives.

  It reads and writes each variable once, in place; variables of one shape
  share what XLA has compiled.
  """

  # Of variables it takes the handles: a strategy's copies, given themselves,
  # are taken for those that the function was made with.
  @tf.function(jit_compile=True, autograph=False)
  def update(handles, *inputs):
    read = tf.raw_ops.ReadVariableOp
    variables = [read(resource=of, dtype=tf.float32) for of in handles]
    values = _updated(*variables, *inputs, **constants)
    for handle, value in zip(handles, values):
      tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return tf.constant(0)  # something to wait for

  return lambda weight, m, v, *inputs: update(
    [weight.handle, m.handle, v.handle], *inputs
  )
