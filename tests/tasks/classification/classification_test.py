"""Tests of the readers of classification data."""

import csv
import hashlib
import io
import json
import logging
import shutil

import pytest
import reference_data
import run_outputs
from hypothesis import given, settings
from hypothesis import strategies as st
from parametrize import parametrize
from refused import refusal

from bertlib.io.text_files import Encoding
from bertlib.tasks.classification import classification, own_tables
from bertlib.tasks.classification.own_tables import OwnDataProcessor

pytestmark = pytest.mark.unit

PROCESSORS = classification.PROCESSORS
SPLITS = ("train", "dev", "test")
SWAG_ENDINGS = [f"ending{n}" for n in range(4)]
SWAG_COLUMNS = ["", "video-id", "sent1", "sent2", *SWAG_ENDINGS, "label"]
CSV_TEXT = st.text('a,"\n\t é中\x85\u2028', min_size=1)
CSV_ROW = st.tuples(CSV_TEXT, CSV_TEXT).filter(lambda row: row[1].strip())
NUMBERS = {"text_a": "1", "label": "2"}


def read(processor, folder, split):
  return getattr(processor, f"get_{split}_examples")(str(folder))


def as_rows(examples):
  """The examples in the format of the golden files."""
  names = ("guid", "text_a", "text_b", "label")
  return [{name: getattr(e, name) for name in names} for e in examples]


# The published tasks


@pytest.mark.parametrize(
  ("task", "split"),
  [(task, split) for task in ("mrpc", "cola") for split in SPLITS]
  + [(task, split) for task in ("mnli", "xnli") for split in ("train", "dev")],
)
def test_examples_equal_those_of_the_original(task, split, golden):
  runs = run_outputs.read_json(golden("classifier", "runs.json"))["examples"]
  (run,) = [run for run in runs if (run["task"], run["split"]) == (task, split)]
  processor = PROCESSORS[task]()
  assert processor.get_labels() == run["labels"]
  folder = reference_data.data(*run["data_dir"].split("/"))
  rows = as_rows(read(processor, folder, split))
  first = reference_data.read_jsonl(golden("classifier", run["file"]))
  assert rows[: len(first)] == first
  lines = [json.dumps(r, sort_keys=True, separators=(",", ":")) for r in rows]
  digest = hashlib.sha256("".join(line + "\n" for line in lines).encode())
  assert digest.hexdigest() == run["all_examples_sha256"]


def test_odd_files_are_read_or_refused_as_in_the_original():
  path = reference_data.golden("classifier", "edge_tsv.jsonl")
  for case in reference_data.read_jsonl(path):
    folder = reference_data.golden("classifier", *case["folder"].split("/"))
    processor = PROCESSORS[case["task"]]()
    if "error" not in case:
      assert as_rows(read(processor, folder, case["split"])) == case["examples"]
      continue
    message = refusal(read, processor, folder, case["split"])
    row = 2 if "blank" in folder else 1
    assert message.startswith(f"{folder}/{case['split']}.tsv, row {row}: has ")
    assert "columns, but column " in message and "--bad_rows=skip" in message


# Column names of published files: of train and dev, and of test.
PAIR = "index sentence1 sentence2"
QUESTIONS = "question1 question2"
SIMILARITY = "index genre filename year old_index source1 source2 "
SIMILARITY += "sentence1 sentence2"
HEADERS = {
  "sst2": ("sentence label", "index sentence"),
  "stsb": (f"{SIMILARITY} score", SIMILARITY),
  "qnli": ("index question sentence label", "index question sentence"),
  "rte": (f"{PAIR} label", PAIR),
  "wnli": (f"{PAIR} label", PAIR),
  "qqp": (f"id qid1 qid2 {QUESTIONS} is_duplicate", f"id {QUESTIONS}"),
}
LABEL_COLUMNS = ("label", "score", "is_duplicate")


