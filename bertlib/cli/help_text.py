"""Text of `--help` and `--helpfull`, with the flags grouped under headings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Iterable
from typing import Any

from absl import flags

from bertlib import PREFIX
from bertlib.cli import option
from bertlib.cli.option import Flag

SECTIONS = {
  "data": "Data",
  "model": "Model",
  "training": "Training",
  "evaluation": "Evaluation and prediction",
  "devices": "Devices, speed and memory",
  "output": "Output",
}

# Flags that absl handles before it parses the others, and does not list.
_SPECIAL = {
  "flagfile": Flag(
    flags.DEFINE_string,
    None,
    "File whose flags, one per line, are inserted at this point of the command"
    " line.",
    "PATH",
  ),
  "undefok": Flag(
    flags.DEFINE_list,
    None,
    "Names of flags, separated by commas, to ignore if the command does not"
    " define them.",
    "LIST",
  ),
}

# Fixed, so that the text does not depend on the terminal.
_WIDTH = 80


def render(
  settings: type[option.CommandSettings],
  values: flags.FlagValues,
  full: bool,
  summary: str = "",
) -> str:
  """Help of a command: its basic flags or, if `full`, all flags."""
  own = dict(option.declarations(settings))
  required = set(settings.REQUIRED)
  if "init_checkpoint" in own:  # a published model brings them
    required -= {"bert_config_file", "vocab_file"}
  parts = [f"Example:\n{command_line(settings.EXAMPLE)}", summary]
  for section, title in SECTIONS.items():
    listed = [
      (name, flag)
      for name, flag in own.items()
      if flag.section == section and (full or flag.basic)
    ]
    listed.sort(key=lambda item: not item[1].basic)
    parts.append(_section(title, listed, required))
  if full:
    known = {*own, *(flag.alias for flag in own.values())}
    others = {
      name: _declaration(values[name])
      for name in values
      if name == values[name].name and name not in known
    }
    listed = sorted({**others, **_SPECIAL}.items(), key=lambda item: item[0])
    parts.append(_section("Flags of absl and TensorFlow", listed))
  else:
    parts.append("--helpfull lists all flags.")
  return "\n\n".join(filter(None, parts))


def command_line(example: str) -> str:
  """The command line on several lines, joined by backslashes as in a shell."""
  lines = textwrap.wrap(
    as_installed(example),
    _WIDTH - 2,
    initial_indent="  ",
    subsequent_indent="    ",
    break_on_hyphens=False,
  )
  return " \\\n".join(lines)


def as_installed(command: str) -> str:
  """The command `python SCRIPT.py ...` in the form for an installed package."""
  if not PREFIX:
    return command
  return re.sub(r"^python (\w+)\.py", rf"python -m {PREFIX}\1", command)


def _section(
  title: str, listed: Iterable[tuple[str, Flag]], required: Container[str] = ()
) -> str:
  """A heading and its flags; "" if there are none."""
  entries = [_entry(name, flag, name in required) for name, flag in listed]
  return "\n".join([f"{title}:", *entries]) if entries else ""


def _entry(name: str, flag: Flag, is_required: bool) -> str:
  """Names, default and description of a flag."""
  end = " (required)" if is_required else _default(flag.default)
  body, line = flag.help, _names(name, flag, flag.placeholder) + end
  if flag.choices:
    listed = _names(name, flag, "|".join(flag.choices)) + end
    if len(listed) <= _WIDTH:
      line = listed
    else:
      body += f" One of {', '.join(flag.choices)}."
  indent = " " * 6
  body = textwrap.fill(
    body,
    _WIDTH,
    initial_indent=indent,
    subsequent_indent=indent,
    break_on_hyphens=False,
    break_long_words=False,
  )
  return f"{line}\n{body}"


def _names(name: str, flag: Flag, placeholder: str | None) -> str:
  """The names of a flag and its kind of value, indented."""
  long_names = [n for n in (name, flag.alias) if n]
  if placeholder:
    shown = [f"--{n}={placeholder}" for n in long_names]
  else:
    shown = [f"--[no]{n}" for n in long_names]
  if flag.short_name:
    shown.insert(0, f"-{flag.short_name}")
  return f"  {', '.join(shown)}"


def _default(value: Any) -> str:
  if value in (None, "", [], {}):
    return ""
  if isinstance(value, bool):
    value = str(value).lower()
  elif isinstance(value, list):
    value = ",".join(map(str, value))
  return f" (default: {value})"


def _declaration(flag: flags.Flag) -> Flag:
  """Declaration of a flag that a library has defined."""
  return Flag(
    define=flags.DEFINE_flag,
    default=flag.default,
    help=flag.help or "",
    placeholder=None if flag.boolean else "...",
    short_name=flag.short_name,
  )
