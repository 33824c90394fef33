"""Record of the task: facts about answers that shared code asks for."""

from __future__ import annotations

from bertlib.cli import lazy_module
from bertlib.settings import model_description
from bertlib.task.task_record import (
  Description,
  HuggingFaceModel,
  PredictExample,
  TaskRecord,
)
from bertlib.tasks.squad.settings import SquadSettings

squad_decoding = lazy_module.load("bertlib.tasks.squad.squad_decoding")
squad_report = lazy_module.load("bertlib.tasks.squad.squad_report")
squad_signatures = lazy_module.load("bertlib.tasks.squad.squad_signatures")

# Longest window in the question answering of transformers.
_HUGGINGFACE_LENGTH = 384


def _from_huggingface(model: HuggingFaceModel) -> Description | None:
  if model.architecture != "BertForQuestionAnswering":
    return None
  length = min(_HUGGINGFACE_LENGTH, model.max_seq_length)
  # Its files do not say how it was trained: the values that transformers uses.
  return {
    "version_2_with_negative": False,
    "max_seq_length": length,
    "doc_stride": min(128, length // 2),
    "max_query_length": min(64, length // 4),
  }


RECORD = TaskRecord(
  script="run_squad",
  purpose="answers questions",
  settings=SquadSettings,
  entries=model_description.schema(
    SquadSettings,
    [
      "version_2_with_negative",
      "doc_stride",
      "max_query_length",
      "null_score_diff_threshold",
    ],
  ),
  required={
    "version_2_with_negative": bool,
    "doc_stride": int,
    "max_query_length": int,
  },
  primary_metrics=("best_f1", "f1"),
  compare=lambda *runs: squad_report.compare(*runs),
  predict=PredictExample(
    "questions.json",
    "Answers to the questions of a file:",
    lambda description: [("Who left?", "Ann stayed. Bob left.")],
  ),
  huggingface_class=lambda description: "BertForQuestionAnswering",
  from_huggingface=_from_huggingface,
  export=lambda: squad_signatures.QuestionAnswering,
  predictor=lambda: squad_decoding.AnswerPredictor,
  onnx_head=lambda _: lambda encoder: encoder.output_layer("spans"),
)
