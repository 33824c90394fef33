"""Tests of retrieval metrics beside trec_eval, and of their names."""

import numpy as np
import pytest
import reference_data
import run_outputs
import tensorflow.compat.v1 as tf
from parametrize import parametrize

from bertlib.data import beir
from bertlib.io import result_files
from bertlib.reporting import search_report
from bertlib.training import hooks

pytestmark = pytest.mark.unit

PATH = reference_data.golden("retrieval", "trec_eval.json")
GOLDEN = run_outputs.read_json(PATH)


def ranked(scores):
  """Documents in the order of trec_eval."""
  return sorted(scores, key=lambda doc: (scores[doc], doc), reverse=True)


IDEAL = {str(i): 1 + i % 3 for i in range(20)}
RANKINGS = {query: ranked(scores) for query, scores in GOLDEN["scores"].items()}


def evaluate(relevance, rankings):
  search = beir.Retrieval({}, (), relevance)
  found = search_report.evaluate(search, {"": rankings}).results
  return {name.removeprefix("eval_"): value for name, value in found.items()}


@parametrize("query", *sorted(set(GOLDEN["metrics"]) - {"q6"}))
def test_metrics_of_a_query_equal_trec_eval(query):
  judgments = {query: GOLDEN["judgments"][query]}
  expected = GOLDEN["metrics"][query]
  assert evaluate(judgments, RANKINGS) == pytest.approx(expected, abs=1e-12)


def test_metrics_are_means_over_queries_with_relevant_documents():
  # No document is relevant to q6; q7 has no ranking, and counts as 0.
  actual = evaluate(GOLDEN["judgments"], RANKINGS)
  assert list(actual) == list(search_report.METRICS)
  for name, value in actual.items():
    found = [GOLDEN["metrics"][f"q{number}"][name] for number in range(6)]
    assert value == pytest.approx(sum(found) / 7, abs=1e-12)


@parametrize(
  "gains, ranking, ndcg, mrr, recalls, average",
  # The ideal ranking of 20 documents.
  (IDEAL, ranked(IDEAL), 1.0, 1.0, (1 / 20, 10 / 20, 1.0), 1.0),
  # Rank 11 is beyond 10.
  ({"9": 1}, [*"0123456789"], 1 / np.log2(11), 0.1, (0.0, 1.0, 1.0), 0.1),
  ({"10": 1}, [str(i) for i in range(11)], 0.0, 0.0, (0.0, 0.0, 1.0), 1 / 11),
)
def test_metrics_of_one_ranking(gains, ranking, ndcg, mrr, recalls, average):
  actual = evaluate({"q": gains}, {"q": ranking})
  expected = {"ndcg@10": ndcg, "mrr@10": mrr, "map": average}
  expected |= {f"recall@{k}": r for k, r in zip((1, 10, 100), recalls)}
  assert actual == pytest.approx(expected)


@parametrize("name", *search_report.METRICS)
def test_names_pass_through_results_files_and_tensorboard(name, tmp_path):
  names = [f"eval_{name}", f"eval_{name}_64"]
  path = str(tmp_path / "eval_results.txt")
  result_files.write_results(path, dict.fromkeys(names, np.float64(0.5)))
  plain = result_files.plain_scores(result_files.read_results(path))
  assert plain == {name: 0.5, f"{name}_64": 0.5}
  assert result_files.plain_name(names[0]) == name
  hooks.write_events(str(tmp_path), 3, plain)
  (events,) = tmp_path.glob("events.out.tfevents.*")
  found = tf.train.summary_iterator(str(events))
  tags = {value.tag for event in found for value in event.summary.value}
  assert tags == set(plain)
