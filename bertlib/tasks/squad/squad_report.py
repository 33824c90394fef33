"""The report of answers: errors, thresholds, intervals, and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.io.result_files import DevPrediction
from bertlib.reporting import html_report, paired_tests, statistics
from bertlib.reporting.html_report import Section
from bertlib.reporting.paired_tests import Comparison
from bertlib.reporting.statistics import Interval
from bertlib.tasks.squad import squad_decoding, squad_files, squad_scores
from bertlib.tasks.squad.settings import AnswerSettings
from bertlib.tasks.squad.squad_scores import Score

# Characters of the paragraph of an error.
_MAX_TEXT = 2000


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
    listed = squad_decoding.answers(answers.nbest[question.id])
    probability = {a.text: a.probability for a in listed}.get(predicted, 0.0)
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
  errors = [answer for answer in answered if answer.score.f1 < 0.5]
  errors.sort(key=lambda answer: -answer.probability)
  rows = [
    {
      "question": answer.question.text,
      "gold": " / ".join(dict.fromkeys(a.text for a in answer.question.answers))
      or "no answer",
      "predicted": answer.predicted or "no answer",
      "probability": answer.probability,
      "text": answer.question.context[:_MAX_TEXT],
    }
    for answer in errors[: html_report.NUM_ERRORS]
  ]
  sections = [html_report.table("Worst errors", rows)]
  if "best_f1_thresh" in results:
    sections.insert(0, _threshold_table(results, threshold))
  return sections


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


def intervals(
  scores: Sequence[Score], results: Mapping[str, float]
) -> dict[str, Interval | None]:
  """Intervals of the metrics of answers to questions, in percent."""
  exact = "exact" if "exact" in results else "exact_match"
  values = 100 * np.array(scores, np.float64).reshape(len(scores), 2)
  return {
    name: statistics.bootstrap(np.mean, values[:, column])
    for column, name in enumerate((exact, "f1"))
  }


# Comparison of two runs


def dev_predictions(
  answered: Iterable[AnsweredQuestion],
) -> list[DevPrediction]:
  """Texts of the gold answers and of the predicted one, by question."""
  return [
    DevPrediction(
      question.id, [answer.text for answer in question.answers], predicted
    )
    for question, predicted, *_ in answered
  ]


def compare(first: Any, other: Any) -> Comparison:
  """Compares exact match and F1 of two runs for the same questions."""
  score = squad_scores.scorer(
    first.flags.get("eval_metric"),
    first.flags.get("version_2_with_negative", False),
  )
  scores = [
    np.array([*map(score, run.predicted, run.gold)]) for run in (first, other)
  ]
  exact, f1 = zip(*(of_run.T for of_run in scores))
  return Comparison(
    paired_tests.mcnemar(*(values == 1 for values in exact)),
    {"f1": paired_tests.difference_interval(np.mean, *(100 * v for v in f1))},
  )
