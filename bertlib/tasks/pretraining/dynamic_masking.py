"""Dynamic masking: new masks each time an example is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling


class Masking(NamedTuple):
  """Settings of dynamic masking."""

  vocab: Mapping[str, int]  # entry -> id
  masked_lm_prob: float = 0.15  # fraction of the tokens to mask
  do_whole_word_mask: bool = False  # masks all pieces of a word together
  seed: int = 0
  # Parts of the masked tokens that become [MASK], become a random entry of the
  # vocabulary, and stay unchanged.
  mask_split: Sequence[int] = (80, 10, 10)
  # Fraction of the tokens to mask at the last step; None for a constant one.
  masked_lm_prob_end: float | None = None
  num_train_steps: int = 1

  def at_step(self, step) -> Masking:
    """The masking with the fraction of a step, int64 []."""
    if self.masked_lm_prob_end is None:
      return self
    done = tf.cast(step, tf.float64) / max(self.num_train_steps - 1, 1)
    change = self.masked_lm_prob_end - self.masked_lm_prob
    return self._replace(masked_lm_prob=self.masked_lm_prob + change * done)


def remask(batch: Mapping[str, Any], numbers, masking: Masking):
  """Replaces the masks of a batch, given the examples' numbers, int64 [B]."""
  # Examples are counted over all epochs. The draws are a function of the number
  # and the seed.
  seq_length = batch["input_ids"].shape[1]
  num_predictions = batch["masked_lm_positions"].shape[1]
  draws = tf.map_fn(
    lambda number: tf.random.stateless_uniform(
      [3, seq_length], [masking.seed, number], dtype=tf.float64
    ),
    numbers,
    fn_output_signature=tf.TensorSpec([3, seq_length], tf.float64),
  )
  word_order, fate, entry = tf.unstack(draws, axis=1)  # [B, S] each
  input_ids = original_ids(batch)
  is_masked = choose_masked(
    input_ids, batch["input_mask"], word_order, num_predictions, masking
  )

  num_mask, num_random, num_kept = masking.mask_split
  mask_prob, kept_prob = (
    part / (num_mask + num_random + num_kept)
    for part in (num_mask, num_mask + num_kept)
  )
  random_ids = tf.cast(entry * len(masking.vocab), tf.int32)
  replaced = tf.where_v2(fate < kept_prob, input_ids, random_ids)
  replaced = tf.where_v2(fate < mask_prob, masking.vocab["[MASK]"], replaced)

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


def original_ids(batch: Mapping[str, Any]):
  """Restores the tokens that the masks of a batch replace: int32 [B, S]."""
  # Padding slots have weight 0.
  slots = tf.where_v2(batch["masked_lm_weights"] > 0)  # [masks, 2]
  positions = tf.gather_nd(batch["masked_lm_positions"], slots)
  indices = tf.stack([slots[:, 0], tf.cast(positions, tf.int64)], axis=1)
  ids = tf.gather_nd(batch["masked_lm_ids"], slots)
  return tf.tensor_scatter_nd_update(batch["input_ids"], indices, ids)


def choose_masked(
  input_ids,
  input_mask,
  word_order,  # float [B, S], sort keys; of word w at index w
  max_predictions_per_seq: int,
  masking: Masking,
):
  """Chooses the tokens to mask, word by word in random order: bool [B, S]."""
  is_word, words = _find_words(input_ids, input_mask, masking)
  word_lengths = _count_per_word(is_word, words)

  # The number of tokens is `masked_lm_prob` of all, rounded to the nearest
  # integer, at least 1. A word that would exceed it is skipped.
  num_tokens = tf.reduce_sum(tf.cast(input_mask > 0, tf.float64), axis=1)
  num_wanted = tf.cast(tf.round(num_tokens * masking.masked_lm_prob), tf.int32)
  num_wanted = tf.clip_by_value(num_wanted, 1, max_predictions_per_seq)  # [B]

  order = tf.argsort(word_order, axis=1)
  is_taken = _take_while_room(
    tf.gather(word_lengths, order, batch_dims=1), num_wanted
  )
  # Back from random order to the order of the text.
  is_taken = tf.gather(is_taken, tf.argsort(order), batch_dims=1)
  return is_word & tf.gather(is_taken, words, batch_dims=1)


def _find_words(input_ids, input_mask, masking: Masking):
  """Where words are, bool [B, S], and the index of each, int32 [B, S]."""
  # A word is a token other than [CLS] and [SEP]; with `do_whole_word_mask` it
  # includes the "##" pieces that follow. Other positions have the index of the
  # word before them.
  vocab = masking.vocab
  is_word = input_mask > 0
  for special in ("[CLS]", "[SEP]"):
    is_word &= tf.not_equal(input_ids, vocab[special])
  starts_word = is_word
  if masking.do_whole_word_mask:
    is_piece = np.zeros(max(vocab.values()) + 1, bool)
    is_piece[[i for entry, i in vocab.items() if entry.startswith("##")]] = True
    follows_word = tf.pad(is_word[:, :-1], [[0, 0], [1, 0]])
    starts_word &= ~(tf.gather(is_piece, input_ids) & follows_word)
  words = tf.cumsum(tf.cast(starts_word, tf.int32), axis=1) - 1
  return is_word, tf.maximum(words, 0)


def _count_per_word(is_word, words):
  """Number of tokens of each word, int32 [B, S]; 0 beyond the last word."""
  batch_size, seq_length = modeling.get_shape_list(words)
  rows = tf.range(batch_size)[:, tf.newaxis] * seq_length
  lengths = tf.math.unsorted_segment_sum(
    tf.cast(is_word, tf.int32), rows + words, batch_size * seq_length
  )
  return tf.reshape(lengths, [batch_size, seq_length])


def _take_while_room(lengths, room):
  """Takes words in order, skipping those that exceed the room: bool [B, S]."""
  # `lengths` [B, S] are the tokens per word, `room` [B] their maximum number.

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
  return tf.transpose(fits) > 0
