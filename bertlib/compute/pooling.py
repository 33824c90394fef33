"""Sentence vectors from the hidden states of tokens."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

import modeling
from bertlib.settings.embedding_spec import (
  POOLINGS,
  PROJECTION_SCOPE,
  EmbeddingSpec,
)

_ACTIVATIONS = {"linear": lambda vectors: vectors, "tanh": tf.tanh}


def pool(states, input_mask, pooling: str):
  """Pools tokens, [CLS] too: [B, S, layers, H] to [B, layers * H].

  Rows without tokens are zeros.
  """
  batch_size, _, num_layers, width = modeling.get_shape_list(states)
  # [B, S, 1, 1]; TensorFlow Lite has no slices of it with new axes.
  is_token = tf.expand_dims(tf.expand_dims(input_mask, 2), 3) > 0
  if pooling not in POOLINGS:
    raise ValueError(f"pooling={pooling!r}: not one of {', '.join(POOLINGS)}")
  if pooling == "cls":
    pooled = states[:, :1]
  elif pooling == "mean":
    weights = tf.cast(is_token, states.dtype)
    # Without `keepdims` gradients copy a shape from the GPU.
    pooled = tf.reduce_sum(states * weights, axis=1, keepdims=True)
    counts = tf.reduce_sum(weights, axis=1, keepdims=True)
    pooled /= tf.maximum(counts, 1)
  else:
    # Padding is never the maximum.
    states = tf.where_v2(is_token, states, states.dtype.min)
    pooled = tf.reduce_max(states, axis=1, keepdims=True)
  vectors = tf.reshape(pooled, [batch_size, num_layers * width])
  return _zero_without_tokens(vectors, input_mask)


def _zero_without_tokens(vectors, input_mask):
  """Vectors [B, width], zeros in rows whose mask is empty."""
  has_tokens = tf.reduce_any(input_mask > 0, axis=1, keepdims=True)
  return tf.where_v2(has_tokens, vectors, tf.zeros([], vectors.dtype))


def sentence_vectors(sequence_output, input_mask, spec: EmbeddingSpec):
  """Sentence vectors before normalization: [B, S, H] to float32 [B, width]."""
  states = tf.cast(sequence_output, tf.float32)[:, :, tf.newaxis]
  # Reimers and Gurevych 2019: pooling, then an optional dense layer.
  vectors = pool(states, input_mask, spec.pooling)
  if spec.projection_dim is None:
    return vectors
  width = vectors.shape[-1]
  with tf.variable_scope(PROJECTION_SCOPE):
    kernel = tf.get_variable(
      "kernel",
      [width, spec.projection_dim],
      initializer=modeling.create_initializer(),
    )
    bias = tf.get_variable(
      "bias", [spec.projection_dim], initializer=tf.zeros_initializer()
    )
  vectors = tf.nn.bias_add(tf.matmul(vectors, kernel), bias)
  vectors = _ACTIVATIONS[spec.projection_activation](vectors)
  return _zero_without_tokens(vectors, input_mask)


def output_vectors(vectors, spec: EmbeddingSpec):
  """Vectors as the model returns them: of length 1 if `spec` says so."""
  return normalize(vectors) if spec.normalize else vectors


def normalize(vectors, dim: int | None = None):
  """Vectors of length 1 from the first `dim` values; zero stays zero."""
  return tf.math.l2_normalize(vectors[..., :dim], axis=-1, epsilon=1e-24)
