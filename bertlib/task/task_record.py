"""`TaskRecord`: the answers of a task to what shared code asks.

`RECORD` in `record.py` of each folder of `bertlib/tasks`. It is read where
TensorFlow is not imported: functions that need more are modules of
`lazy_module.load`.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from bertlib import tasks
from bertlib.cli import terminal
from bertlib.cli.errors import InputError

Description = Mapping[str, Any]  # contents of `model.json`

# Names in transformers of what a model predicts, which determine its loss and
# how its logits become scores.
PROBLEM_TYPES = {
  "classification": "single_label_classification",
  "multi_label": "multi_label_classification",
  "regression": "regression",
}

# Key for the function that a cross-encoder applies to its logits.
CROSS_ENCODER_ACTIVATION = "activation_fn"


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
  # Schema of the entries of `model.json` that only this task has, see
  # `json_files`.
  entries: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Schema of the entries without which a model cannot be used, beside those of
  # all tasks.
  required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Problem of a description that matches the schema, or None.
  problem: Callable[[Description], str | None] = _nothing
  # The first one that a run has is shown first, without --best_metric.
  primary_metrics: Sequence[str] = ()
  # Use of files by flag, where it is not that of `receipt_file`.
  uses: Mapping[str, str] = dataclasses.field(default_factory=dict)
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
  # Writes the output layer of a model to an ONNX graph, see `onnx_graph`; None
  # where this is not possible.
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
