"""Tests of the readers of texts for sentence embeddings."""

import csv
import io
import json
import logging

import pytest
from parametrize import parametrize
from refused import refusal

from bertlib.data import text_groups
from bertlib.data.text_groups import Columns, Example
from bertlib.settings.common import TableSettings

pytestmark = pytest.mark.unit

TRIPLET = Columns(["anchor", "positive", "negative"])
SCORED = Columns(["a", "b"], score="score")
LABELED_PAIR = Columns(["a", "b"], label="label")
LABELED = Columns(["text"], label="label")
TABLE = TableSettings()
PLAIN_PAIR = Columns(["1", "2"])
NUMBERED = Columns(["1", "2", "3"])


def read(folder, content, columns, name="data.tsv", max_score=1.0, **flags):
  path = folder / name
  path.write_text(content, encoding="utf-8")
  settings = TableSettings(**flags)
  return text_groups.read_examples(str(path), columns, max_score, settings)


@parametrize(
  "columns, kind",
  (Columns(["anchor", "positive"]), "pairs"),
  (TRIPLET, "triplets"),
  (Columns(["1", "2", "3", "4", "5"]), "triplets"),
  (SCORED, "scored_pairs"),
  (LABELED_PAIR, "labeled_pairs"),
  (LABELED, "labeled_texts"),
  (Columns(["text"]), "texts"),
)
def test_columns_decide_the_kind(columns, kind):
  assert text_groups.kind_of(columns) == kind


@parametrize(
  "columns",
  Columns(["a", ""]),
  Columns(["a", "b"], score="s", label="l"),
  Columns(["a", "b", "c"], score="s"),
  Columns(["a", "b", "c"], label="l"),
)
def test_columns_that_do_not_go_together_are_refused(columns):
  assert refusal(text_groups.kind_of, columns).startswith("--text_columns")


ROWS = [
  {"anchor": 'He said "no', "positive": "b, c", "negative": "d"},
  {"anchor": "e", "positive": "f", "negative": ""},
]
TRIPLETS = [Example(['He said "no', "b, c", "d"]), Example(["e", "f"])]


def as_table(rows, delimiter, **options):
  text = io.StringIO()
  writer = csv.DictWriter(text, rows[0], delimiter=delimiter, **options)
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()


def as_jsonl(rows):
  return "".join(json.dumps(row) + "\n" for row in rows)


CONTENTS = {
  "data.tsv": as_table(ROWS, "\t", quoting=csv.QUOTE_NONE, quotechar=None),
  "data.csv": as_table(ROWS, ","),
  "data.jsonl": as_jsonl(ROWS),
}


@parametrize("name", *CONTENTS)
def test_formats_have_the_same_rows_with_names_and_numbers(tmp_path, name):
  assert read(tmp_path, CONTENTS[name], TRIPLET, name) == TRIPLETS
  if name != "data.jsonl":
    _, body = CONTENTS[name].split("\n", 1)
    assert read(tmp_path, body, Columns(["1", "2", "3"]), name) == TRIPLETS


def test_json_lists_are_any_number_of_negatives(tmp_path):
  rows = [
    {"anchor": "a", "positive": "b", "negative": ["c", " d "]},
    {"anchor": "a", "positive": "b", "negative": []},
    {"anchor": "a", "positive": "b", "negative": None},
    {"anchor": "a", "positive": "b"},
    {"anchor": "a", "positive": "b", "negative": '["c", "d"]'},
  ]
  examples = read(tmp_path, as_jsonl(rows), TRIPLET, "data.jsonl")
  negatives = [example.texts[2:] for example in examples]
  assert negatives == [["c", "d"], [], [], [], ['["c", "d"]']]


def test_a_list_in_a_table_is_a_text(tmp_path):
  (example,) = read(tmp_path, 'a\tb\t["c", "d"]\n', Columns(["1", "2", "3"]))
  assert example.texts == ["a", "b", '["c", "d"]']


def test_negatives_of_several_columns_are_joined(tmp_path):
  content = "a\tb\tc\t\td\n"
  assert read(tmp_path, content, Columns([*"12345"])) == [Example([*"abcd"])]


def test_scores_are_scaled_to_0_to_1(tmp_path):
  content = "a\tb\tscore\nx\ty\t4\nx\ty\t0.0\nx\ty\t 3\n"
  examples = read(tmp_path, content, SCORED, max_score=4)
  assert [example.score for example in examples] == [1.0, 0.0, 0.75]


def test_a_spreadsheet_may_have_semicolons_and_decimal_commas(tmp_path):
  content = 'score;a;b\n"3,5";"x; y";z, z\n2;x;y\n'
  examples = read(tmp_path, content, SCORED, "data.csv", max_score=5)
  assert [example.score for example in examples] == [0.7, 0.4]
  assert examples[0].texts == ["x; y", "z, z"]
  path = str(tmp_path / "data.csv")
  texts = text_groups.read_texts(path, TableSettings(delimiter=";"), ["2"])
  assert texts == ["a", "x; y", "x"]


