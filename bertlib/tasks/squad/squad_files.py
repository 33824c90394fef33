"""Reads data in the format of SQuAD: questions, and examples of them.

An example has its paragraph as words, and its answer as a span of them.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data import tables
from bertlib.io import json_files, text_files

_CASED = tokenization.BasicTokenizer(do_lower_case=False)

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


# Schemas of data sets, and of the parts that only the question's id can locate;
# see `json_files`.
_DATA = {
  "data": [
    {"paragraphs": [{"context": str, "qas": [{"id": (str, int, float)}]}]}
  ]
}
_QUESTION = {
  "question": str,
  "answers?": (list, json_files.NULL),
  "is_impossible?": (bool, json_files.NULL),
}
_ANSWERS = [{"text": str, "answer_start?": (int, json_files.NULL)}]
_FIX = "Fetch or make the file again"


def read_questions(path: str) -> list[Question]:
  """Reads the questions of a file in SQuAD format, or of a table, in order."""
  if tables.ending_of(path) in tables.READERS.keys() - {".json", ".txt"}:
    questions = _read_table(path)
  else:
    questions = [
      _make_question(path, paragraph["context"], question)
      for article in _read_json(path, _DATA)["data"]
      for paragraph in article["paragraphs"]
      for question in paragraph["qas"]
    ]
  if not questions:
    raise InputError(f"{path}: has no questions")
  repeated = Counter(question.id for question in questions).most_common(1)[0]
  if repeated[1] > 1:
    raise InputError(
      f"{path}: the question id {repeated[0]} occurs {repeated[1]} times."
      " Give each question its own id"
    )
  return questions


def _read_table(path: str) -> list[Question]:
  """Questions of a table with a header, one per row."""
  names = "question", "document", "context", "answer", "answer_start", "id"
  columns = [(f"the {name}", name) for name in names]
  optional = [flag for flag, _ in columns[1:]]
  table = tables.read_table(path, columns, text_files.UTF8, optional)
  found = dict(zip(names, table.columns))
  document = next(
    (found[name] for name in names[1:3] if found[name] is not None), None
  )
  if document is None:
    raise InputError(
      f"{path}: has no column 'document' (or 'context'). Name the column of the"
      " texts that have the answers so"
    )
  documents: dict[str, str] = {}
  questions, repeated = [], 0
  for row in table.rows:
    table.check_row(row, "Fix the row")
    values = {n: row.text(i) for n, i in found.items() if i is not None}
    context = documents.setdefault(row.text(document), row.text(document))
    answers = ()
    if text := values.get("answer", "").strip():
      start = values.get("answer_start", "").strip()
      repeated += not start and context.count(text) > 1
      start = int(start) if start.isdecimal() else context.find(text)
      if start < 0:
        raise row.error(f"the answer {text!r} is not in the document. Fix it")
      answers = (Answer(text, start),)
    # None with an answer, as in SQuAD 1.1.
    is_impossible = True if "answer" in values and not answers else None
    name = values.get("id") or str(row.number)
    questions.append(
      Question(name, values["question"], context, answers, is_impossible)
    )
  if repeated:
    logging.warning(
      "%s: %d answers occur more than once in their document; the first place"
      " is taken. A column answer_start names another",
      path,
      repeated,
    )
  return questions


def _make_question(path: str, context: str, entry: dict[str, Any]) -> Question:
  name, answers = str(entry["id"]), entry.get("answers") or []
  problem = json_files.mismatch(entry, _QUESTION)
  problem = problem or json_files.mismatch(answers, _ANSWERS, "answers")
  if problem:
    raise InputError(f"{path}, question {name}: {problem}. {_FIX}")
  return Question(
    name,
    entry["question"],
    context,
    tuple(Answer(a["text"], a.get("answer_start")) for a in answers),
    entry.get("is_impossible"),
  )


def check_gold_answers(questions: Iterable[Question], path: str) -> None:
  """Refuses to evaluate questions without gold answers as SQuAD 1.1."""
  for question in questions:
    if not question.answers:
      raise InputError(
        f"{path}, question {question.id}: has no gold answer. Evaluate such"
        " data as SQuAD 2.0: --version_2_with_negative, or --metric=2.0 of"
        " squad_metrics.py"
      )


def _read_json(path: str, schema: Any) -> Any:
  """Reads a JSON file; a syntax error names the last question before it."""
  return json_files.read(path, schema, _FIX, position=_last_question)


def _last_question(text: str) -> str:
  ids = re.findall(r'"id":\s*(?:"([^"\\]*)"|([\d.]+)\s*[,}])', text)
  return f" after question {''.join(ids[-1])}" if ids else ""


def read_by_id(path: str, kind: type) -> dict[str, Any]:
  """Reads a JSON file of values by question id, such as predictions.json."""
  values = _read_json(path, dict)
  for name, value in values.items():
    problem = json_files.mismatch(value, kind, f"the value of question {name}")
    if not problem and kind is float and not math.isfinite(value):
      problem = f"the value of question {name} is NaN or Inf"
    if problem:
      raise InputError(f"{path}: {problem}. {_FIX}")
  return values


# Examples


@dataclasses.dataclass(eq=False, repr=False)
class SquadExample:
  """A question about a paragraph, with its answer if known.

  Attributes:
    qas_id: the question's id.
    question_text: the question.
    doc_tokens: words of the paragraph; its questions share the list.
    orig_answer_text: the answer; "" if there is none.
    start_position: index of the answer's first word; -1 if there is none.
    end_position: index of its last word, inclusive.
    is_impossible: whether the question has no answer.
    answer_offset: index of the answer's first character in its first word, if
      that word has Chinese characters or white space (such as no-break spaces);
      else 0, which finds the same answer as the original.
    context: the paragraph.
    answer_start: index of the answer's first character in it.
  """

  qas_id: str
  question_text: str
  doc_tokens: list[str]
  orig_answer_text: str | None = None
  start_position: int | None = None
  end_position: int | None = None
  is_impossible: bool = False
  answer_offset: int = 0
  context: str = ""
  answer_start: int = 0

  def __repr__(self) -> str:
    """The original's text, without an answer that begins at the first word."""
    text = (
      f"qas_id: {self.qas_id}, question_text: {self.question_text},"
      f" doc_tokens: [{' '.join(self.doc_tokens)}]"
    )
    if self.start_position:
      text += (
        f", start_position: {self.start_position}, end_position:"
        f" {self.end_position}, is_impossible: {self.is_impossible}"
      )
    return text


