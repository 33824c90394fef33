"""Importing encoders: a SavedModel of TensorFlow Hub or export_model.py."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bertlib.checkpoints import checkpoint_files, keras_files
from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api  # noqa: F401 (selects Keras 2, which tensorflow_hub uses)
from bertlib.exchange import zoo
from bertlib.io import json_files, model_files

# From variable names of TensorFlow's Model Garden to BERT's.
_NAMES = (
  (r"^word_embeddings/embeddings$", "embeddings/word_embeddings"),
  (r"^position_embedding/embeddings$", "embeddings/position_embeddings"),
  (r"^type_embeddings/embeddings$", "embeddings/token_type_embeddings"),
  (r"^embeddings/layer_norm/", "embeddings/LayerNorm/"),
  (r"^transformer/layer_", "encoder/layer_"),
  (r"/self_attention/attention_output/", "/attention/output/dense/"),
  (r"/self_attention/", "/attention/self/"),
  (r"/self_attention_layer_norm/", "/attention/output/LayerNorm/"),
  (r"/intermediate/", "/intermediate/dense/"),
  (r"(layer_\d+)/output/", r"\1/output/dense/"),
  (r"/output_layer_norm/", "/output/LayerNorm/"),
  (r"^pooler_transform/", "pooler/dense/"),
)


def convert(handle: str) -> str:
  """Folder of an encoder as converted into the cache, once."""
  folder = _resolve(handle)
  names = ("saved_model.pb", "variables/variables.index")
  paths = [os.path.join(folder, name) for name in names]
  return zoo.convert_once(
    folder, paths, lambda target_dir: _convert(handle, folder, target_dir)
  )


def _resolve(handle: str) -> str:
  """Folder of a handle, downloaded if necessary."""
  import tensorflow_hub as hub

  try:
    folder = hub.resolve(handle)
  except Exception as error:  # depends on how it downloads
    raise InputError(
      f"{handle}: cannot be downloaded ({error}). Without a network, name the"
      " folder of the SavedModel"
    ) from error
  if tf.io.gfile.exists(os.path.join(folder, "tfhub_module.pb")):
    raise InputError(
      f"{handle}: is in the TF1 Hub format, which tensorflow-hub no longer"
      " reads. Use the checkpoint of the same model, by a name of"
      " docs/how_to/models.md"
    )
  if not tf.io.gfile.exists(os.path.join(folder, "saved_model.pb")):
    raise InputError(
      f"{handle}: not a SavedModel. Name its folder or its address"
    )
  return folder


def _convert(handle: str, folder: str, target_dir: str) -> None:
  """Writes an encoder as a checkpoint with its files to a folder."""
  loaded = tf.saved_model.load(folder)
  weights = _weights(handle, loaded)
  checkpoint, config, vocab, description = (
    os.path.join(target_dir, name)
    for name in (model_files.CHECKPOINT, *model_files.COMPANIONS)
  )
  checkpoint_files.write_variables(checkpoint, weights)
  own_config = os.path.join(folder, "assets", model_files.CONFIG)
  if tf.io.gfile.exists(own_config):
    tf.io.gfile.copy(own_config, config)
  else:
    json_files.write(config, _sizes(weights, loaded))
  if hasattr(loaded, "vocab_file"):
    tf.io.gfile.copy(loaded.vocab_file.asset_path.numpy().decode(), vocab)
  lower = getattr(loaded, "do_lower_case", None)
  casing = {} if lower is None else {"do_lower_case": bool(lower.numpy())}
  json_files.write(description, casing)


def _weights(handle: str, loaded: Any) -> dict[str, np.ndarray]:
  """An encoder's weights with the names and shapes of BERT checkpoints."""
  weights = {}
  for variable in getattr(loaded, "variables", ()):
    name = variable.name.partition(":")[0]
    if not name.startswith("bert/"):
      for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
      name = f"bert/{name}"
    weights[name] = keras_files.plain_shape(name, variable.numpy())
  if "bert/embeddings/word_embeddings" not in weights:
    raise InputError(
      f"{handle}: has no BERT encoder that can be fine-tuned; it holds"
      f" {', '.join(list(weights)[:3]) or 'no variables'}. Name an export of"
      " export_model.py --encoder, or a BERT encoder of TensorFlow Hub"
    )
  return weights


def _sizes(weights: Mapping[str, np.ndarray], loaded: Any) -> dict[str, Any]:
  """Contents of `bert_config.json` for an encoder of the Model Garden."""

  def shape(name):
    return weights[f"bert/{name}"].shape

  num_heads = next(
    variable.shape[1]
    for variable in loaded.variables
    if variable.name.endswith("self_attention/query/kernel:0")
  )
  vocab_size, hidden_size = shape("embeddings/word_embeddings")
  layers = {name.split("/")[2] for name in weights if "/layer_" in name}
  return {
    "vocab_size": vocab_size,
    "hidden_size": hidden_size,
    "num_hidden_layers": len(layers),
    "num_attention_heads": int(num_heads),
    "intermediate_size": shape("encoder/layer_0/intermediate/dense/bias")[0],
    # The Model Garden's encoders use the tanh approximation.
    "hidden_act": "gelu_tanh",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": shape("embeddings/position_embeddings")[0],
    "type_vocab_size": shape("embeddings/token_type_embeddings")[0],
    "initializer_range": 0.02,
  }
