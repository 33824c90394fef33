"""Tests of mining hard negatives."""

import json
import logging

import numpy as np
import pytest
from parametrize import parametrize

from benchmarks import results
from bertlib.data.text_groups import Example
from bertlib.tasks.embeddings import hard_negatives
from bertlib.tasks.embeddings.settings import MiningSettings

pytestmark = pytest.mark.unit

# Rows of a file: numbers of queries and of documents. The seventh repeats the
# second.
ROWS = [(0, 0), (1, 1), (2, 2), (3, 3), (0, 4), (4, 5), (1, 1), (0, 6)]
# Of `mine_hard_negatives` of sentence-transformers 6.2.0, with the vectors of
# `mine` and output_format="labeled-list": query, positive, negatives.
REFERENCE = {
  (("mine_negatives", 3),): [
    (0, 0, 3, 5, 1),
    (0, 4, 3, 5, 1),
    (0, 6, 3, 5, 1),
    (1, 1, 3, 5, 6),
    (2, 2, 6, 3, 1),
    (3, 3, 5, 0, 2),
    (4, 5, 4, 1, 3),
  ],
  (("mine_negatives", 2), ("range_min", 1)): [
    (0, 0, 5, 1),
    (0, 4, 5, 1),
    (0, 6, 5, 1),
    (1, 1, 5, 6),
    (2, 2, 3, 1),
    (3, 3, 0, 2),
    (4, 5, 1, 3),
  ],
  (("mine_negatives", 3), ("relative_margin", 0.1)): [
    (0, 0, 2),
    (0, 4, 2),
    (0, 6, 2),
    (1, 1, 6, 4, 0),
    (2, 2, 3, 1, 5),
    (3, 3, 0, 2, 6),
    (4, 5, 6, 2),
  ],
  (("mine_negatives", 3), ("absolute_margin", 0.2), ("range_max", 5)): [
    (0, 0, 2),
    (0, 4, 2),
    (0, 6, 2),
    (1, 1, 0, 2),
    (2, 2, 3, 1, 5),
    (3, 3, 6, 4, 1),
    (4, 5, 2),
  ],
  (
    ("mine_negatives", 2),
    ("absolute_margin", 0.1),
    ("relative_margin", 0.3),
    ("range_min", 1),
    ("range_max", 4),
  ): [(1, 1, 2), (2, 2, 1, 5), (3, 3, 2, 6), (4, 5, 2)],
}


def mine(tmp_path, rows, names="q{}", **options):
  """Lines of the file of mined negatives."""
  examples = [Example([names.format(q), f"d{d}"]) for q, d in rows]
  return write(tmp_path, hard_negatives.of_examples(examples), **options)


def write(tmp_path, mined, **options):
  """Lines of the file of mined negatives, by vectors of numbered texts."""
  draw = np.random.RandomState(3).randn
  vectors = {f"q{i}": draw(4) for i in range(5)}
  vectors |= {f"d{i}": draw(4) for i in range(7)} | {"": np.ones(4)}
  path = tmp_path / "negatives.jsonl"

  def encode(queries, corpus):
    return (
      np.array([vectors[f"q{q[1:]}"] for q in queries], np.float32),
      (vectors[text].astype(np.float32) for text in corpus),
    )

  options = MiningSettings(**options)
  hard_negatives.write(str(path), mined, encode, options)
  return [json.loads(line) for line in path.read_text().splitlines()]


@parametrize("options", *REFERENCE, ids=str)
def test_negatives_are_those_of_sentence_transformers(tmp_path, options):
  found = [
    (row["query"], row["positive"], *row["negatives"])
    for row in mine(tmp_path, ROWS, **dict(options))
  ]
  assert found == [
    (f"q{query}", *(f"d{document}" for document in documents))
    for query, *documents in REFERENCE[options]
  ]


def test_a_folder_is_mined_as_its_pairs_are(tmp_path):
  """A document judged 0 is like the others; copies and empty ones are left."""
  documents = {f"d{i}": f"d{i}" for i in range(7)}
  documents |= {"copy": "d0", "empty": ""}
  judged = [(f"q{q}", f"d{d}", 1) for q, d in ROWS]
  judged += [("q1", "d5", 0), ("q1", "empty", 1), ("q2", "lost", 1)]
  queries = {f"q{i}": f"q{i}" for i in range(5)}
  folder = tmp_path / "beir"
  results.write_beir(folder, documents, queries, judged, split="train")
  of_table = mine(tmp_path, ROWS, mine_negatives=3, range_max=9)
  mined = hard_negatives.of_folder(str(folder))
  of_folder = write(tmp_path, mined, mine_negatives=3, range_max=9)
  assert sorted(map(json.dumps, of_folder)) == sorted(map(json.dumps, of_table))


def test_scores_are_cosines_of_the_positive_and_each_negative(tmp_path):
  first = mine(tmp_path, ROWS, mine_negatives=3)[0]
  # Of sentence-transformers 6.2.0.
  expected = [-0.4964502, 0.2536743, 0.0906798, -0.4841991]
  np.testing.assert_allclose(first["scores"], expected, atol=1e-6)


def test_the_text_of_the_query_is_no_negative(tmp_path):
  # The query of each row is the document of another.
  rows = mine(tmp_path, [(0, 1), (1, 2), (2, 0)], "d{}", mine_negatives=3)
  assert [row["negatives"] for row in rows] == [["d2"], ["d0"], ["d1"]]


def test_numbers_of_short_and_of_empty_rows_are_logged(tmp_path, caplog):
  caplog.set_level(logging.INFO)
  mine(tmp_path, ROWS, mine_negatives=3, absolute_margin=0.2, range_max=5)
  assert "Negatives of 7 rows" in caplog.text
  assert "5 of them have fewer than 3. 0 more rows have none" in caplog.text


def test_margin_of_a_negative_cosine_is_a_share_of_its_size():
  found = hard_negatives.choose(
    {1: -0.1, 2: -0.55, 3: -0.6, 4: -0.7},
    -0.5,
    MiningSettings(mine_negatives=9, relative_margin=0.2),
  )
  assert [*found] == [3, 4]