def test_labels_in_two_forms_are_reported(tmp_path, caplog):
  read(tmp_path, "text\tlabel\na\t1\nb\t1\nc\t1.0\n", LABELED)
  assert "'1' and '1.0'" in caplog.text


def test_labels_are_texts(tmp_path):
  content = "text\tlabel\nx\tred \ny\tblue\nz\tred\n"
  assert read(tmp_path, content, LABELED) == [
    Example(["x"], label="red"),
    Example(["y"], label="blue"),
    Example(["z"], label="red"),
  ]
  content = "a\tb\tlabel\nx\ty\t1.0\nx\tz\tFalse\n"
  labels = [example.label for example in read(tmp_path, content, LABELED_PAIR)]
  assert labels == ["1", "0"]


@parametrize(
  "name, content",
  ("x.csv", 'id,text\n1,"one, two"\n2,three\n'),
  ("x.jsonl", '{"text": "one, two"}\n{"text": "three"}\n'),
)
def test_texts_of_a_table_are_in_the_named_column(tmp_path, name, content):
  path = tmp_path / name
  path.write_text(content)
  texts = text_groups.read_texts(str(path), TABLE, ["text"])
  assert texts == ["one, two", "three"]
  for columns in ([], ["id", "text"]):
    message = refusal(text_groups.read_texts, str(path), TABLE, columns)
    assert message.startswith(f"{path}: is a table. ")


@parametrize(
  "columns, row, fault",
  (PLAIN_PAIR, "a\t \u200b", "'2' is empty: a pair needs both texts"),
  (Columns(["1"]), " ", "'1' is empty."),
  (NUMBERED, "a\tb\ta", "'3' has the same text as '1'"),
  (NUMBERED, "a\tb\t b", "'3' has the same text as '2'"),
  (Columns(["1", "2"], "3"), "a\tb\t1.01", "the score 1.01 is not between 0"),
  (Columns(["1", "2"], "3"), "a\tb\t-1", "the score -1 is not between 0 and"),
  (Columns(["1", "2"], None, "3"), "a\tb\t2", "the label '2' of the pair is"),
  (Columns(["1"], None, "2"), "a\t ", "the label is empty"),
)
def test_bad_rows_are_refused_or_skipped(tmp_path, caplog, columns, row, fault):
  named = (*columns.texts, columns.score, columns.label)
  good = "x\ty\t1\n" if "3" in named else "x\ty\n" if "2" in named else "x\n"
  content = f"{good}{good}{row}\n{good.replace('y', 'z')}"
  message = refusal(read, tmp_path, content, columns)
  assert message.startswith(f"{tmp_path}/data.tsv, row 3: {fault}")
  assert "ix the row" in message
  content = f"{good}{row}\n{good}{good.replace('y', 'z')}"
  with caplog.at_level(logging.WARNING):
    examples = read(tmp_path, content, columns, bad_rows="skip")
  assert len(examples) == 3
  assert "bad rows skipped: 1, " in caplog.text


@parametrize(
  "values, fault",
  ({"positive": ["b"]}, "'positive' is not a text"),
  ({"positive": None}, "has no positive"),
  ({"anchor": {"text": "a"}}, "'anchor' is not a text"),
  ({"negative": {"text": "a"}}, "'negative' is not a text"),
  ({"negative": ["c", ""]}, "'negative' is not a list of texts"),
  ({"negative": ["c", 7]}, "'negative' is not a list of texts"),
  ({"negative": ["c", "b"]}, "'negative' has the same text as 'positive'"),
)
def test_a_wrong_json_value_is_refused(tmp_path, values, fault):
  row = {"anchor": "a", "positive": "b", "negative": "c"}
  content = as_jsonl([row, row | values])
  message = refusal(read, tmp_path, content, TRIPLET, "data.jsonl")
  assert message.startswith(f"{tmp_path}/data.jsonl, row 2: {fault}")


def test_labels_without_contrast_are_refused(tmp_path):
  message = refusal(read, tmp_path, "text\tlabel\na\tx\nb\ty\n", LABELED)
  assert "2 texts have 2 labels, but" in message


def test_texts_are_read_from_a_file_or_stdin(tmp_path, monkeypatch):
  content = "one\ttwo ||| three\r\n  four\n\n\n"
  path = tmp_path / "texts.txt"
  path.write_bytes(content.encode())
  expected = ["one\ttwo ||| three", "four"]
  assert text_groups.read_texts(str(path), TABLE) == expected
  stdin = io.TextIOWrapper(io.BytesIO(content.encode()))
  monkeypatch.setattr("sys.stdin", stdin)
  assert text_groups.read_texts("-", TABLE) == expected
