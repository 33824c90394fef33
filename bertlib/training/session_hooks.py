"""Hooks that log progress and collect the outputs of evaluation."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging
from tqdm import tqdm

from bertlib.compat import estimator_api


class Throughput(NamedTuple):
  """Numbers from which the speed of a training is computed."""

  examples: Any  # of a step, a number []
  tokens: Any  # of a step without padding, a number []
  tokens_before: Any  # trained on before this process, a number []
  step_flops: Callable[[float, float], float]  # of examples and tokens
  peak_flops: float  # per second, of all devices


# Steps between two log lines, and between two values in TensorBoard.
LOG_STEPS = 20


class ProgressHook(tf.train.SessionRunHook):
  """Shows training progress: a progress bar on a terminal, else log lines."""

  def __init__(
    self,
    tensors: Mapping[str, Any],
    num_train_steps: int | None,
    batch_size: int,
    log_steps: int = LOG_STEPS,
    model_dir: str | None = None,
    throughput: Throughput | None = None,
  ):
    """Takes scalars by displayed name; without `model_dir`, no events."""
    # The last step is not known within a budget.
    self._model_dir = model_dir
    self._tensors = dict(tensors)
    self._num_train_steps = num_train_steps
    self._batch_size = batch_size
    self._log_steps = max(log_steps, 1)
    self._throughput = throughput
    self._counted = {}  # in each step
    if throughput:
      self._counted = {
        "examples": throughput.examples,
        "tokens": throughput.tokens,
      }
    self._counts: list[dict[str, float]] = []  # since the last line
    self._bar = None
    self._zeros: list[set[str]] = []  # of each of the first two shown steps

  def after_create_session(self, session, coord):
    del coord
    self._step = int(session.run(tf.train.get_global_step(session.graph)))
    self._seconds = []  # of each step since the last line
    self._start = None  # time and step after the first one, which compiles
    if self._throughput:
      self._num_tokens = float(session.run(self._throughput.tokens_before))
    logging.info("Compiling the training step")
    if self._bar is None and sys.stderr.isatty():
      self._bar = tqdm(
        total=self._num_train_steps, initial=self._step, unit="step"
      )

  def before_run(self, run_context):
    del run_context
    self._began = time.monotonic()
    step = self._step + 1
    due = step % self._log_steps == 0 or step == self._num_train_steps
    due |= self._start is None
    return tf.train.SessionRunArgs(
      {**(self._tensors if due else {}), **self._counted}
    )

  def after_run(self, run_context, run_values):
    del run_context
    self._step += 1
    self._seconds.append(time.monotonic() - self._began)
    values = dict(run_values.results)
    if self._counted:
      self._counts.append({name: values.pop(name) for name in self._counted})
      self._num_tokens += self._counts[-1]["tokens"]
    if self._bar is not None:
      self._bar.update()
    if values and len(self._zeros) < 2:
      self._warn_of_zeros(values)
    if values:
      self._show(values)
    if self._start is None:
      self._start, self._seconds = (time.monotonic(), self._step), []
      self._counts = []

  def _warn_of_zeros(self, values: Mapping[str, float]) -> None:
    """Warns if a loss or norm is 0 in both of the first two shown steps."""
    names = [name for name in values if name.endswith(("loss", "norm"))]
    self._zeros.append({name for name in names if values[name] == 0})
    if len(self._zeros) == 2 and (zeros := set.intersection(*self._zeros)):
      logging.warning(
        "step %d: %s exactly 0 again: nothing is learned. Check the training"
        " data (do labels, scores or texts differ, are tokens masked) and"
        " --train_batch_size",
        self._step,
        " and ".join(name for name in names if name in zeros)
        + (" are" if len(zeros) > 1 else " is"),
      )

  def _show(self, values: Mapping[str, float]) -> None:
    """Shows a step: the first one, which compiles, without its speed."""
    speeds = self._speeds() if self._start else {}
    shown = {n: f"{value:.4g}" for n, value in {**values, **speeds}.items()}
    if speeds:
      shown["examples/s"] = f"{speeds['examples/s']:.1f}"
      self._write_events(speeds)
    if self._bar is not None:
      self._bar.set_postfix(shown)
      return
    line = ", ".join(f"{name} {value}" for name, value in shown.items())
    if not self._start:
      line += f"; compiled in {sum(self._seconds):.1f} s"
    elif self._num_train_steps is not None:
      then, first_step = self._start
      seconds = (time.monotonic() - then) / (self._step - first_step)
      left = round((self._num_train_steps - self._step) * seconds)
      line += f", {datetime.timedelta(seconds=left)} left"
    logging.info("%s: %s", self._position(), line)

  def _write_events(self, speeds: Mapping[str, float]) -> None:
    """Writes the speeds for TensorBoard."""
    if self._model_dir:
      entries = [
        tf.Summary.Value(tag=name, simple_value=value)
        for name, value in speeds.items()
      ]
      tf.summary.FileWriterCache.get(self._model_dir).add_summary(
        tf.Summary(value=entries), self._step
      )

  def _speeds(self) -> dict[str, float]:
    """Speeds since the last log line, by displayed name."""
    seconds = max(self._typical_seconds(), 1e-9)
    if not self._throughput:
      return {"examples/s": self._batch_size / seconds}
    counts, self._counts = self._counts, []
    examples, tokens = (
      sum(count[name] for count in counts) / len(counts)
      for name in self._counted
    )
    flops = self._throughput.step_flops(examples, tokens) / seconds
    return {
      "examples/s": examples / seconds,
      "tokens": self._num_tokens,
      "tokens/s": tokens / seconds,
      "FLOP/s": flops,
      "of peak": flops / self._throughput.peak_flops,
    }

  def _position(self) -> str:
    """The step, and the last one if it is known."""
    last = self._num_train_steps
    return f"step {self._step}" + (f" of {last}" if last is not None else "")

  def _typical_seconds(self) -> float:
    """Mean duration of the steps since the last log line; resets them."""
    seconds, self._seconds = sorted(self._seconds), []
    middle = seconds[(len(seconds) - 1) // 2]
    # Steps with a checkpoint or an evaluation take many times as long.
    typical = [value for value in seconds if value <= 5 * middle]
    return sum(typical) / len(typical)

  def end(self, session):
    del session
    if self._bar is not None:
      self._bar.close()
    if self._model_dir:
      tf.summary.FileWriterCache.get(self._model_dir).flush()


class PredictionCollector(tf.train.SessionRunHook):
  """Collects the predictions of an evaluation, over all its steps."""

  def __init__(self):
    """Starts without predictions."""
    self._tensors: list[dict[str, Any]] = []  # of each replica
    self._batches: list[dict[str, np.ndarray]] = []

  @property
  def arrays(self) -> dict[str, np.ndarray]:
    """Predictions of all examples by name, the examples as first axis."""
    names = self._batches[0] if self._batches else ()
    return {
      name: np.concatenate([batch[name] for batch in self._batches])
      for name in names
    }

  def watch(self, model_fn):
    """Wraps a `model_fn` with `predictions` in EVAL mode to collect them."""

    def watched(features, labels, mode, params, config=None):
      spec = model_fn(features, labels, mode, params, config)
      if mode != estimator_api.ModeKeys.EVAL or not spec.predictions:
        return spec
      self._tensors.append(dict(spec.predictions))
      return spec._replace(evaluation_hooks=(self,))

    return watched

  def join_replicas(self, join: Callable[[Sequence[Any]], Any]) -> None:
    """Collects whole batches, of which each replica has a part."""
    names = self._tensors[0]
    self._tensors = [
      {name: join([part[name] for part in self._tensors]) for name in names}
    ]

  def before_run(self, run_context):
    del run_context
    return tf.train.SessionRunArgs(self._tensors[0])

  def after_run(self, run_context, run_values):
    del run_context
    self._batches.append(run_values.results)
