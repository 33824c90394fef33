"""Sentences of tagged words, and their windows.

A sentence is a list of words, each with a tag: BIO (B-PER I-PER O), BIOES or
bare classes (PER PER O).
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs, tf_records
from bertlib.tasks.ner import ner_tags

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
        entities.append(ner_tags.Entity(span["label"].strip(), first, after))
    entities.sort(key=lambda entity: entity.start)
    for entity, following in zip(entities, entities[1:]):
      if following.start < entity.end:
        raise InputError(
          f"{where}: the entities {entity.label} and {following.label} overlap"
        )
    tags = ner_tags.entities_to_tags(entities, len(offsets), "BIO")
  words = [text[start:end] for start, end in offsets]
  return Sentence(words, tags, text, offsets, where)


def repair_tags(
  sentences: Iterable[Sentence], scheme: str
) -> tuple[list[Sentence], int]:
  """Sentences with valid tags of a scheme, and the number of changed tags."""
  result, num_changed = [], 0
  for sentence in sentences:
    if sentence.tags is not None:
      entities = ner_tags.tags_to_entities(sentence.tags)
      tags = ner_tags.entities_to_tags(entities, len(sentence.words), scheme)
      num_changed += sum(old != new for old, new in zip(sentence.tags, tags))
      sentence = sentence._replace(tags=tags)
    result.append(sentence)
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
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
) -> Iterator[Window]:
  """Divides sentences into windows; each word is predicted in one of them."""
  cls, sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
  room = max_seq_length - 2
  for number, sentence in enumerate(sentences):
    ids: list[int] = []
    words: list[int] = []
    for index, word in enumerate(sentence.words):
      pieces = tokenizer.encode(word)
      ids += pieces
      # A word without pieces, such as a control character, is predicted in no
      # window.
      words += ([index] + [-1] * (len(pieces) - 1)) if pieces else []
    doc_spans = model_inputs.make_doc_spans(len(ids), room, max(room // 2, 1))
    for start, length in doc_spans or [(0, 0)]:
      end = start + length
      # In the overlap of two windows, each predicts the half farther from its
      # edge.
      first = start + room // 4 if start else 0
      last = end if end == len(ids) else start + room // 4 + room // 2
      predicted = [
        word if first <= position < last else -1
        for position, word in enumerate(words[start:end], start)
      ]
      yield Window([cls, *ids[start:end], sep], [-1, *predicted, -1], number)


def window_lengths(
  windows: Sequence[Window], max_seq_length: int
) -> model_inputs.Lengths:
  """Lengths of windows, for reports; no sentence is truncated."""
  num_windows = Counter(window.sentence for window in windows)
  return model_inputs.Lengths(
    [len(window.input_ids) for window in windows],
    max_seq_length,
    [0] * len(num_windows),
    "sentences",
    list(num_windows.values()),
  )


def record_layout(max_seq_length: int) -> tf_records.Layout:
  """Layout of the records of windows."""
  return tf_records.token_layout(max_seq_length) | {
    "label_ids": tf_records.Feature((max_seq_length,), per_token=True),
    "unique_ids": tf_records.Feature(),
  }


def window_records(
  sentences: Sequence[Sentence],
  windows: Sequence[Window],
  max_seq_length: int,
  labels: Sequence[str] = (),
) -> list[dict[str, Any]]:
  """Records of windows, numbered from 0; tags not in `labels` have no label."""
  numbers = {label: index for index, label in enumerate(labels)}
  tag_ids = [[numbers.get(tag, -1) for tag in s.tags or ()] for s in sentences]
  records = []
  for index, window in enumerate(windows):
    tags = tag_ids[window.sentence]
    # -1 at positions without a label.
    label_ids = [
      tags[word] if tags and word >= 0 else -1 for word in window.words
    ]
    records.append(
      model_inputs.token_features(window.input_ids, [], max_seq_length)
      | {
        "label_ids": model_inputs.pad(label_ids, max_seq_length, -1),
        "unique_ids": index,
      }
    )
  return records