@parametrize("split", *SPLITS)
@parametrize("task", *HEADERS)
def test_text_and_label_columns_of_published_glue_files(tmp_path, task, split):
  header = HEADERS[task][split == "test"].split()
  processor = PROCESSORS[task]()
  labels = processor.get_labels() or ["0.0", "2.75", "5.0"]
  rows = []
  for n, label in enumerate(labels):
    rows.append([label if h in LABEL_COLUMNS else f"{h} {n}" for h in header])
  write_table(tmp_path / f"{split}.tsv", header, rows)
  examples = read(processor, tmp_path, split)
  texts = [n for n in header if n.startswith(("sentence", "question"))]
  for n, (example, label) in enumerate(zip(examples, labels)):
    assert example.text_a == f"{texts[0]} {n}"
    assert example.text_b == (f"{texts[1]} {n}" if texts[1:] else None)
    assert split == "test" or example.label == label
  assert len(examples) == len(labels)


def write_table(path, header, row):
  path.write_text("\n".join("\t".join(line) for line in [header, *row]) + "\n")


def test_diagnostic_set_uses_an_mnli_model(tmp_path):
  folder = str(tmp_path)
  rows = [["0", "The cat.", "A cat."]]
  write_table(tmp_path / "diagnostic.tsv", PAIR.split(), rows)
  processor = PROCESSORS["ax"]()
  ((example,),) = processor.read_sets(folder, "test").values()
  assert (example.text_a, example.text_b) == ("The cat.", "A cat.")
  assert processor.get_labels() == PROCESSORS["mnli"]().get_labels()
  assert processor.model_task == "mnli"
  assert "no train set" in refusal(read, processor, folder, "train")


@parametrize("split, num_labels", ("dev", 6), ("test", 0))
def test_mnli_has_a_mismatched_set(tmp_path, split, num_labels):
  for kind in ("matched", "mismatched"):
    fields = ["11", "p", "q", kind, *["tree"] * 4, f"{kind} A", f"{kind} B"]
    fields += ["neutral"] * num_labels
    write_table(tmp_path / f"{split}_{kind}.tsv", ["name"] * 16, [fields])
  processor = PROCESSORS["mnli"]()
  sets = processor.read_sets(f"file://{tmp_path}", split)
  read_back = {
    ending: [(e.guid, e.text_a, e.text_b) for e in examples]
    for ending, examples in sets.items()
  }
  # The guids of the original.
  matched = "dev_matched" if split == "dev" else "test"
  assert read_back == {
    "": [(f"{matched}-11", "matched A", "matched B")],
    "_mismatched": [(f"{split}_mismatched-11", "mismatched A", "mismatched B")],
  }
  paths = [f"{split}_{kind}.tsv" for kind in ("matched", "mismatched")]
  assert processor.files_read == [f"file://{tmp_path}/{path}" for path in paths]


def test_mnli_without_a_mismatched_set_warns(tmp_path, caplog):
  shutil.copy(reference_data.data("own", "MNLI", "dev_matched.tsv"), tmp_path)
  assert list(PROCESSORS["mnli"]().read_sets(str(tmp_path), "dev")) == [""]
  assert "no dev_mismatched.tsv" in caplog.text


@parametrize("split", "dev", "test")
def test_xnli_reads_the_rows_of_its_language(tmp_path, split):
  rows = [
    f"{language} neutral - - - - {language}1 {language}2".split()
    for language in ("de", "fr", "de")
  ]
  write_table(tmp_path / f"xnli.{split}.tsv", ["name"] * 8, rows)
  processor = classification.XnliProcessor("de")
  texts = [(e.text_a, e.text_b) for e in read(processor, tmp_path, split)]
  assert texts == [("de1", "de2")] * 2
  message = refusal(read, classification.XnliProcessor("ur"), tmp_path, split)
  assert message == f"{tmp_path}/xnli.{split}.tsv: has no examples"


class ReviewProcessor(classification.DataProcessor):
  """A processor of another project."""

  def get_dev_examples(self, data_dir):
    return self._read_tsv(f"{data_dir}/dev.tsv")


