"""Exports a trained model for programs that do not have this code.

  python export_model.py --model_dir=output/mrpc --export_dir=exported/mrpc/1

A SavedModel takes ids or raw text. It needs only core TensorFlow operations, so
TensorFlow Serving can run it, and contains no optimizer state. With --encoder,
or for a checkpoint without model.json, it is an encoder in the format of
TensorFlow Hub, which can be fine-tuned. --format names other formats.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.settings.export import ExportSettings

  app.parse_flags(ExportSettings, imports_tensorflow=True)

import contextlib
import dataclasses
import functools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

import modeling
import tokenization
from bertlib.checkpoints import checkpoint_files, initialize, model_folder
from bertlib.cli import app, option, terminal
from bertlib.cli.errors import InputError, printable
from bertlib.compute import onednn
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import vocabulary
from bertlib.exchange import resolve, to_huggingface
from bertlib.export import (
  exported_model,
  gguf_file,
  onnx_folder,
  onnx_graph,
  quantization,
  same_outputs,
  signatures,
  tf1_module,
)
from bertlib.io import files, folder_lock, model_files, output_folders
from bertlib.io.files import atomic_write
from bertlib.io.output_folders import atomic_folder
from bertlib.settings import model_description
from bertlib.settings.common import QuantizationSettings
from bertlib.settings.export import ExportSettings
from bertlib.task import task_record
from bertlib.task.task_record import TaskRecord


class Source(NamedTuple):
  """The parts of a model to export."""

  # Contents of `model.json`; for an encoder, without `script`.
  description: dict[str, Any]
  config: modeling.BertConfig
  checkpoint: str  # without `.index`
  vocab_file: str | None  # None to export without raw text
  model_dir: str | None = None  # of the trained model
  task: TaskRecord | None = None  # of its `script`


def find_source(
  model_dir: str | None,
  checkpoint: str | None,
  config_file: str | None,
  vocab_file: str | None,
  # Casing if there is no `model_dir`.
  do_lower_case: bool,
  max_seq_length: int | None,
  task: TaskRecord | None = None,
) -> Source:
  """Finds the parts of a model; those of `model_dir` where none is given."""
  description = {"do_lower_case": do_lower_case}
  if model_dir:
    script = model_description.load(model_dir).get("script")
    task = task if task and task.script == script else task_record.find(script)
    load = model_folder.check if task else model_description.load
    description |= load(model_dir, task)
    if checkpoint:
      model_folder.check_same_task(model_dir, description, checkpoint)
    checkpoint = checkpoint or checkpoint_files.model_checkpoint(model_dir)
    if not checkpoint:
      raise InputError(f"{model_dir}: holds no trained model")
    config_file = config_file or os.path.join(model_dir, model_files.CONFIG)
    in_folder = model_files.path_of(model_dir, "vocab_file")
    if not vocab_file and tf.io.gfile.exists(in_folder):
      vocab_file = in_folder
    if "script" not in description:
      logging.warning(
        "%s: %s is missing or names no task; only the encoder is exported",
        model_dir,
        model_files.DESCRIPTION,
      )
  if not checkpoint or not config_file:
    raise InputError(
      "name --model_dir, the folder of a trained model; or --init_checkpoint"
      " and --bert_config_file, and --vocab_file for an export that takes text"
    )
  checkpoint_files.check_checkpoint(checkpoint)
  config = model_folder.load_config(config_file)
  length = max_seq_length or description.get("max_seq_length", 128)
  model_folder.check_max_seq_length(length, vars(config))
  description["max_seq_length"] = length
  return Source(description, config, checkpoint, vocab_file, model_dir, task)


def signature_model(
  source: Source,
  encoder: bool = False,
  seq_length: int | None = None,
  precision: str = "float32",
) -> signatures.SignatureModel:
  """Creates the `signatures.SignatureModel` of a model, or of its encoder."""
  task, script = None, source.description.get("script")
  if script and not encoder:
    task = source.task
    if not (task and task.export):
      raise InputError(
        f"--model_dir: is a model of {script}, whose output layers cannot be"
        " exported. Give --task_module, which says how, or --encoder to export"
        " its encoder"
      )
  model_class, build_model = signatures.find(task)
  tokenizer = None
  if source.vocab_file:
    tokenizer = vocabulary.tokenizer_of_model(
      source.vocab_file,
      source.description,
      vars(source.config),
      init_checkpoint=source.checkpoint,
      finds_mask=model_class.finds_mask,
    )
  if seq_length:
    model_folder.check_max_seq_length(seq_length, vars(source.config))
  model = model_class(
    source.description,
    source.config,
    tokenizer,
    seq_length,
    tf.as_dtype(precision),
    build_model,
  )
  if isinstance(model, signatures.Encoder):
    stored = checkpoint_files.shapes_of(source.checkpoint)
    model.has_pooler = "bert/pooler/dense/kernel" in stored
  return model


# Weights


class Shapes(NamedTuple):
  """Shapes of the weights of a model's graph, by name."""

  used: dict[str, list[int]]
  # Those that no output depends on, such as the pooler of a tagger: a converted
  # model may lack them.
  unused: dict[str, list[int]]


