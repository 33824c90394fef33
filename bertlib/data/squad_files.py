"""Reads questions and answers in the format of SQuAD."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from bertlib import json_files
from bertlib.errors import InputError

# Questions


class Answer(NamedTuple):
  """A gold answer.

  Attributes:
    text: the answer, as in the context.
    start: index of its first character in the context.
  """

  text: str
  start: int


class Question(NamedTuple):
  """A question of a data set.

  Attributes:
    id: the question's id.
    text: the question.
    context: the paragraph; questions of one paragraph share one string.
    answers: the gold answers; none where there is no answer, or where the
      data does not have it.
    is_impossible: whether the context has no answer; None in data of 1.1,
      which has no such questions.
  """

  id: str
  text: str
  context: str
  answers: tuple[Answer, ...]
  is_impossible: bool | None


def read_questions(path: str) -> list[Question]:
  """Reads a data set in SQuAD's format.

  Args:
    path: the file.

  Returns:
    Its questions, in order.

  Raises:
    InputError: the file is missing, incomplete or not such a file, or an id
      comes twice.
  """
  questions = list(
    _questions(path, _field(read_json(path), "data", list, path))
  )
  if not questions:
    raise InputError(f"{path}: has no questions in it")
  repeated = Counter(question.id for question in questions).most_common(1)[0]
  if repeated[1] > 1:
    raise InputError(
      f"{path}: the question id {repeated[0]} comes {repeated[1]} times; an"
      " answer could belong to any of them. Give each its own"
    )
  return questions


def _questions(path: str, articles: list[Any]) -> Iterator[Question]:
  for i, article in enumerate(articles, 1):
    place = f"{path}, article {i}"
    paragraphs = _field(article, "paragraphs", list, place)
    for j, paragraph in enumerate(paragraphs, 1):
      place = f"{path}, article {i}, paragraph {j}"
      context = _field(paragraph, "context", str, place)
      for k, question in enumerate(_field(paragraph, "qas", list, place), 1):
        place = f"{path}, article {i}, paragraph {j}, question {k}"
        name = _field(question, "id", str, place)
        place = f"{path}, question {name}"
        answers = []
        if "answers" in question:
          for answer in _field(question, "answers", list, place):
            text = _field(answer, "text", str, place)
            start = _field(answer, "answer_start", int, place)
            answers.append(Answer(text, start))
        impossible = None
        if "is_impossible" in question:
          impossible = _field(question, "is_impossible", bool, place)
        text = _field(question, "question", str, place)
        yield Question(name, text, context, tuple(answers), impossible)


def read_json(path: str) -> Any:
  """Reads a JSON file.

  Args:
    path: the file, UTF-8.

  Returns:
    What it holds.

  Raises:
    InputError: it cannot be opened, or is not JSON from end to end; the
      message names the last question before the fault.
  """
  return json_files.read(
    path, fix="Fetch or make the file again", position=_last_question
  )


def _last_question(text: str) -> str:
  ids = re.findall(r'"id":\s*"([^"\\]*)"', text)
  return f" after question {ids[-1]}" if ids else ""


def _field(value: Any, key: str, kind: type, place: str) -> Any:
  """`value[key]`, which has to be there and of this kind."""
  if not isinstance(value, dict) or key not in value:
    raise InputError(f"{place}: has no {key!r}")
  field = value[key]
  if not isinstance(field, kind):
    raise InputError(
      f"{place}: {key!r} is of the type {type(field).__name__}, not"
      f" {kind.__name__}"
    )
  return field


def read_by_id(path: str, kind: type | tuple[type, ...]) -> dict[str, Any]:
  """Reads a JSON file with a value for each question: answers, odds.

  Args:
    path: the file.
    kind: of the values.

  Returns:
    Value by question id, in the file's order.

  Raises:
    InputError: the file is not such a file.
  """
  values = read_json(path)
  if not isinstance(values, dict):
    raise InputError(f"{path}: is not a JSON object with question ids as keys")
  for name, value in values.items():
    if not isinstance(value, kind):
      raise InputError(
        f"{path}, question {name}: {value!r} cannot be its value"
      )
  return values
