"""Reader of your own tables and texts for classification."""

from __future__ import annotations

import ast
import collections
import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, some_of
from bertlib.data import labeled_examples, tables
from bertlib.tasks.classification.classification import (
  DataProcessor,
  InputExample,
  check_label,
  labeled,
)

# Flags of the columns, in the order of `OwnDataProcessor.read`.
_FLAGS = ("--text_a_column", "--text_b_column", "--id_column", "--label_column")


@dataclasses.dataclass(eq=False, repr=False)
class OwnDataProcessor(DataProcessor):
  """Your own files: TSV, CSV or JSON Lines, columns by name or number."""

  files: dict[str, str]  # paths by split: "train", "dev" and "test"
  text_a: str  # column: its name, or its number from 1
  text_b: str | None
  # May be missing in the test file; several of 0 and 1, separated by commas.
  label: str | None
  # In the order of vectors of 0 and 1; None to read the label set from the
  # training file.
  labels: Sequence[str] | None = None
  kind: str = "classification"  # see `Problem`
  label_delimiter: str = ","
  # Column of the `guid`; None for the split and the row number.
  id_column: str | None = None
  # Share of the training file that is the dev set; None if that has a file.
  dev_fraction: float | None = None
  delimiter: str | None = None  # see `tables.read_table`
  needs_id: bool = True  # refuses a file without the column

  def __post_init__(self):
    self.labels = self._vector_labels = list(self.labels or ())
    self._train_examples: list[InputExample] = []

  @property
  def metrics(self) -> tuple[str, ...]:
    """See base class; with two labels, F1 is that of the second."""
    if self.kind == "regression":
      return ("pearson", "spearman")
    if self.kind == "multi_label":
      return ("micro_f1", "macro_f1", "accuracy")
    return (
      "accuracy",
      "f1" if len(self.labels) == 2 else "macro_f1",
      "matthews",
    )

  def read_labels(self, data_dir: str) -> None:
    """Sets the label set to the sorted labels of the training file."""
    examples = self._train_examples = self.read(data_dir, "train")
    path = self.files["train"]
    # Several columns bring their labels.
    if self.kind == "multi_label" and not self.labels:
      self.labels = sorted({label for e in examples for label in e.label})
      counts = {len(e.label) for e in examples}
      if not self.labels:
        raise InputError(f"{path}: no example has a label")
      if None not in map(tables.parse_bit, self.labels):
        raise InputError(
          f"{path}: the labels are {' and '.join(self.labels)}. If a column is"
          " about one label, name those of all as --label_column=A,B. If a cell"
          " has the values of all labels, name these by --labels"
        )
      if len(self.labels) > 1 and counts <= {0, 1}:
        logging.warning(
          "%s: no text has several labels. Is --label_delimiter right?", path
        )
    elif not self.labels:
      self.labels = sorted({e.label for e in examples})
    tables.warn_of_forms(path, self.labels)

  def get_train_examples(self, data_dir: str) -> list[InputExample]:
    """See base class; `read_labels` has read them, if it was called."""
    return self._divided(data_dir)[0]

  def get_dev_examples(self, data_dir: str) -> list[InputExample]:
    """See base class."""
    if self.dev_fraction is None:
      return super().get_dev_examples(data_dir)
    return self._divided(data_dir)[1]

  def _divided(
    self, data_dir: str
  ) -> tuple[list[InputExample], list[InputExample]]:
    """Examples of the training file to train on, and to evaluate on."""
    examples = self._train_examples or self.read(data_dir, "train")
    if self.dev_fraction is None:
      return examples, []
    train, dev = draw_dev_set(
      [labeled(example, self.kind) for example in examples], self.dev_fraction
    )
    if not dev:
      raise InputError(
        f"--dev_fraction={self.dev_fraction}: leaves no dev example of"
        f" {len(examples)}. Give a higher value, or --dev_file"
      )
    return [examples[i] for i in train], [examples[i] for i in dev]

  def read(self, data_dir: str, set_type: str) -> list[InputExample]:
    """See base class."""
    path = os.path.join(data_dir or "", self.files[set_type])
    self.files_read.append(path)
    columns = self.text_a, self.text_b, self.id_column, self.label
    optional = ["--label_column"] * (set_type == "test")
    optional += ["--id_column"] * (not self.needs_id)
    table = tables.read_table(
      path,
      [*zip(_FLAGS, columns)],
      self.encoding,
      optional,
      self.delimiter,
      several="--label_column",
    )
    text_a, text_b, id_column, *label_columns = table.columns
    has_labels = None not in label_columns
    names = self._name_columns(table, label_columns) if has_labels else []
    rows_of_ids: dict[str, int] = {}
    lone: dict[str, tables.Row | None] = {}  # rows of labels that occur once

    def example(row):
      table.check_row(row)
      label = self._label(row, label_columns, names) if has_labels else None
      texts = [
        None if column is None else _text(row, column)
        for column in (text_a, text_b)
      ]
      guid = f"{set_type}-{row.number}"
      if id_column is not None:
        guid = _id(row, id_column, rows_of_ids)
      if isinstance(label, str):
        lone[label] = None if label in lone else row
      return InputExample(guid, *texts, label)

    examples = self.collect(path, table.rows, example)
    if self.kind == "classification" and not table.has_names:
      _warn_of_header(text_a, lone)
    return examples

  def _name_columns(
    self, table: tables.Table, columns: Sequence[int]
  ) -> Sequence[str]:
    """Labels of several columns, by the header or, without one, --labels."""
    if len(columns) == 1:
      return []
    if self.kind != "multi_label":
      raise InputError(
        f"--label_column={self.label}: several columns are for"
        " --problem_type=multi_label. Give that, or name one column"
      )
    names = [table.names[column] for column in columns]
    names = names if table.has_names else self._vector_labels
    self.labels = self.labels or names
    if len(names) != len(columns) or sorted({*self.labels}) != sorted(names):
      raise InputError(
        f"{table.path}: --label_column={self.label} is not one column for each"
        f" of the labels ({some_of(self.labels) or 'unknown'}). Give these, and"
        " --labels in the same order if the file has no header"
      )
    return names

  def _label(
    self, row: tables.Row, columns: Sequence[int], names: Sequence[str]
  ) -> str | list[str]:
    """The label of a row, or its labels; InputError if it has none."""
    if names:
      bits = [tables.parse_bit(row.numeral(column)) for column in columns]
      if None in bits:
        name = names[bits.index(None)]
        raise row.error(f"the label {name!r} is not 0 or 1. {tables.FIX_ROW}")
      return [name for name, bit in zip(names, bits) if bit]
    label = row.label(*columns)
    if self.kind == "regression":
      label = row.numeral(*columns)
    if self.kind == "multi_label":
      try:
        label = split_labels(label, self.label_delimiter, self._vector_labels)
      except ValueError as error:
        raise row.error(str(error)) from error
    elif self.kind == "classification":
      if not label:
        raise row.error(f"the label is empty. {tables.FIX_ROW}")
      items = label[0] in "[({" and parse_list(label)
      if items and not all(isinstance(item, (int, float)) for item in items):
        raise row.error(
          f"the label {label} is a list. Give --problem_type=multi_label, or"
          " one label"
        )
    if self.labels or self.kind == "regression":
      check_label(row, label, self.problem)
    return label


