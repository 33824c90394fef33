"""Exports a trained model as a SavedModel that takes ids or raw text.

  python export_model.py --model_dir=output/mrpc --export_dir=exported/mrpc/1

It is made of TensorFlow's core operations alone, so that TensorFlow Serving
runs it as it is, and holds the weights and nothing of the optimizer. With
--encoder, or from a checkpoint that no script here trained, it is an encoder
in the form of TensorFlow Hub, which can be trained on.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib import app
  from bertlib.settings.export import ExportSettings

  app.parse_flags(ExportSettings, imports_tensorflow=True)

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

import modeling
import run_classifier
import run_ner
import run_pretraining
import run_squad
from bertlib import app
from bertlib.checkpoints import finding, loading, model_json, rewrite
from bertlib.compute import FastCompute
from bertlib.data import vocabulary
from bertlib.errors import InputError
from bertlib.export import signatures, tf1_module
from bertlib.files import atomic_folder, atomic_write
from bertlib.settings import option
from bertlib.settings.export import ExportSettings
from bertlib.training import resolve

# What is exported of the models of each script, and what builds their graphs.
EXPORTED_MODELS = {
  "run_classifier": (signatures.Classifier, run_classifier.Predictor.build),
  "run_ner": (signatures.Tagger, run_ner.Predictor.build),
  "run_pretraining": (signatures.MaskedLM, run_pretraining.create_model),
  "run_squad": (signatures.QuestionAnswering, run_squad.Predictor.build),
}


class Source(NamedTuple):
  """What is exported.

  Attributes:
    description: of the model, as its script wrote it; of an encoder, without
      a `script`.
    config: its sizes.
    checkpoint: its weights.
    vocab_file: its vocabulary; None where it is not known.
  """

  description: dict[str, Any]
  config: modeling.BertConfig
  checkpoint: str
  vocab_file: str | None


def find_source(
  model_dir: str | None,
  checkpoint: str | None,
  config_file: str | None,
  vocab_file: str | None,
  do_lower_case: bool,
  max_seq_length: int | None,
) -> Source:
  """Finds all parts of a model.

  Args:
    model_dir: the folder of a training run, which has the others; or None.
    checkpoint: of the model; None for the one that the folder is used by.
    config_file: its sizes; None for the folder's.
    vocab_file: its vocabulary; None for the folder's.
    do_lower_case: of a vocabulary that is no folder's.
    max_seq_length: tokens of a text; None for the folder's, or else 128.

  Returns:
    The model.

  Raises:
    InputError: a part is missing.
  """
  description = {"do_lower_case": do_lower_case}
  if model_dir:
    description |= model_json.load_description(model_dir)
    model_json.check_description(model_dir, description)
    checkpoint = checkpoint or finding.trained_checkpoint(model_dir)
    if not checkpoint:
      raise InputError(f"{model_dir}: holds no trained model")
    config_file = config_file or os.path.join(model_dir, loading.CONFIG_FILE)
    in_folder = os.path.join(model_dir, loading.VOCAB_FILE)
    if tf.io.gfile.exists(in_folder):
      if vocab_file:
        vocabulary.check_same(vocab_file, in_folder)
      vocab_file = in_folder
    if "script" not in description:
      logging.warning(
        "%s has no %s, so what its model does is not known; that is its encoder"
        " alone",
        model_dir,
        model_json.MODEL_FILE,
      )
  if not checkpoint or not config_file:
    raise InputError(
      "name --model_dir, the folder of a trained model; or --init_checkpoint"
      " and --bert_config_file, and --vocab_file for an export that takes text"
    )
  finding.check_checkpoint(checkpoint)
  config = loading.load_config(config_file)
  length = max_seq_length or description.get("max_seq_length", 128)
  loading.check_max_seq_length(length, config)
  description["max_seq_length"] = length
  return Source(description, config, checkpoint, vocab_file)


def exported_model(
  source: Source, encoder: bool, seq_length: int | None, precision: str
) -> signatures.ExportedModel:
  """The model as operations.

  Args:
    source: the model.
    encoder: whether only its encoder is wanted.
    seq_length: length of every batch; None for any.
    precision: see `--precision`.

  Returns:
    A `signatures.ExportedModel`.

  Raises:
    InputError: its vocabulary does not fit.
  """
  script = None if encoder else source.description.get("script")
  served, build_model = EXPORTED_MODELS.get(script, (signatures.Encoder, None))
  tokenizer = None
  if source.vocab_file:
    tokenizer = vocabulary.load_tokenizer(
      source.vocab_file,
      source.description["do_lower_case"],
      source.config.vocab_size,
      source.checkpoint,
      served.never_split,
    )
  if seq_length:
    loading.check_max_seq_length(seq_length, source.config)
  return served(
    source.description,
    source.config,
    tokenizer,
    seq_length,
    tf.as_dtype(precision),
    build_model,
  )


# Weights


def read_weights(
  served: signatures.ExportedModel, checkpoint: str
) -> dict[str, np.ndarray]:
  """The weights of a model's graph, and no others.

  Args:
    served: the model.
    checkpoint: has them.

  Returns:
    Their values by name.

  Raises:
    InputError: one is missing or of another shape, or cannot be read.
  """
  ids = served.signatures()["ids"]
  with tf.Graph().as_default():
    inputs = {
      name: tf.compat.v1.placeholder(tf.int32, [None] * spec.shape.rank)
      for name, spec in ids.inputs.items()
    }
    ids.function(inputs)
    shapes = {
      variable.op.name: variable.shape.as_list()
      for variable in tf.compat.v1.trainable_variables()
    }
  stored = rewrite.Checkpoint(checkpoint)
  for name, shape in shapes.items():
    found = stored.shapes.get(name)
    if found != shape:
      raise InputError(
        f"{checkpoint}: has {name} with the shape {found}, but the"
        f" model needs {shape}. Name the --model_dir that it was trained in, or"
        " its own --bert_config_file; or give --encoder"
      )
  return {name: stored[name] for name in shapes}


# The SavedModel


def saved_model_object(
  served: signatures.ExportedModel,
  weights: Mapping[str, np.ndarray],
  folder: str,
) -> tuple[tf.train.Checkpoint, dict[str, Any]]:
  """The model as an object for `tf.saved_model.save`.

  Args:
    served: the model.
    weights: of it.
    folder: has the files that travel with it.

  Returns:
    The object, and its signatures by name.
  """
  module = tf1_module.GraphModule(weights)
  # An object of any kind whose attributes are kept.
  exported = tf.train.Checkpoint()
  exported.variables = module.weights
  exported.assets = [
    tf.saved_model.Asset(os.path.join(folder, name))
    for name in sorted(os.listdir(folder))
  ]

  def callable_with(function, inputs):
    def call(**tensors):
      with module.scope():
        return function(tensors)

    return tf.function(call, autograph=False).get_concrete_function(**inputs)

  callables = {
    name: callable_with(signature.function, signature.inputs)
    for name, signature in served.signatures().items()
  }
  main = served.main if served.main in callables else "ids"
  callables["serving_default"] = callables[main]
  if isinstance(served, signatures.Encoder):
    _make_callable(exported, module, served, folder)
  return exported, callables


def _make_callable(
  exported, module: tf1_module.GraphModule, served: signatures.Encoder, folder
) -> None:
  """Gives an encoder what TensorFlow Hub and Keras call, train and look at."""
  exported.trainable_variables = module.weights
  exported.regularization_losses = []
  vocab_file = os.path.join(folder, loading.VOCAB_FILE)
  if os.path.exists(vocab_file):
    exported.vocab_file = tf.saved_model.Asset(vocab_file)
    exported.do_lower_case = tf.Variable(
      served.description["do_lower_case"], trainable=False
    )

  def call(inputs, is_training):
    with module.scope():
      return served.call(inputs, is_training)

  specs = served.token_specs()
  exported.__call__ = tf.function(
    lambda inputs, training=False: call(inputs, training), autograph=False
  )
  for is_training in (False, True):
    exported.__call__.get_concrete_function(specs, training=is_training)
  # Keras 3 takes an attribute for each.
  exported.encode, exported.encode_training = (
    tf.function(
      functools.partial(call, is_training=is_training),
      input_signature=[specs],
      autograph=False,
    )
    for is_training in (False, True)
  )


def write_assets(source: Source, folder: str) -> None:
  """Writes the files that travel with a model: its parts and its labels.

  Args:
    source: the model.
    folder: gets them.
  """
  model_json.write_model_files(
    folder, source.description, source.config, source.vocab_file
  )
  labels = source.description.get("labels")
  if labels:
    with atomic_write(os.path.join(folder, "labels.txt")) as file:
      file.write("".join(f"{label}\n" for label in labels))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Inside, TensorFlow does not tell of each step of its saving."""
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(verbosity)


