"""Readers of text classification data: GLUE, XNLI, SWAG, RACE.

A processor knows the files, columns, labels and metrics of a data set. A new
one is a subclass of `TableProcessor` with its `Columns`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, some_of
from bertlib.cli.option import FRACTION
from bertlib.data import labeled_examples, tables
from bertlib.io import files, json_files


@dataclasses.dataclass(eq=False)
class InputExample:
  """A text or a pair of texts, untokenized, with its label.

  Attributes:
    guid: unique id of the example.
    text_a: the first text.
    text_b: the second text, for tasks on pairs.
    label: a member of the label set, a list of members for multi-label
      classification, or a number as text for regression; None if unknown.
  """

  guid: str
  text_a: str
  text_b: str | None = None
  label: str | Sequence[str] | None = None


class ChoiceExample(NamedTuple):
  """A multiple-choice question."""

  guid: str
  # The pair of texts to encode for each answer.
  choices: list[tuple[str, str]]
  label: str | None = None  # of the correct choice; None if unknown


Example = Union[InputExample, ChoiceExample]


def labeled(example: Example, kind: str) -> labeled_examples.Labeled:
  """Texts and label of an example for checks, given its `Problem.kind`."""
  texts = tuple(
    text for pair in pairs_of(example) for text in pair if text is not None
  )
  label = None if kind == "regression" else example.label
  if isinstance(label, list):
    label = tuple(sorted(label))
  return labeled_examples.Labeled(texts, label, example.guid)


class PaddingInputExample:
  """Pads the last batch on a TPU, where every batch has to be full.

  Its weight in every metric is 0. A class of its own rather than None, so that
  a missing example is not mistaken for padding.
  """


def pairs_of(
  example: Example | PaddingInputExample,
) -> Sequence[tuple[str, str | None]]:
  """The texts to encode: a text, a pair, one per choice, or none."""
  if isinstance(example, PaddingInputExample):
    return []
  if isinstance(example, ChoiceExample):
    return example.choices
  return [(example.text_a, example.text_b)]


# Kinds of tasks, and the number of labels that a model of each has at least.
KINDS = {
  "classification": 2,
  "regression": 0,
  "multi_label": 1,
  "multiple_choice": 2,
}


class Problem(NamedTuple):
  """Type of a task and its label set."""

  # "regression" has numbers as labels, and "multi_label" any number of labels
  # per text. See `KINDS`.
  kind: str = "classification"
  # In the order of the model's outputs; empty for regression.
  labels: Sequence[str] = ()

  @property
  def num_labels(self) -> int:
    """L, number of outputs of the model per example."""
    return len(self.labels) or 1


class Columns(NamedTuple):
  """File and columns of a split; columns count from 0, or from -1 backwards."""

  file: str  # in the data set's folder
  text_a: int
  text_b: int | None = None
  label: int | None = None  # None if the file has no labels
  header: bool = True  # whether the first row names the columns
  guid: int | None = None  # None to use the row index


class _ClassOrObjectMethod(classmethod):
  """A class method that gets the object instead, if it is called on one."""

  def __get__(self, instance: Any, owner: type | None = None) -> Any:
    owner = owner if instance is None else instance
    return types.MethodType(self.__func__, owner)


class DataProcessor:
  """Reader of a data set; base class of all processors."""

  # Metrics of the task, from `classification_report.METRICS`, the primary one
  # first.
  metrics: tuple[str, ...] = ("accuracy",)
  # See `Problem`. A processor with `get_labels` of its own needs no `labels`.
  kind = "classification"
  labels: Sequence[str] | None = None
  # Whether to skip and count rows that cannot be read.
  skip_bad_rows = False
  # Encoding of the files.
  encoding = tables.LENIENT
  # Whether `collect` yields examples as they are read, for a large file.
  streams = False
  # Whether each example must be a pair, or none may be; None for both kinds.
  has_pairs: bool | None = None
  # Task whose models predict this set (MNLI for AX); None for its own.
  model_task: str | None = None

  @functools.cached_property
  def files_read(self) -> list[str]:
    """Paths of the files read so far; a subclass adds those that it opens."""
    return []

  @functools.cached_property
  def bad_rows(self) -> dict[str, list[str]]:
    """Messages of the rows skipped so far, by file."""
    return {}

  def get_train_examples(self, data_dir: str) -> list[Example]:
    """The training set."""
    return self.read(data_dir, "train")

  def get_dev_examples(self, data_dir: str) -> list[Example]:
    """The dev set, for evaluation."""
    return self.read(data_dir, "dev")

  def get_test_examples(self, data_dir: str) -> list[Example]:
    """The test set, for prediction."""
    return self.read(data_dir, "test")

  def read(self, data_dir: str, set_type: str) -> list[Example]:
    """Reads "train", "dev" or "test", for the methods above."""
    raise NotImplementedError

  def collect(
    self,
    path: str,
    rows: Iterable[tables.Row],
    make_example: Callable[[tables.Row], Example],
  ) -> Iterable[Example]:
    """Examples of rows, at least one; see `tables.collect_examples`."""

    def checked(row):
      example = make_example(row)
      if self.has_pairs and example.text_b is None:
        raise row.error(
          f"is one text, but the model is of pairs. {tables.FIX_ROW}"
        )
      if self.has_pairs is False and example.text_b:
        raise row.error(
          "has a second text, but the model is of single texts."
          f" {tables.FIX_ROW}"
        )
      return example

    if self.streams:
      bad = self.bad_rows.setdefault(path, [])
      return tables.read_examples(rows, checked, self.skip_bad_rows, bad)
    return tables.collect_examples(
      path, rows, make_example, self.skip_bad_rows, self.bad_rows
    )

  def get_labels(self) -> list[str]:
    """The label set in the order of the model's outputs."""
    if self.labels is None:
      raise NotImplementedError
    return list(self.labels)

  @property
  def problem(self) -> Problem:
    """The task type and its labels."""
    return Problem(self.kind, self.get_labels())

  def read_sets(self, data_dir: str, split: str) -> dict[str, list[Example]]:
    """All sets of a split ("dev" or "test") by the suffix of their results."""
    if split == "dev":
      return {"": self.get_dev_examples(data_dir)}
    return {"": self.get_test_examples(data_dir)}

  @_ClassOrObjectMethod
  def _read_tsv(cls, input_file: str, quotechar=None) -> list[list[str]]:
    """The rows of a tab-separated file; for processors of other projects."""
    del quotechar  # unused in the original too
    processor = cls if isinstance(cls, DataProcessor) else DataProcessor()
    processor.files_read.append(input_file)
    return [
      row.texts for row in tables.read_tsv(input_file, processor.encoding)
    ]


