"""Word pieces of questions and paragraphs, and answer spans in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import tokenization
from bertlib.data.model_inputs import DocSpan
from bertlib.tasks.squad.squad_examples import SquadExample

# Word pieces of an example


class _Document(NamedTuple):
  """Word pieces of a paragraph: ids, word indices, first piece of each word."""

  ids: list[int]
  words: list[int]
  first_of_word: list[int]


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
  examples: Iterable[SquadExample],  # grouped by paragraph
  tokenizer: tokenization.FullTokenizer,
  is_training: bool,
) -> Iterator[EncodedExample]:
  """Tokenizes questions and paragraphs, each paragraph once."""
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
      answer = tokenizer.encode(example.orig_answer_text)
      exact = start + _pieces_before_answer(example, tokenizer)
      if document.ids[exact : exact + len(answer)] == answer:
        start = exact
      start, end = improve_answer_span(document.ids, start, end, answer)
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


def _pieces_before_answer(
  example: SquadExample, tokenizer: tokenization.FullTokenizer
) -> int:
  """Number of word pieces before the answer in its first word."""
  # A Chinese paragraph is a word or two, in which the answer may occur several
  # times.
  word = example.doc_tokens[example.start_position]
  return len(tokenizer.encode(word[: example.answer_offset]))


def improve_answer_span(
  doc_tokens: Sequence[Any],
  input_start: int,
  input_end: int,
  answer_tokens: Sequence[Any],
) -> tuple[int, int]:
  """Narrows the span of the answer's words to the pieces of the answer.

  Words are split at white space, so a word may have pieces before and after the
  answer: "1895" in "(1895-1943).".

  Args:
    doc_tokens: pieces of the paragraph, or their ids.
    input_start: index of the first piece of the answer's words.
    input_end: index of the last, inclusive.
    answer_tokens: pieces of the answer, or their ids.

  Returns:
    Indices of the answer's first and last piece; `input_start` and `input_end`
    if it is not found.
  """
  answer = list(answer_tokens)
  for start in range(input_start, input_end - len(answer) + 2):
    if answer and list(doc_tokens[start : start + len(answer)]) == answer:
      return start, start + len(answer) - 1
  return input_start, input_end


def _improve_answer_span(
  doc_tokens: Sequence[str],
  input_start: int,
  input_end: int,
  tokenizer: tokenization.FullTokenizer,
  orig_answer_text: str,
) -> tuple[int, int]:
  """`improve_answer_span` with the arguments of google-research/bert."""
  answer_tokens = tokenizer.tokenize(orig_answer_text)
  return improve_answer_span(doc_tokens, input_start, input_end, answer_tokens)


def check_is_max_context(
  doc_spans: Sequence[DocSpan], cur_span_index: int, position: int | np.ndarray
) -> bool | list[bool]:
  """Returns whether a window shows a token with the most context of all.

  Context is the smaller of the numbers of tokens before and after the token in
  the window, plus a hundredth of the window's length: of windows with the same
  context the longer one wins, but 100 tokens of length outweigh one of context.
  Ties go to the first window.

  Args:
    doc_spans: the parts of the paragraph that its windows cover.
    cur_span_index: index of the window.
    position: index of a token in the paragraph, or int [tokens].

  Returns:
    A bool, or a list of one per token.
  """
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
