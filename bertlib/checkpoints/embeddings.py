"""Gives new words of a vocabulary their rows in a checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bertlib import files
from bertlib.checkpoints import checkpoint_writer, finding, rewrite
from bertlib.errors import InputError

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"

# What has a row for each entry: a weight, or a slot that the optimizer has
# for one.
_BY_ENTRY = re.compile(
  rf"({WORD_EMBEDDINGS}|cls/predictions/output_bias)(/.+)?"
)


def add_vocab_rows(
  tensors: Mapping[str, np.ndarray],
  pieces: Mapping[int, Sequence[int]],
  num_entries: int,
) -> dict[str, np.ndarray]:
  """Gives new words their rows in the tensors of a model.

  Embedding and output bias start as the mean of those of the word's pieces.
  The optimizer's moments start at 0, as in a new training.

  Args:
    tensors: by their names in a checkpoint.
    pieces: for the id of each new word, the ids of its pieces.
    num_entries: of the vocabulary afterwards; as many rows there are, or as
      many as before where that is more.

  Returns:
    All tensors. Those without a row for each entry are the same, and so are
    the rows of old entries.
  """
  grown = dict(tensors)
  for name, old in tensors.items():
    match = _BY_ENTRY.fullmatch(name)
    if match:
      num_rows = max(len(old), num_entries)
      new = np.zeros((num_rows, *old.shape[1:]), old.dtype)
      new[: len(old)] = old
      for place, ids in pieces.items():
        new[place] = 0 if match[2] else old[ids].mean(axis=0, dtype=np.float64)
      grown[name] = new
  return grown


def read_checkpoint(path: str, vocab_size: int) -> dict[str, np.ndarray]:
  """Reads all tensors of a checkpoint, the optimizer's state among them.

  Args:
    path: named without `.index`.
    vocab_size: V, which the model has to have.

  Returns:
    The tensors by name.

  Raises:
    InputError: it is no checkpoint of BERT, or has another V.
  """
  path = finding.find_checkpoint(path)
  tensors = dict(rewrite.Checkpoint(path))
  if WORD_EMBEDDINGS not in tensors:
    raise InputError(
      f"{path}: not a checkpoint of BERT, has no {WORD_EMBEDDINGS}"
    )
  for name, tensor in tensors.items():
    if _BY_ENTRY.fullmatch(name) and len(tensor) != vocab_size:
      raise InputError(
        f"{path}: {name} has {len(tensor)} rows, and vocab_size in the config"
        f" is {vocab_size}; name the config of this checkpoint"
      )
  return tensors


def write_checkpoint(path: str, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a checkpoint, whole or not at all; `path` is without `.index`."""
  folder, name = os.path.split(path)
  # The index is moved last, for with it the checkpoint is there.
  with files.atomic_files(folder) as beside:
    checkpoint_writer.write_variables(os.path.join(beside, name), tensors)
