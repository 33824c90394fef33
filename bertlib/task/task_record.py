"""`TaskRecord` and `Task`: the answers of a task to shared code.

`RECORD` in `record.py` of each folder of `bertlib/tasks`. It is read where
TensorFlow is not imported: functions that need more are modules of
`lazy_module.load`.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from bertlib import tasks
from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.data import tf_records

Description = Mapping[str, Any]  # contents of `model.json`

# Names in transformers of what a model predicts, which determine its loss and
# how its logits become scores.
PROBLEM_TYPES = {
  "classification": "single_label_classification",
  "multi_label": "multi_label_classification",
  "regression": "regression",
}


class PredictExample(NamedTuple):
  """Example of predicting with a model, for the report of its training."""

  file: str  # example of a --predict_file
  about: str  # a sentence that ends in a colon: what it gives
  # What a predictor takes, given the description.
  examples: Callable[[Description], list[Any]] = lambda _: ["A text."]


class HuggingFaceModel(NamedTuple):
  """A Hugging Face model to describe, see `TaskRecord.from_huggingface`."""

  architecture: str  # name of its class
  labels: Sequence[str]  # names of `id2label` in their order; may be empty
  num_labels: int  # outputs of its label head; 0 without one
  max_seq_length: int  # in tokens
  config: Mapping[str, Any]
  # Of a cross-encoder: "sigmoid" or "identity", applied to its logits, or None
  # where no file says; and what stands before its first texts.
  activation: str | None = None
  prompt: str = ""
  scripts: Collection[str] = ()  # that trained it here

  @property
  def scores_pairs(self) -> bool:
    """True if its one output is that of a cross-encoder."""
    is_regression = self.config.get("problem_type") == "regression"
    return (
      self.architecture == "BertForSequenceClassification"
      and self.num_labels == 1
      and (self.activation is not None or not is_regression)
    )

  @property
  def output_names(self) -> list[str]:
    """A name for each output of the label head."""
    if len(self.labels) == self.num_labels:
      return [*self.labels]
    if self.labels:
      terminal.warn_once(
        f"config.json: id2label names {len(self.labels)} labels, but the model"
        f" has {self.num_labels} outputs. They are named LABEL_0, LABEL_1, ..."
      )
    return [f"LABEL_{index}" for index in range(self.num_labels)]


def _nothing(description: Description | HuggingFaceModel) -> None:
  del description


@dataclasses.dataclass(frozen=True)
class TaskRecord:
  """Constants of a task, equal in all of its runs."""

  script: str  # the script that trains, as in `model.json`
  purpose: str = ""  # verb phrase, such as "labels texts"
  command: str = ""  # if not `python SCRIPT.py`
  settings: Any = None  # class of the script's flags
  # Schema of the entries of `model.json` that only this task has, see
  # `json_files`.
  entries: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Schema of the entries without which a model cannot be used, beside those of
  # all tasks.
  required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Problem of a description that matches the schema, or None.
  problem: Callable[[Description], str | None] = _nothing
  # Prefix of texts for which no other is named, such as those of calibration.
  prefix: Callable[[Description], str] = lambda _: ""
  # The first one that a run has is shown first, without --best_metric.
  primary_metrics: Sequence[str] = ()
  # Metrics of which a lower value is better, beside those that end in "loss".
  lower_is_better: Sequence[str] = ()
  # Compares the predictions of two `comparison.RecordedRun` for the same
  # examples; None for a test of equal ones alone.
  compare: Callable[[Any, Any], Any] | None = None
  predict: PredictExample | None = None  # None where no command predicts
  # Class of a model in transformers; None if there is none.
  huggingface_class: Callable[[Description], str | None] = _nothing
  # Entries of `model.json` for a model of transformers; None if it is not of
  # this task.
  from_huggingface: Callable[[HuggingFaceModel], Description | None] = _nothing
  # Class of the exported model, see `signatures`; None if it has none.
  export: Callable[[], type] | None = None
  # Its `BatchPredictor` for use without TensorFlow; None if it has none.
  predictor: Callable[[], type] | None = None
  # Writes the output layer of a model to an ONNX graph, given an
  # `onnx_graph.Encoder`; None where this is not possible.
  onnx_head: Callable[[Description], Callable] | None = None
  # Predicts at [MASK]s, whose positions the ONNX graph takes.
  fills_masks: bool = False


def all_records() -> list[TaskRecord]:
  """The records of all tasks in `bertlib/tasks`."""
  return [
    importlib.import_module(f"{tasks.__name__}.{folder}.record").RECORD
    for _, folder, is_folder in pkgutil.iter_modules(tasks.__path__)
    if is_folder
  ]


def find(script: str | None) -> TaskRecord | None:
  """The record of a task, by its script; None for one of somebody else."""
  return next((r for r in all_records() if r.script == script), None)


def load(module: str) -> TaskRecord:
  """The record of a task outside `bertlib/tasks`, for --task_module."""
  try:
    return importlib.import_module(module).RECORD
  except ModuleNotFoundError as error:
    problem = f"no module named {error.name!r}"
  except AttributeError:
    problem = "has no RECORD"
  raise InputError(
    f"--task_module={module}: {problem}. Name the module of a task, such as"
    " examples.two_heads"
  )


# A run


class StepShape(NamedTuple):
  """Sizes of a training step, apart from those of model and batch."""

  seq_length: float  # S, tokens of the longest sequence
  num_rows: int = 1  # sequences per example
  num_predictions: int = 0  # P, masked positions per sequence
  # Positions per sequence that the last layer computes; None for all.
  num_output_positions: int | None = None
  loss_bytes: int = 0  # see `Task`
  # Config and shape of a generator that is trained in the same step.
  generator: tuple[Any, StepShape] | None = None


@dataclasses.dataclass(frozen=True)
class Task:
  """Description of the task of a script.

  Attributes:
    record: what is the same in all runs of the task.
    model_fn_builder: builds its `model_fn`, see `loop.model_fn_of`.
    model_arguments: arguments of `model_fn_builder` that only this task has.
    features: layout of the records that it trains on.
    metrics: metrics that can select the best checkpoint, primary one first;
      see `TaskRecord.lower_is_better`.
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
    generator_config: maps the config of the model to that of a second encoder
      with its tables, which predicts the masked positions; None without one.
    loss_bytes: bytes per replica of a batch-wide (contrastive) loss; not
      reduced by micro-batches.
    num_warmup_steps: steps until the peak learning rate; None for
      --warmup_proportion of training.
    min_seq_length: lowest --max_seq_length that leaves room for text.
    masks_padding: attention masks padding. Only then are batches trimmed and
      unpadded.
    finds_mask: whether the tokenizer finds the mask's name in text.
    needs_vocabulary: a missing vocabulary is an error.
    may_be_new: evaluation and prediction may use a model that is not trained.
  """

  record: TaskRecord
  model_fn_builder: Callable[..., Any]  # that of the script
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
  generator_config: Callable[[Any], Any] | None = None
  loss_bytes: int = 0
  num_warmup_steps: int | None = None
  min_seq_length: int = 3
  masks_padding: bool = True
  finds_mask: bool = False
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

  def step_shape(self, seq_length: int, config: Any) -> StepShape:
    """Sizes of a training step on sequences of this length."""
    shape = StepShape(
      seq_length,
      self.num_rows,
      self.num_predictions,
      self.num_output_positions,
      self.loss_bytes,
    )
    if not self.generator_config:
      return shape
    generator = self.generator_config(config), shape
    return StepShape(seq_length, self.num_rows, generator=generator)
