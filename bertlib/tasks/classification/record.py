"""Record of the task: facts about classification that shared code asks for."""

from __future__ import annotations

from typing import Any, Callable

from bertlib.cli import lazy_module
from bertlib.cli.errors import InputError
from bertlib.task.task_record import (
  PROBLEM_TYPES,
  Description,
  HuggingFaceModel,
  PredictExample,
  TaskRecord,
)
from bertlib.tasks.classification import classification
from bertlib.tasks.classification.settings import ClassifierSettings

classification_comparison = lazy_module.load(
  "bertlib.tasks.classification.classification_comparison"
)
classification_decoding = lazy_module.load(
  "bertlib.tasks.classification.classification_decoding"
)
classifier_signatures = lazy_module.load(
  "bertlib.tasks.classification.classifier_signatures"
)

# What makes probabilities of logits, as an ONNX operation.
_ONNX_ACTIVATIONS = {"classification": "Softmax", "multi_label": "Sigmoid"}


def _examples(description: Description) -> list[Any]:
  if description.get("kind") == "multiple_choice":
    endings = range(1, len(description["labels"]) + 1)
    return [[("A text", f"ending {n}") for n in endings]]
  if description.get("has_pairs"):
    return [("A text.", "Another text.")]
  return ["A text."]


def _huggingface_class(description: Description) -> str:
  if description.get("kind") == "multiple_choice":
    return "BertForMultipleChoice"
  return "BertForSequenceClassification"


def _from_huggingface(model: HuggingFaceModel) -> dict[str, Any] | None:
  if model.architecture == "BertForMultipleChoice":
    # Its files do not say how many choices a question has: four, as in SWAG.
    labels = model.labels if len(model.labels) > 2 else ["0", "1", "2", "3"]
    return {"kind": "multiple_choice", "labels": labels}
  if model.architecture != "BertForSequenceClassification":
    return None
  if model.scores_pairs and RECORD.script not in model.scripts:
    return None
  problem_type = model.config.get("problem_type")
  kinds = {name: kind for kind, name in PROBLEM_TYPES.items()}
  kind = kinds.get(problem_type, "classification")
  if kind == "regression" and model.num_labels != 1:
    raise InputError(
      f"config.json: problem_type is regression, but the model has"
      f" {model.num_labels} outputs, not 1. Make a folder of each output"
    )
  if model.prompt:
    raise InputError(
      f"config_sentence_transformers.json: default_prompt_name has a prompt,"
      f" but classifiers here have none. Remove it, and put {model.prompt!r}"
      " before the first texts yourself"
    )
  if model.activation == "sigmoid":
    kind = "multi_label"
  labels = [] if kind == "regression" else model.output_names
  entries = {"kind": kind, "labels": labels}
  # For `to_huggingface`, where the kind says more than the config did.
  if model.activation:
    entries |= {"problem_type": problem_type, "activation": model.activation}
  return entries


def _onnx_head(description: Description) -> Callable:
  kind = classification.problem_from_description(description).kind
  activation = _ONNX_ACTIVATIONS.get(kind)
  return lambda encoder: encoder.output_layer(
    "classification", activation=activation
  )


RECORD = TaskRecord(
  script="run_classifier",
  purpose="labels texts",
  settings=ClassifierSettings,
  entries={"has_pairs?": bool, "thresholds?": dict},
  required={"labels": [str]},
  problem=classification.description_problem,
  primary_metrics=("matthews", "pearson", "micro_f1", "accuracy"),
  compare=lambda *runs: classification_comparison.compare(*runs),
  predict=PredictExample(
    "texts.txt", "Labels of the lines of a file:", _examples
  ),
  huggingface_class=_huggingface_class,
  from_huggingface=_from_huggingface,
  export=lambda: classifier_signatures.Classifier,
  predictor=lambda: classification_decoding.ClassifierPredictor,
  onnx_head=_onnx_head,
)
