"""A trained model in a session, ready to predict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import checkpoint_files, finding, loading, model_json
from bertlib.compute import FastCompute
from bertlib.data import model_inputs, vocabulary
from bertlib.errors import InputError


class LoadedModel:
  """A trained model, loaded once, for prediction.

  Base class of each script's `Predictor`, which adds `build` and `predict`.

  Attributes:
    description: contents of the model's `model.json`.
    tokenizer: the model's tokenizer.
  """

  script: str  # Command that trains such models.
  purpose: str  # Verb phrase for messages, such as "labels texts".

  def __init__(
    self,
    model_dir: str,
    checkpoint: str | None = None,
    batch_size: int = 32,
    precision: str = "float32",
  ):
    """Loads a model.

    Args:
      model_dir: the `--output_dir` of a training run.
      checkpoint: path of a checkpoint; None for the folder's
        `trained_checkpoint`.
      batch_size: rows per batch.
      precision: "float32", "bfloat16" or "float16", see `--precision`.

    Raises:
      InputError: the folder is missing, or contains no model of `script`.
    """
    if not tf.gfile.IsDirectory(model_dir):
      raise InputError(f"{model_dir}: no such folder")
    self.description = model_json.load_description(model_dir)
    if checkpoint:
      checkpoint = finding.find_checkpoint(checkpoint)
      checkpoint_files.check(checkpoint)
    else:
      checkpoint = finding.trained_checkpoint(model_dir)
    if self.description.get("script") != self.script or not checkpoint:
      raise InputError(
        f"{model_dir}: holds no model that {self.purpose}; name the"
        f" --output_dir of a run of {self.script}.py"
      )
    model_json.check_description(model_dir, self.description)
    config = loading.load_config(os.path.join(model_dir, loading.CONFIG_FILE))
    self.tokenizer = vocabulary.load_tokenizer(
      os.path.join(model_dir, loading.VOCAB_FILE),
      self.description["do_lower_case"],
      config.vocab_size,
    )
    self._batch_size = batch_size
    self._load(config, checkpoint, precision)

  def _load(
    self, config: modeling.BertConfig, checkpoint: str, precision: str
  ) -> None:
    """Builds the graph and restores its weights."""
    # In 16-bit precision, constants are cast once, variables in every batch.
    # A graph holds at most 2 GB of constants.
    getter = None
    if precision != "float32" and loading.num_weights(config) < 2**29:
      getter = _constants_of(checkpoint)
    with tf.Graph().as_default() as graph:
      self._inputs = {
        name: tf.placeholder(tf.int32, [None, None], name)
        for name in model_inputs.TOKEN_FEATURES
      }
      with tf.variable_scope("", custom_getter=getter):
        self._outputs = self.build(
          self.description,
          config,
          self._inputs,
          FastCompute(tf.as_dtype(precision), unpad=True),
        )
      self._session = tf.Session(graph=graph)
      if not getter:
        tf.train.Saver(tf.trainable_variables()).restore(
          self._session, checkpoint
        )

  @staticmethod
  def build(
    description: Mapping[str, Any],
    config: modeling.BertConfig,
    inputs: Mapping[str, Any],
    compute: FastCompute,
  ):
    """Builds the graph.

    Args:
      description: contents of `model.json`.
      config: the model's `BertConfig`.
      inputs: int32 [B, S] for each of `model_inputs.TOKEN_FEATURES`.
      compute: precision and unpadding.

    Returns:
      A tensor [B, ...].
    """
    raise NotImplementedError

  def run(
    self, rows: Sequence[Mapping[str, Sequence[int]]]
  ) -> list[np.ndarray]:
    """Computes the outputs of rows, in batches of similar length.

    Args:
      rows: `model_inputs.TOKEN_FEATURES` of each row, of any length, padded or
        not.

    Returns:
      The output of each row, in order; S is the length of the longest row in
      its batch.
    """
    lengths = [sum(row["input_mask"]) for row in rows]
    order = sorted(range(len(rows)), key=lambda index: -lengths[index])
    outputs: list[Any] = [None] * len(rows)
    for first in range(0, len(order), self._batch_size):
      batch = order[first : first + self._batch_size]
      longest = lengths[batch[0]]
      feed = {
        tensor: [
          model_inputs.pad(rows[index][name][:longest], longest)
          for index in batch
        ]
        for name, tensor in self._inputs.items()
      }
      for index, row in zip(batch, self._session.run(self._outputs, feed)):
        outputs[index] = row
    return outputs

  def close(self) -> None:
    """Closes the session."""
    self._session.close()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()


def _constants_of(checkpoint: str) -> Callable:
  """A variable getter that returns constants with a checkpoint's values."""
  reader = tf.train.load_checkpoint(checkpoint)

  def get(getter, name, *args, **kwargs):
    del getter, args, kwargs
    return tf.constant(reader.get_tensor(name))

  return get
