"""Tests of queries with their documents, and of their records."""

import json

import pytest
import tiny_model
import tiny_reranker
from parametrize import parametrize
from refused import refusal

from bertlib.cli import option
from bertlib.data import input_pipeline, model_inputs, tf_records
from bertlib.settings.common import LongDocumentSettings
from bertlib.tasks.ranking import ranking_records
from bertlib.tasks.ranking.ranking_records import Group
from bertlib.tasks.ranking.settings import RankingSettings

pytestmark = pytest.mark.unit

LABELED = "q\td\tl\nx\ta\t1\ny\tc\t0\nx\tb\t0\ny\td\t1\nx\ta\t0\ny\te\t1\n"


def read(path, loss, *columns, **flags):
  settings = option.make(
    RankingSettings, train_file=str(path), text_columns=columns, **flags
  )
  found = ranking_records.open_groups(settings, loss, {})
  groups = [group._replace(where="") for group in found]
  assert [*found] == [*found] and len(found) == len(groups)
  assert found.num_documents == max(len(g.documents) for g in groups)
  return groups


@parametrize(
  "loss, expected",
  (
    "listwise",
    [Group("x", ["a", "b"], [1, 0]), Group("y", ["c", "d", "e"], [0, 1, 1])],
  ),
  (
    "margin_mse",
    [
      Group("x", ["a", "b"], [1, 0]),
      Group("y", ["d", "c"], [1, 0]),
      Group("y", ["e", "c"], [1, 0]),
    ],
  ),
  (
    "bce",
    [
      Group("x", ["a"], [1]),
      Group("y", ["c"], [0]),
      Group("x", ["b"], [0]),
      Group("y", ["d"], [1]),
      Group("y", ["e"], [1]),
    ],
  ),
)
def test_rows_with_labels_are_lists_where_the_loss_needs_them(
  tmp_path, loss, expected
):
  """The last pair of x contradicts the first, which counts."""
  path = tmp_path / "a.tsv"
  path.write_text(LABELED)
  assert read(path, loss, "q", "d", label_column="l") == expected


@parametrize("loss", "bce", "listwise")
def test_one_column_of_texts_is_no_list(tmp_path, loss):
  path = tmp_path / "a.tsv"
  path.write_text(LABELED)
  message = refusal(read, path, loss, "q")
  assert message.startswith(f"--text_columns=q: {path} needs a query and its")


def test_scores_are_labels_of_any_size_in_a_list(tmp_path):
  path = tmp_path / "a.tsv"
  path.write_text("q\td\ts\nx\ta\t4\nx\tb\t0.5\n")
  columns = "q", "d"
  (group,) = read(path, "listwise", *columns, score_column="s")
  assert group == Group("x", ["a", "b"], [4, 0.5])
  pairs = read(path, "bce", *columns, score_column="s", max_score=5.0)
  assert [group.labels for group in pairs] == [[0.8], [0.1]]


def test_triples_without_a_header_are_lists(tmp_path):
  path = tmp_path / "triples.train.small.tsv"
  path.write_text("x\ty\tz\nv\tw\tu\n")
  assert read(path, "listwise", "1", "2", "3") == [
    Group("x", ["y", "z"], [1, 0]),
    Group("v", ["w", "u"], [1, 0]),
  ]


def test_negative_judgments_of_a_folder_are_negatives(tmp_path):
  """The highest of equal texts counts: that of q0 has a copy."""
  tiny_reranker.write_beir(tmp_path / "beir")
  copy = {"_id": "copy", "text": tiny_reranker.LISTS[0][1]}
  with open(tmp_path / "beir" / "corpus.jsonl", "a") as file:
    print(json.dumps(copy), file=file)
  with open(tmp_path / "beir" / "qrels" / "train.tsv", "a") as file:
    print("q0", "copy", "0", sep="\t", file=file)
  groups = read(tmp_path / "beir", "listwise")
  expected = [Group(q, [d, a], [1, 0]) for q, d, a, _ in tiny_reranker.LISTS]
  assert groups == expected


