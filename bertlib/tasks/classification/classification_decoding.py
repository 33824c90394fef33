"""Predicted labels from the outputs of a classifier. Imports no TensorFlow."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, NoReturn

import numpy as np

import tokenization
from bertlib.cli import lazy_module, terminal
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, some_of
from bertlib.cli.option import FRACTION
from bertlib.data import batch_predictor, model_inputs
from bertlib.data.batch_predictor import BatchPredictor, FileFormat
from bertlib.io.result_files import DevPrediction
from bertlib.settings.common import LongTextSettings
from bertlib.tasks.classification import classification
from bertlib.tasks.classification.classification import Example, Problem

# Not of benchmarks such as GLUE.
own_tables = lazy_module.load("bertlib.tasks.classification.own_tables")


class Prediction(NamedTuple):
  """Prediction for an example.

  Attributes:
    label: the most probable label; for regression, the value; for a multi-label
      problem, the labels whose probability reaches their threshold.
    probabilities: probability of every label, by label; empty for regression.
  """

  label: str | float | list[str]
  probabilities: dict[str, float]


def prediction(
  problem: Problem,
  row: np.ndarray,
  thresholds: Mapping[str, float] | None = None,  # by label; 0.5 for others
) -> Prediction:
  """Converts probabilities [labels], or a regression's value [1]."""
  by_label = {label: float(p) for label, p in zip(problem.labels, row)}
  return Prediction(predicted_label(problem, row, thresholds), by_label)


def predicted_label(
  problem: Problem,
  row: np.ndarray,
  thresholds: Mapping[str, float] | None = None,
) -> str | float | list[str]:
  """The predicted label, see `prediction`."""
  if problem.kind == "regression":
    return float(row[0])
  if problem.kind != "multi_label":
    return problem.labels[int(np.argmax(row))]
  lowest: float | list[float] = 0.5
  if thresholds:
    lowest = [thresholds.get(label, 0.5) for label in problem.labels]
  (found,) = np.nonzero(np.asarray(row, np.float64) >= lowest)
  return [problem.labels[index] for index in found]


def predicted_labels(
  problem: Problem,
  rows: Iterable[np.ndarray],
  thresholds: Mapping[str, float] | None = None,
) -> list[str]:
  """Predicted labels as text; none for regression. See `prediction`."""
  if problem.kind == "regression":
    return []
  return [label_text(predicted_label(problem, row, thresholds)) for row in rows]


def probabilities(problem: Problem, logits: np.ndarray) -> np.ndarray:
  """Model output from logits [num_examples, num_labels]; see `prediction`."""
  if problem.kind == "regression":
    return logits
  if problem.kind == "multi_label":
    return np.exp(-np.logaddexp(0, -logits))  # their sigmoid
  powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
  return powers / np.sum(powers, axis=-1, keepdims=True)


def losses(
  problem: Problem, label_ids: np.ndarray, logits: np.ndarray
) -> np.ndarray:
  """Loss of each example, as that of `run_classifier.create_model`."""
  if problem.kind == "regression":
    return np.square(logits[:, 0] - label_ids)
  if problem.kind == "multi_label":
    signs = 1 - 2 * label_ids
    return np.logaddexp(0, signs * logits).mean(axis=-1)
  gold = np.take_along_axis(logits, label_ids[:, np.newaxis], axis=-1)
  return np.logaddexp.reduce(logits - gold, axis=-1)


class Joined(np.ndarray):
  """Output for a text that may have several windows, see `prediction`."""

  best: np.ndarray  # int [labels], its window with the highest logit of each


def join_logits(logits: Sequence[np.ndarray], how: str | None) -> np.ndarray:
  """Logits [labels] of a text by `LongTextSettings.join_windows`."""
  if how == "max":
    return np.max(logits, axis=0)
  # Not `np.mean`, which adds in another order than earlier versions did.
  return np.add.reduceat(logits, [0])[0] / len(logits)


def join(
  problem: Problem,
  rows: Iterable[Sequence[np.ndarray]],  # outputs and logits of each window
  num_windows: Sequence[int],  # of each text
  how: str | None,  # see `LongTextSettings.join_windows`
) -> Iterator[Joined]:
  """Yields the output of each text, joined from those of its windows."""
  for windows in model_inputs.by_text(rows, num_windows):
    outputs, logits = map(np.stack, zip(*windows))
    if len(windows) > 1:
      outputs = [probabilities(problem, join_logits(logits, how))]
    found = outputs[0].view(Joined)
    found.best = logits.argmax(axis=0)
    yield found


