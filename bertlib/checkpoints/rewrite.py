"""Reads files of weights, and makes a checkpoint of others.

Weights are NumPy arrays by name. A TensorFlow checkpoint may lose what its
optimizer keeps, be averaged with others, and get other names; all three at
once, if need be. Memory holds one model meanwhile, however many are averaged.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from bertlib import files, json_files
from bertlib.checkpoints import (
  checkpoint_files,
  checkpoint_writer,
  finding,
  loading,
  model_json,
)
from bertlib.data import vocabulary
from bertlib.errors import InputError

# Files beside a checkpoint that go where it goes.
_COMPANIONS = (
  loading.CONFIG_FILE,
  loading.VOCAB_FILE,
  model_json.MODEL_FILE,
)

# What a folder that is no TensorFlow checkpoint's is known by.
_MARKS = {"saved_model.pb": "saved_model", "config.json": "huggingface"}


def model_format(path: str) -> str:
  """What a path names: "saved_model", "huggingface" or "tensorflow"."""
  for mark, kind in _MARKS.items():
    if os.path.exists(os.path.join(path, mark)):
      return kind
  return "tensorflow"


# TensorFlow checkpoints


def last_checkpoints(folder: str, number: int) -> list[str]:
  """The last checkpoints of a training run, the very last one last.

  Args:
    folder: the `--output_dir` of the run.
    number: how many.

  Returns:
    Their paths.

  Raises:
    InputError: there are fewer.
  """
  state = tf.train.get_checkpoint_state(folder)
  known = list(state.all_model_checkpoint_paths) if state else []
  if len(known) < number:
    raise InputError(
      f"{folder}: keeps {len(known)} checkpoints of a training run, not"
      f" {number}; ask for fewer, or train with a higher --keep_checkpoint_max"
    )
  return known[-number:]


class Checkpoint(Mapping[str, np.ndarray]):
  """The variables of a TensorFlow checkpoint, each read when it is asked for.

  Attributes:
    path: of the checkpoint.
    shapes: a list of sizes for each variable.
    dtypes: TensorFlow's, of each variable.
  """

  def __init__(self, path: str):
    """Opens a checkpoint.

    Args:
      path: without `.index`.

    Raises:
      InputError: it is not there or damaged; reading a variable raises it too.
    """
    self.path = path
    with checkpoint_files.as_input_errors(self.path):
      self._reader = tf.train.load_checkpoint(path)
    self.shapes = self._reader.get_variable_to_shape_map()
    self.dtypes = self._reader.get_variable_to_dtype_map()

  def __getitem__(self, name: str) -> np.ndarray:
    if name not in self.shapes:
      raise KeyError(name)
    with checkpoint_files.as_input_errors(self.path):
      return self._reader.get_tensor(name)

  def __contains__(self, name: object) -> bool:
    return name in self.shapes

  def __iter__(self) -> Iterator[str]:
    return iter(sorted(self.shapes))

  def __len__(self) -> int:
    return len(self.shapes)

  def num_bytes(self, names: Iterable[str]) -> int:
    """What some of the variables take."""
    return sum(
      int(np.prod(self.shapes[name])) * self.dtypes[name].size for name in names
    )


def read_weights(path: str) -> dict[str, np.ndarray]:
  """Reads all of a checkpoint but what is for training alone; prints both.

  Args:
    path: without `.index`.

  Returns:
    The weights by name.

  Raises:
    InputError: it is not there or damaged.
  """
  checkpoint = Checkpoint(path)
  weights = {
    name: checkpoint[name]
    for name in checkpoint
    if not (
      checkpoint_writer.is_optimizer_variable(name) or name == "global_step"
    )
  }
  print(f"read: {path}, {len(checkpoint)} tensors")
  if len(weights) < len(checkpoint):
    num_others = len(checkpoint) - len(weights)
    print(f"left out: {num_others} of the optimizer's state")
  return weights


# A checkpoint made of others


def rewrite(
  checkpoints: Sequence[str],
  target_dir: str | None,
  strip_optimizer: bool = False,
  renames: Sequence[str] = (),
  overwrite: bool = False,
) -> None:
  """Writes the mean of checkpoints, or the only one; prints what it did.

  What is not averaged keeps its bits.

  Args:
    checkpoints: paths without `.index`. Their variables have the same names,
      shapes and types. Means are taken in float64; integers, such as the
      global step, are those of the last.
    target_dir: gets a checkpoint called as the last, and config, vocabulary
      and description from beside that; made if need be. None to print the
      names and write nothing.
    strip_optimizer: whether to leave out the optimizer's moments and the scale
      of the loss. The global step stays: Estimator loads no folder without.
    renames: see `new_names`.
    overwrite: whether files of those names may be replaced.

  Raises:
    InputError: a checkpoint cannot be read, they are not alike, the new names
      cannot be, or something would be overwritten.
  """
  sources = [Checkpoint(path) for path in checkpoints]
  last = sources[-1]
  _check_alike(sources)
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
  print(
    f"written: {path}, {len(names)} variables, {last.num_bytes(kept):,} bytes"
    + (f", the mean of {len(sources)}" if len(sources) > 1 else "")
  )


def _without_optimizer(source: Checkpoint) -> list[str]:
  """The variables that are not the optimizer's; prints what it leaves out."""
  kept = [
    name for name in source if not checkpoint_writer.is_optimizer_variable(name)
  ]
  gone = source.keys() - set(kept)
  print(
    f"left out: {len(gone)} variables of the optimizer,"
    f" {source.num_bytes(gone):,} bytes"
  )
  return kept


