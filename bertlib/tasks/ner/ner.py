"""Sentences of tagged words, and their windows.

A sentence is a list of words, each with a tag: BIO (B-PER I-PER O), BIOES or
bare classes (PER PER O).
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs, tf_records

_HAN = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

# What continues a run of letters: vowel signs and accents, of the characters up
# to U+FFFF, and those for line breaks and ligatures, which tokenization drops.
_MARKS = "\u00ad\u200c\u200d" + "".join(
  char
  for char in map(chr, range(0x10000))
  if unicodedata.category(char).startswith("M")
)

# A word of running text: a run of letters and digits, or one other character.
# Each Chinese character is a word.
WORD = re.compile(rf"[{_HAN}]|[^\W{_HAN}]+(?:[{_MARKS}]+[^\W{_HAN}]*)*|[^\w\s]")


class Sentence(NamedTuple):
  """A sentence of tagged words."""

  words: list[str]
  tags: list[str] | None  # one per word; None if unknown
  text: str  # contains the words
  # Span of each word in `text`, in characters: [start, end).
  offsets: list[tuple[int, int]]
  location: str  # file and line, for messages


def from_words(
  words: list[str], tags: list[str] | None, where: str
) -> Sentence:
  """A sentence whose text is its words joined by spaces."""
  starts = itertools.accumulate((len(word) + 1 for word in words), initial=0)
  offsets = [(start, start + len(word)) for start, word in zip(starts, words)]
  return Sentence(words, tags, " ".join(words), offsets, where)


def from_text(text: str, spans=None, where: str = "") -> Sentence:
  """Splits running text into words, also at the boundaries of entities."""
  # `spans` are mappings with `start`, `end` and `label`; None if unknown.
  boundaries = set()
  for span in spans or ():
    try:
      start, end = span["start"], span["end"]
      is_in_text = 0 <= start < end <= len(text) and start % 1 == end % 1 == 0
      is_entity = is_in_text and bool(span["label"].strip())
    except (TypeError, KeyError, AttributeError):
      is_entity = False
    if not is_entity:
      raise InputError(
        f"{where}: {json.dumps(span)} is not an entity; it needs label, start"
        f" and end, with start < end <= {len(text)}"
      )
    boundaries |= {int(start), int(end)}  # 2.0 too, as pandas writes 2
  cuts = sorted(boundaries)
  offsets = []
  for match in WORD.finditer(text):
    start, end = match.span()
    inner = cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]
    offsets += zip([start, *inner], [*inner, end])
  tags = None
  if spans is not None:
    starts = [start for start, _ in offsets]
    ends = [end for _, end in offsets]
    entities = []
    for span in spans:
      first = bisect_left(starts, span["start"])
      after = bisect_right(ends, span["end"])
      if first < after:
        entities.append(Entity(span["label"].strip(), first, after))
    entities.sort(key=lambda entity: entity.start)
    for entity, following in zip(entities, entities[1:]):
      if following.start < entity.end:
        raise InputError(
          f"{where}: the entities {entity.label} and {following.label} overlap"
        )
    tags = entities_to_tags(entities, len(offsets), "BIO")
  words = [text[start:end] for start, end in offsets]
  return Sentence(words, tags, text, offsets, where)


# Notations of tags

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


# Tags and entities


class Entity(NamedTuple):
  """A named entity: words [start, end) of a sentence."""

  label: str
  start: int
  end: int


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


def repair_tags(
  sentences: Iterable[Sentence], scheme: str
) -> tuple[list[Sentence], int]:
  """Sentences with valid tags of a scheme, and the number of changed tags."""
  result, num_changed = [], 0
  for sentence in sentences:
    entities = tags_to_entities(sentence.tags)
    tags = entities_to_tags(entities, len(sentence.words), scheme)
    num_changed += sum(old != new for old, new in zip(sentence.tags, tags))
    result.append(sentence._replace(tags=tags))
  return result, num_changed


# Windows


class Window(NamedTuple):
  """A part of a sentence that fits the model."""

  input_ids: list[int]  # [CLS], word pieces, [SEP]
  # For each piece, the index of the word whose tag is predicted there (at the
  # word's first piece), else -1.
  words: list[int]
  sentence: int  # its index


def make_windows(
  sentences: Sequence[Sentence],
  tokenizer: tokenization.Tokenizer,
  max_seq_length: int,
) -> Iterator[Window]:
  """Divides sentences into windows; each word is predicted in one of them."""
  special = tokenizer.special_ids
  room = max_seq_length - special.num()
  encoded = tokenizer.encode_words(sentence.words for sentence in sentences)
  for number, (ids, words) in enumerate(encoded):
    doc_spans = model_inputs.make_doc_spans(len(ids), room, max(room // 2, 1))
    for start, length in doc_spans or [(0, 0)]:
      end = start + length
      # In the overlap of two windows, each predicts the half farther from its
      # edge.
      first = start + room // 4 if start else 0
      last = end if end == len(ids) else start + room // 4 + room // 2
      # A word without pieces, such as a control character, is in no window.
      predicted = [
        words[position]
        if first <= position < last
        and (not position or words[position] != words[position - 1])
        else -1
        for position in range(start, end)
      ]
      input_ids, _ = special.join(ids[start:end])
      yield Window(input_ids, [-1, *predicted, -1], number)


def record_layout(max_seq_length: int) -> tf_records.Layout:
  """Layout of the records of windows."""
  return tf_records.token_layout(max_seq_length) | {
    "label_ids": tf_records.Feature((max_seq_length,), per_token=True)
  }


def window_records(
  sentences: Sequence[Sentence],
  windows: Sequence[Window],
  max_seq_length: int,
  labels: Sequence[str] = (),
) -> list[dict[str, Any]]:
  """Records of windows; tags that are not in `labels` have no label."""
  numbers = {label: index for index, label in enumerate(labels)}
  tag_ids = [[numbers.get(tag, -1) for tag in s.tags or ()] for s in sentences]
  records = []
  for window in windows:
    tags = tag_ids[window.sentence]
    # -1 at positions without a label.
    label_ids = [
      tags[word] if tags and word >= 0 else -1 for word in window.words
    ]
    records.append(
      model_inputs.token_features(
        window.input_ids, [0] * len(window.input_ids), max_seq_length
      )
      | {"label_ids": model_inputs.pad(label_ids, max_seq_length, -1)}
    )
  return records
