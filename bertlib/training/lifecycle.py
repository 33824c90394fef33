"""The life of a run: `setup`, `train`, `evaluate`, `predict`.

A script describes its task in a `Task`. `setup` loads and checks what the
flags name; its `Run` is the first argument of the other functions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import (
  checkpoint_files,
  finding,
  initialize,
  model_json,
)
from bertlib.cli import lazy_module, option, steps, terminal
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.data import record_check, tf_records
from bertlib.exchange import resolve
from bertlib.hardware import devices
from bertlib.io import files, folder_lock, model_files, result_files
from bertlib.settings import embedding_spec, model_description
from bertlib.settings.training import (
  OptimizerSettings,
  RunSettings,
  TrainingSettings,
)
from bertlib.training import (
  checkpoint_hook,
  dev_scores,
  model_selection,
  session_hooks,
  step_plan,
)
from bertlib.training.dev_scores import Selection
from bertlib.training.task import Run, Task

quantization = lazy_module.load("bertlib.checkpoints.quantization")

# Files that every training run writes to --output_dir, except vocabulary and
# config, which may be inputs from the same folder.
_RUN_FILES = (
  "*.ckpt-*",
  "checkpoint",
  "dev_scores.jsonl",
  "eval_predictions*.jsonl",
  "eval_results*.txt",
  "events.*",
  "graph.pbtxt",
  model_files.DESCRIPTION,
  "report.html",
  "run.json",
  "run-*.json",
  "seeds.json",
)


class Evaluation(NamedTuple):
  """Result of an evaluation."""

  results: dict[str, Any]  # metrics by name
  # Predictions of all real examples by name, the examples as first axis; empty
  # on a TPU.
  arrays: dict[str, np.ndarray]


# Setup


def check_output_dir(
  settings: TrainingSettings, names: Iterable[str], inputs: Iterable[str | None]
) -> None:
  """Refuses an --output_dir in which the run would overwrite its inputs."""
  # `names` are the patterns of the files that the script itself writes.
  files.check_output_dir(settings.run.output_dir, [*_RUN_FILES, *names], inputs)


def setup(
  settings: TrainingSettings, task: Task, step: Steps = steps.RUN
) -> Run:
  """Loads what a run starts from, and checks it; writes nothing.

  Connects to a TPU. The settings are those of `resolve.complete`.

  Raises:
    InputError: model, devices, folder or flags are not as the run needs them.
  """
  model = settings.model
  if step.is_dry_run:  # which reads later how much memory is free
    devices.share_gpus()
  found = step("devices", resolve.find_devices, settings)
  config = step("config", resolve.load_config, model, task.min_seq_length)
  tokenizer = step(
    "vocabulary",
    resolve.load_tokenizer,
    model,
    config,
    task.never_split,
    task.needs_vocabulary,
  )
  start = step("checkpoint", find_start, settings, task)
  selection = step("metric", read_selection, settings.run, task.metrics)
  parts = settings, found, task, config, tokenizer, start, selection
  step("folder", lambda *parts: check_folder(_make_run(*parts)), *parts)
  step.need(*parts)
  return _make_run(*parts)


def _make_run(settings: TrainingSettings, *parts: Any) -> Run:
  """The run of its `parts`; the settings get the metric that was found."""
  *_, selection = parts
  # For the receipt.
  flags = dataclasses.replace(settings.run, best_metric=selection.metric)
  return Run(dataclasses.replace(settings, run=flags), *parts)


def find_start(settings: TrainingSettings, task: Task) -> finding.Start:
  """Checkpoints that the run starts from, with the task's output layers."""
  own, may_be_new = settings.run.output_dir, settings.run.do_train
  may_be_new = may_be_new or task.may_be_new
  start = finding.find_start(
    settings.model.init_checkpoint,
    own,
    may_be_new,
    reads_initial=not may_be_new and settings.model.folder not in (None, own),
  )
  if start.ignored:
    logging.warning(
      "%s: has a trained model too, which is not read: --init_checkpoint names"
      " a folder",
      own,
    )
  trained = start.trained
  variables = checkpoint_files.shapes_of(trained) if trained else {}
  for name, problem in task.heads.items():
    if trained and name not in variables:
      raise InputError(f"{trained}: {problem}")
  return start


def read_selection(run: RunSettings, metrics: Sequence[str]) -> Selection:
  """Selection of the best checkpoint; `metrics` has the primary one first."""
  asked = run.best_metric or metrics[0]
  metric = dev_scores.plain_name(asked)
  if metric not in metrics:
    raise InputError(
      f"--best_metric={asked}: there is no such metric; there are"
      f" {', '.join(metrics)}"
    )
  eval_steps = run.eval_steps if run.do_train else None
  return Selection(eval_steps or 0, metric, run.patience)


