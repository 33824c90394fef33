"""Evaluation during training, the best checkpoint and seed, early stopping."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import finding
from bertlib.cli.errors import InputError
from bertlib.io import files, folder_lock, json_files, result_files
from bertlib.io.files import atomic_write
from bertlib.training import checkpoint_hook, dev_scores
from bertlib.training.dev_scores import Selection

SEEDS_FILE = "seeds.json"

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
    """True if patience has run out, which it logs."""
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


# Several seeds


def train_seeds(
  output_dir: str,
  seeds: Sequence[int],
  metric: str,
  extra_flags: Sequence[str] = (),
) -> None:
  """Runs this command once per seed and keeps the best model as `best`."""
  results, collapsed = {}, []
  for count, seed in enumerate(seeds, start=1):
    folder = os.path.join(output_dir, f"seed_{seed}")
    logging.info("Seed %d (%d of %d) in %s", seed, count, len(seeds), folder)
    # A finished run returns at once: it is at its last step.
    run_again(folder, [f"--seed={seed}", "--seeds=0", *extra_flags])
    results[seed] = result_files.read_results(
      os.path.join(folder, "eval_results.txt")
    )
    if has_collapsed(folder):
      collapsed.append(seed)
  report = summarize_seeds(metric, results) | {"collapsed": collapsed}
  with atomic_write(os.path.join(output_dir, SEEDS_FILE)) as file:
    file.write(json_files.dumps(report, indent=2) + "\n")
  for seed, score in zip(seeds, report["scores"]):
    note = "  collapsed: all predictions are equal" * (seed in collapsed)
    logging.info("  seed %d: %s %.4f%s", seed, metric, score, note)
  logging.info(
    "  median %.4f, mean %.4f, standard deviation %.4f, 95%% confidence"
    " interval of the mean %.4f to %.4f",
    *(report[name] for name in ("median", "mean", "standard_deviation")),
    *report["confidence_interval"],
  )
  best = os.path.join(output_dir, f"seed_{report['best_seed']}")
  logging.info("  the best model, of seed %d, is kept", report["best_seed"])
  finding.save_best(output_dir, finding.trained_checkpoint(best))


def run_again(output_dir: str, flags: Sequence[str]) -> None:
  """Runs this command with more flags; a signal to this one stops both."""
  # `flags` come last, and so take precedence over those of this command.
  script, *arguments = [*sys.argv, *flags, f"--output_dir={output_dir}"]
  module = sys.modules["__main__"].__spec__
  is_module = module and module.origin == script  # `python -m MODULE`
  program = ["-m", module.name] if is_module else [script]
  command = [sys.executable, *program, *arguments]
  with (
    checkpoint_hook.StopRequest() as stop,
    # The locks of this process are held until both processes have ended.
    subprocess.Popen(command, pass_fds=folder_lock.held_files()) as process,
  ):
    while process.poll() is None and not stop.requested:
      time.sleep(0.1)
    if stop.requested:
      process.terminate()
  status = process.returncode
  if status < 0:  # the signal came before its handler was set
    status = 128 - status
  if stop.requested or status in checkpoint_hook.STOPPED_STATUSES:
    logging.warning(
      "%s: stopped. Re-run the same command to resume", output_dir
    )
    sys.exit(stop.status if stop.requested else status)
  if process.returncode:
    raise InputError(
      f"{output_dir}: the run failed, see the error above. Re-run the same"
      " command to resume"
    )


def summarize_seeds(
  metric: str, results: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
  """Statistics of a metric, given without `eval_`, over seeds."""
  # Imported here: a single run needs no SciPy.
  import numpy as np
  from scipy import stats

  scores = []
  for seed, values in results.items():
    plain = {
      dev_scores.plain_name(name): value for name, value in values.items()
    }
    if metric not in plain:
      raise InputError(
        f"seed {seed}: the run has no metric {metric!r}; there are"
        f" {', '.join(sorted(plain))}. Give one as --best_metric"
      )
    scores.append(float(plain[metric]))
  mean, deviation = float(np.mean(scores)), float(np.std(scores, ddof=1))
  # Student's t.
  margin = stats.t.ppf(0.975, len(scores) - 1) * deviation / len(scores) ** 0.5
  best = 0
  for index, score in enumerate(scores):
    if dev_scores.is_better(metric, score, scores[best]):
      best = index
  return {
    "metric": metric,
    "seeds": list(results),
    "scores": scores,
    "median": float(np.median(scores)),
    "mean": mean,
    "standard_deviation": deviation,
    "confidence_interval": [mean - margin, mean + margin],
    "best_seed": list(results)[best],
  }


def read_statistics(output_dir: str) -> dict[str, Any]:
  """Reads the statistics that `train_seeds` wrote."""
  path = os.path.join(output_dir, SEEDS_FILE)
  return json_files.with_nan(json_files.read(path, dict))


def has_collapsed(folder: str) -> bool:
  """True if the model of a run predicts the same for every dev example."""
  path = os.path.join(folder, f"{result_files.DEV_PREDICTIONS}.jsonl")
  if files.exists(path):
    predictions = result_files.read_dev_predictions(path)
    return result_files.are_all_equal(
      *result_files.answers_to_compare(predictions)
    )
  path = os.path.join(folder, "predictions.json")
  if files.exists(path):
    return result_files.are_all_equal([*json_files.read(path, dict).values()])
  return False
