"""Tests of queries, corpora and judgments in the layout of BEIR."""

import csv
import json
import logging
import math
import os
import re
import tracemalloc

import pytest
from parametrize import parametrize
from refused import refusal

from bertlib.data import beir
from bertlib.reporting import search_report

pytestmark = pytest.mark.unit

CORPUS = [
  {"_id": "d1", "title": "Cats", "text": "They purr. ", "metadata": {}},
  {"_id": "d2", "title": "", "text": "Dogs bark."},
  {"_id": "d3", "text": "Cows moo."},
  {"_id": "d4", "title": None, "text": "Hens cluck."},
]
QUERIES = [
  {"_id": "q1", "text": "who purrs?"},
  {"_id": "q2", "text": "who barks?", "metadata": {"url": "x"}},
  {"_id": "q3", "text": "who moos?"},
  {"_id": "q4", "text": "who clucks?"},
]
QRELS = [("q2", "d2", 2), ("q1", "d1", 1), ("q1", "d2", 0), ("q4", "d3", 0)]


def write(folder, corpus=CORPUS, queries=QUERIES, qrels=QRELS, split="test"):
  for name, rows in (("corpus", corpus), ("queries", queries)):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / f"{name}.jsonl").write_text("".join(f"{x}\n" for x in lines))
  (folder / "qrels").mkdir(exist_ok=True)
  with open(folder / "qrels" / f"{split}.tsv", "w", newline="") as file:
    writer = csv.writer(file, delimiter="\t")
    writer.writerows([("query-id", "corpus-id", "score"), *qrels])
  return str(folder)


def test_queries_with_relevant_documents_are_read(tmp_path, caplog):
  corpus = [*CORPUS, {"_id": "d5", "text": " "}]
  folder = write(tmp_path, corpus, qrels=[*QRELS, QRELS[0]])
  with caplog.at_level(logging.INFO, logger="absl"):
    queries, corpus, relevance = beir.read(folder)
  assert queries == {"q1": "who purrs?", "q2": "who barks?"}
  assert relevance == {"q2": {"d2": 2}, "q1": {"d1": 1, "d2": 0}}
  assert caplog.messages == [
    f"{folder}/qrels/test.tsv: 2 queries, 5 documents; 1 queries without"
    " relevant documents left out"
  ]
  assert [*corpus][-1] == ("d5", "")


def test_the_corpus_can_be_read_several_times(tmp_path):
  corpus = beir.read(write(tmp_path)).corpus
  expected = ["Cats They purr.", "Dogs bark.", "Cows moo.", "Hens cluck."]
  for _ in range(2):
    assert [*corpus] == [*zip(("d1", "d2", "d3", "d4"), expected)]
  assert ("d3", "Cows moo.") in corpus and ("d3", "") not in corpus


def test_the_path_is_a_folder_or_judgments(tmp_path, monkeypatch):
  folder = write(tmp_path, split="dev")
  write(tmp_path, qrels=QRELS[:1])
  path = f"{folder}/qrels/dev.tsv"
  (tmp_path / "pairs.tsv").write_text("a\tb\n")
  assert beir.is_beir(folder) and beir.is_beir(f"{folder}/")
  assert beir.is_beir(path)
  assert not beir.is_beir(f"{folder}/pairs.tsv")
  assert len(beir.read(path).queries) == 2
  assert len(beir.read(f"{folder}/").queries) == 1
  monkeypatch.chdir(tmp_path)
  for path in (".", "qrels/test.tsv"):
    assert beir.is_beir(path)
    assert len(beir.read(path).queries) == 1


def test_documents_that_the_corpus_lacks_are_not_found(tmp_path, caplog):
  qrels = [*QRELS, ("q1", "d99", 1), ("q3", "d98", 2), ("q2", "d99", 0)]
  folder = write(tmp_path, qrels=qrels)
  found = beir.read(folder)
  assert found.relevance == {
    "q2": {"d2": 2, "d99": 0},
    "q1": {"d1": 1, "d2": 0, "d99": 1},
    "q3": {"d98": 2},
  }
  assert (
    f"{folder}/corpus.jsonl: lacks the documents of 3 of 7 judgments, such as"
    " 'd99'; 2 of them are relevant and count as not found"
  ) in caplog.messages
  # Everything else is ranked best: half of q1 is found, and nothing of q3.
  rankings = {"q1": ["d1", "d2"], "q2": ["d2"], "q3": ["d3"]}
  scores = search_report.evaluate(found, {"": rankings}).results
  assert scores["eval_recall@10"] == pytest.approx((0.5 + 1 + 0) / 3)
  gain = 1 / (1 + 1 / math.log2(3))
  assert scores["eval_ndcg@10"] == pytest.approx((gain + 1 + 0) / 3)


