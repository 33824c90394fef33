"""Predicted words for [MASK]s from the outputs of a model.

Imports no TensorFlow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bertlib.data import batch_predictor, model_inputs
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.tasks.pretraining import fill_mask


class MaskedLMPredictor(BatchPredictor):
  """Predicts words for each [MASK]."""

  features = (*model_inputs.TOKEN_FEATURES, "masked_lm_positions")
  never_split = ("[MASK]",)

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

  def _encode(self, texts):
    """The masks of each text, and the rows of the texts that have some."""
    length = self.description["max_seq_length"]
    masks, rows = [], []
    for text in texts:
      pair = (text, None) if isinstance(text, str) else tuple(text)
      line = fill_mask.encode_line(pair, self.tokenizer, length)
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
      probabilities = next(rows)[:count] if count else []
      best = [np.argsort(-row)[:top_k] for row in probabilities]
      yield [
        fill_mask.fillings(
          {"top_ids": ids.tolist(), "top_probs": row[ids]}, self.tokenizer
        )
        for ids, row in zip(best, probabilities)
      ]
