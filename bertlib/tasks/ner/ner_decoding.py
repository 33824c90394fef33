"""Tags and entities from the outputs of a tagger. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.absl import logging
from bertlib.data import batch_predictor
from bertlib.data.batch_predictor import BatchPredictor, FileFormat
from bertlib.tasks.ner import ner, ner_files
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
  outputs: Iterable[np.ndarray],  # probabilities [S, labels] of each window
  labels: Sequence[str],
) -> list[Tagged]:
  """Most probable tag of each word and its probability, by sentence."""
  # A word that is in no window stays "O", with probability 1.
  predicted = [(["O"] * len(s.words), [1.0] * len(s.words)) for s in sentences]
  for window, probabilities in zip(windows, outputs):
    tags, tag_probabilities = predicted[window.sentence]
    for position, word in enumerate(window.words):
      if word >= 0:
        best = int(probabilities[position].argmax())
        tags[word] = labels[best]
        tag_probabilities[word] = float(probabilities[position, best])
  return predicted


def _entity_line(sentence: Sentence, tagged: Tagged) -> bytes:
  """A line of JSON with the entities of a sentence."""
  entities = extract_entities(sentence, *tagged)
  return batch_predictor.json_line(
    {
      "text": sentence.text,
      "entities": [entity._asdict() for entity in entities],
    }
  )


def _tag_lines(sentence: Sentence, tagged: Tagged) -> bytes:
  """A line for each word with its tag, and a blank one."""
  rows = map(batch_predictor.tsv_line, zip(sentence.words, tagged[0]))
  return b"".join([*rows, b"\n"])


# By the endings of files of predictions.
FORMATS = {".jsonl": FileFormat(_entity_line), ".conll": FileFormat(_tag_lines)}


def write_predictions(
  path: str,  # without the endings
  sentences: Sequence[Sentence],
  predicted: Sequence[Tagged],
) -> None:
  """Writes PATH.conll with a tag per word, and PATH.jsonl with entities."""
  batch_predictor.write_files(path, FORMATS, sentences, predicted)
  logging.info(
    "%d tagged sentences in %s.conll and .jsonl", len(predicted), path
  )


class TaggerPredictor(BatchPredictor):
  """Predicts entities of texts."""

  def predict(
    self, texts: Iterable[str | Sequence[str]]
  ) -> list[list[EntityPrediction]]:
    """Finds the entities of texts.

    Args:
      texts: texts of any length, each a str, or a list of its words: then its
        text is the words, joined by spaces.

    Returns:
      For each text its entities, in order.

    Raises:
      InputError: a text is neither a str nor a list of words.
    """
    texts = batch_predictor.validated(
      texts, _is_text_or_words, "a str, or a list of words"
    )
    sentences = map(_sentence, texts)
    return self.predict_blocks(sentences, self._encode, self._decode)

  def read_file(self, settings, bad):
    """See base class."""
    columns = ner_files.columns_of(settings, needs_tags=False)
    sentences = ner_files.stream_sentences(
      settings.predict_file, columns, settings.text.codec
    )
    # A location does not change an answer.
    return (sentence._replace(location="") for sentence in sentences)

  def answer_blocks(self, sets):
    """See base class; an answer is `Tagged`."""
    return self.map_blocks(sets, self._encode, self._tags)

  def file_formats(self, examples):
    """See base class."""
    return FORMATS

  def _encode(self, sentences: Sequence[Sentence]):
    """The sentences and their windows, and the rows of the windows."""
    length = self.description["max_seq_length"]
    windows = list(ner.make_windows(sentences, self.tokenizer, length))
    rows = ner.window_records(sentences, windows, length)
    return (sentences, windows), rows

  def _decode(self, encoded, outputs):
    """The entities of each text."""
    return [
      extract_entities(sentence, *tagged)
      for sentence, tagged in zip(encoded[0], self._tags(encoded, outputs))
    ]

  def _tags(self, encoded, outputs) -> list[Tagged]:
    """The tags of each sentence."""
    return assign_tags(*encoded, outputs, self.description["labels"])


def _is_text_or_words(value: Any) -> bool:
  if batch_predictor.is_list(value):
    return all(map(batch_predictor.is_text, value))
  return batch_predictor.is_text(value)


def _sentence(text: str | Sequence[str]) -> Sentence:
  """The sentence of a text, or of given words."""
  if isinstance(text, str):
    return ner.from_text(text)
  return ner.from_words([*text], None, "")
