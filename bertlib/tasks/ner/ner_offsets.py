"""Offsets of entities in text: their unit, and the words that they split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import logging

from bertlib.tasks.ner import ner


class AnnotatedText(NamedTuple):
  """A text with its entities.

  Attributes:
    text: the text.
    spans: its entities, see `ner.from_text`; they may be invalid.
    location: file and line, for messages.
  """

  text: str
  spans: Sequence[Any]
  location: str


# Units in which tools count, with the encoding and its bytes per unit.
_UNITS = {
  "UTF-16 units, as JavaScript counts": ("utf-16-le", 2),
  "bytes of UTF-8": ("utf-8", 1),
}


def in_characters(texts: Sequence[AnnotatedText]) -> list[Sequence[Any]]:
  """Converts offsets of a file to characters.

  Offsets are taken for UTF-16 units or bytes if all entities then are whole
  words, while at least half of those concerned are not in characters.

  Logs the conversion, entities that split words, and those without words.

  Args:
    texts: the texts of the file.

  Returns:
    The entities of each text. Invalid ones are unchanged.
  """
  for unit, (encoding, size) in _UNITS.items():
    converted = _convert(texts, encoding, size)
    if converted:
      logging.warning(
        "%s: offsets of entities are read as %s; in characters, entities would"
        " begin or end within words",
        texts[0].location,
        unit,
      )
      texts = converted
      break
  _report(texts)
  return [spans for _, spans, _ in texts]


def _convert(
  texts: Sequence[AnnotatedText], encoding: str, size: int
) -> list[AnnotatedText] | None:
  """Converts offsets in another unit; None if the unit is not certain."""
  result = []
  num_different = num_split = 0
  for annotated in texts:
    text, spans, _ = annotated
    if text.isascii() or (size == 2 and max(text) <= "\uffff"):
      result.append(annotated)
      continue
    position, positions = 0, {0: 0}
    for index, char in enumerate(text, start=1):
      position += len(char.encode(encoding)) // size
      positions[position] = index
    words = _Words(text)
    converted = []
    for span in spans:
      offsets = _offsets(span)
      start, end = (positions.get(offset) for offset in offsets or (-1, -1))
      if start is None or end is None or not words.fit(start, end):
        return None
      if (start, end) != offsets:
        num_different += 1
        num_split += not words.fit(*offsets)
      converted.append({**span, "start": start, "end": end})
    result.append(annotated._replace(spans=converted))
  is_certain = num_split and num_split >= num_different / 2
  return result if is_certain else None


class _Words:
  """Boundaries of the words of a text."""

  def __init__(self, text: str):
    self._text = text
    spans = [match.span() for match in ner.WORD.finditer(text)]
    self._starts = {start for start, _ in spans}
    self._ends = {end for _, end in spans}

  def fit(self, start: int, end: int) -> bool:
    """Whether [start, end) is whole words, with white space around them."""
    if not 0 <= start < end <= len(self._text):
      return False
    span = self._text[start:end]
    end -= len(span) - len(span.rstrip())
    start += len(span) - len(span.lstrip())
    return start in self._starts and end in self._ends


def _offsets(span: Any) -> tuple[int, int] | None:
  """Start and end of an entity; None if it has none."""
  try:
    start, end = span["start"], span["end"]
    return (int(start), int(end)) if start % 1 == end % 1 == 0 else None
  except (TypeError, KeyError, ValueError):
    return None


def _report(texts: Sequence[AnnotatedText]) -> None:
  """Warns of entities that split words, and of those without words."""
  split, blank, count = [], [], 0
  for text, spans, location in texts:
    words = _Words(text) if spans else None
    for start, end in filter(None, map(_offsets, spans)):
      count += 1
      entity = text[max(start, 0) : max(end, 0)]
      if not entity.strip():
        blank.append(location)
      elif not words.fit(start, end):
        split.append((location, entity))
  if split:
    location, entity = split[0]
    logging.warning(
      "%s: the entity %r begins or ends within a word, which is split there, as"
      " do %d of %d entities of the file. Check that `start` and `end` count"
      " characters from 0, and `end` is after the last one",
      location,
      entity,
      len(split),
      count,
    )
  if blank:
    logging.warning(
      "%s: an entity is only white space, and is ignored, as are %d of %d"
      " entities of the file",
      blank[0],
      len(blank),
      count,
    )
