"""Calls the signatures of a model that export_model.py has written."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

if "tensorflow" not in sys.modules:  # in a program that uses ExportedModel
  from bertlib.cli import tensorflow_log

  tensorflow_log.hide_information()

import numpy as np
import tensorflow as tf
from absl import logging

from bertlib.checkpoints import model_folder
from bertlib.cli.errors import InputError
from bertlib.cli.option import declaration
from bertlib.compute import onednn
from bertlib.export import gguf_file, onnx_folder
from bertlib.io import files, json_files, model_files, processes
from bertlib.io.files import atomic_write
from bertlib.io.output_folders import check_new
from bertlib.settings.common import ComputeSettings

# Asset with the number formats of the model, and the hash of its graph.
FORMAT_FILE = "format.json"

# Asset with the labels of the model, one per line.
LABELS_FILE = "labels.txt"

# Model for TensorFlow Lite.
TFLITE_FILE = "model.tflite"

# Names in the folder of a SavedModel, and of a model of another format.
_SAVED_MODEL = {"assets", "fingerprint.pb", "saved_model.pb", "variables"}
_MODELS = ({TFLITE_FILE}, {gguf_file.FILE}, *onnx_folder.LAYOUTS)
_BESIDE_IT = {LABELS_FILE, *onnx_folder.CACHES, *model_files.COMPANIONS}
_GRAPH_FILE = "saved_model.pb"
_FIX = "Export the model again"


class ExportedModel:
  """An exported model, from texts or ids to NumPy arrays.

  ```python
  model = ExportedModel("output/exported/mrpc/1")
  model(text_a=["He left."], text_b=["He went away."])["label"]
  ```

  Attributes:
    signatures: the names of the inputs, by signature.
  """

  def __init__(self, folder: str):
    """Loads a model from the `--export_dir` of export_model.py.

    Raises:
      InputError: there is no SavedModel, it is damaged, or it cannot run here,
        also not in a process forked after TensorFlow has computed.
    """
    processes.check_threads(folder)
    if not tf.saved_model.contains_saved_model(folder):
      raise InputError(f"{folder}: contains no SavedModel")
    check_format(folder)
    model_folder.check(os.path.join(folder, "assets"))
    self._folder = folder
    try:
      self._model = tf.saved_model.load(folder)
    except Exception as error:  # depends on which file is damaged, and where
      reason = str(error).strip().partition("\n")[0][:200]
      raise InputError(
        f"{folder}: cannot be loaded ({reason or type(error).__name__}). {_FIX}"
      ) from error
    self.signatures = {
      name: sorted(self._specs(name)) for name in self._model.signatures
    }

  def __call__(
    self, signature: str = "serving_default", /, **inputs: Any
  ) -> dict[str, np.ndarray]:
    """Calls a signature.

    Args:
      signature: its name.
      **inputs: lists of texts, a text, or arrays of ids, by the names in
        `signatures`.

    Returns:
      Its outputs by name; those that are texts as arrays of str.

    Raises:
      InputError: there is no such signature, or the inputs do not fit it.
    """
    processes.check_threads(self._folder)
    if signature not in self.signatures:
      raise InputError(
        f"{self._folder}: has no signature {signature!r}. Name one of"
        f" {', '.join(self.signatures)}"
      )
    if sorted(inputs) != self.signatures[signature]:
      raise InputError(
        f"{self._folder}: signature {signature!r} takes the inputs"
        f" {', '.join(self.signatures[signature])}, not {', '.join(inputs)}"
      )
    tensors = {
      name: self._tensor(signature, name, value)
      for name, value in inputs.items()
    }
    # A single value, such as a query, has no rows.
    sizes = {n: len(t) for n, t in tensors.items() if t.shape.rank}
    if len(set(sizes.values())) > 1:
      counts = (f"{size} in {name}" for name, size in sizes.items())
      raise InputError(
        f"{self._folder}: inputs have different numbers of rows:"
        f" {', '.join(counts)}"
      )
    outputs = self._model.signatures[signature](**tensors)
    return {name: _array(tensor) for name, tensor in outputs.items()}

  def _tensor(self, signature: str, name: str, value: Any):
    """Converts a value to the input `name` of a signature."""
    spec = self._specs(signature)[name]
    try:
      tensor = tf.convert_to_tensor(value, spec.dtype)
    except (TypeError, ValueError) as error:
      raise InputError(f"{name}: {error}") from error
    if not spec.shape.is_compatible_with(tensor.shape):
      raise InputError(
        f"{name}: has shape {tensor.shape}, but signature {signature!r} takes"
        f" {spec.shape}"
      )
    return tensor

  def _specs(self, signature: str) -> dict[str, tf.TensorSpec]:
    return self._model.signatures[signature].structured_input_signature[1]


def _array(tensor) -> np.ndarray:
  """Value of a tensor; of strings, an array of str."""
  array = tensor.numpy()
  if tensor.dtype != tf.string:
    return array
  texts = [text.decode() for text in array.ravel()]
  return np.array(texts, object).reshape(array.shape)


def check_export_dir(folder: str, overwrite: bool) -> None:
  """Refuses an --export_dir that exists and must not be replaced."""
  check_new("export_dir", folder, overwrite)
  if not files.exists(folder):
    return
  if not tf.io.gfile.isdir(folder):
    raise InputError(f"--export_dir={folder}: is a file. Name a folder")
  names = {name.rstrip("/") for name in tf.io.gfile.listdir(folder)}
  # --overwrite removes only what this script has written.
  inner = os.path.dirname(onnx_folder.MODEL_FILES[0])
  path = os.path.join(folder, inner)
  if tf.io.gfile.isdir(path):
    found = (name.rstrip("/") for name in tf.io.gfile.listdir(path))
    names = names - {inner} | {f"{inner}/{name}" for name in found}
  in_assets = os.path.join(folder, "assets", model_files.DESCRIPTION)
  is_saved_model = names <= _SAVED_MODEL and tf.io.gfile.exists(in_assets)
  is_of_one_model = model_files.DESCRIPTION in names and any(
    names - _BESIDE_IT == model - _BESIDE_IT for model in _MODELS
  )
  if not (is_saved_model or is_of_one_model):
    raise InputError(
      f"--export_dir={folder}: has other files than an export of this script,"
      " which --overwrite would remove. Name another folder"
    )


def write_format(
  folder: str, precision: str, max_kernel_value: int | None = None
) -> None:
  """Adds `FORMAT_FILE` to a SavedModel: number formats, hash of its graph."""
  content = {
    "precision": precision,  # of activations; with 8-bit kernels, of attention
    "max_kernel_value": max_kernel_value,
    # Its variables have checksums, which TensorFlow verifies; its graph none.
    "graph_sha256": _hash_of_graph(folder),
  }
  path = os.path.join(folder, "assets", FORMAT_FILE)
  with atomic_write(path) as file:
    file.write(json_files.dumps(content))


def _hash_of_graph(folder: str) -> str | None:
  """SHA-256 of a SavedModel's graph; None for one of several files."""
  path = os.path.join(folder, _GRAPH_FILE)
  if not tf.io.gfile.exists(path):
    return None
  digest = hashlib.sha256()
  with tf.io.gfile.GFile(path, "rb") as file:
    while chunk := file.read(2**24):
      digest.update(chunk)
  return digest.hexdigest()


