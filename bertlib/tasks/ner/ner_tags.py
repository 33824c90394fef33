"""Tags of words, and the entities that they mean."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bertlib.cli.errors import InputError


class Entity(NamedTuple):
  """A named entity: words [start, end) of a sentence."""

  label: str
  start: int
  end: int


# Reading

# The letters for a word of an entity in BIO, BIOES, BILOU, BMES and BMEWO, and
# those of BIOES for them.
_HEADS = {
  "B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"
}  # fmt: skip

# Type of entities whose tags name none: B, I and O.
UNNAMED_TYPE = "ENTITY"


_LETTERS = "".join(_HEADS)


def _notations(letters: str, outside: str) -> list[re.Pattern]:
  """Patterns of B-PER, B_PER, PER_B and B, each with O."""
  head = f"(?P<head>[{letters}])"
  separator = r"(?P<separator>_|[^\w()<>\[\]{}*])"
  return [
    re.compile(f"{outside}|{pattern}")
    for pattern in (
      rf"{head}(?P<separator>-)(?P<type>.*\S.*)",
      rf"{head}{separator}(?P<type>\w.*)",
      rf"(?P<type>.*\w){separator}{head}",
      rf"{head}(?P<separator>)(?P<type>)",
    )
  ]


_STANDARD, *_OTHERS = (
  *_notations(_LETTERS, "O"),
  *_notations(_LETTERS.lower(), "o"),
)

# Not a bare class: part of a notation, a number, a bracket, or O in lower case.
_NO_CLASS = re.compile(
  r"[BI]([\W_].*)?|.*[\W_]B|.-.*|\d+|[\W_]*|.*[()<>\[\]{}*].*|o"
  r"|(.*[\W_])?(begin|inside|outside)([\W_].*)?",
  re.IGNORECASE,
)

# A second tag within a tag, as for nested entities.
_SECOND_TAG = re.compile(rf".+[|,;&+\s]\s*[{_LETTERS}][-_]")


def read_tags(locations: Mapping[str, str]) -> dict[str, str]:
  """Maps each tag of a file to BIO or BIOES; bare classes are unchanged."""
  # `locations` are the file and line where each tag first occurs.
  if "" in locations:
    raise InputError(
      f"{locations['']}: the tag is empty. Give each word a tag, or O"
    )
  tags = [tag for tag in locations if tag != "O"]
  for tag in filter(_SECOND_TAG.match, tags):
    raise InputError(
      f"{locations[tag]}: {tag!r} is more than one tag. Give each word one,"
      " such as B-PER"
    )
  # A notation other than B-PER is read if all tags have it, and some begin an
  # entity and others continue one.
  for notation in (_STANDARD, *_OTHERS):
    if meanings := _read_as(notation, tags):
      return {"O": "O"} | meanings
  uncertain = _find_uncertain(tags)
  if uncertain is not None:
    raise InputError(
      f"{locations[uncertain]}: the tag {uncertain!r} has no certain meaning."
      " Write B-PER at the first word of an entity of type PER, I-PER at its"
      " other words, and O elsewhere; or give another --tag_column"
    )
  return {tag: tag for tag in locations}


def _read_as(notation: re.Pattern, tags: Sequence[str]) -> dict[str, str]:
  """The meaning of tags in a notation; empty if it is not certain."""
  meanings = {}
  heads, separators = set(), set()
  for tag in tags:
    found = notation.fullmatch(tag)
    if not found:
      return {}
    if not found["head"]:
      meanings[tag] = "O"
      continue
    head = _HEADS[found["head"].upper()]
    heads.add(head)
    separators.add(found["separator"])
    meanings[tag] = f"{head}-{found['type'].strip() or UNNAMED_TYPE}"
  is_certain = heads >= {"B", "I"} and len(separators) == 1
  return meanings if is_certain or notation is _STANDARD else {}


def is_standard(tag: str) -> bool:
  """Returns whether a tag is O or like B-PER."""
  return bool(_STANDARD.fullmatch(tag))


def _find_uncertain(tags: Sequence[str]) -> str | None:
  """The first tag that may be no bare class; None if all are bare classes."""
  if any(map(_STANDARD.fullmatch, tags)):
    return next(tag for tag in tags if not _STANDARD.fullmatch(tag))
  uncertain = next(filter(_NO_CLASS.fullmatch, tags), None)
  # BPER and IPER, or PERB and PERI.
  for head, rest in ((0, slice(1, None)), (-1, slice(-1))):
    begun, continued = (
      {tag[rest] for tag in tags if tag[head] == letter} for letter in "BI"
    )
    if begun & continued and all(tag[head] in _HEADS for tag in tags):
      uncertain = uncertain or tags[0]
  return uncertain


def count_by_seqeval(
  # Tags of a sentence, and the entities that they mean.
  tagged: Iterable[tuple[Sequence[str], Sequence[Entity]]],
) -> int | None:
  """Number of entities of seqeval; None if the same, or not installed."""
  try:
    from seqeval.metrics.sequence_labeling import get_entities
  except ModuleNotFoundError:
    return None
  count, are_same = 0, True
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of tags that it doubts
    for tags, entities in tagged:
      found = [(start, end + 1) for _, start, end in get_entities(list(tags))]
      count += len(found)
      are_same &= found == [(entity.start, entity.end) for entity in entities]
  return None if are_same else count


# Conversion


def find_scheme(tags: Iterable[str]) -> str:
  """Tagging scheme: "BIOES", "BIO", or "" for bare classes."""
  heads = {tag[0] for tag in tags if tag[1:2] == "-"}
  if not heads:
    return ""
  return "BIOES" if heads & set("ESLU") else "BIO"


def is_iob1(tagged: Iterable[Sequence[str]]) -> bool:
  """Returns whether B- always separates an entity from one of its type."""
  # So it does in IOB1, and if all tags of entities are I-.
  return all(
    before[1:] == tag[1:]
    for tags in tagged
    for before, tag in zip(["O", *tags], tags)
    if tag.startswith("B-")
  )


def tags_to_entities(tags: Sequence[str]) -> list[Entity]:
  """Entities of a sentence, in order; of BIO, BIOES, BILOU or bare classes."""
  # Invalid tags are accepted as by the CoNLL 2003 evaluation: an I- tag that
  # continues no entity starts one.
  found: list[Entity] = []
  label, start, is_open = None, 0, False
  for index, tag in enumerate([*tags, "O"]):
    head, _, kind = tag.partition("-") if tag[1:2] == "-" else ("I", "", tag)
    if tag == "O":
      head, kind = "O", None
    continues = is_open and head in "IEL" and kind == label
    if is_open and not continues:
      found.append(Entity(label, start, index))
    if not continues:
      label, start = kind, index
    is_open = head != "O"
    if head in "ESLU":
      found.append(Entity(label, start, index + 1))
      is_open = False
  return found


def entities_to_tags(
  entities: Iterable[Entity], num_words: int, scheme: str
) -> list[str]:
  """Tags the words of a sentence with its entities, which do not overlap."""
  tags = ["O"] * num_words
  for label, start, end in entities:
    tags[start:end] = [f"I-{label}" if scheme else label] * (end - start)
    if scheme:
      tags[start] = f"B-{label}"
    if scheme == "BIOES":
      tags[end - 1] = f"S-{label}" if end - start == 1 else f"E-{label}"
  return tags
