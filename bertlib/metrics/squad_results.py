"""Answers of a run: decoded, and written with their scores."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from absl import logging

from bertlib import app
from bertlib.data import squad_features, squad_files
from bertlib.data.squad_examples import SquadExample
from bertlib.metrics import result_files, squad_decoding, squad_evaluation
from bertlib.settings.squad import SquadSettings


def decode(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  windows: Sequence[squad_features.Window],
  logits: np.ndarray,
  questions: Sequence[squad_files.Question] | None,
) -> dict[str, float]:
  """Writes the answers; scores them, and tries other settings, if so asked.

  Args:
    settings: of the command.
    examples: the questions.
    windows: their windows.
    logits: [2, windows, max_seq_length], the model's scores.
    questions: the accepted answers, if they are needed.

  Returns:
    The scores by name; none if they are not asked for.
  """
  features = (
    examples,
    windows,
    squad_evaluation.raw_results(windows, logits),
  )
  answers, odds = squad_decoding.write_predictions(
    *features,
    settings.n_best_size,
    settings.max_answer_length,
    settings.model.do_lower_case,
    os.path.join(settings.run.output_dir, "predictions.json"),
    os.path.join(settings.run.output_dir, "nbest_predictions.json"),
    os.path.join(settings.run.output_dir, "null_odds.json"),
    settings.version_2_with_negative,
    settings.null_score_diff_threshold,
  )
  logging.info(
    "Answers to %d questions in %s", len(examples), settings.run.output_dir
  )
  impossible = [
    name for name, odd in odds.items() if odd == squad_decoding.CERTAIN_ODDS
  ]
  if impossible:
    logging.warning(
      "%d questions have no span that could be an answer, such as %s",
      len(impossible),
      impossible[0],
    )
  scores = {}
  if settings.run.do_eval:
    scores = squad_evaluation.score(
      settings, questions, answers, odds, settings.null_score_diff_threshold
    )
    result_files.write_results(
      os.path.join(settings.run.output_dir, "eval_results.txt"), scores
    )
    if settings.version_2_with_negative:
      logging.info(
        "F1 is %.2f at --null_score_diff_threshold=%s, and best, %.2f, at %s",
        scores["f1"],
        settings.null_score_diff_threshold,
        scores["best_f1"],
        scores["best_f1_thresh"],
      )
  if settings.sweeps:
    finder = squad_decoding.AnswerFinder(
      *features, settings.model.do_lower_case
    )
    app.print_table(
      list(squad_evaluation.sweep(settings, examples, finder, questions))
    )
  return scores


def answers_to_compare(
  output_dir: str,
  questions: Sequence[squad_files.Question],
) -> tuple[list[str], list[str] | None]:
  """Predicted answers, and the gold ones where they are known.

  Args:
    output_dir: has the predictions.
    questions: with the accepted answers; none if these were not read.
  """
  predicted = squad_files.read_json(
    os.path.join(output_dir, "predictions.json")
  )
  gold = [
    next((answer.text for answer in question.answers), "")
    for question in questions
  ]
  return (
    [text or "no answer" for text in predicted.values()],
    [text or "no answer" for text in gold] if questions else None,
  )
