"""Masks of pretraining data: single tokens, whole words or spans of words.

Imports no TensorFlow.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

from absl import logging

import tokenization


def create_masked_lm_predictions(
  tokens: Sequence[str],
  masked_lm_prob: float,
  max_predictions_per_seq: int,
  vocab_words: Sequence[str],
  rng: random.Random,
  do_whole_word_mask: bool = False,
  do_span_mask: bool = False,
  mask_split: Sequence[int] = (80, 10, 10),
  special: tokenization.SpecialTokens = tokenization.BERT_TOKENS,
) -> tuple[list[str], list[int], list[str]]:
  """Masks tokens at random: 80% [MASK], 10% a random piece, 10% unchanged.

  Args:
    tokens: an instance; its [CLS] and [SEP] are never masked.
    masked_lm_prob: fraction of the tokens to mask; at least one is masked.
    max_predictions_per_seq: maximum number of masked tokens.
    vocab_words: all entries of the vocabulary.
    rng: source of all draws.
    do_whole_word_mask: whether to mask all pieces of a word together. Words
      that would exceed the number of tokens to mask are skipped. The
      replacement is drawn for each piece.
    do_span_mask: whether to mask spans of whole words, see `_draw_spans`; the
      replacement is drawn once per span.
    mask_split: parts of the masked tokens that become [MASK], become a random
      piece, and stay unchanged.
    special: the entries for [CLS], [SEP] and [MASK].

  Returns:
    The tokens after masking; the masked positions, ascending; and the original
    token at each of these positions.
  """
  num_to_predict = min(
    num_masks(len(tokens), masked_lm_prob), max_predictions_per_seq
  )
  draw_words = _draw_words if do_whole_word_mask else _draw_single_tokens
  draw_words = _draw_spans if do_span_mask else draw_words
  num_mask, num_random, num_kept = mask_split
  mask_prob = num_mask / sum(mask_split)
  kept_prob = num_kept / (num_random + num_kept or 1)  # of the others
  uniform = rng.random
  output_tokens = list(tokens)
  masked: list[int] = []
  for word in draw_words(tokens, num_to_predict, rng, special):
    for index in word:
      if index == word[0] or not do_span_mask:
        is_mask = uniform() < mask_prob
        is_kept = not is_mask and uniform() < kept_prob
      if is_mask:
        output_tokens[index] = special.mask
      elif not is_kept:
        output_tokens[index] = vocab_words[rng.randint(0, len(vocab_words) - 1)]
      masked.append(index)
  masked.sort()
  return output_tokens, masked, [tokens[index] for index in masked]


def num_masks(num_tokens: int, masked_lm_prob: float) -> int:
  """Number of tokens of an instance to mask, if there is room for them."""
  return max(1, round(num_tokens * masked_lm_prob))


def warn_of_cut_masks(
  num_cut: int, num_wanted: int, settings: Any, length: int
) -> None:
  """Warns if --max_predictions_per_seq cuts off more than 2% of the masks."""
  if num_cut * 50 > num_wanted:
    logging.warning(
      "--max_predictions_per_seq=%d: cuts off %.0f%% of the masks. Give %d,"
      " both to create_pretraining_data.py and to run_pretraining.py",
      settings.max_predictions_per_seq,
      100 * num_cut / num_wanted,
      num_masks(length, settings.masked_lm_prob),
    )


def _draw_single_tokens(
  tokens: Sequence[str],
  num_to_predict: int,
  rng: random.Random,
  special: tokenization.SpecialTokens,
) -> list[list[int]]:
  """Draws positions, each as a word of one token."""
  never_masked = {special.cls, special.sep}
  positions = [
    index for index, token in enumerate(tokens) if token not in never_masked
  ]
  shuffle(positions, rng)
  return [[index] for index in positions[:num_to_predict]]


def _draw_words(
  tokens: Sequence[str],
  num_to_predict: int,
  rng: random.Random,
  special: tokenization.SpecialTokens,
) -> list[list[int]]:
  """Draws whole words, as lists of positions, while they fit."""
  words = _find_words(tokens, special)
  shuffle(words, rng)
  drawn = []
  room = num_to_predict
  for word in words:
    if not room:
      break
    if len(word) <= room:
      drawn.append(word)
      room -= len(word)
  return drawn


def _find_words(
  tokens: Sequence[str], special: tokenization.SpecialTokens
) -> list[list[int]]:
  """Positions of each word: a piece and the "##" pieces after it."""
  mark, never_masked = tokenization.CONTINUATION, {special.cls, special.sep}
  words: list[list[int]] = []
  for index, token in enumerate(tokens):
    # `in` is three times as fast as `startswith`, and most tokens lack "##".
    if mark in token and words and token.startswith(mark):
      words[-1].append(index)
    elif token not in never_masked:
      words.append([index])
  return words


# Words of other tokenizers than WordPiece that are longer are masked by pieces.
MAX_PIECES = 10

# Spans have 1 to 10 words, a geometric distribution with p = 0.2.
_SPAN_LENGTHS = range(1, 11)
SPAN_WEIGHTS = [0.8**length for length in _SPAN_LENGTHS]


def _draw_spans(
  tokens: Sequence[str],
  num_to_predict: int,
  rng: random.Random,
  special: tokenization.SpecialTokens,
) -> list[list[int]]:
  """Draws spans of words while they fit (Joshi et al. 2020, section 3.1)."""
  words = _find_words(tokens, special)
  starts = list(range(len(words)))
  shuffle(starts, rng)
  spans, taken, room = [], set(), num_to_predict
  for start in starts:
    if not room:
      break
    (length,) = rng.choices(_SPAN_LENGTHS, SPAN_WEIGHTS)
    span: list[int] = []
    for number, word in enumerate(words[start : start + length], start):
      # A span ends before a masked word, and before [SEP].
      follows = not span or word[0] == span[-1] + 1
      if number in taken or not follows or len(word) > room:
        break
      span += word
      taken.add(number)
      room -= len(word)
    if span:
      spans.append(span)
  return spans


@functools.lru_cache(maxsize=1024)
def _shuffle_steps(length: int) -> list[tuple[int, int]]:
  return [(i, (i + 1).bit_length()) for i in range(length - 1, 0, -1)]


def shuffle(items: list, rng: random.Random) -> None:
  """Equals `rng.shuffle`, draw for draw, in less than half the time."""
  # For short lists: the steps are cached per length.
  getrandbits = rng.getrandbits
  for i, num_bits in _shuffle_steps(len(items)):
    j = getrandbits(num_bits)
    while j > i:
      j = getrandbits(num_bits)
    items[i], items[j] = items[j], items[i]