def draw_dev_set(
  examples: Sequence[labeled_examples.Labeled], fraction: float
) -> tuple[list[int], list[int]]:
  """Row numbers of a training and a dev set, in order, stratified by label."""
  counts = collections.Counter(
    label for example in examples for label in _labels(example)
  )
  strata = collections.defaultdict(dict)
  places = {}
  for index, example in enumerate(examples):
    # Of several labels of an example the rarest counts.
    rarest = min(_labels(example), key=counts.get, default=None)
    # Equal texts stay together, also where their labels differ.
    stratum = places.setdefault(example.texts, rarest)
    strata[stratum].setdefault(example.texts, []).append(index)
  # A fixed seed: the set depends on table and fraction alone, so that runs with
  # other seeds are evaluated on the same rows.
  rng = np.random.RandomState(0)
  dev = set()
  for groups in map(list, map(dict.values, strata.values())):
    wanted = round(fraction * sum(map(len, groups)))
    # One example of a rare label is evaluated, one at least is trained on.
    wanted = min(max(wanted, 1), len(groups) - 1)
    for group in rng.permutation(len(groups)):
      if len(groups[group]) <= wanted:
        dev.update(groups[group])
        wanted -= len(groups[group])
  return (
    [index for index in range(len(examples)) if index not in dev],
    sorted(dev),
  )


