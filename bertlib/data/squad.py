"""Reads SQuAD and cuts its paragraphs into windows that the model can take.

A question's features are one window or several, each with as much of the
paragraph as fits beside the question (Devlin et al. 2019, section 4.2).
TensorFlow is not needed, so that the processes that share the work start fast.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import random
import re
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
from absl import logging

import tokenization
from bertlib import app
from bertlib.data import squad_files, tf_records, workers
from bertlib.errors import InputError
from bertlib.files import open_any, write_whole
from bertlib.settings import option

# Ids of windows begin here, as in the reference.
FIRST_UNIQUE_ID = 1000000000


# Reading


@dataclasses.dataclass(eq=False)
class SquadExample:
  """A question about a paragraph, with its answer where that is known.

  Attributes:
    qas_id: names the question.
    question_text: what is asked.
    doc_tokens: the paragraph's words; questions of one paragraph share the
      list.
    orig_answer_text: the answer; "" where there is none.
    start_position: the answer's first word; -1 where there is none.
    end_position: its last word.
    is_impossible: whether there is no answer.
  """

  qas_id: str
  question_text: str
  doc_tokens: list[str]
  orig_answer_text: str | None = None
  start_position: int | None = None
  end_position: int | None = None
  is_impossible: bool = False


def split_words(context: str) -> tuple[list[str], list[int]]:
  """The words of a paragraph, and the character at which each begins."""
  words = list(re.finditer(r"[^ \t\r\n\u202f]+", context))
  return [word.group() for word in words], [word.start() for word in words]


def read_squad_examples(
  input_file: str,
  is_training: bool,
  version_2_with_negative: bool | None = None,
  unaligned: list[dict[str, Any]] | None = None,
) -> list[SquadExample]:
  """Reads a data set.

  Args:
    input_file: JSON in SQuAD's format.
    is_training: whether answers are needed. A question whose answer is not
      found among the words at its place is left out, and counted in the log.
    version_2_with_negative: whether there may be questions without an answer;
      None for what `option.value_of` gives.
    unaligned: gets what was left out: id, answer, and the words found.

  Returns:
    The questions, in order.

  Raises:
    InputError: the file is not such a file, or a question cannot be used;
      both are named.
  """
  if version_2_with_negative is None:
    version_2_with_negative = option.value_of("version_2_with_negative", False)
  examples, left_out = [], []
  context, words, starts = None, [], []
  for question in squad_files.read_questions(input_file):
    place = f"{input_file}, question {question.id}"
    if question.is_impossible and not version_2_with_negative:
      raise InputError(
        f"{place}: has no answer (is_impossible), as in SQuAD 2.0. Give"
        " --version_2_with_negative"
      )
    if question.context is not context:
      context = question.context
      words, starts = split_words(context)
    example = SquadExample(question.id, question.text, words)
    examples.append(example)
    if not is_training:
      continue
    example.is_impossible = bool(question.is_impossible)
    if example.is_impossible:
      example.orig_answer_text = ""
      example.start_position = example.end_position = -1
      continue
    answer = _only_answer(question, place)
    example.orig_answer_text = answer.text
    first, last = answer.start, answer.start + len(answer.text) - 1
    example.start_position = bisect.bisect_right(starts, first) - 1
    example.end_position = bisect.bisect_right(starts, last) - 1
    found = " ".join(words[example.start_position : example.end_position + 1])
    if " ".join(answer.text.split()) not in found:
      examples.pop()
      left_out.append(
        {"id": question.id, "answer": answer.text, "found": found}
      )
  if left_out:
    logging.warning(
      "%s: %d of %d questions left out, whose answers are not where they are"
      " said to be; the first is %s",
      input_file,
      len(left_out),
      len(left_out) + len(examples),
      left_out[0]["id"],
    )
  if unaligned is not None:
    unaligned += left_out
  if not examples:
    raise InputError(f"{input_file}: has no questions left to train on")
  return examples


def _only_answer(
  question: squad_files.Question, place: str
) -> squad_files.Answer:
  """The answer to learn, which there has to be one of."""
  if len(question.answers) != 1:
    raise InputError(
      f"{place}: has {len(question.answers)} answers, but training takes one"
      " each. Keep one, or give --version_2_with_negative where there is none"
    )
  (answer,) = question.answers
  if not answer.text:
    raise InputError(f"{place}: its answer is empty")
  if not 0 <= answer.start <= len(question.context) - len(answer.text):
    raise InputError(
      f"{place}: answer_start {answer.start} puts the answer outside the"
      f" context, which has {len(question.context)} characters"
    )
  return answer


# Windows


class Windows(NamedTuple):
  """The windows of many questions, column by column.

  [N] columns have a number a window. [T] columns have one for each of its
  tokens, `length` of them, without padding; windows stand one after the other.

  Attributes:
    example_index: [N], the question.
    doc_span_index: [N], which of its windows.
    query_length: [N], tokens of the question.
    query_cut: [N], tokens of the question that are left out.
    length: [N], tokens of the window: [CLS] question [SEP] part [SEP].
    start_position: [N], the answer's first token; 0 where this window has no
      answer, -1 where that is not known.
    end_position: [N], its last token, likewise.
    is_impossible: [N], whether the question has no answer.
    ids: [T].
    word: [T], the word of the paragraph to which the token belongs; -1 at
      those that are not of the paragraph.
    is_max_context: [T], whether no other window of the question shows the
      token with more text around it.
  """

  example_index: np.ndarray
  doc_span_index: np.ndarray
  query_length: np.ndarray
  query_cut: np.ndarray
  length: np.ndarray
  start_position: np.ndarray
  end_position: np.ndarray
  is_impossible: np.ndarray
  ids: np.ndarray
  word: np.ndarray
  is_max_context: np.ndarray


@dataclasses.dataclass(eq=False)
class InputFeatures:
  """A window as the model takes it.

  Attributes:
    unique_id: names the window.
    example_index: index of the question.
    doc_span_index: index of the window among those of the question.
    tokens: its word pieces, without padding.
    token_to_orig_map: position of a token -> index of its word in the
      paragraph, for the tokens of the paragraph.
    token_is_max_context: position of such a token -> whether no other window
      of the question shows the token with more context.
    input_ids: ids of the word pieces, padded with 0.
    input_mask: 1 at word pieces, 0 at padding.
    segment_ids: 1 at the part of the paragraph and its [SEP], else 0.
    start_position: the answer's first token; 0 where this window has no
      answer, None where that is not known.
    end_position: its last token, likewise.
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


