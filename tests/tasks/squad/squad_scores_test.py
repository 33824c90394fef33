"""Tests of SQuAD metrics and of squad_metrics.py."""

import itertools
import json

import commands
import hypothesis
import hypothesis.strategies as st
import pytest
import reference_data
import run_outputs
from parametrize import parametrize
from refused import refusal

from bertlib.tasks.squad import squad_files, squad_scores
from bertlib.tasks.squad.squad_files import Answer, Question
from bertlib.tasks.squad.squad_scores import evaluate_v1, evaluate_v2

pytestmark = pytest.mark.unit
COUNTS_V2 = {"slice": (23, 10, 13), "whole": (1407, 705, 702)}
PREDICTED = st.sampled_from(["", "cat", "dog"])
ROW = st.tuples(PREDICTED, st.booleans(), st.integers(-99, 99))
QUESTION = ("data", 0, "paragraphs", 0, "qas", 1)


def question(name, *answers, is_impossible=None):
  accepted = tuple(Answer(text, 0) for text in answers)
  return Question(name, "Who?", "Somebody.", accepted, is_impossible)


def as_json(*questions):
  qas = []
  for q in questions:
    answers = [{"text": a.text, "answer_start": a.start} for a in q.answers]
    qas.append({"id": q.id, "question": q.text, "answers": answers})
    if q.is_impossible is not None:
      qas[-1]["is_impossible"] = q.is_impossible
  return {"data": [{"paragraphs": [{"context": "Somebody.", "qas": qas}]}]}


# The parts of the published data; the slice is of few questions.
PARTS = ["slice", pytest.param("whole", marks=pytest.mark.needs_data)]


def read_published(part, data, predictions, folder):
  """Published questions, and the text that is predicted for each."""
  # `data` are the names of the questions in the slice and in the whole.
  name, file_name = data
  if part == "whole":
    path = reference_data.data("squad", file_name)
    answers = squad_files.read_by_id(reference_data.data(predictions), str)
    return squad_files.read_questions(path), answers
  path = reference_data.golden("squad", f"{name}.json.gz")
  questions = squad_files.read_questions(reference_data.unpacked(path, folder))
  path = reference_data.golden("squad", "published_predictions.json")
  return questions, run_outputs.read_json(path)[predictions]


# The scores are those of the evaluation script that SQuAD 2.0 publishes. Most
# answers are to questions that the slice lacks.


@parametrize("part", *PARTS)
@parametrize(
  "predictions, scores",
  (
    "squad/predictions/v1.1_bert_ensemble_google.json",
    {"slice": (85.3659, 95.5439), "whole": (86.2062, 92.1956)},
  ),
  (
    "squad/predictions/v1.1_logistic_regression.json",
    {"slice": (51.2195, 63.1069), "whole": (40.1419, 50.9815)},
  ),
  (
    "reference_runs/squad_predictions.json",
    {"slice": (48.7805, 57.4759), "whole": (37.7767, 50.6268)},
  ),
)
def test_published_predictions_of_1_1(tmp_path, part, predictions, scores):
  data = "v11_dev", "dev-v1.1.json"
  results = evaluate_v1(*read_published(part, data, predictions, tmp_path))
  found = results["exact_match"], results["f1"]
  assert tuple(round(value, 4) for value in found) == scores[part]


@parametrize("part", *PARTS)
@parametrize(
  "name, scores",
  # Exact match and F1 of all questions, and of those with an answer; both of
  # those without.
  (
    "bert_single_google",
    {
      "slice": (65.2174, 68.1159, 50.0, 56.6667, 76.9231),
      "whole": (75.5508, 78.8325, 70.3546, 76.9040, 80.7692),
    },
  ),
  # HasAns F1 is 76.3776 in the data's README, which would make F1 76.5787;
  # the evaluator in transformers 4 computes the value here.
  (
    "nlnet",
    {
      "slice": (65.2174, 68.9855, 70.0, 78.6667, 61.5385),
      "whole": (73.7740, 76.5788, 70.7801, 76.3778, 76.7806),
    },
  ),
)
def test_published_predictions_of_2_0(tmp_path, part, name, scores):
  data = "v20_dev", "dev-v2.0.part.json"
  predictions = f"squad/predictions/v2.0_{name}.json"
  results = evaluate_v2(*read_published(part, data, predictions, tmp_path))
  exact, f1, has_exact, has_f1, none = scores[part]
  total, has_total, none_total = COUNTS_V2[part]
  assert {key: round(value, 4) for key, value in results.items()} == {
    "exact": exact,
    "f1": f1,
    "total": total,
    "HasAns_exact": has_exact,
    "HasAns_f1": has_f1,
    "HasAns_total": has_total,
    "NoAns_exact": none,
    "NoAns_f1": none,
    "NoAns_total": none_total,
  }


