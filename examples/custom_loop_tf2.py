"""BERT as a `tf.Module`: tf.function, GradientTape, checkpoints, SavedModel.

  python -m examples.custom_loop_tf2 --bert_dir=output/minilm

The same weights serve training, with dropout, and prediction, without.
"""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf
from absl import flags

import modeling
import optimization
import tokenization
from bertlib.cli import app
from bertlib.data import model_inputs
from bertlib.export import tf1_module
from examples import demo_task

FLAGS = flags.FLAGS

TOKENS = {
  name: tf.TensorSpec([None, None], tf.int32, name)
  for name in model_inputs.TOKEN_FEATURES
}


class Classifier(tf1_module.GraphModule):
  """BERT with an output layer, in variables with the names of the graph."""

  def __init__(self, config: modeling.BertConfig, init_checkpoint: str | None):
    """Initializes weights from a checkpoint, the output layer randomly."""
    self.config = config

    def build():
      tf.random.set_seed(1)  # seed of the new output layer
      any_tokens = {name: tf.zeros([1, 1], tf.int32) for name in TOKENS}
      demo_task.build_logits(config, any_tokens, is_training=False)

    super().__init__(tf1_module.initial_weights(build, init_checkpoint))

  def logits(self, tokens: dict[str, tf.Tensor], is_training: bool):
    """Logits of the labels, float32 [B, L]; called within a `tf.function`."""
    with self.scope():
      return demo_task.build_logits(self.config, tokens, is_training)

  @tf.function(input_signature=[TOKENS], autograph=False)
  def probabilities(self, tokens: dict[str, tf.Tensor]):
    """Probabilities of the labels, float32 [B, L]; exported, too."""
    return tf.nn.softmax(self.logits(tokens, is_training=False))


def main(_) -> None:
  """Trains, evaluates and saves."""
  config = modeling.BertConfig.from_json_file(
    demo_task.bert_file("bert_config.json")
  )
  tokenizer = tokenization.FullTokenizer(
    demo_task.bert_file("vocab.txt"), FLAGS.do_lower_case
  )
  train = demo_task.read_tokens(tokenizer, "train")
  dev = demo_task.read_tokens(tokenizer, "dev")

  tf.random.set_seed(1)
  model = Classifier(config, demo_task.bert_file("bert_model.ckpt"))
  step = tf.Variable(0)
  # This Adam works with every version of Keras, and without Keras.
  optimizer = tf.compat.v1.train.AdamOptimizer(
    lambda: optimization.learning_rate(
      step, FLAGS.learning_rate, FLAGS.num_steps, FLAGS.num_steps // 10
    )
  )

  @tf.function(autograph=False, reduce_retracing=True)
  def train_step(batch):
    with tf.GradientTape() as tape:
      logits = model.logits(batch, is_training=True)
      losses, _ = modeling.cross_entropy(logits, batch["label_ids"])
      loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    step.assign_add(1)
    return loss

  losses = []
  for batch in demo_task.batches(train).take(FLAGS.num_steps):
    losses.append(train_step(batch).numpy())
    demo_task.print_loss(len(losses), losses)

  predictions = model.probabilities({name: dev[name] for name in TOKENS})
  accuracy = np.mean(np.argmax(predictions, axis=-1) == dev["label_ids"])
  print(f"dev_accuracy = {accuracy:.2f}")

  # The checkpoint is to resume training; the SavedModel needs no code.
  tf.train.Checkpoint(model=model, optimizer=optimizer, step=step).write(
    os.path.join(FLAGS.output_dir, "checkpoint")
  )
  tf.saved_model.save(model, os.path.join(FLAGS.output_dir, "saved_model"))
  print(f"saved to {FLAGS.output_dir}")


def define_flags() -> None:
  """Defines the flags."""
  demo_task.define_flags()
  flags.adopt_module_key_flags(demo_task)
  flags.DEFINE_string(
    "output_dir",
    "output/custom_loop",
    "Folder for the checkpoint and the SavedModel.",
  )


if __name__ == "__main__":
  define_flags()
  app.run(main)
