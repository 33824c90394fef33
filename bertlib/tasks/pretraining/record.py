"""Record of the task: facts about masked LMs that shared code asks for."""

from __future__ import annotations

from typing import Callable

from bertlib.cli import lazy_module
from bertlib.cli.errors import InputError
from bertlib.task.task_record import (
  Description,
  HuggingFaceModel,
  PredictExample,
  TaskRecord,
)
from bertlib.tasks.pretraining import objectives
from bertlib.tasks.pretraining.settings import PretrainingSettings

fill_mask = lazy_module.load("bertlib.tasks.pretraining.fill_mask")
masked_lm_signatures = lazy_module.load(
  "bertlib.tasks.pretraining.masked_lm_signatures"
)


def _from_huggingface(model: HuggingFaceModel) -> Description | None:
  return {
    each.huggingface_class: each.description
    for each in objectives.OBJECTIVES.values()
  }.get(model.architecture)


def _onnx_head(description: Description) -> Callable:
  objective = objectives.of_model(description)
  if objective.has_generator:
    raise InputError(
      f"--format=onnx: the generator of objective {objective.name} is not"
      " written. Give --encoder to export the model"
    )
  return lambda encoder: encoder.output_layer(
    "masked_lm", predicts_pairs=objective.predicts_pairs
  )


RECORD = TaskRecord(
  script="run_pretraining",
  purpose="fills masks",
  settings=PretrainingSettings,
  # Name of an `Objective`, and fields of `objectives.ReplacedTokens`.
  entries={"objective?": str, "replaced_tokens?": dict},
  primary_metrics=("disc_auc", "masked_lm_loss", "next_sentence_loss"),
  predict=PredictExample(
    "lines.txt",
    "Words for each [MASK] in the lines of a file:",
    lambda description: ["A [MASK]."],
  ),
  from_huggingface=_from_huggingface,
  export=lambda: masked_lm_signatures.MaskedLM,
  predictor=lambda: fill_mask.MaskedLMPredictor,
  onnx_head=_onnx_head,
  fills_masks=True,
)
