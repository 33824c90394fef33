"""Encodes texts and pairs of texts as TFRecords. Imports no TensorFlow."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import tokenization
from bertlib.cli.absl import logging
from bertlib.data import model_inputs, tf_records


def write_texts(
  path: str,
  # Read once, and not kept in memory.
  texts: Iterable[tuple[str, str | None]],
  tokenizer: tokenization.Tokenizer,
  max_seq_length: int,
  # The last text is repeated until the number of records is a multiple.
  multiple_of: int = 1,
  keeps_first: bool = False,  # see `model_inputs.truncated_lengths`
) -> int:
  """Encodes texts and pairs as TFRecords; returns their number."""
  num_truncated_tokens = array("i")
  num_empty, num_special = 0, tokenizer.special_tokens.num()

  def records() -> Iterator[dict[str, Any]]:
    nonlocal num_empty
    record: dict[str, Any] = {}
    for pair in model_inputs.encode_pairs(
      tokenizer, texts, max_seq_length, keeps_first
    ):
      num_truncated_tokens.append(pair.num_truncated_tokens)
      num_empty += pair.num_tokens + pair.num_truncated_tokens == num_special
      record = pair._asdict()
      yield record
    yield from itertools.repeat(
      record, -len(num_truncated_tokens) % multiple_of
    )

  tf_records.write_records(
    path, records(), tf_records.token_layout(max_seq_length)
  )
  logging.info("%d texts written to %s", len(num_truncated_tokens), path)
  log_faults(num_truncated_tokens, num_empty, max_seq_length)
  return len(num_truncated_tokens)


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
