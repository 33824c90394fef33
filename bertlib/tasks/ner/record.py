"""Record of the task: facts about named entities that shared code asks for."""

from __future__ import annotations

from bertlib.cli import lazy_module
from bertlib.task.task_record import (
  Description,
  HuggingFaceModel,
  PredictExample,
  TaskRecord,
)
from bertlib.tasks.ner.settings import NerSettings

ner_decoding = lazy_module.load("bertlib.tasks.ner.ner_decoding")
ner_report = lazy_module.load("bertlib.tasks.ner.ner_report")
ner_signatures = lazy_module.load("bertlib.tasks.ner.ner_signatures")


def _problem(description: Description) -> str | None:
  return "has no labels" if description.get("labels") == [] else None


def _from_huggingface(model: HuggingFaceModel) -> Description | None:
  if model.architecture != "BertForTokenClassification":
    return None
  return {"labels": model.output_names}


RECORD = TaskRecord(
  script="run_ner",
  purpose="tags words",
  settings=NerSettings,
  required={"labels": [str]},
  problem=_problem,
  primary_metrics=("f1",),
  compare=lambda *runs: ner_report.compare(*runs),
  predict=PredictExample(
    "sentences.txt",
    "Entities in the sentences of a file, in columns like the training set:",
    lambda description: ["Ann left Rome."],
  ),
  huggingface_class=lambda description: "BertForTokenClassification",
  from_huggingface=_from_huggingface,
  export=lambda: ner_signatures.Tagger,
  predictor=lambda: ner_decoding.TaggerPredictor,
  onnx_head=lambda _: (
    lambda encoder: encoder.output_layer("token_classification")
  ),
)
