"""BERT in TensorFlow 1 graph code: a session, tf.data and a placeholder.

  python -m examples.graph_tf1 --bert_dir=output/minilm

Training reads batches from tf.data; prediction feeds a placeholder.
"""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import modeling
import optimization
import tokenization
from bertlib.cli import app
from bertlib.data import model_inputs
from examples import demo_task

FLAGS = flags.FLAGS


def main(_) -> None:
  """Trains, evaluates, and classifies a text."""
  config = modeling.BertConfig.from_json_file(
    demo_task.bert_file("bert_config.json")
  )
  tokenizer = tokenization.FullTokenizer(
    demo_task.bert_file("vocab.txt"), FLAGS.do_lower_case
  )
  train = demo_task.read_tokens(tokenizer, "train")
  dev = demo_task.read_tokens(tokenizer, "dev")

  with tf.Graph().as_default():
    tf.set_random_seed(1)

    # Training, on batches of tf.data.
    batch = tf.data.make_one_shot_iterator(demo_task.batches(train)).get_next()
    logits = demo_task.build_logits(config, batch, is_training=True)
    losses, _ = modeling.cross_entropy(logits, batch["label_ids"])
    loss = tf.reduce_mean(losses)
    train_op = optimization.create_optimizer(
      loss,
      FLAGS.learning_rate,
      FLAGS.num_steps,
      num_warmup_steps=FLAGS.num_steps // 10,
      use_tpu=False,
    )

    # Prediction, on fed texts: the same weights, without dropout.
    fed = {
      name: tf.placeholder(tf.int32, [None, None], name)
      for name in model_inputs.TOKEN_FEATURES
    }
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
      predicted = demo_task.build_logits(config, fed, is_training=False)
    label_ids = tf.argmax(predicted, axis=-1)

    # Initialize all weights but the new output layer from the checkpoint.
    checkpoint = demo_task.bert_file("bert_model.ckpt")
    found, _ = modeling.get_assignment_map_from_checkpoint(
      tf.trainable_variables(), checkpoint
    )
    tf.train.init_from_checkpoint(checkpoint, found)

    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      losses = []
      for step in range(1, FLAGS.num_steps + 1):
        losses.append(session.run([loss, train_op])[0])
        demo_task.print_loss(step, losses)

      feed = {tensor: dev[name] for name, tensor in fed.items()}
      predictions = session.run(label_ids, feed)
      print(f"dev_accuracy = {np.mean(predictions == dev['label_ids']):.2f}")

      text = "Could you have the cake ready by ten and write Amina on it?"
      row = model_inputs.encode_pair(tokenizer, text, None, max_seq_length=32)
      feed = {tensor: [getattr(row, name)] for name, tensor in fed.items()}
      (predictions,) = session.run(label_ids, feed)
      print(f"{demo_task.LABELS[predictions]}: {text}")


def define_flags() -> None:
  """Defines the flags."""
  demo_task.define_flags()
  flags.adopt_module_key_flags(demo_task)


if __name__ == "__main__":
  define_flags()
  app.run(main)
