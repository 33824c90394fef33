"""Which weights are kept: scores while training, early stopping, seeds.

A run that is scored on the way lists its scores in `dev_scores.jsonl`, shows
them in TensorBoard, keeps the weights that scored best, and may stop when they
get no better. Several runs from different seeds show what is luck.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib import json_files, text_files
from bertlib.checkpoints import checkpoint_writer, finding
from bertlib.errors import InputError
from bertlib.files import atomic_write

SCORES_FILE = "dev_scores.jsonl"

# Fewer predictions than this may be the same by chance.
_FEW_PREDICTIONS = 20

# What scores a checkpoint on the dev set: numbers by name.
Evaluate = Callable[[str], Mapping[str, Any]]


class Selection(NamedTuple):
  """How a run is scored on the way.

  Attributes:
    eval_steps: steps from one scoring to the next; 0 for none.
    metric: the score that the best is best by.
    patience: scorings in a row without a better one after which training ends;
      0 for never.
  """

  eval_steps: int
  metric: str
  patience: int = 0


def plain_name(metric: str) -> str:
  """A score's name without the `eval_` that results files begin it with."""
  return metric.removeprefix("eval_")


def is_better(metric: str, score: float, than: float | None) -> bool:
  """Whether a score beats another; less is better for a loss alone.

  Args:
    metric: the score's name.
    score: the one; what is no number beats nothing.
    than: the other, which any number beats if it is none; None if there is none
      yet.
  """
  if than is None or math.isnan(than):
    return not math.isnan(score)
  return score < than if metric.endswith("loss") else score > than


def plain_scores(results: Mapping[str, Any]) -> dict[str, float]:
  """Scores under the one name that logs, reports and TensorBoard have.

  Args:
    results: what `eval_results.txt` has.

  Returns:
    Numbers by `plain_name`, without `global_step`. Of `eval_loss` and
    Estimator's `loss`, which is a mean over batches, the former.
  """
  return {
    plain_name(name): float(f"{value:.7g}")
    for name, value in results.items()
    if not isinstance(value, (list, str))
    and name != "global_step"
    and f"eval_{name}" not in results
  }


def collapse(
  answers: Iterable[str], gold: Iterable[str] | None = None
) -> str | None:
  """Describes a model that predicts the same for every example.

  Args:
    answers: the predictions.
    gold: the correct answers, if known: where these are all the same, too,
      predictions may be. Without them, a few predictions may be the same.

  Returns:
    A sentence or two; None of a model whose predictions differ.
  """
  counts = Counter(answers)
  if len(counts) != 1:
    return None
  ((answer, number),) = counts.items()
  if number < _FEW_PREDICTIONS if gold is None else len(set(gold)) < 2:
    return None
  return (
    f"All {number} predictions are {answer!r}: the model may have collapsed to"
    " one answer. Train longer, with a lower --learning_rate or with"
    " --bias_correction"
  )


def write_events(folder: str, step: int, scores: Mapping[str, float]) -> None:
  """Writes scores for TensorBoard.

  Args:
    folder: that of the event files.
    step: the step they are of.
    scores: numbers by name.
  """
  with tf.Graph().as_default():  # a writer is not to be had without a graph
    writer = tf.summary.FileWriterCache.get(folder)
  values = [
    tf.Summary.Value(tag=name, simple_value=value)
    for name, value in scores.items()
  ]
  writer.add_summary(tf.Summary(value=values), step)
  writer.flush()


# While training


