"""Answers of a run: decoded, written, scored, and compared."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bertlib.data import (
  squad,
  squad_files,
)
from bertlib.data.squad import (
  SquadExample,
)
from bertlib.errors import InputError
from bertlib.files import write_whole
from bertlib.metrics import result_files, squad_decoding, squad_scores
from bertlib.metrics.squad_decoding import (
  RawResult,
)
from bertlib.settings.squad import SquadSettings


def sweeps(settings: SquadSettings) -> bool:
  """Whether several settings are to be tried."""
  return bool(
    numbers(settings, "sweep_n_best_size")
    or numbers(settings, "sweep_max_answer_length")
    or numbers(settings, "sweep_null_threshold", float)
  )


def numbers(settings: SquadSettings, flag: str, kind: type = int) -> list[Any]:
  """The numbers of a list flag.

  Args:
    settings: of the command.
    flag: its name.
    kind: int or float.

  Returns:
    The numbers; none if the flag is not given.

  Raises:
    InputError: one is none, or an integer below 1.
  """
  values = getattr(settings, flag) or []
  try:
    read = [kind(value) for value in values]
  except ValueError:
    read = [None]
  if None in read or (kind is int and any(value < 1 for value in read)):
    raise InputError(
      f"--{flag}={','.join(values)}: give numbers with commas between"
    )
  return read


def write_unaligned(
  settings: SquadSettings, unaligned: Sequence[Mapping[str, Any]]
) -> None:
  """Lists the answers that could not be used, in --output_dir."""
  path = in_output_dir(settings, "unaligned_answers.jsonl")
  with write_whole(path) as file:
    for answer in unaligned:
      file.write(json.dumps(answer, ensure_ascii=False) + "\n")
  if unaligned:
    logging.info("Answers that could not be used are listed in %s", path)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
  """Prints rows with the same keys as a table."""
  cells = [list(rows[0])]
  for row in rows:
    cells.append(
      [f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()]
    )
  widths = [max(map(len, column)) for column in zip(*cells)]
  for row in cells:
    print("  ".join(map(str.rjust, row, widths)))


# Decoding


def find_answers(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  windows: Sequence[squad.Window],
  logits: np.ndarray,
) -> squad_decoding.AnswerFinder:
  """What finds the answers that the model's scores say.

  Args:
    settings: of the command.
    examples: the questions.
    windows: their windows.
    logits: [2, windows, max_seq_length], the model's scores.
  """
  results = [
    RawResult(window.unique_id, *scores)
    for window, *scores in zip(windows, *logits)
  ]
  return squad_decoding.AnswerFinder(
    examples, windows, results, settings.model.do_lower_case
  )


def score_logits(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  windows: Sequence[squad.Window],
  logits: np.ndarray,
  questions: Sequence[squad_files.Question],
) -> dict[str, float]:
  """The scores of the answers, with nothing written; see `decode`."""
  finder = find_answers(settings, examples, windows, logits)
  return score_best(
    settings,
    examples,
    finder,
    questions,
    settings.n_best_size,
    settings.max_answer_length,
    settings.null_score_diff_threshold,
  )


def decode(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  windows: Sequence[squad.Window],
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
  finder = find_answers(settings, examples, windows, logits)
  answers, odds = squad_decoding.write_answers(
    examples,
    finder,
    settings.n_best_size,
    settings.max_answer_length,
    in_output_dir(settings, "predictions.json"),
    in_output_dir(settings, "nbest_predictions.json"),
    in_output_dir(settings, "null_odds.json"),
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
    scores = score(
      settings, questions, answers, odds, settings.null_score_diff_threshold
    )
    result_files.write_results(
      in_output_dir(settings, "eval_results.txt"), scores
    )
    if settings.version_2_with_negative:
      logging.info(
        "F1 is %.2f at --null_score_diff_threshold=%s, and best, %.2f, at %s",
        scores["f1"],
        settings.null_score_diff_threshold,
        scores["best_f1"],
        scores["best_f1_thresh"],
      )
  if sweeps(settings):
    print_table(list(sweep(settings, examples, finder, questions)))
  return scores


def in_output_dir(settings: SquadSettings, name: str) -> str:
  """The path of a file in --output_dir."""
  return os.path.join(settings.run.output_dir, name)


def score(
  settings: SquadSettings,
  questions: Sequence[squad_files.Question],
  answers: Mapping[str, str],
  odds: Mapping[str, float],
  threshold: float,
) -> dict[str, float]:
  """The scores that the flags ask for.

  Args:
    settings: of the command.
    questions: the accepted answers.
    answers: the model's by question id, whatever the odds of none.
    odds: of none, by question id.
    threshold: above which there is none.

  Returns:
    Scores by name.
  """
  if settings.version_2_with_negative:
    return squad_scores.evaluate_v2(
      questions, answers, odds, threshold, answer_nothing=-math.inf
    )
  score_one = squad_scores.score_v1
  if settings.eval_metric == "chinese":
    score_one = squad_scores.score_chinese
  return squad_scores.evaluate_v1(questions, answers, score_one)


def sweep(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  finder: squad_decoding.AnswerFinder,
  questions: Sequence[squad_files.Question],
) -> Iterator[dict[str, float]]:
  """Scores with all combinations of the settings that the flags list.

  Args:
    settings: of the command.
    examples: the questions.
    finder: finds their answers.
    questions: the accepted answers.

  Yields:
    The settings with their scores.
  """
  for size, length in itertools.product(
    numbers(settings, "sweep_n_best_size") or [settings.n_best_size],
    numbers(settings, "sweep_max_answer_length")
    or [settings.max_answer_length],
  ):
    row = {"n_best_size": size, "max_answer_length": length}
    best = functools.partial(
      score_best, settings, examples, finder, questions, size, length
    )
    if not settings.version_2_with_negative:
      yield row | best(0.0)
      continue
    thresholds = numbers(settings, "sweep_null_threshold", float)
    for threshold in thresholds or [settings.null_score_diff_threshold]:
      scores = best(threshold)
      shown = ("exact", "f1", "best_f1", "best_f1_thresh")
      yield row | {"null_threshold": threshold} | {k: scores[k] for k in shown}


def score_best(
  settings: SquadSettings,
  examples: Sequence[SquadExample],
  finder: squad_decoding.AnswerFinder,
  questions: Sequence[squad_files.Question],
  n_best_size: int,
  max_answer_length: int,
  threshold: float,
) -> dict[str, float]:
  """The scores of the answers that one setting of the decoder finds.

  Args:
    settings: of the command.
    examples: the questions.
    finder: finds their answers.
    questions: the accepted answers.
    n_best_size: see `squad_decoding.AnswerFinder`.
    max_answer_length: likewise.
    threshold: see `score`.

  Returns:
    Scores by name.
  """
  names = [example.qas_id for example in examples]
  texts, odds = zip(*finder.best(n_best_size, max_answer_length))
  by_name = dict(zip(names, texts)), dict(zip(names, odds))
  return score(settings, questions, *by_name, threshold)


def answers_to_compare(
  settings: SquadSettings,
  questions: Sequence[squad_files.Question],
) -> tuple[list[str], list[str] | None]:
  """Predicted answers, and the gold ones where they are known.

  Args:
    settings: of the command.
    questions: with the accepted answers; none if these were not read.
  """
  predicted = squad_files.read_json(in_output_dir(settings, "predictions.json"))
  gold = [
    next((answer.text for answer in question.answers), "")
    for question in questions
  ]
  return (
    [text or "no answer" for text in predicted.values()],
    [text or "no answer" for text in gold] if questions else None,
  )