def test_processors_of_other_projects_can_call_read_tsv(tmp_path):
  path = tmp_path / "dev.tsv"
  path.write_bytes(b'\xef\xbb\xbfa\t"b\r\n\r\nc\td"\te\n')
  rows = classification.DataProcessor._read_tsv(str(path), quotechar='"')
  assert rows == [["a", '"b'], [], ["c", 'd"', "e"]]


def test_read_tsv_of_a_processor_reads_in_its_encoding(tmp_path):
  (tmp_path / "dev.tsv").write_bytes(b"a\t\xe9\n")
  processor = ReviewProcessor()
  assert read(processor, tmp_path, "dev") == [["a", ""]]
  processor.encoding = Encoding("latin-1")
  assert read(processor, tmp_path, "dev") == [["a", "é"]]
  processor.encoding = Encoding()
  assert "0xE9 is not UTF-8" in refusal(read, processor, tmp_path, "dev")


def test_a_processor_lists_the_files_that_it_read(tmp_path):
  files = {split: f"{split}.tsv" for split in SPLITS}
  for name in files.values():
    write_table(tmp_path / name, ["text", "label"], [["a", "x"]])
  own = OwnDataProcessor(files, "text", None, "label")
  own.read_labels(str(tmp_path))
  for split in SPLITS:
    read(own, tmp_path, split)
  write_swag(tmp_path / "val.csv")
  processors = [PROCESSORS["swag"](), ReviewProcessor()]
  for processor in processors:
    read(processor, tmp_path, "dev")
  assert [
    [path.removeprefix(f"{tmp_path}/") for path in processor.files_read]
    for processor in [own, *processors]
  ] == [["train.tsv", "dev.tsv", "test.tsv"], ["val.csv"], ["dev.tsv"]]


MNLI = "7 - - - - - - - A B"
XNLI_TRAIN = ["premise hypothesis label", "A B contradictory"]
XNLI_DEV = ["language", "zh neutral - - - - A B", "de neutral - - - - C D"]


@parametrize(
  "task, set_type, lines, expected",
  ("cola", "train", ["s 1 - A"], ("train-0", "A", None, "1")),
  ("mrpc", "dev", ["header", "1 - - A B"], ("dev-1", "A", "B", "1")),
  ("mnli", "test", ["", MNLI], ("test-7", "A", "B", "contradiction")),
  ("xnli", "train", XNLI_TRAIN, ("train-1", "A", "B", "contradiction")),
  ("xnli", "dev", XNLI_DEV, ("dev-1", "A", "B", "neutral")),
)
def test_create_examples_accepts_columns(task, set_type, lines, expected):
  columns = [line.split() for line in lines]
  (example,) = PROCESSORS[task]()._create_examples(columns, set_type)
  assert tuple(vars(example).values()) == expected


def test_a_subclass_can_override_create_examples(tmp_path):
  class Other(classification.MrpcProcessor):
    def _create_examples(self, lines, set_type):
      return [(set_type, len(line), line[-1], line[:2]) for line in lines[1:]]

  write_table(tmp_path / "dev.tsv", ["a", "b"], [["1", "2", "3"]])
  examples = Other().get_dev_examples(str(tmp_path))
  assert examples == [("dev", 3, "3", ["1", "2"])]


def write_swag(path, columns=SWAG_COLUMNS, label="2"):
  """Writes a file with one question and the columns in this order."""
  row = dict.fromkeys(SWAG_COLUMNS, "7")
  row |= {"sent1": 'He said, "go".', "sent2": "She", "label": label}
  row |= {name: f"goes {name[-1]}." for name in SWAG_ENDINGS}
  with open(path, "w", newline="") as file:
    rows = csv.DictWriter(file, columns, extrasaction="ignore")
    rows.writeheader()
    rows.writerow(row)


