"""The command line of --rerun: flags of an earlier run, from its receipt."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bertlib.cli import command_line
from bertlib.cli.absl import flags
from bertlib.cli.errors import InputError
from bertlib.cli.ranges import AUTO_CHOICES
from bertlib.io import receipt_file


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
  receipt = receipt_file.read(path)
  if receipt["script"] != script:
    raise InputError(
      f"{path}: is of {receipt['script']}; repeat it with that script"
    )
  for argument in receipt["given"]:
    if _name_of_flag(argument) in (None, "flagfile", "undefok", "rerun"):
      raise InputError(
        f"{path}: {argument!r} is not a flag of a run. {receipt_file.FIX}"
      )
  return [*receipt["given"], *repeat_choices(chosen(receipt))]


def chosen(receipt: Mapping[str, Any]) -> dict[str, str]:
  """Values that were chosen for "auto", by flag."""
  given = receipt.get("flags", {})
  return {
    name: receipt[name]
    for name, choices in AUTO_CHOICES.items()
    if given.get(name) == "auto" and receipt.get(name) in choices
  }


def repeat_choices(choices: Mapping[str, str]) -> list[str]:
  """Flags that give another process the choices for "auto"."""
  # As a flag, "on" would compile evaluation and prediction on a GPU too.
  return [
    f"--{name}={value}"
    for name, value in choices.items()
    if (name, value) != ("xla", "on")
  ]


def _name_of_flag(argument: str) -> str | None:
  """Name in an argument `--NAME` or `--NAME=VALUE`; None for any other."""
  match = re.fullmatch(r"--?([a-zA-Z][\w-]*)(=.*)?", argument, re.DOTALL)
  return match and match[1]
