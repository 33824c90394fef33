"""Tests of SQuAD metrics and of squad_metrics.py."""

import itertools
import json

import commands
import hypothesis
import hypothesis.strategies as st
import pytest
import reference_data
import run_outputs
from refused import refusal

from bertlib.cli.errors import InputError
from bertlib.tasks.squad import squad_files, squad_scores
from bertlib.tasks.squad.squad_files import Answer, Question

pytestmark = pytest.mark.unit


def question(name, *answers, is_impossible=None):
  accepted = tuple(Answer(text, 0) for text in answers)
  return Question(name, "Who?", "Somebody.", accepted, is_impossible)


def as_json(*questions):
  """A data set of one paragraph."""
  qas = []
  for q in questions:
    answers = [{"text": a.text, "answer_start": a.start} for a in q.answers]
    qas.append({"id": q.id, "question": q.text, "answers": answers})
    if q.is_impossible is not None:
      qas[-1]["is_impossible"] = q.is_impossible
  return {"data": [{"paragraphs": [{"context": "Somebody.", "qas": qas}]}]}


# Published predictions


@pytest.fixture(
  params=["slice", pytest.param("whole", marks=pytest.mark.needs_data)]
)
def part(request):
  """The part of the published data; the slice is of few questions."""
  return request.param


def read_published(part, data, predictions, folder):
  """Published questions, and the text that is predicted for each.

  Args:
    part: "slice" or "whole".
    data: names of the data in the slice and in the whole.
    predictions: path of the predictions.
    folder: for temporary files.
  """
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


@pytest.mark.parametrize(
  ("predictions", "scores"),
  [
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
  ],
)
def test_published_predictions_of_1_1(tmp_path, part, predictions, scores):
  data = "v11_dev", "dev-v1.1.json"
  results = squad_scores.evaluate_v1(
    *read_published(part, data, predictions, tmp_path)
  )
  found = results["exact_match"], results["f1"]
  assert tuple(round(value, 4) for value in found) == scores[part]


COUNTS_V2 = {"slice": (23, 10, 13), "whole": (1407, 705, 702)}


@pytest.mark.parametrize(
  ("name", "scores"),
  [
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
  ],
)
def test_published_predictions_of_2_0(tmp_path, part, name, scores):
  data = "v20_dev", "dev-v2.0.part.json"
  predictions = f"squad/predictions/v2.0_{name}.json"
  results = squad_scores.evaluate_v2(
    *read_published(part, data, predictions, tmp_path)
  )
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


@pytest.mark.parametrize(
  "name",
  [
    "xquad_mixed",
    pytest.param("cmrc2018.dev", marks=pytest.mark.needs_data),
    pytest.param("drcd.dev", marks=pytest.mark.needs_data),
  ],
)
def test_chinese_gold_answers_have_a_perfect_score(tmp_path, name):
  if name == "xquad_mixed":
    path = reference_data.golden("squad", f"{name}.json.gz")
    path = reference_data.unpacked(path, tmp_path)
  else:
    path = reference_data.data("squad", f"{name}.json")
  questions = squad_files.read_questions(path)
  first = {q.id: q.answers[0].text for q in questions}
  results = squad_scores.evaluate_v1(
    questions, first, squad_scores.score_chinese
  )
  assert results == {"exact_match": 100.0, "f1": 100.0}


# Scores of one answer


@pytest.mark.parametrize(
  ("prediction", "answers", "exact", "f1"),
  [
    ("The Cat!", ["a cat", "dog"], 1, 1),
    ("big black cat", ["black cat sat"], 0, 2 / 3),
    ("cat cat dog", ["cat"], 0, 1 / 2),
    ("dog", ["cat", "big dog"], 0, 2 / 3),
    ("one\tand  two", ["one and two"], 1, 1),
    ("a–b", ["–b"], 1, 1),  # the dash is removed, and "a" is then an article
    ("Österreich’s", ["österreichs"], 0, 0),  # nor ASCII punctuation
    ("", ["cat"], 0, 0),
    ("the", ["!"], 1, 0),
  ],
)
def test_scores_of_1_1(prediction, answers, exact, f1):
  score = squad_scores.score_v1(prediction, answers)
  assert score == (exact, pytest.approx(f1))


@pytest.mark.parametrize(
  ("prediction", "answers", "score"),
  [
    ("", [], 1),
    ("the!", [], 1),
    ("cat", [], 0),
    ("", ["cat"], 0),
    ("", ["!", "cat"], 0),  # only gold answers with words count
    ("", ["the"], 1),
    ("cat", ["!", "the cat"], 1),
  ],
)
def test_scores_of_2_0(prediction, answers, score):
  assert squad_scores.score_v2(prediction, answers) == (score, score)


