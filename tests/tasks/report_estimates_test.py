"""Tests of the intervals in reports."""

import numpy as np
import pytest
from parametrize import parametrize

from bertlib.data import beir
from bertlib.data.text_groups import Example
from bertlib.reporting import search_report
from bertlib.tasks.classification import classification_report
from bertlib.tasks.classification.classification import Problem
from bertlib.tasks.embeddings.embedding_evaluation import evaluate_examples
from bertlib.tasks.ner import ner, ner_report
from bertlib.tasks.squad import squad_report
from bertlib.tasks.squad.squad_scores import Score

pytestmark = pytest.mark.unit

NUM_EXAMPLES = 60


@pytest.fixture
def draw():
  return np.random.default_rng(0)


def check_intervals(intervals, scores, names):
  assert set(intervals) == set(names)
  for name, interval in intervals.items():
    assert interval.low < scores[name] < interval.high, name


def classified(problem, gold, logits, names, *more):
  """The metrics of a classifier are in their intervals."""
  names_given = [*names, *more]
  found = classification_report.intervals(problem, gold, logits, names_given)
  scores = classification_report.evaluate(names, gold, logits, problem)
  check_intervals(found, scores, names)


def test_a_classifier_has_intervals(draw):
  gold = np.array([1] * 40 + [0] * 20, np.int32)
  logits = draw.normal(size=[NUM_EXAMPLES, 2]) + np.eye(2)[gold]
  names = ("accuracy", "f1", "matthews", "macro_f1")
  problem = Problem("classification", ["no", "yes"])
  classified(problem, gold, logits, names, "loss", "of_a_processor")


def test_several_labels_have_intervals(draw):
  problem = Problem("multi_label", ["a", "b", "c"])
  gold = np.float32(draw.random([NUM_EXAMPLES, 3]) < [0.8, 0.6, 0.05])
  logits = draw.normal(size=gold.shape) + 2 * gold - 1
  classified(problem, gold, logits, ("micro_f1", "macro_f1"))


def test_regression_has_intervals_of_correlations(draw):
  gold = draw.random(NUM_EXAMPLES)
  logits = (gold + 0.1 * draw.normal(size=NUM_EXAMPLES))[:, np.newaxis]
  classified(Problem("regression", []), gold, logits, ("pearson", "spearman"))


def test_a_tagger_has_intervals_over_sentences(draw):
  sentences = [ner.from_text("Ann met Bob") for _ in range(NUM_EXAMPLES)]
  tags = ["B-PER", "O", "O", "B-LOC"]
  sentences = [s._replace(tags=list(draw.choice(tags, 3))) for s in sentences]
  predicted = [
    ([t if draw.random() < 0.7 else "O" for t in s.tags], [1.0] * 3)
    for s in sentences
  ]
  results = ner_report.evaluate_tags(sentences, predicted)
  scores = {name.removeprefix("eval_"): v for name, v in results.items()}
  found = ner_report.intervals(sentences, predicted)
  # No entity is predicted that is not there: precision is 1 in all resamples.
  assert found.pop("precision") is None and scores["precision"] == 1
  check_intervals(found, scores, ("f1", "recall", "accuracy"))


@parametrize("exact", "exact", "exact_match")
def test_answers_have_intervals_in_percent(draw, exact):
  scores = [Score(float(f > 0.6), f) for f in draw.random(NUM_EXAMPLES)]
  results = {"f1": 100 * np.mean([s.f1 for s in scores])}
  results[exact] = 100 * np.mean([s.exact for s in scores])
  found = squad_report.intervals(scores, results)
  check_intervals(found, results, (exact, "f1"))


def embedded(draw, kind, examples, names):
  """The metrics of random embeddings are in their intervals."""
  number = sum(len(example.texts) for example in examples)
  vectors = np.float32(draw.normal(size=[number, 4]))
  evaluation = evaluate_examples(kind, examples, vectors, ())
  scores = {n.removeprefix("eval_"): v for n, v in evaluation.results.items()}
  _, found = evaluation.report()
  check_intervals(found, scores, names)


def test_scored_pairs_have_intervals(draw):
  scores = draw.random(NUM_EXAMPLES)
  examples = [Example([f"a{s}", f"b{s}"], score=s) for s in scores]
  embedded(draw, "scored_pairs", examples, ("spearman", "pearson"))


def test_labeled_pairs_have_an_interval(draw):
  labels = ["1"] * 15 + ["0"] * 45
  examples = [
    Example([f"a{i}", f"b{i}"], label=label) for i, label in enumerate(labels)
  ]
  embedded(draw, "labeled_pairs", examples, ["average_precision"])


def test_labeled_texts_have_intervals(draw):
  labels = ["x"] * 30 + ["y"] * 29 + ["only one"]
  examples = [Example([f"a{i}"], label=label) for i, label in enumerate(labels)]
  embedded(draw, "labeled_texts", examples, ("map", "neighbor_accuracy"))


def test_a_search_has_intervals_over_queries(draw):
  relevance = {str(i): {str(i): 1, "other": 0} for i in range(20)}
  rankings = {q: [str(i) for i in draw.permutation(20)] for q in relevance}
  relevance["no answer"] = {"1": 0}
  corpus = [(str(i), f"text {i}") for i in range(20)]
  retrieval = beir.Retrieval({q: q for q in relevance}, corpus, relevance)
  _, found = search_report.evaluate(retrieval, {"": rankings}).report()
  assert found["ndcg@10"].low < found["ndcg@10"].high
  assert found["recall@100"] is None  # all is found
