"""Scores of documents from the outputs of a reranker. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bertlib.data import batch_predictor
from bertlib.data.batch_predictor import BatchPredictor, FileFormat
from bertlib.tasks.ranking import ranking_examples


def activate(description: Mapping[str, Any], logits: np.ndarray) -> np.ndarray:
  """Scores of logits, float32 of the same shape."""
  if description["activation"] == "identity":
    return logits
  # exp(-|x|) cannot overflow.
  powers = np.exp(-np.abs(logits))
  return np.where(logits < 0, powers, np.float32(1)) / (1 + powers)


def _json_line(pair: tuple[str, str], score: float) -> bytes:
  query, document = pair
  line = {"query": query, "document": document, "score": float(score)}
  return batch_predictor.json_line(line)


def _tsv_line(pair: tuple[str, str], score: float) -> bytes:
  return batch_predictor.tsv_line([f"{score:.9g}", *pair])


# Of files of scores of pairs.
FORMATS = {".jsonl": FileFormat(_json_line), ".tsv": FileFormat(_tsv_line)}


class RankingPredictor(BatchPredictor):
  """Scores documents for queries."""

  keeps_first = True

  def score(self, pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """Scores of pairs of a query and a document, float32 [pairs], in order."""
    return activate(self.description, self.logits(pairs))

  predict = score  # as the method is called for other tasks

  def logits(self, pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """Scores before the activation, float32 [pairs]."""
    pairs = batch_predictor.validated(
      pairs, batch_predictor.is_pair, "a pair of str", "pairs"
    )
    rows = self.predict_blocks(pairs, self._encode, lambda _, rows: rows)
    return np.array(rows, np.float32).reshape(-1)

  def _encode(self, pairs):
    """Nothing that decoding needs, and the rows of the pairs."""
    return None, self.encode_texts(pairs)

  def _decode(self, _, rows):
    logits = np.array(rows, np.float32).reshape(-1)
    return activate(self.description, logits)

  def read_file(self, settings, bad):
    """See base class."""
    return ranking_examples.read_pairs(settings, bad)

  def answer_blocks(self, sets):
    """See base class; an answer is a score."""
    return self.map_blocks(sets, self._encode, self._decode)

  def file_formats(self, examples):
    """See base class."""
    return FORMATS
