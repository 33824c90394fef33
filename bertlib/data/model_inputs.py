"""Encodes text as input ids, mask and segment ids. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli.errors import InputError

# The features with one value per token, padded at the end.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")

# Their names in TensorFlow Hub modules.
HUB_NAMES = {
  "input_ids": "input_word_ids",
  "input_mask": "input_mask",
  "segment_ids": "input_type_ids",
}


class EncodedPair(NamedTuple):
  """Model inputs of a text or a pair of texts."""

  input_ids: list[int]  # [CLS] A [SEP] or [CLS] A [SEP] B [SEP], padded with 0
  input_mask: list[int]  # 1 at tokens, 0 at padding
  segment_ids: list[int]  # 1 at the tokens of B and its [SEP], else 0
  num_truncated_tokens: int

  @property
  def num_tokens(self) -> int:
    """Number of tokens after truncation, without padding."""
    return sum(self.input_mask)


def encode_pair(
  tokenizer: tokenization.Tokenizer,
  text_a: str,
  text_b: str | None,  # None or without tokens: there is only one
  max_seq_length: int,
) -> EncodedPair:
  """Encodes one or two texts, see `encode_pairs`."""
  ids = tokenizer.encode(text_a), tokenizer.encode(text_b or "")
  return _join(tokenizer.special_ids, *ids, max_seq_length)


def encode_pairs(
  tokenizer: tokenization.Tokenizer,
  pairs: Iterable[Sequence[str | None]],  # the last ones as in `encode_pair`
  max_seq_length: int,
) -> Iterator[EncodedPair]:
  """Encodes texts and pairs, truncated or padded to `max_seq_length`."""
  special = tokenizer.special_ids
  ids = tokenizer.encode_batch(text or "" for pair in pairs for text in pair)
  return (
    _join(special, ids_a, ids_b, max_seq_length)
    for ids_a, ids_b in zip(ids, ids)
  )


def _join(
  special: tokenization.SpecialTokens,
  ids_a: list[int],
  ids_b: list[int],
  max_seq_length: int,
) -> EncodedPair:
  """Truncates, joins and pads the ids of a text, or of a pair."""
  if max_seq_length < special.num():
    raise InputError(
      f"max_seq_length={max_seq_length}: must be at least {special.num()}"
    )
  room = max_seq_length - special.num(bool(ids_b))
  keep_a, keep_b = truncated_lengths(len(ids_a), len(ids_b), room)
  num_truncated_tokens = len(ids_a) - keep_a + len(ids_b) - keep_b
  joined = special.join(ids_a[:keep_a], ids_b[:keep_b])
  features = token_features(*joined, max_seq_length)
  return EncodedPair(**features, num_truncated_tokens=num_truncated_tokens)


def as_batch(rows: Sequence[EncodedPair]) -> dict[str, Any]:
  """`TOKEN_FEATURES` of rows, int32 [B, S]; S is that of the longest row."""
  import numpy as np  # half of the imports of data making, which needs none

  longest = max(row.num_tokens for row in rows)
  return {
    name: np.array([getattr(row, name)[:longest] for row in rows], np.int32)
    for name in TOKEN_FEATURES
  }


def token_features(
  ids: Sequence[int], segment_ids: Sequence[int], length: int
) -> dict[str, list[int]]:
  """`TOKEN_FEATURES` of a sequence, padded with 0."""
  return {
    "input_ids": pad(ids, length),
    "input_mask": pad([1] * len(segment_ids), length),
    "segment_ids": pad(segment_ids, length),
  }


def pad(values: Sequence[int], length: int, filler: int = 0) -> list[int]:
  """Appends `filler` up to `length` values."""
  return [*values, *[filler] * (length - len(values))]


class DocSpan(NamedTuple):
  """The part of a text that a window covers, in word pieces."""

  start: int
  length: int


def make_doc_spans(
  num_tokens: int, room: int, doc_stride: int
) -> list[DocSpan]:
  """Spans of at most `room` of `num_tokens` pieces, `doc_stride` apart."""
  doc_spans = []
  start = 0
  while start < num_tokens:
    length = min(num_tokens - start, room)
    doc_spans.append(DocSpan(start, length))
    if start + length == num_tokens:
      break
    start += min(length, doc_stride)
  return doc_spans


def truncated_lengths(
  length_a: int, length_b: int, room: int
) -> tuple[int, int]:
  """Lengths of two texts, in tokens, after truncation to `room` in total."""
  room = max(room, 0)
  # The longer text loses tokens first; of equal ones, the second, as in the
  # original.
  keep_b = min(length_b, max(room // 2, room - length_a))
  return min(length_a, room - keep_b), keep_b


def _truncate_seq_pair(
  tokens_a: list[Any], tokens_b: list[Any], max_length: int
) -> None:
  """Truncates two lists of tokens in place, see `truncated_lengths`."""
  keep_a, keep_b = truncated_lengths(len(tokens_a), len(tokens_b), max_length)
  del tokens_a[keep_a:]
  del tokens_b[keep_b:]
