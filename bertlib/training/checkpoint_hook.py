"""Nothing that a run has done is lost: when it saves, stops and gives up.

A checkpoint is saved every so many steps or seconds, and when somebody wants
the run to stop. Weights that are no numbers are never saved: the run gives up
at the step that had them, and tells what went into it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import optimization
from bertlib.app import on_stop_signals
from bertlib.checkpoints import finding
from bertlib.data import record_check
from bertlib.errors import InputError, user_error_message
from bertlib.files import atomic_write

# The statuses of a process that ended because of a signal, as shells have it.
STOPPED_STATUS = 128 + signal.SIGTERM
STOPPED_STATUSES = (STOPPED_STATUS, 128 + signal.SIGINT)

# What the graph's collections of what `watch` is given are called, by whether
# it has to be finite.
_WATCHED = {True: "watched_finite/", False: "watched/"}

# The collection of what `share_stop_requests` makes.
_STOP_REQUESTS = "stop_requests"

# Records that a message names at most; the file beside it has all.
_MOST_NAMED = 10


# Stopping


class StopRequest:
  """A request to stop the run; SIGTERM and SIGINT make it within the block.

  Only the main thread can listen to signals. A second SIGINT ends the process
  at once.

  Attributes:
    requested: whether the run is to stop at the end of its step.
    signal: number of the signal that asked for it; SIGTERM before.
    is_over: whether it ends there, because there is nothing more to gain.
  """

  def __init__(self):
    self.requested = False
    self.signal = signal.SIGTERM
    self.is_over = False

  def __enter__(self):
    self._listening = on_stop_signals(self._request)
    self._listening.__enter__()
    return self

  def __exit__(self, *error):
    self._listening.__exit__(*error)

  def _request(self, number: int):
    if not self.requested:
      self.signal = number
    self.requested = True

  @property
  def status(self) -> int:
    """The status of a process that ends because of this."""
    return 128 + self.signal

  def exit_if_requested(self, model_dir: str) -> None:
    """Ends the process if it is to stop: nothing comes after training.

    Args:
      model_dir: folder of the checkpoint from which training resumes.

    Raises:
      SystemExit: with `status`, if it is to stop.
    """
    if self.requested:
      logging.warning(
        "Stopped by %s at step %d, which is saved in %s; the same command"
        " resumes from there",
        signal.Signals(self.signal).name,
        finding.step_in_state_file(model_dir),
        model_dir,
      )
      sys.exit(self.status)


def share_stop_requests() -> None:
  """Lets a `SharedStop` of this graph tell the other replicas of a wish."""
  wish = tf.placeholder_with_default([0.0, 0.0], [2])
  tf.add_to_collection(
    _STOP_REQUESTS, (wish, optimization.sum_over_replicas(wish))
  )


class SharedStop(tf.train.SessionRunHook):
  """Has all processes stop at the same step where one of them wants to stop."""

  def __init__(self, own: StopRequest, agreed: StopRequest):
    """Takes what is wanted.

    Args:
      own: what this process wants.
      agreed: gets what any of them wants.
    """
    self._own = own
    self._agreed = agreed

  def begin(self):
    self._wish, self._wishes = tf.get_collection(_STOP_REQUESTS)[0]

  def before_run(self, run_context):
    del run_context
    own = [self._own.requested, self._own.is_over]
    return tf.train.SessionRunArgs(self._wishes, {self._wish: own})

  def after_run(self, run_context, run_values):
    requested, is_over = run_values.results
    self._agreed.requested |= bool(requested)
    self._agreed.signal = self._own.signal
    self._agreed.is_over |= bool(is_over)
    if requested or is_over:
      run_context.request_stop()


# Saving


def watch(shown: Mapping[str, Any], finite: Collection[str]) -> None:
  """Lets a `CheckpointHook` of this graph look at a step's numbers.

  Args:
    shown: float [] by name, told of a step at which the run gives up.
    finite: names of those that have to be finite for it to go on.
  """
  for name, value in shown.items():
    tf.add_to_collection(_WATCHED[name in finite] + name, value)


class CheckpointHook(tf.train.CheckpointSaverHook):
  """Saves checkpoints, and never one that is of no use.

  Given among the `hooks` of `Estimator.train`, it takes the place of
  Estimator's own. That one saves steps counted from where the run began, and
  weights before it looks whether they are numbers; this one saves the multiples
  of `save_steps`, whenever the run was stopped in between.
  """

  def __init__(
    self,
    model_dir: str,
    save_steps: int | None = None,
    save_secs: float | None = None,
    stop: StopRequest | None = None,
    wish: StopRequest | None = None,
    batch_of_step: Callable[[int], Mapping[str, Any]] | None = None,
    now: Callable[[], float] = time.monotonic,
    find_bad_record: record_check.FindBadRecord | None = None,
  ):
    """Takes when to save.

    Args:
      model_dir: the model's folder.
      save_steps: steps from one checkpoint to the next; None for any number.
      save_secs: seconds likewise.
      stop: says when to stop.
      wish: is told when a listener wants training to end; None for `stop`.
      batch_of_step: makes the batch of a step again, counted from 0, see
        `batch_at`; None where that cannot be had.
      now: tells the seconds.
      find_bad_record: looks for a record that explains a loss that is NaN.
    """
    # Estimator knows savers by their class, and appends to `_listeners`; what
    # else the class has is not used.
    super().__init__(model_dir, save_steps=1)
    self._listeners = []
    self._model_dir = model_dir
    self._save_steps = save_steps
    self._save_secs = save_secs
    self._stop = stop or StopRequest()
    self._wish = wish or self._stop
    self._batch_of_step = batch_of_step
    self._now = now
    self._find_bad_record = find_bad_record

  def begin(self):
    watched = {  # by whether it has to be finite: of each name, all replicas'
      is_finite: {
        key.removeprefix(prefix): tf.get_collection(key)
        for key in tf.get_default_graph().collections
        if str(key).startswith(prefix)  # TensorFlow's own may be tuples
      }
      for is_finite, prefix in _WATCHED.items()
    }
    self._fetched = watched[True] | watched[False]
    self._must_be_finite = list(watched[True])
    self._are_finite = {}
    for variable in tf.global_variables():
      if variable.dtype.base_dtype.is_floating:
        with tf.device(variable.device):
          self._are_finite[optimization.name_of(variable)] = tf.reduce_all(
            tf.math.is_finite(variable)
          )
    for listener in self._listeners:
      listener.begin()

  def after_create_session(self, session, coord):
    with atomic_write(os.path.join(self._model_dir, "graph.pbtxt")) as file:
      file.write(str(session.graph.as_graph_def(add_shapes=True)))
    writer = tf.summary.FileWriterCache.get(self._model_dir)
    writer.add_graph(session.graph)
    restored = finding.last_checkpoint(self._model_dir)
    broken = self._broken_weights(session)
    if broken:
      raise InputError(
        f"{restored or 'the start'}: {broken[0]} has values that are no finite"
        " numbers, so nothing can be trained from there. Start from another"
        " checkpoint"
      )
    self._step = int(session.run(tf.train.get_global_step(session.graph)))
    self._saved_step, self._saved_at = self._step, self._now()
    if not restored:
      self._save(session)
    if self._stop.requested:
      coord.request_stop()

  def before_run(self, run_context):
    del run_context
    return tf.train.SessionRunArgs(self._fetched)

  def after_run(self, run_context, run_values):
    self._step += 1
    self._told = {n: np.squeeze(v) for n, v in run_values.results.items()}
    broken = [
      name
      for name in self._must_be_finite
      if not np.isfinite(self._told[name]).all()
    ]
    if broken:
      raise self._failure(broken)
    if self._is_due():
      self._save(run_context.session)
    if self._stop.requested or self._stop.is_over:
      run_context.request_stop()

  def end(self, session):
    # A session takes an error for the end of the input that a full disk too may
    # give: OutOfRangeError, for a file that grows too large.
    _raise_mendable(sys.exc_info()[1])
    if self._step != self._saved_step:
      self._save(session)
    for listener in self._listeners:
      listener.end(session, self._step)

  def _is_due(self) -> bool:
    if self._stop.requested:
      return True
    if self._save_secs and self._now() - self._saved_at >= self._save_secs:
      return True
    every = self._save_steps
    return bool(every) and self._step // every > self._saved_step // every

  def _save(self, session) -> None:
    """Saves the step, and asks the listeners whether training is to end."""
    broken = self._broken_weights(session)
    if broken:
      raise self._failure(broken)
    for listener in self._listeners:
      listener.before_save(session, self._step)
    path = os.path.join(self._model_dir, "model.ckpt")
    (saver,) = tf.get_collection(tf.GraphKeys.SAVERS)
    # That of step 0 is of use only as long as there is no other.
    first = [one for one in saver.last_checkpoints if one.endswith("-0")]
    saver.recover_last_checkpoints(
      [one for one in saver.last_checkpoints if one not in first]
    )
    try:
      saver.save(session, path, self._step)
    except tf.errors.OpError as error:
      finding.remove_incomplete(self._model_dir)
      _raise_mendable(error)
      raise
    self._saved_step, self._saved_at = self._step, self._now()
    for one in first:
      tf.train.remove_checkpoint(one)
    if self._stop.requested:
      return  # listeners may take minutes; they are asked when it goes on
    wishes = [one.after_save(session, self._step) for one in self._listeners]
    self._wish.is_over |= any(wishes)

  def _broken_weights(self, session) -> list[str]:
    """Names of the variables with values that are no finite numbers."""
    are_finite = session.run(self._are_finite)
    return [name for name, is_finite in are_finite.items() if not is_finite]

  def _failure(self, broken: list[str]) -> InputError:
    """What to raise of the step; writes down what went into it."""
    record_check.raise_if_bad_record(self._find_bad_record)
    step = self._step
    values = [
      f"{name.replace('_', ' ')} {self._told[name]}"
      for name in self._must_be_finite
    ]
    if broken[0] not in self._must_be_finite:
      values.append(f"{broken[0]} has values that are no finite numbers")
    batch = self._batch_of_step(step - 1) if self._batch_of_step else {}
    path = os.path.join(self._model_dir, f"failed_step_{step}.npz")
    with atomic_write(path, "wb") as file:
      np.savez(file, **batch, **self._told)
    last = finding.checkpoint_in_state_file(self._model_dir)
    return InputError(
      f"step {step}: {', '.join(values)}. {_places(batch)}{path} has"
      f" all that went into it; {last} is from before. Give a lower"
      " --learning_rate or more warmup, or mend these records, and go on"
    )


def _raise_mendable(error: BaseException | None) -> None:
  """Raises as an `InputError` what the user can mend."""
  message = isinstance(error, Exception) and user_error_message(error)
  if message:
    raise InputError(message) from error


# What went into a step


def batch_at(
  input_fn, params: Mapping[str, Any], step: int
) -> dict[str, np.ndarray]:
  """Makes the batch of a step again, and tells where its records are.

  Args:
    input_fn: of training, such as `input_pipeline.record_input_fn` gives.
    params: that training gave it, with the `batch_size` B.
    step: the steps before it.

  Returns:
    The features by name and, [B] each, `record_file` and `record_number`, see
    `input_pipeline.records_with_source`; nothing of an `input_fn` that cannot
    tell.
  """
  on_cpu = tf.ConfigProto(device_count={"GPU": 0})
  with tf.Graph().as_default(), tf.Session(config=on_cpu) as session:
    dataset = input_fn({**params, "traced_step": step})
    iterator = tf.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    if "record_file" not in batch:
      return {}
    session.run(iterator.initializer)
    batch = session.run(batch)
  return batch | {
    "record_file": np.char.decode(batch["record_file"].astype(bytes))
  }


def _places(batch: Mapping[str, np.ndarray]) -> str:
  """Names the records of a batch, the first ones of many."""
  if not batch:
    return ""
  pairs = sorted(
    zip(batch["record_file"].tolist(), batch["record_number"].tolist())
  )
  numbers: dict[str, list[str]] = {}
  for file, number in pairs[:_MOST_NAMED]:
    numbers.setdefault(file, []).append(str(number))
  named = [f"{file}: records {', '.join(n)}" for file, n in numbers.items()]
  more = len(pairs) - _MOST_NAMED
  rest = f" and {more} more" if more > 0 else ""
  return f"Its batch, records counted from 0: {'; '.join(named)}{rest}. "