def window_offsets(
  tokenizer: tokenization.Tokenizer,
  max_seq_length: int,
  cutting: LongTextSettings,
  texts: Sequence[str | None],  # two, or the second is None
) -> list[dict[str, Any]]:
  """Characters of the windows of a text, or of the longer text of a pair."""
  encoded = tokenizer.encode_with_offsets(text or "" for text in texts)
  offsets = [spans for _, spans in encoded]
  num_a, num_b = map(len, offsets)
  divided = int(num_b >= num_a)
  of_pair = {"text": ("text_a", "text_b")[divided]} if texts[1] else {}
  room = max_seq_length - tokenizer.special_tokens.num(num_b > 0)
  _, rows = model_inputs.cut(*offsets, room, cutting)
  spans = [row[divided] for row in rows]
  if len(rows) == 1:  # which has the whole text
    spans = [[(0, len(texts[divided] or ""))]]
  return [
    {**of_pair, "start": span[0][0], "end": span[-1][1]} for span in spans
  ]


def label_text(label: Any) -> str:
  """Text of a label, a list of labels or a regression value."""
  if isinstance(label, float):
    return f"{label:.3g}"
  return label if isinstance(label, str) else ", ".join(label) or "none"


# Files


def dev_predictions(
  problem: Problem, examples: Iterable[Example], rows: Iterable[np.ndarray]
) -> list[DevPrediction]:
  """Gold and predicted labels of a dev set; thresholds of labels are 0.5."""
  return [
    DevPrediction(
      example.guid,
      float(example.label) if problem.kind == "regression" else example.label,
      predicted_label(problem, row),
    )
    for example, row in zip(examples, rows)
  ]


def label_columns(predicted: Prediction) -> list[str]:
  """Labels and probabilities, comma-separated; the value of a regression."""
  if not predicted.probabilities:
    return [str(predicted.label)]
  label = predicted.label
  labels = label if isinstance(label, list) else [label]
  probs = (f"{predicted.probabilities[label]:.3f}" for label in labels)
  return [",".join(labels), ",".join(probs)]


def file_formats(
  problem: Problem,
  thresholds: Mapping[str, float] | None,
  examples: Sequence[Example],  # the first ones
  of_file: bool,  # see `write_predictions`
  with_ids: bool = False,  # whether a line of `.tsv` begins with the guid
  # Of rows that are `Joined`: finds the characters of the windows of a text.
  find_windows: Callable[[Any], Sequence[Any]] | None = None,
) -> dict[str, FileFormat]:
  """Formats of files of predictions, whose answers are rows of the model."""
  names: list[str] = []
  if of_file:
    is_pairs = any(example.text_b for example in examples)
    names = ["text_a", "text_b"] if is_pairs else ["text"]

  def json_line(example, row):
    predicted = prediction(problem, row, thresholds)
    line = {"guid": example.guid, **predicted._asdict()}
    if isinstance(row, Joined):
      windows = find_windows((example.text_a, example.text_b))
      best = dict(zip(problem.labels or [predicted.label], row.best))
      if isinstance(predicted.label, list):
        line["window"] = [windows[best[label]] for label in predicted.label]
      else:
        line["window"] = windows[best[predicted.label]]
    return batch_predictor.json_line(line)

  def table_line(example, row):
    numbers = [str(value) for value in row]
    columns = [example.guid] * with_ids + numbers
    if of_file:
      label, *_ = label_columns(prediction(problem, row, thresholds))
      texts = [example.text_a, example.text_b or ""]
      if len(names) == 1 and texts[1]:
        raise InputError(
          f"{example.guid}: has a second text, but texts before it have none."
          " Give pairs and single texts in files of their own"
        )
      # The number of a regression is its label.
      numbers = numbers[: len(problem.labels)]
      columns = [example.guid, label, *texts[: len(names)], *numbers]
    return batch_predictor.tsv_line(columns)

  header = batch_predictor.tsv_line(["id", "label", *names, *problem.labels])
  return {
    ".jsonl": FileFormat(json_line),
    ".tsv": FileFormat(table_line, lambda _: header if of_file else b""),
  }


def write_predictions(
  path: str,  # without the endings
  examples: Sequence[Example],
  rows: Sequence[np.ndarray],  # output of the model
  problem: Problem,
  thresholds: Mapping[str, float] | None,
  # Of --predict_file: `.tsv` has a header, label and text too, which are shown.
  of_file: bool = False,
  **more: Any,  # see `file_formats`
) -> None:
  """Writes predictions to PATH.tsv and .jsonl."""
  formats = file_formats(problem, thresholds, examples, of_file, **more)
  for example, row in zip(examples, rows if of_file else ()):
    columns = label_columns(prediction(problem, row, thresholds))
    texts = filter(None, [example.text_a, example.text_b])
    terminal.show(*columns, *texts)
  batch_predictor.write_files(path, formats, examples, rows)
  logging.info("%d predictions in %s.tsv and .jsonl", len(examples), path)


# From Python


def _are_choices(value: Any) -> bool:
  return batch_predictor.is_list(value) and all(
    map(batch_predictor.is_text_or_pair, value)
  )