class Window:
  """A row of `Windows`, with the attributes of `InputFeatures` and columns.

  Lists and dictionaries are made when they are read, which keeps a data set in
  a tenth of the memory.

  Attributes:
    words: int32 [tokens], index of each token's word in the paragraph; -1 at
      the tokens that are not of the paragraph.
    is_max_context: bool [tokens], see `InputFeatures.token_is_max_context`.
  """

  def __init__(
    self,
    unique_id: int,
    windows: Windows,
    row: int,
    tokens: slice,
    max_seq_length: int,
    inv_vocab: Mapping[int, str],
  ):
    """Takes a row of `windows`.

    Args:
      unique_id: names the window.
      windows: the columns.
      row: which window.
      tokens: where its tokens are in the columns of tokens.
      max_seq_length: length of the features, in tokens.
      inv_vocab: names the tokens.
    """
    self.unique_id = unique_id
    self.example_index = int(windows.example_index[row])
    self.doc_span_index = int(windows.doc_span_index[row])
    self.is_impossible = bool(windows.is_impossible[row])
    self.start_position = self._position(windows.start_position[row])
    self.end_position = self._position(windows.end_position[row])
    self.words = windows.word[tokens]
    self.is_max_context = windows.is_max_context[tokens]
    self._length = int(windows.length[row])
    # The part of the paragraph stands between this and the last [SEP].
    self._first = int(windows.query_length[row]) + 2
    self._ids = windows.ids[tokens]
    self._max_seq_length = max_seq_length
    self._inv_vocab = inv_vocab

  @staticmethod
  def _position(position: int) -> int | None:
    return None if position < 0 else int(position)

  def _padded(self, values: list[int]) -> list[int]:
    return values + [0] * (self._max_seq_length - len(values))

  def _by_position(self, column: np.ndarray) -> dict[int, Any]:
    part = column[self._first : self._length - 1]
    return dict(enumerate(part.tolist(), self._first))

  @functools.cached_property
  def tokens(self) -> tuple[str, ...]:
    """See `InputFeatures`; kept, since each possible answer reads it.

    A tuple, since garbage collection goes through all lists again and again.
    """
    return tuple(map(self._inv_vocab.__getitem__, self._ids.tolist()))

  @property
  def input_ids(self) -> list[int]:
    """See `InputFeatures`."""
    return self._padded(self._ids.tolist())

  @property
  def input_mask(self) -> list[int]:
    """See `InputFeatures`."""
    return self._padded([1] * self._length)

  @property
  def segment_ids(self) -> list[int]:
    """See `InputFeatures`."""
    return self._padded([0] * self._first + [1] * (self._length - self._first))

  @property
  def token_to_orig_map(self) -> dict[int, int]:
    """See `InputFeatures`."""
    return self._by_position(self.words)

  @property
  def token_is_max_context(self) -> dict[int, bool]:
    """See `InputFeatures`."""
    return self._by_position(self.is_max_context)

  def as_features(self) -> InputFeatures:
    """The same with all lists and dictionaries made."""
    names = [field.name for field in dataclasses.fields(InputFeatures)]
    values = {name: getattr(self, name) for name in names}
    return InputFeatures(**values | {"tokens": list(self.tokens)})