def test_a_list_has_the_scores_of_its_teacher(tmp_path):
  path = tmp_path / "a.jsonl"
  row = {"q": "x", "p": "a", "n": ["b", "c"], "t": [2, 0.5, -1]}
  path.write_text(json.dumps(row))
  (group,) = read(path, "margin_mse", *"qpn", teacher_scores_column="t")
  assert group == Group("x", ["a", "b", "c"], [1, 0, 0], [2, 0.5, -1])


def test_scores_of_a_teacher_stay_with_the_documents_of_labeled_rows(tmp_path):
  path = tmp_path / "a.jsonl"
  rows = ("a", 0, [0.5]), ("b", 1, [3]), ("c", 0, [-1]), ("d", 1, [2])
  lines = [json.dumps(dict(zip("qdlt", ("x", *row)))) for row in rows]
  path.write_text("\n".join(lines))
  more = {"label_column": "l", "teacher_scores_column": "t"}
  assert read(path, "margin_mse", "q", "d", **more) == [
    Group("x", ["b", "a", "c"], [1, 0, 0], [3, 0.5, -1]),
    Group("x", ["d", "a", "c"], [1, 0, 0], [2, 0.5, -1]),
  ]


@parametrize(
  "query, document, kept",
  ("abc", "defgh", "abcde"),
  ("abcd", "e", "abcde"),
  ("abcdefg", "h", "abcdh"),
)
def test_documents_are_cut_and_not_queries(query, document, kept):
  """But for the one token that is left of a document."""
  tokenizer = tiny_model.tokenizer(*"abcdefgh")
  rows = [(" ".join(query), " ".join(document))]
  (row,) = model_inputs.encode_pairs(tokenizer, rows, 8, LongDocumentSettings())
  tokens = tokenizer.convert_ids_to_tokens(row.input_ids)
  assert [t for t in tokens if t not in tiny_model.SPECIAL] == [*kept]


def test_records_of_lists_have_room_for_missing_documents(tmp_path, caplog):
  tokenizer = tiny_model.tokenizer(*"abcdefgh")
  groups = [Group("a", ["b c d", "e"], [1, 0]), Group("a b c d", ["f"], [1])]
  path, features = str(tmp_path / "a"), ranking_records.layout("bce", 2, 6)
  with caplog.at_level("INFO", logger="absl"):
    ranking_records.write_records(
      path, groups, features, tokenizer, LongDocumentSettings()
    )
  assert caplog.messages == [
    f"2 queries with 3 documents written to {path}; 66.7% of these are cut to 6"
    " tokens with the query",
  ]
  (batch,) = input_pipeline.record_batches(path, features, 2, False, False)
  assert batch["labels"].numpy().tolist() == [[1, 0], [1, 0]]
  lengths = batch["input_mask"].numpy().sum(axis=-1)
  assert lengths.tolist() == [[6, 5], [6, 0]]


def test_a_large_list_widens_its_own_batch_alone(tmp_path):
  """Where shapes are not static."""
  tokenizer = tiny_model.tokenizer(*"abcdefgh")
  path, features = str(tmp_path / "a"), ranking_records.layout("bce", 90, 6)
  groups = [Group("a", ["b"] * n, [1.0] * n) for n in (2, 1, 90)]
  ranking_records.write_records(
    path, groups, features, tokenizer, LongDocumentSettings()
  )
  records = [*tf_records.read_serialized(path)]
  assert 10 * len(records[0]) < len(records[2])
  lengths = input_pipeline.num_tokens(records, features).numpy()
  assert lengths.tolist() == [5] * 3
  for trim, widths in ((True, [2, 90]), (False, [90, 90])):
    batches = input_pipeline.record_batches(path, features, 2, False, trim)
    assert [batch["labels"].shape[1] for batch in batches] == widths
    assert [batch["input_ids"].shape[1] for batch in batches] == widths
