"""Dynamic masking: other masks whenever an example is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling

# New masks


class Masking(NamedTuple):
  """How new masks are drawn.

  Attributes:
    vocab: entry -> id.
    masked_lm_prob: share of an example's tokens that is masked.
    do_whole_word_mask: whether the pieces of a word go together.
    seed: of the draws.
  """

  vocab: Mapping[str, int]
  masked_lm_prob: float = 0.15
  do_whole_word_mask: bool = False
  seed: int = 0


def remask(batch: Mapping[str, Any], numbers, masking: Masking):
  """Takes the masks of a batch away and draws new ones.

  Of the tokens drawn, 80% become [MASK], 10% a random entry of the vocabulary,
  and 10% stay as they are (Devlin et al. 2019, A.1).

  Args:
    batch: the features of `tf_records.pretraining_layout`, S and P known.
    numbers: int64 [B], for each example its number over all epochs. The draws
      are a function of it and the seed.
    masking: what to draw.

  Returns:
    The batch with other `input_ids` and `masked_lm_*`; positions rise.
  """
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

  random_ids = tf.cast(entry * len(masking.vocab), tf.int32)
  replaced = tf.where_v2(fate < 0.9, input_ids, random_ids)
  replaced = tf.where_v2(fate < 0.8, masking.vocab["[MASK]"], replaced)

  # The places of masks in rising order, then S for those left over.
  places = tf.where_v2(is_masked, tf.range(seq_length), seq_length)
  places = tf.sort(places, axis=1)[:, :num_predictions]
  left_over = [[0, 0], [0, max(num_predictions - seq_length, 0)]]
  places = tf.pad(places, left_over, constant_values=seq_length)
  is_used = places < seq_length
  positions = tf.where_v2(is_used, places, 0)
  labels = tf.gather(input_ids, positions, batch_dims=1)
  return {
    **batch,
    "input_ids": tf.where_v2(is_masked, replaced, input_ids),
    "masked_lm_positions": positions,
    "masked_lm_ids": tf.where_v2(is_used, labels, 0),
    "masked_lm_weights": tf.cast(is_used, tf.float32),
  }


def original_ids(batch: Mapping[str, Any]):
  """Puts the tokens back that the masks of a batch hide.

  Args:
    batch: as `tf_records.pretraining_layout` says; slots of weight 0 hold none.

  Returns:
    int32 [B, S].
  """
  slots = tf.where_v2(batch["masked_lm_weights"] > 0)  # [masks, 2]
  positions = tf.gather_nd(batch["masked_lm_positions"], slots)
  places = tf.stack([slots[:, 0], tf.cast(positions, tf.int64)], axis=1)
  ids = tf.gather_nd(batch["masked_lm_ids"], slots)
  return tf.tensor_scatter_nd_update(batch["input_ids"], places, ids)


def choose_masked(
  input_ids,
  input_mask,
  word_order,
  max_predictions_per_seq: int,
  masking: Masking,
):
  """Picks tokens to mask, word by word in random order.

  Of all tokens `masked_lm_prob` are picked, rounded to the nearest number, but
  one at least and `max_predictions_per_seq` at most. A word that would exceed
  the number is passed over. A word is a token other than [CLS] and [SEP]; with
  `do_whole_word_mask` the "##" pieces that follow it belong to it.

  Args:
    input_ids: int32 [B, S], without masks.
    input_mask: int32 [B, S].
    word_order: float [B, S], random; smaller ones come first, w is of word w.
    max_predictions_per_seq: tokens.
    masking: how to draw.

  Returns:
    bool [B, S].
  """
  batch_size, seq_length = modeling.get_shape_list(input_ids)
  vocab = masking.vocab
  is_token = input_mask > 0
  is_word = is_token
  for special in ("[CLS]", "[SEP]"):
    is_word &= tf.not_equal(input_ids, vocab[special])
  starts_word = is_word
  if masking.do_whole_word_mask:
    pieces = np.zeros(max(vocab.values()) + 1, bool)
    pieces[[i for word, i in vocab.items() if word.startswith("##")]] = True
    follows_word = tf.pad(is_word[:, :-1], [[0, 0], [1, 0]])
    starts_word &= ~(tf.gather(pieces, input_ids) & follows_word)

  # The word of each place, and how many tokens each word has. Beyond the last
  # word are words without tokens, which change nothing.
  words = tf.cumsum(tf.cast(starts_word, tf.int32), axis=1) - 1
  words = tf.maximum(words, 0)  # [B, S]
  rows = tf.range(batch_size)[:, tf.newaxis] * seq_length
  lengths = tf.math.unsorted_segment_sum(
    tf.cast(is_word, tf.int32), rows + words, batch_size * seq_length
  )
  lengths = tf.reshape(lengths, [batch_size, seq_length])

  num_tokens = tf.reduce_sum(tf.cast(is_token, tf.float64), axis=1)
  num_wanted = tf.cast(tf.round(num_tokens * masking.masked_lm_prob), tf.int32)
  num_wanted = tf.clip_by_value(num_wanted, 1, max_predictions_per_seq)  # [B]

  def take_if_it_fits(state, length):
    num_taken, _ = state
    fits = num_taken + length <= num_wanted
    return num_taken + tf.where_v2(fits, length, 0), fits

  order = tf.argsort(word_order, axis=1)
  _, fits = tf.scan(
    take_if_it_fits,
    tf.transpose(tf.gather(lengths, order, batch_dims=1)),  # [S, B]
    initializer=(tf.zeros_like(num_wanted), tf.zeros_like(num_wanted, tf.bool)),
  )
  # From the order in which they were drawn to that in which they stand.
  is_taken = tf.gather(tf.transpose(fits), tf.argsort(order), batch_dims=1)
  return is_word & tf.gather(is_taken, words, batch_dims=1)