class DevScores:
  """The scores of a run, step by step, in a file of its folder.

  Attributes:
    rows: of each scoring its `step` and its scores by name, in order.
  """

  def __init__(self, model_dir: str, selection: Selection):
    """Reads what the folder has.

    Args:
      model_dir: the folder.
      selection: says which score counts.
    """
    self._model_dir = model_dir
    self._selection = selection
    self._path = os.path.join(model_dir, SCORES_FILE)
    self.rows: list[dict[str, Any]] = []
    if tf.gfile.Exists(self._path):
      self.rows = read_scores(self._path)

  @property
  def best(self) -> dict[str, Any] | None:
    """The first row with the best score; None without any."""
    metric, best = self._selection.metric, None
    for row in self.rows:
      score = row.get(metric, math.nan)
      if is_better(metric, score, best and best[metric]):
        best = row
    return best

  def by_name(self) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of each score."""
    names = dict.fromkeys(name for row in self.rows for name in row)
    return {
      name: [(row["step"], row[name]) for row in self.rows if name in row]
      for name in names
      if name != "step"
    }

  @property
  def last_step(self) -> int:
    """The step of the last scoring; 0 without any."""
    return self.rows[-1]["step"] if self.rows else 0

  def is_over(self) -> bool:
    """Whether patience has run out; says so if it has."""
    best, patience = self.best, self._selection.patience
    since = self.rows.index(best) + 1 if best else 0
    if not patience or len(self.rows) - since < patience:
      return False
    logging.info(
      "--patience=%d: %s was best at step %s, and no better in %d scorings"
      " since; training ends at step %d",
      patience,
      self._selection.metric,
      best["step"] if best else "-",
      len(self.rows) - since,
      self.last_step,
    )
    return True

  def add(self, step: int, scores: Mapping[str, Any]) -> bool:
    """Takes the scores of a step, which `write` writes.

    Args:
      step: the step.
      scores: numbers by name, and what else, which is passed over.

    Returns:
      Whether they are the best so far.
    """
    row = {"step": step, **plain_scores(scores)}
    self.rows = [r for r in self.rows if r["step"] < step] + [row]
    return self.best is row

  def write(self) -> None:
    """Writes all scores to the file, and the last ones to TensorBoard."""
    with atomic_write(self._path) as file:
      file.writelines(json.dumps(row) + "\n" for row in self.rows)
    scores = {n: v for n, v in self.rows[-1].items() if n != "step"}
    folder = os.path.join(self._model_dir, "dev")
    write_events(folder, self.last_step, scores)


def read_scores(path: str) -> list[dict[str, Any]]:
  """Reads a `dev_scores.jsonl`.

  Args:
    path: the file.

  Returns:
    Its rows, each a `step` and scores by name.

  Raises:
    InputError: a line of it is no such row.
  """
  rows = []
  lines = text_files.read_lines(path)
  fix = "Remove the line, or the file to evaluate anew"
  for number, row in json_files.parse_lines(lines, path, {"step": int}, fix):
    if set(map(type, row.values())) - {int, float}:
      raise InputError(
        f"{path}, line {number}: has a score that is no number. {fix}"
      )
    rows.append(row)
  return rows


class ScoreListener(tf.train.CheckpointSaverListener):
  """Scores checkpoints when they are saved; keeps the best, ends training."""

  def __init__(
    self,
    model_dir: str,
    selection: Selection,
    scores: DevScores,
    evaluate: Evaluate,
    num_train_steps: int,
  ):
    """Takes how to score.

    Args:
      model_dir: the model's folder.
      selection: when, and by what.
      scores: of the run so far.
      evaluate: scores a checkpoint.
      num_train_steps: the last step, which is scored in any case.
    """
    self._model_dir = model_dir
    self._selection = selection
    self._scores = scores
    self._evaluate = evaluate
    self._num_train_steps = num_train_steps

  def after_save(self, session, global_step_value):
    """Scores the checkpoint if it is time; True ends training."""
    del session
    step, last = int(global_step_value), self._scores.last_step
    every = self._selection.eval_steps
    is_last = step >= self._num_train_steps
    if step <= last or not (is_last or step // every > last // every):
      return False
    checkpoint = finding.checkpoint_in_state_file(self._model_dir)
    results = self._evaluate(checkpoint)
    is_best = self._scores.add(step, results)
    metric = self._selection.metric
    logging.info(
      "step %d: dev %s %.4g%s",
      step,
      metric,
      self._scores.rows[-1].get(metric, math.nan),
      ", the best so far" if is_best else "",
    )
    # Listed last: a run that is killed before scores this checkpoint again.
    if is_best:
      checkpoint_writer.save_best(self._model_dir, checkpoint)
    self._scores.write()
    return not is_last and self._scores.is_over()


def train(
  estimator,
  input_fn,
  num_train_steps: int,
  selection: Selection,
  evaluate: Evaluate | None,
  hooks: Sequence[tf.train.SessionRunHook] = (),
) -> None:
  """Trains to the end, or until patience runs out.

  Args:
    estimator: the model.
    input_fn: of the training data.
    num_train_steps: the last step.
    selection: how it is scored on the way.
    evaluate: scores a checkpoint; None where another process does.
    hooks: of training.
  """
  listeners = []
  if selection.eval_steps:
    scores = DevScores(estimator.model_dir, selection)
    # A killed run may have listed less than it saved, or more than is left.
    done = finding.steps_done(estimator.model_dir)
    scores.rows = [row for row in scores.rows if row["step"] <= done]
    if evaluate:
      listener = ScoreListener(
        estimator.model_dir, selection, scores, evaluate, num_train_steps
      )
      if listener.after_save(None, done):
        return
      listeners = [listener]
    if scores.is_over():
      return
  estimator.train(
    input_fn,
    hooks=hooks,
    max_steps=num_train_steps,
    saving_listeners=listeners,
  )
