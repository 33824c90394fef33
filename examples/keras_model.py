"""A Keras model around an exported encoder, on raw text; Keras 2 or 3.

  python -m examples.keras_model --bert_dir=output/minilm [--keras=3]

tf.data runs the tokenizer of the export.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import tensorflow as tf
from absl import flags

import export_model
from bertlib.cli import app
from examples import demo_task

FLAGS = flags.FLAGS

INPUTS = ("input_word_ids", "input_mask", "input_type_ids")


def keras_2(encoder_dir: str) -> tuple[Any, Any, type]:
  """Keras 2: the encoder as a layer, and Adam."""
  import tensorflow_hub as hub

  encoder = hub.KerasLayer(encoder_dir, trainable=True)
  return tf.keras, encoder, tf.keras.optimizers.Adam


def keras_3(encoder_dir: str) -> tuple[Any, Any, type]:
  """Keras 3: the encoder as a layer, and Adam."""
  import keras

  class Adam(keras.optimizers.Adam):
    """Gives slots of TFSMLayer weights names that TensorFlow accepts."""

    def add_variable(self, *args, name=None, **kwargs):
      return super().add_variable(
        *args, name=name and name.replace(":", "_"), **kwargs
      )

  encoder = keras.layers.TFSMLayer(
    encoder_dir,
    call_endpoint="encode",
    call_training_endpoint="encode_training",
  )
  return keras, encoder, Adam


def build_model(keras: Any, encoder: Any, optimizer: Any) -> Any:
  """A compiled classifier."""
  tokens = {
    name: keras.Input([None], dtype="int32", name=name) for name in INPUTS
  }
  pooled = encoder(tokens)["pooled_output"]
  pooled = keras.layers.Dropout(0.1)(pooled)
  model = keras.Model(tokens, keras.layers.Dense(len(demo_task.LABELS))(pooled))
  model.compile(
    optimizer=optimizer,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
  )
  return model


def main(_) -> None:
  """Exports, trains and evaluates."""
  with tempfile.TemporaryDirectory() as folder:
    encoder_dir = os.path.join(folder, "encoder")
    source = export_model.find_source(
      model_dir=None,
      checkpoint=demo_task.bert_file("bert_model.ckpt"),
      config_file=demo_task.bert_file("bert_config.json"),
      vocab_file=demo_task.bert_file("vocab.txt"),
      do_lower_case=FLAGS.do_lower_case,
      max_seq_length=demo_task.MAX_SEQ_LENGTH,
    )
    export_model.export(source, encoder_dir, encoder=True)

    tokenize = tf.saved_model.load(encoder_dir).signatures["tokenize"]

    def tokens_and_labels(texts, label_ids):
      nothing = tf.fill(tf.shape(texts), "")
      return tokenize(text_a=texts, text_b=nothing), label_ids

    def batches(split):
      dataset = tf.data.Dataset.from_tensor_slices(demo_task.read_texts(split))
      if split == "train":
        dataset = dataset.shuffle(1000, seed=1).repeat()
      return dataset.batch(demo_task.BATCH_SIZE).map(tokens_and_labels)

    parts = keras_3 if FLAGS.keras == "3" else keras_2
    keras, encoder, adam = parts(encoder_dir)
    keras.utils.set_random_seed(1)
    optimizer = adam(FLAGS.learning_rate, global_clipnorm=1.0)
    model = build_model(keras, encoder, optimizer)
    every = max(FLAGS.num_steps // 5, 1)
    model.fit(
      batches("train"),
      steps_per_epoch=every,
      epochs=FLAGS.num_steps // every,
      verbose=2,
    )
    _, accuracy = model.evaluate(batches("dev"), verbose=0)
    print(f"dev_accuracy = {accuracy:.2f}")


def define_flags() -> None:
  """Defines the flags."""
  demo_task.define_flags()
  flags.adopt_module_key_flags(demo_task)
  flags.DEFINE_enum("keras", "2", ["2", "3"], "Which Keras.")


if __name__ == "__main__":
  define_flags()
  app.run(main)
