"""Scores of documents from the outputs of a reranker. Imports no TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.errors import InputError
from bertlib.data import batch_predictor, model_inputs, tables, text_groups
from bertlib.data.batch_predictor import BatchPredictor, FileFormat
from bertlib.data.text_groups import Columns
from bertlib.settings.common import LongDocumentSettings, TableSettings


def activate(description: Mapping[str, Any], logits: np.ndarray) -> np.ndarray:
  """Scores of logits, float32 of the same shape."""
  if description["activation"] == "identity":
    return logits
  # exp(-|x|) cannot overflow.
  powers = np.exp(-np.abs(logits))
  return np.where(logits < 0, powers, np.float32(1)) / (1 + powers)


def join_windows(
  num_windows: Sequence[int],  # of each pair
  rows: Iterable[Any],  # the logit of each window
) -> np.ndarray:
  """Logits of pairs, float32: that of the best window counts."""
  texts = model_inputs.by_text(rows, num_windows)
  return np.array([np.max(logits) for logits in texts], np.float32)


def _json_line(pair: tuple[str, str], score: float) -> bytes:
  query, document = pair
  line = {"query": query, "document": document, "score": float(score)}
  return batch_predictor.json_line(line)


def _tsv_line(pair: tuple[str, str], score: float) -> bytes:
  return batch_predictor.tsv_line([f"{score:.9g}", *pair])


# Of files of scores of pairs.
FORMATS = {".jsonl": FileFormat(_json_line), ".tsv": FileFormat(_tsv_line)}


def pair_rows(
  settings: Any,  # `RankingSettings`
) -> tuple[Iterable[Any], Callable[[Any], tuple[str, ...]]]:
  """Rows of --predict_file, and a function that gives the pair of each."""
  path, names = settings.predict_file, (settings.text_columns or ())[:2]
  if settings.flags.do_train or not names:
    names = _pair_columns(path, settings.text, names)
  rows, example = text_groups.open_table(
    path, Columns(names), None, settings.text
  )
  return rows, lambda row: tuple(example(row).texts)


def _pair_columns(
  path: str, text: TableSettings, trained: Sequence[str]
) -> Sequence[str]:
  """Columns of a file of pairs: the first two, or keys of JSON Lines."""
  if not tables.holds_objects(path, text.codec):
    return "1", "2"
  # Objects have no order.
  keys = tables.json_object(next(tables.read_lines(path, text.codec)))
  for names in (trained, ("query", "document")):
    if len(names) == 2 and {*names} <= {*keys}:
      return names
  raise InputError(
    f"{path}: its keys are {', '.join(keys)}, not query and document. Rename"
    " them, or name them by --text_columns"
  )


class RankedDocument(NamedTuple):
  """A document in the order of relevance to a query.

  Attributes:
    index: its index among the documents that were given.
    score: its score, see `RankingPredictor.score`.
    text: the document.
  """

  index: int
  score: float
  text: str


class RankingPredictor(BatchPredictor):
  """Scores and ranks documents for queries."""

  long_texts = LongDocumentSettings

  def score(self, pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """Scores pairs of a query and a document.

    Args:
      pairs: the pairs; documents longer than the model's length are cut, or
        divided into windows, as the model's `long_texts` says.

    Returns:
      float32 [pairs], in order: from 0 to 1 where the model's activation is
      sigmoid, else any number.

    Raises:
      InputError: an element is not a pair of str.
    """
    return activate(self.description, self.logits(pairs))

  predict = score  # as the method is called for other tasks

  def rank(
    self, query: str, documents: Iterable[str], top_k: int | None = None
  ) -> list[RankedDocument]:
    """Ranks documents by their relevance to a query.

    Args:
      query: the query.
      documents: the documents.
      top_k: number of documents to return; None for all.

    Returns:
      The documents, the most relevant one first. They are in the order of their
      logits, since scores may be equal where logits are not; documents with
      equal logits keep their order.

    Raises:
      InputError: the query or a document is not a str.
    """
    is_text = batch_predictor.is_text
    if not is_text(query):
      raise InputError(f"query: is {query!r:.80}. Give a str")
    validated = batch_predictor.validated
    texts = [*validated(documents, is_text, "a str", "documents")]
    logits = self.logits(zip(itertools.repeat(query), texts))
    scores = activate(self.description, logits).tolist()
    order = np.argsort(-logits, kind="stable")[:top_k].tolist()
    return [RankedDocument(i, scores[i], texts[i]) for i in order]

  def logits(self, pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """Scores before the activation, float32 [pairs]."""
    pairs = batch_predictor.validated(
      pairs, batch_predictor.is_pair, "a pair of str", "pairs"
    )
    return np.array(
      self.predict_blocks(pairs, self._encode, join_windows), np.float32
    )

  def _encode(self, pairs):
    """The number of rows of each pair, and the rows."""
    prefix = self.description.get("query_prefix", "")
    return self.encode_windows((prefix + a, b) for a, b in pairs)

  def read_file(self, settings, bad):
    """See base class."""
    rows = pair_rows(settings)
    return tables.read_examples(*rows, settings.text.bad_rows == "skip", bad)

  def answer_blocks(self, sets):
    """See base class; an answer is a score."""
    for logits in self.map_blocks(sets, self._encode, join_windows):
      yield activate(self.description, logits)

  def file_formats(self, examples):
    """See base class."""
    return FORMATS