@parametrize(
  "split, file", ("train", "train"), ("dev", "val"), ("test", "test")
)
@parametrize("order", 1, -1)
def test_swag_columns_are_found_by_name(tmp_path, split, file, order):
  columns = [c for c in SWAG_COLUMNS if c != "label" or split != "test"]
  write_swag(tmp_path / f"{file}.csv", columns[::order])
  path = tmp_path / f"{file}.csv"
  if order == -1:
    content = path.read_text().replace(",", ";")
    path.write_text(content.replace("said;", "said,"))
  (example,) = read(PROCESSORS["swag"](), tmp_path, split)
  choices = [('He said, "go".', f"She goes {n}.") for n in range(4)]
  assert example == (f"{file}-1", choices, None if split == "test" else "2")


@parametrize("name", "sent1", "sent2", *SWAG_ENDINGS, "label")
def test_swag_without_a_column_is_refused(tmp_path, name):
  write_swag(tmp_path / "val.csv", [c for c in SWAG_COLUMNS if c != name])
  message = refusal(read, PROCESSORS["swag"](), tmp_path, "dev")
  assert f"{tmp_path}/val.csv, row 1" in message and repr(name) in message


ARTICLE = {
  "id": "high1.txt",
  "article": "Tom has a cat.\nIt is old.",
  "questions": ["Tom has a _ .", "How old is it?"],
  "options": [["dog", "cat", "cow", "hen"], ["new", "old", "two", "ten"]],
  "answers": ["B", "D"],
}


def write_race(folder, *paths, **changed):
  """Writes `ARTICLE` to files; `changed` replaces or removes (None) fields."""
  fields = (ARTICLE | changed).items()
  article = {name: field for name, field in fields if field is not None}
  for path in paths:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(json.dumps(article))


@parametrize("split", *SPLITS)
def test_race_reads_middle_and_high_school_articles(tmp_path, split):
  write_race(tmp_path, f"{split}/middle/1.txt", f"{split}/high/10.txt")
  texts = [f"Tom has a {name} ." for name in ARTICLE["options"][0]]
  texts += [f"How old is it? {option}" for option in ARTICLE["options"][1]]
  choices = [(ARTICLE["article"], text) for text in texts]
  assert read(PROCESSORS["race"](), tmp_path, split) == [
    (f"{split}-{name}-{number}", choices[4 * number :][:4], "BD"[number])
    for name in ("high/10.txt", "middle/1.txt")
    for number in range(2)
  ]


@parametrize("answers", None, [])
def test_race_without_answers_is_read(tmp_path, answers):
  write_race(tmp_path, "test/high/1.txt", answers=answers)
  examples = read(PROCESSORS["race"](), tmp_path, "test")
  assert [e.label for e in examples] == [None, None]


@parametrize(
  "changed",
  {"article": None},
  {"questions": None},
  {"questions": ["Who?"]},
  {"questions": ["Who?", 7]},
  {"options": None},
  {"options": [["a", "b", "c", "d"], ["a", "b", "c"]]},
  {"options": [["a", "b", "c", "d"], "abcd"]},
  {"answers": ["A"]},
  {"answers": ["A", None]},
  {"answers": ["B", "E"]},
  "Notes on the data.\n",
  '{"article": ',
)
def test_a_file_that_is_not_a_race_article_is_refused(tmp_path, changed):
  write_race(tmp_path, "train/middle/1.txt")
  if isinstance(changed, str):
    (tmp_path / "train/middle/2.txt").write_text(changed)
  else:
    write_race(tmp_path, "train/middle/2.txt", **changed)
  message = refusal(read, PROCESSORS["race"](), tmp_path, "train")
  assert message.startswith(f"{tmp_path}/train/middle/2.txt, row 1: ")


@parametrize("scheme", "", "file://")
def test_race_is_read_at_any_depth_of_remote_folders(tmp_path, scheme):
  folder = tmp_path / "race [1]"
  names = ["7.txt", "high/1.txt", "middle/1.txt", "other/a/b/1.txt"]
  write_race(folder, *(f"dev/{name}" for name in names))
  processor = PROCESSORS["race"]()
  assert len(read(processor, f"{scheme}{folder}", "dev")) == 8
  found = processor.files_read
  assert found == [f"{scheme}{folder}/dev/{name}" for name in names]