def as_record(feature: InputFeatures | Window) -> dict[str, Any]:
  """The features of a window under their names in a TFRecord."""
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
  """The layout of the records of windows.

  Args:
    max_seq_length: tokens of a window.
    is_training: whether they have answers.

  Returns:
    What `tf_records.write_records` and `input_pipeline.parse_records` take.
  """
  numbers = ["unique_ids"]
  if is_training:
    numbers += ["start_positions", "end_positions", "is_impossible"]
  return tf_records.token_layout(max_seq_length) | dict.fromkeys(
    numbers, tf_records.Feature()
  )


class FeatureWriter:
  """Writes windows to a TFRecord file, which appears whole when it is closed.

  As a context manager it closes the file, or, after an error, leaves none.

  Attributes:
    filename: the file.
    is_training: whether the records have the answers.
    num_features: number of windows written so far.
  """

  def __init__(self, filename: str, is_training: bool):
    """Opens the file."""
    self.filename = filename
    self.is_training = is_training
    self.num_features = 0
    self._stack = contextlib.ExitStack()
    self._file = self._stack.enter_context(write_whole(filename, "wb"))
    # Only reading depends on the length.
    self._encode = tf_records.record_encoder(record_layout(0, is_training))

  def process_feature(self, feature: InputFeatures | Window) -> None:
    """Writes a window."""
    self._file.write(tf_records.framed(self._encode(as_record(feature))))
    self.num_features += 1

  def close(self) -> None:
    """Finishes the file."""
    self._stack.close()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._stack.__exit__(*error)


