"""Record of the task: facts about embeddings that shared code asks for."""

from __future__ import annotations

from typing import Callable

from bertlib.cli import lazy_module
from bertlib.settings import embedding_spec
from bertlib.settings.embedding_spec import EmbeddingSpec
from bertlib.task.task_record import Description, PredictExample, TaskRecord
from bertlib.tasks.embeddings.settings import EmbeddingSettings

embedding_predictor = lazy_module.load(
  "bertlib.tasks.embeddings.embedding_predictor"
)
embedding_signatures = lazy_module.load(
  "bertlib.tasks.embeddings.embedding_signatures"
)


def _spec(description: Description) -> EmbeddingSpec:
  return embedding_spec.from_json(description["embedding"])


def _onnx_head(description: Description) -> Callable:
  spec = _spec(description)
  return lambda encoder: encoder.output_layer("sentence_vectors", spec=spec)


RECORD = TaskRecord(
  script=embedding_spec.SCRIPT,
  purpose="encodes sentences",
  settings=EmbeddingSettings,
  entries={"embedding?": embedding_spec.SCHEMA},
  required={"embedding": dict},
  problem=lambda description: embedding_spec.problem_of(
    description.get("embedding", {})
  ),
  prefix=lambda description: _spec(description).prompt(None),
  predict=PredictExample(
    "texts.txt",
    "Vectors of the lines of a file:",
    lambda description: ["A text.", "Another text."],
  ),
  export=lambda: embedding_signatures.Embedder,
  predictor=lambda: embedding_predictor.VectorPredictor,
  onnx_head=_onnx_head,
)