@pytest.mark.parametrize(
  ("prediction", "answers", "exact", "f1"),
  [
    ("《战国无双3》", ["战国无双3"], 1, 1),
    ("光荣和ω-force", ["光荣和ωforce"], 1, 1),
    # 国 and 双 are in common, but not adjacent.
    ("国又双", ["国家双"], 0, 1 / 3),
    ("中国人民", ["人民", "国"], 0, 2 * 2 / (4 + 2)),
    ("3.5公里", ["3.5"], 0, 2 / (1 + 3)),
    ("46,600 BC", ["46,600 bc"], 1, 1),
    ("46,600", ["46,601"], 0, 0),
    ("New York市", ["york市"], 0, 2 * 2 / (3 + 2)),
    ("香港(Hong Kong)", ["hong"], 0, 2 / (6 + 1)),
    ("，", ["中"], 0, 0),
  ],
)
def test_scores_of_chinese(prediction, answers, exact, f1):
  score = squad_scores.score_chinese(prediction, answers)
  assert score == (exact, pytest.approx(f1))


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
  answers = {"q1": "cat", "other": "dog"}
  results = squad_scores.evaluate_v1(questions, answers)
  assert results == {"exact_match": 50.0, "f1": 50.0}
  assert (
    "1 of 2 questions have no answer and score 0, such as q2" in caplog.text
  )
  assert "1 answers are to other questions" in caplog.text


def test_missing_answer_differs_from_no_answer():
  questions = [question("q1", "cat"), question("q2"), question("q3")]
  results = squad_scores.evaluate_v2(
    questions, {"q1": "cat", "q2": ""}, {"q1": 0.0, "q2": 1.0, "q3": 1.0}, 0.5
  )
  assert results["exact"] == results["best_f1"] == pytest.approx(200 / 3)
  assert results["NoAns_f1"] == 50.0


QUESTIONS = [
  question("a", "cat", is_impossible=False),
  question("b", "dog sat", is_impossible=False),
  question("c", is_impossible=True),
  question("d", is_impossible=True),
]
ANSWERS = {"a": "cat", "b": "dog", "c": "mat", "d": ""}


def test_questions_above_the_threshold_have_no_answer():
  odds = {"a": 0.1, "b": 0.9, "c": 0.9, "d": 0.2}
  results = squad_scores.evaluate_v2(QUESTIONS, ANSWERS, odds, 0.5)
  assert results["exact"] == results["f1"] == 75.0
  assert (results["HasAns_f1"], results["NoAns_f1"]) == (50.0, 100.0)
  # A probability equal to the threshold keeps the answer.
  results = squad_scores.evaluate_v2(QUESTIONS, ANSWERS, odds, 0.9)
  assert results["HasAns_f1"] == pytest.approx(100 * (1 + 2 / 3) / 2)
  assert results["NoAns_f1"] == 50.0


def test_missing_question_types_have_no_metrics():
  results = squad_scores.evaluate_v2(QUESTIONS[2:], {"c": "", "d": "x"})
  assert set(results) == {
    *("exact", "f1", "total", "NoAns_exact", "NoAns_f1", "NoAns_total")
  }


@hypothesis.given(
  st.lists(
    st.tuples(
      st.sampled_from(["", "cat", "dog"]), st.booleans(), st.integers(-99, 99)
    ),
    min_size=1,
    unique_by=lambda row: row[2],
  )
)
def test_best_threshold_equals_exhaustive_search(rows):
  questions, predictions, odds = [], {}, {}
  for number, (prediction, has_answer, odd) in enumerate(rows):
    name = str(number)
    questions.append(question(name, *(["cat"] if has_answer else [])))
    predictions[name], odds[name] = prediction, odd
  results = squad_scores.evaluate_v2(
    questions, predictions, odds, 100, answer_nothing=-100
  )

  def score_at(threshold):
    return squad_scores.evaluate_v2(questions, predictions, odds, threshold)

  for key in ("exact", "f1"):
    best = max(score_at(t)[key] for t in [-100, *odds.values()])
    assert results[f"best_{key}"] == pytest.approx(best)
    at_best = score_at(results[f"best_{key}_thresh"])
    assert at_best[key] == pytest.approx(best)


