"""Training step of a `model_fn`: gradients, log lines, TensorBoard values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import tensorflow as tf_v2
import tensorflow.compat.v1 as tf

import modeling
import optimization
from bertlib.checkpoints import initialize
from bertlib.compat import estimator_api
from bertlib.training import hooks
from optimization import Frozen, Gradients


@dataclasses.dataclass(frozen=True)
class TrainingArguments:
  """Arguments that every `model_fn_builder` has, mostly for training."""

  init_checkpoint: str | None
  learning_rate: float
  # Step at which training ends, or the amount of `budget`; None where nothing
  # trains.
  num_train_steps: int | None
  # Steps of linear warm-up; None or 0 for none.
  num_warmup_steps: int | None
  use_tpu: bool
  # Of dropout, whose masks are then a function of seed and step; None for
  # random masks.
  seed: int | None = None
  log_steps: int = hooks.LOG_STEPS
  # None for the plain `modeling.Compute()`.
  compute: modeling.Compute | None = None
  options: optimization.StepOptions | None = None
  # Parts of a batch whose gradients are summed (gradient accumulation).
  num_micro_batches: int = 1
  frozen: Frozen | None = None  # weights that are not trained
  loss_scale: float = 0.0  # of float16; 0 for one that adapts
  # Checkpoint that Estimator restores, if known; the weights are then not
  # initialized from `init_checkpoint`.
  trained: str | None = None
  # Whether a graph of predictions is checked before a training starts anew.
  starts_training: bool = False
  # Whether the output layers of `init_checkpoint` are those of another task.
  other_task: bool = False
  # A `budget.Budget`, over which the schedule runs instead of steps.
  budget: Any = None
  # Makes a `hooks.Speed` of the numbers of examples and tokens of a step, and
  # the account of the budget; None to show examples per second.
  speed: Callable[..., hooks.Speed] | None = None

  @property
  def scales_loss(self) -> bool:
    """True for float16, whose gradients need a loss scale."""
    return self.compute is not None and self.compute.dtype == tf.float16


def make_model_fn(
  arguments: TrainingArguments,
  training_loss: Callable,  # from features to the `loss_fn` of `train_spec`
  predict: Callable,  # from features to tensors [B, ...] by name
  # From features to `loss`, `eval_metrics` and `predictions` of a
  # `TPUEstimatorSpec`, by name; None if evaluation only predicts.
  evaluate: Callable | None = None,
):
  """The `model_fn` of a task, for TPUEstimator."""

  def model_fn(features, labels, mode, params, config=None):
    del labels  # they are among the features
    if mode == estimator_api.ModeKeys.TRAIN:
      loss_fn = training_loss(features)
      return train_spec(arguments, loss_fn, features, params, config)
    if mode == estimator_api.ModeKeys.EVAL and evaluate:
      outputs = evaluate(features)
    else:
      outputs = {"predictions": predict(features)}
    return estimator_api.TPUEstimatorSpec(
      mode=mode,
      scaffold_fn=initialize.initialize_from_checkpoint(
        arguments.init_checkpoint,
        arguments.trained,
        # Nothing runs a graph that is only checked.
        arguments.use_tpu or arguments.starts_training,
        uses_all=True,
        new_heads=arguments.starts_training,
        other_task=arguments.other_task,
      ),
      **outputs,
    )

  return model_fn


def input_index(features: Mapping[str, Any]) -> dict[str, Any]:
  """`input_index` [B] of rows that are not in input order, for predictions."""
  name = "input_index"
  return {name: features[name]} if name in features else {}


def train_spec(
  arguments: TrainingArguments,
  loss_fn,
  batch: Mapping[str, Any],
  params: Mapping[str, Any],
  run_config,
):
  """Builds the training step of a `model_fn`: a `TPUEstimatorSpec`."""
  # `loss_fn` takes a batch or micro-batch and a `dropout_seed`, see
  # `modeling.dropout`. It returns the mean loss of its examples, float32 [],
  # and further means to report by name. Or it is no function, but a
  # `embedding_losses.BatchLoss`, which compares the examples of a whole batch.
  loss_scale = _make_loss_scale(arguments)
  accumulated = _compute_gradients(
    arguments, loss_fn, batch, params, loss_scale
  )
  scaffold_fn = initialize.initialize_from_checkpoint(
    arguments.init_checkpoint,
    arguments.trained,
    arguments.use_tpu,
    new_heads=True,
    other_task=arguments.other_task,
  )
  tokens = account = None
  if arguments.budget or arguments.speed:
    tokens = _count_tokens(batch)
  if arguments.budget:
    account = arguments.budget.account(tokens)
  step = optimization.training_step(
    accumulated,
    arguments.learning_rate,
    arguments.num_train_steps,
    arguments.num_warmup_steps,
    arguments.use_tpu,
    arguments.options,
    loss_scale,
    account and account.used,
  )
  shown = {
    "loss": step.loss,
    **step.scalars,
    "learning_rate": step.learning_rate,
    "gradient_norm": step.gradient_norm,
  }
  if account:
    step = step._replace(train_op=account.add_after(step.train_op))
    shown["budget_used"] = account.used / arguments.num_train_steps
  if loss_scale:
    shown["loss_scale"] = loss_scale.value
  strategy, summary_dir = tf.distribute.get_strategy(), None
  if run_config and strategy.extended.should_save_summary:
    summary_dir = run_config.model_dir
  attached, host_call = [], None
  if not arguments.use_tpu and optimization.num_replicas() == 1:
    _skip_ready_checks()
  # A TPU has no log lines: it runs many steps between two callbacks of the
  # host.
  if not arguments.use_tpu:
    speed = hooks.Speed(params["batch_size"])
    if arguments.speed:
      rows = tf.shape(batch["input_mask"])[0] * optimization.num_replicas()
      speed = arguments.speed(rows, tokens, account)
    attached.append(_progress_hook(arguments, shown, speed, summary_dir))
  if summary_dir:
    host_call = write_scalars(summary_dir, step.train_op, shown, arguments)
  return estimator_api.TPUEstimatorSpec(
    mode=estimator_api.ModeKeys.TRAIN,
    loss=step.loss,
    train_op=step.train_op,
    scaffold_fn=scaffold_fn,
    training_hooks=attached,
    host_call=host_call,
  )


def _skip_ready_checks() -> None:
  """Lets the session ask no variable whether it is initialized."""
  # Workers wait for their chief in this way: two operations per variable.
  uninitialized = tf.constant([], tf.string)
  tf.add_to_collection(tf.GraphKeys.READY_OP, uninitialized)
  tf.add_to_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP, uninitialized)


def _make_loss_scale(
  arguments: TrainingArguments,
) -> LossScale | FixedLossScale | None:
  """The loss scale of float16; None for other precisions."""
  if not arguments.scales_loss:
    return None
  fixed = arguments.loss_scale
  return FixedLossScale(fixed) if fixed else LossScale()


def _compute_gradients(
  arguments: TrainingArguments,
  loss_fn,
  batch: Mapping[str, Any],
  params: Mapping[str, Any],
  loss_scale: LossScale | FixedLossScale | None,
) -> optimization.Gradients:
  """Gradients of a loss function or `BatchLoss`, see `train_spec`."""
  num_micro_batches = arguments.num_micro_batches
  num_tpu_cores = 1
  if arguments.use_tpu and "context" in params:  # of TPUEstimator
    num_tpu_cores = params["context"].num_replicas
  common = batch, num_micro_batches, loss_scale, arguments.frozen
  if callable(loss_fn):
    seeded = _with_dropout_seed(loss_fn, arguments, num_tpu_cores)
    return compute_gradients(seeded, *common)
  if arguments.seed is None and num_micro_batches > 1:
    raise ValueError("Gradient caching needs a seed: it repeats dropout masks")
  seeded = _with_dropout_seed(loss_fn.encode_fn, arguments, num_tpu_cores)
  batch_loss = loss_fn._replace(encode_fn=seeded)
  return batch_loss.compute_gradients(*common, num_tpu_cores)


def _with_dropout_seed(
  function, arguments: TrainingArguments, num_tpu_cores: int
):
  """`function` of a micro-batch and its index, instead of a dropout seed."""
  if arguments.seed is None:
    return lambda micro_batch, _: function(micro_batch, None)
  draw = dropout_draws(
    tf.train.get_or_create_global_step(),
    arguments.num_micro_batches,
    num_tpu_cores,
  )
  return lambda micro_batch, index: function(
    micro_batch, (arguments.seed, draw(index))
  )


def _count_tokens(batch: Mapping[str, Any]):
  """Tokens of the global batch without padding, float32 []."""
  # Exact up to 2**24 tokens per step. A GPU has no sums of int32.
  mask = tf.cast(batch["input_mask"], tf.float32)
  return optimization.sum_over_replicas(tf.reduce_sum(mask))


def _progress_hook(
  arguments: TrainingArguments,
  shown: Mapping[str, Any],
  speed: hooks.Speed,
  summary_dir: str | None,
):
  """Hook of the log lines; registers the NaN check and the stop requests."""
  # With a loss scale, a step whose gradient norm is NaN or Inf is skipped.
  finite = ["loss"] if arguments.scales_loss else ["loss", "gradient_norm"]
  hooks.watch(shown, finite)
  if optimization.num_replicas() > 1:
    hooks.share_stop_requests()
  return hooks.ProgressHook(
    {name.replace("_", " "): value for name, value in shown.items()},
    None if arguments.budget else arguments.num_train_steps,
    speed,
    arguments.log_steps,
    summary_dir,
  )


def write_scalars(
  model_dir: str,
  train_op,
  scalars: Mapping[str, Any],
  arguments: TrainingArguments,
):
  """A `host_call`, function and tensors, that writes TensorBoard scalars."""
  # The step after the update. The host writes what the device returns: the
  # graph of a TPU has no operations on files, and its tensors get an axis over
  # the TPU cores.
  with tf.control_dependencies([train_op]):
    done = tf.train.get_or_create_global_step().read_value()

  # What `tf.summary.scalar` adds; that one needs TensorBoard to be installed.
  metadata = tf.SummaryMetadata(
    plugin_data=tf.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
  )

  def write(step, *values):
    means = [tf.reduce_mean(value) for value in values]
    # A GPU would have to send each decision to the host.
    with tf.device("" if arguments.use_tpu else "/cpu:0"):
      is_due = (
        tf.equal(step[0] % max(arguments.log_steps, 1), 0)
        | tf.equal(step[0], 1)
        | tf.equal(step[0], arguments.num_train_steps)
      )
      with (
        tf_v2.summary.create_file_writer(model_dir).as_default(),
        tf_v2.summary.record_if(is_due),
      ):
        for name, mean in zip(scalars, means):
          tf_v2.summary.write(name, mean, step[0], metadata)
    return tf.summary.all_v2_summary_ops()

  return write, [tf.reshape(t, [1]) for t in (done, *scalars.values())]


def loss_normalizer(weights, arguments: TrainingArguments):
  """Loss normalizer of a micro-batch, float32 []: divides its weighted sum."""
  # Micro-batches and replicas have different total weights (masks, words). The
  # mean of their losses is that of the global batch if all are divided by one
  # number, their mean total weight.
  total = tf.reduce_sum(tf.cast(weights, tf.float32))
  total = optimization.sum_over_replicas(total, arguments.use_tpu)
  num_replicas = optimization.num_replicas(arguments.use_tpu)
  return total / num_replicas / arguments.num_micro_batches


# Gradients


def compute_gradients(
  loss_fn: Callable[[dict[str, Any], Any], tuple[Any, dict[str, Any]]],
  batch: Mapping[str, Any],
  num_micro_batches: int = 1,
  loss_scale: LossScale | FixedLossScale | None = None,
  frozen: Frozen | None = None,
) -> Gradients:
  """Gradients of a batch, accumulated over micro-batches to save memory."""
  # `loss_fn` takes a micro-batch and its index, int32 []; it returns the mean
  # loss of the examples, float32 [], and further means by name. Up to rounding,
  # the result is that of the whole batch.
  factor = loss_scale.value if loss_scale else None
  if num_micro_batches == 1:
    loss, scalars = loss_fn(dict(batch), tf.constant(0))
    return optimization.gradients_of(loss, scalars, factor, frozen)

  micro_batch = micro_batches(batch, num_micro_batches)

  def compute(index):
    loss, scalars = loss_fn(micro_batch(index), index)
    shares = {n: value / num_micro_batches for n, value in scalars.items()}
    return optimization.gradients_of(
      loss / num_micro_batches, shares, factor, frozen
    )

  # The first micro-batch, outside the loop, makes the variables and shows which
  # gradients there are.
  return accumulate(compute(tf.constant(0)), compute, num_micro_batches)


def micro_batches(
  batch: Mapping[str, Any], num_micro_batches: int
) -> Callable[[Any], dict[str, Any]]:
  """Divides a batch: returns a function from index, int32 [], to features."""
  if num_micro_batches == 1:
    return lambda _: dict(batch)
  divided = {
    name: tf.reshape(
      tensor, tf.concat([[num_micro_batches, -1], tf.shape(tensor)[1:]], axis=0)
    )
    for name, tensor in batch.items()
  }
  # Index, do not slice: a TPU needs a static size.
  return lambda index: {name: t[index] for name, t in divided.items()}


def accumulate(
  first: Gradients, compute: Callable[[Any], Gradients], num_micro_batches: int
) -> Gradients:
  """Sums the gradients of micro-batches, computed one after the other."""
  if num_micro_batches == 1:
    return first
  sums, sparse = _split(first)
  # Sparse gradients stay sparse: the word embeddings have few rows in a batch.
  rows = [_row_arrays(gradient, num_micro_batches) for gradient in sparse]

  def add(index, sums, rows):
    # A micro-batch waits for the one before, so that only one has activations.
    with tf.control_dependencies(tf.nest.flatten(sums)):
      index = tf.identity(index)
    # `compute` must not create variables inside the loop.
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      more, sparse = _split(compute(index))
    sums = tf.nest.map_structure(tf.add, sums, more)
    rows = [
      (values.write(index, g.values), indices.write(index, g.indices))
      for (values, indices), g in zip(rows, sparse)
    ]
    return index + 1, sums, rows

  _, sums, rows = tf.while_loop(
    lambda index, *_: index < num_micro_batches,
    add,
    (tf.constant(1), sums, rows),
    parallel_iterations=1,
  )
  return _join(first, sums, rows)


def _split(gradients: Gradients):
  """Values that are summed, and the sparse gradients, whose rows are joined."""
  present = [g for g in gradients.gradients if g is not None]
  sparse = [g for g in present if isinstance(g, tf.IndexedSlices)]
  dense = [
    optimization.in_float32(g)
    for g in present
    if not isinstance(g, tf.IndexedSlices)
  ]
  return (gradients.loss, gradients.scalars, dense), sparse


def _join(first: Gradients, sums, rows) -> Gradients:
  """Inverse of `_split`; `first` shows which gradients are sparse or None."""
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


def _row_arrays(first: tf.IndexedSlices, num_micro_batches: int):
  """Arrays for the values and the indices of every micro-batch."""
  return tuple(
    tf.TensorArray(
      tensor.dtype,
      num_micro_batches,
      infer_shape=False,
      element_shape=[None, *tensor.shape[1:]],
    ).write(0, tensor)
    for tensor in (first.values, first.indices)
  )


def state_variable(name: str, dtype, value: float, shape: Sequence[int] = ()):
  """Variable that checkpoints keep and nothing trains; equal in replicas."""
  return tf.get_variable(
    name,
    shape,
    dtype,
    tf.constant_initializer(value),
    trainable=False,
    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
  )


class LossScale:
  """Loss scale of float16; `value` is that of this step, float32 []."""

  # Small gradients would be 0 without it. Halved when gradients overflow,
  # doubled after `num_good_steps` consecutive steps in which they do not
  # (Micikevicius et al. 2018). It is saved with the model.
  def __init__(self, initial: float = 2.0**15, num_good_steps: int = 2000):
    """Creates its variables."""
    self._num_good_steps = num_good_steps
    with tf.variable_scope("loss_scale"):
      self._scale = state_variable("scale", tf.float32, initial)
      self._good_steps = state_variable("good_steps", tf.int32, 0)
    self.value = tf.identity(self._scale)

  def adapt(self, norm):
    """Op that sets the next step's scale, given the gradients' norm."""
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


class FixedLossScale:
  """A loss scale that does not change, see `LossScale`; has no variables."""

  def __init__(self, value: float):
    self.value = tf.constant(value, tf.float32)

  def adapt(self, norm):
    """Op that does nothing."""
    del norm
    return tf.no_op()


# Dropout draws


def dropout_draws(
  global_step, num_micro_batches: int, num_tpu_cores: int = 1
) -> Callable[[Any], Any]:
  """Maps (step, replica, micro-batch) to a unique dropout counter, int32 []."""
  # A GPU computes in int64, but the host in int32, and seeds are read on the
  # host: each draw made from the int64 step would be copied from the GPU.
  step = tf.cast(global_step, tf.int32, name="dropout_step")
  num_replicas = num_tpu_cores * optimization.num_replicas()
  replica_step = step * num_replicas + replica_number(num_tpu_cores)
  # Wraps around after 2**32 draws.
  return lambda micro_batch: replica_step * num_micro_batches + micro_batch


def replica_number(num_tpu_cores: int = 1):
  """Index of this replica, int32 []."""
  if num_tpu_cores == 1:
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.convert_to_tensor(number, tf.int32)
  # Under TPUEstimator a core cannot ask for its number. But when every core
  # sends each core that core's number, core n receives n from everyone.
  numbers = list(range(num_tpu_cores))
  received = tf.raw_ops.AllToAll(
    input=numbers,
    group_assignment=[numbers],
    concat_dimension=0,
    split_dimension=0,
    split_count=num_tpu_cores,
  )
  return received[0]
