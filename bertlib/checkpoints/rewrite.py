"""Reading weights; stripping, averaging and renaming checkpoints.

Weights are NumPy arrays by name. Memory holds one model at a time, however many
are averaged.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import checkpoint_files, finding, keras_files
from bertlib.cli.errors import InputError, needs_package, some_of
from bertlib.data import vocabulary
from bertlib.io import files, json_files, model_files
from bertlib.settings import model_description

# TensorFlow checkpoints


def last_checkpoints(folder: str, number: int) -> list[str]:
  """The last `number` checkpoints of a training run, oldest first."""
  state = tf.train.get_checkpoint_state(folder)
  known = list(state.all_model_checkpoint_paths) if state else []
  if len(known) < number:
    raise InputError(
      f"{folder}: keeps {len(known)} checkpoints of a training run, not"
      f" {number}. Ask for fewer, or train with a higher --keep_checkpoint_max"
    )
  return known[-number:]


def read_weights(path: str) -> dict[str, np.ndarray]:
  """Weights of a checkpoint, without optimizer state and global step."""
  checkpoint = checkpoint_files.Checkpoint(path)
  others = checkpoint_files.optimizer_variables(checkpoint) | {"global_step"}
  return {n: checkpoint[n] for n in checkpoint if n not in others}


# Stripping, averaging and renaming


def rewrite(
  # Several are averaged, in float64, and must have equal names, shapes and
  # dtypes. Integers, such as the global step, come from the last one.
  checkpoints: Sequence[str],
  # None prints the renamed variables and writes nothing.
  target_dir: str | None,
  # The global step is kept: Estimator cannot load a checkpoint without it.
  strip_optimizer: bool = False,
  renames: Sequence[str] = (),  # see `new_names`
  overwrite: bool = False,
) -> None:
  """Strips, averages and renames checkpoints; prints what was written."""
  sources = [checkpoint_files.Checkpoint(path) for path in checkpoints]
  last = sources[-1]
  _check_compatible(sources)
  for source in sources:
    print(f"read: {source.path}, {len(source)} variables")
  kept = _without_optimizer(last) if strip_optimizer else list(last)
  names = new_names(kept, renames)
  changed = {old: new for old, new in names.items() if new != old}
  if target_dir is None:
    for old, new in changed.items():
      print(f"{old} => {new}")
  if renames:
    print(f"renamed: {len(changed)} of {len(names)} variables")
  if target_dir is None:
    return

  variables = {new: _mean(old, sources) for old, new in names.items()}
  warn_if_not_finite(last.path, variables)
  path = _write(target_dir, sources, variables, overwrite)
  print(f"written: {path}, {len(names)} variables")


def _without_optimizer(source: checkpoint_files.Checkpoint) -> list[str]:
  """Names of all other variables; prints the number of those left out."""
  left_out = checkpoint_files.optimizer_variables(source)
  kept = [name for name in source if name not in left_out]
  print(f"left out: {len(left_out)} variables of the optimizer")
  return kept


def _write(
  target_dir: str,
  sources: Sequence[checkpoint_files.Checkpoint],
  variables: Mapping[str, np.ndarray],
  overwrite: bool,
) -> str:
  """Writes a checkpoint with the name of the last source; returns its path."""
  last = sources[-1]
  name = os.path.basename(last.path)
  companions = {file: _beside(last, file) for file in model_files.COMPANIONS}
  inputs = [
    *companions.values(),
    *(f for source in sources for f in files.checkpoint_files(source.path)),
  ]
  with files.atomic_files(target_dir, overwrite, inputs) as folder:
    checkpoint_files.write_variables(os.path.join(folder, name), variables)
    with open(os.path.join(folder, finding.STATE_FILE), "w") as file:
      file.write(f'model_checkpoint_path: "{name}"\n')
    for companion, path in companions.items():
      if os.path.exists(path):
        shutil.copyfile(path, os.path.join(folder, companion))
  return os.path.join(target_dir, name)


def warn_if_not_finite(source: str, tensors: Mapping[str, np.ndarray]) -> None:
  """Warns of tensors that contain NaN or Inf; `source` is their file."""
  names = [
    name
    for name, tensor in sorted(tensors.items())
    # The kind of bfloat16 is "V".
    if tensor.dtype.kind in "fV" and not np.isfinite(tensor).all()
  ]
  if names:
    logging.warning("%s: NaN or Inf in %s", source, some_of(names, 5))


def _check_compatible(sources: Sequence[checkpoint_files.Checkpoint]) -> None:
  """Rejects checkpoints of different models."""
  first = sources[0]
  for other in sources[1:]:
    differences = [
      f"{name} ({_dtype_and_shape(name, first)},"
      f" {_dtype_and_shape(name, other)})"
      for name in sorted(first.keys() | other.keys())
      if _dtype_and_shape(name, first) != _dtype_and_shape(name, other)
    ]
    for noun, read in (("vocabulary", _vocab), ("labels", _labels)):
      if read(first) != read(other):
        differences.append(f"the {noun} beside them")
    if differences:
      raise InputError(
        f"{first.path} and {other.path}: different models cannot be averaged."
        f" They differ in {', '.join(differences)}"
      )


def _dtype_and_shape(name: str, source: checkpoint_files.Checkpoint) -> str:
  if name not in source:
    return "missing"
  return f"{source.dtypes[name].name} {source.shapes[name]}"


def _vocab(source: checkpoint_files.Checkpoint) -> list[str] | None:
  path = _beside(source, model_files.VOCAB)
  return vocabulary.read_entries(path) if os.path.exists(path) else None


def _labels(source: checkpoint_files.Checkpoint) -> list[str] | None:
  return model_description.load(_beside(source, "")).get("labels")


def _beside(source: checkpoint_files.Checkpoint, name: str) -> str:
  return os.path.join(os.path.dirname(source.path), name)


def _mean(
  name: str, sources: Sequence[checkpoint_files.Checkpoint]
) -> np.ndarray:
  last = sources[-1][name]
  if len(sources) == 1 or not sources[-1].dtypes[name].is_floating:
    return last
  total = np.zeros(last.shape, np.float64)
  for source in sources:
    total += source[name].astype(np.float64)
  return (total / len(sources)).astype(last.dtype)


def new_names(names: Iterable[str], renames: Iterable[str]) -> dict[str, str]:
  """New names by old name, by rules "PATTERN=>REPLACEMENT" for `re.sub`."""
  renamed = {name: name for name in names}
  for rule in renames:
    pattern, arrow, replacement = rule.partition("=>")
    if not arrow:
      raise InputError(f"--rename={rule}: is not PATTERN=>REPLACEMENT")
    num_matches = 0
    for old, name in renamed.items():
      try:
        renamed[old], number = re.subn(pattern, replacement, name)
      except (re.error, IndexError) as error:
        raise InputError(
          f"--rename={rule}: not a regular expression with its replacement"
          f" ({error})"
        ) from error
      num_matches += number
    if not num_matches:
      raise InputError(
        f"--rename={rule}: matches none of the {len(renamed)} variables, such"
        f" as {next(iter(renamed.values()), 'none')}"
      )
  owners: dict[str, str] = {}
  for old, new in renamed.items():
    if owners.setdefault(new, old) != old:
      raise InputError(f"{owners[new]} and {old}: both would be renamed {new}")
  return renamed


# Hugging Face weights


def read_huggingface_weights(folder: str) -> tuple[dict[str, np.ndarray], str]:
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
  readers = {".bin": _read_pytorch, ".h5": keras_files.read_h5}
  read = readers.get(os.path.splitext(path)[1], _read_safetensors)
  return read(path)


def _shards(path: str) -> list[str]:
  """Paths of the shards listed in an index, all in the folder of the index."""
  weight_map = json_files.read(path, dict).get("weight_map")
  if not isinstance(weight_map, dict) or not weight_map:
    raise InputError(
      f"{path}: has no weight_map with file names. Download the files again"
    )
  found = dict.fromkeys(
    files.file_within(os.path.dirname(path), name, path)
    for name in weight_map.values()
  )
  for shard in found:
    if not shard.endswith((".safetensors", ".bin")):
      raise InputError(
        f"{path}: lists {shard}, which is not a .safetensors or .bin file"
      )
  return sorted(found)


def _read_safetensors(path: str) -> dict[str, np.ndarray]:
  safetensors = _import_safetensors()
  try:
    # TensorFlow's import has registered bfloat16 with NumPy.
    return safetensors.numpy.load_file(path)
  except safetensors.SafetensorError as error:
    raise InputError(
      f"{path}: incomplete or corrupt ({error}). Download it again"
    ) from error


def _import_safetensors():
  with needs_package(
    "Hugging Face weights need the package safetensors: pip install safetensors"
  ):
    import safetensors.numpy
  return safetensors


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


def write_safetensors(path: str, tensors: dict[str, np.ndarray]) -> None:
  """Writes contiguous tensors so that `transformers` can read them."""
  # transformers requires the name of the framework.
  pytorch = {"format": "pt"}
  save = _import_safetensors().numpy.save
  with open(path, "wb") as file:
    file.write(save(tensors, metadata=pytorch))


def write_pytorch(path: str, tensors: dict[str, np.ndarray]) -> None:
  """Writes tensors as a PyTorch state dict; see `import_torch`."""
  torch = import_torch(path, "write")

  def as_torch(tensor: np.ndarray):
    if tensor.dtype != tf.bfloat16.as_numpy_dtype:
      return torch.from_numpy(tensor)
    return torch.from_numpy(tensor.view(np.int16)).view(torch.bfloat16)

  torch.save({n: as_torch(t) for n, t in tensors.items()}, path)
