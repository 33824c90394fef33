"""Sentence vectors from the hidden states of tokens."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

import modeling
from bertlib.settings.embedding_spec import ACTIVATIONS, POOLINGS, EmbeddingSpec

SCOPE = "sentence_projection"  # of the variables of the dense layer


def pool(states, input_mask, pooling: str):
  """Pools the hidden states of a text's tokens, including [CLS] and [SEP].

  Args:
    states: float [B, S, num_layers, H].
    input_mask: int32 [B, S], 1 at tokens, 0 at padding after them.
    pooling: "mean" or "max" over the tokens, or "cls" for the hidden state of
      [CLS].

  Returns:
    float [B, num_layers * H]: the vectors of all layers, concatenated.
  """
  batch_size, _, num_layers, width = modeling.get_shape_list(states)
  is_token = input_mask[:, :, tf.newaxis, tf.newaxis] > 0  # [B, S, 1, 1]
  if pooling not in POOLINGS:
    raise ValueError(f"pooling={pooling!r}: not one of {', '.join(POOLINGS)}")
  if pooling == "cls":
    pooled = states[:, :1]
  elif pooling == "mean":
    weights = tf.cast(is_token, states.dtype)
    # Without `keepdims` gradients copy a shape from the GPU.
    pooled = tf.reduce_sum(states * weights, axis=1, keepdims=True)
    pooled /= tf.reduce_sum(weights, axis=1, keepdims=True)
  else:
    states = tf.where_v2(is_token, states, states.dtype.min)
    pooled = tf.reduce_max(states, axis=1, keepdims=True)
  return tf.reshape(pooled, [batch_size, num_layers * width])


def sentence_vectors(sequence_output, input_mask, spec: EmbeddingSpec):
  """Sentence vectors before normalization (Reimers and Gurevych 2019).

  Creates the variables of the projection, if there is one.

  Args:
    sequence_output: float [B, S, H], hidden states of the last layer.
    input_mask: int32 [B, S].
    spec: pooling and projection.

  Returns:
    float32 [B, H], or [B, projection_dim] with a projection.
  """
  if spec.projection_activation not in ACTIVATIONS:
    raise ValueError(
      f"projection_activation={spec.projection_activation!r}: not one of"
      f" {', '.join(ACTIVATIONS)}"
    )
  states = tf.cast(sequence_output, tf.float32)[:, :, tf.newaxis]
  vectors = pool(states, input_mask, spec.pooling)
  if spec.projection_dim is None:
    return vectors
  width = vectors.shape[-1]
  with tf.variable_scope(SCOPE):
    kernel = tf.get_variable(
      "kernel",
      [width, spec.projection_dim],
      initializer=modeling.create_initializer(),
    )
    bias = tf.get_variable(
      "bias", [spec.projection_dim], initializer=tf.zeros_initializer()
    )
  vectors = tf.nn.bias_add(tf.matmul(vectors, kernel), bias)
  return tf.tanh(vectors) if spec.projection_activation == "tanh" else vectors


def output_vectors(vectors, spec: EmbeddingSpec):
  """The vectors of `sentence_vectors` as the model returns them.

  Args:
    vectors: float32 [..., D].
    spec: whether they have length 1.

  Returns:
    float32 [..., D].
  """
  return normalize(vectors) if spec.normalize else vectors


def normalize(vectors, dim: int | None = None):
  """Vectors of length 1, from their first `dim` values.

  Args:
    vectors: float32 [..., D].
    dim: None for D.

  Returns:
    float32 [..., dim]. A zero vector stays zero.
  """
  return tf.math.l2_normalize(vectors[..., :dim], axis=-1, epsilon=1e-24)
