"""Predictions of pretraining: [MASK]s, pseudo-perplexity, next sentences.

Imports no TensorFlow.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import tokenization
from bertlib.cli import terminal
from bertlib.cli.absl import logging
from bertlib.data import batch_predictor, model_inputs, tf_records
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.io import text_files
from bertlib.io.files import atomic_write
from bertlib.tasks.pretraining import objectives
from bertlib.tasks.pretraining.objectives import Objective

_TOP_K = 5  # words per mask, as --top_k has by default


class Line(NamedTuple):
  """A line of text whose tokens are predicted."""

  text: str  # before encoding
  encoded: model_inputs.EncodedPair
  has_masks: bool
  # Those of [MASK] or, for a line without masks, of all tokens but [CLS] and
  # [SEP].
  positions: list[int]

  @property
  def is_pair(self) -> bool:
    """True for two texts."""
    return max(self.encoded.segment_ids) > 0


def encode_line(
  pair: tuple[str, str | None],
  tokenizer: tokenization.Tokenizer,  # finds masks
  max_seq_length: int,
) -> Line:
  """Encodes a text or a pair."""
  special = tokenizer.special_ids
  text = text_files.SEPARATOR.join(filter(None, pair))
  encoded = model_inputs.encode_pair(
    tokenizer,
    *(part and tokenizer.mark_masks(part) for part in pair),
    max_seq_length,
  )
  has_masks = tokenizer.special_tokens.mask in text
  positions = [
    position
    for position, token in enumerate(encoded.input_ids[: encoded.num_tokens])
    if (
      token == special.mask
      if has_masks
      else token not in (special.cls, special.sep)
    )
  ]
  return Line(text, encoded, has_masks, positions)


def prediction_records(
  lines: Iterable[Line], mask_id: int, objective: Objective
) -> Iterator[dict[str, Any]]:
  """Creates one record (P = 1) per position to predict, masked in it."""
  for line in lines:
    for position in line.positions if objective.predicts_tokens else ():
      row = line.encoded._asdict()
      ids = list(line.encoded.input_ids)
      label, ids[position] = ids[position], mask_id
      # [MASK]s at other positions of the line stay.
      yield row | {
        "input_ids": ids,
        "masked_lm_positions": [position],
        "masked_lm_ids": [label],
      }
    if objective.predicts_pairs and line.is_pair:
      # Next-sentence prediction gets the pair unchanged.
      ids = line.encoded.input_ids
      yield line.encoded._asdict() | {
        "masked_lm_positions": [0],
        "masked_lm_ids": [ids[0]],
      }


def record_layout(max_seq_length: int) -> tf_records.Layout:
  """Layout of `prediction_records`."""
  return tf_records.token_layout(max_seq_length) | {
    "masked_lm_positions": tf_records.Feature((1,)),
    "masked_lm_ids": tf_records.Feature((1,)),
  }


def describe_lines(
  lines: Iterable[Line],
  # Of `run_pretraining.model_fn_builder`, for each of the `prediction_records`
  # of the lines, in order.
  rows: Iterator[Mapping[str, np.ndarray]],
  tokenizer: tokenization.Tokenizer,
  objective: Objective,
) -> Iterator[dict[str, Any]]:
  """Predictions for masked lines, and pseudo-perplexity of the others."""
  for line in lines:
    description: dict[str, Any] = {"text": line.text}
    if objective.predicts_tokens:
      line_rows = list(itertools.islice(rows, len(line.positions)))
      description |= (
        {"masks": [fillings(row, tokenizer) for row in line_rows]}
        if line.has_masks
        # It masks each token in turn, and is exp of the mean loss (Salazar et
        # al. 2020).
        else pseudo_perplexity([row["log_prob"] for row in line_rows])
      )
    if objective.predicts_pairs and line.is_pair:
      probability = next(rows)["is_next_probability"]
      description["is_next_probability"] = round(float(probability), 6)
    yield description


def fillings(row: Mapping[str, np.ndarray], tokenizer) -> list[dict[str, Any]]:
  """Top-k predictions for a [MASK], the most probable first."""
  entries = (tokenizer.inv_vocab.get(i, str(i)) for i in row["top_ids"])
  return [
    {"token": token, "probability": round(float(prob), 6)}
    for token, prob in zip(map(tokenizer.shown, entries), row["top_probs"])
  ]


def pseudo_perplexity(log_probs: Sequence[float]) -> dict[str, Any]:
  """Pseudo-perplexity from the log probabilities of tokens; None if empty."""
  value = math.exp(-np.mean(log_probs, dtype=float)) if log_probs else None
  return {"pseudo_perplexity": value, "num_tokens": len(log_probs)}


def write_predictions(
  path: str, predictions: Iterable[Mapping[str, Any]]
) -> None:
  """Writes predictions of `describe_lines` as JSON lines; prints a summary."""
  with atomic_write(path, "wb") as file:
    for line in predictions:
      file.write(batch_predictor.json_line(line))
      terminal.show(line["text"])
      for candidates in line.get("masks", ()):
        shown = (f"{c['token']} {c['probability']:.3f}" for c in candidates)
        terminal.show("", *shown, sep="  ")
      if line.get("pseudo_perplexity"):
        terminal.show(f"  pseudo-perplexity {line['pseudo_perplexity']:.4g}")
      if "is_next_probability" in line:
        terminal.show(f"  is next {line['is_next_probability']:.3f}")
  logging.info("Predictions in %s", path)


# From Python


class MaskedLMPredictor(BatchPredictor):
  """Predicts words for each [MASK]."""

  features = (*model_inputs.TOKEN_FEATURES, "masked_lm_positions")
  finds_mask = True

  def predict(
    self, texts: Iterable[str | tuple[str, str]], top_k: int = 5
  ) -> list[list[list[dict[str, Any]]]]:
    """Predicts words.

    Args:
      texts: each a text, or a pair of texts, with [MASK]s.
      top_k: number of words per [MASK].

    Returns:
      For each text and [MASK] the words, each `{"token": ..., "probability":
      ...}`, the most probable first.

    Raises:
      InputError: a text is of another type.
    """
    texts = batch_predictor.validated(
      texts, batch_predictor.is_text_or_pair, "a str, or a pair of str"
    )
    decode = functools.partial(self._decode, top_k)
    return self.predict_blocks(texts, self._encode, decode)

  def answer_blocks(self, sets):
    """See base class; an answer is that of `describe_lines`."""
    objective = objectives.of_model(self.description)
    mask = self.tokenizer.special_ids.mask
    length = self.description["max_seq_length"]

    def encode(pairs):
      lines = [encode_line(pair, self.tokenizer, length) for pair in pairs]
      return lines, [*prediction_records(lines, mask, objective)]

    def decode(lines, rows):
      return describe_lines(lines, iter(rows), self.tokenizer, objective)

    # Probabilities of the whole vocabulary would fill the memory.
    best = functools.partial(_best, mask)
    return self.map_blocks(sets, encode, decode, best)

  def _encode(self, texts):
    """The masks of each text, and the rows of the texts that have some."""
    length = self.description["max_seq_length"]
    masks, rows = [], []
    for text in texts:
      pair = (text, None) if isinstance(text, str) else tuple(text)
      line = encode_line(pair, self.tokenizer, length)
      positions = line.positions if line.has_masks else []
      masks.append(len(positions))
      if positions:
        encoded = line.encoded._asdict()
        rows.append(encoded | {"masked_lm_positions": positions})
    return masks, rows

  def _decode(
    self, top_k: int, masks, outputs
  ) -> Iterator[list[list[dict[str, Any]]]]:
    """The words of each text, from probabilities [P, V] of rows."""
    rows = iter(outputs)
    for count in masks:
      probabilities = of_masks(next(rows))[:count] if count else []
      yield [
        fillings(top_words(row, top_k), self.tokenizer) for row in probabilities
      ]


def of_masks(output: Any) -> np.ndarray:
  """Probabilities at masks, [P, V], of what a model gives for a row."""
  return output[0] if isinstance(output, tuple) else output


def top_words(row: np.ndarray, top_k: int) -> dict[str, Any]:
  """The best of the probabilities of a vocabulary, the highest first."""
  ids = np.argsort(-row, kind="stable")[:top_k]
  return {"top_ids": ids.tolist(), "top_probs": row[ids]}


def _best(mask: int, record: Mapping[str, Any], output: Any) -> dict[str, Any]:
  """Predictions for a record, as by `run_pretraining.mask_predictions`."""
  (row,) = of_masks(output)
  (label,) = record["masked_lm_ids"]
  found = {"log_prob": np.log(max(row[label], np.finfo("f").tiny))}
  if label == mask:
    found |= top_words(row, _TOP_K)
  # Exports of earlier versions lack it.
  has_pairs = isinstance(output, tuple)
  return found | {"is_next_probability": output[1] if has_pairs else math.nan}
