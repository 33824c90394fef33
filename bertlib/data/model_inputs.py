"""Text to ids, mask and segments of a model. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib import text_files
from bertlib.errors import InputError

# The features with a place for every token, which end in padding.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")

# TensorFlow Hub's name of each of them.
HUB_NAMES = {
  "input_ids": "input_word_ids",
  "input_mask": "input_mask",
  "segment_ids": "input_type_ids",
}


# Text to ids


# Between the two texts of a pair on one line.
SEPARATOR = " ||| "


def read_pairs(
  path: str, encoding: text_files.Encoding = text_files.UTF8
) -> Iterator[tuple[str, str | None]]:
  """Reads texts and pairs of texts, one per line.

  Args:
    path: the file, unpacked if its name ends in .gz; "-" for standard input.
    encoding: of the file.

  Yields:
    See `split_pair`, of blank lines too.

  Raises:
    InputError: see `text_files.read_lines`.
  """
  for line in text_files.read_lines(path, encoding):
    yield split_pair(line.strip())


def split_pair(text: str) -> tuple[str, str | None]:
  """The two texts before and after the last separator, or one and None."""
  text_a, separator, text_b = text.rpartition(SEPARATOR)
  return (text_a, text_b) if separator else (text, None)


class EncodedPair(NamedTuple):
  """A text or a pair of texts as the model takes it.

  Attributes:
    input_ids: [CLS] A [SEP] or [CLS] A [SEP] B [SEP], padded with 0.
    input_mask: 1 at tokens, 0 at padding.
    segment_ids: 1 at the tokens of B and its [SEP], else 0.
    num_cut: tokens that were truncated.
  """

  input_ids: list[int]
  input_mask: list[int]
  segment_ids: list[int]
  num_cut: int

  @property
  def num_tokens(self) -> int:
    """Number of tokens after truncation, without padding."""
    return sum(self.input_mask)


def encode_pair(
  tokenizer: tokenization.FullTokenizer,
  text_a: str,
  text_b: str | None,
  max_seq_length: int,
) -> EncodedPair:
  """Encodes one text, or two, in `max_seq_length` places.

  Args:
    tokenizer: gives the ids.
    text_a: the first text.
    text_b: the second; None, or a text without tokens, for none.
    max_seq_length: length of the result, in tokens.

  Returns:
    An `EncodedPair`.

  Raises:
    InputError: `max_seq_length` has no room for [CLS] and [SEP].
  """
  if max_seq_length < 2:
    raise InputError(f"max_seq_length={max_seq_length}: has to be 2 at least")
  ids_a = tokenizer.encode(text_a)
  ids_b = tokenizer.encode(text_b) if text_b else []
  room = max_seq_length - (3 if ids_b else 2)
  keep_a, keep_b = truncated_lengths(len(ids_a), len(ids_b), room)
  num_cut = len(ids_a) - keep_a + len(ids_b) - keep_b
  cls, sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
  first = [cls, *ids_a[:keep_a], sep]
  second = [*ids_b[:keep_b], sep] if keep_b else []
  features = token_features(first, second, max_seq_length)
  return EncodedPair(**features, num_cut=num_cut)


def token_features(
  first: Sequence[int], second: Sequence[int], length: int
) -> dict[str, list[int]]:
  """The `TOKEN_FEATURES` of one or two segments, padded with 0.

  Args:
    first: ids of the first segment, with [CLS] and [SEP].
    second: ids of the second, with [SEP]; empty for none.
    length: of the result, in tokens.
  """
  segment_ids = [0] * len(first) + [1] * len(second)
  return {
    "input_ids": pad([*first, *second], length),
    "input_mask": pad([1] * len(segment_ids), length),
    "segment_ids": pad(segment_ids, length),
  }


def pad(values: Sequence[int], length: int, filler: int = 0) -> list[int]:
  """The values with `filler` after them, up to a length."""
  return [*values, *[filler] * (length - len(values))]


class DocSpan(NamedTuple):
  """The part of a text that a window shows, in word pieces."""

  start: int
  length: int


def make_doc_spans(
  num_tokens: int, room: int, doc_stride: int
) -> list[DocSpan]:
  """Divides a text into overlapping parts.

  Args:
    num_tokens: pieces of the text.
    room: pieces that fit into a window.
    doc_stride: pieces from the start of one part to that of the next, at most.

  Returns:
    The parts.
  """
  doc_spans = []
  start = 0
  while start < num_tokens:
    length = min(num_tokens - start, room)
    doc_spans.append(DocSpan(start, length))
    if start + length == num_tokens:
      break
    start += min(length, doc_stride)
  return doc_spans


class Lengths(NamedTuple):
  """Lengths of the sequences of a data set, in tokens.

  A sequence is an example, one of its choices, or one of the windows into
  which an example is divided.

  Attributes:
    num_tokens: of each sequence, before truncation.
    limit: tokens of a sequence after truncation, at most.
    num_cut: tokens by which each example was truncated.
    examples: plural noun for what `num_cut` and `num_windows` count.
    num_windows: windows of each example; empty where an example is one
      sequence and may be truncated.
  """

  num_tokens: Sequence[int]
  limit: int
  num_cut: Sequence[int]
  examples: str = "examples"
  num_windows: Sequence[int] = ()


def truncated_lengths(
  length_a: int, length_b: int, room: int
) -> tuple[int, int]:
  """Cuts the longer of two texts until both fit; of equal ones the second.

  Args:
    length_a: of the first, in tokens.
    length_b: of the second.
    room: tokens in all.

  Returns:
    How many tokens of each stay.
  """
  room = max(room, 0)
  keep_b = min(length_b, max(room // 2, room - length_a))
  return min(length_a, room - keep_b), keep_b


def _truncate_seq_pair(
  tokens_a: list[Any], tokens_b: list[Any], max_length: int
) -> None:
  """Truncates two lists in place as `truncated_lengths` says."""
  keep_a, keep_b = truncated_lengths(len(tokens_a), len(tokens_b), max_length)
  del tokens_a[keep_a:]
  del tokens_b[keep_b:]
