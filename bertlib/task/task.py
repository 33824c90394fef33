"""`Task` describes the task of a script to what trains and predicts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from bertlib.data import tf_records
from bertlib.task.task_record import TaskRecord


class StepShape(NamedTuple):
  """Sizes of a training step, apart from those of model and batch."""

  seq_length: float  # S, tokens of the longest sequence
  num_rows: int = 1  # sequences per example
  num_predictions: int = 0  # P, masked positions per sequence
  # Positions per sequence that the last layer computes; None for all.
  num_output_positions: int | None = None
  loss_bytes: int = 0  # see `Task`


@dataclasses.dataclass(frozen=True)
class Task:
  """Description of the task of a script.

  Attributes:
    record: what is the same in all runs of the task.
    model_fn_builder: builds its `model_fn`, see `loop.model_fn_of`.
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

  def step_shape(self, seq_length: int) -> StepShape:
    """Sizes of a training step on sequences of this length."""
    return StepShape(
      seq_length,
      self.num_rows,
      self.num_predictions,
      self.num_output_positions,
      self.loss_bytes,
    )
