"""Settings of run_classifier.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.settings import option
from bertlib.settings.common import TrainingSettings

# Tasks as they are written in print.
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


@dataclasses.dataclass(frozen=True)
class ClassifierSettings(TrainingSettings):
  """Flags of run_classifier.py."""

  REQUIRED: ClassVar[Sequence[str]] = (
    "task_name",
    "vocab_file",
    "bert_config_file",
    "output_dir",
  )
  EXAMPLE: ClassVar[str] = (
    "python run_classifier.py --task_name=MRPC --data_dir=glue/MRPC"
    " --do_train --do_eval --init_checkpoint=bert-base-uncased"
    " --output_dir=output/mrpc"
  )

  data_dir: str | None = option.text(
    None, "Folder of the data set, with the task's files."
  )
  task_name: str | None = option.text(
    None,
    f"{', '.join(TASKS)}; or tsv for your own files.",
  )
  language: str = option.text("zh", "Language of XNLI.")
  predict_file: str | None = option.text(
    None,
    "Texts to label in place of the test set, one per line, with a tab before"
    " the second of a pair; - for standard input. Predictions go to"
    " NAME_predictions.tsv and .jsonl for a file NAME.txt, and to"
    " stdin_predictions for standard input.",
  )
  bad_rows: str = option.choice(
    "refuse",
    ["refuse", "skip"],
    "What becomes of rows that cannot be read; skipped ones are counted.",
  )
  train_file: str = option.text(
    "train.tsv",
    "For tsv: the train file, in --data_dir if that is given; .tsv, .csv or"
    " .jsonl.",
  )
  dev_file: str = option.text(
    "dev.tsv",
    "For tsv: the dev file, in --data_dir if that is given; .tsv, .csv or"
    " .jsonl.",
  )
  test_file: str = option.text(
    "test.tsv",
    "For tsv: the test file, in --data_dir if that is given; .tsv, .csv or"
    " .jsonl.",
  )
  text_a_column: str = option.text(
    "1", "For tsv: name, or number from 1, of the text."
  )
  text_b_column: str | None = option.text(
    None, "For tsv: of the second text, for pairs."
  )
  label_column: str = option.text("2", "For tsv: of the label.")
  labels: Sequence[str] | None = option.text_list(
    None, "For tsv: the label set; read from the data if not given."
  )
  problem_type: str = option.choice(
    "classification",
    ["classification", "regression", "multi_label"],
    "For tsv: whether labels are names, or numbers to come close to, or a text"
    " has any number of them.",
  )
  label_delimiter: str = option.text(
    ",", "For multi_label: between the labels of a text."
  )
  class_weights: Sequence[str] | None = option.text_list(
    None,
    "What labels count in training: LABEL:WEIGHT with commas between, 1 for"
    " the others; or balanced, for as much as they are rare.",
  )
