"""Tests of the report of answers to questions."""

import math

import pytest
from html_pages import rows_of

from bertlib.tasks.squad import squad_report
from bertlib.tasks.squad.settings import AnswerSettings
from bertlib.tasks.squad.squad_decoding import Answers, NbestPrediction
from bertlib.tasks.squad.squad_files import Answer, Question
from bertlib.tasks.squad.squad_report import AnsweredQuestion
from bertlib.tasks.squad.squad_scores import Score

pytestmark = pytest.mark.unit

CONTEXT = "Ann left Rome in May. Bob left in June, and Ann came back."


def question(*answers, context=CONTEXT, name="q"):
  found = [Answer(text, context.find(text)) for text in answers]
  return Question(name, "Who left?", context, tuple(found), not answers)


def test_answers_have_their_probabilities_and_scores():
  texts = {"right": "Bob", "half": "Bob left", "unlikely": "Rome"}
  other = NbestPrediction("x", 0.0, 0.0)
  nbest = {}
  for name in ("right", "half"):
    nbest[name] = [NbestPrediction(texts[name], 2.0, -2.0), other]
  nbest["unlikely"] = [other]
  answers = Answers(texts, nbest, texts, {})
  questions = [question("Bob", name=name) for name in texts]
  found = squad_report.answered_questions(questions, answers, AnswerSettings())
  answers = [(answer.predicted, answer.probability) for answer in found]
  assert [answer.question for answer in found] == questions
  assert answers == [("Bob", 0.5), ("Bob left", 0.5), ("Rome", 0.0)]
  half = Score(0.0, pytest.approx(2 / 3))
  scores = [answer.score for answer in found]
  assert scores == [Score(1.0, 1.0), half, Score(0.0, 0.0)]


def test_confident_errors_come_first():
  found = [("Ann", 0.3, 0.0), ("Bob", 0.99, 1.0), ("June", 0.9, 0.0)]
  results = {"exact_match": 33.3, "f1": 33.3}
  found = [
    AnsweredQuestion(question("Bob"), text, probability, Score(float(f1), f1))
    for text, probability, f1 in found
  ]
  *_, errors = squad_report.sections(found, results, 0.0)
  heads, *rows = rows_of(errors.content)
  assert [row[heads.index("predicted")] for row in rows] == ["June", "Ann"]
  assert rows[0][heads.index("text")] == CONTEXT


def test_squad_2_shows_the_thresholds():
  results = {"exact": 50.0, "f1": 55.5, "best_exact": 60.0, "best_f1": 65.0}
  results |= {"best_exact_thresh": -1.5, "best_f1_thresh": -math.inf}
  thresholds, *_ = squad_report.sections([], results, 0.25)
  assert thresholds.title == "Tuned --null_score_diff_threshold"
  assert rows_of(thresholds.content)[1:] == [
    ["of this run", "0.2500", "50.00", "55.50"],
    ["best exact match", "-1.5000", "60.00", "–"],
    ["best F1", "-inf", "–", "65.00"],
  ]
