"""`TaskRecord`: the answers of a task to what shared code asks.

`RECORD` in `record.py` of each folder of `bertlib/tasks`, which
`bertlib.tasks.records` finds. It is read where TensorFlow is not imported:
functions that need more are modules of `lazy_module.load`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

Description = Mapping[str, Any]  # contents of `model.json`


class PredictExample(NamedTuple):
  """Example of predicting with a model, for the report of its training."""

  file: str  # example of a --predict_file
  about: str  # a sentence that ends in a colon: what it gives
  flags: Sequence[str] = ()  # of the training, needed again if given
  # --output_dir is enough to find the model's files and settings.
  reads_folder: bool = False
  # Call of a method of `predictor`, given the description; None for a script
  # without `Predictor`.
  call: Callable[[Description], str] | None = None


def _nothing(description: Description) -> None:
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
  # The first one that a run has is shown first, if its receipt names none.
  primary_metrics: Sequence[str] = ()
  # Use of files by flag, where it is not that of `receipt_file`.
  uses: Mapping[str, str] = dataclasses.field(default_factory=dict)
  # Metrics without dev data are of the training data.
  evaluates_training_data: bool = False
  # Compares the predictions of two runs; None for a test of equal ones alone.
  compare: Callable[[Any, Any], Any] | None = None
  predict: PredictExample | None = None  # None where no command predicts
  # Class of a model in transformers; None if there is none.
  huggingface_class: Callable[[Description], str | None] = _nothing
  # Class of the exported model, see `signatures`; None if it has none.
  export: Callable[[], type] | None = None
