"""Dynamic masking: new masks each time an example is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import tokenization
from bertlib.tasks.pretraining.masking import MAX_PIECES, SPAN_WEIGHTS


class Masking(NamedTuple):
  """Settings of dynamic masking."""

  tokenizer: tokenization.Tokenizer
  masked_lm_prob: float = 0.15  # fraction of the tokens to mask
  do_whole_word_mask: bool = False  # masks all pieces of a word together
  seed: int = 0
  # Parts of the masked tokens that become [MASK], become a random entry of the
  # vocabulary, and stay unchanged.
  mask_split: Sequence[int] = (80, 10, 10)
  do_span_mask: bool = False  # masks spans of whole words


def remask(batch: Mapping[str, Any], numbers, masking: Masking):
  """Replaces the masks of a batch, given the examples' numbers, int64 [B]."""
  # Examples are counted over all epochs. The draws are a function of the number
  # and the seed.
  seq_length = batch["input_ids"].shape[1]
  num_predictions = batch["masked_lm_positions"].shape[1]
  shape = [3 + masking.do_span_mask, seq_length]
  draws = _draw(shape, masking.seed, numbers, tf.float64)
  word_order, fate, entry, *length = tf.unstack(draws, axis=1)  # [B, S] each
  input_ids = original_ids(batch)
  words = _find_words(input_ids, batch["input_mask"], masking)
  room = _num_wanted(batch["input_mask"], num_predictions, masking)
  if masking.do_span_mask:
    span_of = _draw_spans(words, word_order, *length, room)
    span = tf.gather(span_of, words.index, batch_dims=1)
    is_masked = words.is_part & (span >= 0)
    # A span is replaced as a whole.
    fate = tf.gather(fate, tf.maximum(span, 0), batch_dims=1)
  else:
    is_single = not masking.do_whole_word_mask
    is_taken = _draw_words(words, word_order, room, is_single)
    is_masked = words.is_part & tf.gather(is_taken, words.index, batch_dims=1)

  num_mask, num_random, num_kept = masking.mask_split
  mask_prob, kept_prob = (
    part / (num_mask + num_random + num_kept)
    for part in (num_mask, num_mask + num_kept)
  )
  random_ids = tf.cast(entry * len(masking.tokenizer.vocab), tf.int32)
  replaced = tf.where_v2(fate < kept_prob, input_ids, random_ids)
  mask = masking.tokenizer.special_ids.mask
  replaced = tf.where_v2(fate < mask_prob, mask, replaced)

  # Positions of the masks in ascending order, then S for padding slots.
  positions = tf.where_v2(is_masked, tf.range(seq_length), seq_length)
  positions = tf.sort(positions, axis=1)[:, :num_predictions]
  padding = [[0, 0], [0, max(num_predictions - seq_length, 0)]]
  positions = tf.pad(positions, padding, constant_values=seq_length)
  is_used = positions < seq_length
  positions = tf.where_v2(is_used, positions, 0)
  labels = tf.gather(input_ids, positions, batch_dims=1)
  return {
    **batch,
    "input_ids": tf.where_v2(is_masked, replaced, input_ids),
    "masked_lm_positions": positions,
    "masked_lm_ids": tf.where_v2(is_used, labels, 0),
    "masked_lm_weights": tf.cast(is_used, tf.float32),
  }


def _draw(shape: Sequence[int], seed: int, numbers, dtype):
  """Uniform draws in [0, 1) for each number of an example, [B, *shape]."""
  return tf.map_fn(
    lambda number: tf.random.stateless_uniform(
      shape, [seed, number], dtype=dtype
    ),
    numbers,
    fn_output_signature=tf.TensorSpec(shape, dtype),
  )


def add_sampling_draws(
  batch: Mapping[str, Any], numbers, seed: int, seq_length: int
):
  """Adds `masked_lm_draws`, float32 [B, P], of each masked position."""
  # With another seed than the masks. The last batch may have fewer examples.
  numbers = numbers[: tf.shape(batch["input_ids"])[0]]
  draws = _draw([seq_length], ~seed, numbers, tf.float32)
  positions = batch["masked_lm_positions"]
  return {
    **batch,
    "masked_lm_draws": tf.gather(draws, positions, batch_dims=1),
  }


def original_ids(batch: Mapping[str, Any]):
  """Restores the tokens that the masks of a batch replace: int32 [B, S]."""
  # Padding slots have weight 0.
  slots = tf.where_v2(batch["masked_lm_weights"] > 0)  # [masks, 2]
  positions = tf.gather_nd(batch["masked_lm_positions"], slots)
  indices = tf.stack([slots[:, 0], tf.cast(positions, tf.int64)], axis=1)
  ids = tf.gather_nd(batch["masked_lm_ids"], slots)
  return tf.tensor_scatter_nd_update(batch["input_ids"], indices, ids)


class _Words(NamedTuple):
  """The words of a batch; what is of word w has the index w."""

  is_part: Any  # bool [B, S], whether a token is part of a word
  index: Any  # int32 [B, S], the word of a token, or the last one before it
  length: Any  # int32 [B, S], tokens of word w; 0 beyond the last word
  # int32 [B, S], 1 if word w does not directly follow another.
  starts_segment: Any


