"""Checkpoints of other projects: weights by our names, config by shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bertlib.checkpoints import (
  checkpoint_files,
  electra_weights,
  keras_files,
)
from bertlib.checkpoints.checkpoint_files import OBJECT_GRAPH, Checkpoint


class ForeignCheckpoint(Checkpoint):
  """Variables by our names, whatever their names in the checkpoint are."""

  def __init__(self, path: str):
    """See base class."""
    super().__init__(path)
    self._objects: dict[str, np.ndarray] = {}  # by our names
    if OBJECT_GRAPH in self.shapes:
      self._objects = keras_files.read_objects(
        self.shapes, self._reader.get_tensor, path
      )
      self.shapes = {n: [*value.shape] for n, value in self._objects.items()}
      self.dtypes = dict.fromkeys(self.shapes, tf.float32)
    self._names = electra_weights.google_names(self.shapes, path)
    for ours, name in self._names.items():
      for values in (self.shapes, self.dtypes):
        values[ours] = values.pop(name)

  def _read(self, name: str) -> np.ndarray:
    if self._objects:
      return self._objects[name]
    return super()._read(self._names.get(name, name))


def convert(path: str, target: str) -> None:
  """Writes the variables by our names, as a checkpoint with path `target`."""
  variables = electra_weights.with_added_tables(dict(ForeignCheckpoint(path)))
  checkpoint_files.write_variables(target, variables)


def config_of_shapes(
  shapes: Mapping[str, Sequence[int]],  # of the weights of an encoder
  num_heads: int | None = None,  # None for heads of size 64
  hidden_act: str = "gelu",
) -> dict[str, Any]:
  """Contents of `bert_config.json` for weights of these shapes."""
  scope = "bert/embeddings"
  layer = r"bert/encoder/layer_\d+/output/dense/kernel"
  kernels = [shapes[name] for name in shapes if re.fullmatch(layer, name)]
  vocab_size, embedding_size = shapes[f"{scope}/word_embeddings"]
  intermediate_size, hidden_size = kernels[0]
  if num_heads is None:
    num_heads = max(hidden_size // 64, 1)
  return {
    "vocab_size": vocab_size,
    "embedding_size": embedding_size,
    "hidden_size": hidden_size,
    "num_hidden_layers": len(kernels),
    "num_attention_heads": num_heads,
    "intermediate_size": intermediate_size,
    "hidden_act": hidden_act,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": shapes[f"{scope}/position_embeddings"][0],
    "type_vocab_size": shapes[f"{scope}/token_type_embeddings"][0],
    "initializer_range": 0.02,
  }
