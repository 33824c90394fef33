"""Tests of tables: headers, columns by name and number, quotes, bad rows."""

import functools
import json

import pytest
import refused
from parametrize import parametrize
from refused import assert_refused

from bertlib.cli.errors import InputError
from bertlib.data import tables
from bertlib.tasks.classification.classification import XnliProcessor
from bertlib.tasks.classification.own_tables import OwnDataProcessor

pytestmark = pytest.mark.unit

BY_NAME = {"text": "text", "label": "label"}
FORMS = """1/1.0 1/01 1,0/1 \uff11/1 True/1 Good/good good./good 'good'/good
  Stra\xdfe/STRASSE a_b/a-b a\u200bb/ab \uff21/A caf\xe9/cafe\u0301"""


def table(folder, content, name="data.tsv", optional=(), other=None, **columns):
  """Reads a table whose columns are those of --text_column, --label_column."""
  (folder / name).write_bytes(content.encode())
  columns = {"text": "1", "label": "2"} | columns
  return tables.read_table(
    str(folder / name),
    [(f"--{role}_column", column) for role, column in columns.items()],
    optional=optional,
    delimiter=other,
  )


def read(folder, content, name="data.tsv", skip=False, bad=None, **columns):
  """The cells of a table's columns, row by row."""
  found = table(folder, content, name, **columns)

  def example(row):
    found.check_row(row)
    return tuple(row.text(c) for c in found.columns if c is not None)

  return tables.collect_examples(found.path, found.rows, example, skip, bad)


refusal = functools.partial(refused.refusal, read)


@parametrize(
  "header, columns",
  ("0,1", {"text": "0", "label": "1"}),
  ("0,1", {"text": "1", "label": "0"}),  # as the column 0 has no position
  (",0,1", {"text": "0", "label": "1"}),
  ("0,1,2", {"text": "1", "label": "2"}),
  ("1,2", {"text": "1", "label": "2"}),
  ("text,1,2", {"text": "text", "label": "1"}),
  ("text,1,2", {"text": "text", "label": "3"}),
  ("text , label", BY_NAME),
  ("\ufefftext,label", BY_NAME),
)
@parametrize("name", "data.csv", "data.jsonl")
def test_a_number_in_the_header_is_a_name(tmp_path, header, columns, name):
  names = header.split(",")
  rows = [dict(zip(names, row)) for row in ("abc", "def")]
  content = "".join(f"{json.dumps(row)}\n" for row in rows)
  if name == "data.csv":
    content = "\n".join([header, *(",".join(row.values()) for row in rows)])
  stripped = [tables.strip_label(name) for name in names]
  indices = [
    stripped.index(column) if column in stripped else int(column) - 1
    for column in columns.values()
  ]
  assert read(tmp_path, content, name, **columns) == [
    tuple(list(row.values())[index] for index in indices) for row in rows
  ]


def test_flags_decide_whether_a_file_has_a_header(tmp_path, caplog):
  columns = {"text": "1", "label": "label", "optional": ["--label_column"]}
  assert read(tmp_path, "text\nfoo\n", **columns) == [("foo",)]
  assert "the first row, ['text'], is a header" in caplog.text
  caplog.clear()
  assert read(tmp_path, "text\tlabel\nfoo\tx\n", **columns) == [("foo", "x")]
  assert not caplog.messages


@pytest.mark.parametrize(
  "header",
  ["text\tlabel", "Sentence1\tClass", "question\tid", "review_text\tSentiment"],
)
def test_a_header_is_no_example_of_columns_given_by_number(tmp_path, header):
  content = f"{header}\na\tx\n{header}\nb\ty\n"
  message = refusal(tmp_path, content)
  assert ", row 1: looks like a header, but the columns are given " in message
  assert read(tmp_path, content, skip=True) == [("a", "x"), ("b", "y")]


@parametrize("mark", "", "\ufeff", " ")
def test_a_header_of_a_joined_file_is_a_bad_row(tmp_path, mark):
  for name, comma in ("data.tsv", "\t"), ("data.csv", ","):
    header = f"{mark}text{comma}label"
    content = f"{header}\na{comma}x\n{header}\r\nb{comma}y\n"
    message = refusal(tmp_path, content, name, **BY_NAME)
    assert f"{name}, row 3: is the header again" in message
    examples = read(tmp_path, content, name, skip=True, **BY_NAME)
    assert examples == [("a", "x"), ("b", "y")]


