"""Tests of ranking and scoring from Python."""

import numpy as np
import pytest
import tiny_huggingface
from refused import refusal

import run_classifier
from bertlib.tasks.ranking.ranking_predictor import RankingPredictor

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