def split_words(context: str) -> tuple[list[str], list[int]]:
  """Splits a paragraph into words; returns them and their start characters."""
  words = list(re.finditer(r"[^ \t\r\n\u202f]+", context))
  return [word.group() for word in words], [word.start() for word in words]


def make_examples(
  questions: Iterable[Question],
  input_file: str,
  is_training: bool,
  version_2_with_negative: bool,
) -> tuple[list[SquadExample], list[dict[str, str]]]:
  """Examples of the questions of a file, and training questions skipped."""
  # An answer that is not at its answer_start is skipped. White space, control
  # characters, composed letters and full-width forms may be written in another
  # way in the answer than in the context.
  examples, skipped = [], []
  context, words, starts = None, [], []
  for question in questions:
    where = f"{input_file}, question {question.id}"
    if question.is_impossible and not version_2_with_negative:
      raise InputError(
        f"{where}: has no answer (is_impossible), as in SQuAD 2.0. Give"
        " --version_2_with_negative"
      )
    if question.context is not context:
      context = question.context
      words, starts = split_words(context)
    example = SquadExample(question.id, question.text, words, context=context)
    if not is_training:
      examples.append(example)
    elif version_2_with_negative and _has_no_answer(question):
      example.orig_answer_text, example.is_impossible = "", True
      example.start_position = example.end_position = -1
      examples.append(example)
    else:
      answer = _only_answer(question, where)
      found, span = _find_answer(context, answer, words, starts)
      if span:
        _set_answer(example, starts, found, span)
        examples.append(example)
      else:
        skipped.append(
          {"id": question.id, "answer": answer.text, "found": found.text}
        )
  if skipped:
    logging.warning(
      "%s: %d of %d questions skipped: their answer is not at its answer_start;"
      " the first is %s",
      input_file,
      len(skipped),
      len(skipped) + len(examples),
      skipped[0]["id"],
    )
  if not examples:
    raise InputError(
      f"{input_file}: has no questions left to train on, since no answer is at"
      " its answer_start. Give the index of its first character in the context"
    )
  return examples, skipped


