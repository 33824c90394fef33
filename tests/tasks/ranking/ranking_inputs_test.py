"""Tests of run files and orders of documents."""

import types

import numpy as np
import pytest
import reference_data
import run_outputs
import tiny_model
from refused import refusal

import run_reranker
from bertlib.cli import option
from bertlib.data import beir
from bertlib.reporting import search_report
from bertlib.tasks.ranking import ranking_inputs
from bertlib.tasks.ranking.ranking_records import Group
from bertlib.tasks.ranking.settings import RankingSettings

pytestmark = pytest.mark.unit

GOLDEN = run_outputs.read_json(
  reference_data.golden("retrieval", "trec_eval.json")
)
QUERIES = {"q": "who ?", "p": "where ?"}
CORPUS = {f"d{i}": f"text {i}" for i in range(5)}


def write(tmp_path, *lines):
  path = tmp_path / "a.trec"
  path.write_text("".join(f"{line}\n" for line in lines))
  return str(path)


def test_figures_of_a_run_file_are_those_of_trec_eval(tmp_path):
  """Files are in no order, and some scores are equal."""
  lines = [
    f"{query} Q0 {document} 1 {score} name"
    for query, scores in GOLDEN["scores"].items()
    for document, score in scores.items()
  ]
  found = ranking_inputs.read_run(write(tmp_path, *lines), GOLDEN["scores"])
  for query, expected in GOLDEN["metrics"].items():
    if any(grade > 0 for grade in GOLDEN["judgments"][query].values()):
      judged = {query: GOLDEN["judgments"][query]}
      (row,) = search_report.evaluate_queries(judged, found)
      actual = dict(zip(search_report.METRICS, row))
      assert actual == pytest.approx(expected, abs=1e-12)


# `wrong_input_ranking.py` has others.
def test_a_score_that_is_no_number_is_refused(tmp_path):
  path = write(tmp_path, "q Q0 d1 1 nan x")
  message = refusal(ranking_inputs.read_run, path, QUERIES)
  assert message.startswith(f"{path}, line 1: the score 'nan' is not a number")


@pytest.fixture
def search():
  judged = beir.Retrieval(QUERIES, CORPUS.items(), {"q": {"d1": 1}})
  found = ranking_inputs.Search(judged)
  return found.with_candidates({"q": ["d3", "d1", "d2"], "p": ["d0"]})


def test_no_candidates_at_all_are_refused(search):
  message = refusal(search.with_candidates, {"q": []})
  assert message.startswith("--candidates: there are none for the queries")


def test_equal_logits_keep_the_order_of_the_candidates(search):
  assert [*search.pairs()] == [
    ("who ?", "text 3"),
    ("who ?", "text 1"),
    ("who ?", "text 2"),
    ("where ?", "text 0"),
  ]
  (query, ids, logits), (_, others, _) = search.ranked([1.0, 2.0, 1.0, 5.0])
  assert (query, ids, others) == ("q", ["d1", "d3", "d2"], ["d0"])
  assert logits.tolist() == [2, 1, 1]


def test_scores_of_a_written_run_fall_strictly(tmp_path, search):
  path = str(tmp_path / "b.trec")
  logits = np.float32([0.1, 0.1, 0.1, 1 / 3])
  run_reranker.write_run(path, search.ranked(logits))
  found = ranking_inputs.read_run(path, QUERIES)
  assert found == {"q": ["d3", "d1", "d2"], "p": ["d0"]}
  with open(path) as file:
    scores = [line.split()[4] for line in file]
  assert np.float32(scores[-1]) == np.float32(1 / 3)


def test_candidates_without_a_right_document_are_a_warning(caplog):
  judged = beir.Retrieval(QUERIES, [("d0", ""), ("d1", "a")], {"q": {"d1": 1}})
  found = ranking_inputs.Search(judged).with_candidates({"q": ["d0"]})
  assert found.candidates == {"q": ["d0"], "p": ()}
  assert caplog.messages == [
    "1 of 2 queries have no right document among their candidates, such as"
    " 'who ?'",
    "1 documents to rank have no text",
  ]


def test_the_right_documents_of_a_table_come_last(tmp_path):
  path = tmp_path / "a.tsv"
  path.write_text("a\tb\tc\nwho\tann\tbob\nwhere\trome\t\nwho\tbob\tdan\n")
  settings = option.make(
    RankingSettings, dev_file=str(path), text_columns=["a", "b", "c"]
  )
  found = ranking_inputs.search_of_table(settings, {})
  assert [*found.pairs()] == [
    ("who", "dan"),
    ("who", "ann"),
    ("who", "bob"),
    ("where", "rome"),
  ]


def test_queries_that_leave_documents_little_room_are_counted(search, caplog):
  run = types.SimpleNamespace(
    settings=option.make(RankingSettings, max_seq_length=6),
    tokenizer=tiny_model.tokenizer(*"abcd"),
  )
  queries = {"q": "a b c d", "p": "a b c"}
  dev = search._replace(retrieval=beir.Retrieval(queries, [], {}))
  train = [Group("a b c d", ["a"], [1])]
  ranking_inputs.warn_of_long_queries(
    run, ranking_inputs.Data(train, dev, None, {})
  )
  assert caplog.messages == [
    "2 queries have more than half of the --max_seq_length=6 tokens, and leave"
    " documents less"
  ]
