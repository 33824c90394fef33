"""SQuAD features: overlapping windows of questions and paragraphs, and records.

A question has one or more windows, each with the question and as much of the
paragraph as fits (Devlin et al. 2019, section 4.2). Imports no TensorFlow, so
that worker processes start fast.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

import tokenization
from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs, tf_records, workers
from bertlib.io.files import atomic_write
from bertlib.settings.squad import check_window
from bertlib.tasks.squad import squad_spans
from bertlib.tasks.squad.squad_examples import SquadExample
from bertlib.tasks.squad.squad_spans import EncodedExample

# First unique id of a window, as in google-research/bert.
FIRST_UNIQUE_ID = 1000000000


# Windows


class Windows(NamedTuple):
  """The windows of many questions, stored as columns."""

  # int32 [windows] columns have one value per window. [tokens] columns have one
  # value per token of all windows, without padding.

  example_index: np.ndarray  # [windows], index of the question
  doc_span_index: np.ndarray  # [windows], index within its question
  # [windows], index in the paragraph of the first token that is part of it.
  doc_start: np.ndarray
  # [windows], tokens of [CLS] question [SEP] paragraph [SEP].
  query_length: np.ndarray  # [windows], tokens of the question that are left
  query_cut: np.ndarray  # [windows], tokens lost to truncation
  length: np.ndarray
  # [windows], position of the answer's first token; 0 if the window does not
  # contain the answer, -1 if it is unknown.
  start_position: np.ndarray
  # [windows], position of its last token, likewise.
  end_position: np.ndarray
  is_impossible: np.ndarray  # [windows], 1 if the question has no answer
  ids: np.ndarray  # int32 [tokens]
  # int32 [tokens], index of the token's word in the paragraph; -1 at tokens
  # outside the paragraph.
  word: np.ndarray
  # bool [tokens], see `squad_spans.check_is_max_context`.
  is_max_context: np.ndarray


@dataclasses.dataclass(eq=False)
class InputFeatures:
  """Features of a window.

  Attributes:
    unique_id: number of the window.
    example_index: index of the question.
    doc_span_index: index of the window within its question.
    tokens: word pieces, without padding.
    token_to_orig_map: position -> index of the word in the paragraph, for the
      tokens of the paragraph.
    token_is_max_context: position -> whether no other window shows the token
      with more context, for the tokens of the paragraph.
    input_ids: token ids, padded with 0.
    input_mask: 1 at tokens, 0 at padding.
    segment_ids: 1 at the paragraph and the last [SEP], else 0.
    start_position: position of the answer's first token; 0 if the window does
      not contain the answer, None if it is unknown.
    end_position: position of its last token, likewise.
    is_impossible: whether the question has no answer.
  """

  unique_id: int
  example_index: int
  doc_span_index: int
  tokens: list[str]
  token_to_orig_map: dict[int, int]
  token_is_max_context: dict[int, bool]
  input_ids: list[int]
  input_mask: list[int]
  segment_ids: list[int]
  start_position: int | None = None
  end_position: int | None = None
  is_impossible: bool | None = None


def as_record(feature: InputFeatures) -> dict[str, Any]:
  """The features of a window by their TFRecord keys."""
  return {
    "unique_ids": feature.unique_id,
    "input_ids": feature.input_ids,
    "input_mask": feature.input_mask,
    "segment_ids": feature.segment_ids,
    "start_positions": feature.start_position,
    "end_positions": feature.end_position,
    "is_impossible": int(bool(feature.is_impossible)),
  }


def record_layout(max_seq_length: int, is_training: bool) -> tf_records.Layout:
  """Layout of the records of windows of S tokens, with answers to train on."""
  numbers = ["unique_ids"]
  if is_training:
    numbers += ["start_positions", "end_positions", "is_impossible"]
  return tf_records.token_layout(max_seq_length) | dict.fromkeys(
    numbers, tf_records.Feature()
  )


class FeatureWriter:
  """Writes windows to a TFRecord file, which appears when it is closed.

  As a context manager it closes the file; after an error, no file is left.

  Attributes:
    filename: path of the file.
    is_training: whether the records have answers.
    num_features: number of windows written so far.
  """

  def __init__(self, filename: str, is_training: bool):
    """Opens the file."""
    self.filename = filename
    self.is_training = is_training
    self.num_features = 0
    self._stack = contextlib.ExitStack()
    self._file = self._stack.enter_context(atomic_write(filename, "wb"))
    # The length matters for reading only.
    self._encode = tf_records.record_encoder(record_layout(0, is_training))

  def process_feature(self, feature: InputFeatures) -> None:
    """Writes a window."""
    self._file.write(tf_records.frame_record(self._encode(as_record(feature))))
    self.num_features += 1

  def close(self) -> None:
    """Finishes the file."""
    self._stack.close()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._stack.__exit__(*error)


# Examples to windows


class WindowSettings(NamedTuple):
  """Settings of windows, see `convert_examples_to_features`."""

  max_seq_length: int
  doc_stride: int
  max_query_length: int
  is_training: bool

  @classmethod
  def of_model(cls, description: Mapping[str, Any]) -> WindowSettings:
    """The prediction settings of a trained model (model.json)."""
    names = ("max_seq_length", "doc_stride", "max_query_length")
    return cls(*(description[name] for name in names), is_training=False)


def check_settings(settings: WindowSettings) -> None:
  """Raises InputError if windows have no room for text or do not advance."""
  check_window(settings.max_seq_length, settings.max_query_length)
  if settings.doc_stride < 1 or settings.max_query_length < 1:
    raise InputError(
      f"--doc_stride={settings.doc_stride} and --max_query_length="
      f"{settings.max_query_length} must be at least 1"
    )


def convert_examples_to_features(
  examples: Sequence[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
  doc_stride: int,
  max_query_length: int,
  is_training: bool,
  output_fn: Callable[[InputFeatures], Any],
) -> None:
  """Creates the windows of all questions.

  Args:
    examples: the questions, grouped by paragraph.
    tokenizer: a WordPiece tokenizer.
    max_seq_length: length of the features, in tokens.
    doc_stride: tokens from the start of one window's part of the paragraph to
      the start of the next.
    max_query_length: maximum number of tokens per question; longer ones are
      truncated.
    is_training: whether the features have answers.
    output_fn: called with the `InputFeatures` of each window.
  """
  windows = convert_examples_to_windows(
    examples,
    tokenizer,
    WindowSettings(max_seq_length, doc_stride, max_query_length, is_training),
  )
  for feature in iterate_features(windows, max_seq_length, tokenizer.inv_vocab):
    output_fn(feature)


def convert_examples_to_windows(
  examples: Sequence[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  settings: WindowSettings,
  num_workers: int = 1,
  show_progress: bool = False,
) -> Windows:
  """Creates the windows of all questions in their order, as columns."""
  check_settings(settings)
  # Questions per task of a worker process.
  size = 500
  chunks = [
    (start, examples[start : start + size])
    for start in range(0, max(len(examples), 1), size)
  ]
  parts = []
  with contextlib.ExitStack() as stack:
    if min(num_workers, len(chunks)) > 1:
      submit = stack.enter_context(
        workers.worker_pool(num_workers, _convert_chunk, tokenizer, settings)
      )
      futures = [submit(*chunk) for chunk in chunks]
      converted = (future.result() for future in futures)
    else:
      converted = (
        _convert_chunk(tokenizer, settings, *chunk) for chunk in chunks
      )
    bar = terminal.progress(
      len(examples), "questions", disable=not show_progress
    )
    stack.enter_context(bar)
    for (_, chunk), part in zip(chunks, converted):
      parts.append(part)
      bar.update(len(chunk))
  return Windows(*map(np.concatenate, zip(*parts)))


def _convert_chunk(
  tokenizer: tokenization.FullTokenizer,
  settings: WindowSettings,
  first_index: int,
  examples: Sequence[SquadExample],
) -> Windows:
  """Creates the windows of questions numbered from `first_index`."""
  rows = [
    row
    for example_index, example in enumerate(
      squad_spans.encode_examples(examples, tokenizer, settings.is_training),
      first_index,
    )
    for row in _convert_example(example_index, example, tokenizer, settings)
  ]
  numbers = np.array([row[0] for row in rows], np.int32).reshape(-1, 9).T
  tokens = (
    np.concatenate([np.zeros(0, dtype), *(row[i] for row in rows)])
    for i, dtype in ((1, np.int32), (2, np.int32), (3, bool))
  )
  return Windows(*numbers, *tokens)


def _convert_example(
  example_index: int,
  example: EncodedExample,
  tokenizer: tokenization.FullTokenizer,
  settings: WindowSettings,
) -> Iterator[tuple[tuple[int, ...], np.ndarray, np.ndarray, np.ndarray]]:
  """Yields the row, ids, words and `is_max_context` of each window."""
  cls, sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
  query = example.query[: settings.max_query_length]
  before = [cls, *query, sep]
  document = example.document
  room = settings.max_seq_length - len(before) - 1
  doc_spans = model_inputs.make_doc_spans(
    len(document.ids), room, settings.doc_stride
  )
  reach = (room - 1) // settings.doc_stride  # windows that share tokens
  for index, (start, length) in enumerate(doc_spans):
    stop = start + length
    positions = (-1, -1)
    if settings.is_training:
      positions = (0, 0)
      if start <= example.start and example.end < stop:
        shift = len(before) - start
        positions = (example.start + shift, example.end + shift)
    numbers = (
      example_index,
      index,
      start,
      len(query),
      len(example.query) - len(query),
      len(before) + length + 1,
      *positions,
      example.is_impossible,
    )
    no_words = [-1] * len(before)
    first = max(index - reach, 0)
    is_max_context = squad_spans.check_is_max_context(
      doc_spans[first : index + reach + 1],
      index - first,
      np.arange(start, stop),
    )
    # Arrays, since a long paragraph has thousands of windows.
    yield (
      numbers,
      np.array([*before, *document.ids[start:stop], sep], np.int32),
      np.array([*no_words, *document.words[start:stop], -1], np.int32),
      np.array([*[False] * len(before), *is_max_context, False]),
    )


def window_records(
  windows: Windows, max_seq_length: int, rows: Iterable[int] | None = None
) -> Iterator[dict[str, Any]]:
  """Yields the features of windows by TFRecord keys, numbered in order."""
  ends = np.cumsum(windows.length).tolist()
  if rows is None:
    rows = range(len(ends))
  for unique_id, row in enumerate(rows, FIRST_UNIQUE_ID):
    length = int(windows.length[row])
    first = int(windows.query_length[row]) + 2  # of the paragraph
    ids = windows.ids[ends[row] - length : ends[row]].tolist()
    segment_ids = [0] * first + [1] * (length - first)
    yield {
      "unique_ids": unique_id,
      "input_ids": model_inputs.pad(ids, max_seq_length),
      "input_mask": model_inputs.pad([1] * length, max_seq_length),
      "segment_ids": model_inputs.pad(segment_ids, max_seq_length),
      "start_positions": int(windows.start_position[row]),
      "end_positions": int(windows.end_position[row]),
      "is_impossible": int(windows.is_impossible[row]),
    }


def iterate_features(
  windows: Windows, max_seq_length: int, inv_vocab: Mapping[int, str]
) -> Iterator[InputFeatures]:
  """Yields the windows as features of google-research/bert."""
  end = 0
  for row, record in enumerate(window_records(windows, max_seq_length)):
    begin, end = end, end + int(windows.length[row])
    first = int(windows.query_length[row]) + 2
    paragraph = slice(begin + first, end - 1)
    position = int(windows.start_position[row])
    yield InputFeatures(
      record["unique_ids"],
      int(windows.example_index[row]),
      int(windows.doc_span_index[row]),
      [inv_vocab[number] for number in windows.ids[begin:end].tolist()],
      dict(enumerate(windows.word[paragraph].tolist(), first)),
      dict(enumerate(windows.is_max_context[paragraph].tolist(), first)),
      record["input_ids"],
      record["input_mask"],
      record["segment_ids"],
      None if position < 0 else position,
      None if position < 0 else int(windows.end_position[row]),
      bool(windows.is_impossible[row]),
    )


def rows_of_questions(windows: Windows, order: Sequence[int]) -> list[int]:
  """Indices of the windows, question by question in the given order."""
  rank = np.empty(len(order), np.int32)
  rank[order] = np.arange(len(order))
  return np.argsort(rank[windows.example_index], kind="stable").tolist()


def reference_order(num_questions: int) -> list[int]:
  """Order in which google-research/bert writes training questions."""
  order = list(range(num_questions))
  random.Random(12345).shuffle(order)
  return order


# Statistics


def window_lengths(
  windows: Windows, max_seq_length: int
) -> model_inputs.Lengths:
  """Lengths of windows, and how many tokens their questions lost."""
  _, first, num_windows = np.unique(
    windows.example_index, return_index=True, return_counts=True
  )
  return model_inputs.Lengths(
    windows.length.tolist(),
    max_seq_length,
    windows.query_cut[first].tolist(),
    "questions",
    num_windows.tolist(),
  )


def find_incomplete_questions(
  windows: Windows,
) -> tuple[np.ndarray, np.ndarray]:
  """Indices of truncated questions, and of those with a lost answer."""
  truncated = windows.example_index[windows.query_cut > 0]
  answerable = windows.example_index[
    (windows.start_position >= 0) & (windows.is_impossible == 0)
  ]
  answered = windows.example_index[windows.start_position > 0]
  return np.unique(truncated), np.setdiff1d(answerable, answered)
