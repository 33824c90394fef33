"""The file of a receipt (run.json): its path and content, and --rerun."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from bertlib.cli import command_line
from bertlib.cli.absl import flags
from bertlib.cli.errors import InputError
from bertlib.cli.option import AUTO_CHOICES, repeat_choices
from bertlib.io import files, json_files

NAME = "run.json"

FIX = "Name the run.json of a run, as the run left it"

# Schema of the entries that are read, see `json_files`. For each flag in
# `option.AUTO_CHOICES` there is one too: the value that was chosen for "auto".
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


def last_training(folder: str) -> dict[str, Any] | None:
  """The receipt of the last training in a folder; None if none can be read."""
  with contextlib.suppress(InputError):
    return next(filter(trains, read_all(folder)), None)
  return None


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


# --rerun


def with_receipt(
  argv: Sequence[str],
  # Flags that name a file or folder to write. Only the command line says where:
  # a receipt may be of another person.
  outputs: Collection[str] = (),
) -> tuple[list[str], str | None]:
  """Replaces `--rerun=run.json` by that run's flags; returns its path too."""
  known = flags.FlagValues()
  known.set_gnu_getopt()
  flags.DEFINE_string("rerun", None, "A receipt.", flag_values=known)
  with command_line.input_errors(known):
    program, *arguments = known(argv, known_only=True)
  if not known.rerun:
    return [*argv], None
  own = set(map(_name_of_flag, arguments))
  repeated = []
  for argument in flags_to_repeat(known.rerun, os.path.basename(program)):
    name = _name_of_flag(argument)
    if name not in outputs:
      repeated.append(argument)
    elif name not in own:
      raise InputError(
        f"--rerun={known.rerun}: does not say where to write. Give another"
        f" --{name} than that of the receipt"
      )
  # The last value of a flag counts.
  return [program, *repeated, *arguments], known.rerun


def flags_to_repeat(path: str, script: str) -> list[str]:
  """Flags of the run of a receipt, with what "auto" stood for there."""
  receipt = read(path)
  if receipt["script"] != script:
    raise InputError(
      f"{path}: is of {receipt['script']}; repeat it with that script"
    )
  for argument in receipt["given"]:
    if _name_of_flag(argument) in (None, "flagfile", "undefok", "rerun"):
      raise InputError(f"{path}: {argument!r} is not a flag of a run. {FIX}")
  return [*receipt["given"], *repeat_choices(chosen(receipt))]


def chosen(receipt: Mapping[str, Any]) -> dict[str, str]:
  """Values that were chosen for "auto", by flag."""
  given = receipt.get("flags", {})
  return {
    name: receipt[name]
    for name, choices in AUTO_CHOICES.items()
    if given.get(name) == "auto" and receipt.get(name) in choices
  }


def _name_of_flag(argument: str) -> str | None:
  """Name in an argument `--NAME` or `--NAME=VALUE`; None for any other."""
  match = re.fullmatch(r"--?([a-zA-Z][\w-]*)(=.*)?", argument, re.DOTALL)
  return match and match[1]
