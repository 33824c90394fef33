"""Decodes, writes and evaluates the answers of a run; sweeps of decoders."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence

from absl import logging

from bertlib.cli import terminal
from bertlib.settings.squad import SquadSettings
from bertlib.tasks.squad import (
  squad_answer_files,
  squad_decoding,
  squad_files,
  squad_scores,
)


def decode(
  settings: SquadSettings,
  finder: squad_decoding.AnswerFinder,
  questions: Sequence[squad_files.Question] | None,
) -> dict[str, float]:
  """Writes the answers; evaluates them and sweeps settings by the flags."""
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
    "Answers to %d questions in %s",
    len(finder.examples),
    settings.run.output_dir,
  )
  _warn_of_questions_without_spans(odds)
  scores = {}
  if settings.run.do_eval:
    scores = _score(settings, questions, answers, odds)
  if settings.sweeps:
    terminal.print_table(list(sweep(settings, finder, questions)))
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
  scores = evaluate_answers(
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
  """Predicted answers in the order of the file; first gold answers, or None."""
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


# Metrics


def evaluate_best(
  settings: SquadSettings,
  finder: squad_decoding.AnswerFinder,
  questions: Sequence[squad_files.Question],
  n_best_size: int,
  max_answer_length: int,
  threshold: float,
) -> dict[str, float]:
  """Metrics of the best answers for one setting of the decoder."""
  names = [example.qas_id for example in finder.examples]
  texts, odds = zip(*finder.best_predictions(n_best_size, max_answer_length))
  by_name = dict(zip(names, texts)), dict(zip(names, odds))
  return evaluate_answers(settings, questions, *by_name, threshold)


def evaluate_answers(
  settings: SquadSettings,
  questions: Sequence[squad_files.Question],
  answers: Mapping[str, str],
  odds: Mapping[str, float],
  threshold: float,
) -> dict[str, float]:
  """Metrics, in percent, of answers given regardless of their null odds."""
  if settings.version_2_with_negative:
    return squad_scores.evaluate_v2(
      questions, answers, odds, threshold, answer_nothing=-math.inf
    )
  score = squad_scores.scorer(settings.eval_metric)
  return squad_scores.evaluate_v1(questions, answers, score)


def sweep(
  settings: SquadSettings,
  finder: squad_decoding.AnswerFinder,
  questions: Sequence[squad_files.Question],
) -> Iterator[dict[str, float]]:
  """Evaluates all combinations of the decoder settings in the sweep flags."""
  for size, length in itertools.product(
    settings.sweep_n_best_size or [settings.n_best_size],
    settings.sweep_max_answer_length or [settings.max_answer_length],
  ):
    row = {"n_best_size": size, "max_answer_length": length}
    best = functools.partial(
      evaluate_best, settings, finder, questions, size, length
    )
    if not settings.version_2_with_negative:
      yield row | best(0.0)
      continue
    for threshold in settings.sweep_null_threshold or [
      settings.null_score_diff_threshold
    ]:
      scores = best(threshold)
      shown = ("exact", "f1", "best_f1", "best_f1_thresh")
      yield row | {"null_threshold": threshold} | {k: scores[k] for k in shown}