def convert_examples_to_features(
  examples: Sequence[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
  doc_stride: int,
  max_query_length: int,
  is_training: bool,
  output_fn: Callable[[InputFeatures], Any],
) -> None:
  """Makes the windows of all questions, one after the other.

  Args:
    examples: the questions.
    tokenizer: gives the ids.
    max_seq_length: length of the features, in tokens.
    doc_stride: tokens from the start of a window's part to that of the next.
    max_query_length: tokens of a question; what is longer is cut.
    is_training: whether the features have the answers.
    output_fn: called with the `InputFeatures` of each window.
  """
  windows = make_windows(
    examples,
    tokenizer,
    Settings(max_seq_length, doc_stride, max_query_length, is_training),
  )
  for window in iterate_features(windows, max_seq_length, tokenizer.inv_vocab):
    output_fn(window.as_features())


def iterate_features(
  windows: Windows,
  max_seq_length: int,
  inv_vocab: Mapping[int, str],
  order: Sequence[int] | None = None,
) -> Iterator[Window]:
  """The windows one by one, with unique ids in their order.

  Args:
    windows: the windows.
    max_seq_length: length of the features, in tokens.
    inv_vocab: names the tokens.
    order: the questions in the order in which they shall come, as if they had
      been given in that order; None for as they are.

  Yields:
    Each window.
  """
  rows = range(len(windows.length))
  if order is not None:
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    windows = windows._replace(example_index=rank[windows.example_index])
    rows = np.argsort(windows.example_index, kind="stable").tolist()
  ends = np.cumsum(windows.length).tolist()
  for unique_id, row in enumerate(rows, FIRST_UNIQUE_ID):
    tokens = slice(ends[row] - int(windows.length[row]), ends[row])
    yield Window(unique_id, windows, row, tokens, max_seq_length, inv_vocab)


def reference_order(num_questions: int) -> list[int]:
  """The order in which the reference writes training questions to its file."""
  order = list(range(num_questions))
  random.Random(12345).shuffle(order)
  return order


class Settings(NamedTuple):
  """How windows are made; see `convert_examples_to_features`."""

  max_seq_length: int
  doc_stride: int
  max_query_length: int
  is_training: bool


def check_settings(settings: Settings) -> None:
  """Refuses settings with which no window would have text.

  Args:
    settings: the settings.

  Raises:
    InputError: there is no room for text, or windows would not move on.
  """
  if settings.max_seq_length <= settings.max_query_length + 3:
    raise InputError(
      f"--max_seq_length={settings.max_seq_length} leaves no room for text"
      f" beside a question of --max_query_length={settings.max_query_length}"
      " and three special tokens"
    )
  if settings.doc_stride < 1 or settings.max_query_length < 1:
    raise InputError(
      f"--doc_stride={settings.doc_stride} and --max_query_length="
      f"{settings.max_query_length} have to be 1 at least"
    )


def make_windows(
  examples: Sequence[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  settings: Settings,
  num_workers: int = 1,
  show_progress: bool = False,
) -> Windows:
  """Makes the windows of all questions.

  Args:
    examples: the questions.
    tokenizer: gives the ids.
    settings: how to make them.
    num_workers: processes that share the work; changes nothing but the time.
    show_progress: whether to show how far it is.

  Returns:
    The windows, in the order of the questions.

  Raises:
    InputError: no window would have text, see `check_settings`.
  """
  check_settings(settings)
  size = 500
  chunks = [
    (start, examples[start : start + size])
    for start in range(0, max(len(examples), 1), size)
  ]
  parts = []
  with contextlib.ExitStack() as stack:
    if min(num_workers, len(chunks)) > 1:
      submit = stack.enter_context(
        workers.worker_pool(num_workers, _make_chunk, tokenizer, settings)
      )
      futures = [submit(*chunk) for chunk in chunks]
      made = (future.result() for future in futures)
    else:
      made = (_make_chunk(tokenizer, settings, *chunk) for chunk in chunks)
    bar = app.progress(len(examples), "questions", disable=not show_progress)
    stack.enter_context(bar)
    for (_, chunk), part in zip(chunks, made):
      parts.append(part)
      bar.update(len(chunk))
  return Windows(*map(np.concatenate, zip(*parts)))


def _make_chunk(
  tokenizer: tokenization.FullTokenizer,
  settings: Settings,
  first_index: int,
  examples: Sequence[SquadExample],
) -> Windows:
  """The windows of some questions, the first of which has this index."""
  cls, sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
  rows, ids, words, is_max_context = [], [], [], []
  for example_index, encoded in enumerate(
    encode_examples(examples, tokenizer, settings.is_training), first_index
  ):
    query = encoded.query[: settings.max_query_length]
    before = [cls, *query, sep]
    room = settings.max_seq_length - len(before) - 1
    spans = window_spans(len(encoded.document.ids), room, settings.doc_stride)
    best = best_windows(spans, range(len(encoded.document.ids)))
    for index, (start, length) in enumerate(spans):
      stop = start + length
      positions = (-1, -1)
      if settings.is_training:
        positions = (0, 0)
        if start <= encoded.start and encoded.end < stop:
          moved = len(before) - start
          positions = (encoded.start + moved, encoded.end + moved)
      rows.append(
        (
          example_index,
          index,
          len(query),
          len(encoded.query) - len(query),
          len(before) + length + 1,
          *positions,
          encoded.is_impossible,
        )
      )
      ids += [*before, *encoded.document.ids[start:stop], sep]
      no_words = [-1] * len(before)
      words += [*no_words, *encoded.document.words[start:stop], -1]
      is_max_context += [
        np.zeros(len(before), bool),
        best[start:stop] == index,
        np.zeros(1, bool),
      ]
  columns = np.array(rows, np.int32).reshape(-1, 8).T
  return Windows(
    *columns,
    np.array(ids, np.int32),
    np.array(words, np.int32),
    np.concatenate([np.zeros(0, bool), *is_max_context]),
  )


class _Document(NamedTuple):
  """A paragraph in word pieces: their ids, their words, each word's first."""

  ids: list[int]
  words: list[int]
  first_of_word: list[int]


class EncodedExample(NamedTuple):
  """A question in word pieces.

  Attributes:
    query: ids of the whole question.
    document: the paragraph.
    start: the answer's first piece in it; -1 where there is none.
    end: its last.
    is_impossible: whether there is no answer.
  """

  query: list[int]
  document: _Document
  start: int
  end: int
  is_impossible: bool


def encode_examples(
  examples: Iterable[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  is_training: bool,
) -> Iterator[EncodedExample]:
  """Cuts questions and paragraphs into word pieces, each paragraph once.

  Args:
    examples: the questions, those of one paragraph one after the other.
    tokenizer: gives the ids.
    is_training: whether answers are wanted.

  Yields:
    Each question.
  """
  doc_tokens, document = None, None
  for example in examples:
    if example.doc_tokens is not doc_tokens:
      doc_tokens = example.doc_tokens
      document = _encode_document(doc_tokens, tokenizer)
    start = end = -1
    if is_training and not example.is_impossible:
      start = document.first_of_word[example.start_position]
      after = example.end_position + 1
      if after < len(doc_tokens):
        end = document.first_of_word[after] - 1
      else:
        end = len(document.ids) - 1
      start, end = improve_answer_span(
        document.ids, start, end, tokenizer.encode(example.orig_answer_text)
      )
    yield EncodedExample(
      tokenizer.encode(example.question_text),
      document,
      start,
      end,
      example.is_impossible,
    )


def _encode_document(doc_tokens, tokenizer) -> _Document:
  ids, words, first_of_word = [], [], []
  for index, word in enumerate(doc_tokens):
    first_of_word.append(len(ids))
    pieces = tokenizer.encode(word)
    ids += pieces
    words += [index] * len(pieces)
  return _Document(ids, words, first_of_word)


def improve_answer_span(
  document: Sequence[Any], start: int, end: int, answer: Sequence[Any]
) -> tuple[int, int]:
  """Finds the answer's own pieces among those of its words.

  Words are parted at white space, so that the answer "1895" stands in the word
  "(1895-1943)." and has pieces before and after it.

  Args:
    document: pieces of the paragraph, or their ids.
    start: the first piece of the words with the answer.
    end: the last, inclusive.
    answer: pieces of the answer, or their ids.

  Returns:
    First and last piece of the answer; `start` and `end` where it is not
    found.
  """
  answer = list(answer)
  for first in range(start, end - len(answer) + 2):
    if answer and list(document[first : first + len(answer)]) == answer:
      return first, first + len(answer) - 1
  return start, end


def _improve_answer_span(
  doc_tokens: Sequence[str],
  input_start: int,
  input_end: int,
  tokenizer: tokenization.FullTokenizer,
  orig_answer_text: str,
) -> tuple[int, int]:
  """`improve_answer_span` with the arguments of google-research/bert."""
  answer = tokenizer.tokenize(orig_answer_text)
  return improve_answer_span(doc_tokens, input_start, input_end, answer)


def window_spans(
  num_tokens: int, room: int, doc_stride: int
) -> list[tuple[int, int]]:
  """The parts into which a paragraph is cut.

  Args:
    num_tokens: pieces of the paragraph.
    room: pieces that fit into a window.
    doc_stride: pieces from the start of one to that of the next, at most.

  Returns:
    Start and length of each.
  """
  spans = []
  start = 0
  while start < num_tokens:
    length = min(num_tokens - start, room)
    spans.append((start, length))
    if start + length == num_tokens:
      break
    start += min(length, doc_stride)
  return spans


def best_windows(
  spans: Sequence[tuple[int, int]], positions: Sequence[int]
) -> np.ndarray:
  """For each piece of a paragraph, the window with the most context around it.

  That is the smaller of what is before and after it; the windows' lengths and
  then their order decide between equals.

  Args:
    spans: what `window_spans` gives.
    positions: the pieces.

  Returns:
    [positions], the index of the window; -1 for a piece of no window.
  """
  if not len(spans):
    return np.full(len(positions), -1)
  starts, lengths = np.array(spans).T[:, :, np.newaxis]
  before = np.array(positions) - starts  # [windows, positions]
  after = lengths - 1 - before
  around = np.minimum(before, after)
  scores = np.where(around < 0, -np.inf, around + 0.01 * lengths)
  return np.where(scores.max(axis=0) < 0, -1, scores.argmax(axis=0))


def _check_is_max_context(
  doc_spans: Sequence[Any], cur_span_index: int, position: int
) -> bool:
  """Whether a window is the one that `best_windows` finds for a position.

  Args:
    doc_spans: windows, with `start` and `length`.
    cur_span_index: index of one of them.
    position: a piece of the paragraph.

  Returns:
    Whether it is the one with the most context.
  """
  spans = [(span.start, span.length) for span in doc_spans]
  return bool(best_windows(spans, [position])[0] == cur_span_index)


def find_losses(windows: Windows) -> tuple[np.ndarray, np.ndarray]:
  """Finds what windows do not show.

  Args:
    windows: the windows.

  Returns:
    Indexes of the questions that are cut, and of those whose answer is in no
    window.
  """
  cut = windows.example_index[windows.query_cut > 0]
  asked = windows.example_index[
    (windows.start_position >= 0) & (windows.is_impossible == 0)
  ]
  shown = windows.example_index[windows.start_position > 0]
  return np.unique(cut), np.setdiff1d(asked, shown)


# The cache


def cache_key(data_file: str, vocab_file: str, settings: Mapping[str, Any]):
  """Names what the windows of a data set depend on.

  Args:
    data_file: the data set.
    vocab_file: the vocabulary.
    settings: all else.

  Returns:
    A hash of these files' bytes and the settings; also of the code that makes
    windows, and of what Python knows of Unicode.
  """
  digest = hashlib.sha256()
  for path in (data_file, vocab_file, __file__, tokenization.__file__):
    with open_any(path, "rb") as file:
      digest.update(hashlib.sha256(file.read()).digest())
  digest.update(json.dumps(settings, sort_keys=True).encode())
  digest.update(unicodedata.unidata_version.encode())
  return digest.hexdigest()


def cached_windows(
  folder: str, key: str, make: Callable[[], Windows]
) -> Windows:
  """Reads windows that were made before, or makes and keeps them.

  Args:
    folder: where they are kept.
    key: what `cache_key` gives.
    make: makes them.

  Returns:
    The windows.
  """
  path = os.path.join(folder, f"windows-{key[:16]}.npz")
  try:
    with open_any(path, "rb") as file, np.load(file) as arrays:
      if arrays["key"].item() == key:
        windows = Windows(*(arrays[name] for name in Windows._fields))
        logging.info("Windows read from %s", path)
        return windows
  except FileNotFoundError:
    pass
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    logging.warning("%s: is damaged (%s) and made again", path, error)
  windows = make()
  with write_whole(path, "wb") as file:
    np.savez(file, key=key, **windows._asdict())
  return windows