@parametrize(
  "content, row",
  ("Satz\tUrteil\na b\tx\na c\tx\nd\ty\ne\ty\n", 1),
  ("good one\tz\na b\tx\na c\tx\nd\ty\ne\ty\n", None),
  ("Satz\tUrteil\na b\tx\na c\tw\nd\ty\ne\ty\n", None),
)
def test_a_header_read_as_an_example_is_named(tmp_path, caplog, content, row):
  (tmp_path / "train.tsv").write_text(content)
  processor = OwnDataProcessor({"train": "train.tsv"}, "1", None, "2")
  processor.read_labels(str(tmp_path))
  fault = f", row {row}: looks like a header. "
  assert [fault in m for m in caplog.messages] == [True] * bool(row)


@parametrize(
  "content, number",
  ('"say ""no"" now"\tx\nb\ty\n', 1),
  ('"a"\t"x"\n"b"\t"y"\n', 2),
  ('"a"\tx\n"b" and "c"\ty\n', 0),
  ('a ""b""\tx\nb "\ty\n', 0),
)
def test_quoted_fields_of_a_tsv_are_counted(tmp_path, caplog, content, number):
  rows = [tuple(line.split("\t")) for line in content.splitlines()]
  assert read(tmp_path, content) == rows
  assert [
    f"fields of {number} rows look quoted, the first is row 1" in message
    for message in caplog.messages
  ] == [True] * bool(number)


@parametrize("skip", False, True)
@parametrize(
  "content",
  'a\tx\n"one\ntwo"\tx\nb\ty\n',
  'a\tx\n"one\n\nthree ""is""\nfour"\tx\nb\ty\n',
  'x\ta\nx\t"one\ntwo"\ny\tb\n',  # the first half is a whole row
  'a\tx\n"one\ntwo"\t"x\ny"\nb\ty\n',
)
def test_a_tsv_with_quoted_line_breaks_is_refused(tmp_path, content, skip):
  message = refusal(tmp_path, content, skip=skip)
  assert "Quotes have no meaning in .tsv. Save quoted fields as " in message


@parametrize(
  "row", r'"say \"no\" now",x', '"say "no" now",x', r'"never \"closed,x'
)
def test_quotes_of_a_csv_that_are_not_doubled_are_refused(tmp_path, row):
  content = f'text,label\n"two\nlines",x\n{row}\n'
  message = refusal(tmp_path, content, "data.csv", **BY_NAME)
  assert "row 3 (line 4): " in message
  assert message.endswith("has to be doubled, not escaped by a backslash")


def test_bad_rows_are_listed_by_row_and_line(tmp_path, caplog):
  content = 'text,label\n"a\n\nb",x\nc\nd,y\n"e\nf"\ng,y\n'
  path, bad_rows = str(tmp_path / "data.csv"), {}
  options = {"skip": True, "bad": bad_rows} | BY_NAME
  examples = read(tmp_path, content, "data.csv", **options)
  assert [text for text, _ in examples] == ["a\n\nb", "d", "g"]
  fault = "has 1 columns, but the first row has 2"
  rows = "row 3 (line 5)", "row 5 (line 7)"
  assert bad_rows == {path: [f"{path}, {row}: {fault}" for row in rows]}
  assert f"bad rows skipped: 2, the first: {bad_rows[path][0]}" in caplog.text


@parametrize(
  "name, content",
  ("data.tsv", "a\tx\nb\ty\n\n\n"),
  ("data.csv", "a,x\n\n\nb,y\n"),
  ("data.jsonl", '{"t": "a", "l": "x"}\n\n\n\ufeff{"t": "b", "l": "y"}\n'),
)
def test_blank_lines_are_no_rows(tmp_path, name, content):
  assert read(tmp_path, content, name) == [("a", "x"), ("b", "y")]


