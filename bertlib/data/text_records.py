"""Encodes texts and pairs of texts as TFRecords. Imports no TensorFlow."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli.absl import logging
from bertlib.data import model_inputs, tf_records
from bertlib.settings.common import TRUNCATE, LongTextSettings


class TextSet(NamedTuple):
  """Texts to predict for, whose records are written."""

  path: str  # file of the records
  num_rows: Sequence[int]  # records of each text: its windows
  batch_size: int  # records of a batch
  layout: tf_records.Layout | None = None  # None for that of the task
  examples: Sequence[Any] = ()  # of the task, with these texts


def write_texts(
  path: str,
  # See `model_inputs.encode_windows`; read once, and not kept in memory.
  texts: Iterable[Sequence[str | None]],
  tokenizer: tokenization.Tokenizer,
  max_seq_length: int,
  # The last text is repeated until the number of records is a multiple.
  multiple_of: int = 1,
  cutting: LongTextSettings = TRUNCATE,
) -> Sequence[int]:
  """Encodes texts and pairs as TFRecords; returns the rows of each text."""
  num_truncated_tokens, num_rows = array("i"), array("i")
  num_empty, num_special = 0, tokenizer.special_tokens.num()

  def records() -> Iterator[dict[str, Any]]:
    nonlocal num_empty
    record: dict[str, Any] = {}
    for rows in model_inputs.encode_windows(
      tokenizer, texts, max_seq_length, cutting
    ):
      num_truncated_tokens.append(rows[0].num_truncated_tokens)
      num_rows.append(len(rows))
      model_inputs.warn_of_many_windows(f"text {len(num_rows)}", len(rows))
      is_empty = rows[0].num_tokens == num_special
      num_empty += is_empty and not num_truncated_tokens[-1]
      for row in rows:
        record = row._asdict()
        yield record
    yield from itertools.repeat(record, -sum(num_rows) % multiple_of)

  tf_records.write_records(
    path, records(), tf_records.token_layout(max_seq_length)
  )
  windows = f" in {sum(num_rows)} windows" if cutting.has_windows else ""
  logging.info("%d texts%s written to %s", len(num_rows), windows, path)
  log_faults(num_truncated_tokens, num_empty, max_seq_length)
  return num_rows


def log_faults(
  num_truncated_tokens: array, num_empty: int, max_seq_length: int
) -> None:
  """Logs how many texts lost tokens, and how many have none."""
  num_truncated = sum(map(bool, num_truncated_tokens))
  if num_truncated:
    logging.info(
      "%d texts were truncated to %d tokens and lost %d tokens in total",
      num_truncated,
      max_seq_length,
      sum(num_truncated_tokens),
    )
  if num_empty:
    logging.warning("%d texts have no tokens", num_empty)
