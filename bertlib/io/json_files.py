"""Reads, validates and writes JSON and JSON Lines files.

A schema is a type, or an `option.Flag` whose values are allowed, or a tuple of
these; `[schema]` for a list; a dict of schemas by key for an object, which may
have further keys. A key that ends in "?" is optional.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

from bertlib.cli.errors import InputError
from bertlib.cli.option import Flag
from bertlib.io import text_files

# `null` in a schema.
NULL = type(None)

_NAMES = {
  str: "text",
  bool: "true or false",
  int: "an integer",
  float: "a number",
  dict: "an object",
  list: "a list",
  NULL: "null",
}


def dumps(value: Any, **options: Any) -> str:
  """Text of a value as strict JSON, which every reader takes, see `finite`."""
  try:
    return json.dumps(value, allow_nan=False, **options)
  except ValueError:
    return json.dumps(finite(value), allow_nan=False, **options)


def finite(value: Any) -> Any:
  """The value with None for each NaN or Inf; NumPy's values become Python's."""
  if hasattr(value, "tolist"):
    value = value.tolist()
  if isinstance(value, Mapping):
    return {key: finite(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [finite(item) for item in value]
  # JSON has neither.
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def with_nan(value: Any) -> Any:
  """The value with NaN for each null; see `finite`."""
  if isinstance(value, dict):
    return {key: with_nan(item) for key, item in value.items()}
  if isinstance(value, list):
    return [with_nan(item) for item in value]
  return math.nan if value is None else value


def write(path: str, value: Any) -> None:
  """Writes a value as `pretty` JSON to a local file."""
  with open(path, "w", encoding="utf-8") as file:
    file.write(pretty(value))


def pretty(value: Any) -> str:
  """Text of a JSON file that people can read."""
  return dumps(value, indent=2, ensure_ascii=False) + "\n"


# Default advice for invalid files.
_FIX = "Fix the file, or download it again"


def read(
  path: str,
  schema: Any = None,
  fix: str = _FIX,
  position: Callable[[str], str] | None = None,
) -> Any:
  """Reads a JSON file; InputError unless it matches the schema."""
  try:
    text = text_files.read_text(path)
  except OSError as error:
    raise InputError(
      f"{path}: cannot be read ({error.strerror}). {fix}"
    ) from error
  return parse(text, path, schema, fix, position)


def parse(
  text: str,
  source: str,  # name of the file, for messages
  schema: Any = None,
  fix: str = _FIX,  # how to fix an invalid file
  # Describes the position of a syntax error, given the text before it.
  position: Callable[[str], str] | None = None,
) -> Any:
  """Parses JSON of a file; InputError unless it matches the schema."""
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    where = position(text[: getattr(error, "pos", 0)]) if position else ""
    raise InputError(
      f"{source}: is not JSON, or is incomplete ({error}){where}. {fix}"
    ) from error
  problem = None if schema is None else mismatch(value, schema)
  if problem:
    raise InputError(f"{source}: {problem}. {fix}")
  return value


def parse_lines(
  lines: Iterable[str], path: str, schema: Any = None, fix: str = _FIX
) -> Iterator[tuple[int, Any]]:
  """Yields number, from 1, and value of each line that is not blank."""
  for number, line in enumerate(lines, start=1):
    if line.strip():
      yield number, parse(line, f"{path}, line {number}", schema, fix)


def check_values(
  content: Mapping[str, Any], supported: Mapping[str, Any], source: str
) -> None:
  """Refuses settings that have another value than the one supported."""
  # The content may lack keys.
  for key, value in supported.items():
    if content.get(key, value) != value:
      raise InputError(
        f"{source}: {key} is {json.dumps(content[key])}; only"
        f" {json.dumps(value)} can be converted"
      )


def mismatch(value: Any, schema: Any, where: str = "") -> str | None:
  """First mismatch of a value and a schema; `where` is a path of keys."""
  if isinstance(schema, dict):
    problem = mismatch(value, dict, where)
    for key, value_schema in schema.items():
      name = key.removesuffix("?")
      if problem:
        return problem
      if name in value:
        problem = mismatch(
          value[name], value_schema, f"{where}.{name}".lstrip(".")
        )
      elif name == key:
        problem = f"has no {f'{where}.{name}'.lstrip('.')}"
    return problem
  if isinstance(schema, list):
    problem = mismatch(value, list, where)
    for index, item in enumerate(() if problem else value):
      problem = problem or mismatch(item, schema[0], f"{where}[{index}]")
    return problem
  kinds = schema if isinstance(schema, tuple) else (schema,)
  if any(_fits(value, kind) for kind in kinds):
    return None
  expected = " or ".join(
    kind.allowed if isinstance(kind, Flag) else _NAMES[kind] for kind in kinds
  )
  return f"{where or 'its content'} is {shown(value)}, not {expected}"


def _fits(value: Any, kind: type | Flag) -> bool:
  """True for a value of a type, or of a flag."""
  if isinstance(kind, Flag):
    return kind.allows(value)
  return type(value) is kind or (kind is float and type(value) is int)


def shown(value: Any) -> str:
  """A short form of a value, for error messages."""
  if isinstance(value, (dict, list)):
    return _NAMES[type(value)]
  text = json.dumps(value)
  return text if len(text) <= 40 else f"{text[:37]}..."
