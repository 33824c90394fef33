"""Tests of ranking and scoring from Python."""

import numpy as np
import pytest
import tiny_huggingface
from parametrize import parametrize
from refused import refusal

import run_classifier
from bertlib.cli import option
from bertlib.tasks.ranking import ranking_predictor
from bertlib.tasks.ranking.ranking_predictor import RankingPredictor
from bertlib.tasks.ranking.settings import RankingSettings

pytestmark = pytest.mark.unit


class Lengths(RankingPredictor):
  """Logits are the lengths of documents."""

  def __init__(self, activation):
    self.description = {"activation": activation}

  def logits(self, pairs):
    return np.array([len(document) for _, document in pairs], np.float32)


def test_documents_are_in_the_order_of_their_logits():
  # As float32, the sigmoids of 20 and 30 are both 1.
  documents = ["a" * 20, "b" * 30, "cc", "d" * 20]
  found = Lengths("sigmoid").rank("query", iter(documents))
  assert [one.index for one in found] == [1, 0, 3, 2]
  assert [one.text for one in found] == [documents[i] for i in (1, 0, 3, 2)]
  expected = [1, 1, 1, 1 / (1 + np.exp(-2))]
  assert [one.score for one in found] == pytest.approx(expected)


def test_the_best_documents_are_returned_with_their_logits():
  found = Lengths("identity").rank("query", ["a", "bbb", "cc"], top_k=2)
  assert [(one.index, one.score) for one in found] == [(1, 3), (2, 2)]
  assert Lengths("identity").rank("query", []) == []


@parametrize(
  "columns, trains",
  ([], False),
  (["document", "query"], False),
  (["query", "positive", "negatives"], True),
  (["document", "query", "negatives"], True),
)
def test_pairs_of_json_lines_are_found_by_their_keys(tmp_path, columns, trains):
  path = tmp_path / "a.jsonl"
  path.write_text('{"id": 7, "document": "x", "query": "y"}\n')
  settings = option.make(
    RankingSettings,
    predict_file=str(path),
    text_columns=columns,
    do_train=trains,
  )
  rows, pair = ranking_predictor.pair_rows(settings)
  expected = ("x", "y") if columns[:1] == ["document"] else ("y", "x")
  assert [*map(pair, rows)] == [expected]


def test_pairs_of_other_keys_are_refused(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text('{"id": 7, "text": "x"}\n')
  settings = option.make(RankingSettings, predict_file=str(path))
  message = refusal(ranking_predictor.pair_rows, settings)
  assert message.startswith(f"{path}: its keys are id, text, not query and doc")


def test_a_query_is_one_text():
  message = refusal(Lengths("identity").rank, ["query"], ["a"])
  assert message == "query: is ['query']. Give a str"


def test_a_classifier_ranks_no_documents(tmp_path):
  classifier = "BertForSequenceClassification"
  weights = tiny_huggingface.tensors(classifier, 2)
  folder = tiny_huggingface.write_folder(
    tmp_path / "a", weights, architectures=[classifier]
  )
  tiny_huggingface.convert(folder, tmp_path / "b")
  with run_classifier.Predictor(str(tmp_path / "b")) as model:
    message = refusal(model.rank, "query", ["a"])
  assert "make one score of two labels" in message
