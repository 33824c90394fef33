"""Tests of confidence intervals."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from bertlib.reporting import confidence_intervals
from bertlib.tasks.classification import classification_scores

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
  ("counts", "ends"),
  [
    ((81, 263), (0.2553, 0.3662)),
    ((15, 148), (0.0624, 0.1605)),
    ((0, 20), (0.0, 0.1611)),
    ((1, 29), (0.0061, 0.1718)),
  ],
)
def test_fractions_have_the_intervals_of_newcombe_1998(counts, ends):
  found = confidence_intervals.of_fraction(*counts)
  assert found[:2] == pytest.approx(ends, abs=5e-5)


def test_a_fraction_of_nothing_has_no_interval():
  assert confidence_intervals.of_fraction(0, 0) is None


def correlated(draw, size, correlation):
  covariance = [[1, correlation], [correlation, 1]]
  return draw.multivariate_normal([0, 0], covariance, size).T


def test_pearson_has_the_interval_of_scipy():
  x, y = correlated(np.random.default_rng(0), 50, 0.7)
  found = confidence_intervals.of_correlation("pearson", x, y)
  expected = stats.pearsonr(x, y).confidence_interval()
  assert found[:2] == pytest.approx((expected.low, expected.high))


def test_spearman_of_the_population_is_in_95_percent_of_the_intervals():
  draw = np.random.default_rng(1)
  population = 6 / math.pi * math.asin(0.8 / 2)
  num_inside = 0
  for _ in range(1000):
    x, y = correlated(draw, 60, 0.8)
    found = confidence_intervals.of_correlation("spearman", x, y)
    num_inside += found.low <= population <= found.high
  assert 930 <= num_inside <= 970


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize(
  ("x", "y"),
  [
    (range(9), [3, 1, 2, 5, 4, 8, 7, 6, 9]),
    (range(20), range(20)),
    # Its Pearson correlation, 1 - 6e-15, is that of rounding.
    (range(20), [*range(19), 19 + 3e-6]),
    (range(20), [1] * 20),
    ([], []),
  ],
)
def test_correlations_without_an_interval(name, x, y):
  arrays = np.array(x, float), np.array(y, float)
  assert confidence_intervals.of_correlation(name, *arrays) is None


def test_interval_of_a_mean_is_that_of_scipy():
  values = np.random.default_rng(2).exponential(size=200)
  found = confidence_intervals.of_mean(values)
  expected = stats.bootstrap(
    [values], np.mean, n_resamples=5000, method="percentile", random_state=3
  ).confidence_interval
  # Two bootstraps differ by chance, here by a few percent of the width.
  width = expected.high - expected.low
  assert found.low == pytest.approx(expected.low, abs=0.1 * width)
  assert found.high == pytest.approx(expected.high, abs=0.1 * width)


def test_interval_of_f1_is_that_of_scipy():
  draw = np.random.default_rng(4)
  gold = draw.integers(0, 2, 300)
  predicted = np.where(draw.random(300) < 0.8, gold, 1 - gold)
  found = confidence_intervals.of_labels("f1", gold, predicted)

  def f1(gold, predicted, axis=-1):
    counts = [(x > 0).sum(axis) for x in (gold * predicted, gold, predicted)]
    return 2 * counts[0] / (counts[1] + counts[2])

  expected = stats.bootstrap(
    [gold, predicted],
    f1,
    n_resamples=5000,
    paired=True,
    vectorized=True,
    method="percentile",
    random_state=5,
  ).confidence_interval
  width = expected.high - expected.low
  assert found.low == pytest.approx(expected.low, abs=0.1 * width)
  assert found.high == pytest.approx(expected.high, abs=0.1 * width)


@pytest.mark.filterwarnings("ignore")  # labels that do not occur
@pytest.mark.parametrize("name", confidence_intervals.LABEL_METRICS)
@pytest.mark.parametrize("seed", range(10))
def test_metrics_from_counts_are_those_of_sklearn(name, seed):
  draw = np.random.default_rng(seed)
  gold, predicted = draw.integers(0, 2 if name == "f1" else 4, [2, 6])
  counts = draw.integers(1, 4, 6)
  rows = confidence_intervals.label_rows(gold, predicted)
  found = confidence_intervals.count_labels(rows, counts, num_labels=5)
  expected = classification_scores.METRICS[name](
    np.repeat(gold, counts), np.repeat(predicted, counts)
  )
  actual = confidence_intervals.LABEL_METRICS[name](found)
  assert actual == pytest.approx(expected)


@pytest.mark.parametrize("name", ["macro_f1", "micro_f1"])
@pytest.mark.parametrize("num_labels", [2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_several_labels_are_those_of_sklearn(name, num_labels, seed):
  draw = np.random.default_rng(seed)
  gold, predicted = draw.random([2, 6, num_labels]) < 0.3
  counts = draw.integers(1, 4, 6)
  rows = confidence_intervals.label_rows(gold, predicted)
  found = confidence_intervals.count_labels(rows, counts)
  expected = classification_scores.METRICS[name](
    np.repeat(gold, counts, axis=0), np.repeat(predicted, counts, axis=0)
  )
  actual = confidence_intervals.LABEL_METRICS[name](found)
  assert actual == pytest.approx(expected)


def test_accuracy_of_several_labels_counts_equal_sets():
  gold = np.array([[1, 0]] * 30 + [[1, 1]] * 10) > 0
  predicted = np.array([[1, 0]] * 40) > 0
  found = confidence_intervals.of_labels("accuracy", gold, predicted)
  assert found == confidence_intervals.of_fraction(30, 40)


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_that_of_sklearn(seed):
  draw = np.random.default_rng(seed)
  rows = np.column_stack([draw.integers(0, 5, 20), draw.random(20) < 0.3])
  rows[0, 1] = 1
  rows = np.unique(rows, axis=0)
  counts = draw.integers(1, 4, len(rows))
  expected = metrics.average_precision_score(
    np.repeat(rows[:, 1], counts), np.repeat(rows[:, 0], counts)
  )
  actual = confidence_intervals.average_precision(rows, counts)
  assert actual == pytest.approx(expected)


def test_average_precision_has_an_interval_around_it():
  draw = np.random.default_rng(7)
  gold = np.arange(100) % 4 == 0
  scores = draw.normal(size=100) + gold
  found = confidence_intervals.of_average_precision(gold, scores)
  value = metrics.average_precision_score(gold, scores)
  assert found.low < value < found.high
  assert found.high - found.low < 0.4
  nothing = np.zeros(100)
  assert confidence_intervals.of_average_precision(nothing, scores) is None


def test_one_column_of_labels_is_a_label_per_example():
  gold, predicted = np.random.default_rng(0).random([2, 40, 1]) < 0.3
  for name in confidence_intervals.LABEL_METRICS:
    found = confidence_intervals.of_labels(name, gold, predicted)
    assert found == confidence_intervals.of_labels(
      name, gold[:, 0], predicted[:, 0]
    )


def test_other_metrics_of_labels_have_no_interval():
  labels = np.arange(20) % 2
  assert confidence_intervals.of_labels("own", labels, labels) is None


def test_equal_data_have_equal_intervals():
  values = np.random.default_rng(6).random(50)
  found = [confidence_intervals.of_mean(values) for _ in range(2)]
  assert found[0] == found[1]


@pytest.mark.parametrize("values", [[0.0, 1.0] * 4, [1.0] * 50, []])
def test_means_without_an_interval(values):
  assert confidence_intervals.of_mean(np.array(values)) is None


def test_a_metric_that_most_resamples_do_not_have_has_no_interval():
  def metric(rows, counts):
    return counts[-1] or math.nan

  rows = np.array([[0.0]] * 99 + [[1.0]])
  assert confidence_intervals.bootstrap(metric, rows) is None


def test_large_data_sets_have_fewer_resamples():
  sizes = []

  def metric(rows, counts):
    sizes.append(counts.sum())
    return counts[0]

  confidence_intervals.bootstrap(metric, np.arange(50_000)[:, np.newaxis] % 2)
  assert sizes == [50_000] * 399
