"""Audit of window settings: truncated questions and answers outside windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tokenization
from bertlib.cli import terminal
from bertlib.data import model_inputs
from bertlib.settings.squad import SquadSettings
from bertlib.tasks.squad import squad_examples, squad_features, squad_spans
from bertlib.tasks.squad.squad_examples import SquadExample


def print_audit(
  settings: SquadSettings, tokenizer: tokenization.FullTokenizer
) -> None:
  """Prints the audit of --train_file, see `audit`."""
  unaligned: list[dict[str, Any]] = []
  examples = squad_examples.read_squad_examples(
    settings.train_file, True, settings.version_2_with_negative, unaligned
  )
  rows = audit(
    examples,
    tokenizer,
    settings.audit_max_seq_lengths,
    settings.audit_doc_strides,
    settings.max_query_length,
  )
  terminal.print_table(
    [row | {"unaligned answers": len(unaligned)} for row in rows]
  )


def audit(
  examples: Sequence[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  max_seq_lengths: Sequence[int],
  doc_strides: Sequence[int],
  max_query_length: int,
) -> list[dict[str, int]]:
  """Counts windows and lost answers for every window length and stride.

  Args:
    examples: the questions, with answers.
    tokenizer: a WordPiece tokenizer.
    max_seq_lengths: window lengths to try, in tokens.
    doc_strides: strides to try, in tokens.
    max_query_length: maximum number of tokens per question.

  Returns:
    A table row per length and stride: both, and the numbers of questions,
    windows, truncated questions and answers that no window contains.

  Raises:
    InputError: a length leaves no room for the paragraph.
  """
  encoded = [
    (len(e.query), len(e.document.ids), e.start, e.end)
    for e in squad_spans.encode_examples(examples, tokenizer, is_training=True)
  ]
  rows = []
  for length, stride in itertools.product(max_seq_lengths, doc_strides):
    squad_features.check_settings(
      squad_features.WindowSettings(length, stride, max_query_length, True)
    )
    num_windows = num_lost = 0
    for query_length, num_tokens, start, end in encoded:
      room = length - min(query_length, max_query_length) - 3
      spans = model_inputs.make_doc_spans(num_tokens, room, stride)
      num_windows += len(spans)
      num_lost += start >= 0 and not any(
        first <= start and end < first + size for first, size in spans
      )
    rows.append(
      {
        "max_seq_length": length,
        "doc_stride": stride,
        "questions": len(examples),
        "windows": num_windows,
        "questions truncated": sum(
          row[0] > max_query_length for row in encoded
        ),
        "answers in no window": num_lost,
      }
    )
  return rows
