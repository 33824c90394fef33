"""Tests of the report of sentence embeddings."""

import html_pages
import numpy as np
import pytest

from bertlib.data import beir
from bertlib.data.text_groups import Example
from bertlib.reporting import search_report
from bertlib.tasks.embeddings import embedding_evaluation

pytestmark = pytest.mark.unit


def rows_of(report):
  """Cells of the table of worst errors, and its heads."""
  (section,), _ = report
  heads, *rows = html_pages.rows_of(section.content)
  return heads, rows


def rows_of_pairs(kind, name, values, cosines, threshold=None):
  """The same of pairs with these scores or labels, and cosines."""
  examples = [
    Example([f"a{i}", f"b{i}"], **{name: value})
    for i, value in enumerate(values)
  ]
  gold = embedding_evaluation.gold_values(kind, examples)
  cosines = np.array(cosines, np.float32)
  found = embedding_evaluation.report_pairs(examples, gold, cosines, threshold)
  return rows_of(found)


def test_scored_pairs_are_listed_by_difference_of_ranks():
  scores, cosines = [0.0, 0.2, 0.4, 0.6, 1.0], [0.9, 0.2, 0.3, 0.4, 0.8]
  heads, rows = rows_of_pairs("scored_pairs", "score", scores, cosines)
  assert heads == ["gold", "cosine", "error", "text"]
  # Ranks by cosine are 5 1 2 3 4, those by score 1 2 3 4 5.
  texts = [row[-1].split() for row in rows]
  assert texts == [[f"a{i}", f"b{i}"] for i in range(5)]
  assert [float(row[2]) for row in rows] == [1.0, 0.25, 0.25, 0.25, 0.25]


def test_pairs_on_the_wrong_side_of_the_threshold_are_listed():
  cosines = [0.9, 0.1, 0.7, 0.8, 0.0]
  _, rows = rows_of_pairs("labeled_pairs", "label", "11100", cosines, 0.4)
  found = [(row[0], row[-1].split()[0], float(row[2])) for row in rows]
  assert found == [("0", "a3", 0.4), ("1", "a1", 0.3)]


@pytest.fixture
def search():
  queries = {name: f"query {name}" for name in "qrs"}
  corpus = [(str(number), f"text {number}") for number in range(9)]
  relevance = {"q": {"1": 1}, "r": {"2": 1, "3": 2}, "s": {"8": 1}}
  rankings = {
    "q": ["1", "2", "3"],  # no error
    "r": ["0", "4", "3", "2"],
    "s": ["5", "6", "7"],
  }
  return beir.Retrieval(queries, corpus, relevance), rankings


def report_of(retrieval, rankings):
  return search_report.evaluate(retrieval, {"": rankings}).report()


def test_queries_whose_answer_is_ranked_low_are_listed(search):
  heads, rows = rows_of(report_of(*search))
  assert heads == ["rank", "query", "found first", "right"]
  assert rows == [
    ["over 3", "query s", "text 5", "text 8"],
    ["3", "query r", "text 0", "text 3"],
  ]


def test_a_right_document_may_be_missing_in_the_corpus(search):
  retrieval, rankings = search
  retrieval.relevance["s"] = {"d99": 1}
  expected = [*("over 3", "query s", "text 5", "d99 (not in the corpus)")]
  assert rows_of(report_of(retrieval, rankings))[1][0] == expected


def test_texts_whose_neighbor_has_another_label_are_listed():
  labels = [*"xxyyz"]
  examples = [Example([f"text {i}"], label=labels[i]) for i in range(5)]
  vectors = np.float32([[1, 0], [0.6, 0.8], [0, 1], [0.1, 1], [1, 0]])
  evaluation = embedding_evaluation.evaluate_examples(
    "labeled_texts", examples, vectors, ()
  )
  heads, rows = rows_of(evaluation.report())
  names = ["label", "label of neighbor", "cosine", "text", "nearest text"]
  assert heads == names
  # The last text is no error: no other text has its label.
  assert rows == [
    ["x", "z", "1.0000", "text 0", "text 4"],
    ["x", "y", "0.8557", "text 1", "text 3"],
  ]
