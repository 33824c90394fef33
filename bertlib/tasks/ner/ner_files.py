"""Files of tagged sentences: columns, rows, JSON Lines with offsets."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.io import files, json_files, text_files
from bertlib.io.text_files import Encoding
from bertlib.tasks.ner import ner
from bertlib.tasks.ner.ner import Sentence

_FORMATS = (
  "one word per line, with the same columns in each and a blank line after each"
  ' sentence; or JSON Lines (.jsonl) with "text", for running text'
)


class Columns(NamedTuple):
  """Columns of a file of tagged words, and their delimiter."""

  word: int = 1  # from 1, or from -1 backwards
  tag: int = -1  # likewise
  # Column separator; None for tabs or, in lines without tabs, spaces.
  delimiter: str | None = None
  # Whether tags are read, from a file of any format; if not, they may be
  # missing.
  needs_tags: bool = True


def columns_of(settings: Any, needs_tags: bool = True) -> Columns:
  """The columns of the flags of the script."""
  return Columns(
    settings.word_column,
    settings.tag_column,
    settings.unescaped_delimiter(),
    needs_tags,
  )


class _Lines:
  """Lines of a file, read again by each iteration, so that none are kept."""

  def __init__(self, path: str, encoding: Encoding | None):
    self._path, self._encoding = path, encoding

  def __iter__(self) -> Iterator[str]:
    try:
      for line in text_files.read_lines(self._path, self._encoding):
        yield line.rstrip("\r\n")
    except OSError as error:
      raise InputError(f"{self._path}: cannot be read; name a file") from error


def read_sentences(
  path: str, columns: Columns, encoding: Encoding | None = None
) -> list[Sentence]:
  """Reads a file of tagged sentences; logs unusual tags and offsets."""
  tag_locations: dict[str, str] = {}
  lines = [*_Lines(path, encoding)]
  sentences = [*_sentences(path, lines, columns, tag_locations)]
  return _read_tags(path, sentences, tag_locations)


def stream_sentences(
  path: str,  # "-" for standard input
  columns: Columns,  # without tags
  encoding: Encoding | None = None,
) -> Iterator[Sentence]:
  """Yields the sentences of a file, which is read several times."""
  lines: Iterable[str] = _Lines(path, encoding)
  if not files.is_plain(path):  # it can be read once
    lines = [*lines]
  return _sentences(path, lines, columns, {})


def _sentences(
  path: str,
  lines: Iterable[str],
  columns: Columns,
  tag_locations: dict[str, str],  # see `_read_columns`
) -> Iterator[Sentence]:
  """Yields the sentences of a file, at least one."""
  if path.removesuffix(".gz").endswith(".jsonl"):
    read = _read_json
  else:
    _check_not_json(path, lines)
    read = _read_columns
    if not columns.needs_tags and _is_running_text(path, lines, columns):
      read = _read_texts
  sentence = None
  for sentence in read(path, lines, columns, tag_locations):
    yield sentence
  if sentence is None:
    raise InputError(f"{path}: has no sentences")


def _read_tags(
  path: str, sentences: list[Sentence], tag_locations: Mapping[str, str]
) -> list[Sentence]:
  """Replaces tags by those that they mean, see `ner.read_tags`."""
  meanings = ner.read_tags(tag_locations)
  found = [tag for tag in meanings if tag != "O"]
  changed = [tag for tag in found if meanings[tag] != tag]
  if not found or not (changed or ner.find_scheme(found) == ""):
    return sentences
  result = [
    sentence._replace(tags=[meanings.get(tag, tag) for tag in sentence.tags])
    for sentence in sentences
  ]
  entities = [ner.tags_to_entities(sentence.tags) for sentence in result]
  by_seqeval = ner.count_by_seqeval(
    (sentence.tags, of_sentence)
    for sentence, of_sentence in zip(sentences, entities)
  )
  reading = "tags without B- and I- are types of entities"
  if changed:
    reading = f"{changed[0]} is read as {meanings[changed[0]]}, others likewise"
  logging.info(
    "%s: %s; %d entities%s",
    path,
    reading,
    sum(map(len, entities)),
    f"; seqeval finds {by_seqeval} in the tags as they are"
    if by_seqeval is not None
    else "",
  )
  if not changed and "O" not in tag_locations:
    logging.warning(
      "%s: no word is tagged O, so each is part of an entity. If the tags are"
      " in another column, give --tag_column",
      path,
    )
  return result


def _check_not_json(path: str, lines: Iterable[str]) -> None:
  """Refuses JSON in a file whose name does not end in .jsonl."""
  first = next(filter(str.strip, lines), "").lstrip()
  # A line per object, or one value over many lines.
  for text in (first, "\n".join(lines)) if first.startswith(("[", "{")) else ():
    try:
      value = json.loads(text)
    except ValueError:
      continue
    if value:
      raise InputError(
        f"{path}: is JSON. JSON is read from files named .jsonl, with one"
        " object per line"
      )


# Columns

# Names of a column of tags, in the first line of a file.
_TAG_NAMES = ("label", "labels", "ner", "ner_tag", "ner_tags", "tag", "tags")

# Several words: with spaces, or with Chinese or Japanese punctuation.
_SEVERAL_WORDS = re.compile(r".*\S +\S.*|.*\w[、。，！？；]\w.*|.*\w\w[。！？]")

# A word and its tag, in columns with another delimiter.
_TAGGED_WORD = re.compile(r".+[,;|](O|[BIES]-\S+)")

# A comment of CoNLL-U or CoNLL-2012.
_COMMENT = re.compile(
  r"#\s*(\w\S* = |newdoc\b|newpar\b|(begin|end) document\b)"
)


def _read_columns(path, lines: Iterable[str], columns: Columns, tag_locations):
  """Reads one word per line, with a blank line after each sentence."""
  # Like the other readers, adds the file and line where each tag first occurs
  # to `tag_locations`.
  is_comment = _comment_test(lines, columns)
  comment, num_comments = "", 0  # the first
  num_columns = 0
  words: list[str] = []
  tags: list[str] = []
  first = 0
  for number, line in enumerate(itertools.chain(lines, [""]), start=1):
    if line.startswith("#") and is_comment(line):
      comment, num_comments = comment or line, num_comments + 1
      continue
    if not line.strip(" \t") or line.startswith("-DOCSTART-"):
      if words:
        yield ner.from_words(
          words, tags if columns.needs_tags else None, f"{path}, line {first}"
        )
      words, tags = [], []
      continue
    where = f"{path}, line {number}"
    fields = _split(line, columns.delimiter, num_columns, where)
    if not num_columns and _is_header(fields, columns, where):
      continue
    num_columns = len(fields)
    if not words:
      first = number
    words.append(_field(fields, columns.word, "word", where))
    if columns.needs_tags:
      tags.append(_tag(fields, columns, where).strip())
      tag_locations.setdefault(tags[-1], where)
  if num_comments:
    logging.info(
      "%s: comments left out: %d, such as %s", path, num_comments, comment
    )


def _is_header(fields: Sequence[str], columns: Columns, where: str) -> bool:
  """Returns whether a first line names its columns; logs it if so."""
  is_header = len(fields) > 1 and any(
    name.strip().lower() in _TAG_NAMES for name in _at(fields, columns.tag)
  )
  if is_header:
    logging.info("%s: is read as the names of the columns", where)
  return is_header


def _comment_test(
  lines: Iterable[str], columns: Columns
) -> Callable[[str], bool]:
  """Test that a line with # is no word, by its columns or as in CoNLL-U."""
  word = next(filter(re.compile(r"(?!#|-DOCSTART-)\s*\S").match, lines), None)
  # In a file with tabs, spaces do not separate columns.
  delimiter = columns.delimiter or ("\t" if "\t" in (word or "") else None)
  width = len(_split(word, delimiter)) if word else None

  def is_comment(line):
    is_other = width and len(_split(line, delimiter)) != width
    if width == 1:  # "#a b" may be a text
      is_other &= line.startswith("# ")
    return is_other or (delimiter != "\t" and bool(_COMMENT.match(line)))

  return is_comment


