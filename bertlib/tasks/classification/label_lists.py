"""Lists of labels in a cell of a table, for multi-label classification."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from bertlib.data import tables

_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_ITEM = rf"(?:{_QUOTED}|[-+]?\d+(?:\.\d*)?|True|False|None)"

# Lists as Python and NumPy print them; NumPy writes no commas.
_PYTHON_LIST = re.compile(
  rf"(?s)\[\s*(?:{_ITEM}(?:(?:\s*,\s*|\s+){_ITEM})*\s*,?\s*)?\]"
)
# Tuples and sets; a number in parentheses may be a label.
_PYTHON_SET = re.compile(
  rf"(?s)[({{]\s*(?:{_QUOTED}|{_ITEM}(?:\s*,\s*{_ITEM})+)\s*,?\s*[)}}]"
  r"|set\(\)|\(\)"
)
_IN_BRACKETS = re.compile(r"(?s)\w*[\[({].*[\])}]")

_VECTOR = re.compile(r"(?:0|1)(?:\.0*)?(?:[\s,;|]+(?:0|1)(?:\.0*)?)+")
_BITS = {"0": 0, "1": 1, "0.": 0, "1.": 1, "0.0": 0, "1.0": 1}
_BITS |= {"false": 0, "true": 1}


def split_labels(
  # Labels with delimiters, a list of JSON or Python, or a vector with 0 or 1
  # for each of `vector_labels`, which are empty if unknown.
  text: str,
  delimiter: str,
  vector_labels: Sequence[str] = (),
) -> list[str]:
  """Distinct labels of a text; ValueError for a list that is not certain."""
  items = parse_list(text)
  if items is None:
    items = text.split(delimiter)
    _check_no_list(text, items)
  if any(isinstance(item, (list, dict)) for item in items):
    raise ValueError(f"the labels {text!r} are a list of lists. Write one list")
  items = [tables.strip_label(tables.as_text(item) or "") for item in items]
  bits = items
  if len(items) == 1 and _VECTOR.fullmatch(items[0]):
    bits = re.split(r"[\s,;|]+", items[0])
  if len(bits) > 1 and all(bit in _BITS for bit in bits):
    is_vector = len(set(bits)) < len(bits)  # no list repeats a label
    if len(bits) == len(vector_labels) and not {*bits} <= {*vector_labels}:
      return [name for name, bit in zip(vector_labels, bits) if _BITS[bit]]
    if is_vector:
      raise ValueError(
        f"the labels {text!r} are {len(bits)} values 0 or 1. Name the label of"
        " each, in their order, by --labels"
      )
  return list(dict.fromkeys(filter(None, items)))


def parse_list(text: str) -> list[Any] | None:
  """The items of a list of JSON, Python or NumPy; None if it is not one."""
  try:
    items = json.loads(text)
  except ValueError:
    items = None
  if isinstance(items, list):
    return items
  if not (_PYTHON_LIST.fullmatch(text) or _PYTHON_SET.fullmatch(text)):
    return None
  return [ast.literal_eval(item) for item in re.findall(_ITEM, text)]


def _check_no_list(text: str, parts: Sequence[str]) -> None:
  """Raises a ValueError for brackets around all parts, and not around each."""
  if (text.startswith(("[", "(", "{")) or _IN_BRACKETS.fullmatch(text)) and (
    (len(parts) == 1 and text[0] == "[")
    or any(
      part.count(opening) != part.count(closing)
      for part in parts
      for opening, closing in ("[]", "()", "{}")
    )
  ):
    raise ValueError(
      f"the labels {text!r} look like a list, but are not written as JSON"
      ' does. Write ["a", "b"], or leave out the brackets'
    )
