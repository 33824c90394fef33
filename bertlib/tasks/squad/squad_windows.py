"""Windows of questions: each with as much of the paragraph as fits.

A question has one or more overlapping windows (Devlin et al. 2019, section
4.2). Imports no TensorFlow, so that worker processes start fast.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import tokenization
from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs, tf_records, workers
from bertlib.data.model_inputs import DocSpan
from bertlib.io.files import atomic_write, open_any
from bertlib.settings.common import check_window
from bertlib.tasks.squad import squad_files
from bertlib.tasks.squad.squad_files import SquadExample

# First unique id of a window, as in google-research/bert.
FIRST_UNIQUE_ID = 1000000000


class Windows(NamedTuple):
  """The windows of many questions, stored as columns."""

  # int32 [windows] columns have one value per window. [tokens] columns have one
  # value per token of all windows, without padding.

  example_index: np.ndarray  # [windows], index of the question
  doc_span_index: np.ndarray  # [windows], index within its question
  # [windows], index in the paragraph of the first token that is part of it.
  doc_start: np.ndarray
  query_length: np.ndarray  # [windows], tokens of the question that are left
  num_truncated_query_tokens: np.ndarray  # [windows]
  length: np.ndarray  # [windows], of [CLS] question [SEP] paragraph [SEP]
  # [windows], positions of the answer's first and last token; 0 if the window
  # does not contain the answer, -1 if it is unknown.
  start_position: np.ndarray
  end_position: np.ndarray
  is_impossible: np.ndarray  # [windows], 1 if the question has no answer
  ids: np.ndarray  # int32 [tokens]
  # int32 [tokens], index of the token's word in the paragraph; -1 at tokens
  # outside the paragraph.
  word: np.ndarray
  is_max_context: np.ndarray  # bool [tokens], see `check_is_max_context`


class WindowSettings(NamedTuple):
  """Sizes of windows and their strides."""

  max_seq_length: int
  # Tokens from the start of one window's part of the paragraph to that of the
  # next.
  doc_stride: int
  max_query_length: int  # longer questions are truncated
  is_training: bool  # whether windows have answers

  @classmethod
  def of_model(cls, description: Mapping[str, Any]) -> WindowSettings:
    """The prediction settings of a trained model (model.json)."""
    names = ("max_seq_length", "doc_stride", "max_query_length")
    return cls(*(description[name] for name in names), is_training=False)


def check_settings(settings: WindowSettings, num_special: int = 3) -> None:
  """Raises InputError if windows have no room for text or do not advance."""
  check_window(settings.max_seq_length, settings.max_query_length, num_special)
  if settings.doc_stride < 1 or settings.max_query_length < 1:
    raise InputError(
      f"--doc_stride={settings.doc_stride} and --max_query_length="
      f"{settings.max_query_length} must be at least 1"
    )


# Word pieces


class _Document(NamedTuple):
  """Pieces of a paragraph, with the index of the word of each."""

  ids: list[int]
  words: list[int]
  # Character ranges, if the paragraph was tokenized as one text.
  offsets: Sequence[tuple[int, int]] | None = None

  def first_of_word(self, index: int) -> int:
    """First piece of a word; its position if the word has no pieces."""
    return bisect.bisect_left(self.words, index)


class EncodedExample(NamedTuple):
  """A question in word pieces."""

  query: list[int]  # token ids of the whole question
  document: _Document  # the paragraph
  # Indices of the answer's first and last piece in the paragraph; -1 if there
  # is none.
  start: int
  end: int
  is_impossible: bool


def encode_examples(
  examples: Sequence[SquadExample],  # grouped by paragraph
  tokenizer: tokenization.Tokenizer,
  is_training: bool,
) -> Iterator[EncodedExample]:
  """Tokenizes questions and paragraphs, each paragraph once."""
  queries = tokenizer.encode_batch(e.question_text for e in examples)
  documents = _encode_documents(examples, tokenizer)
  for example, query, document in zip(examples, queries, documents):
    span = -1, -1
    if is_training and not example.is_impossible:
      if document.offsets is None:
        span = _find_words_of_answer(example, document, tokenizer)
      else:
        span = _find_answer(example, document.offsets)
    yield EncodedExample(query, document, *span, example.is_impossible)


def _encode_documents(
  examples: Iterable[SquadExample], tokenizer: tokenization.Tokenizer
) -> Iterator[_Document]:
  """Yields the paragraph of each example, tokenized once."""
  groups = [
    list(group)
    for _, group in itertools.groupby(examples, lambda e: id(e.doc_tokens))
  ]
  firsts = [group[0] for group in groups]
  if tokenizer.words_are_independent:
    words = (example.doc_tokens for example in firsts)
    documents = itertools.starmap(_Document, tokenizer.encode_words(words))
  else:
    texts = [example.context for example in firsts]
    encoded = tokenizer.encode_with_offsets(texts)
    documents = map(_with_words, texts, encoded)
  for group, document in zip(groups, documents):
    yield from itertools.repeat(document, len(group))


def _with_words(text: str, encoded) -> _Document:
  """A paragraph of which the ids and offsets are known."""
  ids, offsets = encoded
  _, starts = squad_files.split_words(text)
  words = [max(bisect.bisect(starts, start) - 1, 0) for start, _ in offsets]
  return _Document(ids, words, offsets)


def _find_answer(
  example: SquadExample, offsets: Sequence[tuple[int, int]]
) -> tuple[int, int]:
  """First and last piece of the answer, by its characters."""
  first = example.answer_start
  last = first + len(example.orig_answer_text) - 1
  found = [
    index
    for index, (start, end) in enumerate(offsets)
    if start <= last and end > first
  ]
  return (found[0], found[-1]) if found else (-1, -1)


def _find_words_of_answer(
  example: SquadExample, document: _Document, tokenizer
) -> tuple[int, int]:
  """First and last piece of the answer, in its words."""
  start = document.first_of_word(example.start_position)
  end = document.first_of_word(example.end_position + 1) - 1
  answer = tokenizer.encode(example.orig_answer_text)
  # A Chinese paragraph is a word or two, in which the answer may occur several
  # times.
  word = example.doc_tokens[example.start_position]
  exact = start + len(tokenizer.encode(word[: example.answer_offset]))
  if document.ids[exact : exact + len(answer)] == answer:
    start = exact
  return improve_answer_span(document.ids, start, end, answer)


def improve_answer_span(
  doc_tokens: Sequence[Any],  # pieces of the paragraph, or their ids
  input_start: int,
  input_end: int,  # inclusive
  answer_tokens: Sequence[Any],
) -> tuple[int, int]:
  """Narrows the span of the answer's words to the pieces of the answer."""
  # Words are split at white space, so a word may have pieces before and after
  # the answer: "1895" in "(1895-1943).".
  answer = list(answer_tokens)
  for start in range(input_start, input_end - len(answer) + 2):
    if answer and list(doc_tokens[start : start + len(answer)]) == answer:
      return start, start + len(answer) - 1
  return input_start, input_end


