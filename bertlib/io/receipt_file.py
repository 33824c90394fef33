"""The file of a receipt (run.json): its entries, and what they say."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from bertlib.cli.errors import InputError
from bertlib.cli.option import AUTO_CHOICES
from bertlib.io import files, json_files

NAME = "run.json"
# The flags of a training, for --flagfile.
FLAGS_NAME = "run.flags"

FIX = "Move it away, or restore it as the run left it"

# Kinds of runs. In a folder, the receipt has an entry for each.
KINDS = ("training", "evaluation", "prediction")

# Uses of files. That of texts to predict is None.
TRAINING_DATA, DEV_DATA = "training data", "dev data"

# Schema of the entries that are read, see `json_files`. For each flag in
# `option.AUTO_CHOICES` there is one too: the value that was chosen for "auto".
# Files have a `use`, but not those of versions up to 0.23.0.
_SCHEMA = {
  "script": str,
  "files": [{"path": str, "bytes": int, "sha256": str, "hashed": str}],
  "versions": dict,
  "flags?": dict,
  "results": (dict, json_files.NULL),
  "started": str,
  "ended?": str,
  "device": dict,
}


def kind_of(flags: Mapping[str, Any]) -> str:
  """Kind of a run, one of `KINDS`, by the values of its flags."""
  if flags.get("do_train"):
    return "training"
  return "evaluation" if flags.get("do_eval") else "prediction"


def read_entries(path: str) -> dict[str, dict[str, Any]]:
  """Reads the receipts in a `run.json` by kind, the last one last."""
  content = json_files.read(path, dict, FIX)
  # Of one run alone: beside an --output_file, and in versions up to 0.23.0.
  is_single = not content.keys() & {*KINDS}
  schema = {f"{kind}?": _SCHEMA for kind in KINDS}
  problem = json_files.mismatch(content, _SCHEMA if is_single else schema)
  if problem:
    raise InputError(f"{path}: {problem}. {FIX}")
  return {kind_of(content.get("flags", {})): content} if is_single else content


def read_all(folder: str) -> Iterator[dict[str, Any]]:
  """Yields the receipts in a folder, the last one first."""
  last = os.path.join(folder, NAME)
  # Versions up to 0.23.0 kept receipts of earlier runs.
  numbered = (os.path.join(folder, f"run-{n}.json") for n in itertools.count(1))
  earlier = itertools.takewhile(files.exists, numbered)
  for path in (last, *reversed([*earlier])):
    if files.exists(path):
      yield from reversed(read_entries(path).values())


def last_training(folder: str) -> dict[str, Any] | None:
  """The receipt of the last training in a folder; None if none can be read."""
  with contextlib.suppress(InputError):
    for receipt in read_all(folder):
      if kind_of(receipt.get("flags", {})) == "training":
        return receipt
  return None


def chosen(receipt: Mapping[str, Any]) -> dict[str, str]:
  """Values that were chosen for "auto", by flag."""
  given = receipt.get("flags", {})
  return {
    name: receipt[name]
    for name, choices in AUTO_CHOICES.items()
    if given.get(name) == "auto" and receipt.get(name) in choices
  }
