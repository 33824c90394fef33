"""Encodes text as ids, mask and segment ids; joins the outputs of windows.

Imports no TensorFlow.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

import tokenization
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data.tf_records import TOKEN_FEATURES
from bertlib.settings.common import TRUNCATE, LongTextSettings

# Names of `TOKEN_FEATURES` in TensorFlow Hub modules.
HUB_NAMES = dict(
  zip(TOKEN_FEATURES, ("input_word_ids", "input_mask", "input_type_ids"))
)

Item = TypeVar("Item")

# Windows of a text above which a warning names it.
_MANY_WINDOWS = 1000


class EncodedPair(NamedTuple):
  """Model inputs of a text or a pair of texts."""

  input_ids: list[int]  # [CLS] A [SEP] or [CLS] A [SEP] B [SEP], padding is 0
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
  (row,) = encode_pairs(tokenizer, [(text_a, text_b)], max_seq_length)
  return row


def encode_pairs(
  tokenizer: tokenization.Tokenizer,
  pairs: Iterable[Sequence[str | None]],  # see `encode_windows`
  max_seq_length: int,
  cutting: LongTextSettings = TRUNCATE,
  pads: bool = True,
) -> Iterator[EncodedPair]:
  """Yields the rows of `encode_windows`, one after the other."""
  return itertools.chain.from_iterable(
    encode_windows(tokenizer, pairs, max_seq_length, cutting, pads)
  )


def encode_windows(
  tokenizer: tokenization.Tokenizer,
  # The last two as in `encode_pair`; the third, if there is one, is the prompt
  # with which the first begins.
  pairs: Iterable[Sequence[str | None]],
  max_seq_length: int,
  cutting: LongTextSettings,
  pads: bool = True,  # rows to `max_seq_length`
) -> Iterator[list[EncodedPair]]:
  """Encodes texts and pairs: the rows of each, several only of windows."""
  special, encode = tokenizer.special_ids, functools.cache(tokenizer.encode)
  if max_seq_length < special.num():
    raise InputError(
      f"max_seq_length={max_seq_length}: must be at least {special.num()}"
    )
  length = max_seq_length if pads else 0
  pairs, read = itertools.tee(pairs)
  ids = tokenizer.encode_batch(text or "" for pair in read for text in pair[:2])
  for (_, _, *prompts), ids_a, ids_b in zip(pairs, ids, ids):
    num_prompt = 0
    for prompt in filter(None, prompts):
      is_equal = map(operator.eq, encode(prompt), ids_a)
      num_prompt = len([*itertools.takewhile(bool, is_equal)])
    room = max_seq_length - special.num(bool(ids_b))
    num_lost, parts = cut(ids_a, ids_b, room, cutting, num_prompt)
    rows = []
    for pair in parts:
      features = token_features(*special.join(*pair), length)
      rows.append(EncodedPair(**features, num_truncated_tokens=num_lost))
      num_lost = 0
    yield rows


def cut(
  tokens_a: list[Any],
  tokens_b: list[Any],
  room: int,
  cutting: LongTextSettings,
  num_prompt: int = 0,  # first tokens of the first text, kept in each row
) -> tuple[int, list[tuple[list[Any], list[Any]]]]:
  """Number of tokens in no row, and the rows of two texts, of `room` tokens."""
  lengths = len(tokens_a), len(tokens_b)
  if sum(lengths) <= room:  # as most do
    return 0, [(tokens_a, tokens_b)]
  if not cutting.has_windows or room <= 0:
    kept = truncated_lengths(*lengths, room, cutting.keeps_first)
    parts = []
    texts = zip((tokens_a, tokens_b), kept, (num_prompt, 0))
    for tokens, keep, prompt in texts:
      head = keep
      if cutting.long_texts == "head_tail":
        # A quarter, rounded, from the start, the rest from the end: the best of
        # the ways to cut of Sun et al. 2019, section 5.3.1. The prompt is kept,
        # and not counted.
        prompt = min(prompt, keep)
        head = prompt + (keep - prompt + 2) // 4
      parts.append(tokens[:head] + tokens[len(tokens) - keep + head :])
    return sum(lengths) - sum(kept), [tuple(parts)]
  # Of equal texts the second one is divided, as in `truncated_lengths`; with
  # `keeps_first` the second one if it has tokens.
  is_second = lengths[1] >= (1 if cutting.keeps_first else lengths[0])
  divided, whole = (tokens_b, tokens_a)[:: 1 if is_second else -1]
  other = whole[: max(room // 2, room - len(divided))]
  num_prompt = 0 if is_second else min(num_prompt, (room - len(other)) // 2)
  head, rest = divided[:num_prompt], divided[num_prompt:]
  room -= len(other) + len(head)
  stride = cutting.doc_stride or max(room // 2, 1)
  spans = make_doc_spans(len(rest), room, stride)
  windows = [head + rest[start : start + length] for start, length in spans]
  return len(whole) - len(other), [
    (other, window) if is_second else (window, other) for window in windows
  ]


def warn_of_many_windows(where: str, num_windows: int) -> None:
  """Warns of a text with so many windows that it may be no text."""
  if num_windows > _MANY_WINDOWS:
    logging.warning(
      "%s: has %d windows. Is it one text? --long_texts=head_tail would take"
      " one row for it",
      where,
      num_windows,
    )


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
  stride = min(room, doc_stride)
  starts = range(0, max(num_tokens - room, 0) + stride, stride)
  return [
    DocSpan(start, min(num_tokens - start, room))
    for start in (starts if num_tokens else ())
  ]


def truncated_lengths(
  length_a: int, length_b: int, room: int, keeps_first: bool = False
) -> tuple[int, int]:
  """Lengths of two texts, in tokens, after truncation to `room` in total."""
  room = max(room, 0)
  # The longer text loses tokens first; of equal ones, the second, as in the
  # original. With `keeps_first` the second one does, but for a token.
  least_b = min(room, 1) if keeps_first else room // 2
  keep_b = min(length_b, max(least_b, room - length_a))
  return min(length_a, room - keep_b), keep_b


def _truncate_seq_pair(
  tokens_a: list[Any], tokens_b: list[Any], max_length: int
) -> None:
  """Truncates two lists of tokens in place, see `truncated_lengths`."""
  keep_a, keep_b = truncated_lengths(len(tokens_a), len(tokens_b), max_length)
  del tokens_a[keep_a:]
  del tokens_b[keep_b:]


# Outputs of windows


def by_text(
  rows: Iterable[Item],  # of windows
  num_windows: Iterable[int],  # of each text
) -> Iterator[list[Item]]:
  """Yields the rows of the windows of each text."""
  rows = iter(rows)
  for count in num_windows:
    yield [*itertools.islice(rows, count)]
  next(rows, None)  # at the end, Estimator closes its session


def join_vectors(
  vectors: Iterable[np.ndarray],  # of windows, [width] each
  num_windows: Iterable[int],  # of each text
  normalizes: bool,  # whether vectors have length 1
) -> Iterator[np.ndarray]:
  """Yields the vector of each text: the mean of those of its windows."""
  for vector, *others in by_text(vectors, num_windows):
    if others:
      vector = np.mean([vector, *others], axis=0)
      if normalizes:
        vector /= max(np.linalg.norm(vector), 1e-12)
    yield vector