@parametrize(
  "row", '{"text": NaN, "label": "x"}', '{"text": "b", "label": NaN}'
)
def test_nan_is_a_missing_value_of_json_lines(tmp_path, row):
  content = '{"text": "a", "label": "x"}\n' + row + "\n"
  assert ", row 2: has no " in refusal(
    tmp_path, content, "data.jsonl", **BY_NAME
  )
  examples = read(tmp_path, content, "data.jsonl", skip=True, **BY_NAME)
  assert examples == [("a", "x")]


def test_json_that_is_not_lines_is_refused_with_its_form(tmp_path):
  for content in ('[{"text": "a"}]\n', '{\n  "text": "a"\n}\n'):
    message = refusal(tmp_path, content, "a.json", **BY_NAME)
    assert message.endswith("Write one object per line, without a list")


@parametrize(
  "text, number",
  ("5", 5.0),
  (" -0.5 ", -0.5),
  ("+1.", 1.0),
  (".5e-3", 0.0005),
  *((text, None) for text in ("1_000", "nan", "inf", "1e300", "\u0661", "")),
  *((text, None) for text in ("1,5", "0x10", "1e", ".", "--1", "True")),
)
def test_a_number_is_what_everyone_writes_as_one(text, number):
  assert tables.parse_number(text) == number


# As pandas 3.1 writes it with sep=";" and decimal=",", and with quotes.
GERMAN = 'n;text\n1,5;"gut; oder, so"\n2,0;"er ""ja""\nsie"\n'
QUOTED = GERMAN.replace("n;text", '"n";"text"').replace("2,0", '"2,0"')
TABS = GERMAN.replace(";", "\t").replace("gut\t", "gut;")


@parametrize(
  "content, name, other, is_found",
  (GERMAN, "data.csv", None, True),
  (GERMAN, "data.tsv", None, True),
  (f"\ufeff{QUOTED}", "data.csv", None, True),
  (QUOTED, "data.tsv", ";", False),
  (f"\ufeffsep=;\r\n{GERMAN}", "data.csv", None, False),
  (f'"SEP=;"\n{QUOTED}', "data.csv", ";", False),
  (TABS, "data.csv", None, True),
  (TABS, "data.csv", "\\t", False),
)
def test_other_delimiters(tmp_path, log, content, name, other, is_found):
  columns = {"text": "text", "label": "n", "other": other}
  found = table(tmp_path, content, name, **columns)
  rows = [(row.text(1), row.numeral(0)) for row in found.rows]
  numbers = ["1,5", "2,0"] if content == TABS else ["1.5", "2.0"]
  assert rows == [*zip(["gut; oder, so", 'er "ja"\nsie'], numbers)]
  assert bool(log) == is_found


def test_a_spreadsheet_does_not_show_the_line_of_the_delimiter(tmp_path):
  content = "sep=;\ntext;label\na;x;\n"
  message = refusal(tmp_path, content, "data.csv", **BY_NAME)
  assert "data.csv, row 2 (line 3): has 3 columns" in message


@parametrize(
  "content, columns",
  ("text;label\na;x\n", {"text": "1"}),
  ("text;label\na;x\n", {"text": "text", "label": "class"}),
  ("text,label\na,x\n", BY_NAME | {"other": ";"}),
)
def test_a_delimiter_is_not_guessed(tmp_path, content, columns):
  message = refusal(tmp_path, content, "data.csv", **columns)
  assert message.endswith("']. If that is several columns, give --delimiter")


def test_a_misspelled_column_is_named_whatever_the_delimiter(tmp_path):
  columns = {"text": "text", "label": "labels"}
  message = refusal(tmp_path, "text;label\na;x\n", "data.csv", **columns)
  assert message.endswith("'text;label']. Did you mean 'label'?")


@parametrize("labels", *FORMS.split())
def test_labels_in_two_forms_are_reported(caplog, labels):
  first, second = labels.split("/")
  tables.warn_of_forms("x", [first, "other", second])
  show = ascii if "caf" in first else repr
  assert f"in two ways: {show(first)} and {show(second)}. " in caplog.text


@parametrize(
  "labels", "1 -1", "A A- A+", "C C++ C#", "+ -", ":) :(", "1-2 12", ">5 5"
)
def test_labels_that_are_others_are_not_reported(caplog, labels):
  tables.warn_of_forms("x", labels.split())
  assert not caplog.messages


