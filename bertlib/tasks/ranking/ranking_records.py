"""Encodes queries with their documents as TFRecords. Imports no TensorFlow."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tokenization
from bertlib.cli.absl import logging
from bertlib.data import model_inputs, tf_records
from bertlib.settings.long_texts import LongTextSettings
from bertlib.tasks.ranking.ranking_examples import Group


def layout(loss: str | None, num_documents: int, max_seq_length: int):
  """Layout of the records of groups: tokens are [documents, S]."""
  features = tf_records.token_layout(max_seq_length, num_documents)
  name = "teacher_scores" if loss == "margin_mse" else "labels"
  if loss:
    features[name] = tf_records.Feature((num_documents,), is_float=True)
  return features


def write_records(
  path: str,
  groups: Iterable[Group],
  features: tf_records.Layout,
  tokenizer: tokenization.Tokenizer,
  cutting: LongTextSettings,  # not in windows
  query_prefix: str = "",
  # Of the documents of all groups, instead of `Group.teacher_scores`.
  teacher_scores: Sequence[float] | None = None,
) -> None:
  """Encodes groups as TFRecords, and logs how many documents are cut."""
  num_documents, max_seq_length = features["input_ids"].shape
  missing = [0] * max_seq_length
  num_truncated = array("i")
  of_teacher = iter(() if teacher_scores is None else teacher_scores)

  def records() -> Iterator[dict[str, Any]]:
    to_encode, to_write = itertools.tee(groups)
    pairs = (
      (query_prefix + group.query, text)
      for group in to_encode
      for text in group.documents
    )
    encoded = model_inputs.encode_pairs(
      tokenizer, pairs, max_seq_length, cutting
    )
    for group in to_write:
      rows = [next(encoded) for _ in group.documents]
      num_truncated.extend(row.num_truncated_tokens for row in rows)
      num_missing = num_documents - len(rows)
      zeros = [0.0] * num_missing
      scores = group.teacher_scores or itertools.islice(of_teacher, len(rows))
      yield {
        name: [value for row in rows for value in getattr(row, name)]
        + missing * num_missing
        for name in model_inputs.TOKEN_FEATURES
      } | {
        "labels": [*group.labels, *zeros],
        "teacher_scores": [*scores, *zeros],
      }

  num_groups = tf_records.write_records(path, records(), features)
  num_cut = sum(map(bool, num_truncated))
  logging.info(
    "%d queries with %d documents written to %s; %.1f%% of these are cut to %d"
    " tokens with the query",
    num_groups,
    len(num_truncated),
    path,
    100 * num_cut / max(len(num_truncated), 1),
    max_seq_length,
  )
  queries = (query_prefix + group.query for group in groups)
  warn_of_long(queries, tokenizer, max_seq_length)


def warn_of_long(
  queries: Iterable[str], tokenizer: tokenization.Tokenizer, max_seq_length: int
) -> None:
  """Warns of queries that leave documents less than half of the length."""
  lengths = map(len, tokenizer.encode_batch(queries))
  if num_long := sum(length > max_seq_length // 2 for length in lengths):
    logging.warning(
      "%d queries have more than half of the --max_seq_length=%d tokens, and"
      " leave documents less",
      num_long,
      max_seq_length,
    )
