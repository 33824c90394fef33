"""Extending a checkpoint's embeddings for new vocabulary entries."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bertlib.checkpoints import checkpoint_files
from bertlib.checkpoints.foreign_checkpoint import ForeignCheckpoint
from bertlib.cli.errors import InputError
from bertlib.io import files

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"

# ELECTRA may have two disentangled tables: the mean of their sums is the sum of
# their means.
_TABLE = re.compile(r"(?:bert|generator)/embeddings(?:_added)?/word_embeddings")
# Tensors with one row per vocabulary entry, and their optimizer slots.
_PER_ENTRY = re.compile(
  rf"({_TABLE.pattern}|cls/predictions/output_bias)(/.+)?"
)


def add_vocab_rows(
  tensors: Mapping[str, np.ndarray],
  pieces: Mapping[int, Sequence[int]],
  num_entries: int,
) -> dict[str, np.ndarray]:
  """Tensors with rows for new entries, given the ids of their pieces by id."""
  extended = dict(tensors)
  for name, old in tensors.items():
    if match := _PER_ENTRY.fullmatch(name):
      # A table may have more rows than the vocabulary has entries.
      num_rows = max(len(old), num_entries)
      new = np.zeros((num_rows, *old.shape[1:]), old.dtype)
      new[: len(old)] = old
      # The mean of the rows of its pieces; 0 in optimizer slots.
      for index, ids in pieces.items():
        new[index] = 0 if match[2] else old[ids].mean(axis=0, dtype=np.float64)
      extended[name] = new
  return extended


def read_checkpoint(path: str, vocab_size: int) -> dict[str, np.ndarray]:
  """All tensors of a checkpoint by name, with the optimizer's state."""
  path = checkpoint_files.find_checkpoint(path)
  tensors = dict(ForeignCheckpoint(path))
  if not any(map(_TABLE.fullmatch, tensors)):
    raise InputError(
      f"{path}: not a BERT checkpoint, it has no {WORD_EMBEDDINGS}"
    )
  for name, tensor in tensors.items():
    if _PER_ENTRY.fullmatch(name) and len(tensor) != vocab_size:
      raise InputError(
        f"{path}: {name} has {len(tensor)} rows, but vocab_size in the config"
        f" is {vocab_size}. Name the config of this checkpoint"
      )
  return tensors


def write_checkpoint(path: str, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a checkpoint atomically; `path` is without `.index`."""
  folder, name = os.path.split(path)
  # The index file is moved last: it makes the checkpoint complete.
  with files.atomic_files(folder) as temporary_dir:
    checkpoint_files.write_variables(os.path.join(temporary_dir, name), tensors)
