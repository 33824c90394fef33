"""Tests of the comparison of two models on the same examples."""

import math

import numpy as np
import pytest
from scipy import stats
from seqeval.metrics import f1_score, sequence_labeling

from bertlib.reporting import paired_tests
from bertlib.tasks.ner import ner_report
from bertlib.tasks.squad import squad_report
from bertlib.tasks.squad.squad_scores import Score

pytestmark = pytest.mark.unit


# McNemar's test


@pytest.mark.parametrize(
  ("first_only", "other_only"), [(0, 0), (1, 0), (3, 9), (9, 3), (20, 20)]
)
def test_p_value_is_that_of_a_fair_coin(first_only, other_only):
  first = [True] * first_only + [False] * other_only + [True] * 50 + [False]
  other = [False] * first_only + [True] * other_only + [True] * 50 + [False]
  test = paired_tests.mcnemar(first, other)
  assert (test.first_only, test.other_only) == (first_only, other_only)
  total, fewer = first_only + other_only, min(first_only, other_only)
  tail = sum(math.comb(total, k) for k in range(fewer + 1)) / 2**total
  assert test.p_value == pytest.approx(min(1.0, 2 * tail))


def test_labels_are_right_where_they_equal_the_gold_label():
  test = paired_tests.compare_labels(
    [], ["a", "b"], "aabb", "aaaa", "abab"
  ).test
  # Right are [1, 1, 0, 0] and [1, 0, 0, 1].
  assert test == (1, 1, 1.0)


def test_several_labels_are_right_where_all_are_in_any_order():
  gold = [["a", "b"], ["a"], [], ["b"]]
  first = [["b", "a"], ["a", "b"], [], []]
  other = [["a"], ["a"], ["b"], []]
  test = paired_tests.compare_labels([], ["a", "b"], gold, first, other).test
  assert (test.first_only, test.other_only) == (2, 1)


def test_answers_are_right_where_they_match_exactly():
  first = [Score(1.0, 1.0), Score(0.0, 0.9), Score(1.0, 1.0)]
  other = [Score(0.0, 0.5), Score(0.0, 0.4), Score(1.0, 1.0)]
  test = squad_report.compare_answers(first, other).test
  assert (test.first_only, test.other_only) == (1, 0)


# Intervals of differences


def check_interval(found, metric, *columns):
  """Asserts that an interval is that of SciPy's paired bootstrap.

  Args:
    found: the interval.
    metric: difference between the models on lists of gold values and of the
      predictions of both.
    *columns: gold values, and predictions of both models.
  """
  expected = stats.bootstrap(
    [np.arange(len(columns[0]))],
    lambda drawn: metric(*([column[i] for i in drawn] for column in columns)),
    n_resamples=1000,
    vectorized=False,
    method="percentile",
    random_state=3,
  ).confidence_interval
  # Two bootstraps differ by chance, here by a few percent of the width.
  width = expected.high - expected.low
  assert found.low == pytest.approx(expected.low, abs=0.15 * width)
  assert found.high == pytest.approx(expected.high, abs=0.15 * width)


def corrupted(draw, gold, labels, share):
  """Labels, of which this share is replaced by random ones."""
  return [
    str(draw.choice(labels)) if draw.random() < share else label
    for label in gold
  ]


@pytest.mark.parametrize(
  ("name", "function"),
  [("pearson", stats.pearsonr), ("spearman", stats.spearmanr)],
)
def test_interval_of_a_correlation_is_that_of_scipy(name, function):
  draw = np.random.default_rng(0)
  gold = draw.normal(size=80)
  first, other = (gold + s * draw.normal(size=80) for s in (0.9, 0.5))
  found = paired_tests.compare_values([name], gold, first, other)
  check_interval(
    found.intervals[name],
    lambda gold, a, b: function(gold, b)[0] - function(gold, a)[0],
    gold,
    first,
    other,
  )


def f1(gold, predicted):
  """F1 of lists of 0 and 1."""
  gold, predicted = np.array([gold, predicted])
  return 2 * np.sum(gold * predicted) / (np.sum(gold) + np.sum(predicted))


def correlation(gold, predicted):
  return np.corrcoef(gold, predicted)[0, 1]


