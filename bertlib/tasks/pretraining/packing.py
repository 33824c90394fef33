"""Packing: several sequences in one row of S tokens. Imports no TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from bertlib.data import tf_records


def assign_rows(
  lengths: Sequence[int],  # tokens per sequence
  num_masked: Sequence[int],  # masked tokens per sequence
  max_seq_length: int,
  max_predictions_per_seq: int,  # masked tokens per row
  max_sequences_per_row: int,
) -> list[list[int]]:
  """Assigns sequences, by number, to rows, so that few positions are free."""
  limits = max_seq_length, max_predictions_per_seq, max_sequences_per_row
  ways = (
    _fill(lengths, num_masked, *limits, spread) for spread in (False, True)
  )
  return min(ways, key=len)


def _fill(
  lengths: Sequence[int],
  num_masked: Sequence[int],
  max_seq_length: int,
  max_predictions_per_seq: int,
  max_sequences_per_row: int,
  spread: bool,
) -> list[list[int]]:
  """Fills row after row, beginning with the longest sequence that is left."""
  # Then come the longest that fit. With `spread`, it is as many of equal length
  # as fit on average: that uses up short ones, which without long ones would
  # reach `max_sequences_per_row` before a row is full.
  by_length: list[list[int]] = [[] for _ in range(max_seq_length + 1)]
  for number, length in enumerate(lengths):
    by_length[length].append(number)
  num_left, num_tokens = len(lengths), sum(lengths)
  rows: list[list[int]] = []
  while num_left:
    row: list[int] = []
    room, slots = max_seq_length, max_predictions_per_seq
    while num_left and room and len(row) < max_sequences_per_row:
      wanted = room
      if row and spread:
        average = room * num_left // num_tokens
        parts = min(average, max_sequences_per_row - len(row))
        wanted = room // max(parts, 1)
      for length in (*range(wanted, 0, -1), *range(wanted + 1, room + 1)):
        found = by_length[length]
        if found and num_masked[found[-1]] <= slots:
          break
      else:
        break  # nothing fits
      row.append(found.pop())
      room, slots = room - length, slots - num_masked[row[-1]]
      num_left, num_tokens = num_left - 1, num_tokens - length
    rows.append(row)
  return rows


def record_layout(
  max_seq_length: int, max_sequences_per_row: int
) -> dict[str, tf_records.Feature]:
  """Layout of the `features` of a row."""
  tokens = tf_records.Feature((max_seq_length,), per_token=True)
  sequences = tf_records.Feature((max_sequences_per_row,))
  return {
    "sequence_ids": tokens,
    "position_ids": tokens,
    "next_sentence_positions": sequences,
    "next_sentence_labels": sequences,
    "next_sentence_weights": sequences._replace(is_float=True),
  }


def features(
  lengths: Sequence[int],  # tokens per sequence of the row
  is_random_next: Sequence[int],  # labels of the sequences
  max_seq_length: int,
  max_sequences_per_row: int,
) -> dict[str, list[int]]:
  """Features of a row: which tokens are of a sequence, and where it starts."""
  padding = [0] * (max_seq_length - sum(lengths))
  unused = [0] * (max_sequences_per_row - len(lengths))
  ids = ([number] * size for number, size in enumerate(lengths, start=1))
  starts = itertools.accumulate(lengths[:-1], initial=0)
  return {
    "sequence_ids": [*itertools.chain.from_iterable(ids), *padding],
    "position_ids": [*itertools.chain(*map(range, lengths)), *padding],
    "next_sentence_positions": [*starts, *unused],
    "next_sentence_labels": [*is_random_next, *unused],
    "next_sentence_weights": [1] * len(lengths) + unused,
  }