def _labels(example: labeled_examples.Labeled) -> Sequence[Any]:
  return example.label if isinstance(example.label, tuple) else [example.label]


def _text(row: tables.Row, column: int) -> str:
  """The text of a column; InputError for a list or an object of JSON."""
  text = row.text(column)
  if row.values and isinstance(row.values[column], (list, dict)):
    raise row.error(
      f"column {column + 1} is {text[:40]}, not a text. {tables.FIX_ROW}"
    )
  return text


def _id(row: tables.Row, column: int, rows_of_ids: dict[str, int]) -> str:
  """The id of a row, which is added to the row numbers by id."""
  id_ = row.label(column)
  if not id_:
    raise row.error(f"the id is empty. {tables.FIX_ROW}")
  if len(id_.split("\t")) + len(id_.splitlines()) > 2:
    raise row.error(f"the id {id_!r} has a tab or a line break. Remove it")
  if id_ in rows_of_ids:
    raise row.error(
      f"the id {id_!r} is that of row {rows_of_ids[id_]} too. Make it unique,"
      " or leave ids out by --id_column="
    )
  rows_of_ids[id_] = row.number
  return id_


def _warn_of_header(
  text_column: int, lone: Mapping[str, tables.Row | None]
) -> None:
  """Warns of a first example that may be a header, by its lone label."""
  found = [row for row in lone.values() if row is not None]
  if len(found) != 1 or len(lone) < 3:
    return
  (row,) = found
  is_word = not re.search(r"\s", row.text(text_column))
  if row.number == 1 and is_word:
    logging.warning(
      "%s: looks like a header. No other row has its label. If it is one, give"
      " the columns by name",
      row.where,
    )


def of_flags(
  settings: Any, label: str | None, **files: str
) -> OwnDataProcessor:
  """The processor of tables with the columns of the script's flags."""
  return OwnDataProcessor(
    files,
    settings.text_a_column,
    settings.text_b_column,
    label,
    settings.labels,
    settings.problem_type,
    settings.label_delimiter,
    settings.id_column or None,
    settings.dev_fraction,
    settings.text.delimiter,
    settings.asks_for_ids,
  )


# Labels of a cell

_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_ITEM = rf"(?:{_QUOTED}|[-+]?\d+(?:\.\d*)?|True|False|None)"

# Lists as Python and NumPy print them; NumPy writes no commas.
_PYTHON_LIST = re.compile(
  rf"(?s)\[\s*(?:{_ITEM}(?:(?:\s*,\s*|\s+){_ITEM})*\s*,?\s*)?\]"
)
# Tuples and sets; a number in parentheses may be a label.
_PYTHON_SET = re.compile(
  rf"(?s)[({{]\s*(?:{_QUOTED}|{_ITEM}(?:\s*,\s*{_ITEM})+)\s*,?\s*[)}}]"
  r"|set\(\)|\(\)"
)
_IN_BRACKETS = re.compile(r"(?s)\w*[\[({].*[\])}]")


def split_labels(
  # Labels with delimiters, a list of JSON or Python, or a vector with 0 or 1
  # for each of `vector_labels`, which are empty if unknown.
  text: str,
  delimiter: str,
  vector_labels: Sequence[str] = (),
) -> list[str]:
  """Distinct labels of a text; ValueError for a list that is not certain."""
  items = parse_list(text)
  if items is None:
    items = text.split(delimiter)
    _check_no_list(text, items)
  if any(isinstance(item, (list, dict)) for item in items):
    raise ValueError(f"the labels {text!r} are a list of lists. Write one list")
  items = [tables.strip_label(tables.as_text(item) or "") for item in items]
  texts = items
  if len(items) == 1:
    texts = re.split(r"[\s,;|]+", items[0])
  bits = [*map(tables.parse_bit, texts)]
  if len(bits) > 1 and None not in bits:
    is_vector = len(set(texts)) < len(bits)  # no list repeats a label
    if len(bits) == len(vector_labels) and not {*texts} <= {*vector_labels}:
      return [name for name, bit in zip(vector_labels, bits) if bit]
    if is_vector:
      raise ValueError(
        f"the labels {text!r} are {len(bits)} values 0 or 1. Name the label of"
        " each, in their order, by --labels"
      )
  return list(dict.fromkeys(filter(None, items)))


