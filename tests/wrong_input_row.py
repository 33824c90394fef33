"""The row of a case of wrong input."""

from __future__ import annotations

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
