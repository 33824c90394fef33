"""The row of a case of wrong input."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from bertlib.cli.errors import InputError


class Row(NamedTuple):
  """A case.

  In arguments and texts `{world}`, `{case}` and `{out}` stand for paths: the
  folder of `wrong_input_world`; that of this case's own files; and an output
  folder that is not there yet.

  Attributes:
    rule: what it is a case of, in a word or two.
    name: of the case, unique in its rule.
    script: the command's module.
    arguments: come after those of `wrong_input_world.COMMANDS`, separated by
      spaces.
    files: to write to `{case}`: content by name, text, bytes or a function of
      the world's path.
    environment: variables of the environment.
    stdin: bytes of standard input.
    logged: for input that works, what the log has to contain; else None.
    kind: of the error.
  """

  rule: str
  name: str
  script: str
  arguments: str = ""
  files: Mapping[str, str | bytes | Callable] = {}
  environment: Mapping[str, str] = {}
  stdin: bytes = b""
  logged: str | None = None
  kind: type = InputError


def named(rule: str, script: str, text: str, **parts) -> list[Row]:
  """Rows by lines `NAME: ARGUMENTS`, in which `parts` stand for arguments."""
  found = []
  for line in _lines(text):
    name, arguments = line.split(": ", 1)
    for part, meaning in parts.items():
      arguments = arguments.replace(part, meaning)
    found.append(Row(rule, name, script, arguments))
  return found


def unnamed(rule: str, text: str) -> list[Row]:
  """Rows by lines `SCRIPT ARGUMENTS`, which are also their names."""
  return [Row(rule, line, *line.split(" ", 1)) for line in _lines(text)]


def _lines(text):
  """The lines of a text; an indented one continues the one before."""
  return re.sub(r"\n +", " ", text.strip()).splitlines()
