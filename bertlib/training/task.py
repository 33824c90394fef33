"""`Task` describes the task of a script, `Run` a run that is set up."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import modeling
import tokenization
from bertlib.checkpoints import finding
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import tf_records
from bertlib.hardware.devices import Devices
from bertlib.settings.training import RunSettings, TrainingSettings
from bertlib.task.task_record import TaskRecord
from bertlib.training.dev_scores import Selection
from bertlib.training.memory_plan import StepShape


@dataclasses.dataclass(frozen=True)
class Task:
  """Description of the task of a script.

  Attributes:
    record: what is the same in all runs of the task.
    model_fn_builder: builds its `model_fn`, see `lifecycle.make_model_fn`.
    model_arguments: arguments of `model_fn_builder` that only this task has.
    features: layout of the records that it trains on.
    metrics: metrics that can select the best checkpoint, primary one first.
    description: entries of `model.json` that only this task has.
    must_agree: `model.json` keys that must equal those of an existing model in
      --output_dir.
    num_outputs: size of the output layer `output_bias`; None without one.
    heads: variables that a trained model must have, each with the error message
      for a checkpoint without it.
    unit: plural noun for log lines, e.g. "examples", "windows".
    num_predictions: P, masked positions per sequence.
    num_output_positions: positions per sequence that the last layer computes;
      None for all.
    loss_bytes: bytes per replica of a batch-wide (contrastive) loss; not
      reduced by micro-batches.
    num_warmup_steps: steps until the peak learning rate; None for
      --warmup_proportion of training.
    min_seq_length: lowest --max_seq_length that leaves room for text.
    masks_padding: attention masks padding. Only then are batches trimmed and
      unpadded.
    never_split: tokens that the tokenizer leaves whole.
    needs_vocabulary: a missing vocabulary is an error.
    may_be_new: evaluation and prediction may use a model that is not trained.
  """

  record: TaskRecord
  model_fn_builder: Callable[..., Any]
  features: tf_records.Layout
  metrics: Sequence[str]
  model_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  description: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  must_agree: Sequence[str] = ()
  num_outputs: int | None = None
  heads: Mapping[str, str] = dataclasses.field(default_factory=dict)
  unit: str = "examples"
  num_predictions: int = 0
  num_output_positions: int | None = None
  loss_bytes: int = 0
  num_warmup_steps: int | None = None
  min_seq_length: int = 3
  masks_padding: bool = True
  never_split: Sequence[str] = ()
  needs_vocabulary: bool = True
  may_be_new: bool = False

  @property
  def name(self) -> str:
    """The script, as `model.json` names it."""
    return self.record.script

  @property
  def num_rows(self) -> int:
    """Sequences per example: more than one where it has choices."""
    return math.prod(self.features["input_ids"].shape[:-1])


@dataclasses.dataclass(frozen=True)
class Run:
  """A run that is set up: all is found and checked, nothing is written."""

  settings: TrainingSettings  # those of `resolve.complete`
  devices: Devices
  task: Task
  config: modeling.BertConfig
  # None without a vocabulary.
  tokenizer: tokenization.FullTokenizer | None
  start: finding.Start
  selection: Selection

  @property
  def flags(self) -> RunSettings:
    """Flags of the run itself: actions, folder, batch sizes, seed."""
    return self.settings.run

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
    return StepShape(
      self.settings.model.max_seq_length,
      self.task.num_rows,
      self.task.num_predictions,
      self.task.num_output_positions,
      self.task.loss_bytes,
    )

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
