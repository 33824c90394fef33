"""Can all layers share their weights? ALBERT's idea, in one screen.

  python -m experiments.shared_layers

Trains small masked LMs on sentences made in memory: with layers of their own,
and with one layer that is applied again and again (Lan et al. 2020, section
3.1). Prints the loss curves; README.md says what came out.
"""

from __future__ import annotations

import re

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
import optimization

CLS, MASK, FIRST_WORD, NUM_WORDS = 0, 1, 2, 16
SEQ_LENGTH, NUM_MASKED, BATCH_SIZE = 16, 3, 32

# Number of layers, hidden size, whether layers share their weights. A layer of
# twice the width has four times the weights.
VARIANTS = {
  "4 layers": (4, 32, False),
  "4 shared": (4, 32, True),
  "4 shared, wide": (4, 64, True),
  "1 layer": (1, 32, False),
}


def batches(seed: int):
  """Endless sentences in 2 dialects, in which a word has 2 successors."""
  # A masked word follows from its neighbors and from the dialect.
  successors = np.random.default_rng(0).integers(
    NUM_WORDS, size=(2, NUM_WORDS, 2)
  )
  rng = np.random.default_rng(seed)
  while True:
    dialect, word = rng.integers(2, size=BATCH_SIZE), np.zeros(BATCH_SIZE, int)
    ids = np.full([BATCH_SIZE, SEQ_LENGTH], CLS)
    for position in range(1, SEQ_LENGTH):
      word = successors[dialect, word, rng.integers(2, size=BATCH_SIZE)]
      ids[:, position] = FIRST_WORD + word
    order = rng.random([BATCH_SIZE, SEQ_LENGTH - 1]).argsort(axis=1)
    positions = 1 + order[:, :NUM_MASKED]
    labels = np.take_along_axis(ids, positions, axis=1)
    np.put_along_axis(ids, positions, MASK, axis=1)
    yield ids, positions, labels


def use_first_layer(getter, name, *args, **kwargs):
  """Gets a weight of the first layer in the place of any other layer's."""
  return getter(re.sub(r"layer_\d+", "layer_0", name), *args, **kwargs)


def masked_lm_loss(variant, ids, positions, labels):
  """The loss of a new model, float32 []."""
  num_layers, hidden_size, is_shared = variant
  config = modeling.BertConfig(
    vocab_size=FIRST_WORD + NUM_WORDS,
    hidden_size=hidden_size,
    num_hidden_layers=num_layers,
    num_attention_heads=2,
    intermediate_size=4 * hidden_size,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=SEQ_LENGTH,
    initializer_range=0.05,
  )
  # This is the whole idea: no line of modeling.py changes.
  getter = use_first_layer if is_shared else None
  with tf.variable_scope("", custom_getter=getter, reuse=tf.AUTO_REUSE):
    model = modeling.BertModel(config, is_training=True, input_ids=ids)
  logits = modeling.masked_lm_logits(
    config, model.get_sequence_output(), model.get_embedding_table(), positions
  )
  losses, _ = modeling.cross_entropy(logits, tf.reshape(labels, [-1]))
  return tf.reduce_mean(losses)


def train(variant, seed: int, num_steps: int, num_points: int):
  """Number of weights, and the mean loss of each part of the training."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(seed)
    sizes = SEQ_LENGTH, NUM_MASKED, NUM_MASKED
    inputs = [tf.placeholder(tf.int32, [BATCH_SIZE, size]) for size in sizes]
    loss = masked_lm_loss(variant, *inputs)
    step = optimization.create_optimizer(
      loss, 2e-3, num_steps, num_steps // 10, use_tpu=False
    )
    session.run(tf.global_variables_initializer())
    losses = [
      session.run([loss, step], dict(zip(inputs, batch)))[0]
      for batch, _ in zip(batches(seed), range(num_steps))
    ]
    num_weights = sum(v.shape.num_elements() for v in tf.trainable_variables())
  return num_weights, np.reshape(losses, [num_points, -1]).mean(axis=1)


def main(num_steps: int = 1000, num_points: int = 10, seeds=(1, 2, 3)) -> None:
  """Trains each variant with each seed; prints mean curves and their error."""
  for name, variant in VARIANTS.items():
    runs = [train(variant, seed, num_steps, num_points) for seed in seeds]
    curves = np.stack([curve for _, curve in runs])
    error = curves[:, -1].std() / max(len(seeds) - 1, 1) ** 0.5
    points = " ".join(f"{loss:.2f}" for loss in curves.mean(axis=0))
    print(
      f"{name:15}{runs[0][0]:8,} weights: {points} ± {error:.2f}", flush=True
    )


if __name__ == "__main__":
  main()