def weight_shapes(
  model: signatures.SignatureModel, of_file: bool = False
) -> Shapes:
  """Shapes of the weights of a model's graph, or of `outputs`."""
  signature = model.signatures()["ids"]
  if of_file:
    signature = signatures.Signature(model.features(), model.outputs)
  with tf.Graph().as_default():
    inputs = {
      name: tf.compat.v1.placeholder(tf.int32, [None] * spec.shape.rank)
      for name, spec in signature.inputs.items()
    }
    outputs = signature.function(inputs).values()
    used = set(map(initialize.name_of, initialize.weights_of(outputs)))
    unused = initialize.weights_of_graph()
  return Shapes({n: unused.pop(n) for n in [*unused] if n in used}, unused)


def read_weights(checkpoint: str, shapes: Shapes) -> dict[str, np.ndarray]:
  """Weights by name; InputError if the checkpoint is not of the model."""
  try:
    initialize.check_trained(checkpoint, shapes.used, known=shapes.unused)
  except InputError as error:
    raise InputError(f"{error}; or give --encoder") from error
  stored = checkpoint_files.Checkpoint(checkpoint)
  weights = {n: np.zeros(s, np.float32) for n, s in shapes.unused.items()}
  weights |= {name: stored[name] for name in shapes.used}
  # An encoder, and vectors without a projection, leave output layers out.
  if any(not name.startswith("bert/") for name in shapes.used):
    initialize.warn_of_unused(checkpoint, weights)
  return weights


def trained_encoder(source: Source, tokenizer) -> quantization.TrainedEncoder:
  """The encoder of a model, to be computed in 8 bits."""
  return quantization.TrainedEncoder(
    source.config,
    source.checkpoint,
    source.model_dir,
    tokenizer,
    source.description["max_seq_length"],
    source.task.prefix(source.description) if source.task else "",
  )


def constant_getter(
  model: signatures.SignatureModel, checkpoint: str, size: int, dtype
) -> Callable | None:
  """Getter of constant weights, kernels in 16 bits; None for variables."""
  can_be_trained = isinstance(model, signatures.Encoder)
  # Variables can be fine-tuned, but are cast to a 16-bit precision in every
  # call. A graph holds at most 2 GB of constants.
  if dtype == tf.float32 or can_be_trained or size >= 2**31:
    return None

  def convert(name, value):
    is_kernel = name.endswith("/kernel")
    return tf.constant(
      value.astype(dtype.as_numpy_dtype) if is_kernel else value
    )

  return initialize.constant_getter(checkpoint, convert)


# The SavedModel


def saved_model_object(
  model: signatures.SignatureModel,
  weights: Mapping[str, np.ndarray],  # by name; none for a frozen model
  folder: str,  # its files become assets
) -> tuple[tf.train.Checkpoint, dict[str, Any]]:
  """Object for `tf.saved_model.save`, and its signatures by name."""
  module = tf1_module.GraphModule(weights)
  # Any trackable object: `save` keeps its attributes.
  saved_object = tf.train.Checkpoint()
  saved_object.variables = module.weights
  saved_object.assets = [
    tf.saved_model.Asset(os.path.join(folder, name))
    for name in sorted(os.listdir(folder))
  ]

  def callable_with(function, inputs):
    # Tokenization and decoding are loops over integers, which a GPU would have
    # to wait for. `SignatureModel.run` leaves the host again.
    takes_texts = any(spec.dtype == tf.string for spec in inputs.values())
    device = "/cpu:0" if takes_texts else ""

    def call(**tensors):
      scope = module.scope() if weights else contextlib.nullcontext()
      with tf.device(device), scope:
        return function(tensors)

    return tf.function(call, autograph=False).get_concrete_function(**inputs)

  callables = {
    name: callable_with(signature.function, signature.inputs)
    for name, signature in model.signatures().items()
  }
  main = model.main if model.main in callables else "ids"
  callables["serving_default"] = callables[main]
  if weights and isinstance(model, signatures.Encoder):
    _make_callable(saved_object, module, model, folder)
  return saved_object, callables