class TableProcessor(DataProcessor):
  """A data set of tab-separated files, described by `Columns` per split."""

  labels = ("0", "1")
  train: Columns | None = None
  dev: Columns | None = None
  test: Columns | None = None

  def columns(self, set_type: str) -> Columns | None:
    """File and columns of a set; None if the task has no such set."""
    # `set_type` may have a suffix, such as "dev_matched".
    if set_type.startswith("test"):
      return self.test
    return self.dev if set_type.startswith("dev") else self.train

  def read(
    self, data_dir: str, set_type: str, file: str | None = None
  ) -> list[InputExample]:
    """Reads the examples of a file; that of the set's `columns` by default."""
    columns = self.columns(set_type)
    if columns is None:
      raise InputError(
        f"{type(self).__name__}: this task has no {set_type} set"
      )
    path = os.path.join(data_dir, file or columns.file)
    self.files_read.append(path)
    return self._create_examples(
      list(tables.read_tsv(path, self.encoding)), set_type
    )

  def _create_examples(
    self, lines: Sequence[Sequence[str]], set_type: str
  ) -> list[InputExample]:
    """Makes examples of the rows of a file, which include the header.

    A subclass for another format overrides this method or `columns`.
    """
    columns = self.columns(set_type)
    rows = [
      line
      if isinstance(line, tables.Row)
      else tables.Row(set_type, number, [*line])
      for number, line in enumerate(lines, start=1)
    ]
    if self.skip_bad_rows:
      for row in rows:
        tables.check_not_divided(row, len(rows[0].fields))
    included = (
      row
      for row in rows[bool(columns.header) :]
      if self.is_included(row, set_type)
    )
    return self.collect(
      rows[0].path if rows else set_type,
      included,
      lambda row: self.example(row, columns, set_type),
    )

  def example(
    self, row: tables.Row, columns: Columns, split: str
  ) -> InputExample:
    """Makes the example of a row."""
    if columns.guid is None:
      guid = str(row.number - 1)
    else:
      guid = row.text(columns.guid)
    label = self.labels[0] if self.labels else "0"
    if columns.label is not None:
      label = self.parse_label(row, row.label(columns.label))
    return InputExample(
      guid=f"{split}-{guid}",
      text_a=row.text(columns.text_a),
      text_b=None if columns.text_b is None else row.text(columns.text_b),
      label=label,
    )

  def parse_label(self, row: tables.Row, label: str) -> str:
    """Returns the task's label for this text; InputError if it has none."""
    check_label(row, label, self.problem)
    return label

  def is_included(self, row: tables.Row, set_type: str) -> bool:
    """Returns whether a row belongs to the set, see `columns`."""
    del row, set_type
    return True


