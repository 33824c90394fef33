"""Record of the task: facts about answers that shared code asks for."""

from __future__ import annotations

from bertlib.checkpoints.task_record import PredictExample, TaskRecord
from bertlib.cli import lazy_module
from bertlib.cli.option import declaration
from bertlib.settings.squad import SquadSettings

squad_report = lazy_module.load("bertlib.tasks.squad.squad_report")
squad_signatures = lazy_module.load("bertlib.tasks.squad.squad_signatures")

_CALL = 'predict([("Who left?", "Ann stayed. Bob left.")])'

RECORD = TaskRecord(
  script="run_squad",
  purpose="answers questions",
  entries={
    "version_2_with_negative?": bool,
    "doc_stride?": declaration(SquadSettings, "doc_stride"),
    "max_query_length?": declaration(SquadSettings, "max_query_length"),
    "null_score_diff_threshold?": declaration(
      SquadSettings, "null_score_diff_threshold"
    ),
  },
  required={
    "version_2_with_negative": bool,
    "doc_stride": int,
    "max_query_length": int,
  },
  primary_metrics=("best_f1", "f1"),
  uses={"predict_file": "dev data"},
  compare=lambda *runs: squad_report.compare(*runs),
  predict=PredictExample(
    "questions.json",
    "Answers to the questions of a file:",
    (
      "doc_stride",
      "mask_padding",
      "max_answer_length",
      "max_query_length",
      "n_best_size",
      "null_score_diff_threshold",
      "version_2_with_negative",
    ),
    call=lambda description: _CALL,
  ),
  export=lambda: squad_signatures.QuestionAnswering,
)