def describe_model(run: Run) -> dict[str, Any]:
  """The entries of `model.json`."""
  return {
    "script": run.task.name,
    **run.task.description,
    **option.kept_values(run.settings),
    **run.devices.choices,
  }


def check_folder(run: Run) -> None:
  """Refuses the folder of another model, or that contradicts --resume."""
  model_json.check(
    run.model_folder,
    run.start.own or run.start.trained,
    describe_model(run),
    run.config,
    # Some tasks read models of other scripts.
    [*(["script"] if run.start.own else []), *run.task.must_agree],
    run.task.num_outputs,
    run.settings.model.vocab_file,
    run.task.record,
  )
  if run.flags.do_train and not run.seeds:
    finding.check_resume(run.flags.resume, run.output_dir, run.start.last)


def check_weights(run: Run) -> None:
  """Refuses a checkpoint that is corrupt, or of another model."""
  checkpoint = run.start.trained or run.settings.model.init_checkpoint
  model_fn = make_model_fn(
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
      plan = step("batches", plan_training, run, instead=None)
    if run.start.trained or run.settings.model.init_checkpoint:
      step("weights", check_weights, run)
  return plan


# The model


def make_model_fn(
  run: Run,
  num_train_steps: int = 0,  # 0 for inference
  # Checkpoint that Estimator restores; None for the initial model.
  trained: str | None = None,
  starts_training: bool = False,  # see `TrainingArguments`
):
  """The `model_fn` of a run."""
  settings = run.settings
  compute, options = run.compute, None
  if num_train_steps:
    compute, options = plan_training(run)
  used = compute if num_train_steps else compute.for_inference()
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
    seed=settings.run.seed,
    log_steps=session_hooks.LOG_STEPS,
    compute=compute,
    options=options,
    **run.task.model_arguments,
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


def make_inference_model_fn(
  run: Run, input_fn, batch_size: int, checkpoint: str | None
):
  """The `model_fn` for evaluation and prediction."""
  settings, model_fn = run.settings, make_model_fn(run, trained=checkpoint)
  if settings.compute.precision != "int8":
    return model_fn
  return quantization.int8_model_fn(
    model_fn,
    settings.quantization,
    quantization.TrainedEncoder(
      run.config,
      checkpoint or settings.model.init_checkpoint,
      run.output_dir,
      run.tokenizer,
      settings.model.max_seq_length,
      embedding_spec.default_prefix(run.task.description),
      settings.text.codec,
    ),
    # Calibrates --precision=int8 if there are neither ranges in --output_dir
    # nor a --calibration_file.
    lambda: quantization.input_batches(input_fn, batch_size),
  )


def plan_training(run: Run) -> step_plan.Plan:
  """Computation and options of a training step; see `step_plan`."""
  return step_plan.plan_training(
    run.settings, run.devices, run.compute, run.config, run.step_shape
  )


def _starts_from_another_task(run: Run) -> bool:
  """True if --init_checkpoint is a model of another task, by its labels too."""
  folder = run.settings.model.folder
  if not (folder and run.flags.do_train) or run.start.own:
    return False
  initial, own = model_description.load(folder), describe_model(run)
  return any(
    initial[key] != own[key]
    for key in ("script", "kind", "labels")
    if key in initial and key in own
  )


# Data


def input_options(run: Run, is_training: bool) -> dict[str, Any]:
  """Arguments of an `input_fn_builder` that follow from the run."""
  return {
    "is_training": is_training,
    # A TPU gets full batches with all their padding.
    "drop_remainder": run.on_tpu,
    "trim": run.task.masks_padding and not run.on_tpu,
    "seed": run.flags.seed,
    # Training resumes after the last checkpoint.
    "first_step": run.start.step if is_training else 0,
  }


def fill_last_batch(
  run: Run, rows: Sequence[Any], batch_size: int, filler: Any = None
) -> Sequence[Any]:
  """Fills the last batch on a TPU, by `filler` or else the first row."""
  num_missing = -len(rows) % batch_size
  if not (run.on_tpu and num_missing):
    return rows
  return [*rows, *[rows[0] if filler is None else filler] * num_missing]


# The run itself


@contextlib.contextmanager
def lock_output_dir(run: Run) -> Iterator[None]:
  """Holds the lock of --output_dir in its block, if this process trains."""
  folder = run.output_dir
  # Evaluation and prediction need no lock, see `records_path`. Of several
  # workers, the chief writes alone.
  if not run.flags.do_train:
    try:
      yield
    finally:
      _name_records(folder)
  elif run.is_chief:
    with folder_lock.lock_folder(folder):
      yield
  else:
    yield


def records_path(run: Run, name: str) -> str:
  """Path to write the records NAME.tf_record to."""
  # Without training, a temporary name: a concurrent run may be reading the
  # final one. Renamed when the block of `lock_output_dir` ends.
  path = run.path(f"{name}.tf_record")
  return path if run.flags.do_train else files.temporary_name(path)


def _name_records(folder: str) -> None:
  """Renames the records of this process when they have been read."""
  prefix = files.temporary_name("")
  for path in files.matching(folder, f"{prefix}*.tf_record"):
    # Another process trains there, and writes records of its own.
    if folder_lock.is_locked(folder):
      files.remove_file(path)
    else:
      name = os.path.basename(path).removeprefix(prefix)
      tf.gfile.Rename(path, os.path.join(folder, name), overwrite=True)


def write_model_files(run: Run) -> None:
  """Writes `model.json`, config and vocabulary to --output_dir."""
  # Existing files are replaced only by training.
  model_json.write_model_files(
    run.output_dir,
    describe_model(run),
    run.config,
    run.settings.model.vocab_file,
    overwrite=run.flags.do_train,
  )


def train_seeds(run: Run, *flags: str) -> None:
  """Trains once per seed of --seeds, with further `flags`; keeps the best."""
  model_selection.train_seeds(
    run.output_dir,
    run.seeds,
    run.selection.metric,
    [*flags, *step_plan.choice_flags(run.devices)],
  )


def train(
  run: Run,
  input_fn,
  num_train_steps: int,
  data: str,
  evaluate_fn: model_selection.Evaluate | None = None,
  find_bad_record: record_check.FindBadRecord | None = None,
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
    finding.prepare_resume(run.output_dir, run.start.last)
  last_step = num_train_steps
  if within:
    is_used_up = within.is_used_up(run.start.last)
    last_step = run.start.step if is_used_up else _NO_LAST_STEP
  _log_start(run, last_step, data, within)
  model_fn = make_model_fn(run, num_train_steps, run.start.last)
  with checkpoint_hook.StopRequest() as own:
    stop, hooks = _stop_hooks(run, own)
    if within:
      hooks.append(within.hook(own))
    if run.is_chief and not run.on_tpu:
      hooks.append(_save_hook(run, input_fn, stop, own, layout))
    with record_check.report_bad_record(find_bad_record):
      model_selection.train(
        _estimator(run, model_fn, for_training=_training_config(run)),
        input_fn,
        run.start.step,
        last_step,
        run.selection,
        evaluate_fn if run.is_chief else None,
        hooks,
        lambda: own.ends_early,
      )
  # Below `main`, but only after the checkpoint is saved and all is closed.
  stop.exit_if_requested(run.output_dir)
  if not run.is_chief:
    logging.info("This worker is done; the chief does the rest")


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


def _stop_hooks(run: Run, own: checkpoint_hook.StopRequest):
  """The request that stops training, and the hooks that share it."""
  replicas = run.devices.replicas
  if not replicas or replicas.num_processes == 1:
    return own, []
  # Several workers agree on the step at which they stop.
  shared = checkpoint_hook.StopRequest()
  return shared, [checkpoint_hook.SharedStop(own, shared)]


def _save_hook(run: Run, input_fn, stop, own, layout):
  """The hook that saves checkpoints, also when the run is stopped."""
  replicas = run.devices.replicas
  params = {
    "batch_size": run.flags.train_batch_size,
    "shard": replicas and replicas.shard,
  }
  return checkpoint_hook.CheckpointHook(
    run.output_dir,
    run.flags.steps_per_checkpoint,
    run.flags.save_checkpoints_secs,
    stop,
    own,
    functools.partial(checkpoint_hook.batch_at, input_fn, params),
    layout=layout,
  )


def select_checkpoint(run: Run) -> str | None:
  """The best or else last checkpoint in --output_dir; None without one."""
  checkpoint = run.start.own
  # The chief may still be writing while other workers have ended.
  if run.flags.do_train and run.is_chief:
    checkpoint = finding.trained_checkpoint(run.output_dir)
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
    "save_summary_steps": session_hooks.LOG_STEPS if run.on_tpu else 0,
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
  model_fn = make_inference_model_fn(
    run, input_fn, run.flags.eval_batch_size, checkpoint
  )
  collector = session_hooks.PredictionCollector()
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
  model_fn = make_inference_model_fn(run, input_fn, batch_size, checkpoint)
  estimator = _estimator(run, model_fn, batch_size)
  rows = estimator.predict(
    input_fn, checkpoint_path=checkpoint_files.kept(checkpoint)
  )
  followed = terminal.follow(rows, num_rows, run.task.unit)
  # To the end of the input, where Estimator closes its session.
  for number, row in enumerate(followed):
    if number < num_rows:
      yield row


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
  model_selection.write_events(
    run.path(f"dev{suffix}"),
    finding.step_of(checkpoint) if checkpoint else 0,
    dev_scores.plain_scores(results),
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
  model_json.add_to_description(run.output_dir, **thresholds, tuned_on=data)
  logging.info(
    "%s: has %s tuned on %s; Predictor and export_model.py use it",
    run.path(model_files.DESCRIPTION),
    " and ".join(thresholds),
    data,
  )
