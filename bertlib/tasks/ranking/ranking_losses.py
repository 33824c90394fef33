"""Losses of rerankers: means of terms of the documents of a batch.

A batch has B queries with their documents; `labels` and `teacher_scores` are
float32 [B, documents], and a missing document has no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

# Logit of a missing document: its softmax is 0.
_LOWEST = -1e9


def weights(name: str, features: Mapping[str, Any]):
  """1 for each of the terms that count, else 0: float32 [B, terms]."""
  is_document = _documents(features)
  if name == "listwise":
    return is_document[:, :1]
  return is_document if name == "bce" else is_document[:, 1:]


def loss(name: str, logits, features: Mapping[str, Any], total_weight):
  """A loss of `LOSSES`, float32 []: the sum of its terms by `total_weight`."""
  # Logits are float32 [B, documents].
  terms = LOSSES[name](logits, features) * weights(name, features)
  return tf.reduce_sum(terms) / total_weight


def _documents(features: Mapping[str, Any]):
  """1 for each document, 0 for a missing one: float32 [B, documents]."""
  return tf.cast(features["input_mask"][..., 0], tf.float32)


def _bce(logits, features):
  return tf.nn.sigmoid_cross_entropy_with_logits(
    labels=features["labels"], logits=logits
  )


def _listwise(logits, features):
  labels = features["labels"]
  target = labels / tf.reduce_sum(labels, axis=1, keepdims=True)
  logits = tf.where(_documents(features) > 0, logits, _LOWEST + 0 * logits)
  losses = tf.nn.softmax_cross_entropy_with_logits(labels=target, logits=logits)
  return losses[:, tf.newaxis]


def _margin_mse(logits, features):
  # The first document is the positive.
  difference = logits - features["teacher_scores"]
  return tf.square(difference[:, :1] - difference[:, 1:])


LOSSES = {"bce": _bce, "listwise": _listwise, "margin_mse": _margin_mse}
