"""SQuAD examples: questions with their answers as spans of words."""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

import tokenization
from bertlib.data import squad_files
from bertlib.errors import InputError
from bertlib.settings import option


class _Located:
  """Where an answer begins; no entry of `vars`, since the original has none."""

  __slots__ = ("answer_offset",)


@dataclasses.dataclass(eq=False)
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
      that word has Chinese characters; else 0, which finds the same answer as
      the original.
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
      at its `answer_start` is skipped and logged.
    version_2_with_negative: whether to accept questions without an answer; None
      to use the flag of this name, see `option.value_of`.
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
    if is_training:
      example = _align_answer(question, words, starts, where)
      found = " ".join(words[example.start_position : example.end_position + 1])
      if " ".join(example.orig_answer_text.split()) not in found:
        answer = example.orig_answer_text
        skipped.append({"id": question.id, "answer": answer, "found": found})
        continue
    else:
      example = SquadExample(question.id, question.text, words)
    examples.append(example)
  if skipped:
    _log_unaligned(input_file, skipped, len(examples))
  if unaligned is not None:
    unaligned += skipped
  if not examples:
    raise InputError(f"{input_file}: has no questions left to train on")
  return examples


def _align_answer(
  question: squad_files.Question,
  words: list[str],
  starts: Sequence[int],
  where: str,
) -> SquadExample:
  """Makes the example of a question, with the words that contain its answer."""
  if question.is_impossible:
    return SquadExample(question.id, question.text, words, "", -1, -1, True)
  answer = _only_answer(question, where)
  first = bisect.bisect_right(starts, answer.start) - 1
  last = bisect.bisect_right(starts, answer.start + len(answer.text) - 1) - 1
  example = SquadExample(
    question.id, question.text, words, answer.text, first, last
  )
  if any(tokenization.is_chinese(ord(char)) for char in words[first]):
    example.answer_offset = answer.start - starts[first]
  return example


def _only_answer(
  question: squad_files.Question, where: str
) -> squad_files.Answer:
  """The only answer of a training question; InputError if it is not valid."""
  if len(question.answers) != 1:
    raise InputError(
      f"{where}: has {len(question.answers)} answers, but training needs"
      " one. Keep one, or give --version_2_with_negative if there is none"
    )
  (answer,) = question.answers
  if not answer.text.strip():
    raise InputError(f"{where}: its answer is empty")
  if not 0 <= answer.start <= len(question.context) - len(answer.text):
    raise InputError(
      f"{where}: answer_start {answer.start} puts the answer outside the"
      f" context, which has {len(question.context)} characters"
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