def _write(
  target_dir: str,
  sources: Sequence[Checkpoint],
  variables: Mapping[str, np.ndarray],
  overwrite: bool,
) -> str:
  """Writes a checkpoint called as the last of its sources; gives its path."""
  last = sources[-1]
  name = os.path.basename(last.path)
  companions = {one: _beside(last, one) for one in _COMPANIONS}
  inputs = [
    *companions.values(),
    *(file for one in sources for file in files.checkpoint_files(one.path)),
  ]
  with files.atomic_files(target_dir, overwrite, inputs) as folder:
    checkpoint_writer.write_variables(os.path.join(folder, name), variables)
    with open(os.path.join(folder, finding.STATE_FILE), "w") as file:
      file.write(f'model_checkpoint_path: "{name}"\n')
    for companion, path in companions.items():
      if os.path.exists(path):
        shutil.copyfile(path, os.path.join(folder, companion))
  return os.path.join(target_dir, name)


def warn_if_not_finite(source: str, tensors: Mapping[str, np.ndarray]) -> None:
  """Warns of weights that contain NaN or Inf, by name.

  Args:
    source: file that they are from.
    tensors: by name.
  """
  names = [
    name
    for name, tensor in sorted(tensors.items())
    # NumPy does not count bfloat16 among the numbers.
    if tensor.dtype.kind in "fV" and not np.isfinite(tensor).all()
  ]
  if names:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    logging.warning(
      "%s: NaN or Inf in %s%s", source, ", ".join(names[:5]), more
    )


def _check_alike(sources: Sequence[Checkpoint]) -> None:
  """Refuses checkpoints that are not of one model."""
  first = sources[0]
  for other in sources[1:]:
    unlike = [
      f"{name} ({_form(name, first)}, {_form(name, other)})"
      for name in sorted(first.keys() | other.keys())
      if _form(name, first) != _form(name, other)
    ]
    for what, told in (("vocabulary", _vocab), ("labels", _labels)):
      if told(first) != told(other):
        unlike.append(f"the {what} beside it")
    if unlike:
      raise InputError(
        f"{first.path} and {other.path}: no models of one kind, so they have"
        f" no mean. They differ in {', '.join(unlike)}"
      )


def _form(name: str, source: Checkpoint) -> str:
  if name not in source:
    return "not there"
  return f"{source.dtypes[name].name} {source.shapes[name]}"


def _vocab(source: Checkpoint) -> list[str] | None:
  path = _beside(source, loading.VOCAB_FILE)
  return vocabulary.read_entries(path) if os.path.exists(path) else None


def _labels(source: Checkpoint) -> list[str] | None:
  return model_json.load_description(_beside(source, "")).get("labels")


def _beside(source: Checkpoint, name: str) -> str:
  return os.path.join(os.path.dirname(source.path), name)


def _mean(name: str, sources: Sequence[Checkpoint]) -> np.ndarray:
  last = sources[-1][name]
  if len(sources) == 1 or not sources[-1].dtypes[name].is_floating:
    return last
  total = np.zeros(last.shape, np.float64)
  for source in sources:
    total += source[name].astype(np.float64)
  return (total / len(sources)).astype(last.dtype)


