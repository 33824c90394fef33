"""The report of answers: errors, calibration, thresholds and intervals."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.io import files
from bertlib.reporting import html_report, receipts, statistics
from bertlib.reporting.html_report import Html, Section
from bertlib.reporting.statistics import Comparison, Estimates
from bertlib.tasks.squad import (
  squad_decoding,
  squad_files,
  squad_scores,
)
from bertlib.tasks.squad.settings import AnswerSettings
from bertlib.tasks.squad.squad_scores import Score

# Errors that are shown, and occurrences of a predicted answer that are marked.
_NUM_ERRORS, _MAX_PLACES = 30, 5

_ABOUT_MARKS = Html(
  '<mark class="gold">solid underline</mark>: gold answer;'
  ' <mark class="predicted">dashed underline</mark>: predicted answer, wherever'
  " its text occurs."
)


class AnsweredQuestion(NamedTuple):
  """A question with its predicted answer."""

  question: squad_files.Question  # with its gold answers
  predicted: str  # "" for no answer
  probability: float  # 0 if it is not among the best answers
  score: squad_scores.Score


def answered_questions(
  questions: Sequence[squad_files.Question],
  answers: squad_decoding.Answers,
  settings: AnswerSettings,
) -> list[AnsweredQuestion]:
  """The questions of a data set with their predicted answers."""
  score = squad_scores.scorer(
    settings.eval_metric, settings.version_2_with_negative
  )
  answered = []
  for question in questions:
    predicted = answers.predictions[question.id]
    probability = next(
      (
        answer.probability
        for answer in squad_decoding.answers(answers.nbest[question.id])
        if answer.text == predicted
      ),
      0.0,
    )
    gold = [answer.text for answer in question.answers]
    answered.append(
      AnsweredQuestion(question, predicted, probability, score(predicted, gold))
    )
  return answered


def answers_to_compare(
  answers: squad_decoding.Answers, questions: Sequence[squad_files.Question]
) -> tuple[list[str], list[str] | None]:
  """Predicted answers in the order of the file; first gold answers, or None."""
  gold = [next((a.text for a in q.answers), "") for q in questions]
  return (
    [text or "no answer" for text in answers.predictions.values()],
    [text or "no answer" for text in gold] or None,
  )


def sections(
  answered: Sequence[AnsweredQuestion],
  results: Mapping[str, float],
  threshold: float,
) -> list[Section]:
  """Sections on answers to questions, for `run_report.Findings`."""
  sections = [
    html_report.calibration(
      [answer.probability for answer in answered],
      [answer.score.exact == 1 for answer in answered],
    )
  ]
  if "best_f1_thresh" in results:
    sections.insert(0, _threshold_table(results, threshold))
  errors = [answer for answer in answered if answer.score.f1 < 0.5]
  errors.sort(key=lambda answer: -answer.probability)
  rows = [
    {
      "question": answer.question.text,
      "gold": " / ".join(dict.fromkeys(a.text for a in answer.question.answers))
      or "no answer",
      "predicted": answer.predicted or "no answer",
      "probability": answer.probability,
      "text": html_report.marked_text(
        answer.question.context, find_spans(answer.question, answer.predicted)
      ),
    }
    for answer in errors[:_NUM_ERRORS]
  ]
  return [*sections, html_report.errors(rows, _ABOUT_MARKS)]


def _threshold_table(results: Mapping[str, float], threshold: float) -> Section:
  """Section on the tuned thresholds of SQuAD 2.0."""
  rows = [
    {"threshold": threshold, "exact": results["exact"], "F1": results["f1"]},
    {"threshold": results["best_exact_thresh"], "exact": results["best_exact"]},
    {"threshold": results["best_f1_thresh"], "F1": results["best_f1"]},
  ]
  kinds = ("of this run", "best exact match", "best F1")
  return html_report.table(
    "Tuned --null_score_diff_threshold",
    [{"": kind, **row} for kind, row in zip(kinds, rows)],
  )


def find_spans(
  question: squad_files.Question, predicted: str
) -> list[tuple[int, int, str]]:
  """Spans of gold answers and a predicted one for `marked_text`."""
  context = question.context
  spans = set()
  for text, start in question.answers:
    end = start + len(text)
    if context[start:end] == text and text:
      spans.add((start, end, "gold"))
  # The file of predictions has no positions: the first occurrences of the text
  # are marked.
  words = r"\s+".join(map(re.escape, predicted.split()))
  found = re.finditer(words, context) if words else ()
  spans |= {
    (*place.span(), "predicted")
    for place in itertools.islice(found, _MAX_PLACES)
  }
  return sorted(spans)


def estimates(
  scores: Sequence[Score], results: Mapping[str, float]
) -> Estimates:
  """Estimates for answers to questions, in percent."""
  exact = "exact" if "exact" in results else "exact_match"
  values = 100 * np.array(scores, np.float64).reshape(len(scores), 2)
  baselines = {}
  if "total" in results:
    share = 100 * results.get("NoAns_total", 0) / results["total"]
    baselines = dict.fromkeys((exact, "f1"), ("never answering", share))
  return Estimates(
    f"{len(scores):,} questions",
    {
      name: statistics.bootstrap(np.mean, values[:, column])
      for column, name in enumerate((exact, "f1"))
    },
    baselines,
  )


# Comparison of two runs


def compare(first: Any, other: Any) -> Comparison:
  """Compares exact match and F1 of two runs; empty if they are not known."""
  scores = [_answer_scores(run) for run in (first, other)]
  if first.dev_data != other.dev_data or not all(map(len, scores)):
    return Comparison()
  exact, f1 = zip(*(run.T for run in scores))
  return Comparison(
    statistics.mcnemar(*(values == 1 for values in exact)),
    {"f1": statistics.difference_interval(np.mean, *(100 * v for v in f1))},
  )


def _answer_scores(run: Any) -> np.ndarray:
  """Exact match and F1 of each answer; empty if data or answers changed."""
  nothing = np.empty([0, 2])
  entries = run.dev_files()
  path = os.path.join(run.folder, "predictions.json")
  if len(entries) != 1 or not files.exists(path):
    return nothing
  (entry,) = entries
  if not files.exists(entry["path"]) or not receipts.is_unchanged(entry):
    return nothing
  questions = squad_files.read_questions(entry["path"])
  answers = squad_files.read_by_id(path, str)
  if any(question.id not in answers for question in questions):
    return nothing
  flags = run.evaluation.get("flags", {})
  score = squad_scores.scorer(
    flags.get("eval_metric"), flags.get("version_2_with_negative", False)
  )
  return np.array(
    [
      score(answers[question.id], [gold.text for gold in question.answers])
      for question in questions
    ]
  )