def check_format(folder: str) -> None:
  """Refuses an exported model that is damaged or cannot run on this machine."""
  path = os.path.join(folder, "assets", FORMAT_FILE)
  if not tf.io.gfile.exists(path):  # of an older version
    return
  schema = {
    "precision": declaration(ComputeSettings, "precision").without(
      "auto", "int8"
    ),
    "max_kernel_value": (int, json_files.NULL),
    "graph_sha256?": (str, json_files.NULL),
  }
  found = json_files.read(path, schema, _FIX)
  if found.get("graph_sha256") not in (None, _hash_of_graph(folder)):
    raise InputError(
      f"{folder}/{_GRAPH_FILE}: is damaged (its hash is not the one in"
      f" {FORMAT_FILE}). {_FIX}, or copy it again"
    )
  precision, max_kernel_value = found["precision"], found["max_kernel_value"]
  if not max_kernel_value:
    return
  if not onednn.has_int8_matmul():
    raise InputError(
      f"{folder}: is in int8, but {onednn.missing_int8()}, or load an export in"
      " float32 (export_model.py without --quantize)"
    )
  if not onednn.takes_dtype(tf.as_dtype(precision)):
    raise InputError(
      f"{folder}: computes attention in {precision}, which this processor"
      " cannot. Load an export in float32 (export_model.py without --quantize),"
      " or export with --quantize=int8 --precision=float32"
    )
  if max_kernel_value > onednn.max_kernel_value():
    logging.warning(
      "%s: was exported for processors with VNNI. Without it, sums overflow and"
      " results are less accurate. Export the model again on this machine",
      folder,
    )