class ColaProcessor(TableProcessor):
  """CoLA (GLUE): is the sentence grammatical?"""

  metrics = ("matthews", "accuracy")
  train = Columns("train.tsv", text_a=3, label=1, header=False)
  dev = Columns("dev.tsv", text_a=3, label=1, header=False)
  test = Columns("test.tsv", text_a=1)


class Sst2Processor(TableProcessor):
  """SST-2 (GLUE): is the sentence of a film review positive?"""

  train = Columns("train.tsv", text_a=0, label=1)
  dev = Columns("dev.tsv", text_a=0, label=1)
  test = Columns("test.tsv", text_a=1)


class MrpcProcessor(TableProcessor):
  """MRPC (GLUE): are the sentences paraphrases?"""

  metrics = ("accuracy", "f1")
  train = Columns("train.tsv", text_a=3, text_b=4, label=0)
  dev = Columns("dev.tsv", text_a=3, text_b=4, label=0)
  test = Columns("test.tsv", text_a=3, text_b=4)


class StsbProcessor(TableProcessor):
  """STS-B (GLUE): how similar are the sentences, from 0 to 5?"""

  metrics = ("pearson", "spearman")
  kind = "regression"
  labels = ()
  train = Columns("train.tsv", text_a=7, text_b=8, label=9)
  dev = Columns("dev.tsv", text_a=7, text_b=8, label=9)
  test = Columns("test.tsv", text_a=7, text_b=8)


class QqpProcessor(TableProcessor):
  """QQP (GLUE): are the questions duplicates?"""

  metrics = ("accuracy", "f1")
  train = Columns("train.tsv", text_a=3, text_b=4, label=5)
  dev = Columns("dev.tsv", text_a=3, text_b=4, label=5)
  test = Columns("test.tsv", text_a=1, text_b=2)


class MnliProcessor(TableProcessor):
  """MultiNLI (GLUE): does the premise entail or contradict the hypothesis?"""

  labels = ("contradiction", "entailment", "neutral")
  train = Columns("train.tsv", text_a=8, text_b=9, label=-1, guid=0)
  dev = Columns("dev_matched.tsv", text_a=8, text_b=9, label=-1, guid=0)
  test = Columns("test_matched.tsv", text_a=8, text_b=9, guid=0)

  def get_dev_examples(self, data_dir: str) -> list[InputExample]:
    """See base class."""
    return self.read(data_dir, "dev_matched")

  def read_sets(self, data_dir: str, split: str) -> dict[str, list[Example]]:
    """See base class; adds the mismatched set if its file exists."""
    sets = super().read_sets(data_dir, split)
    mismatched = f"{split}_mismatched"
    file = f"{mismatched}.tsv"
    if files.exists(os.path.join(data_dir, file)):
      sets["_mismatched"] = self.read(data_dir, mismatched, file)
    else:
      logging.warning("There is no %s in %s", file, data_dir)
    return sets


