"""Predictions of windows to tags and entities of a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.data import (
  ner,
)
from bertlib.data.ner import Sentence

# A trained model from Python


class Found(NamedTuple):
  """An entity in a text.

  Attributes:
    label: its type.
    text: it, as it stands in the text.
    start: its first character.
    end: the character after its last.
    probability: the lowest of its words' tags.
  """

  label: str
  text: str
  start: int
  end: int
  probability: float


def found_in(
  sentence: Sentence, tags: Sequence[str], probabilities: Sequence[float]
) -> list[Found]:
  """The entities that tags say are in a sentence.

  Args:
    sentence: the sentence.
    tags: of its words.
    probabilities: of these tags.

  Returns:
    The entities, in order.
  """
  found = []
  for label, first, last in ner.entities_of(tags):
    start, end = sentence.places[first][0], sentence.places[last - 1][1]
    text = sentence.text[start:end]
    sure = float(min(probabilities[first:last]))
    found.append(Found(label, text, start, end, sure))
  return found


def decide(
  sentences: Sequence[Sentence],
  windows: Sequence[ner.Window],
  rows: Iterable[tuple[int, np.ndarray]],
  labels: Sequence[str],
) -> list[tuple[list[str], list[float]]]:
  """The likeliest tag of each word.

  Args:
    sentences: the sentences.
    windows: of these.
    rows: number and probabilities [S, L] of each window.
    labels: the tags.

  Returns:
    For each sentence its tags and their probabilities. A word that no window
    decides is "O", for certain.
  """
  said = [(["O"] * len(s.words), [1.0] * len(s.words)) for s in sentences]
  for index, probabilities in rows:
    window = windows[index]
    tags, sure = said[window.sentence]
    for place, word in enumerate(window.words):
      if word >= 0:
        best = int(probabilities[place].argmax())
        tags[word] = labels[best]
        sure[word] = float(probabilities[place, best])
  return said