def _make_callable(
  saved_object,
  module: tf1_module.GraphModule,
  model: signatures.Encoder,
  folder,
) -> None:
  """Adds the attributes with which TensorFlow Hub and Keras use an encoder."""
  saved_object.trainable_variables = module.weights
  saved_object.regularization_losses = []
  vocab_file = os.path.join(folder, model_files.VOCAB)
  if os.path.exists(vocab_file):
    saved_object.vocab_file = tf.saved_model.Asset(vocab_file)
    saved_object.do_lower_case = tf.Variable(
      model.description["do_lower_case"], trainable=False
    )

  def call(inputs, is_training):
    with module.scope():
      return model.call(inputs, is_training)

  specs = model.token_specs()
  saved_object.__call__ = tf.function(
    lambda inputs, training=False: call(inputs, training), autograph=False
  )
  for is_training in (False, True):
    saved_object.__call__.get_concrete_function(specs, training=is_training)
  # Keras 3 needs separate attributes for prediction and training.
  saved_object.encode, saved_object.encode_training = (
    tf.function(
      functools.partial(call, is_training=is_training),
      input_signature=[specs],
      autograph=False,
    )
    for is_training in (False, True)
  )


def write_assets(source: Source, folder: str) -> None:
  """Writes `model.json`, config, vocabulary and labels to a folder."""
  description = dict(source.description)
  if source.model_dir:
    trained = source.model_dir.rstrip("/")
    step = re.search(r"-(\d+)$", source.checkpoint)
    description["trained"] = {
      "folder": trained
      if files.is_remote(trained)
      else os.path.abspath(trained),
      "step": int(step[1]) if step else None,
    }
  model_folder.write_model_files(
    folder, description, source.config, source.vocab_file
  )
  if labels := source.description.get("labels"):
    path = os.path.join(folder, exported_model.LABELS_FILE)
    with atomic_write(path) as file:
      # Each label on one line.
      file.write("".join(f"{printable(label)}\n" for label in labels))


def export(
  source: Source,
  export_dir: str,
  encoder: bool = False,
  seq_length: int | None = None,  # of every batch; None for any
  precision: str = "auto",
  int8: QuantizationSettings | None = None,  # None for a model without
  overwrite: bool = False,
) -> signatures.SignatureModel:
  """Writes a model, or its encoder, as a SavedModel; returns the model."""
  # Dtype of activations; with 8-bit layers, of attention.
  dtype = tf.float32 if precision == "auto" else tf.as_dtype(precision)
  if int8 and precision == "auto":
    dtype = quantization.best_attention_dtype()
  hidden_dtype = tf.float32 if int8 else dtype
  model = signature_model(source, encoder, seq_length, hidden_dtype.name)
  if model.tokenizer and not model.text:
    logging.warning(
      "%s: TensorFlow has no operations for this tokenizer, so the signatures"
      " take ids alone. --format=onnx exports the tokenizer too",
      source.vocab_file,
    )
  shapes = weight_shapes(model)
  number_formats = dtype.name, onednn.max_kernel_value() if int8 else None
  if int8:
    if not onednn.has_int8_matmul():
      raise InputError(
        f"--quantize=int8: {onednn.missing_int8()}, or export in float32"
      )
    model.compute = dataclasses.replace(model.compute, use_onednn=True)

  weights = read_weights(source.checkpoint, shapes)
  size = sum(value.nbytes for value in weights.values())
  if int8:
    trained = trained_encoder(source, model.tokenizer)
    getter = quantization.weight_getter(trained, int8, attention_dtype=dtype)
  else:
    getter = constant_getter(model, source.checkpoint, size, dtype)
  if getter:
    model.freeze(getter, shapes.unused)
    weights = {}
  with (
    atomic_folder(export_dir, overwrite) as temporary_dir,
    tempfile.TemporaryDirectory() as own,
  ):
    write_assets(source, own)
    saved_object, callables = saved_model_object(model, weights, own)
    with terminal.quiet(logging.ERROR):  # TensorFlow logs much here
      tf.saved_model.save(saved_object, temporary_dir, callables)
    exported_model.write_format(temporary_dir, *number_formats)
  logging.info("%s: exported from %s", export_dir, source.checkpoint)
  logging.info("signatures: %s", ", ".join(callables))
  return model