class AxProcessor(TableProcessor):
  """AX, the diagnostic set of GLUE; predicted by an MNLI model."""

  labels = MnliProcessor.labels
  model_task = "mnli"
  test = Columns("diagnostic.tsv", text_a=1, text_b=2)


class QnliProcessor(TableProcessor):
  """QNLI (GLUE): does the sentence answer the question?"""

  labels = ("entailment", "not_entailment")
  train = Columns("train.tsv", text_a=1, text_b=2, label=3)
  dev = Columns("dev.tsv", text_a=1, text_b=2, label=3)
  test = Columns("test.tsv", text_a=1, text_b=2)


class RteProcessor(QnliProcessor):
  """RTE (GLUE): does the first text entail the second?"""


class WnliProcessor(QnliProcessor):
  """WNLI (GLUE): does the sentence follow, given what the pronoun refers to?"""

  labels = ("0", "1")


class XnliProcessor(TableProcessor):
  """XNLI: MultiNLI in 15 languages; trains and evaluates on one of them."""

  labels = MnliProcessor.labels
  dev = Columns("xnli.dev.tsv", text_a=6, text_b=7, label=1)
  test = Columns("xnli.test.tsv", text_a=6, text_b=7, label=1)

  def __init__(self, language: str = "zh"):
    """Takes the language code that the data set's files use, such as "zh"."""
    self.language = language

  @property
  def train(self) -> Columns:
    """See base class."""
    file = os.path.join("multinli", f"multinli.train.{self.language}.tsv")
    return Columns(file, text_a=0, text_b=1, label=2)

  def parse_label(self, row: tables.Row, label: str) -> str:
    """See base class."""
    # The training files spell this label differently.
    label = "contradiction" if label == "contradictory" else label
    return super().parse_label(row, label)

  def is_included(self, row: tables.Row, set_type: str) -> bool:
    """See base class; a training file has one language."""
    return set_type == "train" or row.fields[0] == self.language


class SwagProcessor(DataProcessor):
  """SWAG: which of four endings continues the two sentences?"""

  kind = "multiple_choice"
  labels = ("0", "1", "2", "3")

  def read(self, data_dir: str, set_type: str) -> list[ChoiceExample]:
    """See base class."""
    split = "val" if set_type == "dev" else set_type
    return self.read_file(os.path.join(data_dir, f"{split}.csv"), split)

  def read_file(self, path: str, split: str) -> Iterable[ChoiceExample]:
    """The questions of a table; those of "test" may lack the answer."""
    self.files_read.append(path)
    names = ["sent1", "sent2", *(f"ending{label}" for label in self.labels)]
    columns = [*(("a text", name) for name in names), ("the label", "label")]
    optional = ["the label"] * (split == "test")
    table = tables.read_table(path, columns, self.encoding, optional)

    def example(row):
      label = None
      if table.columns[-1] is not None:
        label = row.label(table.columns[-1])
        check_label(row, label, self.problem)
      first, second, *endings = map(row.text, table.columns[:-1])
      return ChoiceExample(
        f"{split}-{row.number - 1}",
        [(first, f"{second} {ending}") for ending in endings],
        label,
      )

    return self.collect(path, table.rows, example)


# Schema of an article; the test set may lack the answers.
_RACE_ARTICLE = {
  "article": str,
  "questions": [str],
  "options": [[str]],
  "answers": [str],
}


