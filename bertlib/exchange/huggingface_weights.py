"""Files of weights at Hugging Face: safetensors, PyTorch, Keras.

Weights are NumPy arrays by name.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow.compat.v1 as tf

from bertlib.checkpoints import keras_files
from bertlib.cli.errors import InputError, needs_package
from bertlib.io import file_kinds, json_files, model_files


def read(folder: str) -> tuple[dict[str, np.ndarray], str]:
  """Tensors of a Hugging Face folder by name, and the path of their file."""
  for name in model_files.HUGGINGFACE:
    path = os.path.join(folder, name)
    if os.path.exists(path):
      return _read_file(path), path
  raise InputError(
    f"{folder}: has no weights (model.safetensors, pytorch_model.bin or"
    " tf_model.h5)"
  )


def _read_file(path: str) -> dict[str, np.ndarray]:
  if path.endswith(".index.json"):
    tensors = {}
    for shard in _shards(path):
      tensors.update(_read_file(shard))
    return tensors
  with open(path, "rb") as file:
    file_kinds.check_binary(path, file.read(2**10))
  readers = {".bin": _read_pytorch, ".h5": keras_files.read_h5}
  reader = readers.get(os.path.splitext(path)[1], _read_safetensors)
  return reader(path)


def _shards(path: str) -> list[str]:
  """Paths of the shards listed in an index, all in the folder of the index."""
  weight_map = json_files.read(path, dict).get("weight_map")
  if not isinstance(weight_map, dict) or not weight_map:
    raise InputError(
      f"{path}: has no weight_map with file names. Download the files again"
    )
  found = dict.fromkeys(file_within(path, name) for name in weight_map.values())
  for shard in found:
    if not shard.endswith((".safetensors", ".bin")):
      raise InputError(
        f"{path}: lists {shard}, which is not a .safetensors or .bin file"
      )
  return sorted(found)


def file_within(source: str, name: Any) -> str:
  """Path of a file that `source`, in the same folder, names; confined to it."""
  fault = None
  folder = os.path.dirname(source)
  path = os.path.join(folder, str(name))
  if not isinstance(name, str) or not name or "\0" in name:
    fault = "is not a file name"
  elif os.path.isabs(name) or ".." in re.split(r"[/\\]", name):
    fault = "is outside its folder"
  elif not os.path.isfile(path):
    fault = "is missing"
  else:
    # A folder may consist of links into another, as in a Hugging Face cache:
    # files beside the target of `source` count as inside.
    folders = folder, os.path.dirname(os.path.realpath(source))
    real = os.path.realpath(path)
    if not any(
      real.startswith(os.path.join(os.path.realpath(parent), ""))
      for parent in folders
    ):
      fault = "is a link to a file outside its folder"
  if fault:
    raise InputError(
      f"{source}: names {json.dumps(name)}, which {fault}. Fetch the files"
      " again"
    )
  return path


def _read_safetensors(path: str) -> dict[str, np.ndarray]:
  try:
    # TensorFlow's import has registered bfloat16 with NumPy.
    return safetensors.numpy.load_file(path)
  except safetensors.SafetensorError as error:
    raise InputError(
      f"{path}: incomplete or corrupt ({error}). Download it again"
    ) from error
  except AttributeError as error:  # of NumPy, which has no such dtype
    raise InputError(
      f"{path}: has weights of 8 bits ({error}). Convert those of 16 or 32"
    ) from error


def import_torch(path: str, action: str):
  """Imports PyTorch; `action`, for the message, is "read" or "write"."""
  with needs_package(
    f"{path}: only PyTorch can {action} it: pip install torch"
  ):
    import torch
  return torch


def _read_pytorch(path: str) -> dict[str, np.ndarray]:
  torch = import_torch(path, "read")
  # Older versions can execute code despite `weights_only` (CVE-2025-32434).
  if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    raise InputError(
      f"{path}: needs PyTorch 2.6 to be read safely, not {torch.__version__}:"
      " pip install --upgrade torch"
    )

  def as_numpy(tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype != torch.bfloat16:
      return tensor.numpy()
    # PyTorch cannot export bfloat16 to NumPy: copy the bits as integers.
    return tensor.view(torch.int16).numpy().view(tf.bfloat16.as_numpy_dtype)

  try:
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {name: as_numpy(tensor) for name, tensor in tensors.items()}
  except Exception as error:  # corrupt files can raise anything
    raise InputError(
      f"{path}: corrupt, or contains more than weights. It was not loaded. Use"
      " a safetensors file of the model"
    ) from error


def write(path: str, tensors: dict[str, np.ndarray]) -> None:
  """Writes contiguous tensors, by the ending of the file's name."""
  if path.endswith(".bin"):
    _write_pytorch(path, tensors)
    return
  # transformers requires the name of the framework.
  content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
  with open(path, "wb") as file:
    file.write(content)


def _write_pytorch(path: str, tensors: dict[str, np.ndarray]) -> None:
  """Writes tensors as a PyTorch state dict; see `import_torch`."""
  torch = import_torch(path, "write")

  def as_torch(tensor: np.ndarray):
    if tensor.dtype != tf.bfloat16.as_numpy_dtype:
      return torch.from_numpy(tensor)
    return torch.from_numpy(tensor.view(np.int16)).view(torch.bfloat16)

  torch.save({n: as_torch(t) for n, t in tensors.items()}, path)