class ClassifierPredictor(BatchPredictor):
  """Predicts labels of texts."""

  @property
  def labels(self) -> list[str]:
    """The label set; empty for regression."""
    return self.description["labels"]

  @property
  def problem(self) -> Problem:
    """The task type and label set."""
    return classification.problem_from_description(self.description)

  def predict(
    self,
    texts: Iterable[str | tuple[str, str] | Sequence[tuple[str, str]]],
    thresholds: Mapping[str, float] | None = None,
  ) -> list[Prediction]:
    """Predicts labels.

    Args:
      texts: each a text, or a pair of texts for tasks on pairs, or a list with
        a pair for each choice.
      thresholds: lowest probability of a label that is predicted, by label, for
        a multi-label model; labels without one have the model's, which
        evaluation tunes, or 0.5.

    Returns:
      A prediction for each, in order.

    Raises:
      InputError: a text is of another type, a question has another number of
        choices than the model, or a threshold is not valid.
    """
    thresholds = self._thresholds(thresholds or {})
    if self.problem.kind == "multiple_choice":
      texts = batch_predictor.validated(
        texts, _are_choices, "a list with a pair of str for each choice"
      )
      texts = map(self._with_all_choices, itertools.count(), texts)
    elif self.description.get("has_pairs") is False:
      texts = batch_predictor.validated(
        texts, batch_predictor.is_text, "a str: this model is of single texts"
      )
    else:
      texts = batch_predictor.validated(
        texts, batch_predictor.is_text_or_pair, "a str, or a pair of str"
      )
    rows = self.predict_blocks(texts, self._encode, self._rows)
    return [prediction(self.problem, row, thresholds) for row in rows]

  def rank(self, query: str, documents: Iterable[str], top_k=None) -> NoReturn:
    """Refuses to rank, as a model of run_reranker.py does."""
    del query, documents, top_k
    raise InputError(
      f"{self._model_dir}: is of run_classifier.py, whose labels rank no"
      " documents. Train with run_reranker.py, or make one score of two labels"
      " by convert_checkpoint.py --to=reranker"
    )

  def _thresholds(self, given: Mapping[str, float]) -> dict[str, float]:
    """The thresholds of the model, replaced by given ones, after a check."""
    labels = self.labels if self.problem.kind == "multi_label" else []
    for label, threshold in given.items():
      if label not in labels or threshold not in FRACTION:
        raise InputError(
          f"thresholds: {label!r} has {threshold!r}. Give a number {FRACTION}"
          f" for labels of a multi-label model: {some_of(labels) or 'none'}"
        )
    return {**self.description.get("thresholds", {}), **given}

  def _with_all_choices(self, index: int, choices: Sequence[tuple[str, str]]):
    """The choices of the question `texts[index]`, as many as the model has."""
    if len(choices) != self.problem.num_labels:
      raise InputError(
        f"texts[{index}]: has {len(choices)} choices, but the model has"
        f" {self.problem.num_labels}. Give as many"
      )
    return choices

  @property
  def extra_outputs(self) -> Sequence[str]:
    """See base class; what windows are joined by."""
    return ["logits"] * self.cutting.has_windows

  def texts_of(self, example):
    """See base class; also choices, and what `predict` takes."""
    if isinstance(example, classification.ChoiceExample):
      return example.choices
    if isinstance(example, classification.InputExample):
      return example.text_a, example.text_b
    return example

  def _encode(self, texts):
    """The number of rows of each text or example, and the rows."""
    texts = map(self.texts_of, texts)
    if self.problem.kind == "multiple_choice":
      texts = itertools.chain.from_iterable(texts)
    return self.encode_windows(texts)

  def _rows(self, num_rows: Sequence[int], outputs) -> Iterable[np.ndarray]:
    """Probabilities of each text, or the value of a regression."""
    problem = self.problem
    if self.cutting.has_windows:
      return join(problem, outputs, num_rows, self.cutting.join_windows)
    if problem.kind != "multiple_choice":
      return outputs
    logits = np.reshape(outputs, [-1, problem.num_labels])
    return probabilities(problem, logits)

  def read_file(self, settings, bad):
    """See base class; questions with choices are those of SWAG or RACE."""
    path, reader = settings.predict_file, classification.DataProcessor()
    is_choice = self.problem.kind == "multiple_choice"
    if is_choice:
      task = "race" if settings.task == "race" else "swag"
      reader = classification.PROCESSORS[task]()
    reader.labels, reader.streams = self.labels, True
    reader.encoding, reader.bad_rows[path] = settings.text.codec, bad
    reader.skip_bad_rows = settings.text.bad_rows == "skip"
    if is_choice:
      return reader.read_file(path, "test")
    reader.has_pairs = self.description.get("has_pairs")
    return own_tables.read_predict_file(settings, reader)

  def answer_blocks(self, sets):
    """See base class; an answer is a row of probabilities, or a value [1]."""
    return self.map_blocks(sets, self._encode, self._rows)

  def file_formats(self, examples):
    """See base class."""
    length = self.description["max_seq_length"]
    return file_formats(
      self.problem,
      self._thresholds({}),
      examples,
      of_file=self.problem.kind != "multiple_choice",
      find_windows=functools.partial(
        window_offsets, self.tokenizer, length, self.cutting
      ),
    )
