"""Pages on flags, which are generated whenever the site is built."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from bertlib.cli import command_line, option
from bertlib.cli.option import Flag
from website import markdown

_INTRODUCTION = """\
# Flags of all commands

Each flag, its default, and the commands that have it. A flag of several
commands has one row per default. The page of a command groups its flags and
describes them; `--help` prints the basic ones, `--helpfull` all.

`--flagfile=PATH` reads flags from a file, one per line. `--undefok=LIST`
ignores flags that the command does not have.

"""


def commands() -> Iterator[tuple[str, str, type]]:
  """Name, summary and settings class of each command."""
  for path in sorted(markdown.ROOT.glob("*.py")):
    module = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
      alias.name: node.module
      for node in ast.walk(module)
      if isinstance(node, ast.ImportFrom)
      for alias in node.names
    }
    for node in ast.walk(module):
      function = getattr(node, "func", None)  # if it is a call
      if getattr(function, "attr", "") == "parse_flags":
        name = node.args[0].id
        settings = getattr(
          importlib.import_module(imported.get(name, path.stem)), name
        )
        yield path.stem, ast.get_docstring(module).split("\n")[0], settings


def pages() -> dict[str, Callable[[], str]]:
  """A function that gives the text, for each generated page of the site."""
  return {
    "reference/flags.md": _all_flags,
    **{
      f"reference/flags/{command}.md": functools.partial(
        _command_page, command, summary, settings
      )
      for command, summary, settings in commands()
    },
  }


def _all_flags() -> str:
  users = defaultdict(lambda: defaultdict(list))
  for command, _, settings in commands():
    for name, flag in option.declarations(settings):
      users[name][_default(flag.default)].append(
        f"[{command}](flags/{command}.md#{name})"
      )
  rows = [
    (f"`--{name}`", default, ", ".join(links))
    for name, by_default in sorted(users.items())
    for default, links in by_default.items()
  ]
  heads = ("flag", "default", "commands")
  return _INTRODUCTION + markdown.table(heads, rows)


def _command_page(
  command: str, summary: str, settings: type[option.CommandSettings]
) -> str:
  flags = dict(option.declarations(settings))
  required = set(settings.REQUIRED)
  example = markdown.command(settings.EXAMPLE)
  parts = [f"# {command}.py\n\n{summary}\n\n```shell\n{example}\n```\n"]
  for section, title in command_line.SECTIONS.items():
    listed = [item for item in flags.items() if item[1].section == section]
    listed.sort(key=lambda item: not item[1].basic)
    if listed:
      parts.append(f"## {title}\n")
    parts += (_entry(name, f, name in required, flags) for name, f in listed)
  return "\n".join(parts)


def _entry(name: str, flag: Flag, is_required: bool, flags: dict) -> str:
  """Heading, kind of value, default and description of a flag."""
  names = ", ".join(f"`--{n}`" for n in (name, flag.alias) if n)
  default = "required" if is_required else f"default {_default(flag.default)}"
  text = re.sub(r"([*_<\[\]`|])", r"\\\1", flag.help)

  def linked(found):
    known = found[1].replace("\\_", "_")
    shown = f"`--{known}`"
    return f"[{shown}](#{known})" if known in flags else shown

  text = re.sub(r"--((?:\w|\\_)+)", linked, text)
  facts = f"{_kind(flag)}; {default}"
  return f"### {names} {{ #{name} }}\n\n{facts}\n{{ .flag }}\n\n{text}\n"


def _kind(flag: Flag) -> str:
  """Allowed values of a flag, in words."""
  if flag.choices:
    return "one of " + ", ".join(f"`{choice}`" for choice in flag.choices)
  if flag.placeholder is None:
    return "true or false"
  kind = {
    "TEXT": "text",
    "PATH": "path",
    "LIST": "list, separated by commas",
  }.get(flag.placeholder, flag.placeholder.lower())
  return f"{kind} {flag.within}".strip() if flag.within else kind


def _default(value: Any) -> str:
  text = command_line.default_text(value)
  return f"`{text}`" if text else "none"
