"""Predicted entities from the outputs of a tagger. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable

from bertlib.data import batch_predictor
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.tasks.ner import ner, ner_decoding


class TaggerPredictor(BatchPredictor):
  """Predicts entities of texts."""

  def predict(
    self, texts: Iterable[str]
  ) -> list[list[ner_decoding.EntityPrediction]]:
    """Finds the entities of texts.

    Args:
      texts: texts of any length.

    Returns:
      For each text its entities, in order; see
      `bertlib.tasks.ner.ner_decoding.EntityPrediction`.

    Raises:
      InputError: a text is not a str.
    """
    texts = batch_predictor.validated(texts, batch_predictor.is_text, "a str")
    return self.predict_blocks(texts, self._encode, self._decode)

  def _encode(self, texts):
    """The sentences and windows of texts, and the rows of the windows."""
    sentences = [ner.from_text(text) for text in texts]
    length = self.description["max_seq_length"]
    windows = list(ner.make_windows(sentences, self.tokenizer, length))
    rows = [
      ner.window_record(window, index, length, None)
      for index, window in enumerate(windows)
    ]
    return (sentences, windows), rows

  def _decode(self, encoded, outputs):
    """The entities of each text."""
    sentences, windows = encoded
    predicted = ner_decoding.assign_tags(
      sentences, windows, enumerate(outputs), self.description["labels"]
    )
    return [
      ner_decoding.extract_entities(sentence, *tagged)
      for sentence, tagged in zip(sentences, predicted)
    ]