def export(
  source: Source,
  export_dir: str,
  encoder: bool = False,
  seq_length: int | None = None,
  precision: str = "float32",
) -> signatures.ExportedModel:
  """Writes a model as a SavedModel.

  Args:
    source: the model.
    export_dir: the folder to make.
    encoder: whether only its encoder is wanted.
    seq_length: length of every batch; None for any.
    precision: see `--precision`.

  Returns:
    What it was made of.

  Raises:
    InputError: the folder is there, or parts do not belong together.
  """
  served = exported_model(source, encoder, seq_length, precision)
  weights = read_weights(served, source.checkpoint)
  with (
    atomic_folder(export_dir) as beside,
    tempfile.TemporaryDirectory() as own,
  ):
    write_assets(source, own)
    exported, callables = saved_model_object(served, weights, own)
    with _quiet():
      tf.saved_model.save(exported, beside, callables)
  size = sum(value.nbytes for value in weights.values())
  logging.info(
    "%s: %d weights, %.1f MB, from %s; signatures %s (%s by default)",
    export_dir,
    len(weights),
    size / 1e6,
    source.checkpoint,
    ", ".join(name for name in callables if name != "serving_default"),
    served.main if served.main in callables else "ids",
  )
  return served


# TensorFlow Lite

TFLITE_FILE = "model.tflite"


