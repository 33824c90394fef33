"""Weights of checkpoints: stripped, averaged, renamed and extended.

Weights are NumPy arrays by name. Memory holds one model at a time, however many
are averaged.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

from bertlib.checkpoints import (
  checkpoint_files,
  electra_weights,
  foreign_checkpoint,
)
from bertlib.checkpoints.foreign_checkpoint import ForeignCheckpoint
from bertlib.cli.errors import InputError, some_of
from bertlib.data import vocabulary
from bertlib.io import files, json_files, model_files, output_folders
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
  checkpoint = ForeignCheckpoint(path)
  others = checkpoint_files.optimizer_variables(checkpoint) | {"global_step"}
  checkpoint_files.warn_of_averages(path, others)
  weights = {n: checkpoint[n] for n in checkpoint if n not in others}
  return electra_weights.with_added_tables(weights)


# Stripping, averaging and renaming


def rewrite(
  # Several are averaged, in float64, and must have equal names, shapes and
  # dtypes. Integers, such as the global step, come from the last one.
  checkpoints: Sequence[str],
  target_dir: str,
  # The global step is kept: Estimator cannot load a checkpoint without it.
  strip_optimizer: bool = False,
  renames: Sequence[str] = (),  # see `new_names`
  overwrite: bool = False,
) -> None:
  """Strips, averages and renames checkpoints; prints what was written."""
  sources = [ForeignCheckpoint(path) for path in checkpoints]
  last = sources[-1]
  _check_compatible(sources)
  for source in sources:
    print(f"read: {source.path}, {len(source)} variables")
  names = new_names(last, renames)
  if strip_optimizer:
    left_out = checkpoint_files.optimizer_variables(names.values())
    print(f"left out: {len(left_out)} variables of the optimizer")
    checkpoint_files.warn_of_averages(last.path, left_out)
    names = {old: new for old, new in names.items() if new not in left_out}
  if renames:
    num_changed = sum(old != new for old, new in names.items())
    print(f"renamed: {num_changed} of {len(names)} variables")
  variables = {new: _mean(old, sources) for old, new in names.items()}
  warn_if_not_finite(last.path, variables)
  path = _write(target_dir, sources, variables, overwrite)
  print(f"written: {path}, {len(names)} variables")


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
  with output_folders.atomic_files(target_dir, overwrite, inputs) as folder:
    has_config = os.path.exists(companions[model_files.CONFIG])
    if not has_config and (config := _electra_config(last.shapes)):
      json_files.write(os.path.join(folder, model_files.CONFIG), config)
      print(f"{model_files.CONFIG}: made from the shapes of the weights")
    checkpoint_files.write_variables(os.path.join(folder, name), variables)
    checkpoint_files.write_state_file(folder, name)
    for companion, path in companions.items():
      if os.path.exists(path):
        shutil.copyfile(path, os.path.join(folder, companion))
  return os.path.join(target_dir, name)


def _electra_config(
  shapes: Mapping[str, Sequence[int]],
) -> dict[str, Any] | None:
  """Config of Google's ELECTRA by the shapes of its weights, by our names."""
  if "discriminator_predictions/dense/bias" not in shapes:
    return None
  config = {"model_type": "electra", "pooler_act": "gelu"}
  config |= foreign_checkpoint.config_of_shapes(shapes)
  layer = rf"{electra_weights.GENERATOR}/encoder/layer_\d+/output/dense/bias"
  widths = [shapes[name][0] for name in shapes if re.fullmatch(layer, name)]
  if widths:
    config["generator_hidden_size"] = widths[0] / config["hidden_size"]
    config["generator_layers"] = len(widths) / config["num_hidden_layers"]
  return config


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
  path = model_files.path_of(os.path.dirname(source.path), "vocab_file")
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
  for old, new in sorted(renamed.items()):
    # A weight comes before its averages, which may take its place.
    other = owners.get(new)
    if other not in (None, old.rpartition("/")[0]):
      raise InputError(f"{other} and {old}: both would be renamed {new}")
    owners[new] = old
  return {old: new for old, new in renamed.items() if owners[new] == old}


# Rows of new vocabulary entries

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"

# ELECTRA may have two disentangled tables: the mean of their sums is the sum of
# their means.
_TABLE = re.compile(r"(?:bert|generator)/embeddings(?:_added)?/word_embeddings")
# Tensors with one row per vocabulary entry, and their optimizer slots.
_PER_ENTRY = re.compile(
  rf"({_TABLE.pattern}|cls/predictions/output_bias)(/.+)?"
)


def read_with_rows(
  path: str,
  vocab_size: int,
  pieces: Mapping[int, Sequence[int]],  # ids of those of each new entry, by id
  num_entries: int,  # of the new vocabulary
) -> dict[str, np.ndarray]:
  """All tensors of a checkpoint by name, with rows for new entries."""
  path = checkpoint_files.find_checkpoint(path)
  tensors = dict(ForeignCheckpoint(path))
  if not any(map(_TABLE.fullmatch, tensors)):
    raise InputError(
      f"{path}: not a BERT checkpoint, it has no {WORD_EMBEDDINGS}"
    )
  for name, old in tensors.items():
    match = _PER_ENTRY.fullmatch(name)
    if not match:
      continue
    if len(old) != vocab_size:
      raise InputError(
        f"{path}: {name} has {len(old)} rows, but vocab_size in the config is"
        f" {vocab_size}. Name the config of this checkpoint"
      )
    # A table may have more rows than the vocabulary has entries.
    num_rows = max(vocab_size, num_entries)
    new = np.zeros((num_rows, *old.shape[1:]), old.dtype)
    new[:vocab_size] = old
    # The mean of the rows of its pieces; 0 in optimizer slots.
    for index, ids in pieces.items():
      new[index] = 0 if match[2] else old[ids].mean(axis=0, dtype=np.float64)
    tensors[name] = new
  return tensors


def write_checkpoint(path: str, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a checkpoint atomically; `path` is without `.index`."""
  folder, name = os.path.split(path)
  # The index file is moved last: it makes the checkpoint complete.
  with output_folders.atomic_files(folder) as temporary_dir:
    checkpoint_files.write_variables(os.path.join(temporary_dir, name), tensors)
