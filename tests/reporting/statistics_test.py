"""Tests of confidence intervals and McNemar's test."""

import math

import numpy as np
import pytest
from parametrize import parametrize

from bertlib.reporting import paired_tests, statistics

pytestmark = pytest.mark.unit


@parametrize(
  "num_correct, num_examples, ends",
  (81, 263, (0.2553, 0.3662)),
  (0, 20, (0.0, 0.1611)),
  (1, 29, (0.0061, 0.1718)),
)
def test_intervals_are_those_of_newcombe_1998(num_correct, num_examples, ends):
  found = statistics.fraction_interval(np.arange(num_examples) < num_correct)
  assert found[:2] == pytest.approx(ends, abs=5e-5)


def test_a_fraction_of_nothing_has_no_interval():
  assert statistics.fraction_interval([]) is None


def check_normal(found, values):
  """The interval is that of the normal distribution, but for chance."""
  margin = 1.96 * np.std(values) / math.sqrt(len(values))
  ends = np.mean(values) - margin, np.mean(values) + margin
  assert found[:2] == pytest.approx(ends, abs=0.15 * margin)


def test_a_mean_has_the_interval_of_the_normal_distribution():
  values = np.random.default_rng(2).normal(size=300)
  found = statistics.bootstrap(np.mean, values)
  check_normal(found, values)
  assert found == statistics.bootstrap(np.mean, values)  # not random


def test_models_are_compared_on_the_same_examples():
  draw = np.random.default_rng(3)
  first = 10 * draw.normal(size=300)  # differs more than the two models
  other = first + draw.normal(size=300)
  found = paired_tests.difference_interval(np.mean, first, other)
  check_normal(found, other - first)


@pytest.mark.parametrize(
  "values",
  [[], [0.0, 1.0] * 4, [1.0] * 50, [math.nan] + [0.0, 1.0] * 25],
  ids=["none", "few", "equal", "undefined"],
)
def test_means_without_an_interval(values):
  assert statistics.bootstrap(np.mean, np.array(values)) is None


@parametrize("width, num_resamples", (20, 50), (30, 0))
def test_large_data_sets_have_fewer_resamples_or_none(width, num_resamples):
  values = []

  def metric(drawn):
    values.append(len(drawn))
    return drawn[0, 0]

  statistics.bootstrap(metric, np.zeros([50_000, width], bool))
  assert values == [50_000] * num_resamples


@parametrize("first_only, other_only", (0, 0), (1, 0), (3, 9), (9, 3), (20, 20))
def test_p_value_is_that_of_a_fair_coin(first_only, other_only):
  first = [True] * first_only + [False] * other_only + [True] * 50 + [False]
  other = [False] * first_only + [True] * other_only + [True] * 50 + [False]
  test = paired_tests.mcnemar(first, other)
  assert (test.first_only, test.other_only) == (first_only, other_only)
  total, fewer = first_only + other_only, min(first_only, other_only)
  tail = sum(math.comb(total, k) for k in range(fewer + 1)) / 2**total
  assert test.p_value == pytest.approx(min(1.0, 2 * tail))


@parametrize(
  "gold, first, other, counts",
  # Correct are [1, 1, 0, 0] and [1, 0, 0, 1].
  ([*"aabb"], [*"aaaa"], [*"abab"], (1, 1)),
  # All labels have to be correct, in any order.
  (
    [["a", "b"], ["a"], [], ["b"]],
    [["b", "a"], ["a", "b"], [], []],
    [["a"], ["a"], ["b"], []],
    (2, 1),
  ),
  ([1.0, 2.0], [1.0, 2.0], [1.0, 3.0], None),
  ([], [], [], None),
)
def test_labels_are_right_or_wrong_numbers_neither(gold, first, other, counts):
  test = paired_tests.compare_answers(gold, first, other)
  assert (test and test[:2]) == counts
