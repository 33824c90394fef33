"""`TaskRecord`: what code that all tasks share asks about a task.

Each folder of `bertlib/tasks` has the record of its task, `RECORD` in
`record.py`, and `bertlib.tasks.records` finds it. A record is read where
TensorFlow is not imported: functions that need more are modules of
`lazy_module.load`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

Description = Mapping[str, Any]  # contents of `model.json`


class PredictExample(NamedTuple):
  """How a model is used, for the report of its training.

  Attributes:
    file: example of a --predict_file.
    about: what the command gives, a sentence that ends in a colon.
    flags: flags of the training that prediction needs again, if they were
      given.
    reads_folder: whether --output_dir is enough to find the model's files and
      settings.
    call: the call of a method of `predictor`, given the description; None for a
      script without `Predictor`.
  """

  file: str
  about: str
  flags: Sequence[str] = ()
  reads_folder: bool = False
  call: Callable[[Description], str] | None = None


def _nothing(description: Description) -> None:
  del description


@dataclasses.dataclass(frozen=True)
class TaskRecord:
  """What is the same in all runs of a task.

  Attributes:
    script: the script that trains its models, as `model.json` names it.
    purpose: what its models do, a verb phrase such as "labels texts".
    command: how the script is started, if not by `python SCRIPT.py`.
    entries: schema of the entries of `model.json` that only this task has, see
      `json_files`.
    required: schema of the entries without which a model cannot be used, beside
      those of all tasks.
    problem: what is wrong with a description that matches the schema; None for
      nothing.
    primary_metrics: the first one that a run has is shown first, if its receipt
      names none.
    uses: use of the files that a flag names, where it differs from
      `receipt_file`.
    evaluates_training_data: whether metrics without dev data are of the
      training data.
    score: scores of a run's predictions of the dev set, for `compare`.
    compare: compares the predictions of two runs, see `comparison`; None for
      predicted labels or numbers.
    predict: how a model is used; None where no command predicts.
    huggingface_class: class of a model in transformers; None if there is none.
    export: class of its exported model, see `signatures`; None if it has none.
  """

  script: str
  purpose: str = ""
  command: str = ""
  entries: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  problem: Callable[[Description], str | None] = _nothing
  primary_metrics: Sequence[str] = ()
  uses: Mapping[str, str] = dataclasses.field(default_factory=dict)
  evaluates_training_data: bool = False
  score: Callable[[Any], Sequence[Any]] | None = None
  compare: Callable[[Any, Any], Any] | None = None
  predict: PredictExample | None = None
  huggingface_class: Callable[[Description], str | None] = _nothing
  export: Callable[[], type] | None = None