def _is_running_text(path: str, lines: Iterable[str], columns: Columns) -> bool:
  """True if lines are sentences, not words; InputError if they may be."""
  if columns.word != 1:
    return False
  word = next(filter(str.strip, lines), "")
  if _TAGGED_WORD.fullmatch(word) and all(
    _TAGGED_WORD.fullmatch(line) for line in lines if line.strip()
  ):
    raise InputError(
      f"{path}: has a tag in each word, such as {word}. Give --delimiter"
    )
  suspect = None
  widths: Counter[int] = Counter()
  is_comment = _comment_test(lines, columns)
  for number, line in enumerate(lines, start=1):
    if not line.strip() or line.startswith("-DOCSTART-"):
      continue
    if line.startswith("#") and is_comment(line):
      continue
    fields = _split(line, columns.delimiter)
    widths[len(fields)] += 1
    if len(fields) == 1:
      is_text = bool(_SEVERAL_WORDS.fullmatch(line))
    else:
      is_text = columns.delimiter is None and "\t" not in line
      if any(map(ner.is_standard, _at(fields, columns.tag))):
        return False
    if is_text and suspect is None:
      suspect = number
  if suspect is None:
    return False
  if path.removesuffix(".gz").endswith(".csv"):
    raise InputError(
      f"{path}: is a table. Write its texts into a .jsonl file, one object with"
      ' "text" per line'
    )
  # Columns are equally many in all lines, but for a damaged one.
  if columns.delimiter or 2 * max(widths.values()) > sum(widths.values()):
    raise InputError(
      f"{path}, line {suspect}: looks like a sentence. Write {_FORMATS}. If"
      " these are columns, give --delimiter=' '"
    )
  logging.info("%s: each line is read as a text, not as columns", path)
  return True


def _read_texts(path, lines: Iterable[str], columns: Columns, tag_locations):
  """Reads one text per line."""
  del columns, tag_locations
  for number, line in enumerate(lines, start=1):
    if line.strip():
      yield ner.from_text(line, where=f"{path}, line {number}")


