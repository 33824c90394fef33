"""The task of the examples: classifying the sentences of `demo/`."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf
from absl import flags

import modeling
import tokenization
from bertlib.data import input_pipeline, model_inputs, tables, training_records

FLAGS = flags.FLAGS

BATCH_SIZE = 16
MAX_SEQ_LENGTH = 64
LABELS = ("complaint", "praise", "question", "request")


def define_flags() -> None:
  """Defines the flags that all examples share."""
  flags.DEFINE_string(
    "bert_dir",
    None,
    "Folder with bert_config.json, vocab.txt and bert_model.ckpt.",
    required=True,
  )
  flags.DEFINE_bool("do_lower_case", True, "Whether the model is uncased.")
  flags.DEFINE_integer("num_steps", 150, "Training steps.")
  flags.DEFINE_float("learning_rate", 4e-5, "Peak learning rate.")


def bert_file(name: str) -> str:
  """Path of a file in --bert_dir."""
  return os.path.join(FLAGS.bert_dir, name)


def read_texts(split: str) -> tuple[list[str], np.ndarray]:
  """Texts of "train" or "dev", and their labels, int32 [texts]."""
  _, *rows = tables.read_tsv(f"demo/{split}.tsv")
  texts, labels = zip(*(row.fields for row in rows))
  return list(texts), np.int32([LABELS.index(label) for label in labels])


def read_tokens(
  tokenizer: tokenization.FullTokenizer, split: str
) -> dict[str, np.ndarray]:
  """Features of the texts of a split.

  Args:
    tokenizer: tokenizer of the model.
    split: "train" or "dev".

  Returns:
    int32 [texts, S] for each of `model_inputs.TOKEN_FEATURES`, and `label_ids`,
    int32 [texts].
  """
  texts, label_ids = read_texts(split)
  rows = [
    model_inputs.encode_pair(tokenizer, text, None, MAX_SEQ_LENGTH)
    for text in texts
  ]
  tokens = {
    name: np.int32([getattr(row, name) for row in rows])
    for name in model_inputs.TOKEN_FEATURES
  }
  return tokens | {"label_ids": label_ids}


def batches(rows: dict[str, np.ndarray]) -> tf.data.Dataset:
  """Endless batches, shuffled anew in each epoch, padded to their longest."""
  dataset = tf.data.Dataset.from_tensor_slices(rows)
  dataset = training_records.shuffle_epochs(
    dataset, len(rows["label_ids"]), seed=1
  )
  return dataset.batch(BATCH_SIZE).map(input_pipeline.trim_padding)


def build_logits(
  config: modeling.BertConfig, tokens: dict[str, tf.Tensor], is_training: bool
):
  """Builds the model in the current graph.

  Args:
    config: config of the encoder.
    tokens: int32 [B, S] for each of `model_inputs.TOKEN_FEATURES`.
    is_training: whether to use dropout.

  Returns:
    Logits of the labels, float32 [B, L].
  """
  model = modeling.BertModel(
    config,
    is_training,
    tokens["input_ids"],
    tokens["input_mask"],
    tokens["segment_ids"],
  )
  return modeling.classification_logits(
    model.get_pooled_output(),
    len(LABELS),
    dropout_prob=config.hidden_dropout_prob if is_training else 0.0,
  )


def print_loss(step: int, losses: list[float]) -> None:
  """Prints the mean loss since the last call."""
  every = max(FLAGS.num_steps // 5, 1)
  if step % every == 0:
    print(f"step {step}: loss {np.mean(losses[-every:]):.3f}", flush=True)
