"""Hooks of a session: progress, predictions, checkpoints, stopping, NaN guard.

Weights with NaN or Inf are never saved: the run ends with an error that names
the step and the records of its batch.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging
from tqdm import tqdm

import optimization
from bertlib.checkpoints import checkpoint_files
from bertlib.cli.errors import InputError, user_error_message
from bertlib.cli.terminal import on_stop_signals
from bertlib.compat import estimator_api
from bertlib.data import tf_records, training_records
from bertlib.io.files import atomic_write

# Exit statuses of a process stopped by a signal, as shells report them.
STOPPED_STATUS = 128 + signal.SIGTERM
STOPPED_STATUSES = (STOPPED_STATUS, 128 + signal.SIGINT)

# Prefixes of the graph collections that `watch` fills; the keys say whether the
# values must be finite.
_WATCHED = {True: "watched_finite/", False: "watched/"}

# The graph collection that `share_stop_requests` fills.
_STOP_REQUESTS = "stop_requests"

# An error message names at most this many records; the .npz file has all.
_MAX_NAMED_RECORDS = 10


# Steps between two log lines, and between two values in TensorBoard.
LOG_STEPS = 20


class Speed:
  """Speed of a training in examples per second; a task may count more."""

  counted: Mapping[str, Any] = {}  # tensors of a step, by name

  def __init__(self, batch_size: int):
    self._batch_size = batch_size

  def begin(self, session) -> None:
    """Begins to count, in the session of the training."""

  def add(self, counts: Mapping[str, float]) -> None:
    """Counts a step, given the values of `counted`."""

  def measured(self, num_steps: int, seconds: float) -> dict[str, float]:
    """Speeds of the last steps by displayed name, given their mean duration."""
    del num_steps
    return {"examples/s": self._batch_size / seconds}


class ProgressHook(tf.train.SessionRunHook):
  """Shows training progress: a progress bar on a terminal, else log lines."""

  def __init__(
    self,
    tensors: Mapping[str, Any],
    num_train_steps: int | None,
    speed: Speed,
    log_steps: int = LOG_STEPS,
    model_dir: str | None = None,
  ):
    """Takes scalars by displayed name; without `model_dir`, no events."""
    # The last step is not known within a budget.
    self._model_dir = model_dir
    self._tensors = dict(tensors)
    self._num_train_steps = num_train_steps
    self._speed = speed
    self._log_steps = max(log_steps, 1)
    self._bar = None
    self._zeros: list[set[str]] = []  # of each of the first two shown steps

  def after_create_session(self, session, coord):
    del coord
    self._step = int(session.run(tf.train.get_global_step(session.graph)))
    self._seconds = []  # of each step since the last line
    self._start = None  # time and step after the first one, which compiles
    self._speed.begin(session)
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
      {**(self._tensors if due else {}), **self._speed.counted}
    )

  def after_run(self, run_context, run_values):
    del run_context
    self._step += 1
    self._seconds.append(time.monotonic() - self._began)
    values = dict(run_values.results)
    self._speed.add({name: values.pop(name) for name in self._speed.counted})
    if self._bar is not None:
      self._bar.update()
    if values and len(self._zeros) < 2:
      self._warn_of_zeros(values)
    if values:
      self._show(values)
    if self._start is None:
      self._start, self._seconds = (time.monotonic(), self._step), []

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
    speeds = {}
    if self._start:
      num_steps = len(self._seconds)
      seconds = max(self._typical_seconds(), 1e-9)
      speeds = self._speed.measured(num_steps, seconds)
    shown = {n: f"{value:.4g}" for n, value in {**values, **speeds}.items()}
    if speeds:
      shown["examples/s"] = f"{speeds['examples/s']:.1f}"
      if self._model_dir:
        write_events(self._model_dir, self._step, speeds)
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


def write_events(folder: str, step: int, scores: Mapping[str, float]) -> None:
  """Writes the metrics of a step to the event files in `folder`."""
  with tf.Graph().as_default():  # the writer cannot be made in eager mode
    writer = tf.summary.FileWriterCache.get(folder)
  values = [
    tf.Summary.Value(tag=name, simple_value=value)
    for name, value in scores.items()
  ]
  writer.add_summary(tf.Summary(value=values), step)
  writer.flush()


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


# Stopping


class StopRequest:
  """A request to stop the run, by SIGTERM or SIGINT in its `with` block."""

  def __init__(self):
    # Whether to stop at the end of the current step.
    self.requested = False
    self.signal = signal.SIGTERM  # the one received
    # Whether to end training before its last step, as early stopping does.
    self.ends_early = False

  def __enter__(self):
    # Handles no signals in other threads than the main one. A second SIGINT
    # ends the process at once.
    self._handlers = on_stop_signals(self._request)
    self._handlers.__enter__()
    return self

  def __exit__(self, *error):
    self._handlers.__exit__(*error)

  def _request(self, number: int):
    if not self.requested:
      self.signal = number
    self.requested = True

  @property
  def status(self) -> int:
    """Exit status of a process that this request stops."""
    return 128 + self.signal

  def exit_if_requested(self, model_dir: str) -> None:
    """Exits with `status` (SystemExit) if a stop was requested."""
    if self.requested:
      logging.warning(
        "Stopped by %s at step %d; checkpoint saved in %s. Re-run the same"
        " command to resume",
        signal.Signals(self.signal).name,
        checkpoint_files.step_in_state_file(model_dir),
        model_dir,
      )
      sys.exit(self.status)


def share_stop_requests() -> None:
  """Adds the op by which the replicas agree to stop, for `SharedStop`."""
  request = tf.placeholder_with_default([0.0, 0.0], [2])
  tf.add_to_collection(
    _STOP_REQUESTS, (request, optimization.sum_over_replicas(request))
  )


@dataclasses.dataclass(eq=False)
class SharedStop(tf.train.SessionRunHook):
  """Stops all workers at the same step as soon as one of them has to stop."""

  own: StopRequest  # of this process
  agreed: StopRequest  # set when any worker stops

  def begin(self):
    # One per replica of this process: the sum waits for all of them.
    self._requests, self._sums = zip(*tf.get_collection(_STOP_REQUESTS))

  def before_run(self, run_context):
    del run_context
    own = [self.own.requested, self.own.ends_early]
    return tf.train.SessionRunArgs(
      self._sums, dict.fromkeys(self._requests, own)
    )

  def after_run(self, run_context, run_values):
    requested, ends_early = run_values.results[0]
    self.agreed.requested |= bool(requested)
    self.agreed.signal = self.own.signal
    self.agreed.ends_early |= bool(ends_early)
    if requested or ends_early:
      run_context.request_stop()


# Saving


def watch(values: Mapping[str, Any], finite: Collection[str]) -> None:
  """Registers scalars of a step, reported on failure, with `CheckpointHook`."""
  for name, value in values.items():
    tf.add_to_collection(_WATCHED[name in finite] + name, value)


class CheckpointHook(tf.train.CheckpointSaverHook):
  """Saves checkpoints at multiples of `save_steps`; none with NaN or Inf."""

  # In the `hooks` of `Estimator.train` it replaces Estimator's own saver, which
  # counts steps from where the run started and does not check the weights.
  def __init__(
    self,
    model_dir: str,
    save_steps: int | None = None,
    save_secs: float | None = None,
    stop: StopRequest | None = None,
    # Set when a listener ends training; None for `stop`.
    own_stop: StopRequest | None = None,
    # Recreates the batch of a step, counted from 0, see `batch_at`.
    batch_of_step: Callable[[int], Mapping[str, Any]] | None = None,
    now: Callable[[], float] = time.monotonic,
    # Names the record that explains a NaN loss.
    layout: tf_records.Layout | None = None,
  ):
    """Stores the settings; None as steps or seconds ignores them."""
    # Estimator recognizes savers by their class and appends to `_listeners`;
    # nothing else of the class is used.
    super().__init__(model_dir, save_steps=1)
    self._listeners = []
    self._model_dir = model_dir
    self._save_steps = save_steps
    self._save_secs = save_secs
    self._stop = stop or StopRequest()
    self._own_stop = own_stop or self._stop
    self._batch_of_step = batch_of_step
    self._now = now
    self._layout = layout or {}

  def begin(self):
    watched = {  # tensors of all replicas by name, by `must_be_finite`
      must_be_finite: {
        key.removeprefix(prefix): tf.get_collection(key)
        for key in tf.get_default_graph().collections
        if str(key).startswith(prefix)  # TensorFlow's keys may be tuples
      }
      for must_be_finite, prefix in _WATCHED.items()
    }
    self._fetched = watched[True] | watched[False]
    self._must_be_finite = list(watched[True])
    # The tensors that saving reads too: a larger graph takes longer to start.
    read = tf.get_default_graph().as_graph_element
    values = {optimization.name_of(v): read(v) for v in tf.global_variables()}
    self._weights = {n: v for n, v in values.items() if v.dtype.is_floating}
    self._squares = {}
    for name, value in self._weights.items():
      with tf.device(value.device):
        self._squares[name] = tf.nn.l2_loss(value)
    self._initial = None
    if not tf.distribute.has_strategy():
      for name in checkpoint_files.optimizer_variables(values):
        del values[name]
      self._initial = checkpoint_files.save_op(self._path(0), values)
    for listener in self._listeners:
      listener.begin()

  def after_create_session(self, session, coord):
    # Checkpoints share this copy: the graph is final, and each copy takes time.
    graph_def = self._graph_def = session.graph.as_graph_def(add_shapes=True)
    with atomic_write(os.path.join(self._model_dir, "graph.pbtxt")) as file:
      file.write(str(graph_def))
    with tf.Graph().as_default():  # a new writer writes the default graph
      writer = tf.summary.FileWriterCache.get(self._model_dir)
    content = graph_def.SerializeToString()
    writer.add_event(tf.Event(wall_time=time.time(), graph_def=content))
    self._step = int(session.run(tf.train.get_global_step(session.graph)))
    nonfinite = self._nonfinite_weights(session)
    if nonfinite:
      start = self._path(self._step) if self._step else "initial weights"
      raise InputError(
        f"{start}: {nonfinite[0]} contains NaN or Inf, so training cannot start"
        " from there. Start from another checkpoint"
      )
    self._saved_step, self._saved_at = self._step, self._now()
    if not self._step:
      self._save(session)
    if self._stop.requested:
      coord.request_stop()

  def before_run(self, run_context):
    del run_context
    return tf.train.SessionRunArgs(self._fetched)

  def after_run(self, run_context, run_values):
    self._step += 1
    self._values = {n: np.squeeze(v) for n, v in run_values.results.items()}
    nonfinite = [
      name
      for name in self._must_be_finite
      if not np.isfinite(self._values[name]).all()
    ]
    if nonfinite:
      raise self._failure(nonfinite)
    if self._is_due():
      self._save(run_context.session)
    if self._stop.requested or self._stop.ends_early:
      run_context.request_stop()

  def end(self, session):
    # A file that grows too large also surfaces as OutOfRangeError, which the
    # session treats as the end of the input.
    _raise_user_error(sys.exc_info()[1])
    if self._step != self._saved_step:
      self._save(session)
    for listener in self._listeners:
      listener.end(session, self._step)

  def _is_due(self) -> bool:
    if self._stop.requested:
      return True
    if self._save_secs and self._now() - self._saved_at >= self._save_secs:
      return True
    steps = self._save_steps
    return bool(steps) and self._step // steps > self._saved_step // steps

  def _save(self, session) -> None:
    """Saves a checkpoint; listeners may then end training."""
    nonfinite = self._nonfinite_weights(session)
    if nonfinite:
      raise self._failure(nonfinite)
    for listener in self._listeners:
      listener.before_save(session, self._step)
    prefix = os.path.join(self._model_dir, "model.ckpt")
    (saver,) = tf.get_collection(tf.GraphKeys.SAVERS)
    # The checkpoint of step 0 is not needed once there is a later one.
    saver.recover_last_checkpoints(
      [path for path in saver.last_checkpoints if not path.endswith("-0")]
    )
    try:
      if self._step or not self._initial:
        path = saver.save(session, prefix, self._step, write_meta_graph=False)
        tf.train.export_meta_graph(
          f"{path}.meta",
          graph_def=self._graph_def,
          saver_def=saver.as_saver_def(),
        )
      else:  # without the moments, which are zeros
        session.run(self._initial)
        checkpoint_files.write_state_file(self._model_dir, self._path(0))
    except tf.errors.OpError as error:
      checkpoint_files.remove_incomplete(self._model_dir)
      _raise_user_error(error)
      raise
    if self._step and not self._saved_step:
      tf.train.remove_checkpoint(self._path(0))
    self._saved_step, self._saved_at = self._step, self._now()
    if self._stop.requested:
      return  # listeners may take minutes; they run once training resumes
    ends_training = [
      listener.after_save(session, self._step) for listener in self._listeners
    ]
    self._own_stop.ends_early |= any(ends_training)

  def _path(self, step: int) -> str:
    """The checkpoint of a step."""
    return os.path.join(self._model_dir, f"model.ckpt-{step}")

  def _nonfinite_weights(self, session) -> list[str]:
    """Names of the variables that contain NaN or Inf."""
    # Squares of large values overflow: then the values decide.
    sums = session.run(self._squares)
    return [
      name
      for name, total in sums.items()
      if not np.isfinite(total)
      and not np.isfinite(session.run(self._weights[name])).all()
    ]

  def _failure(self, nonfinite: list[str]) -> InputError:
    """Writes the batch to a file and returns the error to raise."""
    step = self._step
    values = [
      f"{name.replace('_', ' ')} {self._values[name]}"
      for name in self._must_be_finite
    ]
    if nonfinite[0] not in self._must_be_finite:
      values.append(f"{nonfinite[0]} contains NaN or Inf")
    failure = f"step {step}: {', '.join(values)}"
    logging.info("%s. Reading the records of this step again", failure)
    batch = self._batch_of_step(step - 1) if self._batch_of_step else {}
    path = os.path.join(self._model_dir, f"failed_step_{step}.npz")
    with atomic_write(path, "wb") as file:
      np.savez(file, **batch, **self._values)
    bad_record = training_records.find_in_batch(batch, self._layout)
    if bad_record:
      return InputError(bad_record)
    last = self._path(self._saved_step)
    return InputError(
      f"{failure}. {_describe_records(batch)}"
      f"Details: {path}; last checkpoint: {last}. Lower --learning_rate,"
      " lengthen the warm-up or fix these records, then re-run the same"
      " command to resume"
    )


def _raise_user_error(error: BaseException | None) -> None:
  """Raises an `InputError` if the user can fix the error; else returns."""
  message = isinstance(error, Exception) and user_error_message(error)
  if message:
    raise InputError(message) from error


# Batches and their records


def batch_at(input_fn, batch_size: int, step: int) -> dict[str, np.ndarray]:
  """Recreates a step's batch with `record_file` and `record_number`, or {}."""
  # `step` counts from 0. An `input_fn` that does not trace records gives {}.
  cpu_only = tf.ConfigProto(device_count={"GPU": 0})
  with tf.Graph().as_default(), tf.Session(config=cpu_only) as session:
    dataset = input_fn({"batch_size": batch_size, "traced_step": step})
    iterator = tf.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    if "record_file" not in batch:
      return {}
    session.run(iterator.initializer)
    batch = session.run(batch)
  return batch | {
    "record_file": np.char.decode(batch["record_file"].astype(bytes))
  }


def _describe_records(batch: Mapping[str, np.ndarray]) -> str:
  """Names the first records of a batch."""
  if not batch:
    return ""
  pairs = sorted(
    zip(batch["record_file"].tolist(), batch["record_number"].tolist())
  )
  numbers: dict[str, list[str]] = {}
  for file, number in pairs[:_MAX_NAMED_RECORDS]:
    numbers.setdefault(file, []).append(str(number))
  named = [f"{file}: records {', '.join(n)}" for file, n in numbers.items()]
  more = len(pairs) - _MAX_NAMED_RECORDS
  rest = f" and {more} more" if more > 0 else ""
  return f"Records of its batch, counted from 0: {'; '.join(named)}{rest}. "
