"""Importing encoders of TensorFlow Hub, or SavedModels of export_model.py."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bertlib.checkpoints import (
  checkpoint_files,
  foreign_checkpoint,
  keras_files,
)
from bertlib.checkpoints.foreign_checkpoint import ForeignCheckpoint
from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api  # noqa: F401 (selects Keras 2, which tensorflow_hub uses)
from bertlib.data import vocabulary
from bertlib.exchange import initial_model, zoo
from bertlib.io import json_files, model_files
from bertlib.settings import model_description

# From variable names of TensorFlow's Model Garden to BERT's.
_NAMES = (
  (r"^word_embeddings/embeddings$", "embeddings/word_embeddings"),
  (r"^position_embedding/embeddings$", "embeddings/position_embeddings"),
  (r"^type_embeddings/embeddings$", "embeddings/token_type_embeddings"),
  (r"^embeddings/layer_norm/", "embeddings/LayerNorm/"),
  (r"^embedding_projection/", "embeddings_project/"),
  (r"^transformer/layer_", "encoder/layer_"),
  (r"/self_attention/attention_output/", "/attention/output/dense/"),
  (r"/self_attention/", "/attention/self/"),
  (r"/self_attention_layer_norm/", "/attention/output/LayerNorm/"),
  (r"/intermediate/", "/intermediate/dense/"),
  (r"(layer_\d+)/output/", r"\1/output/dense/"),
  (r"/output_layer_norm/", "/output/LayerNorm/"),
  (r"^pooler_transform/", "pooler/dense/"),
)


# Modules of TensorFlow 1; later versions are SavedModels of TensorFlow 2.
_MODULE = re.compile(
  r"https?://tfhub\.dev/google/(?:small_bert/)?bert_(.+)/1/?"
)
_TF1_MARK = "tfhub_module.pb"


def published_name(handle: str) -> str | None:
  """Name of the published model that a module of TensorFlow 1 has, or None."""
  match = _MODULE.fullmatch(handle)
  is_known = match and initial_model.is_name(match[1])
  return match[1] if is_known else None


def convert(handle: str) -> str:
  """Folder of an encoder as converted into the cache, once."""
  if name := published_name(handle):
    return zoo.fetch(name)
  folder = _resolve(handle)
  is_tf1 = tf.io.gfile.exists(os.path.join(folder, _TF1_MARK))
  write = _convert_tf1 if is_tf1 else _convert
  names = ("saved_model.pb", "variables/variables.index")
  paths = [os.path.join(folder, name) for name in names]
  return zoo.convert_once(
    folder, paths, lambda target_dir: write(handle, folder, target_dir)
  )


def lowercases(handle: str, folder: str) -> bool:
  """True if the model of a handle, converted to `folder`, lower-cases text."""
  description = model_description.load(folder)
  if "do_lower_case" in description:
    return description["do_lower_case"]
  if name := published_name(handle):
    return initial_model.find(name).do_lower_case
  if match := re.search(r"(un)?cased", os.path.basename(handle.rstrip("/"))):
    return bool(match[1])
  path = os.path.join(folder, model_files.VOCAB)
  return not vocabulary.is_cased(vocabulary.read_entries(path))


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
  if not tf.io.gfile.exists(os.path.join(folder, "saved_model.pb")):
    raise InputError(
      f"{handle}: not a SavedModel. Name its folder or its address"
    )
  return folder


def _convert_tf1(handle: str, folder: str, target_dir: str) -> None:
  """Writes a module of TensorFlow 1 as a checkpoint with its files."""
  variables = os.path.join(folder, "variables", "variables")
  weights = dict(ForeignCheckpoint(variables))
  _check_encoder(handle, weights)
  width = weights["bert/embeddings/word_embeddings"].shape[1]
  stated = re.search(r"_A-(\d+)", handle)
  num_heads = int(stated[1]) if stated else width // 64
  if not stated:
    logging.warning(
      "%s: assuming %d attention heads, of size 64. Its name has no number of"
      " heads, as L-12_H-768_A-12 has",
      handle,
      num_heads,
    )
  with tf.io.gfile.GFile(os.path.join(folder, "saved_model.pb"), "rb") as file:
    # The exact GELU has this operation, the approximation has Tanh.
    is_exact = b"\x12\x03Erf" in file.read()
  hidden_act = "gelu" if is_exact else "gelu_tanh"
  path_of = functools.partial(os.path.join, target_dir)
  checkpoint_files.write_variables(path_of(model_files.CHECKPOINT), weights)
  json_files.write(
    path_of(model_files.CONFIG), _config_of(weights, num_heads, hidden_act)
  )
  vocab = os.path.join(folder, "assets", model_files.VOCAB)
  tf.io.gfile.copy(vocab, path_of(model_files.VOCAB))
  casing = {"do_lower_case": lowercases(handle, target_dir)}
  json_files.write(path_of(model_files.DESCRIPTION), casing)


def _convert(handle: str, folder: str, target_dir: str) -> None:
  """Writes an encoder as a checkpoint with its files to a folder."""
  loaded = tf.saved_model.load(folder)
  weights = _weights(handle, loaded)
  path_of = functools.partial(os.path.join, target_dir)
  checkpoint_files.write_variables(path_of(model_files.CHECKPOINT), weights)
  config = path_of(model_files.CONFIG)
  own_config = os.path.join(folder, "assets", model_files.CONFIG)
  if tf.io.gfile.exists(own_config):
    tf.io.gfile.copy(own_config, config)
  else:
    num_heads = next(
      int(variable.shape[1])
      for variable in loaded.variables
      if variable.name.endswith("self_attention/query/kernel:0")
    )
    # The Model Garden's encoders use the tanh approximation.
    json_files.write(config, _config_of(weights, num_heads, "gelu_tanh"))
  if hasattr(loaded, "vocab_file"):
    vocab = loaded.vocab_file.asset_path.numpy().decode()
    tf.io.gfile.copy(vocab, path_of(model_files.VOCAB))
  lower = getattr(loaded, "do_lower_case", None)
  casing = {} if lower is None else {"do_lower_case": bool(lower.numpy())}
  json_files.write(path_of(model_files.DESCRIPTION), casing)


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
  _check_encoder(handle, weights)
  return weights


def _check_encoder(handle: str, weights: Mapping[str, np.ndarray]) -> None:
  """Refuses weights that are not those of a BERT encoder."""
  if "bert/embeddings/word_embeddings" not in weights:
    raise InputError(
      f"{handle}: has no BERT encoder that can be fine-tuned; it holds"
      f" {', '.join(list(weights)[:3]) or 'no variables'}. Name an export of"
      " export_model.py --encoder, or a BERT encoder of TensorFlow Hub"
    )


def _config_of(weights: Mapping[str, np.ndarray], *more: Any) -> dict[str, Any]:
  """Contents of `bert_config.json`, see `config_of_shapes`."""
  shapes = {name: value.shape for name, value in weights.items()}
  return foreign_checkpoint.config_of_shapes(shapes, *more)
