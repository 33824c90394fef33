"""Record of the task: facts about embeddings that shared code asks for."""

from __future__ import annotations

from bertlib.checkpoints.task_record import PredictExample, TaskRecord
from bertlib.cli import lazy_module
from bertlib.settings import embedding_spec

embedding_signatures = lazy_module.load(
  "bertlib.tasks.embeddings.embedding_signatures"
)

RECORD = TaskRecord(
  script=embedding_spec.SCRIPT,
  purpose="encodes sentences",
  required={"embedding": dict},
  predict=PredictExample(
    "texts.txt",
    "Vectors of the lines of a file:",
    reads_folder=True,
    call=lambda description: 'encode(["A text.", "Another text."])',
  ),
  export=lambda: embedding_signatures.Embedder,
)
