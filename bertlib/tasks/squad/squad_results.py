"""Decodes, writes and evaluates the answers of a SQuAD run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from bertlib.cli import terminal
from bertlib.settings.squad import SquadSettings
from bertlib.tasks.squad import (
  squad_answer_files,
  squad_decoding,
  squad_evaluation,
  squad_features,
  squad_files,
)
from bertlib.tasks.squad.squad_examples import SquadExample


def decode(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  windows: Sequence[squad_features.Window],
  logits: np.ndarray,
  questions: Sequence[squad_files.Question] | None,
) -> dict[str, float]:
  """Writes the answers; evaluates them and sweeps settings by the flags.

  Args:
    settings: settings of run_squad.py.
    examples: the questions.
    windows: their windows.
    logits: [2, num_windows, max_seq_length], start and end logits.
    questions: questions with gold answers; needed for --do_eval and sweeps.

  Returns:
    Metrics by name; empty without --do_eval.
  """
  finder = squad_decoding.AnswerFinder(
    examples,
    windows,
    squad_evaluation.raw_results(windows, logits),
    settings.model.do_lower_case,
  )
  answers, odds = squad_answer_files.write_answers(
    finder,
    settings.n_best_size,
    settings.max_answer_length,
    os.path.join(settings.run.output_dir, "predictions.json"),
    os.path.join(settings.run.output_dir, "nbest_predictions.json"),
    os.path.join(settings.run.output_dir, "null_odds.json"),
    settings.version_2_with_negative,
    settings.null_score_diff_threshold,
  )
  logging.info(
    "Answers to %d questions in %s", len(examples), settings.run.output_dir
  )
  _warn_of_questions_without_spans(odds)
  scores = {}
  if settings.run.do_eval:
    scores = _score(settings, questions, answers, odds)
  if settings.sweeps:
    terminal.print_table(
      list(squad_evaluation.sweep(settings, examples, finder, questions))
    )
  return scores


def _warn_of_questions_without_spans(odds: Mapping[str, float]) -> None:
  impossible = [
    name for name, odd in odds.items() if odd == squad_decoding.CERTAIN_ODDS
  ]
  if impossible:
    logging.warning(
      "%d questions have no valid answer span, such as %s",
      len(impossible),
      impossible[0],
    )


def _score(
  settings: SquadSettings,
  questions: Sequence[squad_files.Question],
  answers: Mapping[str, str],
  odds: Mapping[str, float],
) -> dict[str, float]:
  """Returns the metrics of the answers; logs the best threshold."""
  scores = squad_evaluation.evaluate_answers(
    settings, questions, answers, odds, settings.null_score_diff_threshold
  )
  if settings.version_2_with_negative:
    logging.info(
      "F1 is %.2f at --null_score_diff_threshold=%s, and best, %.2f, at %s",
      scores["f1"],
      settings.null_score_diff_threshold,
      scores["best_f1"],
      scores["best_f1_thresh"],
    )
  return scores


def answers_to_compare(
  output_dir: str,
  questions: Sequence[squad_files.Question],
) -> tuple[list[str], list[str] | None]:
  """Predicted answers, and gold answers if known.

  Args:
    output_dir: folder that contains predictions.json.
    questions: questions with gold answers; empty if they were not read.

  Returns:
    The predicted answers in the order of the file; and the first gold answer of
    each question, or None.
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
