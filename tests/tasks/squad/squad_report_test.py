"""Tests of the report of answers to questions."""

import math

import pytest
from html_pages import rows_of

from bertlib.settings.squad import AnswerSettings
from bertlib.tasks.squad import squad_report
from bertlib.tasks.squad.squad_decoding import Answers, NbestPrediction
from bertlib.tasks.squad.squad_files import Answer, Question
from bertlib.tasks.squad.squad_report import AnsweredQuestion
from bertlib.tasks.squad.squad_scores import Score

pytestmark = pytest.mark.unit

CONTEXT = "Ann left Rome in May. Bob left in June, and Ann came back."


def question(*answers, context=CONTEXT, name="q"):
  found = [Answer(text, context.find(text)) for text in answers]
  return Question(name, "Who left?", context, tuple(found), not answers)


def test_spans_of_gold_and_predicted_answers_are_found():
  spans = squad_report.find_spans(question("Bob", "in June"), "Bob left")
  assert [(CONTEXT[a:b], kind) for a, b, kind in spans] == [
    ("Bob", "gold"),
    ("Bob left", "predicted"),
    ("in June", "gold"),
  ]


def test_each_place_of_a_predicted_answer_is_marked():
  spans = squad_report.find_spans(question("Bob"), "Ann")
  assert [a for a, _, kind in spans if kind == "predicted"] == [0, 44]


def test_white_space_of_the_context_may_differ():
  context = "the  tall\nman and a small man"
  spans = squad_report.find_spans(question("man", context=context), "tall man")
  marked = [context[a:b] for a, b, kind in spans if kind == "predicted"]
  assert marked == ["tall\nman"]


@pytest.mark.parametrize("predicted", ["", "not in the text"])
def test_an_answer_that_is_not_in_the_context_has_no_span(predicted):
  assert squad_report.find_spans(question(), predicted) == []


def test_a_gold_answer_with_a_wrong_position_is_not_marked():
  wrong = question()._replace(answers=(Answer("Bob", 3), Answer("May", -1)))
  assert squad_report.find_spans(wrong, "") == []


def test_answers_have_their_probabilities_and_scores():
  texts = {"right": "Bob", "half": "Bob left", "unlikely": "Rome"}
  nbest = {
    name: [NbestPrediction(text, 2.0, -2.0), NbestPrediction("x", 0.0, 0.0)]
    for name, text in texts.items()
  }
  nbest["unlikely"] = [NbestPrediction("x", 0.0, 0.0)]
  answers = Answers(texts, nbest, texts, {})
  questions = [question("Bob", name=name) for name in texts]
  found = squad_report.answered_questions(questions, answers, AnswerSettings())
  assert [answer[:3] for answer in found] == [
    (questions[0], "Bob", 0.5),
    (questions[1], "Bob left", 0.5),
    (questions[2], "Rome", 0.0),
  ]
  assert [answer.score for answer in found] == [
    Score(1.0, 1.0),
    Score(0.0, pytest.approx(2 / 3)),
    Score(0.0, 0.0),
  ]


def answered(predicted, probability, f1):
  return AnsweredQuestion(
    question("Bob"), predicted, probability, Score(float(f1 == 1), f1)
  )


def test_confident_errors_come_first():
  *_, errors = squad_report.sections(
    [
      answered("Ann", 0.3, 0.0),
      answered("Bob", 0.99, 1.0),
      answered("June", 0.9, 0.0),
    ],
    {"exact_match": 33.3, "f1": 33.3},
    0.0,
  )
  heads, *rows = rows_of(errors.content)
  assert [row[heads.index("predicted")] for row in rows] == ["June", "Ann"]
  assert '<mark class="gold">Bob</mark>' in errors.content
  assert '<mark class="predicted">June</mark>' in errors.content


def test_squad_2_shows_the_thresholds():
  results = {
    "exact": 50.0,
    "f1": 55.5,
    "best_exact": 60.0,
    "best_exact_thresh": -1.5,
    "best_f1": 65.0,
    "best_f1_thresh": -math.inf,
  }
  thresholds, *_ = squad_report.sections([], results, 0.25)
  assert thresholds.title == "Tuned --null_score_diff_threshold"
  assert rows_of(thresholds.content)[1:] == [
    ["of this run", "0.2500", "50.00", "55.50"],
    ["best exact match", "-1.5000", "60.00", "–"],
    ["best F1", "-inf", "–", "65.00"],
  ]