@parametrize(
  "qrels, fault",
  ([*QRELS, ("q1", "d3", "0.5")], ", row 6: the score '0.5'"),
  ([*QRELS, ("q1", "d3", "")], ", row 6: the score ''"),
  ([*QRELS, ("q1", "d3")], ", row 6: has 2 columns"),
  ([*QRELS, ("q2", "d2", 1)], ", row 6: .* is 1, but 2 in row 2"),
  ([], ": has no judgments"),
)
def test_a_wrong_judgment_is_refused(tmp_path, qrels, fault):
  message = refusal(beir.read, write(tmp_path, qrels=qrels))
  assert re.search(rf"qrels/test\.tsv{fault}", message)
  assert "bad_rows" not in message


@parametrize("name", "corpus", "queries")
@parametrize(
  "line",
  "{",
  '["d", "text"]',
  '{"text": "x"}',
  '{"_id": "x"}',
  '{"_id": 7, "text": "x"}',
  '{"_id": "d2", "text": "x"}',
)
def test_a_missing_file_or_malformed_line_is_refused(tmp_path, name, line):
  rows = {"corpus": CORPUS, "queries": QUERIES}[name]
  line = line.replace("d2", rows[1]["_id"])
  folder = write(tmp_path, **{name: [*rows, line]})
  path = f"{folder}/{name}.jsonl"
  assert refusal(beir.read, folder).startswith(f"{path}, line 5: ")
  os.remove(path)
  assert refusal(beir.read, folder).startswith(f"{path}: no such file")


def test_a_query_without_text_is_refused_if_it_has_judgments(tmp_path):
  unused = [*QUERIES, {"_id": "q5", "text": ""}]
  assert beir.read(write(tmp_path, queries=unused)).queries
  folder = write(tmp_path, queries=[{"_id": "q1", "text": " "}])
  expected = f"{folder}/queries.jsonl, line 1: query 'q1' has no text. "
  assert refusal(beir.read, folder).startswith(expected)


def test_memory_does_not_grow_with_the_corpus(tmp_path):
  documents = [{"_id": f"x{n}", "text": "word " * 400} for n in range(3000)]
  folder = write(tmp_path, [*CORPUS, *documents])
  tracemalloc.start()
  try:
    assert sum(1 for _ in beir.read(folder).corpus) == 3004
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < os.path.getsize(f"{folder}/corpus.jsonl") / 4


def test_pairs_become_queries_and_documents():
  pairs = ["who? me", "what? this that me", "who? you that", "me myself"]
  lists = ((query, texts, [1, 0, 0]) for query, *texts in map(str.split, pairs))
  queries, corpus, relevance = beir.from_lists(lists)
  texts = dict(corpus)
  assert len(texts) == len(corpus)
  assert sorted(texts.values()) == ["me", "myself", "that", "this", "you"]
  assert [*queries.values()] == ["who?", "what?", "me"]
  found = {
    queries[query]: {texts[document] for document in some if some[document]}
    for query, some in relevance.items()
  }
  assert found == {"who?": {"me", "you"}, "what?": {"this"}, "me": {"myself"}}
  # The same text, as a query and as a document, has the same id.
  assert {queries.get(id_, text) for id_, text in corpus} == set(texts.values())
  assert queries.keys() & texts.keys()


def test_a_query_without_a_right_document_only_adds_to_the_corpus():
  lists = [("a", ["a"], [0]), ("b", ["c"], [1])]
  queries, corpus, relevance = beir.from_lists(lists)
  assert [*queries.values()] == ["b"]
  assert sorted(text for _, text in corpus) == ["a", "c"]
  assert relevance.keys() == queries.keys()
