"""Estimates of a dry run: labels and lengths of a sample, and disk space.

A dry run (`--doctor`) makes them after the steps of the run, see
`bertlib.cli.steps`. Imports no TensorFlow.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from absl import logging

from bertlib.cli.errors import InputError, some_of
from bertlib.io import files


def sample(items: Sequence, number: int = 2000) -> Sequence:
  """About `number` items, evenly spaced; all if there are fewer."""
  return items[:: -(-len(items) // number) or 1]


def check_labels(
  labels: Sequence[str], sets: Mapping[str, Iterable[str]]
) -> None:
  """Logs the labels of each split; warns of those that are missing."""
  for name, example_labels in sets.items():
    counts = Counter(example_labels)
    missing = [label for label in labels if not counts[label]]
    shown = [f"{label} {counts[label]}" for label in labels if counts[label]]
    logging.info("%s has %s", name, some_of(shown) or "none")
    if missing:
      logging.warning("%s has no %s", name, some_of([*map(str, missing)]))


class LengthSummary(NamedTuple):
  """Number and length of the training examples."""

  num_examples: int  # examples, windows or records
  num_tokens: float  # mean per sequence


class Encoded(NamedTuple):
  """An encoded example."""

  input_ids: Sequence[int]  # with or without padding
  num_tokens: int  # without padding
  num_truncated_tokens: int = 0


def check_encoded(
  examples: Iterable[Encoded], vocab_size: int, num_examples: int
) -> LengthSummary:
  """Checks a sample of the `num_examples`; warns if many are truncated."""
  num_tokens, num_truncated_tokens = [], []
  for number, example in enumerate(examples, start=1):
    check_ids(example.input_ids, vocab_size, f"example {number}")
    num_tokens.append(example.num_tokens)
    num_truncated_tokens.append(example.num_truncated_tokens)
  count = len(num_tokens)
  mean = sum(num_tokens) / max(count, 1)
  cut = sum(number > 0 for number in num_truncated_tokens) / max(count, 1)
  logging.info(
    "checked %d of %d: mean length %.0f tokens, longest %d",
    count,
    num_examples,
    mean,
    max(num_tokens, default=0),
  )
  if cut:
    logging.log(
      logging.WARNING if cut > 0.05 else logging.INFO,
      "%.1f%% are truncated, by %.0f tokens on average: consider a higher"
      " --max_seq_length",
      100 * cut,
      sum(num_truncated_tokens) / (cut * count),
    )
  return LengthSummary(num_examples, mean)


def check_ids(ids: Iterable[int], vocab_size: int, where: str) -> None:
  """Raises InputError for ids outside the vocabulary of the model."""
  for extreme in min(ids, default=0), max(ids, default=0):
    if not 0 <= extreme < vocab_size:
      raise InputError(
        f"{where}: has the id {extreme}, but the model's vocab_size is"
        f" {vocab_size}. Encode the data with the vocabulary of the model"
      )


def check_disk(path: str, num_bytes: int) -> None:
  """Checks that a folder is writable and has enough free space."""
  needs = f"{path}: needs about {size_in_words(num_bytes)}"
  if files.is_remote(path):
    logging.info("%s", needs)
    return
  folder = os.path.abspath(path)
  # The run would create the folder.
  while not os.path.exists(folder):
    folder = os.path.dirname(folder)
  if not os.path.isdir(folder):
    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
  if not os.access(folder, os.W_OK):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
  free = shutil.disk_usage(folder).free
  if free < num_bytes:
    raise InputError(
      f"{needs}, only {size_in_words(free)} free. Free space there, give"
      " another folder, or keep fewer checkpoints (--keep_checkpoint_max)"
    )
  logging.info("%s, %s free", needs, size_in_words(free))


def size_in_words(num_bytes: int) -> str:
  """Formats a number of bytes as MB or GB."""
  if num_bytes < 10**8:
    return f"{num_bytes / 10**6:.1f} MB"
  return f"{num_bytes / 10**9:.1f} GB"
