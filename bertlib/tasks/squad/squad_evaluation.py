"""Evaluation of SQuAD answers from logits, and sweeps of decoder settings."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bertlib.settings.squad import SquadSettings
from bertlib.tasks.squad import (
  squad_decoding,
  squad_features,
  squad_files,
  squad_scores,
)
from bertlib.tasks.squad.squad_decoding import RawResult
from bertlib.tasks.squad.squad_examples import SquadExample


def raw_results(
  windows: Sequence[squad_features.Window], logits: np.ndarray
) -> list[RawResult]:
  """Converts logits [2, num_windows, max_seq_length] to one result per window.

  `logits[0]` are the start logits, `logits[1]` the end logits.
  """
  return [
    RawResult(window.unique_id, *scores)
    for window, *scores in zip(windows, *logits)
  ]


def evaluate_logits(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  windows: Sequence[squad_features.Window],
  logits: np.ndarray,
  questions: Sequence[squad_files.Question],
) -> dict[str, float]:
  """Metrics of the best answers, without writing files."""
  finder = squad_decoding.AnswerFinder(
    examples,
    windows,
    raw_results(windows, logits),
    settings.model.do_lower_case,
  )
  return evaluate_best(
    settings,
    examples,
    finder,
    questions,
    settings.n_best_size,
    settings.max_answer_length,
    settings.null_score_diff_threshold,
  )


def evaluate_best(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  finder: squad_decoding.AnswerFinder,
  questions: Sequence[squad_files.Question],
  n_best_size: int,
  max_answer_length: int,
  threshold: float,
) -> dict[str, float]:
  """Metrics of the best answers for one setting of the decoder.

  See `AnswerFinder.best_predictions` and `evaluate_answers`.
  """
  names = [example.qas_id for example in examples]
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
  """Computes the metrics selected by the flags.

  Args:
    settings: settings of run_squad.py.
    questions: questions with gold answers.
    answers: predicted answers by question id, regardless of the null odds.
    odds: null odds by question id.
    threshold: null odds above this mean no answer.

  Returns:
    Metrics by name, in percent.
  """
  if settings.version_2_with_negative:
    return squad_scores.evaluate_v2(
      questions, answers, odds, threshold, answer_nothing=-math.inf
    )
  score = squad_scores.scorer(settings.eval_metric)
  return squad_scores.evaluate_v1(questions, answers, score)


def sweep(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  finder: squad_decoding.AnswerFinder,
  questions: Sequence[squad_files.Question],
) -> Iterator[dict[str, float]]:
  """Evaluates all combinations of the decoder settings in the sweep flags.

  Yields:
    Each combination of settings with its metrics.
  """
  for size, length in itertools.product(
    settings.sweep_n_best_size or [settings.n_best_size],
    settings.sweep_max_answer_length or [settings.max_answer_length],
  ):
    row = {"n_best_size": size, "max_answer_length": length}
    best = functools.partial(
      evaluate_best, settings, examples, finder, questions, size, length
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
