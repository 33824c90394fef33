"""The run of a command: `setup` finds, loads and checks what it needs.

A script describes its task in a `Task`. The `Run` that `setup` makes is the
first argument of what trains, evaluates and predicts, see `loop`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import tokenization
from bertlib.checkpoints import checkpoint_files, model_folder
from bertlib.cli import option, steps
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import (
  tf_records,
  training_records,
)
from bertlib.hardware import devices
from bertlib.hardware.devices import Devices
from bertlib.io import files, folder_lock, model_files, result_files
from bertlib.io.result_files import Selection
from bertlib.settings.training import RunSettings, TrainingSettings
from bertlib.task.task_record import StepShape, Task

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
  "run.flags",
  "run.json",
  "seeds.json",
)


@dataclasses.dataclass(frozen=True)
class Run:
  """A run that is set up: all is found and checked, nothing is written."""

  settings: TrainingSettings  # those of `resolve.complete`
  devices: Devices
  task: Task
  config: modeling.BertConfig
  # None without a vocabulary.
  tokenizer: tokenization.Tokenizer | None
  start: checkpoint_files.Start
  selection: Selection

  @property
  def flags(self) -> RunSettings:
    """Flags of the run itself: actions, folder, batch sizes, seed."""
    return self.settings.flags

  @property
  def seeds(self) -> list[int]:
    """The seeds of --seeds; empty for a single run."""
    return [self.flags.seed + index for index in range(self.flags.seeds)]

  @property
  def output_dir(self) -> str:
    """The folder of the run."""
    return self.flags.output_dir

  @property
  def model_folder(self) -> str:
    """The folder of the model that is trained or else read."""
    folder = None if self.flags.do_train else self.settings.model.folder
    return folder or self.output_dir

  @property
  def on_tpu(self) -> bool:
    """True on a TPU."""
    return self.devices.on_tpu

  @property
  def is_chief(self) -> bool:
    """True in the process that writes checkpoints and results."""
    return self.devices.is_chief

  @property
  def compute(self) -> FastCompute:
    """Precision, unpadding and XLA compilation of the model."""
    return self.devices.compute(self.task.masks_padding)

  @property
  def evaluates(self) -> bool:
    """True if this process evaluates the dev set after training."""
    return self.flags.do_eval and self.is_chief

  @property
  def predicts(self) -> bool:
    """True if this process predicts."""
    return self.flags.do_predict and self.is_chief

  @property
  def step_shape(self) -> StepShape:
    """Sizes of a training step."""
    length = self.settings.model.max_seq_length
    return self.task.step_shape(length, self.config)

  def path(self, name: str) -> str:
    """Path of a file in --output_dir."""
    return os.path.join(self.output_dir, name)

  def with_arguments(self, **model_arguments: Any) -> Run:
    """The run with further arguments for its `model_fn_builder`."""
    arguments = {**self.task.model_arguments, **model_arguments}
    return self._with_task(model_arguments=arguments)

  def with_description(self, **description: Any) -> Run:
    """The run with further entries of `model.json`."""
    return self._with_task(description={**self.task.description, **description})

  def _with_task(self, **changes: Any) -> Run:
    task = dataclasses.replace(self.task, **changes)
    return dataclasses.replace(self, task=task)


# Setup


def check_overwrites(
  settings: TrainingSettings,
  inputs: Iterable[str | None] | None = None,  # None for its `data_files`
) -> None:
  """Refuses an --output_dir in which the run would overwrite its inputs."""
  if inputs is None:
    inputs = [path for path, _ in settings.data_files()]
  names = [*_RUN_FILES, *settings.WRITES]
  files.check_output_dir(settings.flags.output_dir, names, inputs)


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
  found = step("devices", devices.find_and_choose, settings)
  config = step("config", model_folder.config_of, model, task.min_seq_length)
  tokenizer = step(
    "vocabulary",
    model_folder.tokenizer_of,
    model,
    config,
    task.finds_mask,
    task.needs_vocabulary,
  )
  start = step("checkpoint", _find_start_of, settings, task)
  selection = step("metric", read_selection, settings.flags, task)
  parts = settings, found, task, config, tokenizer, start, selection
  step("folder", lambda *parts: check_folder(_make_run(*parts)), *parts)
  step.need(*parts)
  return _make_run(*parts)


def _make_run(settings: TrainingSettings, *parts: Any) -> Run:
  """The run of its `parts`; the settings get the metric that was found."""
  *_, selection = parts
  # For the receipt.
  flags = dataclasses.replace(settings.flags, best_metric=selection.metric)
  return Run(dataclasses.replace(settings, flags=flags), *parts)


def _find_start_of(
  settings: TrainingSettings, task: Task
) -> checkpoint_files.Start:
  """Checkpoints that the run starts from, with the task's output layers."""
  own, may_be_new = settings.flags.output_dir, settings.flags.do_train
  may_be_new = may_be_new or task.may_be_new
  start = checkpoint_files.find_start(
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


def read_selection(flags: RunSettings, task: Task) -> Selection:
  """Selection of the best checkpoint."""
  metrics = task.metrics
  asked = flags.best_metric or metrics[0]
  metric = result_files.plain_name(asked)
  if metric not in metrics:
    raise InputError(
      f"--best_metric={asked}: there is no such metric; there are"
      f" {', '.join(metrics)}"
    )
  eval_steps = flags.eval_steps if flags.do_train else None
  lower = task.record.lower_is_better
  return Selection(eval_steps or 0, metric, flags.patience, lower)


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
  trained = run.start.own or run.start.trained
  keys = []
  if run.start.own:  # else some tasks read models of other scripts
    keys.append("script")
    if run.flags.do_train and run.devices.precision == "float16":
      keys.append("precision")  # to restore its loss scale
  model_folder.check_same_model(
    run.model_folder,
    checkpoint_files.shapes_of(trained) if trained else None,
    describe_model(run),
    run.config,
    [*keys, *run.task.must_agree],
    run.task.num_outputs,
    run.settings.model.vocab_file,
    run.task.record,
  )
  if run.flags.do_train and not run.seeds:
    checkpoint_files.check_resume(
      run.flags.resume, run.output_dir, run.start.last
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


def input_fn_of(
  run: Run,
  path: str,
  is_training: bool,
  layout: tf_records.Layout | None = None,  # None for that of the task
):
  """The `input_fn` of a file of records; to predict, by their length."""
  by_length = run.flags.group_by_length or not is_training
  return training_records.record_input_fn(
    path,
    layout or run.task.features,
    by_length=by_length and not run.on_tpu,
    **input_options(run, is_training),
  )


def fill_last_batch(
  run: Run, rows: Sequence[Any], batch_size: int, filler: Any = None
) -> Sequence[Any]:
  """Fills the last batch on a TPU, by `filler` or else the first row."""
  num_missing = -len(rows) % batch_size
  if not (run.on_tpu and num_missing):
    return rows
  return [*rows, *[rows[0] if filler is None else filler] * num_missing]


class TextSet(NamedTuple):
  """Texts to predict for, whose records are written."""

  path: str  # file of the records
  num_rows: Sequence[int]  # records of each text: its windows
  batch_size: int  # records of a batch
  layout: tf_records.Layout | None = None  # None for that of the task
  examples: Sequence[Any] = ()  # of the task, with these texts


# The folder


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


def write_companions(run: Run) -> None:
  """Writes `model.json`, config and vocabulary to --output_dir."""
  # Existing files are replaced only by training.
  model_folder.write_model_files(
    run.output_dir,
    describe_model(run),
    run.config,
    run.settings.model.vocab_file,
    overwrite=run.flags.do_train,
  )
