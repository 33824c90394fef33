"""Answers to questions from standard input."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable

from bertlib import app, text_files
from bertlib.errors import InputError
from bertlib.settings.squad import SquadSettings


def read_passage(settings: SquadSettings) -> str:
  """The text of --passage_file.

  Raises:
    InputError: it has none, or is not of --encoding.
  """
  passage = text_files.read_text(
    settings.passage_file, text_files.encoding_of(settings.text)
  )
  if not passage.strip():
    raise InputError(f"{settings.passage_file}: has no passage in it")
  return passage


def converse(settings: SquadSettings, predictor, lines: Iterable[str]) -> None:
  """Answers questions about one passage, and prints the answers.

  Args:
    settings: of the command.
    predictor: the model, a `run_squad.Predictor`.
    lines: a question each; before them, if there is no --passage_file, the
      passage and a blank line.

  Raises:
    InputError: there is no passage.
  """
  lines = iter(lines)
  say = print if sys.stdin.isatty() else lambda *_, **__: None
  if settings.passage_file:
    passage = read_passage(settings)
  else:
    say("The passage, and a blank line after it:")
    passage = "".join(itertools.takewhile(str.strip, lines))
  if not passage.strip():
    raise InputError("standard input: has no passage in it")
  say("Questions, one a line:")
  for line in lines:
    if not line.strip():
      continue
    (answers,) = predictor.predict(
      [(line.strip(), passage)],
      settings.n_best_size,
      settings.max_answer_length,
      settings.null_score_diff_threshold,
    )
    for answer in answers[:3]:
      place = f"{answer.start}-{answer.end}" if answer.text else "-"
      text = answer.text or "(no answer)"
      app.show(f"{answer.probability:.3f}", f"{place:>11}", text, sep="  ")
    print(flush=True)
