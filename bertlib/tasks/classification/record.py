"""Record of the task: facts about classification that shared code asks for."""

from __future__ import annotations

from bertlib.checkpoints.task_record import (
  Description,
  PredictExample,
  TaskRecord,
)
from bertlib.cli import lazy_module
from bertlib.tasks.classification import classification

classification_report = lazy_module.load(
  "bertlib.tasks.classification.classification_report"
)
classifier_signatures = lazy_module.load(
  "bertlib.tasks.classification.classifier_signatures"
)


def _call(description: Description) -> str:
  text = '"A text."'
  if description.get("kind") == "multiple_choice":
    text = '[("A text", "an ending."), ("A text", "another one.")]'
  elif description.get("has_pairs"):
    text = '("A text.", "Another text.")'
  return f"predict([{text}])"


def _huggingface_class(description: Description) -> str:
  if description.get("kind") == "multiple_choice":
    return "BertForMultipleChoice"
  return "BertForSequenceClassification"


RECORD = TaskRecord(
  script="run_classifier",
  purpose="labels texts",
  entries={"columns?": dict, "has_pairs?": bool, "thresholds?": dict},
  required={"labels": [str]},
  problem=classification.description_problem,
  primary_metrics=("matthews", "pearson", "micro_f1", "accuracy"),
  compare=lambda *runs: classification_report.compare(*runs),
  predict=PredictExample(
    "texts.txt",
    "Labels of the lines of a file:",
    (
      "task_name",
      "data_dir",
      "language",
      "train_file",
      "text_a_column",
      "text_b_column",
      "label_column",
      "labels",
      "problem_type",
      "label_delimiter",
    ),
    call=_call,
  ),
  huggingface_class=_huggingface_class,
  export=lambda: classifier_signatures.Classifier,
)
