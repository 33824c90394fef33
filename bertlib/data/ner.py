"""Tagged sentences: their files, their entities, their windows of word pieces.

A sentence is a list of words, each with a tag. BIO (B-PER I-PER O), BIOES and
plain classes (PER PER O) are read; what is between is `Entity`s.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib import json_files, text_files
from bertlib.data import model_inputs, tf_records
from bertlib.errors import InputError
from bertlib.text_files import Encoding

# A word of running text: letters and digits, or one character of another kind;
# Chinese, which has no spaces, goes by characters.
WORD = re.compile(
  r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
  r"|[^\W\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
  r"|[^\w\s]"
)


class Sentence(NamedTuple):
  """Words, and what is known of them.

  Attributes:
    words: the words.
    tags: one for each word; None where the file has none.
    text: in which the words stand.
    offsets: character span of each word in `text`, [start, end).
    location: file and line, for messages.
  """

  words: list[str]
  tags: list[str] | None
  text: str
  offsets: list[tuple[int, int]]
  location: str


class Entity(NamedTuple):
  """Words that belong together: words [start, end) of a sentence."""

  label: str
  start: int
  end: int


class Columns(NamedTuple):
  """Where words and tags stand in a file of columns.

  Attributes:
    word: column of the word, from 1, or from -1 backwards.
    tag: likewise; None for a file without tags.
    delimiter: between columns; None for tabs or, in lines without any, spaces.
    item_delimiter: between the words of a sentence, and between its tags,
      where a line holds a sentence; None where it holds a word.
  """

  word: int = 1
  tag: int | None = -1
  delimiter: str | None = None
  item_delimiter: str | None = None


# Files


def read_sentences(
  path: str, columns: Columns, encoding: Encoding = text_files.UTF8
) -> list[Sentence]:
  """Reads a file of tagged sentences.

  Args:
    path: the file: `.jsonl` with `tokens` and `tags`, or `text` and
      `entities` (each `start`, `end`, `label`; characters); else columns. CRLF,
      a byte-order mark, blank lines and `-DOCSTART-` are passed over, and `.gz`
      is unpacked.
    columns: of a file of columns; with `tag` None tags are not looked at.
    encoding: of the file.

  Returns:
    The sentences.

  Raises:
    InputError: the file is missing, has no sentences, or a line is not like
      the others.
  """
  try:
    lines = [
      line.rstrip("\r\n") for line in text_files.read_lines(path, encoding)
    ]
  except OSError as error:
    raise InputError(f"{path}: cannot be read; name a file") from error
  tag_locations: dict[str, str] = {}
  if path.removesuffix(".gz").endswith(".jsonl"):
    sentences = list(_from_json(path, lines, columns, tag_locations))
  elif columns.item_delimiter:
    sentences = list(_from_rows(path, lines, columns, tag_locations))
  else:
    sentences = list(_from_columns(path, lines, columns, tag_locations))
  if not sentences:
    raise InputError(f"{path}: has no sentences")
  check_tags(tag_locations)
  return sentences


def _from_columns(path, lines: Sequence[str], columns: Columns, tag_locations):
  """A word a line, a blank line after a sentence.

  Adds the first file and line of each tag to `tag_locations`.
  """
  number_of_columns = None
  words: list[str] = []
  tags: list[str] = []
  first = 0
  for number, line in enumerate([*lines, ""], start=1):
    if not line.strip(" \t") or line.startswith("-DOCSTART-"):
      if words:
        yield _joined(words, tags or None, f"{path}, line {first}")
      words, tags = [], []
      continue
    fields = _split(line, columns.delimiter)
    if number_of_columns is None:
      number_of_columns = len(fields)
    if len(fields) != number_of_columns:
      raise InputError(
        f"{path}, line {number}: has {len(fields)} columns, but the lines"
        f" before have {number_of_columns}. Mend it, or name --delimiter"
      )
    if not words:
      first = number
    where = f"{path}, line {number}"
    words.append(_field(fields, columns.word, "word", where))
    if columns.tag is not None and len(fields) > 1:
      tag = _field(fields, columns.tag, "tag", where).strip()
      tags.append(tag)
      tag_locations.setdefault(tag, where)


def _from_rows(path, lines: Sequence[str], columns: Columns, tag_locations):
  """A sentence a line: its words, and in another column its tags."""
  number_of_columns = None
  for number, line in enumerate(lines, start=1):
    if not line.strip():
      continue
    where = f"{path}, line {number}"
    fields = _split(line, columns.delimiter)
    if number_of_columns is None:
      number_of_columns = len(fields)
    if len(fields) != number_of_columns:
      raise InputError(
        f"{where}: has {len(fields)} columns, but the lines before have"
        f" {number_of_columns}. Fix it, or name --delimiter"
      )
    words = _field(fields, columns.word, "word", where)
    if number == 1 and not any(columns.item_delimiter in f for f in fields):
      continue  # names of the columns
    words = words.split(columns.item_delimiter)
    tags = None
    if columns.tag is not None and len(fields) > 1:
      tags = _field(fields, columns.tag, "tag", where)
      tags = [tag.strip() for tag in tags.split(columns.item_delimiter)]
      if len(tags) != len(words):
        raise InputError(f"{where}: {len(words)} words, but {len(tags)} tags")
      for tag in tags:
        tag_locations.setdefault(tag, where)
    yield _joined(words, tags, where)


def _split(line: str, delimiter: str | None) -> list[str]:
  if delimiter is None:
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
  return line.split(delimiter)


def _field(fields: Sequence[str], column: int, role: str, where: str) -> str:
  index = column - 1 if column > 0 else column
  if column == 0 or not -len(fields) <= index < len(fields):
    raise InputError(
      f"{where}: has {len(fields)} columns, and no --{role}_column={column}"
    )
  return fields[index]


def _joined(words, tags, where: str) -> Sentence:
  """A sentence whose text is its words with spaces between."""
  offsets, start = [], 0
  for word in words:
    offsets.append((start, start + len(word)))
    start += len(word) + 1
  return Sentence(words, tags, " ".join(words), offsets, where)


def _from_json(path, lines: Sequence[str], columns: Columns, tag_locations):
  for number, row in json_files.parse_lines(lines, path):
    where = f"{path}, line {number}"
    has_tags = columns.tag is not None
    if isinstance(row, Mapping) and isinstance(row.get("tokens"), list):
      tags = row.get("tags") if has_tags else None
      for name, of in (("tokens", row["tokens"]), ("tags", tags or [])):
        if not (isinstance(of, list) and all(isinstance(o, str) for o in of)):
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
        yield _joined(row["tokens"], tags, where)
    elif isinstance(row, Mapping) and isinstance(row.get("text"), str):
      spans = row.get("entities") if has_tags else None
      yield from_text(row["text"], spans, where)
    else:
      raise InputError(
        f'{where}: has neither "tokens" (a list) nor "text" (a string)'
      )


def from_text(text: str, spans=None, where: str = "") -> Sentence:
  """Cuts running text at words, and at the ends of entities.

  Args:
    text: of any length.
    spans: its entities, each with `start`, `end` and `label`; None where they
      are not known.
    where: file and line, for messages.

  Returns:
    The sentence, with tags in BIO.

  Raises:
    InputError: a span is no entity of the text, or two overlap.
  """
  ends = set()
  for span in spans or ():
    try:
      start, end = span["start"], span["end"]
      is_in_text = bool(span["label"].strip()) and 0 <= start < end <= len(text)
    except (TypeError, KeyError, AttributeError):
      is_in_text = False
    if not is_in_text:
      raise InputError(
        f"{where}: {json.dumps(span)} is no entity; it needs label, start and"
        f" end, with start < end <= {len(text)}"
      )
    ends |= {start, end}
  offsets = []
  for match in WORD.finditer(text):
    start, end = match.span()
    cuts = [start, *sorted(e for e in ends if start < e < end), end]
    offsets += zip(cuts, cuts[1:])
  tags = None
  if spans is not None:
    found = []
    for span in spans:
      inside = [
        index
        for index, (start, end) in enumerate(offsets)
        if span["start"] <= start and end <= span["end"]
      ]
      if inside:
        label = span["label"].strip()
        found.append(Entity(label, inside[0], inside[-1] + 1))
    found.sort(key=lambda entity: entity.start)
    for one, other in zip(found, found[1:]):
      if other.start < one.end:
        raise InputError(
          f"{where}: the entities {one.label} and {other.label} overlap"
        )
    tags = entities_to_tags(found, len(offsets), "BIO")
  words = [text[start:end] for start, end in offsets]
  return Sentence(words, tags, text, offsets, where)


# Tags

# Before the type of an entity; `tags_to_entities` knows no others.
_HEADS = ("B-", "I-", "E-", "S-", "L-", "U-")


def check_tags(tag_locations: Mapping[str, str]) -> None:
  """Refuses tags that are not what the others are.

  Args:
    tag_locations: of each tag, file and line where it comes first.

  Raises:
    InputError: one is empty, or some have a type after B-, I- and so on and
      one is neither such a tag nor O.
  """
  for tag, location in tag_locations.items():
    if not tag:
      raise InputError(
        f"{location}: the tag is empty. Give each word its tag, or O"
      )
  has_types = any(tag[1:2] == "-" for tag in tag_locations)
  for tag, location in tag_locations.items():
    is_typed = tag.startswith(_HEADS) and tag[2:].strip()
    if (has_types and not is_typed and tag != "O") or tag in ("o", "0"):
      raise InputError(
        f"{location}: the tag {tag!r} is neither O nor a type after"
        f" {', '.join(_HEADS)}. Fix it, or name the column of the tags with"
        " --tag_column"
      )


def find_scheme(tags: Iterable[str]) -> str:
  """What tags are made of: "BIOES", "BIO", or "" for bare classes."""
  heads = {tag[0] for tag in tags if tag[1:2] == "-"}
  if not heads:
    return ""
  return "BIOES" if heads & set("ESLU") else "BIO"


def tags_to_entities(tags: Sequence[str]) -> list[Entity]:
  """The entities that tags describe, also where they are not well made.

  An inside without a beginning begins, as in the evaluation of CoNLL 2003.

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
    goes_on = is_open and head in "IEL" and kind == label
    if is_open and not goes_on:
      found.append(Entity(label, start, index))
    if not goes_on:
      label, start = kind, index
    is_open = head != "O"
    if head in "ESLU":
      found.append(Entity(label, start, index + 1))
      is_open = False
  return found


