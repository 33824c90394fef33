"""The file of a receipt (run.json): its path and content; reads it."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from bertlib.io import files, json_files

NAME = "run.json"

FIX = "Name the run.json of a run, as the run left it"

# Schema of the entries that are read, see `json_files`. For each flag in
# `ranges.AUTO_CHOICES` there is one too: the value that was chosen for "auto".
_SCHEMA = {
  "script": str,
  "given": [str],
  "path": str,
  "files": [
    {
      "what": str,
      "flags": [str],
      "path": str,
      "bytes": int,
      "sha256": str,
      "hashed": str,
    }
  ],
  "code": dict,
  "versions": dict,
  "flags?": dict,
  "results": (dict, json_files.NULL),
  "checkpoint?": (dict, json_files.NULL),
  "started": str,
  "ended?": str,
  "device": dict,
}


TRAINING_DATA, DEV_DATA = "training data", "dev data"

# Use of the files that a flag names; None for texts to predict.
_USES = {
  "train_file": TRAINING_DATA,
  "input_file": TRAINING_DATA,
  "teacher": "teacher",
  "calibration_file": "calibration data",
  "dev_file": DEV_DATA,
  "eval_input_file": DEV_DATA,
  "corpus_file": None,
  "predict_file": None,
  "query_file": None,
  "test_file": None,
}


def earlier_paths(path: str) -> Iterator[str]:
  """Paths for receipts of earlier runs beside one, the first run's first."""
  stem = path.removesuffix(".json")
  return (f"{stem}-{number}.json" for number in itertools.count(1))


def read(path: str) -> dict[str, Any]:
  """Reads a `run.json`, see `receipts.Receipt`."""
  return json_files.read(path, _SCHEMA, FIX)


def read_all(folder: str) -> Iterator[dict[str, Any]]:
  """Yields the receipts in a folder, the last one first."""
  last = os.path.join(folder, NAME)
  earlier = itertools.takewhile(files.exists, earlier_paths(last))
  for path in (last, *reversed([*earlier])):
    if files.exists(path):
      yield read(path)


def duration(receipt: Mapping[str, Any]) -> datetime.timedelta | None:
  """Time of a run; None if it did not end, or resumed an earlier start."""
  # Versions up to 0.21 wrote `earlier_starts`.
  if {"resumed", "earlier_starts"} & receipt.keys():
    return None
  with contextlib.suppress(KeyError, TypeError, ValueError):
    started, ended = map(
      datetime.datetime.fromisoformat, (receipt["started"], receipt["ended"])
    )
    return ended - started
  return None


def use_of(
  file: Mapping[str, Any],
  receipt: Mapping[str, Any],
  uses: Mapping[str, str] = {},  # the task's own, by flag
) -> str | None:
  """Use of a file, given its entry in a receipt; None for texts to predict."""
  if file["what"] != "data":
    return file["what"]
  for flag in file["flags"]:
    if flag in uses or flag in _USES:
      return uses.get(flag) or _USES[flag]
  # A file of a known data set, which its name describes.
  folder = str(receipt.get("flags", {}).get("data_dir") or "")
  name = file["path"].removeprefix(folder)
  if "test" in name:
    return None
  return TRAINING_DATA if "train" in name else DEV_DATA


def trains(receipt: Mapping[str, Any]) -> bool:
  """True for the receipt of a training."""
  return bool(receipt.get("flags", {}).get("do_train"))