def test_race_without_articles_is_refused(tmp_path):
  message = refusal(read, PROCESSORS["race"](), tmp_path, "dev")
  assert message.startswith(f"{tmp_path}/dev: ")


# Your own files


def own(folder, content, split="train", name="data.tsv", **columns):
  """Writes `content` to a file and reads it with `OwnDataProcessor`."""
  if isinstance(content, str):
    content = content.encode()
  (folder / name).write_bytes(content)
  columns = {"text_a": "1", "text_b": None, "label": "2"} | columns
  skip_bad_rows = columns.pop("skip_bad_rows", False)
  processor = OwnDataProcessor({split: name}, **columns)
  processor.skip_bad_rows = skip_bad_rows
  return [(e.text_a, e.text_b, e.label) for e in read(processor, folder, split)]


PAIRS = [("one", "two", "x"), ("three", "", "y")]
BY_NAME = {"text_a": "first", "text_b": "second", "label": "label"}
MIXED = {"text_a": "2", "text_b": "second", "label": "1"}
ROWS = "x\tone\ttwo\ny\tthree\t\n"
TABLE = f"label\tfirst\tsecond\n{ROWS}"


@parametrize(
  "content, columns, expected",
  (TABLE, BY_NAME, PAIRS),
  (TABLE, MIXED, PAIRS),
  (ROWS, MIXED | {"text_b": "3"}, PAIRS),
  # The first label equals a column number.
  ("one\t1\nthree\t2\n", {}, [("one", None, "1"), ("three", None, "2")]),
  ('"a\tx\nb"\tx\n', {}, [('"a', None, "x"), ('b"', None, "x")]),
  ("a\tx\nb\ty\n\n\r\n\n", {}, [("a", None, "x"), ("b", None, "y")]),
  (
    "a\x0bb\x0cc\x1cd\x85e\u2028f\rg\tx\n",
    {},
    [("a\x0bb\x0cc\x1cd\x85e\u2028f\rg", None, "x")],
  ),
)
@parametrize("name", "data.tsv", "data")
def test_tsv_is_read_by_names_or_numbers_of_columns(
  tmp_path, name, content, columns, expected
):
  assert own(tmp_path, content, name=name, **columns) == expected


@settings(max_examples=50)
@given(st.lists(CSV_ROW, min_size=1))
def test_csv_written_by_python_is_read(tmp_path_factory, rows):
  text = io.StringIO()
  csv.writer(text).writerows(rows)
  folder = tmp_path_factory.mktemp("csv")
  examples = own(folder, text.getvalue(), name="data.csv")
  assert examples == [(text, None, label.strip()) for text, label in rows]


def test_jsonl(tmp_path):
  lines = [
    {"first": "one", "second": "two", "label": True, "more": 1},
    {"label": 2.5, "second": "", "first": "three", "more": None, "most": 2},
  ]
  content = "\n".join(json.dumps(line) for line in lines) + "\n"
  expected = [("one", "two", "true"), ("three", "", "2.5")]
  for name in ("data.jsonl", "data.json"):
    assert own(tmp_path, content, name=name, **BY_NAME) == expected
  numbers = {"text_a": "1", "text_b": "2", "label": "3"}
  assert own(tmp_path, content, name="data.jsonl", **numbers) == expected


def as_file(name, rows):
  """Rows of fields as the content of a file with this ending."""
  if name.endswith("jsonl"):
    return "".join(json.dumps(dict(zip("tl", row))) + "\n" for row in rows)
  comma = "," if name.endswith("csv") else "\t"
  return "".join(f"{comma.join(row)}\n" for row in rows)