def parse_list(text: str) -> list[Any] | None:
  """The items of a list of JSON, Python or NumPy; None if it is not one."""
  try:
    items = json.loads(text)
  except ValueError:
    items = None
  if isinstance(items, list):
    return items
  if not (_PYTHON_LIST.fullmatch(text) or _PYTHON_SET.fullmatch(text)):
    return None
  return [ast.literal_eval(item) for item in re.findall(_ITEM, text)]


def _check_no_list(text: str, parts: Sequence[str]) -> None:
  """Raises a ValueError for brackets around all parts, and not around each."""
  if (text.startswith(("[", "(", "{")) or _IN_BRACKETS.fullmatch(text)) and (
    (len(parts) == 1 and text[0] == "[")
    or any(
      part.count(opening) != part.count(closing)
      for part in parts
      for opening, closing in ("[]", "()", "{}")
    )
  ):
    raise ValueError(
      f"the labels {text!r} look like a list, but are not written as JSON"
      ' does. Write ["a", "b"], or leave out the brackets'
    )


# Texts to classify


def read_texts(
  path: str,  # "-" for standard input
  processor: DataProcessor,  # has the encoding, and the treatment of bad rows
) -> list[InputExample]:
  """Reads texts to classify, one per line; a tab separates a pair."""

  def example(row):
    if row.number == 1 and tables.has_usual_names(row.fields):
      logging.warning(
        "%s: looks like a header, but is read as a text. Remove it, or name the"
        " column of the texts by --text_a_column of run_classifier.py",
        row.where,
      )
    if len(row.fields) > 2:
      raise row.error(
        f"has {len(row.fields) - 1} tabs, but a line is a text, or two with a"
        f" tab between. {tables.FIX_ROW}"
      )
    return InputExample(
      guid=f"text-{row.number}",
      text_a=row.text(0),
      text_b=row.text(1) if len(row.fields) > 1 else None,
    )

  rows = tables.read_tsv(path, processor.encoding)
  return processor.collect(path, rows, example)


def read_predict_file(
  settings: Any, processor: DataProcessor
) -> list[InputExample]:
  """Reads --predict_file: a table, or a text or a pair per line."""
  path, asks_for_ids = settings.predict_file, settings.asks_for_ids
  ending = "" if path == "-" else tables.ending_of(path)
  columns = settings.text_a_column, settings.text_b_column
  are_numbers = all(map(tables.is_number, filter(None, columns)))
  has_names = asks_for_ids or not are_numbers
  if ending in tables.TABLE_ENDINGS or (
    ending in (".tsv", ".jsonl", ".json") and has_names
  ):
    table = of_flags(settings, None, text=path)
    table.encoding, table.bad_rows = processor.encoding, processor.bad_rows
    table.skip_bad_rows = processor.skip_bad_rows
    table.streams, table.has_pairs = processor.streams, processor.has_pairs
    return table.read("", "text")
  if asks_for_ids:
    raise InputError(
      f"{path}: its lines are texts, which have no --id_column."
      " Give a .csv file, or leave out --id_column"
    )
  is_named = {"text_a_column", "text_b_column"} & settings.given
  if is_named and not settings.flags.do_train:
    logging.warning(
      "%s: its lines are texts, so --text_a_column and"
      " --text_b_column have no effect. Give a .csv file to name columns",
      path,
    )
  if tables.holds_objects(path, processor.encoding):
    raise InputError(
      f"{path}: has objects of JSON. Name their text by --text_a_column of"
      " run_classifier.py, or write its texts to a file, one per line"
    )
  return read_texts(path, processor)
