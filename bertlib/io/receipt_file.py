"""The file of a receipt (run.json): its entries, and the uses of files."""

from __future__ import annotations

import contextlib
import fnmatch
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

FIX = "Name the run.json of a run, as the run left it"

# Kinds of runs. In a folder, the receipt has an entry for each.
KINDS = ("training", "evaluation", "prediction")

# Schema of the entries that are read, see `json_files`. For each flag in
# `option.AUTO_CHOICES` there is one too: the value that was chosen for "auto".
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

TRAINING_DATA, DEV_DATA = "training data", "dev data"

# Use of the files that a flag names; None for texts to predict.
_USES = {
  "calibration_file": "calibration data",
  "corpus_file": None,
  "dev_file": DEV_DATA,
  "eval_input_file": DEV_DATA,
  "input_file": TRAINING_DATA,
  "predict_file": None,
  "query_file": None,
  "teacher": "teacher",
  "test_file": None,
  "train_file": TRAINING_DATA,
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
  earlier = itertools.takewhile(files.exists, earlier_paths(last))
  for path in (last, *reversed([*earlier])):
    if files.exists(path):
      yield from reversed(read_entries(path).values())


def earlier_paths(path: str) -> Iterator[str]:
  """Paths at which versions up to 0.23.0 kept receipts of earlier runs."""
  stem = path.removesuffix(".json")
  return (f"{stem}-{number}.json" for number in itertools.count(1))


def last_training(folder: str) -> dict[str, Any] | None:
  """The receipt of the last training in a folder; None if none can be read."""
  with contextlib.suppress(InputError):
    return next(filter(trains, read_all(folder)), None)
  return None


def trains(receipt: Mapping[str, Any]) -> bool:
  """True for the receipt of a training."""
  return kind_of(receipt.get("flags", {})) == "training"


def use_of(file: Mapping[str, Any], receipt: Mapping[str, Any]) -> str | None:
  """Use of a file, given its entry in a receipt; None for texts to predict."""
  if "use" in file:
    return file["use"]
  # Versions up to 0.23.0 did not write it.
  if file["what"] != "data":
    return file["what"]
  return find_use(file["path"], receipt.get("flags", {}))


def find_use(
  path: str,
  flags: Mapping[str, Any],
  uses: Mapping[str, str] = {},  # the task's own, by flag
) -> str | None:
  """Use of a data file by the flag that names it, or else by its own name."""
  for flag, use in sorted({**_USES, **uses}.items()):
    if _includes(flags.get(flag), path):
      return use
  # A file of a known data set, which its name describes.
  name = path.removeprefix(str(flags.get("data_dir") or ""))
  if "test" in name:
    return None
  return TRAINING_DATA if "train" in name else DEV_DATA


def _includes(value: Any, path: str) -> bool:
  """True if a flag's value is the path, or a folder or pattern with it."""
  whole = [value] if isinstance(value, str) else []
  return any(
    f"{path}/".startswith(name.rstrip("/") + "/")
    or path.endswith(f"/{name}")
    or fnmatch.fnmatchcase(path, name)
    for name in [*whole, *files.split_names(value)]
    if name
  )


def chosen(receipt: Mapping[str, Any]) -> dict[str, str]:
  """Values that were chosen for "auto", by flag."""
  given = receipt.get("flags", {})
  return {
    name: receipt[name]
    for name, choices in AUTO_CHOICES.items()
    if given.get(name) == "auto" and receipt.get(name) in choices
  }