def _has_no_answer(question: Question) -> bool:
  """True if a file says so by is_impossible or, without it, empty answers."""
  if question.is_impossible is None:
    return not any(answer.text.strip() for answer in question.answers)
  return question.is_impossible


def _find_answer(
  context: str, answer: Answer, words: list[str], starts: Sequence[int]
) -> tuple[Answer, tuple[int, int] | None]:
  """The answer as in the context, and its first and last word."""
  first, last = _words_of(answer, starts)
  found = " ".join(words[max(first, 0) : last + 1])
  if first >= 0 and " ".join(answer.text.split()) in found:
    return answer, (first, last)
  # The original skips such questions.
  located = _locate(context, answer)
  if located:
    return located, _words_of(located, starts)
  # The words that are there instead.
  return Answer(found, answer.start), None


def _words_of(answer: Answer, starts: Sequence[int]) -> tuple[int, int]:
  """Indices of its first and last word; -1 before the first word."""
  first, last = answer.start, answer.start + len(answer.text) - 1
  return tuple(
    bisect.bisect_right(starts, index) - 1 for index in (first, last)
  )


def _locate(context: str, answer: Answer) -> Answer | None:
  """The characters of the context that are an answer, from its start on."""
  rest, end = _characters(answer.text), answer.start
  while rest and end < len(context):
    next_characters = _characters(context[end])
    if not rest.startswith(next_characters):
      return None
    rest = rest[len(next_characters) :]
    end += 1
  text = context[answer.start : end]
  start = end - len(text.lstrip())
  return None if rest else Answer(text.strip(), start)


def _characters(text: str) -> str:
  """Characters by which texts are compared, whatever their encoding."""
  # Letters are decomposed, characters have ordinary width, and what the
  # tokenizer removes (white space, control characters) is left out.
  decomposed = (unicodedata.normalize("NFKD", char) for char in text)
  return "".join("".join(_CASED.tokenize(chars)) for chars in decomposed)


def _set_answer(
  example: SquadExample,
  starts: Sequence[int],  # of the words
  answer: Answer,
  span: tuple[int, int],  # its first and last word
) -> None:
  example.orig_answer_text, example.answer_start = answer.text, answer.start
  example.start_position, example.end_position = span
  first = example.doc_tokens[example.start_position]
  if any(tokenization.is_chinese(ord(c)) or c.isspace() for c in first):
    example.answer_offset = answer.start - starts[example.start_position]


def _only_answer(question: Question, where: str) -> Answer:
  """The only answer of a training question; InputError if it is not valid."""
  if len(question.answers) != 1:
    raise InputError(
      f"{where}: has {len(question.answers)} answers, but training needs one."
      " Keep one. If there is none, set its is_impossible to true, and give"
      " --version_2_with_negative"
    )
  (answer,) = question.answers
  length, start = len(question.context), answer.start
  has_text = any(map(_characters, answer.text))
  # A composed letter may be several characters of the answer.
  is_inside = (start is not None and start >= 0) and (
    start + len(answer.text) <= length
    or _locate(question.context, answer) is not None
  )
  if not has_text or not is_inside:
    raise InputError(
      f"{where}: its answer {answer.text!r} cannot be at answer_start {start}"
      f" of a context of {length} characters. Give its text, and the index of"
      " its first character there"
    )
  return answer
