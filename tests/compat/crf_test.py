"""Conditional random fields, beside an enumeration of all tag sequences."""

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from modeling_test import run
from parametrize import parametrize

from bertlib.compat import crf

pytestmark = pytest.mark.graph

NUM_TAGS = 3
LENGTHS = [4, 2, 1, 0]
RANDOM = np.random.RandomState(0)
SCORES = RANDOM.randn(4, 4, NUM_TAGS).astype(np.float32)
TRANSITIONS = RANDOM.randn(NUM_TAGS, NUM_TAGS).astype(np.float32)
TAGS = RANDOM.randint(NUM_TAGS, size=[4, 4]).astype(np.int32)
ALLOWED = RANDOM.rand(4, 4, NUM_TAGS) < 0.5
ALLOWED[np.arange(4)[:, None], np.arange(4), TAGS] = True


def unary_score(index, tags):
  return sum(SCORES[index, token, tag] for token, tag in enumerate(tags))


def binary_score(tags):
  return sum(TRANSITIONS[pair] for pair in zip(tags, tags[1:]))


def all_scores(index, length=None):
  length = LENGTHS[index] if length is None else length
  return {
    tags: unary_score(index, tags) + binary_score(tags)
    for tags in itertools.product(range(NUM_TAGS), repeat=length)
  }


def log_sum(scores):
  return np.log(np.sum(np.exp(scores)))


def test_scores_are_those_of_all_tag_sequences():
  with tf.Graph().as_default():
    scores = tf.constant(SCORES)
    found = run(
      [
        crf.crf_unary_score(TAGS, LENGTHS, SCORES),
        crf.crf_binary_score(TAGS, LENGTHS, TRANSITIONS),
        crf.crf_sequence_score(SCORES, TAGS, LENGTHS, TRANSITIONS),
        crf.crf_log_norm(SCORES, LENGTHS, TRANSITIONS),
        crf.crf_multitag_sequence_score(scores, ALLOWED, LENGTHS, TRANSITIONS),
        crf.crf_log_likelihood(SCORES, TAGS, LENGTHS, TRANSITIONS)[0],
      ]
    )
  for index, actual in enumerate(zip(*found)):
    tags, scores = tuple(TAGS[index, : LENGTHS[index]]), all_scores(index)
    allowed = [
      score
      for path, score in scores.items()
      if ALLOWED[index, range(len(path)), path].all()
    ]
    norm = log_sum(list(scores.values()))
    expected = unary_score(index, tags), binary_score(tags), scores[tags]
    expected += norm, log_sum(allowed), scores[tags] - norm
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@parametrize("num_tokens", 4, 1)
def test_decoding_finds_the_best_sequence(num_tokens):
  lengths = np.minimum(LENGTHS, num_tokens)
  with tf.Graph().as_default():
    decoded = crf.crf_decode(SCORES[:, :num_tokens], TRANSITIONS, lengths)
    tags, scores = run(decoded)
  for index, length in enumerate(lengths):
    candidates = all_scores(index, length)
    best = max(candidates, key=candidates.get)
    assert tuple(tags[index]) == best + (0,) * (num_tokens - length)
    np.testing.assert_allclose(scores[index], candidates[best], atol=1e-5)


def test_decoding_in_numpy_finds_the_best_sequence():
  tags, score = crf.viterbi_decode(SCORES[0], TRANSITIONS)
  candidates = all_scores(0)
  assert tuple(tags) == max(candidates, key=candidates.get)
  np.testing.assert_allclose(score, max(candidates.values()), atol=1e-5)


def test_gradients_of_the_log_norm_are_tag_probabilities():
  with tf.Graph().as_default():
    scores = tf.placeholder_with_default(SCORES, [None, None, NUM_TAGS])
    norm = crf.crf_log_norm(scores, LENGTHS, TRANSITIONS)
    gradient = run(tf.gradients(norm, scores)[0])
  for index, length in enumerate(LENGTHS):
    expected = np.zeros([4, NUM_TAGS])
    candidates = all_scores(index)
    norm = log_sum(list(candidates.values()))
    for tags, score in candidates.items():
      expected[np.arange(length), list(tags)] += np.exp(score - norm)
    np.testing.assert_allclose(gradient[index], expected, atol=1e-5)


def test_transitions_are_a_variable_unless_they_are_given():
  with tf.Graph().as_default():
    _, transitions = crf.crf_log_likelihood(tf.constant(SCORES), TAGS, LENGTHS)
    assert transitions.op.name == "transitions"
    assert transitions.shape == [NUM_TAGS, NUM_TAGS]
    assert tf.trainable_variables() == [transitions]
