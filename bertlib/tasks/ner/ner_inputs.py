"""Inputs of run_ner.py: files of tagged sentences, tags of the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from bertlib.cli.errors import InputError
from bertlib.data import example_checks
from bertlib.io import json_files, model_files, text_files
from bertlib.io.text_files import Encoding
from bertlib.reporting import doctor
from bertlib.settings import model_description
from bertlib.settings.ner import NerSettings
from bertlib.tasks.ner import ner, ner_report
from bertlib.tasks.ner.ner import Sentence
from bertlib.tasks.ner.record import RECORD
from bertlib.training.task import Run

_FORMATS = (
  "one word per line, with the same columns in each and a blank line after each"
  ' sentence; or JSON Lines (.jsonl) with "text", for running text'
)


class Columns(NamedTuple):
  """Columns and delimiters of a file of tagged words or sentences."""

  word: int = 1  # from 1, or from -1 backwards
  tag: int = -1  # likewise
  # Column separator; None for tabs or, in lines without tabs, spaces.
  delimiter: str | None = None
  # Separates the words and the tags of a sentence if each line holds one
  # sentence; None if each line holds one word.
  item_delimiter: str | None = None
  # Whether tags are read, from a file of any format; if not, they may be
  # missing.
  needs_tags: bool = True


def read_file(
  path: str, columns: Columns, encoding: Encoding | None = None
) -> list[Sentence]:
  """Reads a file of tagged sentences; logs a notation of tags that it reads."""
  try:
    lines = [
      line.rstrip("\r\n") for line in text_files.read_lines(path, encoding)
    ]
  except OSError as error:
    raise InputError(f"{path}: cannot be read; name a file") from error
  name = path.removesuffix(".gz")
  if name.endswith(".json"):
    raise InputError(
      f"{path}: is JSON. JSON is read from files named .jsonl, with one object"
      " per line"
    )
  read = _read_columns
  if name.endswith(".jsonl"):
    read = _read_json
  elif columns.item_delimiter:
    read = _read_rows
  elif not columns.needs_tags:
    _check_not_sentences(path, lines, columns)
  tag_locations: dict[str, str] = {}
  sentences = list(read(path, lines, columns, tag_locations))
  if not sentences:
    raise InputError(f"{path}: has no sentences")
  meanings = read_tags(tag_locations)
  changed = [tag for tag, meaning in meanings.items() if tag != meaning]
  if not changed:
    return sentences
  logging.info(
    "%s: the tag %s is read as %s, others likewise",
    path,
    changed[0],
    meanings[changed[0]],
  )
  return [s._replace(tags=[meanings[tag] for tag in s.tags]) for s in sentences]


# Columns

# Names of a column of tags, in the first line of a file.
_TAG_NAMES = ("label", "labels", "ner", "ner_tag", "ner_tags", "tag", "tags")

# Several words: with spaces, or with Chinese or Japanese punctuation; or a word
# and its tag, in columns with another delimiter.
_SEVERAL_WORDS = re.compile(
  r".*\S +\S.*|.*\w[、。，！？；]\w.*|.*\w\w[。！？]|.+[,;|][BIES]-\S+"
)


def _read_columns(path, lines: Sequence[str], columns: Columns, tag_locations):
  """Reads one word per line, with a blank line after each sentence."""
  # Like the other readers, adds the file and line where each tag first occurs
  # to `tag_locations`.
  num_columns = 0
  words: list[str] = []
  tags: list[str] = []
  first = 0
  for number, line in enumerate([*lines, ""], start=1):
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


def _read_rows(path, lines: Sequence[str], columns: Columns, tag_locations):
  """Reads one sentence per line: a column of words and one of tags."""
  num_columns = 0
  for number, line in enumerate(lines, start=1):
    if not line.strip():
      continue
    where = f"{path}, line {number}"
    fields = _split(line, columns.delimiter, num_columns, where)
    if not num_columns and _is_header(fields, columns, where):
      continue
    num_columns = len(fields)
    words = _field(fields, columns.word, "word", where)
    words = words.split(columns.item_delimiter)
    tags = None
    if columns.needs_tags:
      tags = _tag(fields, columns, where).split(columns.item_delimiter)
      tags = [tag.strip() for tag in tags]
      for tag in tags:
        tag_locations.setdefault(tag, where)
    yield ner.from_words(words, tags, where)


def _is_header(fields: Sequence[str], columns: Columns, where: str) -> bool:
  """Returns whether a first line names its columns; logs it if so."""
  is_header = len(fields) > 1 and any(
    name.strip().lower() in _TAG_NAMES for name in _at(fields, columns.tag)
  )
  if is_header:
    logging.info("%s: is read as the names of the columns", where)
  return is_header


def _check_not_sentences(
  path: str, lines: Sequence[str], columns: Columns
) -> None:
  """Refuses lines without tags that are sentences, or may be."""
  suspect = None
  for number, line in enumerate(lines, start=1):
    if not line.strip() or line.startswith("-DOCSTART-"):
      continue
    fields = _split(line, columns.delimiter)
    is_split = len(fields) > 1
    if is_split and any(map(is_standard, _at(fields, columns.tag))):
      return
    if is_split and (columns.delimiter or columns.word != 1 or "\t" in line):
      continue
    if suspect is None and _SEVERAL_WORDS.fullmatch(line):
      suspect = number
  if suspect is not None:
    raise InputError(
      f"{path}, line {suspect}: looks like a sentence. Write {_FORMATS}. If"
      " these are columns, give --delimiter, such as --delimiter=' '"
    )


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
  """The field of the tag or tags of a line."""
  if len(fields) == 1:
    raise InputError(
      f"{where}: has words without tags. Give each word a tag, in a further"
      " column, or the --delimiter of the columns"
    )
  return _field(fields, columns.tag, "tag", where)


# JSON Lines

_JSON_FORMAT = (
  'A line needs "tokens" and "tags" (lists of strings); or "text" and'
  ' "entities" (a list of objects with "start", "end" and "label")'
)


def _read_json(path, lines: Sequence[str], columns: Columns, tag_locations):
  """Reads tokens or text, with tags or entities."""
  num_texts = num_lost = 0
  divided = []  # where entities begin or end within words
  for number, row in json_files.parse_lines(lines, path):
    where = f"{path}, line {number}"
    content = _check_row(row, where, columns.needs_tags)
    if content == "tokens":
      tags = None
      if columns.needs_tags:
        tags = [tag.strip() for tag in row["tags"]]
        for tag in tags:
          tag_locations.setdefault(tag, where)
      yield ner.from_words(row["tokens"], tags, where)
      continue
    text, spans = row["text"], None
    if columns.needs_tags:
      spans = row["entities"]
    sentence = ner.from_text(text, spans, where)
    num_texts += 1
    if spans:
      num_lost += len(spans) - sum(tag[0] == "B" for tag in sentence.tags)
      if len(sentence.words) > len(ner.WORD.findall(text)):
        divided.append(where)
    yield sentence
  if divided:
    logging.warning(
      "%s: an entity begins or ends within a word, which is split there, as in"
      " %d of %d texts of the file. Check that `start` and `end` count"
      " characters from 0, not bytes or the UTF-16 units of JavaScript, and"
      " `end` is after the last one",
      divided[0],
      len(divided),
      num_texts,
    )
  if num_lost:
    logging.warning(
      "%s: %d entities are only white space, and are ignored", path, num_lost
    )


def _check_row(row: Any, where: str, needs_tags: bool) -> str:
  """Checks an object, and finds its content: "tokens" or "text"."""
  values = row if isinstance(row, Mapping) else {}
  tokens, text = values.get("tokens"), values.get("text")
  if _are_strings(tokens):
    is_valid = not needs_tags or _are_strings(values.get("tags"))
  else:
    is_valid = isinstance(text, str) and (
      not needs_tags or isinstance(values.get("entities"), list)
    )
  if not is_valid:
    keys = ", ".join(map(json.dumps, values)) or "none"
    raise InputError(
      f"{where}: is not a{' tagged' * needs_tags} sentence; its keys are:"
      f" {keys}. {_JSON_FORMAT}"
    )
  content = "tokens" if _are_strings(tokens) else "text"
  try:
    "".join(values[content]).encode()
  except UnicodeEncodeError as error:
    raise InputError(
      f"{where}: {error.object[error.start : error.end]!r} is half of a"
      " character. Export the file again, in UTF-8"
    ) from error
  return content


def _are_strings(value: Any) -> bool:
  return isinstance(value, list) and all(isinstance(v, str) for v in value)


# Tags

# The letters for a word of an entity in BIO, BIOES, BILOU, BMES and BMEWO, and
# those of BIOES for them.
_HEADS = {
  "B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"
}  # fmt: skip

# Type of entities whose tags name none: B, I and O.
UNNAMED_TYPE = "ENTITY"

_LETTERS = "".join(_HEADS)

_STANDARD = re.compile(rf"[{_LETTERS}]-.*\S.*")

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
  meanings = {"O": "O"}
  heads = {_HEADS.get(tag) for tag in tags}  # of tags without types
  if all(map(_STANDARD.fullmatch, tags)):
    for tag in tags:
      meanings[tag] = f"{_HEADS[tag[0]]}-{tag[2:].strip()}"
  elif {"B", "I"} <= heads and None not in heads:
    for tag in tags:
      meanings[tag] = f"{_HEADS[tag]}-{UNNAMED_TYPE}"
  else:
    uncertain = _find_uncertain(tags)
    if uncertain is not None:
      raise InputError(
        f"{locations[uncertain]}: the tag {uncertain!r} has no certain meaning."
        " Write B-PER at the first word of an entity of type PER, I-PER at its"
        " other words, and O elsewhere; or give another --tag_column"
      )
    meanings |= {tag: tag for tag in tags}
  return meanings


def is_standard(tag: str) -> bool:
  """Returns whether a tag is O or like B-PER."""
  return tag == "O" or bool(_STANDARD.fullmatch(tag))


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


# Data of a run


class Data(NamedTuple):
  """Sentences of the splits that the run uses."""

  train: Sequence[Sentence]
  dev: Sequence[Sentence]
  predict: Sequence[Sentence]

  @property
  def num_sentences(self) -> dict[str, int]:
    """Number of sentences of each split, by its name."""
    return {
      "training sentences": len(self.train),
      "dev sentences": len(self.dev),
    }


def columns(settings: NerSettings) -> Columns:
  """The column settings of the flags."""
  return Columns(
    settings.word_column,
    settings.tag_column,
    settings.unescaped("delimiter"),
    settings.unescaped("item_delimiter"),
  )


def read_sentences(
  settings: NerSettings, flag: str, needs_tags: bool = True
) -> list[Sentence]:
  """Reads the file named by `flag`."""
  return read_file(
    getattr(settings, flag),
    columns(settings)._replace(needs_tags=needs_tags),
    settings.text.codec,
  )


def normalize_tags(
  settings: NerSettings,
  flag: str,  # names the file of the sentences
  sentences: Sequence[Sentence],
  scheme: str,
  labels: Sequence[str],  # tags of the model
) -> list[Sentence]:
  """Repairs invalid tags, logs their number, and converts to the scheme."""
  kinds = {
    entity.label for label in labels for entity in ner.tags_to_entities([label])
  }
  for sentence in sentences:
    for entity in ner.tags_to_entities(sentence.tags):
      if entity.label not in kinds:
        raise InputError(
          f"{sentence.location}: {entity.label!r} (at"
          f" {sentence.words[entity.start]!r}) is not an entity type of"
          f" the model. Use {', '.join(sorted(kinds))}"
        )
  data_scheme = ner.find_scheme(
    tag for sentence in sentences for tag in sentence.tags
  )
  repaired, num_invalid = ner.repair_tags(sentences, data_scheme)
  if num_invalid:
    logging.warning(
      "%s: %d tags are invalid in %s, such as an I- without a B- before it, as"
      " in IOB1; each starts an entity",
      getattr(settings, flag),
      num_invalid,
      data_scheme or "the scheme of the data",
    )
  if scheme != data_scheme:
    repaired, _ = ner.repair_tags(repaired, scheme)
  return repaired


def find_labels(
  settings: NerSettings, train_set: Sequence[Sentence]
) -> list[str]:
  """Tags of the training set or else of the trained model, O first."""
  if not train_set:
    return _trained_labels(settings)
  seen = {tag for sentence in train_set for tag in sentence.tags}
  scheme = settings.scheme if settings.scheme != "data" else ""
  scheme = scheme or ner.find_scheme(seen) or "BIO"
  repaired, _ = ner.repair_tags(train_set, scheme)
  tags = {tag for sentence in repaired for tag in sentence.tags} - {"O"}
  if not tags:
    raise InputError(
      f"{settings.train_file}: all tags are O, so that there is no entity to"
      " learn. Give --tag_column, or a file with entities"
    )
  kinds = {tag[2:] for tag in tags}
  for kind in sorted(kinds):
    if kind.startswith("B-") and f"I-{kind[2:]}" in kinds:
      raise InputError(
        f"{settings.train_file}: {kind!r} is the type of an entity. Write one"
        f" entity of type {kind[2:]!r} for all of its words"
      )
  tags = sorted(
    f"{head}-{kind}" for kind in kinds for head in scheme if head != "O"
  )
  return model_description.labels_in_order(settings.model.folder, ["O", *tags])


def _trained_labels(settings: NerSettings) -> list[str]:
  """The tags of the model that is read."""
  folder = settings.model.folder
  if not folder:
    raise model_files.untrained(settings.run.output_dir)
  description = model_description.load(folder, RECORD)
  if description.get("script") != RECORD.script:
    raise InputError(
      f"{folder}: does not list the tags of its model."
      " Give the --output_dir of a run of run_ner.py"
    )
  return description["labels"]


def read_data(
  run: Run, tagged: Sequence[Sentence], labels: Sequence[str]
) -> Data:
  """Reads the sentences of the splits that the run uses; makes tags valid."""
  settings, scheme = run.settings, ner.find_scheme(labels)
  train_set = normalize_tags(settings, "train_file", tagged, scheme, labels)
  dev_set, predict_set = [], []
  if run.flags.evaluates:
    ner_report.import_seqeval()
    tagged = read_sentences(settings, "dev_file")
    dev_set = normalize_tags(settings, "dev_file", tagged, scheme, labels)
  example_checks.warn_of_faults(
    _labeled(train_set), {"the dev set": _labeled(dev_set)}
  )
  if settings.run.do_predict:
    predict_set = read_sentences(settings, "predict_file", needs_tags=False)
  return Data(train_set, dev_set, predict_set)


def _labeled(sentences: Sequence[Sentence]) -> list[example_checks.Labeled]:
  return [
    example_checks.Labeled((s.text,), tuple(s.tags), s.location)
    for s in sentences
  ]


def data_files(settings: NerSettings, data: Data) -> list[str]:
  """Paths of the files that were read."""
  files = settings.train_file, settings.dev_file, settings.predict_file
  return [path for path, used in zip(files, data) if used]


# Of a dry run


def check_tags(labels: Sequence[str], data: Data) -> None:
  """Warns of types of entities that are missing or rare."""
  sets = {"the training set": data.train, "the dev set": data.dev}
  doctor.check_labels(
    sorted({label[2:] or label for label in labels} - {"O"}),
    {
      name: [
        entity.label
        for sentence in sentences
        for entity in ner.tags_to_entities(sentence.tags)
      ]
      for name, sentences in sets.items()
      if sentences
    },
  )


def check_sentences(run: Run, data: Data) -> doctor.LengthSummary:
  """Makes windows of some of the sentences."""
  sentences = data.train or data.dev or data.predict
  some = doctor.sample(sentences)
  windows = list(
    ner.make_windows(some, run.tokenizer, run.settings.model.max_seq_length)
  )
  return doctor.check_encoded(
    [doctor.Encoded(w.input_ids, len(w.input_ids)) for w in windows],
    run.config.vocab_size,
    len(sentences) * len(windows) // len(some),
  )
