"""Tests of the losses of rerankers beside sentence-transformers."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from parametrize import parametrize

import run_reranker

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures("graph")]

LOGITS = [[1.5, -0.25, 0.75], [0.5, 2.0, 0.0], [-1.0, 0.25, 3.0]]
# The third document of the second query is missing.
MISSING = [[1, 1, 1], [1, 1, 0], [1, 1, 1]]
SCORES = [[2.0, 0.5, -1.0], [1.0, 1.5, 0.0], [0.0, -2.0, 0.5]]


def loss_of(name, present, logits=LOGITS, **features):
  """A loss, and its gradient with respect to the logits."""
  logits = tf.constant(logits)
  features = {name: tf.constant(x, tf.float32) for name, x in features.items()}
  features["input_mask"] = tf.constant(present)[..., tf.newaxis]
  total = tf.reduce_sum(run_reranker.loss_weights(name, features))
  loss = run_reranker.total_loss(name, logits, features, total)
  with tf.Session() as session:
    return session.run([loss, *tf.gradients(loss, logits)])


# Losses of sentence-transformers 6.2.0 for a model with these logits:
# BinaryCrossEntropyLoss of the 8 pairs; ListNetLoss(mini_batch_size=-1), whose
# labels are 50 and 0; MarginMSELoss for lists with all three documents.
@parametrize(
  "name, present, features, expected",
  (
    "bce",
    MISSING,
    {"labels": [[1, 0, 0.25], [1, 0, 0], [0.5, 1, 0]]},
    1.0956895351409912,
  ),
  (
    "listwise",
    MISSING,
    {"labels": [[1, 0, 0], [1, 0, 0], [1, 1, 0]]},
    1.8846276998519897,
  ),
  (
    "margin_mse",
    np.ones([3, 3], int),
    {"teacher_scores": SCORES},
    4.864583492279053,
  ),
)
def test_losses_equal_sentence_transformers(name, present, features, expected):
  loss, _ = loss_of(name, present, **features)
  assert loss == pytest.approx(expected, rel=1e-6)


@parametrize("name", *run_reranker.LOSSES)
def test_a_missing_document_changes_nothing(name):
  features = {"labels": [[1, 0, 0]] * 3, "teacher_scores": SCORES}
  loss, gradient = loss_of(name, MISSING, **features)
  assert gradient[1, 2] == 0
  assert np.count_nonzero(gradient) == 8
  changed = [LOGITS[0], [0.5, 2.0, 99.0], LOGITS[2]]
  assert loss_of(name, MISSING, changed, **features)[0] == loss


def test_margins_are_a_mean_over_all_negatives():
  _, gradient = loss_of("margin_mse", MISSING, teacher_scores=SCORES)
  difference = np.subtract(LOGITS, SCORES)
  margins = (difference[:, :1] - difference)[np.array(MISSING) > 0]
  loss, _ = loss_of("margin_mse", MISSING, teacher_scores=SCORES)
  assert loss == pytest.approx(np.sum(margins**2) / 5, rel=1e-6)
  np.testing.assert_allclose(gradient.sum(axis=1), 0, atol=1e-6)