def export_quantized(
  source: Source,
  export_dir: str,
  encoder: bool = False,
  seq_length: int | None = None,
) -> None:
  """Writes a model for TensorFlow Lite, with weights of 8 bits.

  Matrix products are of 8 bits too: what they multiply is scaled as it comes
  (dynamic range quantization). It takes the ids of one text. The folder has the
  model's vocabulary and labels beside it.

  Args:
    source: the model.
    export_dir: the folder to make.
    encoder: whether only its encoder is wanted.
    seq_length: length of every batch; None for any.

  Raises:
    InputError: the folder is there, or parts do not belong together.
  """
  served = exported_model(source, encoder, seq_length, "float32")
  served.compute = FastCompute()  # without the operations of unpadding
  weights = read_weights(served, source.checkpoint)
  module = tf1_module.GraphModule(weights)
  ids = served.signatures()["ids"]

  def call(**tensors):
    with module.scope():
      outputs = ids.function(tensors)
    return {k: v for k, v in outputs.items() if v.dtype != tf.string}

  # Slices of a batch whose size and length are both open cannot be converted.
  inputs = {
    name: tf.TensorSpec([1, *spec.shape[1:]], spec.dtype, name)
    for name, spec in ids.inputs.items()
  }
  function = tf.function(call, autograph=False)
  converter = tf.lite.TFLiteConverter.from_concrete_functions(
    [function.get_concrete_function(**inputs)], module
  )
  converter.optimizations = [tf.lite.Optimize.DEFAULT]
  with atomic_folder(export_dir) as beside:
    with _quiet():
      model = converter.convert()
    tf.io.gfile.makedirs(beside)
    write_assets(source, beside)
    with atomic_write(os.path.join(beside, TFLITE_FILE), "wb") as file:
      file.write(model)
  logging.info(
    "%s: %.1f MB of %.1f, from %s",
    os.path.join(export_dir, TFLITE_FILE),
    len(model) / 1e6,
    sum(value.nbytes for value in weights.values()) / 1e6,
    source.checkpoint,
  )


# The command line


def define_flags() -> None:
  """Defines the flags."""
  option.define(ExportSettings)


def main(_) -> None:
  """Does what the flags say."""
  settings = option.from_flags(ExportSettings)
  model = resolve.fetch_model(settings.model)
  source = find_source(
    settings.model_dir,
    model.init_checkpoint,
    model.bert_config_file,
    model.vocab_file,
    model.do_lower_case,
    model.max_seq_length,
  )
  what = (source, settings.export_dir, settings.encoder, settings.seq_length)
  if settings.quantize != "none":
    export_quantized(*what)
  else:
    export(*what, settings.precision)


if __name__ == "__main__":
  app.run(main)