# Formats of one model file, with its vocabulary and labels beside it


@contextlib.contextmanager
def folder_of_model(
  source: Source, export_dir: str, overwrite: bool
) -> Iterator[str]:
  """Yields a temporary folder that has the assets of a model already."""
  with atomic_folder(export_dir, overwrite) as temporary_dir:
    tf.io.gfile.makedirs(temporary_dir)
    write_assets(source, temporary_dir)
    yield temporary_dir
  logging.info("%s: exported from %s", export_dir, source.checkpoint)


def check_vocabulary(
  model: signatures.SignatureModel, file_format: str
) -> None:
  """Refuses a model without a vocabulary, or with other rules for it."""
  flag = f"--format={file_format}"
  if not model.tokenizer:
    raise InputError(f"{flag}: needs a vocabulary. Name it by --vocab_file")
  if isinstance(model.tokenizer, tokenization.FullTokenizer):
    same_outputs.check_tokenizer(flag, model.description["do_lower_case"])


# TensorFlow Lite


def export_quantized(
  source: Source,
  export_dir: str,
  encoder: bool = False,
  seq_length: int | None = None,
  overwrite: bool = False,
) -> None:
  """Writes a model for TensorFlow Lite, quantized to 8 bits."""
  # Weights are int8, and activations are quantized at run time in matrix
  # products (dynamic range quantization). The model takes the ids of texts or
  # pairs.
  model = signature_model(source, encoder, seq_length)
  model.compute = FastCompute()  # without the operations of unpadding
  ids = model.signatures()["ids"]

  weights = read_weights(source.checkpoint, weight_shapes(model))
  module = tf1_module.GraphModule(weights)

  def call(**tensors):
    with module.scope():
      outputs = ids.function(tensors)
    return {k: v for k, v in outputs.items() if v.dtype != tf.string}

  function = tf.function(call, autograph=False)
  converter = tf.lite.TFLiteConverter.from_concrete_functions(
    [function.get_concrete_function(**ids.inputs)], module
  )
  converter.optimizations = [tf.lite.Optimize.DEFAULT]
  with terminal.quiet(logging.ERROR):  # TensorFlow logs much here
    tflite_model = converter.convert()
  with folder_of_model(source, export_dir, overwrite) as temporary_dir:
    path = os.path.join(temporary_dir, exported_model.TFLITE_FILE)
    with atomic_write(path, "wb") as file:
      file.write(tflite_model)


# GGUF


def export_gguf(
  source: Source,
  export_dir: str,
  encoder: bool = False,
  precision: str = "float32",  # of matrices: float32, float16 or int8
  overwrite: bool = False,
) -> None:
  """Writes sentence vectors or the encoder for llama.cpp and Ollama."""
  model = signature_model(source, encoder)
  is_encoder = isinstance(model, signatures.Encoder)
  embedding = {} if is_encoder else source.description.get("embedding")
  if embedding is None:
    raise InputError(
      "--format=gguf: llama.cpp does not compute the output layer of this task."
      " Give --encoder to export the encoder"
    )
  check_vocabulary(model, "gguf")
  if not isinstance(model.tokenizer, tokenization.FullTokenizer):
    raise InputError(
      f"--format=gguf: {source.vocab_file} is not WordPiece. Export ONNX"
    )
  gguf_file.check_model(source.config, embedding)
  flag, act = "--format=gguf", source.config.hidden_act
  same_outputs.check_formula(flag, act, has_pooler=False)
  if not is_encoder:
    same_outputs.check_formula(flag, act, source.task)

  shapes = weight_shapes(model, of_file=True).used
  shapes = {n: s for n, s in shapes.items() if not n.startswith("bert/pooler/")}
  weights = read_weights(source.checkpoint, Shapes(shapes, {}))
  scripts = gguf_file.scripts_without_vowels(model.tokenizer.vocab)
  if scripts and source.description["do_lower_case"]:
    logging.warning(
      "%s: in llama.cpp texts lose their vowels in %s, for which the vocabulary"
      " has pieces: their vectors are others. Use ONNX for them",
      flag,
      ", ".join(scripts),
    )
  with (
    folder_of_model(source, export_dir, overwrite) as temporary_dir,
    terminal.quiet(logging.WARNING),  # gguf logs temporary paths
  ):
    gguf_file.write(
      os.path.join(temporary_dir, gguf_file.FILE),
      source.config,
      weights,
      model.tokenizer.inv_vocab,
      source.description | {"embedding": embedding},
      precision,
    )


