"""Reader of JSON and JSON Lines, which people may have edited.

A schema describes what a file has to hold: a type, or several in a tuple;
`[schema]` for a list of such values; and a dict of schemas by key for an
object, which may have further keys. A key that ends in "?" may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from bertlib import text_files
from bertlib.errors import InputError

# Null, in a schema.
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


# What is to be done about a file that is not what it has to be.
_FIX = "Fix the file, or fetch it again"


def read(
  path: str,
  schema: Any = None,
  fix: str = _FIX,
  position: Callable[[str], str] | None = None,
) -> Any:
  """Reads a JSON file.

  Args:
    path: the file.
    schema: of what it holds; None for anything.
    fix: see `parse`.
    position: see `parse`.

  Returns:
    The value.

  Raises:
    InputError: the file cannot be opened, is not UTF-8, or see `parse`.
  """
  try:
    text = text_files.read_text(path)
  except OSError as error:
    raise InputError(
      f"{path}: cannot be read ({error.strerror}). {fix}"
    ) from error
  return parse(text, path, schema, fix, position)


def parse(
  text: str,
  source: str,
  schema: Any = None,
  fix: str = _FIX,
  position: Callable[[str], str] | None = None,
) -> Any:
  """Parses JSON.

  Args:
    text: the JSON.
    source: where it is from, for the error message.
    schema: of what it holds; None for anything.
    fix: how to fix what is not like that, for the error message.
    position: describes where a fault is, given the text before it.

  Returns:
    The value.

  Raises:
    InputError: it is not JSON from end to end, or not as the schema says.
  """
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
  """Parses JSON Lines; blank lines are skipped.

  Args:
    lines: of a file.
    path: the file, for error messages, which name the line too.
    schema: of each line; None for anything.
    fix: see `parse`.

  Yields:
    The number of a line, the first one 1, and its value.

  Raises:
    InputError: see `parse`.
  """
  for number, line in enumerate(lines, start=1):
    if line.strip():
      yield number, parse(line, f"{path}, line {number}", schema, fix)


def mismatch(value: Any, schema: Any, where: str = "") -> str | None:
  """Says how a value is not as a schema wants it; None where it is.

  Args:
    value: of a JSON file.
    schema: see above.
    where: path of keys that leads to the value.

  Returns:
    What to tell the user, or None.
  """
  if isinstance(schema, dict):
    found = mismatch(value, dict, where)
    for key, of_value in schema.items():
      name = key.removesuffix("?")
      if found:
        return found
      if name in value:
        found = mismatch(value[name], of_value, f"{where}.{name}".lstrip("."))
      elif name == key:
        found = f"has no {f'{where}.{name}'.lstrip('.')}"
    return found
  if isinstance(schema, list):
    found = mismatch(value, list, where)
    for index, item in enumerate(() if found else value):
      found = found or mismatch(item, schema[0], f"{where}[{index}]")
    return found
  types = schema if isinstance(schema, tuple) else (schema,)
  is_number = float in types and type(value) is int
  if is_number or type(value) in types:
    return None
  expected = " or ".join(_NAMES[one] for one in types)
  return f"{where or 'its content'} is {_shown(value)}, not {expected}"


def _shown(value: Any) -> str:
  """A value in few words."""
  if isinstance(value, (dict, list)):
    return _NAMES[type(value)]
  text = json.dumps(value)
  return text if len(text) <= 40 else f"{text[:37]}..."
