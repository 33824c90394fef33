"""Tests of classification metrics, thresholds and their report sections."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from html_pages import Page, rows_of
from parametrize import parametrize

from bertlib.tasks.classification import classification_decoding as decoding
from bertlib.tasks.classification import classification_report as report
from bertlib.tasks.classification.classification import (
  ChoiceExample,
  InputExample,
  Problem,
)

pytestmark = pytest.mark.unit

NUMBERS = Problem("regression")
NAMES = Problem("classification", ["no", "yes"])
TOPICS = Problem("multi_label", ["art", "law", "war"])
ENDINGS = Problem("multiple_choice", ["A", "B"])
SEVERAL = [0.75, 0.5, 0.4375]


def test_metrics_equal_hand_counts():
  labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
  logits = np.eye(2)[[1, 1, 0, 0, 0, 1, 0, 1]]  # 3 true, 1 false positive
  names = ["accuracy", "f1", "matthews"]
  for problem in (NAMES, ENDINGS):
    scores = report.evaluate(names, labels, logits, problem)
    assert scores["accuracy"] == pytest.approx(6 / 8)
    assert scores["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert scores["matthews"] == pytest.approx((3 * 3 - 1 * 1) / 16)
    assert scores["confusion_matrix"] == [[3, 1], [1, 3]]


@parametrize("number, has_matrix", (1000, True), (1001, False))
def test_thousands_of_labels_have_no_confusion_matrix(number, has_matrix):
  problem = Problem("classification", [*map(str, range(number))])
  logits = np.eye(number)[:2]
  scores = report.evaluate(["accuracy"], np.arange(2), logits, problem)
  assert scores["accuracy"] == 1
  assert ("confusion_matrix" in scores) == has_matrix


@pytest.mark.filterwarnings("error")
def test_f1_without_label_1_is_0():
  gold, logits = np.zeros(2, int), np.eye(2)[[0, 0]]
  assert report.evaluate(["f1"], gold, logits, NAMES)["f1"] == 0


def test_one_example_has_no_correlation():
  metrics = ["pearson", "spearman"]
  scores = report.evaluate(metrics, np.ones(1), np.ones([1, 1]), NUMBERS)
  assert np.isnan([scores["pearson"], scores["spearman"]]).all()


def test_multi_label_metrics_equal_hand_counts():
  labels = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]], np.float32)
  predicted = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
  names, logits = ["micro_f1", "macro_f1", "accuracy"], 4.0 * predicted - 2
  scores = report.evaluate(names, labels, logits, TOPICS)
  # "art" 2 of 3 found; "law" 1 found, 1 too many; "war" none
  assert scores == {
    "micro_f1": pytest.approx(2 * 3 / (5 + 4)),
    "macro_f1": pytest.approx((2 * 2 / (3 + 2) + 2 * 1 / (1 + 2) + 0) / 3),
    "accuracy": pytest.approx(1 / 4),  # all labels of a text have to be right
  }


def test_regression_predicts_a_value():
  predicted = decoding.prediction(NUMBERS, np.float32([2.5]))
  assert predicted == (2.5, {}) and type(predicted.label) is float


@parametrize(
  "problem, row, thresholds, label",
  (NAMES, [0.25, 0.75], None, "yes"),
  (ENDINGS, [0.25, 0.75], None, "B"),
  (TOPICS, SEVERAL, None, ["art", "law"]),
  (TOPICS, SEVERAL, {}, ["art", "law"]),
  (TOPICS, SEVERAL, {"art": 0.8, "war": 0.4375}, ["law", "war"]),
  (TOPICS, SEVERAL, {"art": 0.8, "law": 0.5001}, []),
  (TOPICS, SEVERAL, dict.fromkeys(TOPICS.labels, 0.0), TOPICS.labels),
)
def test_the_best_labels_are_predicted(problem, row, thresholds, label):
  predicted = decoding.prediction(problem, np.float32(row), thresholds)
  assert predicted == (label, dict(zip(problem.labels, row)))


def test_the_text_of_predicted_labels_has_all_of_them():
  problem = Problem("multi_label", [f"topic {n}" for n in range(25)])
  (text,) = decoding.predicted_labels(problem, [np.ones(25)])
  assert text == ", ".join(problem.labels)


def test_probabilities_of_each_kind():
  logits = np.array([[0.0, 1.0, -2.0], [900.0, -900.0, 0.0]])
  of = decoding.probabilities
  np.testing.assert_array_equal(of(NUMBERS, logits), logits)
  several = [1 / (1 + np.exp(-logits[0])), [1, 0, 0.5]]
  np.testing.assert_allclose(of(TOPICS, logits), several, atol=1e-15)
  one = [np.exp(logits[0]) / np.exp(logits[0]).sum(), [1, 0, 0]]
  for problem in (NAMES, ENDINGS):
    np.testing.assert_allclose(of(problem, logits), one, atol=1e-15)


def f1_score(truth, predicted):
  """F1 of one label, by definition; 0 if no example has it."""
  hits = np.sum(truth & predicted)
  return 2 * hits / max(np.sum(truth) + np.sum(predicted), 1)


# Equal, adjacent and very small probabilities.
CLOSE = [0.0, 1e-30, 1e-9, 2e-9, 0.5, np.nextafter(np.float32(0.5), 1), 1.0]
PROBABILITIES = st.one_of(
  st.floats(0, 1, width=32),
  st.sampled_from([float(np.float32(value)) for value in CLOSE]),
)


@hypothesis.settings(max_examples=300)
@hypothesis.given(
  st.lists(st.tuples(st.booleans(), PROBABILITIES), min_size=1, max_size=12)
)
# 0.90625 and 0.125 are equally good.
@hypothesis.example(
  [(True, 0.9375), (False, 0.875), (False, 0.5), (True, 0.25)]
)
def test_best_threshold_equals_exhaustive_search(texts):
  truth, predicted = (np.array(values) for values in zip(*texts))
  columns = np.float32(truth)[:, None], np.float32(predicted)[:, None]
  (threshold,) = report.best_thresholds(*columns)
  if not truth.any():
    assert threshold == 0.5
    return
  values = np.unique(predicted)
  cuts = (values + np.append(0.0, values[:-1])) / 2  # half way to the next
  by_cut = {cut: f1_score(truth, predicted >= cut) for cut in cuts}
  best = max(by_cut.values())
  assert best == max(f1_score(truth, predicted >= value) for value in predicted)
  good = [cut for cut, f1 in by_cut.items() if f1 == best]
  assert threshold in good
  assert abs(threshold - 0.5) == min(abs(cut - 0.5) for cut in good)


def test_each_label_has_its_own_threshold():
  truth = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]])
  predicted = [[0.9, 0.1, 0.9], [0.7, 0.3, 0.8], [0.5, 0.2, 0.7], [0.1, 0, 0.6]]
  thresholds = report.best_thresholds(truth, np.array(predicted))
  np.testing.assert_allclose(thresholds, [0.6, 0.25, 0.5])


def example_of(guid, label):
  return InputExample(guid, f"text of {guid}", "<and> more", label)


def choice_of(guid, label):
  choices = [("the start", f"{guid} ends"), ("the start", "or ends not")]
  return ChoiceExample(guid, choices, label)


# Four examples per kind: "right" is predicted correctly, the others are not:
# "first" has the largest error, "third" the smallest.
REPORTED = {
  "regression": (
    NUMBERS,
    [
      example_of(guid, str(label))
      for guid, label in zip(("third", "first", "right", "second"), range(4))
    ],
    np.arange(4.0),
    np.array([[0.1], [-3.0], [2.0], [3.5]]),
  ),
  "classification": (
    NAMES,
    [example_of(guid, "yes") for guid in ("second", "right", "third", "first")],
    np.ones(4, np.int32),
    np.array([[2.0, 0.0], [0.0, 5.0], [1.0, 0.0], [9.0, 0.0]]),
  ),
  "multi_label": (
    TOPICS,
    [
      example_of("third", []),
      example_of("first", ["art", "law"]),
      example_of("second", ["war"]),
      example_of("right", ["art", "war"]),
    ],
    np.float32([[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]]),
    np.array([[-1, 1, -9], [1, -9, -1], [-1, -1, -2], [9, -9, 9.0]]),
  ),
  "multiple_choice": (
    ENDINGS,
    [choice_of(guid, "B") for guid in ("right", "third", "first", "second")],
    np.ones(4, np.int32),
    np.array([[0.0, 5.0], [1.0, 0.0], [9.0, 0.0], [2.0, 0.0]]),
  ),
}


CLASSES = ["Confusion matrix", "Labels", "Worst errors"]
TITLES = {"regression": CLASSES[2:], "multi_label": CLASSES[1:]}


@parametrize("kind", *REPORTED)
def test_report_of_each_kind_lists_the_worst_errors_first(kind):
  found = report.sections(*REPORTED[kind])
  assert [section.title for section in found] == TITLES.get(kind, CLASSES)
  page = found[-1].content
  indexes = [page.index(f">{guid}<") for guid in ("first", "second", "third")]
  assert indexes == sorted(indexes)
  assert ">right<" not in page
  assert ("first ends" if kind == "multiple_choice" else "&lt;and&gt;") in page


def test_report_lists_confused_labels():
  page = report.sections(*REPORTED["multi_label"])[-1].content
  row = page[page.index(">first<") :].partition("</tr>")[0]
  assert ">art, law<" in row and ">art<" in row
  row = page[page.index(">third<") :].partition("</tr>")[0]
  assert ">none<" in row and ">law<" in row


def test_many_gold_labels_are_shortened():
  labels = [f"topic {i}" for i in range(3000)]
  problem = Problem("multi_label", labels)
  examples = [example_of("a", labels)]
  gold = np.ones([1, 3000])
  found = report.sections(problem, examples, gold, -gold)
  assert found[0].content.count("<tr>") == 3001
  assert "topic 19 and 2,980 more<" in found[-1].content


def classifier_tables(labels, matrix):
  """Confusion matrix and labels of examples with these counts."""
  cells = np.argwhere(np.array(matrix) >= 0)
  gold, predicted = np.repeat(cells, np.ravel(matrix), axis=0).T
  problem, logits = Problem("classification", labels), np.eye(len(labels))
  examples = [example_of("a", "a")] * len(gold)
  found = report.sections(problem, examples, gold, logits[predicted])
  return [section.content for section in found[:2]]


def test_confusion_matrix_and_metrics_of_each_label():
  matrix, table = classifier_tables([*"abc"], [[6, 2, 0], [1, 3, 0], [0] * 3])
  assert rows_of(matrix)[1:] == [[*"a620"], [*"b130"], [*"c000"]]
  kinds = [a["class"] for tag, a, _ in Page(matrix).elements if tag == "td"]
  assert kinds == (["right"] + ["wrong"] * 3) * 2 + ["right"]
  assert rows_of(table)[1:] == [
    ["a", "0.8571", "0.7500", "0.8000", "8"],
    ["b", "0.6000", "0.7500", "0.6667", "4"],
    ["c", "0.0000", "0.0000", "0.0000", "0"],
  ]


def test_many_labels_show_the_most_frequent_confusions():
  counts = np.diag(np.full(100, 8))
  counts[5, 7], counts[7, 5], counts[40, 2] = 2, 4, 3
  matrix, table = classifier_tables([f"l{i}" for i in range(100)], counts)
  confusions = [["l7", "l5", "4"], ["l40", "l2", "3"], ["l5", "l7", "2"]]
  assert rows_of(matrix)[1:] == confusions
  assert len(rows_of(table)) == 101
