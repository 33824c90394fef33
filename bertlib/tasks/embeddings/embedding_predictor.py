"""Sentence vectors from the outputs of a model. Imports no TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bertlib.data import (
  batch_predictor,
  model_inputs,
  nearest_neighbors,
  tables,
  text_groups,
)
from bertlib.data.batch_predictor import BatchPredictor, FileFormat
from bertlib.io import vector_files
from bertlib.settings import embedding_spec
from bertlib.settings.embedding_spec import EmbeddingSpec


class VectorPredictor(BatchPredictor):
  """Encodes texts as vectors."""

  @property
  def spec(self) -> EmbeddingSpec:
    """Pooling, normalization and prompts of the model."""
    return embedding_spec.from_json(self.description["embedding"])

  @property
  def width(self) -> int:
    """Number of values of a vector."""
    return self.spec.width(self.config["hidden_size"])

  def encode(
    self,
    texts: Iterable[str],
    prompt: str | None = None,
    dim: int | None = None,
  ) -> np.ndarray:
    """Encodes texts.

    Args:
      texts: texts; longer ones than the model's length are cut, or divided
        into windows, as the model's `long_texts` says.
      prompt: name of the prefix of the texts, such as "query"; None for the
        model's default.
      dim: values per vector, at most `width`; None for all.

    Returns:
      float32 [texts, dim], in order; each normalized if the model normalizes.

    Raises:
      InputError: the model has no such prompt, or a text is not a str.
      ValueError: `dim` is not in [1, `width`].
    """
    prefix = self.spec.prompt(prompt)
    rows = self.predict_blocks(
      batch_predictor.validated(texts, batch_predictor.is_text, "a str"),
      functools.partial(self._encode, prefix),
      self._join,
    )
    vectors = np.array(rows, np.float32).reshape(len(rows), self.width)
    if dim is None:
      return vectors
    if not 0 < dim <= self.width:
      raise ValueError(f"dim={dim}: vectors have {self.width} values")
    if self.spec.normalize:
      return nearest_neighbors.unit_vectors(vectors, dim)
    return vectors[:, :dim]

  predict = encode  # as the method is called for other tasks

  def _encode(self, prefix: str, texts: Sequence[str]):
    """The number of rows of each text, and the rows."""
    return self.encode_windows((prefix + text, None, prefix) for text in texts)

  def _join(self, num_rows: Sequence[int], vectors) -> Iterator[np.ndarray]:
    """The vectors of texts from those of their windows."""
    return model_inputs.join_vectors(vectors, num_rows, self.spec.normalize)

  def read_file(self, settings, bad):
    """See base class."""
    path, columns = settings.predict_file, settings.text_columns
    rows = text_groups.text_rows(path, settings.text, columns)
    return tables.read_examples(*rows, settings.text.bad_rows == "skip", bad)

  def answer_blocks(self, sets):
    """See base class; an answer is a vector, of the model's default prompt."""
    encode = functools.partial(self._encode, self.spec.prompt(None))
    return self.map_blocks(sets, encode, self._join)

  def file_formats(self, examples):
    """See base class."""

    def json_line(text, vector):
      rounded = vector.astype(np.float64).round(6).tolist()
      return batch_predictor.json_line({"text": text, "vector": rounded})

    return {
      ".jsonl": FileFormat(json_line),
      ".npy": FileFormat(
        lambda _, vector: vector_files.row_bytes(vector),
        lambda number: vector_files.header(number, self.width),
      ),
    }