def _find_words(input_ids, input_mask, masking: Masking) -> _Words:
  """Finds words: tokens other than [CLS] and [SEP], or whole words."""
  special = masking.tokenizer.special_ids
  is_part = input_mask > 0
  for never_masked in (special.cls, special.sep):
    is_part &= tf.not_equal(input_ids, never_masked)
  follows_word = tf.pad(is_part[:, :-1], [[0, 0], [1, 0]])
  starts_word = is_part
  if masking.do_whole_word_mask or masking.do_span_mask:
    is_piece = np.array(masking.tokenizer.continues_word)
    starts_word &= ~(tf.gather(is_piece, input_ids) & follows_word)
    if not masking.tokenizer.words_are_independent:
      index = _word_of(starts_word)
      lengths = _count_per_word(is_part, index)
      is_long = tf.gather(lengths, index, batch_dims=1) > MAX_PIECES
      starts_word |= is_part & is_long
  index = _word_of(starts_word)
  return _Words(
    is_part,
    index,
    _count_per_word(is_part, index),
    _count_per_word(is_part & ~follows_word, index),
  )


def _word_of(starts_word):
  """Index of the word of each token, int32 [B, S]; see `_Words`."""
  index = tf.cumsum(tf.cast(starts_word, tf.int32), axis=1) - 1
  return tf.maximum(index, 0)


def _count_per_word(is_counted, words):
  """Number of tokens of each word that are counted, int32 [B, S]."""
  batch_size, seq_length = modeling.get_shape_list(words)
  rows = tf.range(batch_size)[:, tf.newaxis] * seq_length
  counts = tf.math.unsorted_segment_sum(
    tf.cast(is_counted, tf.int32), rows + words, batch_size * seq_length
  )
  return tf.reshape(counts, [batch_size, seq_length])


def _num_wanted(input_mask, max_predictions_per_seq: int, masking: Masking):
  """Number of tokens to mask, int32 [B]."""
  # It is `masked_lm_prob` of all, rounded to the nearest integer, at least 1.
  num_tokens = tf.reduce_sum(tf.cast(input_mask > 0, tf.float64), axis=1)
  num_wanted = tf.cast(tf.round(num_tokens * masking.masked_lm_prob), tf.int32)
  return tf.clip_by_value(num_wanted, 1, max_predictions_per_seq)


def _draw_spans(
  words: _Words,
  word_order,  # float [B, S], sort key of the word that starts a span
  length,  # float [B, S], uniform draw for the length of a span
  room,  # int32 [B], number of tokens to mask
):
  """The first word of the span of each word, int32 [B, S]; -1 for no span."""
  batch_size, seq_length = modeling.get_shape_list(words.length)
  positions = tf.range(seq_length)
  shares = np.cumsum(SPAN_WEIGHTS) / np.sum(SPAN_WEIGHTS)
  offsets = tf.range(len(shares))
  num_words = 1 + tf.reduce_sum(
    tf.cast(length[..., tf.newaxis] >= shares[:-1], tf.int32), axis=-1
  )

  def take(state, start):
    span_of, room = state
    start = start[:, tf.newaxis]
    index = start + offsets  # the words of the longest span
    is_inside = index < seq_length
    index = tf.minimum(index, seq_length - 1)
    sizes, breaks, taken_by = (
      tf.gather(of_word, index, batch_dims=1)
      for of_word in (words.length, words.starts_segment, span_of)
    )
    is_taken = is_inside & (offsets < tf.gather(num_words, start, batch_dims=1))
    is_taken &= (sizes > 0) & (taken_by < 0)
    is_taken &= (offsets == 0) | (breaks == 0)
    is_taken &= tf.cumsum(sizes, axis=1) <= room[:, tf.newaxis]
    # The span ends before the first word that cannot be part of it.
    is_taken = tf.math.cumprod(tf.cast(is_taken, tf.int32), axis=1)
    end = start + tf.reduce_sum(is_taken, axis=1, keepdims=True)
    is_new = (positions >= start) & (positions < end)
    span_of = tf.where_v2(is_new, start, span_of)
    return span_of, room - tf.reduce_sum(is_taken * sizes, axis=1)

  starts = tf.transpose(tf.argsort(word_order, axis=1))
  span_of, _ = tf.foldl(
    take, starts, (-tf.ones([batch_size, seq_length], tf.int32), room)
  )
  return span_of


def _draw_words(words: _Words, word_order, room, is_single: bool):
  """Draws words in random order, skipping any that do not fit: bool [B, S]."""
  order = tf.argsort(word_order, axis=1)
  lengths = tf.gather(words.length, order, batch_dims=1)
  if is_single:  # the loop below would take the same
    is_taken = tf.cumsum(lengths, axis=1) <= room[:, tf.newaxis]
    return tf.gather(is_taken, tf.argsort(order), batch_dims=1)

  def take_if_it_fits(state, word):
    num_taken, _ = state
    length = lengths[:, word]
    fits = num_taken + length <= room
    num_taken += tf.where_v2(fits, length, 0)
    return num_taken, tf.cast(fits, tf.float32)

  _, fits = tf.scan(
    take_if_it_fits,
    tf.range(modeling.get_shape_list(lengths)[1]),
    initializer=(tf.zeros_like(room), tf.zeros_like(room, tf.float32)),
  )
  # As float32, because TensorFlow with oneDNN logs an error line where it
  # transposes other types.
  is_taken = tf.transpose(fits) > 0
  # Back from random order to the order of the text.
  return tf.gather(is_taken, tf.argsort(order), batch_dims=1)