# ONNX


def export_onnx(
  source: Source,
  export_dir: str,
  encoder: bool = False,
  seq_length: int | None = None,
  precision: str = "float32",  # of the stored weights: or "float16"
  int8: QuantizationSettings | None = None,
  overwrite: bool = False,
) -> None:
  """Writes a model, or its encoder, for ONNX Runtime and OpenVINO."""
  model = signature_model(source, encoder, seq_length)
  check_vocabulary(model, "onnx")
  description = dict(source.description)
  task, head = source.task, onnx_graph.hidden_states
  if isinstance(model, signatures.Encoder):
    description.pop("script", None)
    task = None
  elif task.onnx_head:
    head = task.onnx_head(description)
  else:
    raise InputError(
      f"--format=onnx: the output layers of {description['script']} cannot be"
      " written. Give --encoder to export the encoder"
    )
  if seq_length:
    description |= {"seq_length": seq_length, "max_seq_length": seq_length}

  shapes = weight_shapes(model, of_file=True)

  def draw(weights, ranges=None, stores_float16=False, has_states=False):
    graph = onnx_graph.Graph(stores_float16)
    encoder = onnx_graph.Encoder(
      graph,
      vars(source.config),
      weights,
      ranges or {},
      seq_length,
      description["max_seq_length"],
    )
    outputs = head(encoder)
    if has_states:
      outputs = onnx_graph.last_hidden_state(encoder) | outputs
    return graph.model(outputs)

  source = source._replace(description=description)
  weights = read_weights(source.checkpoint, shapes)
  flag = "--quantize=int8" if int8 else f"--precision={precision}"
  graph = same_outputs.converted(model, weights, shapes.used, draw, flag)
  ranges = {}
  if int8:
    trained = trained_encoder(source, model.tokenizer)
    ranges = quantization.find(
      trained, int8.calibration_file, of_attention=True
    )
    ranges = quantization.without_skipped(ranges, int8.int8_skip_layers)
  graph = graph or draw(weights, ranges, precision == "float16")
  with folder_of_model(source, export_dir, overwrite) as temporary_dir:
    onnx_folder.write(
      temporary_dir,
      graph,
      description,
      to_huggingface.config_of(source.config, weights, description, task),
      model.tokenizer,
      task,
      is_int8=bool(int8),
    )


# Command


def define_flags() -> None:
  """Defines the flags."""
  option.define(ExportSettings)


def main(_) -> None:
  """Exports the model that the flags name."""
  settings = option.from_flags(ExportSettings)
  export_dir = settings.export_dir.rstrip("/")
  exported_model.check_export_dir(export_dir, settings.overwrite)
  with (
    output_folders.folders_for([export_dir]),
    folder_lock.lock_files([export_dir], "export_dir"),
  ):
    _export(settings)


def _export(settings: ExportSettings) -> None:
  named = settings.model.init_checkpoint
  settings = resolve.complete(settings)
  model, model_dir = settings.model, settings.model_dir
  # The folder of a trained model says as much by either flag; the path of a
  # checkpoint names an encoder.
  is_folder = model.folder and not files.exists(f"{named}.index")
  if is_folder and "script" in model_description.load(model.folder):
    model_dir = model_dir or model.folder
  source = find_source(
    model_dir,
    model.init_checkpoint,
    model.bert_config_file,
    model.vocab_file,
    model.do_lower_case,
    model.max_seq_length,
    settings.task_module and task_record.load(settings.task_module),
  )
  options = {
    "export_dir": settings.export_dir,
    "encoder": settings.encoder,
    "overwrite": settings.overwrite,
  }
  int8 = settings.quantization if settings.quantize == "int8" else None
  stored = settings.precision.replace("auto", "float32")
  if settings.format == "gguf":
    export_gguf(source, **options, precision="int8" if int8 else stored)
    return
  options["seq_length"] = settings.seq_length
  if settings.format == "onnx":
    export_onnx(source, **options, precision=stored, int8=int8)
  elif settings.quantize == "dynamic_int8":
    export_quantized(source, **options)
  else:
    export(source, **options, precision=settings.precision, int8=int8)


if __name__ == "__main__":
  app.run(main)
