"""Checks of vocabularies, and comparison with that of a trained model.

Imports no TensorFlow.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

from absl import logging

import tokenization
from bertlib import text_files
from bertlib.errors import InputError

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Embedding tables are made larger than the vocabulary up to a round number.
_ROUND = 128


def load(path: str) -> dict[str, int]:
  """Reads a vocabulary as `tokenization.load_vocab` does, and checks its bytes.

  Args:
    path: the file, which may begin with a byte-order mark.

  Returns:
    The id of each entry.

  Raises:
    InputError: it is not UTF-8.
  """
  return {entry: index for index, entry in enumerate(_entries(path))}


def check(
  path: str, vocab: Mapping[str, int], vocab_size: int | None = None
) -> None:
  """Refuses a vocabulary that cannot serve a model, and warns of an odd one.

  Args:
    path: the file.
    vocab: what `tokenization.load_vocab` read from it.
    vocab_size: rows of the model's embedding table; None: not checked.

  Raises:
    InputError: a special entry is missing or comes twice, or there are more
      entries than `vocab_size`.
  """
  try:
    tokenization.check_vocab(vocab, vocab_size)
  except ValueError as error:
    raise InputError(f"{path}: {error}") from error
  num_entries = max(vocab.values()) + 1
  if len(vocab) < num_entries:
    _check_repeated(path)
  if vocab.get("[PAD]") != 0:
    logging.warning(
      "%s: [PAD] is not its first entry, but padding has the id 0", path
    )
  if vocab_size is not None and vocab_size - num_entries >= _ROUND:
    logging.warning(
      "%s: has %d entries, but the model's vocab_size is %d. Is it the"
      " vocabulary of the checkpoint?",
      path,
      num_entries,
      vocab_size,
    )


def _check_repeated(path: str) -> None:
  """Warns of repeated entries; refuses repeated special ones."""
  entries = _entries(path)
  repeated = [entry for entry, n in Counter(entries).items() if n > 1 and entry]
  for entry in repeated:
    if entry in _SPECIAL:
      raise InputError(
        f"{path}, line {_lines_of(entry, entries)[1]}: has {entry} a second"
        " time. Make each line different"
      )
  if repeated:
    shown = ", ".join(
      f"{entry} (lines {', '.join(map(str, _lines_of(entry, entries)))})"
      for entry in repeated[:3]
    )
    logging.warning(
      "%s: %d entries come more than once, of which the last one counts: %s",
      path,
      len(repeated),
      shown,
    )


def _lines_of(entry: str, entries: list[str]) -> list[int]:
  """Line numbers, from 1, of an entry."""
  return [n for n, other in enumerate(entries, start=1) if other == entry]


def _entries(path: str) -> list[str]:
  """The entries in order, as `tokenization.load_vocab` takes them."""
  lines = text_files.read_text(path).split("\n")
  if not lines[-1]:
    del lines[-1]
  return [line.strip() for line in lines]


def check_same(path: str, trained: str) -> None:
  """Refuses a vocabulary that is not that of a trained model.

  Args:
    path: the vocabulary.
    trained: the file in the model's folder.

  Raises:
    InputError: an entry differs.
  """
  different = difference(path, trained)
  if different:
    raise InputError(
      f"{path}: not the vocabulary that the model in"
      f" {os.path.dirname(trained) or '.'} was trained with ({different})."
      f" Give --vocab_file={trained}, or name another --output_dir"
    )


def difference(path: str, other: str, ignore_unused: bool = False) -> str:
  """Describes how two vocabularies differ; empty if they are equal.

  Args:
    path: a vocabulary.
    other: another.
    ignore_unused: whether words may replace entries that are `[unusedN]` in
      `other`, or follow its last entry.
  """
  ours, theirs = _entries(path), _entries(other)
  if ignore_unused:
    del ours[len(theirs) :]
  if len(ours) != len(theirs):
    return f"{len(ours)} entries, not {len(theirs)}"
  lines = [
    line
    for line, (one, another) in enumerate(zip(ours, theirs), start=1)
    if one != another and not (ignore_unused and another.startswith("[unused"))
  ]
  if not lines:
    return ""
  first = lines[0]
  return (
    f"{len(lines)} entries differ, the first in line {first}:"
    f" {ours[first - 1]!r}, not {theirs[first - 1]!r}"
  )
