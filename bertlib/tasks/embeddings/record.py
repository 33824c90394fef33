"""Record of the task: facts about embeddings that shared code asks for."""

from __future__ import annotations

import functools
from typing import Callable

from bertlib.cli import lazy_module
from bertlib.settings import embedding_spec
from bertlib.task.task_record import Description, PredictExample, TaskRecord
from bertlib.tasks.embeddings.settings import EmbeddingSettings

embedding_predictor = lazy_module.load(
  "bertlib.tasks.embeddings.embedding_predictor"
)
embedding_signatures = lazy_module.load(
  "bertlib.tasks.embeddings.embedding_signatures"
)
onnx_graph = lazy_module.load("bertlib.export.onnx_graph")


def _onnx_head(description: Description) -> Callable:
  spec = embedding_spec.from_json(description["embedding"])
  return functools.partial(onnx_graph.sentence_vectors, spec=spec)


RECORD = TaskRecord(
  script=embedding_spec.SCRIPT,
  purpose="encodes sentences",
  settings=EmbeddingSettings,
  required={"embedding": dict},
  predict=PredictExample(
    "texts.txt",
    "Vectors of the lines of a file:",
    lambda description: ["A text.", "Another text."],
  ),
  export=lambda: embedding_signatures.Embedder,
  predictor=lambda: embedding_predictor.VectorPredictor,
  onnx_head=_onnx_head,
)