# Examples to windows


def convert_examples_to_windows(
  examples: Sequence[SquadExample],
  tokenizer: tokenization.Tokenizer,
  settings: WindowSettings,
  num_workers: int = 1,
  show_progress: bool = False,
) -> Windows:
  """Creates the windows of all questions in their order, as columns."""
  check_settings(settings, tokenizer.special_tokens.num(is_pair=True))
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
    bar = show_progress and stack.enter_context(
      terminal.progress(len(examples), "questions")
    )
    for (_, chunk), part in zip(chunks, converted):
      parts.append(part)
      if bar:
        bar.update(len(chunk))
  return Windows(*map(np.concatenate, zip(*parts)))


def _convert_chunk(
  tokenizer: tokenization.Tokenizer,
  settings: WindowSettings,
  first_index: int,
  examples: Sequence[SquadExample],
) -> Windows:
  """Creates the windows of questions numbered from `first_index`."""
  rows = [
    row
    for example_index, example in enumerate(
      encode_examples(examples, tokenizer, settings.is_training), first_index
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
  tokenizer: tokenization.Tokenizer,
  settings: WindowSettings,
) -> Iterator[tuple[tuple[int, ...], np.ndarray, np.ndarray, np.ndarray]]:
  """Yields the row, ids, words and `is_max_context` of each window."""
  special, document = tokenizer.special_ids, example.document
  query = example.query[: settings.max_query_length]
  first_of_doc = len(query) + special.num_before_second
  room = settings.max_seq_length - first_of_doc - 1
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
        shift = first_of_doc - start
        positions = (example.start + shift, example.end + shift)
    numbers = (
      example_index,
      index,
      start,
      len(query),
      len(example.query) - len(query),
      first_of_doc + length + 1,
      *positions,
      example.is_impossible,
    )
    first = max(index - reach, 0)
    is_max_context = check_is_max_context(
      doc_spans[first : index + reach + 1],
      index - first,
      np.arange(start, stop),
    )
    ids, _ = special.join(query, document.ids[start:stop])
    words = [-1] * first_of_doc + document.words[start:stop] + [-1]
    # Arrays, since a long paragraph has thousands of windows.
    yield (
      numbers,
      np.array(ids, np.int32),
      np.array(words, np.int32),
      np.array([False] * first_of_doc + is_max_context + [False]),
    )


def check_is_max_context(
  doc_spans: Sequence[DocSpan],  # parts of the paragraph, by window
  cur_span_index: int,  # the window
  position: int | np.ndarray,  # of a token in the paragraph, or int [tokens]
) -> bool | list[bool]:
  """Returns whether a window shows a token with the most context of all."""
  # Context is the smaller of the numbers of tokens before and after the token
  # in the window, plus a hundredth of the window's length: of windows with the
  # same context the longer one wins, but 100 tokens of length outweigh one of
  # context. Ties go to the first window.
  position = np.asarray(position)
  columns = [(span.start, span.length) for span in doc_spans]
  starts, lengths = np.array(columns).T[:, :, np.newaxis]
  before = position - starts  # [windows, tokens]
  after = lengths - 1 - before
  context = np.minimum(before, after)
  scores = np.where(context < 0, -np.inf, context + 0.01 * lengths)
  score = scores[cur_span_index]
  is_max = (score >= 0) & (scores.argmax(axis=0) == cur_span_index)
  return is_max.reshape(position.shape).tolist()


# Records


def record_layout(max_seq_length: int, is_training: bool) -> tf_records.Layout:
  """Layout of the records of windows of S tokens, with answers to train on."""
  numbers = ["unique_ids"]
  if is_training:
    numbers += ["start_positions", "end_positions", "is_impossible"]
  return tf_records.token_layout(max_seq_length) | dict.fromkeys(
    numbers, tf_records.Feature()
  )


def window_records(
  windows: Windows,
  max_seq_length: int,
  tokenizer: tokenization.Tokenizer,
  rows: Iterable[int] | None = None,
) -> Iterator[dict[str, Any]]:
  """Yields the features of windows by TFRecord keys, numbered in order."""
  special = tokenizer.special_tokens
  ends = np.cumsum(windows.length).tolist()
  if rows is None:
    rows = range(len(ends))
  for unique_id, row in enumerate(rows, FIRST_UNIQUE_ID):
    length = int(windows.length[row])
    # Of the paragraph.
    first = int(windows.query_length[row]) + special.num_before_second
    ids = windows.ids[ends[row] - length : ends[row]].tolist()
    segment_ids = [0] * first + [special.second_segment] * (length - first)
    yield {
      "unique_ids": unique_id,
      **model_inputs.token_features(ids, segment_ids, max_seq_length),
      "start_positions": int(windows.start_position[row]),
      "end_positions": int(windows.end_position[row]),
      "is_impossible": int(windows.is_impossible[row]),
    }


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


def find_incomplete_questions(
  windows: Windows,
) -> tuple[np.ndarray, np.ndarray]:
  """Indices of truncated questions, and of those with a lost answer."""
  truncated = windows.example_index[windows.num_truncated_query_tokens > 0]
  answerable = windows.example_index[
    (windows.start_position >= 0) & (windows.is_impossible == 0)
  ]
  answered = windows.example_index[windows.start_position > 0]
  return np.unique(truncated), np.setdiff1d(answerable, answered)


def audit(
  examples: Sequence[SquadExample],
  tokenizer: tokenization.Tokenizer,
  max_seq_lengths: Sequence[int],
  doc_strides: Sequence[int],
  max_query_length: int,
) -> list[dict[str, int]]:
  """Counts windows and lost answers for every window length and stride."""
  encoded = [
    (len(e.query), len(e.document.ids), e.start, e.end)
    for e in encode_examples(examples, tokenizer, is_training=True)
  ]
  rows = []
  num_special = tokenizer.special_tokens.num(is_pair=True)
  for length, stride in itertools.product(max_seq_lengths, doc_strides):
    settings = WindowSettings(length, stride, max_query_length, True)
    check_settings(settings, num_special)
    num_windows = num_lost = 0
    for query_length, num_tokens, start, end in encoded:
      room = length - min(query_length, max_query_length) - num_special
      spans = model_inputs.make_doc_spans(num_tokens, room, stride)
      num_windows += len(spans)
      num_lost += start >= 0 and not any(
        first <= start and end < first + size for first, size in spans
      )
    rows.append(
      {
        "max_seq_length": length,
        "doc_stride": stride,
        "questions": len(examples),
        "windows": num_windows,
        "questions truncated": sum(
          row[0] > max_query_length for row in encoded
        ),
        "answers in no window": num_lost,
      }
    )
  return rows


# Saved logits, to decode them again


def save_logits(path: str, windows: Windows, logits: np.ndarray) -> None:
  """Saves start and end logits of windows, float32 [2, windows, S], as .npz."""
  unique_ids = np.arange(logits.shape[1]) + FIRST_UNIQUE_ID
  with atomic_write(path, "wb") as file:
    np.savez(
      file,
      key=_digest(windows),
      unique_ids=unique_ids,
      start_logits=logits[0],
      end_logits=logits[1],
    )


def load_logits(path: str, windows: Windows) -> np.ndarray:
  """Loads logits saved for the same windows: float32 [2, windows, S]."""
  with open_any(path, "rb") as file:
    try:
      with np.load(file) as arrays:
        saved_key = arrays["key"].item()
        logits = np.stack([arrays["start_logits"], arrays["end_logits"]])
    except Exception as error:  # damaged files can raise almost anything
      raise InputError(
        f"{path}: not a file of --save_logits. Name one, or predict again"
        " without --from_logits"
      ) from error
  if saved_key != _digest(windows):
    raise InputError(
      f"{path}: is of other questions or other windows. Pass the flags with"
      " which it was saved (data, vocabulary, lengths), or save it again"
    )
  return logits


def _digest(windows: Windows) -> str:
  digest = hashlib.sha256()
  for column in windows:
    digest.update(column.tobytes())
  return digest.hexdigest()
