"""Evaluation during training, the best checkpoint, and early stopping."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import finding
from bertlib.io import json_files
from bertlib.io.files import atomic_write
from bertlib.training import dev_scores
from bertlib.training.dev_scores import Selection

# Evaluates a checkpoint on the dev set; returns metric values by name.
Evaluate = Callable[[str], Mapping[str, Any]]


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


# While training


class DevScores:
  """Dev metrics of a run, stored in `dev_scores.jsonl`."""

  def __init__(self, model_dir: str, selection: Selection):
    """Reads the metrics in `model_dir`, if there are any."""
    self.model_dir = model_dir
    self.selection = selection
    self._path = os.path.join(model_dir, dev_scores.SCORES_FILE)
    # The `step` and the scores by name of each evaluation, in order.
    self.rows: list[dict[str, Any]] = []
    if tf.gfile.Exists(self._path):
      self.rows = dev_scores.read_scores(self._path)

  @property
  def best(self) -> dict[str, Any] | None:
    """The first row with the best primary metric; None if there is none."""
    return dev_scores.best_row(self.rows, self.selection.metric)

  def by_name(self) -> dict[str, list[tuple[int, float]]]:
    """(step, value) pairs of each metric."""
    names = dict.fromkeys(name for row in self.rows for name in row)
    return {
      name: [(row["step"], row[name]) for row in self.rows if name in row]
      for name in names
      if name != "step"
    }

  @property
  def last_step(self) -> int:
    """The step of the last evaluation; 0 if there is none."""
    return self.rows[-1]["step"] if self.rows else 0

  def ends_early(self) -> bool:
    """True if the target is reached or patience has run out, and logs it."""
    if self._has_reached_target():
      return True
    best, patience = self.best, self.selection.patience
    num_since_best = len(self.rows) - (self.rows.index(best) + 1 if best else 0)
    if not patience or num_since_best < patience:
      return False
    logging.info(
      "--patience=%d: best %s at step %s, no improvement in %d evaluations"
      " since; training ends at step %d",
      patience,
      self.selection.metric,
      best["step"] if best else "-",
      num_since_best,
      self.last_step,
    )
    return True

  def _has_reached_target(self) -> bool:
    """True if the last evaluation has reached the target, which it logs."""
    name, target = self.selection.target_metric, self.selection.target_value
    score = self.rows[-1].get(name) if self.rows else None
    if score is None or not (
      score == target or dev_scores.is_better(name, score, target)
    ):
      return False
    logging.info(
      "--target_value=%g: %s is %.4g; training ends at step %d",
      target,
      name,
      score,
      self.last_step,
    )
    return True

  def add(self, step: int, scores: Mapping[str, Any]) -> bool:
    """Adds the metrics of a step; True if they are the best so far."""
    row = {"step": step, **dev_scores.plain_scores(scores)}
    # Later rows are of a training that was resumed from an earlier step.
    self.rows = [r for r in self.rows if r["step"] < step] + [row]
    return self.best is row

  def write(self) -> None:
    """Writes all metrics to the file, and the last ones to TensorBoard."""
    with atomic_write(self._path) as file:
      file.writelines(json_files.dumps(row) + "\n" for row in self.rows)
    scores = {n: v for n, v in self.rows[-1].items() if n != "step"}
    folder = os.path.join(self.model_dir, "dev")
    write_events(folder, self.last_step, scores)


@dataclasses.dataclass(eq=False)
class EvaluationListener(tf.train.CheckpointSaverListener):
  """Evaluates saved checkpoints, keeps the best, and ends training early."""

  scores: DevScores
  evaluate: Evaluate
  num_train_steps: int  # the last step is always evaluated
  ends_early: Callable[[], bool]  # see `train`

  def after_save(self, session, global_step_value):
    """Evaluates the checkpoint if it is due; True ends training."""
    del session
    step, last = int(global_step_value), self.scores.last_step
    folder, selection = self.scores.model_dir, self.scores.selection
    every = selection.eval_steps
    is_last = step >= self.num_train_steps or self.ends_early()
    if step <= last or not (is_last or step // every > last // every):
      return False
    checkpoint = os.path.join(folder, f"model.ckpt-{step}")
    results = self.evaluate(checkpoint)
    is_best = self.scores.add(step, results)
    logging.info(
      "step %d: dev %s %.4g%s",
      step,
      selection.metric,
      self.scores.rows[-1].get(selection.metric, math.nan),
      ", the best so far" if is_best else "",
    )
    # Written last: a run killed before this evaluates the checkpoint again.
    if is_best:
      finding.save_best(folder, checkpoint)
    self.scores.write()
    return not is_last and self.scores.ends_early()


def train(
  estimator,
  input_fn,
  done: int,  # steps of the last checkpoint
  num_train_steps: int,
  selection: Selection,
  evaluate: Evaluate | None,
  hooks: Sequence[tf.train.SessionRunHook] = (),
  # True when training ends before `num_train_steps`.
  ends_early: Callable[[], bool] = lambda: False,
) -> None:
  """Trains until `num_train_steps` or early stopping."""
  listeners = []
  if selection.eval_steps:
    scores = DevScores(estimator.model_dir, selection)
    # A killed run may have saved a checkpoint without its scores, and later
    # checkpoints may have been removed.
    scores.rows = [row for row in scores.rows if row["step"] <= done]
    # Otherwise another process evaluates the checkpoints.
    if evaluate:
      listener = EvaluationListener(
        scores, evaluate, num_train_steps, ends_early
      )
      if listener.after_save(None, done):
        return
      listeners = [listener]
    if scores.ends_early():
      return
  if done >= num_train_steps:
    return  # without waiting for other workers
  estimator.train(
    input_fn, hooks=hooks, max_steps=num_train_steps, saving_listeners=listeners
  )
