"""Tests of lists of labels in a cell."""

import numpy as np
import pytest
from parametrize import parametrize

from bertlib.cli.errors import InputError
from bertlib.tasks.classification import own_tables
from bertlib.tasks.classification.own_tables import split_labels

pytestmark = pytest.mark.unit
NAMES = ["late", "rude", "dear"]


@parametrize(
  "value, labels",
  (["late", "rude"], ["late", "rude"]),
  (["it's", 'a "b"', "c, d", "é\n"], ["it's", 'a "b"', "c, d", "é"]),
  (["late"], ["late"]),
  ([], []),
  ((), []),
  (set(), []),
  (("late",), ["late"]),
  (("late", "rude"), ["late", "rude"]),
  ({"late"}, ["late"]),
  ([None, "late", 7, True], ["late", "7", "true"]),
  (np.array(["late", "it's", "rude"]), ["late", "it's", "rude"]),
  (np.array(["a" * 50, "b" * 50]), ["a" * 50, "b" * 50]),  # two lines
  ([1, 2], ["1", "2"]),
)
def test_lists_are_read_as_python_and_numpy_print_them(value, labels):
  assert split_labels(str(value), ",") == labels
  assert split_labels(f" {value} ".strip(), ";") == labels


@parametrize(
  "text",
  "[late]",
  "[late, rude]",
  "{late,rude}",
  "(late, rude)",
  "['late', nan]",
  "['late', 'rude'",
  "['late' + 'rude']",
  "[['late'], ['rude']]",
  '["late", ["rude"]]',
  "array(['late', 'rude'], dtype=object)",
  "WrappedArray(late, rude)",
  '{"late": 1, "rude": 0}',
)
def test_what_may_be_a_list_is_refused(text):
  with pytest.raises(ValueError, match=r"list"):
    split_labels(text, ",")


@parametrize(
  "text, labels",
  ("a, b ,,", ["a", "b"]),
  ('["a,b", 1, true, null, ""]', ["a,b", "1", "true"]),
  ("", []),
  ('{"a": 1}', ['{"a": 1}']),
  ("[a],[b]", ["[a]", "[b]"]),
  ("(other)", ["(other)"]),
  ("f(x)", ["f(x)"]),
  ("(1)", ["(1)"]),
  (":(", [":("]),
  ("a (b, c)", ["a (b", "c)"]),
  ("0", ["0"]),
  ("0,1", ["0", "1"]),
)
def test_brackets_that_are_part_of_labels_stay(text, labels):
  assert split_labels(text, ",") == labels


@parametrize(
  "text",
  "[1, 0, 1]",
  "1,0,1",
  "1 0 1",
  "[1. 0. 1.]",
  "[1 0 1]",
  "(1, 0, 1)",
  "[true, false, true]",
  "[True, False, True]",
  '["1", "0", "1"]',
)
def test_a_vector_of_0_and_1_needs_the_names_of_its_labels(text):
  assert split_labels(text, ",", NAMES) == ["late", "dear"]
  for names in ([], NAMES[:2], [*NAMES, "more"]):
    with pytest.raises(ValueError, match=r" 3 values 0 or 1\. .* --labels$"):
      split_labels(text, ",", names)


def test_labels_named_0_and_1_are_no_vector():
  assert split_labels("0,1", ",", ["0", "1"]) == ["0", "1"]
  assert split_labels("[0, 1]", ",", ["x", "y"]) == ["y"]
  assert split_labels("[0, 0]", ",", ["x", "y"]) == []


def read(folder, content, labels=None, kind="multi_label", name="train.csv"):
  (folder / name).write_text(content)
  columns = "text", None, "label"
  values = {"train": name}
  processor = own_tables.OwnDataProcessor(values, *columns, labels, kind)
  if not labels:
    processor.read_labels(str(folder))
  examples = processor.get_train_examples(str(folder))
  return processor.labels, [example.label for example in examples]


def test_vectors_of_two_labels_need_their_names(tmp_path):
  with pytest.raises(InputError, match=r"train\.csv: .* --labels$"):
    read(tmp_path, 'text,label\na,"[0, 1]"\nb,"[1, 0]"\n')


def test_a_vector_may_stand_beside_lists(tmp_path):
  content = "text,label\na,\"['x', 'y']\"\nb,1 0\n"
  labels = [["x", "y"], ["x"]]
  assert read(tmp_path, content, ["x", "y"]) == (["x", "y"], labels)


# Three texts with the labels a, both, and none.
BITS = {
  "a.csv": 'text,"a, b",a,b\nx,u,1,0\ny,"v,w",1.0,TRUE\nz,v,0,0\n',
  "b.csv": "b;a;text\n0;1;x\n1;1,0;y\n0;0;z\n",
  "c.jsonl": """{"a": 1, "text": "x", "b": 0}
{"text": "y", "b": true, "a": 1.0}\n{"text": "z", "b": false, "a": 0}""",
  "test.jsonl": '{"text": "x"}\n',
}


@parametrize(
  "name, label, labels, expected",
  *((name, "b,a", None, "b a") for name in ("a.csv", "b.csv", "c.jsonl")),
  ("b.csv", "b, a", ["a", "b"], "a b"),
  ("a.csv", "a, b", None, "u v w"),  # a column of that very name
)
def test_columns_of_0_and_1_are_labels(tmp_path, name, label, labels, expected):
  for path, content in BITS.items():
    (tmp_path / path).write_text(content)
  files = {"train": name, "dev": "c.jsonl", "test": "test.jsonl"}
  columns = "text", None, label, labels, "multi_label"
  processor = own_tables.OwnDataProcessor(files, *columns)
  if not labels:
    processor.read_labels(str(tmp_path))
  assert processor.labels == expected.split()
  if label != "a, b":
    for split in "train", "dev":
      examples = processor.read(str(tmp_path), split)
      said = [(e.text_a, sorted(e.label)) for e in examples]
      assert said == [("x", ["a"]), ("y", ["a", "b"]), ("z", [])]
    (example,) = processor.get_test_examples(str(tmp_path))
    assert example.label is None


def test_columns_without_names_are_labels_in_their_order(tmp_path):
  (tmp_path / "d.csv").write_text("1,0,x\n1,1,y\n0,0,z\n")
  processor = own_tables.OwnDataProcessor(
    {"train": "d.csv"}, "3", None, "1,2", ["a", "b"], "multi_label"
  )
  examples = processor.get_train_examples(str(tmp_path))
  assert [example.label for example in examples] == [["a"], ["a", "b"], []]


def test_one_label_per_text_may_be_another_delimiter(tmp_path, caplog):
  read(tmp_path, "text,label\na,x;y\nb,y\n")
  assert "no text has several labels" in caplog.text


@parametrize(
  "name, content",
  ("train.csv", "text,label\na,\"['x', 'y']\"\n"),
  ("train.csv", 'text,label\na,"[""x""]"\n'),
  ("train.jsonl", '{"text": "a", "label": ["x"]}\n'),
  ("train.jsonl", '{"text": "a", "label": "[\'x\']"}\n'),
)
def test_a_list_is_no_label_of_a_classification(tmp_path, name, content):
  with pytest.raises(InputError, match=r", row .* --problem_type=multi_label"):
    read(tmp_path, content, kind="classification", name=name)
  read(tmp_path, "text,label\na,[x]\nb,(y)\nc,[1]\n", kind="classification")
