"""Settings of run_classifier.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.settings.common import LongTextSettings, TableSettings
from bertlib.settings.training import TrainingSettings

# Tasks, spelled as in their papers.
TASKS = (
  "CoLA",
  "SST-2",
  "MRPC",
  "STS-B",
  "QQP",
  "MNLI",
  "QNLI",
  "RTE",
  "WNLI",
  "AX",
  "XNLI",
  "SWAG",
  "RACE",
)


def plain_task(name: str) -> str:
  """The name of a task in lower case without hyphens."""
  return name.lower().replace("-", "").replace("_", "")


_KNOWN = {plain_task(name) for name in (*TASKS, "tsv")}


def unknown_task(name: str) -> InputError:
  """Error about a --task_name that is none."""
  return InputError(
    f"--task_name={name}: there is no such task. Give {', '.join(TASKS)} or tsv"
  )


def check_task(settings: ClassifierSettings) -> None:
  """Refuses a task that the script itself does not have."""
  if settings.task and settings.task not in _KNOWN:
    raise unknown_task(settings.task_name)


@dataclasses.dataclass(frozen=True)
class ClassifierSettings(TrainingSettings):
  """Flags of run_classifier.py."""

  REQUIRED = ("task_name", *TrainingSettings.REQUIRED)
  BROUGHT_BY_MODEL = ("task_name", *TrainingSettings.BROUGHT_BY_MODEL)
  KEPT_IN_TRAINING = (
    *TrainingSettings.KEPT_IN_TRAINING,
    *("long_texts", "join_windows", "doc_stride"),
  )
  SCRIPT = "run_classifier"
  WRITES = ("*.tf_record", "predictions*", "test_results*", "*_bad_rows.txt")
  EXAMPLE = (
    "python run_classifier.py --task_name=MRPC --data_dir=glue/MRPC"
    " --do_train --do_eval --init_checkpoint=bert-base-uncased"
    " --output_dir=output/mrpc"
  )

  text: TableSettings = option.group(TableSettings)
  cutting: LongTextSettings = option.group(LongTextSettings)
  task_name: str | None = option.text(
    None, f"Task: {', '.join(TASKS)}; or tsv for your own files.", basic=True
  )
  data_dir: str | None = option.path(
    None, "Folder of the dataset, with the task's files.", basic=True
  )
  language: str = option.text(
    "zh",
    "Language code of the XNLI files to train and evaluate on.",
    kept=True,
    needs="task_name=xnli",
  )
  predict_file: str | None = option.path(
    None,
    "File with texts to classify instead of the test set, one per line, with a"
    " tab before the second text of a pair; - for standard input. A .csv file"
    " is a table; so are .tsv and .jsonl if --text_a_column, here or in"
    " training, is a name, or --id_column is given. Predictions for NAME.txt go"
    " to NAME_predictions.tsv and .jsonl, those for standard input to"
    " stdin_predictions.tsv and .jsonl.",
    basic=True,
    needs="do_predict",
  )
  train_file: str = option.path(
    "train.tsv",
    "Training set of --task_name=tsv, a .tsv, .csv or .jsonl file; relative to"
    " --data_dir if that is given.",
    needs="task_name=tsv",
  )
  dev_file: str = option.path(
    "dev.tsv",
    "Dev set of --task_name=tsv, a .tsv, .csv or .jsonl file; relative to"
    " --data_dir if that is given.",
    needs="task_name=tsv, do_eval or eval_steps",
  )
  dev_fraction: float | None = option.number(
    None,
    "Share of --train_file of --task_name=tsv to take as the dev set, instead"
    " of --dev_file: the same rows in every run, stratified by label.",
    within=option.Range(0, 1, includes_low=False, includes_high=False),
  )
  test_file: str = option.path(
    "test.tsv",
    "Test set of --task_name=tsv, a .tsv, .csv or .jsonl file; relative to"
    " --data_dir if that is given.",
    needs="task_name=tsv, do_predict, not predict_file",
  )
  text_a_column: str = option.text(
    "1",
    "Column of the text for --task_name=tsv and a table of --predict_file: its"
    " name, or its number counted from 1. A name of the header is a name, even"
    " if it is a number.",
    basic=True,
    kept=True,
    needs="task_name=tsv or predict_file",
  )
  text_b_column: str | None = option.text(
    None,
    "Column of the second text of a pair, like --text_a_column.",
    kept=True,
    needs="task_name=tsv or predict_file",
  )
  label_column: str = option.text(
    "2",
    "Column of the label for --task_name=tsv: its name, or its number counted"
    " from 1; with --problem_type=multi_label also columns of 0 and 1, one per"
    " label, separated by commas.",
    basic=True,
    kept=True,
    needs="task_name=tsv",
  )
  id_column: str | None = option.text(
    None,
    "Column of a unique id, like --text_a_column. Predictions and the report"
    " name examples by it, and test_results.tsv begins with it. If not given,"
    " that of the training where a file has it, or else set and row number.",
    kept=True,
  )
  labels: Sequence[str] | None = option.text_list(
    None,
    "Labels of --task_name=tsv, separated by commas, in the order of vectors of"
    " 0 and 1. If not given, those in the training set.",
    needs="task_name=tsv",
  )
  problem_type: str = option.choice(
    "classification",
    ["classification", "regression", "multi_label"],
    "Kind of labels of --task_name=tsv: one label per text, a number, or any"
    " number of labels.",
    needs="task_name=tsv",
  )
  label_delimiter: str = option.text(
    ",",
    "Separator between the labels of a text with --problem_type=multi_label.",
    kept=True,
    needs="task_name=tsv, problem_type=multi_label",
  )
  class_weights: Sequence[str] | None = option.text_list(
    None,
    "Weights of the labels in the training loss: LABEL:WEIGHT pairs separated"
    " by commas, 1 for the others; or balanced, to compensate for unequal label"
    " frequencies.",
    section="training",
    needs="do_train",
  )
  given: frozenset[str] = frozenset()  # flags on the command line

  @property
  def task(self) -> str:
    """The --task_name in lower case without hyphens."""
    return plain_task(self.task_name or "")

  @property
  def asks_for_ids(self) -> bool:
    """True if --id_column is on the command line, not kept by a model."""
    return bool(self.id_column) and "id_column" in self.given

  def entries_as_flags(self, description: Mapping[str, Any]) -> dict[str, Any]:
    """See base class; names, labels and kind of the task have other keys."""
    columns = description.get("columns", {})
    flags = {f"{role}_column": column for role, column in columns.items()}
    flags |= super().entries_as_flags(description)
    if labels := description.get("labels"):
      flags["labels"] = labels
    kind = description.get("kind")
    if option.declaration(type(self), "problem_type").allows(kind):
      # A converted model has no name of its task.
      flags |= {"problem_type": kind, "task_name": "tsv"}
    if task := description.get("task"):
      flags["task_name"] = task
    return flags

  def check(self) -> None:
    """Refuses flags that the task does not take, or that it needs."""
    super().check()
    if self.dev_fraction and "dev_file" in self.given:
      raise InputError(
        f"--dev_fraction: contradicts --dev_file={self.dev_file}. Give one of"
        " them"
      )
    if self.task == "tsv":
      self._check_labels()
      return
    if not self.task:  # known once the model is there
      return
    flags = self.flags
    if flags.do_train or flags.evaluates or not self.predict_file:
      self.need("data_dir", f"task_name={self.task_name}")
    if self.asks_for_ids and not self.predict_file:
      raise InputError(
        f"--id_column={self.id_column}: the columns of"
        f" --task_name={self.task_name} are fixed. Leave out --id_column"
      )
    if self.dev_fraction:
      raise InputError(
        f"--dev_fraction: --task_name={self.task_name} has a dev set. Leave"
        " the flag out"
      )

  def _check_labels(self) -> None:
    """Refuses labels that are empty, repeated or too few."""
    labels, kind = self.labels, self.problem_type
    if labels is not None and kind != "regression":
      is_alone = kind == "classification" and len(labels) == 1
      if not all(labels) or len(set(labels)) < len(labels) or is_alone:
        raise InputError(
          f"--labels={','.join(labels)}: expected at least two labels,"
          " separated by commas. Remove empty and repeated ones"
        )
    if not self.label_delimiter:
      raise InputError(
        "--label_delimiter: is empty. Give the character between labels"
      )
