"""Predictions for [MASK], and pseudo-perplexity of texts."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

import tokenization
from bertlib import app, text_files
from bertlib.data import model_inputs, tf_records
from bertlib.errors import InputError
from bertlib.files import atomic_write

# Texts with masks, and without


class Line(NamedTuple):
  """A line of text to predict tokens of.

  Attributes:
    text: as it came.
    encoded: the same as the model takes it.
    positions: places whose tokens are asked for: its masks or, of a line
      without them, all tokens but [CLS] and [SEP].
  """

  text: str
  encoded: model_inputs.EncodedPair
  positions: list[int]

  @property
  def has_masks(self) -> bool:
    """Whether there are masks to fill."""
    return "[MASK]" in self.text


def read_lines(
  path: str,
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
  encoding: text_files.Encoding = text_files.UTF8,
) -> list[Line]:
  """Reads texts, one a line; " ||| " stands before the second of a pair.

  Args:
    path: the file; "-" for standard input.
    tokenizer: never splits [MASK].
    max_seq_length: tokens; what is longer is cut, and counted.
    encoding: of the file.

  Returns:
    The lines, blank ones too.

  Raises:
    InputError: there are none.
  """
  special = {tokenizer.vocab[token] for token in ("[CLS]", "[SEP]")}
  mask = tokenizer.vocab["[MASK]"]
  lines = []
  for pair in model_inputs.read_pairs(path, encoding):
    text = model_inputs.SEPARATOR.join(filter(None, pair))
    encoded = model_inputs.encode_pair(
      tokenizer,
      *(part and part.replace("[MASK]", " [MASK] ") for part in pair),
      max_seq_length,
    )
    tokens = encoded.input_ids[: sum(encoded.input_mask)]
    positions = [
      place
      for place, token in enumerate(tokens)
      if (token == mask if "[MASK]" in text else token not in special)
    ]
    lines.append(Line(text, encoded, positions))
  if not lines:
    raise InputError(f"{path}: has no lines")
  num_cut = sum(line.encoded.num_cut > 0 for line in lines)
  if num_cut:
    logging.warning("%d lines cut to %d tokens", num_cut, max_seq_length)
  return lines


def prediction_records(
  lines: Iterable[Line], mask_id: int
) -> Iterator[dict[str, Any]]:
  """Makes a record of each place that is asked for, with [MASK] there.

  What [MASK]s the line has elsewhere stay.

  Args:
    lines: the lines.
    mask_id: of [MASK].

  Yields:
    Its token features, `masked_lm_positions` and `masked_lm_ids` for P = 1.
  """
  for line in lines:
    for position in line.positions:
      row = line.encoded._asdict()
      ids = list(line.encoded.input_ids)
      label, ids[position] = ids[position], mask_id
      yield row | {
        "input_ids": ids,
        "masked_lm_positions": [position],
        "masked_lm_ids": [label],
      }


def record_layout(max_seq_length: int) -> tf_records.Layout:
  """The layout of `prediction_records`."""
  return tf_records.token_layout(max_seq_length) | {
    "masked_lm_positions": tf_records.Feature((1,)),
    "masked_lm_ids": tf_records.Feature((1,)),
  }


def describe_lines(
  lines: Iterable[Line],
  rows: Iterator[Mapping[str, np.ndarray]],
  tokenizer: tokenization.FullTokenizer,
) -> Iterator[dict[str, Any]]:
  """The fillings of masked lines, and scores of the others.

  The score is the pseudo-perplexity (Salazar et al. 2020): each token is
  masked in turn, and e to the mean of their losses taken.

  Args:
    lines: the lines.
    rows: predictions of `run_pretraining.model_fn_builder` for each of their
      `prediction_records`, in order.
    tokenizer: names the tokens.

  Yields:
    Of each line its `text` and either `masks`, for each one the likeliest
    fillings with their probabilities, or `pseudo_perplexity` and `num_tokens`.
  """
  for line in lines:
    of_line = list(itertools.islice(rows, len(line.positions)))
    yield {"text": line.text} | (
      {"masks": [fillings(row, tokenizer) for row in of_line]}
      if line.has_masks
      else pseudo_perplexity([row["log_prob"] for row in of_line])
    )


def fillings(row: Mapping[str, np.ndarray], tokenizer) -> list[dict[str, Any]]:
  """What a mask may stand for, the likeliest first."""
  tokens = (tokenizer.inv_vocab.get(i, str(i)) for i in row["top_ids"])
  return [
    {"token": token, "probability": round(float(prob), 6)}
    for token, prob in zip(tokens, row["top_probs"])
  ]


def pseudo_perplexity(log_probs: Sequence[float]) -> dict[str, Any]:
  """That of tokens with these log probabilities; None of no tokens."""
  value = math.exp(-np.mean(log_probs, dtype=float)) if log_probs else None
  return {"pseudo_perplexity": value, "num_tokens": len(log_probs)}


def write_predictions(path: str, said: Iterable[Mapping[str, Any]]) -> None:
  """Writes what is said of each line as JSON lines, and prints it in short.

  Args:
    path: the file.
    said: see `describe_lines`.
  """
  with atomic_write(path) as file:
    for line in said:
      file.write(json.dumps(line, ensure_ascii=False) + "\n")
      app.show(line["text"])
      for filling in line.get("masks", ()):
        told = (f"{f['token']} {f['probability']:.3f}" for f in filling)
        app.show("", *told, sep="  ")
      if line.get("pseudo_perplexity"):
        print(f"  pseudo-perplexity {line['pseudo_perplexity']:.4g}")
  logging.info("Predictions in %s", path)
