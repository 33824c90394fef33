"""Command lines: parsing, errors that say how to fix them, and `--help`."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from bertlib import PREFIX
from bertlib.cli import option
from bertlib.cli.absl import flags
from bertlib.cli.errors import InputError
from bertlib.cli.option import Flag

# What to give here instead of flags of earlier versions, and of other BERT
# projects (the PyTorch port and transformers, GluonNLP, NVIDIA), by what the
# message says of the flag. Of several entries, separated by "|", the first one
# counts whose flags the command has.
OTHER_FLAGS = pathlib.Path(__file__).with_name("other_flags.json")


def parse(
  argv: Sequence[str],
  values: flags.FlagValues = flags.FLAGS,
  takes_arguments: bool = False,
  passes_on: bool = False,
) -> list[str]:
  """Parses flags; returns the program and the arguments that are no flags."""
  argv, passed_on = read_flag_files(argv, values), []
  if passes_on and "--" in argv:
    end = argv.index("--")
    argv, passed_on = argv[:end], argv[end + 1 :]
  with input_errors(values):
    program, *words = values(argv)
  if words and not takes_arguments:
    raise InputError(
      f"{words[0]!r}: not a flag. Write flags as --NAME=VALUE, booleans as"
      " --NAME or --noNAME, and quote values with spaces"
    )
  return [program, *words, *passed_on]


def read_flag_files(
  argv: Sequence[str], values: flags.FlagValues = flags.FLAGS
) -> list[str]:
  """Puts the flags of each --flagfile in its position."""
  # Otherwise absl would ignore all flags after the first word that is none.
  values.set_gnu_getopt()
  with input_errors(values):
    try:
      found = values.read_flags_from_files(argv[1:])
      # A file of Windows may begin with a byte-order mark.
      return [argv[0], *(word.removeprefix("\ufeff") for word in found)]
    except (flags.CantOpenFlagFileError, ValueError) as error:
      cause = error.__context__
      if isinstance(cause, OSError):
        file, problem = f"--flagfile={cause.filename}", cause.strerror
      else:  # its bytes or its path
        named = [word for word in argv if re.match("--?flagfile", word)]
        file, problem = " ".join(named), "not UTF-8 text"
      raise InputError(
        f"{file}: {problem}. Name a text file with one flag per line"
      ) from error


@contextlib.contextmanager
def input_errors(values: flags.FlagValues) -> Iterator[None]:
  """Turns absl's errors into InputError."""
  try:
    yield
  except InputError:
    raise
  except (flags.Error, ValueError) as error:
    name = getattr(error, "flagname", None)
    for problem, fixes in json.loads(OTHER_FLAGS.read_text("utf-8")).items():
      for fix in fixes.get(str(name).replace("-", "_"), "").split("|"):
        if fix and flags_in(fix) <= {*values}:
          raise InputError(f"--{name}: {problem} {fix.strip()}") from error
    lines = str(error).splitlines()
    message = "; ".join(re.sub("^flags? .*?: (?=--)", "", x) for x in lines)
    message = message.replace(" ?", "?").rstrip(" .")
    named = f"Unknown command line flag '{name}'"
    message = message.replace(named, f"--{name}: unknown flag")
    end = "" if message.endswith("?") else "."
    raise InputError(f"{message}{end} --helpfull lists all flags") from error


def flags_in(text: str) -> set[str]:
  """Names of the flags that a text names, but for --flagfile of all."""
  return {*re.findall(r"--(?!flagfile\b)(\w+)", text)}


# Help

SECTIONS = {
  "data": "Data",
  "model": "Model",
  "training": "Training",
  "evaluation": "Evaluation and prediction",
  "devices": "Devices, speed and memory",
  "output": "Output",
}

_OF_ALL_COMMANDS = """\
Flags of all commands: --flagfile=PATH reads flags from a file, one per line;
--undefok=NAME,NAME ignores flags that the command does not have;
--tensorflow_log shows TensorFlow's own log; --verbosity=1 shows tracebacks.
--helpxml lists all flags of libraries."""

# Fixed, so that the text does not depend on the terminal.
_WIDTH = 80


def help_text(
  settings: type[option.CommandSettings], full: bool, summary: str = ""
) -> str:
  """Help of a command: its basic flags or, if `full`, all flags."""
  own = dict(option.declarations(settings))
  required = set(settings.REQUIRED)
  if "init_checkpoint" in own:  # a published model brings them
    required -= {"bert_config_file", "vocab_file"}
  parts = [f"Example:\n{example_lines(settings.EXAMPLE)}", summary]
  for section, title in SECTIONS.items():
    listed = [
      (name, flag)
      for name, flag in own.items()
      if flag.section == section and (full or flag.basic)
    ]
    listed.sort(key=lambda item: not item[1].basic)
    if listed:
      entries = [_entry(name, flag, name in required) for name, flag in listed]
      parts.append("\n".join([f"{title}:", *entries]))
  parts.append(_OF_ALL_COMMANDS if full else "--helpfull lists all flags.")
  return "\n\n".join(filter(None, parts))


def example_lines(example: str) -> str:
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


def _entry(name: str, flag: Flag, is_required: bool) -> str:
  """Names, default and description of a flag."""
  default = default_text(flag.default)
  end = f" (default: {default})" if default else ""
  end = " (required)" if is_required else end
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


def default_text(value: Any) -> str:
  """A default as one writes it on a command line; empty for none."""
  if value in (None, "", [], {}):
    return ""
  if isinstance(value, bool):
    return str(value).lower()
  return ",".join(map(str, value)) if isinstance(value, list) else str(value)