class RaceProcessor(DataProcessor):
  """RACE: which of four answers is correct, given the article?"""

  kind = "multiple_choice"
  labels = ("A", "B", "C", "D")

  def read(self, data_dir: str, set_type: str) -> list[ChoiceExample]:
    """See base class."""
    folder = os.path.join(data_dir, set_type)
    paths = files.matching_below(folder, "*.txt")
    if not paths:
      raise InputError(f"{folder}: has no RACE articles (*.txt)")
    return [e for path in paths for e in self.read_file(path, set_type)]

  def read_file(self, path: str, split: str) -> Iterator[ChoiceExample]:
    """Reads the questions of an article, a file with one JSON object."""
    self.files_read.append(path)
    values = tables.json_object(
      "\n".join(tables.read_lines(path, self.encoding))
    )
    row = tables.Row(path, 1, [])
    values = {**values, "answers": values.get("answers") or []}
    if json_files.mismatch(values, _RACE_ARTICLE) or not (
      len(values["options"]) == len(values["questions"])
      and all(len(texts) == len(self.labels) for texts in values["options"])
      and len(values["answers"]) in (0, len(values["questions"]))
    ):
      raise row.error(
        "is not a RACE article: a JSON object with article, questions, four"
        " options per question, and answers"
      )
    article, questions, options, answers = (
      values[name] for name in _RACE_ARTICLE
    )
    for number, (question, texts, label) in enumerate(
      zip(questions, options, answers or itertools.repeat(None))
    ):
      if label is not None:
        check_label(row, label, self.problem)
      # A gap is filled, or else the text follows.
      gap = question if "_" in question else f"{question} _"
      choices = [(article, gap.replace("_", text)) for text in texts]
      name = os.path.relpath(path, os.path.dirname(os.path.dirname(path)))
      yield ChoiceExample(f"{split}-{name}-{number}", choices, label)


# Processors by --task_name, in lower case and without hyphens.
PROCESSORS = {
  "cola": ColaProcessor,
  "sst2": Sst2Processor,
  "mrpc": MrpcProcessor,
  "stsb": StsbProcessor,
  "qqp": QqpProcessor,
  "mnli": MnliProcessor,
  "ax": AxProcessor,
  "qnli": QnliProcessor,
  "rte": RteProcessor,
  "wnli": WnliProcessor,
  "xnli": XnliProcessor,
  "swag": SwagProcessor,
  "race": RaceProcessor,
}


def check_label(
  row: tables.Row, label: str | Sequence[str], problem: Problem
) -> None:
  """Raises an InputError for a label that the task does not have."""
  if problem.kind == "regression":
    if tables.parse_number(label) is None:
      raise row.error(f"the label {label!r} is not a number")
    return
  for name in [label] if isinstance(label, str) else label:
    if name not in problem.labels:
      raise row.error(
        f"unknown label {name!r}; the labels are {some_of(problem.labels)}"
      )


# A trained model from Python


def problem_from_description(description: Mapping[str, Any]) -> Problem:
  """The task of a trained model, from its description (model.json)."""
  labels = description["labels"]
  default = "classification" if labels else "regression"
  return Problem(description.get("kind", default), labels)


def description_problem(description: Mapping[str, Any]) -> str | None:
  """Problem with labels and thresholds of a description; None if valid."""
  for label, threshold in description.get("thresholds", {}).items():
    if isinstance(threshold, bool) or threshold not in FRACTION:
      return f"thresholds.{label} is {threshold!r}, not a number {FRACTION}"
  if "labels" not in description:
    return None
  kind, labels = problem_from_description(description)
  if kind not in KINDS:
    return f"kind is {kind!r}, not one of {', '.join(KINDS)}"
  if kind == "regression" and labels:
    return f"has {len(labels)} labels, but regression has none"
  if len(labels) < KINDS[kind]:
    return f"has {len(labels)} labels; {kind} needs {KINDS[kind]} or more"
  unknown = sorted(description.get("thresholds", {}).keys() - set(labels))
  return f"has a threshold of {unknown[0]!r}, no label" if unknown else None