@parametrize(
  "name",
  "xquad_mixed",
  pytest.param("cmrc2018.dev", marks=pytest.mark.needs_data),
  pytest.param("drcd.dev", marks=pytest.mark.needs_data),
)
def test_chinese_gold_answers_have_a_perfect_score(tmp_path, name):
  if name == "xquad_mixed":
    path = reference_data.golden("squad", f"{name}.json.gz")
    path = reference_data.unpacked(path, tmp_path)
  else:
    path = reference_data.data("squad", f"{name}.json")
  questions = squad_files.read_questions(path)
  first = {q.id: q.answers[0].text for q in questions}
  results = evaluate_v1(questions, first, squad_scores.score_chinese)
  assert results == {"exact_match": 100.0, "f1": 100.0}


@parametrize(
  "version, prediction, answers, exact, f1",
  ("v1", "The Cat!", ["a cat", "dog"], 1, 1),
  ("v1", "big black cat", ["black cat sat"], 0, 2 / 3),
  ("v1", "cat cat dog", ["cat"], 0, 1 / 2),
  ("v1", "dog", ["cat", "big dog"], 0, 2 / 3),
  ("v1", "one\tand  two", ["one and two"], 1, 1),
  ("v1", "a–b", ["–b"], 1, 1),  # without the dash "a" is an article
  ("v1", "Österreich’s", ["österreichs"], 0, 0),  # no ASCII punctuation
  ("v1", "", ["cat"], 0, 0),
  ("v1", "the", ["!"], 1, 0),
  ("v2", "", [], 1, 1),
  ("v2", "the!", [], 1, 1),
  ("v2", "cat", [], 0, 0),
  ("v2", "", ["cat"], 0, 0),
  ("v2", "", ["!", "cat"], 0, 0),  # only gold answers with words count
  ("v2", "", ["the"], 1, 1),
  ("v2", "cat", ["!", "the cat"], 1, 1),
  ("chinese", "《战国无双3》", ["战国无双3"], 1, 1),
  ("chinese", "光荣和ω-force", ["光荣和ωforce"], 1, 1),
  ("chinese", "国又双", ["国家双"], 0, 1 / 3),  # both, but not adjacent
  ("chinese", "中国人民", ["人民", "国"], 0, 2 * 2 / (4 + 2)),
  ("chinese", "3.5公里", ["3.5"], 0, 2 / (1 + 3)),
  ("chinese", "46,600 BC", ["46,600 bc"], 1, 1),
  ("chinese", "46,600", ["46,601"], 0, 0),
  ("chinese", "New York市", ["york市"], 0, 2 * 2 / (3 + 2)),
  ("chinese", "香港(Hong Kong)", ["hong"], 0, 2 / (6 + 1)),
  ("chinese", "，", ["中"], 0, 0),
)
def test_scores_of_an_answer(version, prediction, answers, exact, f1):
  score = getattr(squad_scores, f"score_{version}")(prediction, answers)
  assert score == (exact, f1 if version == "v2" else pytest.approx(f1))


@hypothesis.given(*[st.text("一二三，", max_size=9)] * 2)
def test_chinese_f1_is_that_of_the_longest_common_substring(one, other):
  a, b = one.replace("，", ""), other.replace("，", "")
  runs = [a[i:j] for i, j in itertools.combinations(range(len(a) + 1), 2)]
  longest = max((len(run) for run in runs if run in b), default=0)
  expected = 2 * longest / (len(a) + len(b)) if longest else 0
  score = squad_scores.score_chinese(one, [other])
  assert score == (a == b, pytest.approx(expected))


# Metrics of a data set


def test_sum_in_order_is_the_same_on_every_python():
  assert squad_scores.sum_in_order([1.0, 1e100, 1.0, -1e100]) == 0.0
  assert squad_scores.sum_in_order([]) == 0.0