@parametrize("name", "data.tsv", "data.csv", "data.jsonl")
@parametrize(
  "row",
  ("b",),
  ("b", "", "y"),
  ("b", "", "y", ""),
  *(("b", blank) for blank in ("", " ", "\u00a0", "\u3000\u200b", "\ufeff")),
)
@parametrize("has_header", True, False)
def test_no_label_or_more_columns_is_a_bad_row(tmp_path, name, row, has_header):
  rows = [("a", "x"), row, ("c", "y")]
  columns = {"text_a": "1", "label": "2"}
  if has_header and name != "data.jsonl":
    rows = [("text", "label"), *rows]
    columns = {"text_a": "text", "label": "label"}
  content = as_file(name, rows)
  message = refusal(lambda: own(tmp_path, content, name=name, **columns))
  assert message.startswith(f"{tmp_path}/{name}, row {rows.index(row) + 1}: ")
  columns["skip_bad_rows"] = True
  examples = own(tmp_path, content, name=name, **columns)
  assert examples == [("a", None, "x"), ("c", None, "y")]


def test_white_space_around_labels_is_stripped(tmp_path):
  labels = ["yes", "yes ", " yes", "yes\u00a0", "\u2003yes\u3000", "yes\ufeff"]
  content = "".join(f"a\t{label}\n" for label in labels) + "b\tnot yes \n"
  examples = own(tmp_path, content)
  assert [label for *_, label in examples] == ["yes"] * 6 + ["not yes"]
  content = "a\tx,\u00a0y \nb\t\u3000\n"
  examples = own(tmp_path, content, kind="multi_label", labels=["x", "y"])
  assert [label for *_, label in examples] == [["x", "y"], []]


def test_labels_are_read_from_the_training_file(tmp_path):
  files = {"train": "train.tsv", "dev": "dev.tsv"}
  (tmp_path / "train.tsv").write_text("a\ty\nb\tx\nc\ty\n")
  (tmp_path / "dev.tsv").write_text("a\tx\nb\tz\n")
  processor = OwnDataProcessor(files, "1", None, "2")
  processor.read_labels(str(tmp_path))
  assert processor.get_labels() == ["x", "y"]
  message = refusal(read, processor, tmp_path, "dev")
  assert "dev.tsv, row 2: unknown label 'z'; the labels are x, y" in message


def test_metrics_depend_on_the_task_and_the_number_of_labels():
  def metrics(labels, kind="classification"):
    return OwnDataProcessor({}, "1", None, "2", labels, kind).metrics

  assert metrics(["x", "y"]) == ("accuracy", "f1", "matthews")
  assert metrics(["x", "y", "z"]) == ("accuracy", "macro_f1", "matthews")
  assert metrics(None, "regression") == ("pearson", "spearman")
  assert metrics(["x", "y"], "multi_label")[0] == "micro_f1"


@parametrize("name", "a.tsv", "a.csv", "a.jsonl")
def test_a_test_file_needs_no_label_column(tmp_path, name):
  content = "first\nhow are you\n"
  if name == "a.jsonl":
    content = '{"first": "how are you"}\n'
  columns = {"text_a": "first", "label": "label", "labels": ["x"]}
  examples = own(tmp_path, content, "test", name, **columns)
  assert examples == [("how are you", None, None)]
  message = refusal(own, tmp_path, content, "dev", name, **columns)
  assert f"{name}, row 1: there is no column 'label'" in message


SEVERAL = {
  "x.tsv": 'a\tx,y\nb\t\nc\t["y", "z"]\nd\t z , x,,z\n',
  "x.csv": 'a,"x,y"\nb,\nc,"[""y"", ""z""]"\nd," z , x,,z"\n',
  "x.jsonl": """\
{"t": "a", "l": ["x", "y"]}
{"t": "b", "l": []}
{"t": "c", "l": "y,z"}
{"t": "d", "l": [" z ", "x", "", null, "z"]}
""",
}