def _split(
  line: str, delimiter: str | None, num_columns: int = 0, where: str = ""
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
      f" {num_columns}. Write {_FORMATS}"
    )
  return fields


def _at(fields: Sequence[str], column: int) -> Sequence[str]:
  """The field of a column, from 1 or from -1 backwards; none if missing."""
  index = column - 1 if column > 0 else len(fields) + column
  return fields[index : index + 1] if index >= 0 else []


def _field(fields: Sequence[str], column: int, role: str, where: str) -> str:
  for field in _at(fields, column):
    return field
  raise InputError(
    f"{where}: has {len(fields)} columns, and no --{role}_column={column}"
  )


def _tag(fields: Sequence[str], columns: Columns, where: str) -> str:
  """The field of the tag of a line."""
  if len(fields) == 1:
    raise InputError(
      f"{where}: has words without tags. Give each word a tag, in a further"
      " column, or the --delimiter of the columns"
    )
  return _field(fields, columns.tag, "tag", where)


# JSON Lines

# The keys of what is annotated, with their types, and of its annotation.
_CONTENT = {"tokens": list, "text": str}
_ANNOTATIONS = {"tokens": "tags", "text": "entities"}

_JSON_FORMAT = (
  'A line needs "tokens" and "tags" (lists); or "text" and "entities" (a list'
  ' of objects with "start", "end" and "label")'
)


def _read_json(path, lines: Iterable[str], columns: Columns, tag_locations):
  """Reads tokens or text, with tags or entities."""
  parsed = json_files.parse_lines(lines, path)
  located = ((f"{path}, line {number}", row) for number, row in parsed)
  rows: Iterable[Any] = (
    (_check_row(row, where, columns.needs_tags), row, where)
    for where, row in located
  )
  texts = []
  if columns.needs_tags:
    rows = [*rows]
    texts = [
      AnnotatedText(row["text"], row["entities"], where)
      for content, row, where in rows
      if content == "text"
    ]
  spans = iter(in_characters(texts))
  for content, row, where in rows:
    if content == "text":
      yield ner.from_text(row["text"], next(spans, None), where)
      continue
    tags = None
    if columns.needs_tags:
      tags = [tag.strip() for tag in row["tags"]]
      for tag in tags:
        tag_locations.setdefault(tag, where)
    yield ner.from_words(row["tokens"], tags, where)


def _check_row(row: Any, where: str, needs_tags: bool) -> str:
  """Checks an object, and finds its content: "tokens" or "text"."""
  if not isinstance(row, Mapping):
    raise InputError(f"{where}: is not an object. {_JSON_FORMAT}")
  keys = ", ".join(map(json.dumps, row)) or "none"
  content = next(
    (k for k, kind in _CONTENT.items() if isinstance(row.get(k), kind)), None
  )
  if content is None:
    raise InputError(
      f'{where}: has neither "tokens" (a list) nor "text" (a string); its keys'
      f" are: {keys}. {_JSON_FORMAT}"
    )
  lists = [content] if content == "tokens" else []
  if needs_tags:
    lists.append(_ANNOTATIONS[content])
  for key in lists:
    if row.get(key) is None:
      raise InputError(
        f'{where}: has words without tags: it has no "{key}", its keys are:'
        f" {keys}. {_JSON_FORMAT}"
      )
    if not isinstance(row[key], list):
      raise InputError(f'{where}: "{key}" is not a list. {_JSON_FORMAT}')
    for item in row[key]:
      if key != "entities" and not isinstance(item, str):
        raise InputError(
          f'{where}: "{key}" is not a list of strings: it has'
          f" {json.dumps(item)}. Write the words, and the names of the tags"
        )
  if len({len(row[key]) for key in lists if key != "entities"}) > 1:
    raise InputError(
      f"{where}: {len(row['tokens'])} tokens, but {len(row['tags'])} tags"
    )
  try:
    "".join([row["text"]] if content == "text" else row["tokens"]).encode()
  except UnicodeEncodeError as error:
    raise InputError(
      f"{where}: {error.object[error.start : error.end]!r} is half of a"
      " character. Export the file again, in UTF-8"
    ) from error
  return content


# Offsets of entities


class AnnotatedText(NamedTuple):
  """A text with its entities."""

  text: str
  spans: Sequence[Any]  # see `ner.from_text`; may be invalid
  location: str  # file and line, for messages


# Units in which tools count, with the encoding and its bytes per unit.
_UNITS = {
  "UTF-16 units, as JavaScript counts": ("utf-16-le", 2),
  "bytes of UTF-8": ("utf-8", 1),
}


def in_characters(texts: Sequence[AnnotatedText]) -> list[Sequence[Any]]:
  """Entities of each text, with offsets in characters; logs a conversion."""
  # Offsets are taken for UTF-16 units or bytes if all entities then are whole
  # words, while at least half of those concerned are not in characters. Invalid
  # entities are unchanged.
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
  _report_offsets(texts)
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
    """Returns whether [start, end) is whole words, with white space around."""
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


def _report_offsets(texts: Sequence[AnnotatedText]) -> None:
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