def new_names(names: Iterable[str], renames: Iterable[str]) -> dict[str, str]:
  """What variables are called after being renamed.

  Args:
    names: as they are.
    renames: each "PATTERN=>REPLACEMENT", as `re.sub` takes them, applied one
      after the other to what matches anywhere in a name.

  Returns:
    The new name of each.

  Raises:
    InputError: a rule cannot be read or matches nothing, or two variables
      would have one name.
  """
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
      raise InputError(f"{owners[new]} and {old}: both would be called {new}")
  return renamed


# Weights of Hugging Face


def read_huggingface_weights(folder: str) -> tuple[dict[str, np.ndarray], str]:
  """Reads the tensors of a Hugging Face folder; prints from which files.

  Args:
    folder: has safetensors, in shards or not, or `pytorch_model.bin`, whose
      pickled code is not run.

  Returns:
    Tensors by name; and the file, or the index of the files, that has them.

  Raises:
    InputError: no weights are there, they are damaged, or the package that
      reads them is not.
  """
  for name in (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
  ):
    path = os.path.join(folder, name)
    if os.path.exists(path):
      return _read_file(path), path
  raise InputError(
    f"{folder}: has no weights, neither model.safetensors nor pytorch_model.bin"
  )


def _read_file(path: str) -> dict[str, np.ndarray]:
  if path.endswith(".index.json"):
    tensors = {}
    for shard in _shards(path):
      tensors.update(_read_file(shard))
    return tensors
  read = _read_pytorch if path.endswith(".bin") else _read_safetensors
  tensors = read(path)
  print(f"read: {path}, {len(tensors)} tensors")
  return tensors


def _shards(path: str) -> list[str]:
  """The files that an index names, all of them in its own folder."""
  weight_map = json_files.read(path, dict).get("weight_map")
  if not isinstance(weight_map, dict) or not weight_map:
    raise InputError(
      f"{path}: has no weight_map that names files. Fetch the files again"
    )
  found = dict.fromkeys(
    files.file_within(os.path.dirname(path), name, path)
    for name in weight_map.values()
  )
  for shard in found:
    if not shard.endswith((".safetensors", ".bin")):
      raise InputError(f"{path}: names {shard}, which holds no weights")
  return sorted(found)


def _read_safetensors(path: str) -> dict[str, np.ndarray]:
  safetensors = _import_safetensors()
  try:
    # A bfloat16 is a type of NumPy's thanks to the import of TensorFlow.
    return safetensors.numpy.load_file(path)
  except safetensors.SafetensorError as error:
    raise InputError(
      f"{path}: not a whole safetensors file ({error}); fetch it again"
    ) from error


def _import_safetensors():
  try:
    import safetensors.numpy
  except ImportError as error:
    raise InputError(
      "Hugging Face weights need the package safetensors:"
      " pip install -e .[huggingface]"
    ) from error
  return safetensors


def _read_pytorch(path: str) -> dict[str, np.ndarray]:
  try:
    import torch
  except ImportError as error:
    raise InputError(
      f"{path}: only PyTorch can read it: pip install -e .[torch]"
    ) from error
  # Older ones can be made to run code in spite of `weights_only`
  # (CVE-2025-32434).
  if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    raise InputError(
      f"{path}: needs PyTorch 2.6 to be read safely, not {torch.__version__}:"
      " pip install -e .[torch]"
    )
  try:
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {name: _as_numpy(tensor) for name, tensor in tensors.items()}
  except Exception as error:  # damaged bytes may raise anything
    raise InputError(
      f"{path}: damaged, or holds more than weights; it was not loaded. Use a"
      " safetensors file of the model"
    ) from error


def _as_numpy(tensor) -> np.ndarray:
  import torch

  tensor = tensor.detach()
  if tensor.dtype != torch.bfloat16:
    return tensor.numpy()
  # PyTorch does not know NumPy's type for it: the bits go over as integers.
  return tensor.view(torch.int16).numpy().view(tf.bfloat16.as_numpy_dtype)


def write_safetensors(path: str, tensors: dict[str, np.ndarray]) -> None:
  """Writes tensors, contiguous in memory, as `transformers` reads them."""
  # transformers reads no file that does not name its framework.
  pytorch = {"format": "pt"}
  save = _import_safetensors().numpy.save
  with open(path, "wb") as file:
    file.write(save(tensors, metadata=pytorch))
