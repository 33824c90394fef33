"""The loop of a run: training, evaluation, prediction, several seeds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import checkpoint_files, initialize, model_folder
from bertlib.cli import steps, terminal
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.data import tf_records, training_records
from bertlib.export import eight_bits
from bertlib.hardware import devices
from bertlib.io import files, folder_lock, json_files, model_files, result_files
from bertlib.io.files import atomic_write
from bertlib.io.result_files import DevScores
from bertlib.settings import model_description
from bertlib.settings.training import OptimizerSettings
from bertlib.training import hooks, runs, step_plan
from bertlib.training.runs import Run

SEEDS_FILE = "seeds.json"

# Evaluates a checkpoint on the dev set; returns metric values by name.
Evaluate = Callable[[str], Mapping[str, Any]]


class Evaluation(NamedTuple):
  """Result of an evaluation."""

  results: dict[str, Any]  # metrics by name
  # Predictions of all real examples by name, the examples as first axis; empty
  # on a TPU.
  arrays: dict[str, np.ndarray]


# The model


def model_fn_of(
  run: Run,
  num_train_steps: int = 0,  # 0 for inference
  # Checkpoint that Estimator restores; None for the initial model.
  trained: str | None = None,
  starts_training: bool = False,  # see `TrainingArguments`
):
  """The `model_fn` of a run."""
  settings = run.settings
  if num_train_steps:
    plan = plan_of(run)._asdict()
    used = plan["compute"]
  else:
    plan = {"compute": run.compute}
    used = run.compute.for_inference()
  logging.info("Computed by %s", used.describe(run.config.hidden_act))
  num_warmup_steps = run.task.num_warmup_steps
  if num_warmup_steps is None:
    num_warmup_steps = int(
      num_train_steps * settings.optimizer.warmup_proportion
    )
  if num_train_steps:
    warn_of_schedule(settings.optimizer, num_train_steps, num_warmup_steps)
  return run.task.model_fn_builder(
    bert_config=run.config,
    init_checkpoint=settings.model.init_checkpoint,
    trained=trained,
    starts_training=starts_training,
    other_task=_starts_from_another_task(run),
    learning_rate=settings.optimizer.learning_rate,
    num_train_steps=num_train_steps,
    num_warmup_steps=num_warmup_steps,
    use_tpu=run.on_tpu,
    use_one_hot_embeddings=run.on_tpu,
    seed=run.flags.seed,
    log_steps=hooks.LOG_STEPS,
    **plan,
    **run.task.model_arguments,
  )


def plan_of(run: Run) -> step_plan.Plan:
  """Plan of a training step of a run."""
  return step_plan.plan_training(
    run.settings, run.devices, run.compute, run.config, run.step_shape
  )


def warn_of_schedule(
  flags: OptimizerSettings, num_train_steps: int, num_warmup_steps: int
) -> None:
  """Warns of learning rates that are 0, or never at their peak."""
  if not flags.learning_rate:
    logging.warning("--learning_rate=0: the weights will not change")
  num_steps = num_warmup_steps + round(flags.decay_proportion * num_train_steps)
  if flags.schedule == "trapezoidal" and num_steps > num_train_steps:
    logging.warning(
      "--decay_proportion=%g: the decay begins before the warm-up ends, so the"
      " learning rate never reaches its peak",
      flags.decay_proportion,
    )


def inference_model_fn_of(
  run: Run, input_fn, batch_size: int, checkpoint: str | None
):
  """The `model_fn` for evaluation and prediction."""
  return eight_bits.inference_model_fn(
    model_fn_of(run, trained=checkpoint),
    run.settings,
    input_fn,
    batch_size,
    config=run.config,
    checkpoint=checkpoint or run.settings.model.init_checkpoint,
    folder=run.output_dir,
    tokenizer=run.tokenizer,
    prefix=run.task.record.prefix(run.task.description),
  )


def _starts_from_another_task(run: Run) -> bool:
  """True if --init_checkpoint is a model of another task, by its labels too."""
  folder = run.settings.model.folder
  if not (folder and run.flags.do_train) or run.start.own:
    return False
  initial, own = model_description.load(folder), runs.describe_model(run)
  return any(
    initial[key] != own[key]
    for key in ("script", "kind", "labels")
    if key in initial and key in own
  )


def check_weights(run: Run) -> None:
  """Refuses a checkpoint that is corrupt, or of another model."""
  checkpoint = run.start.trained or run.settings.model.init_checkpoint
  model_fn = model_fn_of(
    run,
    trained=run.start.own and checkpoint,
    starts_training=run.flags.do_train and not run.start.own,
  )
  weights = devices.check_model_fn(checkpoint, model_fn, run.task.features)
  if run.start.trained:
    description = model_description.load(os.path.dirname(checkpoint))
    if description.get("script") == run.task.name:
      initialize.warn_of_unused(checkpoint, weights)


def check_start(run: Run, step: Steps = steps.RUN) -> step_plan.Plan | None:
  """Checks step and weights, after the data and before the first write.

  Returns:
    The plan of a training step; None without training.
  """
  step.need(run)
  plan = None
  # Training logs the rest again.
  quiet = terminal.quiet(logging.WARNING)
  with contextlib.nullcontext() if step.is_dry_run else quiet:
    if run.flags.do_train:
      plan = step("batches", plan_of, run, instead=None)
    if run.start.trained or run.settings.model.init_checkpoint:
      if not step.is_dry_run:  # which logs what computes
        plain = dataclasses.replace(run.devices, is_plain=True)
        run = dataclasses.replace(run, devices=plain)
      step("weights", check_weights, run)
  return plan


# Training


def train(
  run: Run,
  input_fn,
  num_train_steps: int,
  data: str,
  evaluate_fn: Evaluate | None = None,
  find_bad_record: training_records.FindBadRecord | None = None,
  layout: tf_records.Layout | None = None,
  within: Any = None,
) -> None:
  """Trains to the last step, or resumes where training was stopped.

  Args:
    run: the run.
    input_fn: batches, from the next step on.
    num_train_steps: the last step, or the amount of the budget.
    data: name of the training data, for the log.
    evaluate_fn: evaluates a checkpoint on the dev set, for --eval_steps.
    find_bad_record: finds the invalid record when reading fails.
    layout: layout of the records, to name an invalid one when the loss is NaN.
    within: a `budget.Budget` that ends the training instead of steps, or None.

  Raises:
    InputError: the loss is NaN or Inf, or a record is invalid.
    SystemExit: the run was stopped by a signal, and has been saved.
  """
  if run.is_chief:
    checkpoint_files.prepare_resume(run.output_dir, run.start.last)
  last_step = num_train_steps
  if within:
    is_used_up = within.is_used_up(run.start.last)
    last_step = run.start.step if is_used_up else _NO_LAST_STEP
  _log_start(run, last_step, data, within)
  model_fn = model_fn_of(run, num_train_steps, run.start.last)
  with hooks.StopRequest() as own:
    stop, attached = own, []
    if run.devices.replicas.num_processes > 1:
      # Several workers agree on the step at which they stop.
      stop = hooks.StopRequest()
      attached.append(hooks.SharedStop(own, stop))
    if within:
      attached.append(within.hook(own))
    if run.is_chief and not run.on_tpu:
      batch_size = run.flags.train_batch_size
      attached.append(
        hooks.CheckpointHook(
          run.output_dir,
          run.flags.steps_per_checkpoint,
          run.flags.save_checkpoints_secs,
          stop,
          own,
          functools.partial(hooks.batch_at, input_fn, batch_size),
          layout=layout,
        )
      )
    with training_records.report_bad_record(find_bad_record):
      train_and_evaluate(
        _estimator(run, model_fn, for_training=_training_config(run)),
        input_fn,
        run.start.step,
        last_step,
        run.selection,
        evaluate_fn if run.is_chief else None,
        attached,
        lambda: own.ends_early,
      )
  # Below `main`, but only after the checkpoint is saved and all is closed.
  stop.exit_if_requested(run.output_dir)
  if not run.is_chief:
    logging.info("This worker is done; the chief does the rest")


def train_on_records(
  run: Run,
  path: str,
  num_examples: int,
  evaluate_fn: Evaluate,
  data: str | None = None,  # None for the number of examples and their unit
) -> None:
  """Trains for --num_train_epochs on a file of records, see `train`."""
  train(
    run,
    runs.input_fn_of(run, path, is_training=True),
    step_plan.count_steps(run.flags, num_examples, run.task.unit),
    data or f"{num_examples} {run.task.unit}",
    evaluate_fn,
    functools.partial(training_records.find, [path], run.task.features),
  )


# Step up to which a run within a budget would train.
_NO_LAST_STEP = 2**62


def _log_start(run: Run, num_train_steps: int, data: str, within: Any) -> None:
  """Logs the first and the last step of training."""
  done = run.start.step
  if done >= num_train_steps:
    logging.info(
      "%s is already at step %d of %d: nothing is left to train",
      run.output_dir,
      done,
      num_train_steps,
    )
  else:
    logging.info(
      "Training on %s, from step %d %s, %d %s per step",
      data,
      done,
      f"within {within}" if within else f"to {num_train_steps}",
      run.flags.train_batch_size,
      run.task.unit,
    )


def train_and_evaluate(
  estimator,
  input_fn,
  done: int,  # steps of the last checkpoint
  num_train_steps: int,
  selection: result_files.Selection,
  evaluate: Evaluate | None,
  attached: Sequence[tf.train.SessionRunHook] = (),
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
  # A TPUEstimator, or a `distribution.ReplicatedEstimator`: it calls `input_fn`
  # and `model_fn` once, and runs the graph step by step.
  estimator.train(
    input_fn,
    hooks=attached,
    max_steps=num_train_steps,
    saving_listeners=listeners,
  )


@dataclasses.dataclass(eq=False)
class EvaluationListener(tf.train.CheckpointSaverListener):
  """Evaluates saved checkpoints, keeps the best, and ends training early."""

  scores: DevScores
  evaluate: Evaluate
  num_train_steps: int  # the last step is always evaluated
  ends_early: Callable[[], bool]  # see `train_and_evaluate`

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
      checkpoint_files.save_best(folder, checkpoint)
    self.scores.write()
    scores = result_files.plain_scores(results)
    hooks.write_events(os.path.join(folder, "dev"), step, scores)
    return not is_last and self.scores.ends_early()


# Evaluation and prediction


def select_checkpoint(run: Run) -> str | None:
  """The best or else last checkpoint in --output_dir; None without one."""
  checkpoint = run.start.own
  # The chief may still be writing while other workers have ended.
  if run.flags.do_train and run.is_chief:
    checkpoint = checkpoint_files.trained_checkpoint(run.output_dir)
  if checkpoint and run.is_chief:
    logging.info("The weights are those of %s", checkpoint)
  return checkpoint


def _estimator(
  run: Run,
  model_fn,
  predict_batch_size: int | None = None,
  for_training: Mapping[str, Any] = {},
):
  """The Estimator of a run, see `devices.make_estimator`."""
  return devices.make_estimator(
    run.devices,
    model_fn,
    # It reads a checkpoint in its folder if it gets none.
    "ram://initial" if run.start.ignored else run.output_dir,
    for_training,
    train_batch_size=run.flags.train_batch_size,
    eval_batch_size=run.flags.eval_batch_size,
    predict_batch_size=predict_batch_size or run.flags.predict_batch_size,
  )


def _training_config(run: Run) -> dict[str, Any]:
  """Arguments of a `RunConfig` that only training needs."""
  flags = run.flags
  return {
    "tf_random_seed": flags.seed,
    "save_checkpoints_steps": flags.steps_per_checkpoint,
    "keep_checkpoint_max": flags.keep_checkpoint_max,
    # On a TPU it logs examples per second; elsewhere `ProgressHook` does.
    "save_summary_steps": hooks.LOG_STEPS if run.on_tpu else 0,
    # Elsewhere TPUEstimator would run the session twice per step, to read the
    # number of the step.
    "log_step_count_steps": 100 if run.on_tpu else None,
  }


def evaluate(
  run: Run, input_fn, num_steps: int, checkpoint: str | None = None
) -> Evaluation:
  """Evaluates a checkpoint with the `model_fn` in EVAL mode.

  Args:
    run: the run.
    input_fn: batches of the dev set, in the order of its examples.
    num_steps: batches of the evaluation.
    checkpoint: its path; None for the model of --init_checkpoint.
  """
  model_fn = inference_model_fn_of(
    run, input_fn, run.flags.eval_batch_size, checkpoint
  )
  collector = hooks.PredictionCollector()
  if not run.on_tpu:
    model_fn = collector.watch(model_fn)
  estimator = _estimator(run, model_fn)
  results = estimator.evaluate(
    input_fn, num_steps, checkpoint_path=checkpoint_files.kept(checkpoint)
  )
  arrays = collector.arrays
  if "is_real_example" in arrays:
    is_real = arrays.pop("is_real_example") > 0
    arrays = {name: array[is_real] for name, array in arrays.items()}
  return Evaluation(results, arrays)


def predict(
  run: Run,
  input_fn,
  num_rows: int,
  checkpoint: str | None = None,
  batch_size: int | None = None,
) -> Iterator[dict[str, Any]]:
  """Predicts with the `model_fn` in PREDICT mode; shows the progress.

  Args:
    run: the run.
    input_fn: batches to predict.
    num_rows: rows to yield; those after them fill the last batch of a TPU.
    checkpoint: its path; None for the model of --init_checkpoint.
    batch_size: rows of a batch; None for --predict_batch_size.

  Yields:
    The predictions of each row, by name.
  """
  batch_size = batch_size or run.flags.predict_batch_size
  model_fn = inference_model_fn_of(run, input_fn, batch_size, checkpoint)
  estimator = _estimator(run, model_fn, batch_size)
  rows = estimator.predict(
    input_fn, checkpoint_path=checkpoint_files.kept(checkpoint)
  )
  followed = terminal.follow(rows, num_rows, run.task.unit)
  # To the end of the input, where Estimator closes its session.
  for number, row in enumerate(followed):
    if number < num_rows:
      yield row


def predict_texts(
  run: Run, texts: runs.TextSet, checkpoint: str | None
) -> Iterator[dict[str, Any]]:
  """Yields the predictions for each record by name, in order."""
  input_fn = runs.input_fn_of(run, texts.path, False, texts.layout)
  rows = predict(
    run, input_fn, sum(texts.num_rows), checkpoint, texts.batch_size
  )
  return tf_records.restore_input_order(rows)


def write_metrics(
  run: Run,
  results: Mapping[str, Any],
  checkpoint: str | None,
  suffix: str = "",
  predictions: Iterable[result_files.DevPrediction] | None = None,
) -> None:
  """Writes metrics of a dev set to `eval_results.txt` and for TensorBoard.

  Args:
    run: the run.
    results: metrics by name.
    checkpoint: the evaluated one; None for the model of --init_checkpoint.
    suffix: of the file names, for a second dev set.
    predictions: content of `eval_predictions.jsonl`; None removes the file
      of an earlier evaluation.
  """
  hooks.write_events(
    run.path(f"dev{suffix}"),
    checkpoint_files.step_of(checkpoint) if checkpoint else 0,
    result_files.plain_scores(results),
  )
  path = run.path(f"{result_files.DEV_PREDICTIONS}{suffix}.jsonl")
  if predictions is not None:
    result_files.write_dev_predictions(path, predictions)
  else:
    files.remove_file(path)
  precision = run.devices.precision
  if precision != "float32":
    results = {**results, "precision": precision}
  result_files.write_results(run.path(f"eval_results{suffix}.txt"), results)


def store_thresholds(run: Run, data: str, **thresholds: Any) -> None:
  """Stores tuned thresholds in `model.json`, for `Predictor` and exports."""
  # An evaluation in 8 bits leaves those of the model's own precision.
  is_int8 = run.devices.precision == "int8"
  is_stored = bool(model_description.load(run.output_dir))
  if not is_stored or run.start.ignored or is_int8:
    return
  model_folder.add_to_description(run.output_dir, **thresholds, tuned_on=data)
  logging.info(
    "%s: has %s tuned on %s; Predictor and export_model.py use it",
    run.path(model_files.DESCRIPTION),
    " and ".join(thresholds),
    data,
  )


# Several seeds


def train_seeds(run: Run, *flags: str) -> None:
  """Runs this command once per seed, with further `flags`; keeps the best."""
  output_dir, seeds, metric = run.output_dir, run.seeds, run.selection.metric
  flags += (*step_plan.choice_flags(run.devices), "--seeds=0")
  results, collapsed = {}, []
  for count, seed in enumerate(seeds, start=1):
    folder = os.path.join(output_dir, f"seed_{seed}")
    logging.info("Seed %d (%d of %d) in %s", seed, count, len(seeds), folder)
    # A finished run returns at once: it is at its last step.
    run_again(folder, [*flags, f"--seed={seed}"])
    results[seed] = result_files.read_results(
      os.path.join(folder, "eval_results.txt")
    )
    if has_collapsed(folder):
      collapsed.append(seed)
  lower = run.selection.lower_is_better
  report = summarize_seeds(metric, results, lower) | {"collapsed": collapsed}
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
  checkpoint_files.save_best(
    output_dir, checkpoint_files.trained_checkpoint(best)
  )


def run_again(output_dir: str, flags: Sequence[str]) -> None:
  """Runs this command with more flags; a signal to this one stops both."""
  # `flags` come last, and so take precedence over those of this command.
  script, *arguments = [*sys.argv, *flags, f"--output_dir={output_dir}"]
  module = sys.modules["__main__"].__spec__
  is_module = module and module.origin == script  # `python -m MODULE`
  program = ["-m", module.name] if is_module else [script]
  command = [sys.executable, *program, *arguments]
  with (
    hooks.StopRequest() as stop,
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
  if stop.requested or status in hooks.STOPPED_STATUSES:
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
  metric: str,
  results: Mapping[int, Mapping[str, Any]],
  lower_is_better: Sequence[str] = (),  # see `is_better`
) -> dict[str, Any]:
  """Statistics of a metric, given without `eval_`, over seeds."""
  from scipy import stats  # a single run needs none

  scores = []
  for seed, values in results.items():
    plain = {
      result_files.plain_name(name): value for name, value in values.items()
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
    if result_files.is_better(metric, score, scores[best], lower_is_better):
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
