"""Encoders of TensorFlow Hub: a folder or an address becomes a checkpoint.

A SavedModel that takes `input_word_ids`, `input_mask` and `input_type_ids`, by
export_model.py or by the makers of the BERTs on TensorFlow Hub, is taken apart
into what all scripts start from: weights under BERT's names, sizes, vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bertlib import estimator_api  # noqa: F401 (selects Keras 2, which tensorflow_hub uses)
from bertlib.checkpoints import checkpoint_writer, loading, model_json, zoo
from bertlib.errors import InputError
from bertlib.files import atomic_folder, atomic_write

# From the names of TensorFlow's model garden to BERT's.
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


def flags_for(handle: str) -> dict[str, str | bool]:
  """Takes an encoder apart; gives the flags that make a script use it.

  The parts are kept in the cache of `download_model`.

  Args:
    handle: a SavedModel's folder, or an address that tensorflow-hub knows.

  Returns:
    `bert_config_file`, `init_checkpoint`, and as far as the encoder has them
    `vocab_file` and `do_lower_case`.

  Raises:
    InputError: there is no such encoder, or it cannot be read.
  """
  folder = _resolve(handle)
  digest = hashlib.sha256()
  for name in ("saved_model.pb", "variables/variables.index"):
    with tf.io.gfile.GFile(os.path.join(folder, name), "rb") as file:
      digest.update(file.read())
  parts = os.path.join(zoo.default_cache_dir(), "hub", digest.hexdigest()[:16])
  if not os.path.exists(parts):
    os.makedirs(os.path.dirname(parts), exist_ok=True)
    with atomic_folder(parts) as beside:
      _take_apart(handle, folder, beside)
  logging.info("%s: its parts are in %s", handle, parts)

  def path(name):
    return os.path.join(parts, name)

  known = {
    "bert_config_file": path(loading.CONFIG_FILE),
    "init_checkpoint": path("bert_model.ckpt"),
  }
  if os.path.exists(path(loading.VOCAB_FILE)):
    known["vocab_file"] = path(loading.VOCAB_FILE)
  return known | model_json.load_description(parts)


def _resolve(handle: str) -> str:
  """The folder of a handle, downloaded if need be."""
  import tensorflow_hub as hub

  try:
    folder = hub.resolve(handle)
  except Exception as error:  # of its many ways to download
    raise InputError(
      f"{handle}: cannot be had ({error}). Where there is no network, name the"
      " folder of the SavedModel"
    ) from error
  if tf.io.gfile.exists(os.path.join(folder, "tfhub_module.pb")):
    raise InputError(
      f"{handle}: is in TensorFlow Hub's format of TensorFlow 1, which"
      " tensorflow-hub no longer reads. Take the same model's checkpoint by"
      " name; python download_model.py --list tells the names"
    )
  if not tf.io.gfile.exists(os.path.join(folder, "saved_model.pb")):
    raise InputError(
      f"{handle}: no SavedModel; name its folder, or its address"
    )
  return folder


def _take_apart(handle: str, folder: str, into: str) -> None:
  os.makedirs(into)
  loaded = tf.saved_model.load(folder)
  weights = _weights(handle, loaded)
  checkpoint_writer.write_variables(
    os.path.join(into, "bert_model.ckpt"), weights
  )
  config = os.path.join(folder, "assets", loading.CONFIG_FILE)
  if tf.io.gfile.exists(config):
    tf.io.gfile.copy(config, os.path.join(into, loading.CONFIG_FILE))
  else:
    with atomic_write(os.path.join(into, loading.CONFIG_FILE)) as file:
      json.dump(_sizes(weights, loaded), file, indent=2, sort_keys=True)
  if hasattr(loaded, "vocab_file"):
    vocab = loaded.vocab_file.asset_path.numpy().decode()
    tf.io.gfile.copy(vocab, os.path.join(into, loading.VOCAB_FILE))
  with atomic_write(os.path.join(into, model_json.MODEL_FILE)) as file:
    lower = getattr(loaded, "do_lower_case", None)
    known = {} if lower is None else {"do_lower_case": bool(lower.numpy())}
    json.dump(known, file)


def _weights(handle: str, loaded: Any) -> dict[str, np.ndarray]:
  """An encoder's weights, under BERT's names and in its shapes."""
  weights = {}
  for variable in getattr(loaded, "variables", ()):
    name = variable.name.partition(":")[0]
    if not name.startswith("bert/"):
      for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
      name = f"bert/{name}"
    weights[name] = variable.numpy()
  word_embeddings = weights.get("bert/embeddings/word_embeddings")
  if word_embeddings is None:
    raise InputError(
      f"{handle}: has no BERT encoder that could be trained on; it holds"
      f" {', '.join(list(weights)[:3]) or 'no variables'}. Name an export of"
      " export_model.py --encoder, or a BERT of TensorFlow Hub"
    )
  width = word_embeddings.shape[1]
  for name, value in weights.items():
    # The model garden keeps heads apart: [H, N, D], [N, D] and [N, D, H].
    if re.search(r"/attention/(self/\w+|output/dense)/kernel$", name):
      weights[name] = value.reshape(width, width)
    elif re.search(r"/attention/self/\w+/bias$", name):
      weights[name] = value.reshape(width)
  return weights


def _sizes(weights: Mapping[str, np.ndarray], loaded: Any) -> dict[str, Any]:
  """What a `bert_config.json` says, of an encoder of the model garden."""

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
    # The form that the garden's encoders are trained with.
    "hidden_act": "gelu_tanh",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": shape("embeddings/position_embeddings")[0],
    "type_vocab_size": shape("embeddings/token_type_embeddings")[0],
    "initializer_range": 0.02,
  }