def test_missing_answer_scores_0_and_is_logged(caplog):
  questions = [question("q1", "cat"), question("q2", "dog")]
  results = evaluate_v1(questions, {"q1": "cat", "other": "dog"})
  assert results == {"exact_match": 50.0, "f1": 50.0}
  missing = "1 of 2 questions have no answer and score 0, such as q2"
  assert missing in caplog.text
  assert "1 answers are to other questions" in caplog.text


def test_missing_answer_differs_from_no_answer():
  questions = [question("q1", "cat"), question("q2"), question("q3")]
  odds = {"q1": 0.0, "q2": 1.0, "q3": 1.0}
  results = evaluate_v2(questions, {"q1": "cat", "q2": ""}, odds, 0.5)
  assert results["exact"] == results["best_f1"] == pytest.approx(200 / 3)
  assert results["NoAns_f1"] == 50.0


QUESTIONS = [
  question("a", "cat", is_impossible=False),
  question("b", "dog sat", is_impossible=False),
  *(question(id_, is_impossible=True) for id_ in "cd"),
]
ANSWERS = {"a": "cat", "b": "dog", "c": "mat", "d": ""}


def test_questions_above_the_threshold_have_no_answer():
  odds = {"a": 0.1, "b": 0.9, "c": 0.9, "d": 0.2}
  results = evaluate_v2(QUESTIONS, ANSWERS, odds, 0.5)
  assert results["exact"] == results["f1"] == 75.0
  assert (results["HasAns_f1"], results["NoAns_f1"]) == (50.0, 100.0)
  # A probability equal to the threshold keeps the answer.
  results = evaluate_v2(QUESTIONS, ANSWERS, odds, 0.9)
  assert results["HasAns_f1"] == pytest.approx(100 * (1 + 2 / 3) / 2)
  assert results["NoAns_f1"] == 50.0


def test_missing_question_types_have_no_metrics():
  results = evaluate_v2(QUESTIONS[2:], {"c": "", "d": "x"})
  kinds = "exact", "f1", "total"
  assert set(results) == {*kinds, *(f"NoAns_{kind}" for kind in kinds)}


@hypothesis.given(st.lists(ROW, min_size=1, unique_by=lambda row: row[2]))
def test_best_threshold_equals_exhaustive_search(rows):
  questions, predictions, odds = [], {}, {}
  for number, (prediction, has_answer, odd) in enumerate(rows):
    name = str(number)
    questions.append(question(name, *(["cat"] if has_answer else [])))
    predictions[name], odds[name] = prediction, odd
  results = evaluate_v2(questions, predictions, odds, 100, answer_nothing=-100)

  def score_at(threshold):
    return evaluate_v2(questions, predictions, odds, threshold)

  for key in ("exact", "f1"):
    best = max(score_at(t)[key] for t in [-100, *odds.values()])
    assert results[f"best_{key}"] == pytest.approx(best)
    assert score_at(results[f"best_{key}_thresh"])[key] == pytest.approx(best)


def test_ties_are_answered_in_the_order_of_na_probs():
  # As the official evaluator does: "a" is answered, "c" not yet.
  results = evaluate_v2(QUESTIONS, ANSWERS, {"d": 5, "a": 1, "c": 1, "b": 2})
  assert results["best_exact"] == 75.0
  assert results["best_exact_thresh"] == 1


# The command


def write(path, value):
  path.write_text(json.dumps(value))
  return path


def evaluate(folder, questions, answers, *flags):
  """Runs the command on files; returns what it prints."""
  data = write(folder / "data.json", as_json(*questions))
  predictions = write(folder / "predictions.json", answers)
  return commands.succeed("squad_metrics.py", data, predictions, *flags).stdout


@parametrize(
  "answers, predicted, flags, f1",
  (["cat", "dog"], "the dog sat", [], 200 / 3),
  (["中国人"], "中国", ["--metric=chinese"], 80.0),
)
def test_command_of_1_1(tmp_path, answers, predicted, flags, f1):
  questions = [question("q", *answers)]
  printed = evaluate(tmp_path, questions, {"q": predicted}, *flags)
  assert json.loads(printed) == {"exact_match": 0.0, "f1": pytest.approx(f1)}