@parametrize("name", *SEVERAL)
def test_a_text_may_have_any_number_of_labels(tmp_path, name):
  examples = own(tmp_path, SEVERAL[name], name=name, kind="multi_label")
  labels = [["x", "y"], [], ["y", "z"], ["z", "x"]]
  found = [(text, label) for text, _, label in examples]
  assert found == [*zip("abcd", labels)]


@parametrize("content", "a\tw|y\nb\t\nc\ty|x\n", "a\t\nb\t|\n")
def test_the_label_set_is_the_union_of_all_labels(tmp_path, content):
  (tmp_path / "train.tsv").write_text(content)
  files, kind = {"train": "train.tsv"}, "multi_label"
  processor = OwnDataProcessor(files, "1", None, "2", None, kind, "|")
  if "x" in content:
    processor.read_labels(str(tmp_path))
    assert processor.problem == ("multi_label", ["w", "x", "y"])
    assert processor.problem.num_labels == 3
  else:
    message = refusal(processor.read_labels, str(tmp_path))
    assert message == "train.tsv: no example has a label"


BAD_LINES = """\
{"t": "a", "l": "x"}
{"t":
{"t": "b"}
["c"]
{"t": "c", "l": "y"}
"""


@parametrize(
  "name, content, first, number",
  ("data.tsv", "a\tx\n\nb\nc\ty\n", "row 2: ", 2),
  ("data.csv", "a,x\n\nb\nc,y\n", "row 3: ", 1),
  ("data.jsonl", BAD_LINES, "row 2: ", 3),
  ("data.tsv", b"a\tx\nb\ty\xff\nc\ty\n", "row 2: ", 1),
)
def test_a_bad_row_is_refused_by_its_number_or_skipped(
  tmp_path, caplog, name, content, first, number
):
  message = refusal(lambda: own(tmp_path, content, name=name))
  assert message.startswith(f"{tmp_path}/{name}, {first}")
  examples = own(tmp_path, content, name=name, skip_bad_rows=True)
  assert examples == [("a", None, "x"), ("c", None, "y")]
  (record,) = caplog.records
  assert record.levelno == logging.WARNING
  assert record.getMessage().startswith(f"bad rows skipped: {number},")
  assert first in record.getMessage()


@parametrize("skip_bad_rows", False, True)
@parametrize(
  "name, content, columns, where",
  ("x.tsv", "t\tl\tl\na\tx\ty\n", {"text_a": "t", "label": "l"}, ", row 1: "),
  ("x.tsv", "head\tlabel\na\tx\n", {"text_a": "text"}, ", row 1: "),
  ("x.tsv", "a\nb\n", NUMBERS, ", row 1: "),
  ("x.csv", 'a,x\n"b,y\nc,x\n', NUMBERS, ", row 2: "),  # is never closed
  ("x.csv", 'a,x\n"b"c,y\n', NUMBERS, ", row 2: "),  # is closed too early
  ("x.jsonl", 'x\n{"t":"a"}\n', NUMBERS, ", row 1: "),
  ("x.tsv", "first\tsecond\tlabel\n", BY_NAME, ": has no examples"),
  ("x.tsv", b"", {}, ": is empty"),
  ("x.csv", b"\n\r\n\n", {}, ": is empty"),
  ("x.jsonl", b"\xef\xbb\xbf", {}, ": is empty"),
)
def test_a_file_that_cannot_be_read_is_refused(
  tmp_path, name, content, columns, where, skip_bad_rows
):
  columns = columns | {"name": name, "skip_bad_rows": skip_bad_rows}
  message = refusal(own, tmp_path, content, **columns)
  assert message.startswith(f"{tmp_path}/{name}{where}")


def read_table_texts(path, text_a, text_b, id_column, processor):
  """Texts of a table without labels, read with the options of a processor."""
  values = {"text": path}
  table = OwnDataProcessor(values, text_a, text_b, None, id_column=id_column)
  table.skip_bad_rows = processor.skip_bad_rows
  return table.read("", "text")