def entities_to_tags(
  entities: Iterable[Entity], num_words: int, scheme: str
) -> list[str]:
  """The tags of entities.

  Args:
    entities: of one sentence; no two share a word.
    num_words: of the sentence.
    scheme: see `find_scheme`.

  Returns:
    A tag for each word.
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
  """Sentences with tags as the scheme has them, and how many were not.

  Args:
    sentences: some may be without tags.
    scheme: see `find_scheme`.

  Returns:
    The sentences; and the number of words whose tag is another now.
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
  """A stretch of a sentence as the model takes it.

  Attributes:
    input_ids: [CLS], word pieces, [SEP].
    words: of each piece of `input_ids` the word that is decided there: the
      index of it in the sentence at a word's first piece, else -1.
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
  """Cuts sentences into windows, each word decided in one of them.

  A sentence that does not fit makes several, which overlap by half: a word is
  decided where it has more around it. A word of which no piece is left, such as
  a control character, is decided nowhere.

  Args:
    sentences: the sentences.
    tokenizer: gives the ids.
    max_seq_length: tokens of a window, with [CLS] and [SEP].

  Yields:
    The windows, those of a sentence in order.
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
      # Of what two windows share, each decides the half away from its edge.
      first = start + room // 4 if start else 0
      last = end if end == len(ids) else start + room // 4 + room // 2
      decided = [
        word if first <= position < last else -1
        for position, word in enumerate(words[start:end], start)
      ]
      yield Window([cls, *ids[start:end], sep], [-1, *decided, -1], number)


