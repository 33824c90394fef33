"""Writes texts, and pairs of texts, as the records of a run."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import logging

from bertlib.data import example_checks, model_inputs, tf_records
from bertlib.settings.common import LongTextSettings
from bertlib.training import runs
from bertlib.training.runs import Run, TextSet


def training_cutting(run: Run) -> LongTextSettings:
  """Settings that cut each text to train on to one row; logs windows."""
  cutting = run.settings.cutting
  if cutting.has_windows:
    logging.info(
      "Training truncates texts; evaluation and prediction divide them into"
      " windows"
    )
  return cutting.in_one_row()


def write(
  run: Run,
  name: str,
  # See `model_inputs.encode_windows`; read once, and not kept in memory.
  texts: Iterable[Sequence[str | None]],
  batch_size: int,
) -> TextSet:
  """Writes the records of texts; batches are full on a TPU."""
  path, length = runs.records_path(run, name), run.settings.model.max_seq_length
  cutting, num_lost, num_rows = run.settings.cutting, array("i"), array("i")
  num_empty, num_special = 0, run.tokenizer.special_tokens.num()

  def records() -> Iterator[dict[str, Any]]:
    nonlocal num_empty
    record: dict[str, Any] = {}
    for rows in model_inputs.encode_windows(
      run.tokenizer, texts, length, cutting
    ):
      num_lost.append(rows[0].num_truncated_tokens)
      num_rows.append(len(rows))
      model_inputs.warn_of_many_windows(f"text {len(num_rows)}", len(rows))
      num_empty += rows[0].num_tokens == num_special and not num_lost[-1]
      for row in rows:
        record = row._asdict()
        yield record
    if run.on_tpu:  # the last one is repeated
      yield from itertools.repeat(record, -sum(num_rows) % batch_size)

  layout = tf_records.token_layout(length)
  tf_records.write_records(path, records(), layout)
  windows = f" in {sum(num_rows)} windows" if cutting.has_windows else ""
  logging.info("%d texts%s written to %s", len(num_rows), windows, path)
  example_checks.log_faults(num_lost, num_empty, length)
  return TextSet(path, num_rows, batch_size, layout)


def check_sample(
  run: Run,
  sample: Iterable[Sequence[str | None]],  # see `model_inputs.encode_windows`
  num_examples: int,
  num_sampled: int,  # of the examples
  texts: Iterable[str] = (),  # of the sample
) -> example_checks.LengthSummary:
  """Encodes texts as the run does, and checks them for a dry run."""
  cutting, length = run.settings.cutting, run.settings.model.max_seq_length
  if run.flags.do_train:
    cutting = cutting.in_one_row()
  return example_checks.check_encoded(
    model_inputs.encode_pairs(run.tokenizer, sample, length, cutting),
    run.config.vocab_size,
    num_examples,
    run.tokenizer,
    texts,
    length,
    num_sampled,
  )
