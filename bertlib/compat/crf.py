"""Linear-chain conditional random fields: the functions of `tf.contrib.crf`.

The score of a tag sequence is the sum of a unary score per token and of a
binary score per pair of neighboring tokens. Its probability is proportional to
exp(score) (Lafferty et al. 2001). Names and arguments are as in TensorFlow 1.

Shapes: `B` sequences, `S` tokens, `C` tags. Tokens from `sequence_lengths` [B]
on are padding. `transition_params` [C, C] has the score of a tag (column) after
another one (row).
"""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf


def crf_log_likelihood(
  inputs, tag_indices, sequence_lengths, transition_params=None
):
  """Log probability of tag sequences.

  Args:
    inputs: float [B, S, C], unary scores.
    tag_indices: int [B, S].
    sequence_lengths: int [B].
    transition_params: float [C, C]; None for a new variable "transitions".

  Returns:
    The log probabilities, float [B], and `transition_params`.
  """
  if transition_params is None:
    num_tags = tf.dimension_value(inputs.shape[2])
    transition_params = tf.get_variable("transitions", [num_tags, num_tags])
  score = crf_sequence_score(
    inputs, tag_indices, sequence_lengths, transition_params
  )
  log_norm = crf_log_norm(inputs, sequence_lengths, transition_params)
  return score - log_norm, transition_params


def crf_sequence_score(
  inputs, tag_indices, sequence_lengths, transition_params
):
  """Score of tag sequences, float [B]; see `crf_log_likelihood`."""
  return crf_unary_score(
    tag_indices, sequence_lengths, inputs
  ) + crf_binary_score(tag_indices, sequence_lengths, transition_params)


def crf_unary_score(tag_indices, sequence_lengths, inputs):
  """Sum of the unary scores of tag sequences, float [B]."""
  scores = tf.gather(inputs, tag_indices, batch_dims=2)
  return tf.reduce_sum(scores * _mask(sequence_lengths, scores), axis=1)


def crf_binary_score(tag_indices, sequence_lengths, transition_params):
  """Sum of the binary scores of tag sequences, float [B]."""
  pairs = tf.stack([tag_indices[:, :-1], tag_indices[:, 1:]], axis=-1)
  scores = tf.gather_nd(transition_params, pairs)
  lengths = tf.subtract(sequence_lengths, 1)  # of pairs; -1 is as good as 0
  return tf.reduce_sum(scores * _mask(lengths, scores), axis=1)


def crf_log_norm(inputs, sequence_lengths, transition_params):
  """Log of the sum of exp(score) over all tag sequences, float [B].

  0 for a sequence of length 0.
  """

  def add_token(sums, token):
    scores, is_token = token
    longer = tf.reduce_logsumexp(
      sums[:, :, tf.newaxis] + transition_params, axis=1
    )
    return tf.where_v2(is_token, longer + scores, sums)

  sums = tf.foldl(
    add_token, _later_tokens(inputs, sequence_lengths), inputs[:, 0]
  )
  log_norm = tf.reduce_logsumexp(sums, axis=1)
  return _zero_if_empty(log_norm, sequence_lengths)


def crf_multitag_sequence_score(
  inputs, tag_bitmap, sequence_lengths, transition_params
):
  """Log of the sum of exp(score) over some tag sequences, float [B].

  Args:
    inputs: float [B, S, C], unary scores.
    tag_bitmap: bool [B, S, C], the tags that each token may have.
    sequence_lengths: int [B].
    transition_params: float [C, C].
  """
  minus_infinity = tf.constant(-np.inf, inputs.dtype)
  allowed = tf.where_v2(tag_bitmap, inputs, minus_infinity)
  return crf_log_norm(allowed, sequence_lengths, transition_params)


def crf_decode(potentials, transition_params, sequence_length):
  """Tag sequences of the highest score, by the Viterbi algorithm.

  Args:
    potentials: float [B, S, C], unary scores.
    transition_params: float [C, C].
    sequence_length: int [B].

  Returns:
    The tags, int32 [B, S], 0 at padding; and their scores, float [B].
  """
  num_tags = tf.shape(potentials)[2]

  def add_token(best, token):
    scores, is_token = token
    candidates = best[0][:, :, tf.newaxis] + transition_params
    longer = tf.reduce_max(candidates, axis=1) + scores
    previous = tf.argmax(candidates, axis=1, output_type=tf.int32)
    # Padding repeats the last tag.
    return (
      tf.where_v2(is_token, longer, best[0]),
      tf.where_v2(is_token, previous, tf.range(num_tags)),
    )

  first = potentials[:, 0]
  scores, previous = tf.scan(
    add_token,
    _later_tokens(potentials, sequence_length),
    (first, tf.zeros_like(first, tf.int32)),
  )
  scores = tf.concat([first[tf.newaxis], scores], axis=0)[-1]
  last = tf.argmax(scores, axis=1, output_type=tf.int32)
  earlier = tf.scan(
    lambda tag, previous: tf.gather(previous, tag, batch_dims=1),
    previous,
    last,
    reverse=True,
  )
  tags = tf.transpose(tf.concat([earlier, last[tf.newaxis]], axis=0))
  best = tf.reduce_max(scores, axis=1)
  return (
    tags * _mask(sequence_length, tags),
    _zero_if_empty(best, sequence_length),
  )


def viterbi_decode(score, transition_params):
  """Tag sequence of the highest score, in NumPy.

  Args:
    score: float array [S, C], unary scores.
    transition_params: float array [C, C].

  Returns:
    The tags, a list of S integers, and their score.
  """
  best, previous = score[0], []
  for scores in score[1:]:
    candidates = best[:, np.newaxis] + transition_params
    previous.append(np.argmax(candidates, axis=0))
    best = np.max(candidates, axis=0) + scores
  tags = [int(np.argmax(best))]
  for pointers in reversed(previous):
    tags.append(int(pointers[tags[-1]]))
  return tags[::-1], np.max(best)


def _mask(lengths, values):
  """1 at tokens and 0 at padding: [B, S], dtype of `values` [B, S]."""
  return tf.sequence_mask(lengths, tf.shape(values)[1], values.dtype)


def _zero_if_empty(values, lengths):
  """`values` [B], but 0 for sequences of length 0."""
  return tf.where_v2(tf.greater(lengths, 0), values, tf.zeros_like(values))


def _later_tokens(inputs, lengths):
  """Unary scores [S - 1, B, C] from token 1 on, and bool [S - 1, B, 1]."""
  is_token = tf.sequence_mask(lengths, tf.shape(inputs)[1])
  return (
    tf.transpose(inputs[:, 1:], [1, 0, 2]),
    tf.transpose(is_token[:, 1:])[:, :, tf.newaxis],
  )
