"""Tags and entities from the outputs of a tagger. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.absl import logging
from bertlib.data import batch_predictor
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.io import json_files, text_files
from bertlib.io.files import atomic_write
from bertlib.tasks.ner import ner
from bertlib.tasks.ner.ner import Sentence

# Tags of a sentence, one per word, and their probabilities.
Tagged = tuple[Sequence[str], Sequence[float]]


class EntityPrediction(NamedTuple):
  """A predicted entity.

  Attributes:
    label: type of the entity, such as PER.
    text: the entity, `text[start:end]` of the given text.
    start: index of its first character in the text.
    end: index after its last character.
    probability: minimum over its words of the probability of the word's tag.
  """

  label: str
  text: str
  start: int
  end: int
  probability: float


def extract_entities(
  sentence: Sentence, tags: Sequence[str], probabilities: Sequence[float]
) -> list[EntityPrediction]:
  """Converts the tags of a sentence, one per word, to entities, in order."""
  entities = []
  for label, first, last in ner.tags_to_entities(tags):
    start, end = sentence.offsets[first][0], sentence.offsets[last - 1][1]
    text = sentence.text[start:end]
    probability = float(min(probabilities[first:last]))
    entities.append(EntityPrediction(label, text, start, end, probability))
  return entities


def assign_tags(
  sentences: Sequence[Sentence],
  windows: Sequence[ner.Window],
  # Index and probabilities [S, labels] of each window.
  rows: Iterable[tuple[int, np.ndarray]],
  labels: Sequence[str],
) -> list[Tagged]:
  """Most probable tag of each word and its probability, by sentence."""
  # A word that is in no window stays "O", with probability 1.
  predicted = [(["O"] * len(s.words), [1.0] * len(s.words)) for s in sentences]
  for index, probabilities in rows:
    window = windows[index]
    tags, tag_probabilities = predicted[window.sentence]
    for position, word in enumerate(window.words):
      if word >= 0:
        best = int(probabilities[position].argmax())
        tags[word] = labels[best]
        tag_probabilities[word] = float(probabilities[position, best])
  return predicted


def write_predictions(
  path: str,  # without the endings
  sentences: Sequence[Sentence],
  predicted: Sequence[Tagged],
) -> None:
  """Writes PATH.conll with a tag per word, and PATH.jsonl with entities."""
  with (
    atomic_write(path + ".conll") as table,
    atomic_write(path + ".jsonl") as lines,
  ):
    for sentence, (tags, probabilities) in zip(sentences, predicted):
      for word, word_tag in zip(sentence.words, tags):
        table.write(text_files.tsv_line([word, word_tag]))
      table.write("\n")
      line: Mapping[str, Any] = {
        "text": sentence.text,
        "entities": [
          entity._asdict()
          for entity in extract_entities(sentence, tags, probabilities)
        ],
      }
      lines.write(json_files.dumps(line, ensure_ascii=False) + "\n")
  logging.info(
    "%d tagged sentences in %s.conll and .jsonl", len(predicted), path
  )


class TaggerPredictor(BatchPredictor):
  """Predicts entities of texts."""

  def predict(self, texts: Iterable[str]) -> list[list[EntityPrediction]]:
    """Finds the entities of texts.

    Args:
      texts: texts of any length.

    Returns:
      For each text its entities, in order.

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
    rows = ner.window_records(sentences, windows, length)
    return (sentences, windows), rows

  def _decode(self, encoded, outputs):
    """The entities of each text."""
    sentences, windows = encoded
    predicted = assign_tags(
      sentences, windows, enumerate(outputs), self.description["labels"]
    )
    return [
      extract_entities(sentence, *tagged)
      for sentence, tagged in zip(sentences, predicted)
    ]