def test_texts_to_classify_are_read_from_a_file_or_stdin(tmp_path, monkeypatch):
  content = b"\xef\xbb\xbfone text\nhalf\tand half\r\n"
  (tmp_path / "x").write_bytes(content)
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
  for path in (str(tmp_path / "x"), "-"):
    rows = as_rows(own_tables.read_texts(path, classification.DataProcessor()))
    texts = [(row["text_a"], row["text_b"]) for row in rows]
    assert texts == [("one text", None), ("half", "and half")]


def test_a_line_with_several_tabs_is_refused(tmp_path):
  path = tmp_path / "x.txt"
  path.write_text("a\tb\nc\td\te\nf\n")
  processor = classification.DataProcessor()
  message = refusal(own_tables.read_texts, str(path), processor)
  assert message.startswith(f"{path}, row 2: has 2 tabs, but a line is ")
  processor.skip_bad_rows = True
  examples = own_tables.read_texts(str(path), processor)
  assert [example.guid for example in examples] == ["text-1", "text-3"]
  assert len(processor.bad_rows[str(path)]) == 1


@parametrize(
  "content, is_header",
  ("Text\na b\n", True),
  ("Text \na b\n", True),
  ("sentence1\tsentence2\na\tb\n", True),
  ("a text\nsentence\n", False),
  ("text\ta b\n", False),
)
def test_a_line_like_a_header_is_named(tmp_path, caplog, content, is_header):
  (tmp_path / "x.txt").write_text(content)
  processor = classification.DataProcessor()
  texts = own_tables.read_texts(str(tmp_path / "x.txt"), processor)
  assert len(texts) == content.count("\n")
  assert ("looks like a header" in caplog.text) == is_header


ID_TABLES = {
  "a.tsv": "text\tkey\tlabel\na\tK-7\tx\nb\t 8 \ty\n",
  "a.csv": 'text,key,label\n"a\nb",K-7,x\nb,8,y\n',
  "a.jsonl": '{"text": "a", "key": "K-7", "label": "x"}\n'
  '{"text": "b", "key": 8, "label": "y"}\n',
}


@parametrize("split", *SPLITS)
@parametrize("column", "key", "2")
@parametrize("name", *ID_TABLES)
def test_ids_are_guids(tmp_path, name, split, column):
  (tmp_path / name).write_text(ID_TABLES[name])
  columns = "text", None, "label"
  processor = OwnDataProcessor({split: name}, *columns, id_column=column)
  examples = read(processor, tmp_path, split)
  path = str(tmp_path / name)
  texts = read_table_texts(path, "text", None, column, processor)
  assert [e.guid for e in [*examples, *texts]] == ["K-7", "8"] * 2
  assert [example.label for example in texts] == [None, None]


def test_texts_of_a_table_are_named_by_row(tmp_path):
  (tmp_path / "a.csv").write_text('"one\ntwo",7,x\nthree,8,y\n')
  path, processor = str(tmp_path / "a.csv"), classification.DataProcessor()
  examples = read_table_texts(path, "1", "3", None, processor)
  texts = [(e.guid, e.text_a, e.text_b) for e in examples]
  assert texts == [("text-1", "one\ntwo", "x"), ("text-2", "three", "y")]


@parametrize(
  "id_, fault",
  ("", "the id is empty"),
  (" ", "the id is empty"),
  ("7", "the id '7' is that of row 2 too"),
  ("a\nb", "has a tab or a line break"),
  ("a\tb", "has a tab or a line break"),
)
def test_ids_are_unique_and_on_one_line(tmp_path, id_, fault):
  (tmp_path / "a.csv").write_text(f'text,id\na,7\nb,"{id_}"\nc,8\n')
  processor = classification.DataProcessor()
  arguments = str(tmp_path / "a.csv"), "text", None, "id", processor
  message = refusal(read_table_texts, *arguments)
  assert "a.csv, row 3" in message and fault in message
  processor.skip_bad_rows = True
  examples = read_table_texts(*arguments)
  assert [example.guid for example in examples] == ["7", "8"]