def test_command_of_2_0(tmp_path):
  odds = {"a": -3.0, "b": 0.5, "c": 2.0, "d": 4.0}
  odds = write(tmp_path / "odds.json", odds)
  out_file = tmp_path / "scores.json"
  flags = "--na-prob-file", odds, "--na-prob-thresh", 0, "--out-file", out_file
  assert evaluate(tmp_path, QUESTIONS, ANSWERS, *flags) == ""
  results = json.loads(out_file.read_text())
  assert (results["exact"], results["f1"]) == (75.0, 75.0)
  assert results["best_f1"] == pytest.approx(100 * (3 + 2 / 3) / 4)
  assert results["best_f1_thresh"] == 0.5
  printed = evaluate(tmp_path, QUESTIONS, ANSWERS, "-n", odds, "-t", "0")
  assert json.loads(printed) == results


def test_empty_answers_without_is_impossible_are_those_of_2_0(tmp_path):
  questions = question("q", "cat"), question("n"), question("m")
  answers = {"q": "cat", "n": "", "m": "dog"}
  results = json.loads(evaluate(tmp_path, questions, answers))
  assert (results["HasAns_exact"], results["NoAns_exact"]) == (100.0, 50.0)


def refuse(path):
  message = refusal(squad_files.read_questions, str(path))
  assert message.startswith(f"{path}")
  return message


@parametrize(
  "path, value, message",
  (("data",), None, ": data is null, not a list"),
  (("data", 0), {}, ": has no data[0].paragraphs"),
  (QUESTION, {}, ": has no data[0].paragraphs[0].qas[1].id"),
  ((*QUESTION, "id"), True, "qas[1].id is true, not text or an integer"),
  ((*QUESTION, "question"), 7, ", question b: question is 7, not text"),
  ((*QUESTION, "answers"), [{}], ", question b: has no answers[0].text"),
  ((*QUESTION, "answers"), "cat", ', question b: answers is "cat", not a'),
  ((*QUESTION, "is_impossible"), "no", 'b: is_impossible is "no", not true'),
)
def test_data_in_another_format_are_refused(tmp_path, path, value, message):
  data = as_json(*QUESTIONS)
  part = data
  for step in path[:-1]:
    part = part[step]
  part[path[-1]] = value
  assert message in refuse(write(tmp_path / "data.json", data))


def test_ids_that_are_numbers_become_text(tmp_path):
  path = write(tmp_path / "a.json", as_json(*map(question, (4711, 1.5, "x"))))
  questions = squad_files.read_questions(str(path))
  assert [q.id for q in questions] == ["4711", "1.5", "x"]
  path = write(tmp_path / "b.json", as_json(question(7), question("7")))
  assert "the question id 7 occurs 2 times" in refuse(path)


TABLE = """id,question,document,answer,answer_start
7,Who?,"A cat, no cat.",cat,
,What?,"A cat, no cat.",cat,10
,Where?,"A cat, no cat.",,
"""


def test_a_table_of_questions_is_read(tmp_path, caplog):
  path = tmp_path / "a.csv"
  path.write_text(TABLE)
  found = squad_files.read_questions(str(path))
  document = "A cat, no cat."
  assert found == [
    Question("7", "Who?", document, (Answer("cat", 2),), None),
    Question("3", "What?", document, (Answer("cat", 10),), None),
    Question("4", "Where?", document, (), True),
  ]
  assert found[0].context is found[1].context
  assert "1 answers occur more than once" in caplog.text
  lines = [{"question": "Who?", "context": document} for _ in range(2)]
  path = tmp_path / "a.jsonl"
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  without = squad_files.read_questions(str(path))
  assert [q[2:] for q in without] == [(document, (), None)] * 2


@parametrize(
  "table, message",
  ("question,text\nWho?,A cat\n", "has no column 'document' (or 'context')"),
  ("document\tanswer\nA cat\tcat\n", "there is no column 'question'"),
  ("question,document,answer\nWho?,A cat,dog\n", ", row 2: the answer 'dog'"),
)
def test_a_table_without_what_it_needs_is_refused(tmp_path, table, message):
  path = tmp_path / ("a.tsv" if "\t" in table else "a.csv")
  path.write_text(table)
  assert message in refuse(path)


@parametrize(
  "value, message",
  (["cat"], "its content is a list, not an object"),
  ({"q": 7}, "the value of question q is 7, not text"),
)
def test_predictions_in_another_format_are_refused(tmp_path, value, message):
  path = write(tmp_path / "predictions.json", value)
  assert message in refusal(squad_files.read_by_id, str(path), str)


def test_odds_without_a_question_are_refused():
  message = refusal(evaluate_v2, QUESTIONS, ANSWERS, {"a": 1, "b": 2, "c": 3})
  assert "question d has no no-answer prob" in message
