"""Predicts for sets of texts, or of pairs of texts, by way of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bertlib.cli.absl import logging
from bertlib.data import text_records, tf_records
from bertlib.data.text_records import TextSet
from bertlib.settings.common import LongTextSettings
from bertlib.training import loop, runs
from bertlib.training.runs import Run


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
  texts: Iterable[Sequence[str | None]],  # see `model_inputs.encode_windows`
  batch_size: int,
) -> TextSet:
  """Writes the records of texts; batches are full on a TPU."""
  path, length = runs.records_path(run, name), run.settings.model.max_seq_length
  num_rows = text_records.write_texts(
    path,
    texts,
    run.tokenizer,
    length,
    batch_size if run.on_tpu else 1,
    run.settings.cutting,
  )
  return TextSet(path, num_rows, batch_size, tf_records.token_layout(length))


def predict(
  run: Run, texts: TextSet, checkpoint: str | None
) -> Iterator[dict[str, Any]]:
  """Yields the predictions for each record by name, in order."""
  input_fn = runs.input_fn_of(run, texts.path, False, texts.layout)
  rows = loop.predict(
    run, input_fn, sum(texts.num_rows), checkpoint, texts.batch_size
  )
  return tf_records.restore_input_order(rows)
