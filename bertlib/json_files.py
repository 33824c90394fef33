"""Reader of the project's own JSON files, which people may have edited.

A schema describes what a file has to hold: a type, or several in a tuple;
`[schema]` for a list of such values; and a dict of schemas by key for an
object, which may have further keys. A key that ends in "?" may be missing.
"""

from __future__ import annotations

import json
from typing import Any

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


def read(path: str, schema: Any, cure: str) -> Any:
  """Reads a JSON file.

  Args:
    path: the file.
    schema: of what it holds.
    cure: for the error message: how to fix a file that is not like that.

  Returns:
    The value.

  Raises:
    InputError: the file is no JSON in UTF-8, or not as the schema says.
  """
  text = text_files.read_text(path)
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise InputError(f"{path}: is not JSON ({error}). {cure}") from error
  problem = mismatch(value, schema)
  if problem:
    raise InputError(f"{path}: {problem}. {cure}")
  return value


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