@parametrize(
  "row, number",
  (r"say \"no\" now,y", 1),
  ('a, "b"', 1),
  (' "a b" ,y', 0),
  ('   ,"y"', 0),
  ('say "no" now, y', 0),
)
def test_quotes_of_a_csv_that_stay_are_counted(tmp_path, caplog, row, number):
  assert len(read(tmp_path, f"a,x\n{row}\n", "a.csv")) == 2
  assert (f": {number} rows have a backslash " in caplog.text) == bool(number)


def test_a_divided_row_of_a_published_task_is_not_skipped(tmp_path):
  (tmp_path / "xnli.dev.tsv").write_text(
    "language\tlabel\t3\t4\t5\t6\ta\tb\n"
    'zh\tneutral\t\t\t\t\tone\t"two\n'
    'three"\n'
    "zh\tneutral\t\t\t\t\tfour\tfive\n"
  )
  processor = XnliProcessor()
  assert len(processor.get_dev_examples(str(tmp_path))) == 2
  processor.skip_bad_rows = True
  with pytest.raises(InputError, match=", row 3: has 1 columns"):
    processor.get_dev_examples(str(tmp_path))


@parametrize("ending", "xlsx", "parquet", "feather")
def test_cells_of_other_formats_are_those_of_csv(tmp_path, caplog, ending):
  pandas = pytest.importorskip("pandas")
  package = "openpyxl" if ending == "xlsx" else "pyarrow"
  pytest.importorskip(package, exc_type=ImportError)  # it may need NumPy 2
  day = pandas.Timestamp(2024, 1, 5)
  frame = pandas.DataFrame(
    {
      "text": ["NA", 'b "c"\nd', "e"],
      "label": [1, 0, None],  # floats in pandas, and so in its CSV
      "score": [0.5, 1.5, -2.25],
      "is": [True, False, True],
      "at": [day, day.replace(hour=7), day],
    }
  )
  path = str(tmp_path / f"data.{ending}")
  if ending == "xlsx":
    with pandas.ExcelWriter(path) as book:
      frame.to_excel(book, sheet_name="Texts", index=False)
      frame.to_excel(book, sheet_name="More", index=False)
  else:
    getattr(frame, f"to_{ending}")(path)
  columns = [(f"--{name}", name) for name in frame.columns]
  found = tables.read_table(path, columns)
  assert found.has_names
  frame["label"] = frame["label"].astype("Int64")
  frame["at"] = [f"{at}".removesuffix(" 00:00:00") for at in frame["at"]]
  frame.to_csv(tmp_path / "data.csv", index=False)
  expected = tables.read_csv(str(tmp_path / "data.csv"))
  cells = [[cell or "" for cell in row.fields] for row in found.rows]
  assert cells == [row.fields for row in [*expected][1:]]
  assert ("sheet Texts is read, not More" in caplog.text) == (ending == "xlsx")


def test_nulls_lists_and_the_index_of_a_parquet_file(tmp_path):
  pandas = pytest.importorskip("pandas")
  pytest.importorskip("pyarrow", exc_type=ImportError)
  path = tmp_path / "data.parquet"
  frame = pandas.DataFrame(
    {"text": ["a", None], "label": [["x", "y"], ["x"]]},
    pandas.Index([2**53 + 1, 7], name="id"),
  )
  frame.to_parquet(path)
  processor = OwnDataProcessor(
    {"train": str(path)}, "text", None, "label", None, "multi_label"
  )
  processor.id_column = "id"
  assert_refused("row 2: has no text", processor.read, "", "train")
  processor.skip_bad_rows = True
  (example,) = processor.read("", "train")
  assert (example.guid, example.label) == ("9007199254740993", ["x", "y"])


def test_a_text_named_as_a_workbook_is_refused(tmp_path):
  pytest.importorskip("pandas")
  pytest.importorskip("xlrd")
  for content in ("<html><table></table></html>", "text,label"):
    message = refusal(tmp_path, content, "data.xls")
    assert message.startswith(f"{tmp_path}/data.xls: ")