@pytest.mark.parametrize(
  ("name", "function"), [("f1", f1), ("matthews", correlation)]
)
def test_interval_of_a_metric_of_labels_is_that_of_scipy(name, function):
  draw = np.random.default_rng(1)
  labels = ["no", "a yes"]
  gold = draw.random(100) < 0.4
  first, other = (gold ^ (draw.random(100) < share) for share in (0.4, 0.2))
  texts = [[labels[int(x)] for x in column] for column in (gold, first, other)]
  found = paired_tests.compare_labels([name, "loss"], labels, *texts)
  assert set(found.intervals) == {name}
  check_interval(
    found.intervals[name],
    lambda gold, a, b: function(gold, b) - function(gold, a),
    *np.int32([gold, first, other]),
  )


def test_interval_of_micro_f1_of_several_labels_is_that_of_scipy():
  draw = np.random.default_rng(2)
  gold = draw.random([60, 3]) < 0.4
  first, other = (gold ^ (draw.random([60, 3]) < s) for s in (0.3, 0.2))
  lists = [
    [[label for label, x in zip("abc", row) if x] for row in rows]
    for rows in (gold, first, other)
  ]
  found = paired_tests.compare_labels(["micro_f1"], [*"abc"], *lists)
  check_interval(
    found.intervals["micro_f1"],
    lambda gold, a, b: f1(gold, b) - f1(gold, a),
    *np.int32([gold, first, other]),
  )


@pytest.fixture
def tagged():
  """Tags of sentences: gold, and those of two models."""
  draw = np.random.default_rng(4)
  tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
  gold = [
    [str(tag) for tag in draw.choice(tags, length)]
    for length in draw.integers(1, 9, 40)
  ]
  models = [
    [corrupted(draw, sentence, tags, share) for sentence in gold]
    for share in (0.4, 0.2)
  ]
  return gold, *models


def test_interval_of_entities_is_that_of_scipy_over_sentences(tagged):
  found = ner_report.compare_tags(["f1", "f1_PER"], *tagged)
  assert set(found.intervals) == {"f1"}
  # seqeval's entities, so that it need not find them in each resample.
  gold, first, other = (
    [{*sequence_labeling.get_entities(tags)} for tags in sentences]
    for sentences in tagged
  )

  def of_entities(gold, predicted):
    pairs = list(zip(gold, predicted))
    num_right = sum(len(a & b) for a, b in pairs)
    return 2 * num_right / sum(len(a) + len(b) for a, b in pairs)

  expected = f1_score(tagged[0], tagged[2])
  assert of_entities(gold, other) == pytest.approx(expected)
  check_interval(
    found.intervals["f1"],
    lambda gold, a, b: of_entities(gold, b) - of_entities(gold, a),
    gold,
    first,
    other,
  )


def test_interval_of_f1_of_answers_is_in_percent():
  draw = np.random.default_rng(5)
  first = draw.random(100)
  other = np.clip(first + draw.normal(size=100) / 10, 0, 1)
  scores = ([Score(0.0, float(f)) for f in fs] for fs in (first, other))
  found = squad_report.compare_answers(*scores).intervals["f1"]
  check_interval(
    found,
    lambda a, b: 100 * (np.mean(b) - np.mean(a)),
    first,
    other,
  )


# Without an interval


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("last", [1, 2])
def test_values_that_are_nearly_constant_have_no_interval(name, last):
  values = list(range(20))
  first = [1] * 19 + [last]
  found = paired_tests.compare_values([name], values, first, values)
  assert found.intervals == {name: None}


def test_equal_predictions_have_no_interval():
  gold = ["a", "b"] * 10
  predicted = ["a", "a"] * 10
  found = paired_tests.compare_labels(
    ["macro_f1"], ["a", "b"], gold, predicted, predicted
  )
  assert found.test == (0, 0, 1.0)
  assert found.intervals == {"macro_f1": None}


def test_labels_that_are_not_known_have_a_test_alone():
  gold = ["a", "b"] * 10
  found = paired_tests.compare_labels(["f1"], ["a"], gold, gold, ["a"] * 20)
  assert found.test.first_only == 10
  assert found.intervals == {}
