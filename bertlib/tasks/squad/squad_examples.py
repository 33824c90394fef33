"""SQuAD examples: questions with their answers as spans of words."""

from __future__ import annotations

import bisect
import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

import tokenization
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.tasks.squad import squad_files

_CASED = tokenization.BasicTokenizer(do_lower_case=False)


class _Located:
  """Where an answer begins; no entry of `vars`, since the original has none."""

  __slots__ = ("answer_offset",)


@dataclasses.dataclass(eq=False, repr=False)
class SquadExample(_Located):
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
  """

  qas_id: str
  question_text: str
  doc_tokens: list[str]
  orig_answer_text: str | None = None
  start_position: int | None = None
  end_position: int | None = None
  is_impossible: bool = False

  def __post_init__(self):
    self.answer_offset = 0

  def __repr__(self) -> str:
    """The original's text, without an answer that begins at the first word."""
    shown = {
      "qas_id": self.qas_id,
      "question_text": self.question_text,
      "doc_tokens": f"[{' '.join(self.doc_tokens)}]",
    }
    if self.start_position:
      shown |= {
        "start_position": self.start_position,
        "end_position": self.end_position,
        "is_impossible": self.is_impossible,
      }
    return ", ".join(f"{name}: {value}" for name, value in shown.items())


def split_words(context: str) -> tuple[list[str], list[int]]:
  """Splits a paragraph into words; returns them and their start characters."""
  words = list(re.finditer(r"[^ \t\r\n\u202f]+", context))
  return [word.group() for word in words], [word.start() for word in words]


def read_squad_examples(
  input_file: str,
  is_training: bool,
  version_2_with_negative: bool | None = None,
  unaligned: list[dict[str, Any]] | None = None,
) -> list[SquadExample]:
  """Reads a SQuAD file.

  Args:
    input_file: path of a JSON file in SQuAD format.
    is_training: whether to read answers. A question whose answer is not found
      at its `answer_start` is skipped and logged. White space, control
      characters, composed letters and full-width forms may be written in
      another way in the answer than in the context.
    version_2_with_negative: whether to accept questions without an answer, by
      `is_impossible` or, where the file has none, by an empty answer or list of
      answers; None to use the flag of this name, see `option.value_of`.
    unaligned: list to which the skipped questions are appended: id, answer and
      the words found instead.

  Returns:
    The questions, in order.

  Raises:
    InputError: the file is not in SQuAD format, or a question is not valid.
  """
  if version_2_with_negative is None:
    version_2_with_negative = option.value_of("version_2_with_negative", False)
  return make_examples(
    squad_files.read_questions(input_file),
    input_file,
    is_training,
    version_2_with_negative,
    unaligned,
  )


def make_examples(
  questions: Iterable[squad_files.Question],
  input_file: str,
  is_training: bool,
  version_2_with_negative: bool,
  unaligned: list[dict[str, Any]] | None = None,
) -> list[SquadExample]:
  """Makes examples of the questions of a file; see `read_squad_examples`."""
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
    if not is_training:
      examples.append(SquadExample(question.id, question.text, words))
    elif version_2_with_negative and _has_no_answer(question):
      examples.append(
        SquadExample(question.id, question.text, words, "", -1, -1, True)
      )
    else:
      answer = _only_answer(question, where, version_2_with_negative)
      found, span = _find_answer(context, answer, words, starts)
      if span:
        examples.append(_make_example(question, words, starts, found, span))
      else:
        skipped.append(
          {"id": question.id, "answer": answer.text, "found": found.text}
        )
  if skipped:
    _log_unaligned(input_file, skipped, len(examples))
  if unaligned is not None:
    unaligned += skipped
  if not examples:
    raise InputError(
      f"{input_file}: has no questions left to train on, since no answer is at"
      " its answer_start. Give the index of its first character in the context"
    )
  return examples


def _has_no_answer(question: squad_files.Question) -> bool:
  """True if a file says so by is_impossible or, without it, empty answers."""
  if question.is_impossible is None:
    return not any(answer.text.strip() for answer in question.answers)
  return question.is_impossible


def _find_answer(
  context: str,
  answer: squad_files.Answer,
  words: list[str],
  starts: Sequence[int],
) -> tuple[squad_files.Answer, tuple[int, int] | None]:
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
  return squad_files.Answer(found, answer.start), None


def _words_of(
  answer: squad_files.Answer, starts: Sequence[int]
) -> tuple[int, int]:
  """Indices of its first and last word; -1 before the first word."""
  first, last = answer.start, answer.start + len(answer.text) - 1
  return tuple(
    bisect.bisect_right(starts, index) - 1 for index in (first, last)
  )


def _locate(
  context: str, answer: squad_files.Answer
) -> squad_files.Answer | None:
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
  return None if rest else squad_files.Answer(text.strip(), start)


def _characters(text: str) -> str:
  """Characters by which texts are compared, whatever their encoding."""
  # Letters are decomposed, characters have ordinary width, and what the
  # tokenizer removes (white space, control characters) is left out.
  decomposed = (unicodedata.normalize("NFKD", char) for char in text)
  return "".join("".join(_CASED.tokenize(chars)) for chars in decomposed)


def _make_example(
  question: squad_files.Question,
  words: list[str],
  starts: Sequence[int],
  answer: squad_files.Answer,
  span: tuple[int, int],
) -> SquadExample:
  example = SquadExample(question.id, question.text, words, answer.text, *span)
  first, _ = span
  if any(tokenization.is_chinese(ord(c)) or c.isspace() for c in words[first]):
    example.answer_offset = answer.start - starts[first]
  return example


def _only_answer(
  question: squad_files.Question, where: str, version_2_with_negative: bool
) -> squad_files.Answer:
  """The only answer of a training question; InputError if it is not valid."""
  if len(question.answers) != 1:
    fix = "give --version_2_with_negative if there is none"
    if version_2_with_negative:
      fix = "set its is_impossible to true if there is none"
    raise InputError(
      f"{where}: has {len(question.answers)} answers, but training needs"
      f" one. Keep one, or {fix}"
    )
  (answer,) = question.answers
  if not any(map(_characters, answer.text)):
    raise InputError(
      f"{where}: its answer is empty. Remove the question; or set its"
      " is_impossible to true, and give --version_2_with_negative"
    )
  if answer.start is None:
    raise InputError(
      f"{where}: its answer has no answer_start, which training needs. Add the"
      " index of its first character in the context"
    )
  is_inside = 0 <= answer.start <= len(question.context) - len(answer.text)
  if not is_inside and (
    answer.start < 0 or not _locate(question.context, answer)
  ):
    raise InputError(
      f"{where}: answer_start {answer.start} puts the answer outside the"
      f" context, which has {len(question.context)} characters. Give the index"
      " of its first character there"
    )
  return answer


def _log_unaligned(
  input_file: str, skipped: Sequence[Mapping[str, Any]], num_examples: int
) -> None:
  logging.warning(
    "%s: %d of %d questions skipped: their answer is not at its answer_start;"
    " the first is %s",
    input_file,
    len(skipped),
    len(skipped) + num_examples,
    skipped[0]["id"],
  )
