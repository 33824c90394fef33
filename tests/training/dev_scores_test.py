"""Tests of the names, order and file of dev scores."""

import math

import pytest

from bertlib.training import dev_scores

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
  ("metric", "score", "than", "better"),
  [
    ("f1", 0.5, None, True),
    ("f1", 0.5, 0.4, True),
    ("f1", 0.5, 0.5, False),
    ("f1", 0.4, 0.5, False),
    ("loss", 0.4, 0.5, True),
    ("loss", 0.5, 0.5, False),
    ("masked_lm_loss", 0.6, 0.5, False),
    ("f1", math.nan, None, False),
    ("f1", math.nan, 0.5, False),
    ("loss", math.nan, 0.5, False),
    ("f1", 0.0, math.nan, True),
    ("loss", 9.0, math.nan, True),
    ("f1", math.nan, math.nan, False),
  ],
)
def test_higher_is_better_except_for_losses(metric, score, than, better):
  assert dev_scores.is_better(metric, score, than) == better


def test_each_score_has_one_name():
  results = {"eval_loss": 0.25, "loss": 0.5, "eval_f1": 1, "global_step": 3}
  results |= {"confusion_matrix": [[1]], "labels": "[]", "exact_match": 50.0}
  assert dev_scores.plain_scores(results) == {
    "loss": 0.25,
    "f1": 1.0,
    "exact_match": 50.0,
  }


@pytest.mark.parametrize(
  ("metric", "best_step"),
  [("f1", 2), ("loss", 1), ("recall", 3), ("accuracy", None)],
)
def test_best_row_is_the_first_with_the_best_score(metric, best_step):
  rows = [
    {"step": 1, "f1": 0.1, "loss": 0.5},
    {"step": 2, "f1": 0.9, "loss": 0.5},
    {"step": 3, "f1": 0.9, "loss": 0.6, "recall": 0.2},
  ]
  best = dev_scores.best_row(rows, metric)
  assert (best and best["step"]) == best_step
