"""Reads questions and answers in SQuAD format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from bertlib.cli.errors import InputError
from bertlib.io import json_files

# Questions


class Answer(NamedTuple):
  """A gold answer."""

  text: str  # as in the context
  # Index of its first character in the context; None if it is unknown, which
  # only training refuses.
  start: int | None


class Question(NamedTuple):
  """A question of a data set."""

  id: str  # a number in the file becomes text
  text: str
  context: str  # questions of one paragraph share one string
  answers: tuple[Answer, ...]  # empty if none or unknown
  # Whether the context has no answer; None if the file does not say it, as in
  # SQuAD 1.1, where every question has one.
  is_impossible: bool | None


def read_questions(path: str) -> list[Question]:
  """Reads the questions of a file in SQuAD format, in order."""
  questions = list(
    _read_questions(path, _field(read_json(path), "data", list, path))
  )
  if not questions:
    raise InputError(f"{path}: has no questions")
  repeated = Counter(question.id for question in questions).most_common(1)[0]
  if repeated[1] > 1:
    raise InputError(
      f"{path}: the question id {repeated[0]} occurs {repeated[1]} times."
      " Give each question its own id"
    )
  return questions


def _read_questions(path: str, articles: list[Any]) -> Iterator[Question]:
  for i, article in enumerate(articles, 1):
    location = f"{path}, article {i}"
    paragraphs = _field(article, "paragraphs", list, location)
    for j, paragraph in enumerate(paragraphs, 1):
      location = f"{path}, article {i}, paragraph {j}"
      context = _field(paragraph, "context", str, location)
      for k, question in enumerate(_field(paragraph, "qas", list, location), 1):
        location = f"{path}, article {i}, paragraph {j}, question {k}"
        name = str(_field(question, "id", (str, int, float), location))
        location = f"{path}, question {name}"
        answers = tuple(
          Answer(
            _field(answer, "text", str, location),
            _optional_field(answer, "answer_start", int, location),
          )
          for answer in _optional_field(question, "answers", list, location)
          or ()
        )
        impossible = _optional_field(question, "is_impossible", bool, location)
        text = _field(question, "question", str, location)
        yield Question(name, text, context, answers, impossible)


def read_json(path: str) -> Any:
  """Reads a UTF-8 JSON file; an error names the last question before it."""
  return json_files.read(
    path, fix="Fetch or make the file again", position=_last_question
  )


def _last_question(text: str) -> str:
  ids = re.findall(r'"id":\s*(?:"([^"\\]*)"|([\d.]+)\s*[,}])', text)
  return f" after question {''.join(ids[-1])}" if ids else ""


def _field(
  value: Any, key: str, kind: type | tuple[type, ...], location: str
) -> Any:
  """Returns `value[key]`; InputError if it is missing or of another type."""
  if not isinstance(value, dict) or key not in value:
    raise InputError(f"{location}: has no {key!r}")
  field = value[key]
  kinds = kind if isinstance(kind, tuple) else (kind,)
  # To Python, true and false are integers.
  is_bool = isinstance(field, bool) and bool not in kinds
  if not isinstance(field, kinds) or is_bool:
    raise InputError(
      f"{location}: {key!r} is of the type {type(field).__name__}, not"
      f" {' or '.join(kind.__name__ for kind in kinds)}"
    )
  return field


def _optional_field(value: Any, key: str, kind: type, location: str) -> Any:
  """`_field`, or None if the key is missing or has no value."""
  if isinstance(value, dict) and value.get(key) is None:
    return None
  return _field(value, key, kind, location)


def read_by_id(path: str, kind: type | tuple[type, ...]) -> dict[str, Any]:
  """Reads a JSON file of values by question id, such as predictions.json."""
  values = read_json(path)
  if not isinstance(values, dict):
    raise InputError(f"{path}: is not a JSON object with question ids as keys")
  for name, value in values.items():
    if not isinstance(value, kind):
      raise InputError(
        f"{path}, question {name}: has the invalid value {value!r}"
      )
  return values
