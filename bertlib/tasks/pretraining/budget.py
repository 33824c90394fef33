"""A budget of tokens or of time, over which a training runs; speed in tokens.

What is used up is in variables, and so in the checkpoints: a resumed run
continues with the rest. Within a budget of tokens it ends with the weights of
an uninterrupted one, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf

import optimization
from bertlib.cli.errors import InputError
from bertlib.tasks.pretraining.settings import PretrainingSettings
from bertlib.training import hooks, train_step

# The unit in which a budget is counted, and units per unit of its flag.
_UNITS = {"token_budget": ("tokens", 1), "time_budget_minutes": ("seconds", 60)}

# Graph collections: durations to feed, and what is used up after a step.
_DURATIONS, _USED = "budget/durations", "budget/used"


class Budget(NamedTuple):
  """A budget as its flag gives it."""

  flag: str  # a key of `_UNITS`; a variable of this name has the value
  value: float

  def __str__(self) -> str:
    return f"--{self.flag}={self.value:.15g}"

  @property
  def unit(self) -> str:
    """The unit that is counted, and the name of its variable."""
    return _UNITS[self.flag][0]

  @property
  def amount(self) -> int:
    """The budget in its unit."""
    return max(round(self.value * _UNITS[self.flag][1]), 1)

  def account(self, num_tokens) -> Account:
    """Counts what is used up, in the graph of a training step."""
    return Account(self, num_tokens)

  def hook(self, stop: Any) -> BudgetHook:
    """Hook that ends training by a `StopRequest`."""
    return BudgetHook(self, stop)

  def is_used_up(self, checkpoint: str | None) -> bool:
    """True if a checkpoint has nothing left of it."""
    if not checkpoint:
      return False
    reader = tf.train.load_checkpoint(checkpoint)
    return reader.get_tensor(f"budget/{self.unit}") >= self.amount


def read_budget(settings: PretrainingSettings) -> Budget | None:
  """The budget of a training; None for --num_train_steps."""
  values = ((flag, getattr(settings, flag)) for flag in _UNITS)
  return next((Budget(*given) for given in values if given[1]), None)


# Before training


def check(budget: Budget | None, checkpoint: str | None, on_tpu: bool) -> None:
  """Refuses a TPU, and to resume from a checkpoint of another budget."""
  if budget and on_tpu:
    raise InputError(
      f"{budget}: not for a TPU, which runs many steps at once. Give"
      " --num_train_steps"
    )
  if not checkpoint:
    return
  before = None
  reader = tf.train.load_checkpoint(checkpoint)
  for flag in _UNITS:
    if reader.has_tensor(f"budget/{flag}"):
      before = Budget(flag, float(reader.get_tensor(f"budget/{flag}")))
  if before != budget:
    raise InputError(
      f"{budget or 'no budget'}: {checkpoint} was trained with"
      f" {before or 'no budget'}, which its schedule depends on. Give that to"
      " resume, or another --output_dir"
    )


# While training


class Account:
  """The used part of a budget, as variables of the training graph."""

  def __init__(self, budget: Budget, num_tokens):
    self._num_tokens = num_tokens  # of the global step, float32 []
    variable = train_step.state_variable
    with tf.variable_scope("budget"):
      variable(budget.flag, tf.float64, float(budget.value))
      self._amounts = {
        name: variable(name, tf.float64, 0.0) for name in ("tokens", "seconds")
      }
    self.tokens = tf.identity(self._amounts["tokens"])
    self._used = self._amounts[budget.unit]
    # Before the step, in units of the budget.
    self.used = tf.identity(self._used)

  def add_after(self, train_op):
    """Op that runs `train_op`, then adds its tokens and the last duration."""
    duration = tf.placeholder_with_default(0.0, [])
    tf.add_to_collection(_DURATIONS, duration)
    # The same number for all workers: their weights must stay equal.
    seconds = optimization.sum_over_replicas(duration)
    seconds /= optimization.num_replicas()
    with tf.control_dependencies([train_op]):
      added = tf.group(
        self._amounts["tokens"].assign_add(
          tf.cast(self._num_tokens, tf.float64)
        ),
        self._amounts["seconds"].assign_add(tf.cast(seconds, tf.float64)),
      )
    with tf.control_dependencies([added]):
      tf.add_to_collection(_USED, tf.identity(self._used))
    return added


class TokenSpeed(hooks.Speed):
  """Speed of a training in tokens, also as a share of what devices can do."""

  def __init__(
    self,
    step_flops: Callable[[float, float], float],  # of examples and tokens
    peak_flops: float,  # per second, of all devices
    num_examples,  # of a step, a number []
    num_tokens,  # likewise, without padding
    account: Account | None,  # which knows those before this process
  ):
    self.counted = {"examples": num_examples, "tokens": num_tokens}
    self._step_flops, self._peak_flops = step_flops, peak_flops
    self._before = account.tokens if account else tf.constant(0.0)
    self._counts: list[Mapping[str, float]] = []

  def begin(self, session):
    """See base class."""
    self._num_tokens = float(session.run(self._before))

  def add(self, counts):
    """See base class."""
    self._counts.append(counts)
    self._num_tokens += counts["tokens"]

  def measured(self, num_steps, seconds):
    """See base class."""
    last, self._counts = self._counts[-num_steps:], []
    examples, tokens = (
      sum(counts[name] for counts in last) / num_steps for name in self.counted
    )
    flops = self._step_flops(examples, tokens) / seconds
    return {
      "examples/s": examples / seconds,
      "tokens": self._num_tokens,
      "tokens/s": tokens / seconds,
      "FLOP/s": flops,
      "of peak": flops / self._peak_flops,
    }


class BudgetHook(tf.train.SessionRunHook):
  """Times the steps, and ends training when the budget is used up."""

  # Ahead of the hook that saves and evaluates: these do not count as training.
  # The duration of a step is added in the next one, so that the last step of a
  # run, whose weights are saved, is not in its checkpoint.
  def __init__(
    self,
    budget: Budget,
    stop: Any,  # a `hooks.StopRequest`
    now: Callable[[], float] = time.monotonic,
  ):
    self._amount = budget.amount
    self._stop = stop
    self._now = now
    self._duration = 0.0

  def begin(self):
    # One per replica of this process.
    self._durations = tf.get_collection(_DURATIONS)
    self._used = tf.get_collection(_USED)[0]

  def before_run(self, run_context):
    del run_context
    self._began = self._now()
    durations = dict.fromkeys(self._durations, self._duration)
    return tf.train.SessionRunArgs(self._used, durations)

  def after_run(self, run_context, run_values):
    self._duration = self._now() - self._began
    if run_values.results >= self._amount:
      self._stop.ends_early = True
      run_context.request_stop()
