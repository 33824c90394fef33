"""Interactive question answering on standard input."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable

from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.io import text_files
from bertlib.settings.squad import SquadSettings


def read_passage(settings: SquadSettings) -> str:
  """Reads --passage_file, which must not be empty."""
  passage = text_files.read_text(
    settings.passage_file, text_files.encoding_of(*settings.text.codec)
  )
  if not passage.strip():
    raise InputError(
      f"{settings.passage_file}: is empty. Write a passage to it"
    )
  return passage


def interactive_loop(
  settings: SquadSettings, predictor, lines: Iterable[str]
) -> None:
  """Answers questions about one passage and prints the answers."""
  # `predictor` is a `run_squad.Predictor`. Each of the `lines` is a question;
  # without --passage_file, the passage and a blank line come first.
  threshold = None  # that of the model
  if "null_score_diff_threshold" in settings.receipt.times_given:
    threshold = settings.null_score_diff_threshold
  lines = iter(lines)
  prompt = print if sys.stdin.isatty() else lambda _: None
  if settings.passage_file:
    passage = read_passage(settings)
  else:
    prompt("Enter the passage, then a blank line:")
    passage = "".join(itertools.takewhile(str.strip, lines))
  if not passage.strip():
    raise InputError(
      "standard input: has no passage. Enter one before the questions, or give"
      " --passage_file"
    )
  prompt("Enter questions, one per line:")
  for line in lines:
    if not line.strip():
      continue
    (answers,) = predictor.predict(
      [(line.strip(), passage)],
      settings.n_best_size,
      settings.max_answer_length,
      threshold,
    )
    for answer in answers[:3]:
      span = f"{answer.start}-{answer.end}" if answer.text else "-"
      text = answer.text or "(no answer)"
      terminal.show(f"{answer.probability:.3f}", f"{span:>11}", text, sep="  ")
    terminal.show()
