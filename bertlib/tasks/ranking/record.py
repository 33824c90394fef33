"""Record of the task: facts about rerankers that shared code asks for."""

from __future__ import annotations

from typing import Any

from bertlib.cli import lazy_module
from bertlib.task.task_record import (
  Description,
  HuggingFaceModel,
  PredictExample,
  TaskRecord,
)
from bertlib.tasks.ranking.settings import RankingSettings

ranking_predictor = lazy_module.load("bertlib.tasks.ranking.ranking_predictor")
ranking_signatures = lazy_module.load(
  "bertlib.tasks.ranking.ranking_signatures"
)

# What makes scores of logits.
ACTIVATIONS = ("sigmoid", "identity")


def _problem(description: Description) -> str | None:
  activation = description.get("activation", "identity")
  if activation in ACTIVATIONS:
    return None
  return f"activation is {activation!r}, not one of {', '.join(ACTIVATIONS)}"


def _from_huggingface(model: HuggingFaceModel) -> dict[str, Any] | None:
  if not model.scores_pairs:
    return None
  entries = {"activation": model.activation or "sigmoid"}
  return entries | ({"query_prefix": model.prompt} if model.prompt else {})


RECORD = TaskRecord(
  script="run_reranker",
  purpose="ranks documents",
  settings=RankingSettings,
  entries={"query_prefix?": str},
  required={"activation": str},
  problem=_problem,
  prefix=lambda description: description.get("query_prefix", ""),
  predict=PredictExample(
    "pairs.tsv",
    "Scores of pairs of a query and a document:",
    lambda _: [("A question?", "A text."), ("A question?", "Another text.")],
  ),
  huggingface_class=lambda _: "BertForSequenceClassification",
  from_huggingface=_from_huggingface,
  export=lambda: ranking_signatures.Reranker,
  predictor=lambda: ranking_predictor.RankingPredictor,
  # Documents are ranked by logits: many scores may be 1.
  onnx_head=lambda _: (
    lambda encoder: encoder.output_layer("classification", activation=None)
  ),
)
