"""Named-entity data: files of tagged sentences, tagging schemes, windows.

A sentence is a list of words, each with a tag: BIO (B-PER I-PER O), BIOES
(also BILOU) or bare classes (PER PER O).
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib import json_files, text_files
from bertlib.data import model_inputs, tf_records
from bertlib.errors import InputError
from bertlib.text_files import Encoding

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
  """A sentence of tagged words.

  Attributes:
    words: the words.
    tags: one tag per word; None if they are unknown.
    text: the text that contains the words.
    offsets: character span of each word in `text`, [start, end).
    location: file and line, for messages.
  """

  words: list[str]
  tags: list[str] | None
  text: str
  offsets: list[tuple[int, int]]
  location: str


class Entity(NamedTuple):
  """A named entity: words [start, end) of a sentence."""

  label: str
  start: int
  end: int


class Columns(NamedTuple):
  """Columns and delimiters of a file of tagged words or sentences.

  Attributes:
    word: column of the word, from 1, or from -1 backwards.
    tag: column of the tag, likewise; None to read no tags.
    delimiter: column separator; None for tabs or, in lines without tabs,
      spaces.
    item_delimiter: separates the words and the tags of a sentence if each line
      holds one sentence; None if each line holds one word.
  """

  word: int = 1
  tag: int | None = -1
  delimiter: str | None = None
  item_delimiter: str | None = None


# Files


def read_sentences(
  path: str, columns: Columns, encoding: Encoding | None = None
) -> list[Sentence]:
  """Reads a file of tagged sentences.

  Args:
    path: a `.jsonl` file with `tokens` and `tags`, or with `text` and
      `entities` (`start`, `end` in characters, `label`); otherwise a file of
      columns. A byte-order mark, CRLF and `-DOCSTART-` lines are ignored, `.gz`
      is decompressed.
    columns: format of a file of columns; `tag` None ignores tags in any file.
    encoding: encoding of the file; None for UTF-8.

  Returns:
    The sentences.

  Raises:
    InputError: the file is missing, has no sentences, or has an invalid line.
  """
  try:
    lines = [
      line.rstrip("\r\n") for line in text_files.read_lines(path, encoding)
    ]
  except OSError as error:
    raise InputError(f"{path}: cannot be read; name a file") from error
  tag_locations: dict[str, str] = {}
  if path.removesuffix(".gz").endswith(".jsonl"):
    sentences = list(_read_json(path, lines, columns, tag_locations))
  elif columns.item_delimiter:
    sentences = list(_read_rows(path, lines, columns, tag_locations))
  else:
    sentences = list(_read_columns(path, lines, columns, tag_locations))
  if not sentences:
    raise InputError(f"{path}: has no sentences")
  check_tags(tag_locations)
  return sentences


def _read_columns(path, lines: Sequence[str], columns: Columns, tag_locations):
  """Reads one word per line, with a blank line after each sentence.

  Like the other readers, adds the file and line where each tag first occurs to
  `tag_locations`.
  """
  num_columns = 0
  words: list[str] = []
  tags: list[str] = []
  first = 0
  for number, line in enumerate([*lines, ""], start=1):
    if not line.strip(" \t") or line.startswith("-DOCSTART-"):
      if words:
        yield _join_words(words, tags or None, f"{path}, line {first}")
      words, tags = [], []
      continue
    where = f"{path}, line {number}"
    fields = _split(line, columns.delimiter, num_columns, where)
    num_columns = len(fields)
    if not words:
      first = number
    words.append(_field(fields, columns.word, "word", where))
    if columns.tag is not None and len(fields) > 1:
      tag = _field(fields, columns.tag, "tag", where).strip()
      tags.append(tag)
      tag_locations.setdefault(tag, where)


def _read_rows(path, lines: Sequence[str], columns: Columns, tag_locations):
  """Reads one sentence per line: a column of words and one of tags."""
  num_columns = 0
  for number, line in enumerate(lines, start=1):
    if not line.strip():
      continue
    where = f"{path}, line {number}"
    fields = _split(line, columns.delimiter, num_columns, where)
    num_columns = len(fields)
    words = _field(fields, columns.word, "word", where)
    if number == 1 and not any(columns.item_delimiter in f for f in fields):
      continue  # a header
    words = words.split(columns.item_delimiter)
    tags = None
    if columns.tag is not None and len(fields) > 1:
      tags = _field(fields, columns.tag, "tag", where)
      tags = [tag.strip() for tag in tags.split(columns.item_delimiter)]
      if len(tags) != len(words):
        raise InputError(f"{where}: {len(words)} words, but {len(tags)} tags")
      for tag in tags:
        tag_locations.setdefault(tag, where)
    yield _join_words(words, tags, where)


def _split(
  line: str, delimiter: str | None, num_columns: int, where: str
) -> list[str]:
  """Splits a line into `num_columns` fields, or any number for 0."""
  if delimiter is not None:
    fields = line.split(delimiter)
  elif "\t" in line:
    fields = line.split("\t")
  else:
    fields = re.split(" +", line.strip(" "))
  if num_columns and len(fields) != num_columns:
    raise InputError(
      f"{where}: has {len(fields)} columns, but the lines before have"
      f" {num_columns}. Fix it, or give --delimiter"
    )
  return fields


def _field(fields: Sequence[str], column: int, role: str, where: str) -> str:
  index = column - 1 if column > 0 else column
  if column == 0 or not -len(fields) <= index < len(fields):
    raise InputError(
      f"{where}: has {len(fields)} columns, and no --{role}_column={column}"
    )
  return fields[index]


def _join_words(words, tags, where: str) -> Sentence:
  """A sentence whose text is its words joined by spaces."""
  offsets, start = [], 0
  for word in words:
    offsets.append((start, start + len(word)))
    start += len(word) + 1
  return Sentence(words, tags, " ".join(words), offsets, where)


def _read_json(path, lines: Sequence[str], columns: Columns, tag_locations):
  for number, row in json_files.parse_lines(lines, path):
    where = f"{path}, line {number}"
    has_tags = columns.tag is not None
    if isinstance(row, Mapping) and isinstance(row.get("tokens"), list):
      tags = row.get("tags") if has_tags else None
      for name, items in (("tokens", row["tokens"]), ("tags", tags or [])):
        if not (
          isinstance(items, list) and all(isinstance(i, str) for i in items)
        ):
          raise InputError(f'{where}: "{name}" is not a list of strings')
      if tags is not None and len(tags) != len(row["tokens"]):
        raise InputError(
          f"{where}: {len(row['tokens'])} tokens, but {len(tags)} tags"
        )
      if tags is not None:
        tags = [tag.strip() for tag in tags]
        for tag in tags:
          tag_locations.setdefault(tag, where)
      if row["tokens"]:
        yield _join_words(row["tokens"], tags, where)
    elif isinstance(row, Mapping) and isinstance(row.get("text"), str):
      spans = row.get("entities") if has_tags else None
      yield from_text(row["text"], spans, where)
    else:
      raise InputError(
        f'{where}: has neither "tokens" (a list) nor "text" (a string)'
      )


def from_text(text: str, spans=None, where: str = "") -> Sentence:
  """Splits running text into words, also at the boundaries of entities.

  Args:
    text: text of any length.
    spans: its entities, mappings with `start`, `end` and `label`; None if they
      are unknown.
    where: file and line, for messages.

  Returns:
    The sentence, with BIO tags.

  Raises:
    InputError: a span is not a valid entity of the text, or two overlap.
  """
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


# Tags

# Prefixes of an entity's type, all that `tags_to_entities` supports.
_PREFIXES = ("B-", "I-", "E-", "S-", "L-", "U-")


def check_tags(tag_locations: Mapping[str, str]) -> None:
  """Checks that all tags follow one scheme.

  Args:
    tag_locations: file and line where each tag first occurs.

  Raises:
    InputError: a tag is empty, or some tags have a prefix such as B- and
      another is neither prefixed nor O.
  """
  for tag, location in tag_locations.items():
    if not tag:
      raise InputError(
        f"{location}: the tag is empty. Give each word a tag, or O"
      )
  has_types = any(tag[1:2] == "-" for tag in tag_locations)
  for tag, location in tag_locations.items():
    is_typed = tag.startswith(_PREFIXES) and tag[2:].strip()
    if (has_types and not is_typed and tag != "O") or tag in ("o", "0"):
      raise InputError(
        f"{location}: the tag {tag!r} is neither O nor a type after"
        f" {', '.join(_PREFIXES)}. Fix it, or give another --tag_column"
      )


def find_scheme(tags: Iterable[str]) -> str:
  """Tagging scheme: "BIOES", "BIO", or "" for bare classes."""
  heads = {tag[0] for tag in tags if tag[1:2] == "-"}
  if not heads:
    return ""
  return "BIOES" if heads & set("ESLU") else "BIO"


def tags_to_entities(tags: Sequence[str]) -> list[Entity]:
  """Extracts the entities of a sentence from its tags.

  Invalid tags are accepted as by the CoNLL 2003 evaluation: an I- tag that
  continues no entity starts one.

  Args:
    tags: BIO, BIOES (or BILOU) or bare classes.

  Returns:
    The entities, in order.
  """
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
  """Tags the words of a sentence with its entities.

  Args:
    entities: entities of the sentence, which do not overlap.
    num_words: number of words of the sentence.
    scheme: see `find_scheme`.

  Returns:
    One tag per word.
  """
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
  """Converts the tags of sentences to valid tags of a scheme.

  Args:
    sentences: the sentences; those without tags are unchanged.
    scheme: see `find_scheme`.

  Returns:
    The sentences, and the number of words whose tag changed.
  """
  result, num_changed = [], 0
  for sentence in sentences:
    if sentence.tags is not None:
      tags = entities_to_tags(
        tags_to_entities(sentence.tags), len(sentence.words), scheme
      )
      num_changed += sum(old != new for old, new in zip(sentence.tags, tags))
      sentence = sentence._replace(tags=tags)
    result.append(sentence)
  return result, num_changed


# Windows


class Window(NamedTuple):
  """A part of a sentence that fits the model.

  Attributes:
    input_ids: [CLS], word pieces, [SEP].
    words: for each piece, the index of the word whose tag is predicted there
      (at the word's first piece), else -1.
    sentence: index of the sentence.
  """

  input_ids: list[int]
  words: list[int]
  sentence: int


def make_windows(
  sentences: Sequence[Sentence],
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
) -> Iterator[Window]:
  """Divides sentences into windows; each word is predicted in one of them.

  A long sentence has several windows, which overlap by half; a word is
  predicted in the window that shows more context around it. A word without
  pieces, such as a control character, is predicted in none.

  Args:
    sentences: sentences of any length.
    tokenizer: a WordPiece tokenizer.
    max_seq_length: tokens per window, [CLS] and [SEP] included.

  Yields:
    The windows, in the order of the text.
  """
  cls, sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
  room = max_seq_length - 2
  for number, sentence in enumerate(sentences):
    ids: list[int] = []
    words: list[int] = []
    for index, word in enumerate(sentence.words):
      pieces = tokenizer.encode(word)
      ids += pieces
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


def window_record(
  window: Window,
  unique_id: int,
  max_seq_length: int,
  tag_ids: Sequence[int] | None,
) -> dict[str, Any]:
  """Builds the record of a window.

  Args:
    window: a window of `make_windows`.
    unique_id: number of the window.
    max_seq_length: tokens per record.
    tag_ids: tag ids of the words of its sentence; None if they are unknown.

  Returns:
    The features; `label_ids` is -1 at positions without a label.
  """
  label_ids = [
    -1 if tag_ids is None or word < 0 else tag_ids[word]
    for word in window.words
  ]
  return model_inputs.token_features(window.input_ids, [], max_seq_length) | {
    "label_ids": model_inputs.pad(label_ids, max_seq_length, -1),
    "unique_ids": unique_id,
  }


def window_records(
  sentences: Sequence[Sentence],
  windows: Sequence[Window],
  max_seq_length: int,
  labels: Sequence[str],
) -> list[dict[str, Any]]:
  """Builds the records of windows, numbered from 0.

  Args:
    sentences: sentences, with tags or without.
    windows: their windows.
    max_seq_length: tokens per record.
    labels: the tags of the model; words with another tag have no label.
  """
  label_ids = {label: index for index, label in enumerate(labels)}
  tag_ids = [
    [label_ids.get(tag, -1) for tag in s.tags] if s.tags else None
    for s in sentences
  ]
  return [
    window_record(window, index, max_seq_length, tag_ids[window.sentence])
    for index, window in enumerate(windows)
  ]