def window_lengths(
  windows: Sequence[Window], max_seq_length: int
) -> model_inputs.Lengths:
  """The lengths of windows, in which no sentence is truncated."""
  num_windows = Counter(window.sentence for window in windows)
  return model_inputs.Lengths(
    [len(window.input_ids) for window in windows],
    max_seq_length,
    [0] * len(num_windows),
    "sentences",
    list(num_windows.values()),
  )


def record_layout(max_seq_length: int) -> tf_records.Layout:
  """The layout of windows as records."""
  return tf_records.token_layout(max_seq_length) | {
    "label_ids": tf_records.Feature((max_seq_length,)),
    "unique_ids": tf_records.Feature(),
  }


def window_record(
  window: Window,
  unique_id: int,
  max_seq_length: int,
  tag_ids: Sequence[int] | None,
) -> dict[str, Any]:
  """A window as a record.

  Args:
    window: the window.
    unique_id: its number.
    max_seq_length: tokens of a record.
    tag_ids: of the words of its sentence; None where they are not known.

  Returns:
    The features; `label_ids` is -1 where nothing is decided.
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
  """The records of windows, numbered from 0.

  Args:
    sentences: the sentences.
    windows: their windows.
    max_seq_length: tokens of a record.
    labels: the tags; another tag is no label.
  """
  number = {label: index for index, label in enumerate(labels)}
  tag_ids = [
    [number.get(tag, -1) for tag in s.tags] if s.tags else None
    for s in sentences
  ]
  return [
    window_record(window, index, max_seq_length, tag_ids[window.sentence])
    for index, window in enumerate(windows)
  ]