def test_ties_are_answered_in_the_order_of_na_probs():
  # As the official evaluator does: "a" is answered, "c" not yet.
  odds = {"d": 5, "a": 1, "c": 1, "b": 2}
  results = squad_scores.evaluate_v2(QUESTIONS, ANSWERS, odds)
  assert results["best_exact"] == 75.0
  assert results["best_exact_thresh"] == 1


# The command


def write(path, value):
  path.write_text(json.dumps(value))
  return path


@pytest.mark.parametrize(
  ("answers", "predicted", "flags", "f1"),
  [
    (["cat", "dog"], "the dog sat", [], 200 / 3),
    (["中国人"], "中国", ["--metric=chinese"], 80.0),
  ],
)
def test_command_of_1_1(tmp_path, answers, predicted, flags, f1):
  data = write(tmp_path / "data.json", as_json(question("q", *answers)))
  predictions = write(tmp_path / "predictions.json", {"q": predicted})
  done = commands.succeed("squad_metrics.py", data, predictions, *flags)
  scores = {"exact_match": 0.0, "f1": pytest.approx(f1)}
  assert json.loads(done.stdout) == scores


def test_command_of_2_0(tmp_path):
  data = write(tmp_path / "data.json", as_json(*QUESTIONS))
  predictions = write(tmp_path / "predictions.json", ANSWERS)
  odds = {"a": -3.0, "b": 0.5, "c": 2.0, "d": 4.0}
  odds = write(tmp_path / "odds.json", odds)
  out_file = tmp_path / "scores.json"
  flags = "--na-prob-file", odds, "--na-prob-thresh", 0, "--out-file", out_file
  done = commands.succeed("squad_metrics.py", data, predictions, *flags)
  assert done.stdout == ""
  results = json.loads(out_file.read_text())
  assert (results["exact"], results["f1"]) == (75.0, 75.0)
  assert results["best_f1"] == pytest.approx(100 * (3 + 2 / 3) / 4)
  assert results["best_f1_thresh"] == 0.5
  short = "-n", odds, "-t", "0"
  done = commands.succeed("squad_metrics.py", *short, data, predictions)
  assert json.loads(done.stdout) == results


def test_empty_answers_without_is_impossible_are_those_of_2_0(tmp_path):
  questions = question("q", "cat"), question("n"), question("m")
  data = write(tmp_path / "data.json", as_json(*questions))
  answers = {"q": "cat", "n": "", "m": "dog"}
  predictions = write(tmp_path / "predictions.json", answers)
  done = commands.succeed("squad_metrics.py", data, predictions)
  results = json.loads(done.stdout)
  assert (results["HasAns_exact"], results["NoAns_exact"]) == (100.0, 50.0)


# Errors


def refuse(path):
  message = refusal(squad_files.read_questions, str(path))
  assert message.startswith(f"{path}")
  return message


QUESTION = ("data", 0, "paragraphs", 0, "qas", 1)


@pytest.mark.parametrize(
  ("path", "value", "message"),
  [
    (("data",), None, ": data is null, not a list"),
    (("data", 0), {}, ": has no data[0].paragraphs"),
    (QUESTION, {}, ": has no data[0].paragraphs[0].qas[1].id"),
    ((*QUESTION, "id"), True, "qas[1].id is true, not text or an integer"),
    ((*QUESTION, "question"), 7, ", question b: question is 7, not text"),
    ((*QUESTION, "answers"), [{}], ", question b: has no answers[0].text"),
    ((*QUESTION, "answers"), "cat", ', question b: answers is "cat", not a'),
    ((*QUESTION, "is_impossible"), "no", 'b: is_impossible is "no", not true'),
  ],
)
def test_a_data_set_in_another_format_is_refused(
  tmp_path, path, value, message
):
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


@pytest.mark.parametrize(
  ("value", "message"),
  [
    (["cat"], "its content is a list, not an object"),
    ({"q": 7}, "the value of question q is 7, not text"),
  ],
)
def test_predictions_in_another_format_are_refused(tmp_path, value, message):
  path = write(tmp_path / "predictions.json", value)
  with pytest.raises(InputError, match=message):
    squad_files.read_by_id(str(path), str)


def test_question_without_gold_answer_is_refused_in_1_1():
  message = refusal(squad_files.check_gold_answers, QUESTIONS, "dev.json")
  assert message.startswith("dev.json, question c: has no gold answer")


def test_odds_without_a_question_are_refused():
  with pytest.raises(InputError, match="question d has no no-answer prob"):
    squad_scores.evaluate_v2(QUESTIONS, ANSWERS, {"a": 1, "b": 2, "c": 3})
