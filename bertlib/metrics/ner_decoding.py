"""Predictions of windows to tags and entities of a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bertlib.data import ner
from bertlib.data.ner import Sentence
from bertlib.files import atomic_write
from bertlib.metrics import ner_scores

# A trained model from Python


class EntityPrediction(NamedTuple):
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


def extract_entities(
  sentence: Sentence, tags: Sequence[str], probabilities: Sequence[float]
) -> list[EntityPrediction]:
  """The entities that tags say are in a sentence.

  Args:
    sentence: the sentence.
    tags: of its words.
    probabilities: of these tags.

  Returns:
    The entities, in order.
  """
  found = []
  for label, first, last in ner.tags_to_entities(tags):
    start, end = sentence.offsets[first][0], sentence.offsets[last - 1][1]
    text = sentence.text[start:end]
    sure = float(min(probabilities[first:last]))
    found.append(EntityPrediction(label, text, start, end, sure))
  return found


def assign_tags(
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


def evaluate_tags(
  sentences: Sequence[Sentence],
  said: Sequence[tuple[Sequence[str], Sequence[float]]],
) -> dict[str, float]:
  """The results of tagged sentences, as their file has them; see `score`."""
  scores = ner_scores.entity_metrics(
    [s.tags for s in sentences], [tags for tags, _ in said]
  )
  return {f"eval_{name}": value for name, value in scores.items()}


def tag_texts(tagged: Iterable[Sequence[str]]) -> list[str]:
  """The tags of each sentence as a text, by which a collapse is noticed."""
  return [
    " ".join(tags) if set(tags) - {"O"} else "no entity" for tags in tagged
  ]


def write_predictions(
  path: str,
  sentences: Sequence[Sentence],
  said: Sequence[tuple[Sequence[str], Sequence[float]]],
) -> None:
  """Writes the tags as columns, and the entities as JSON lines.

  Args:
    path: of both files without their endings: `.conll` gets a word and its tag
      a line, `.jsonl` a sentence with its entities, places in characters.
    sentences: the sentences.
    said: of each its tags and their probabilities.
  """
  with (
    atomic_write(path + ".conll") as table,
    atomic_write(path + ".jsonl") as lines,
  ):
    for sentence, (tags, probabilities) in zip(sentences, said):
      for word, word_tag in zip(sentence.words, tags):
        table.write(f"{word}\t{word_tag}\n")
      table.write("\n")
      line: Mapping[str, Any] = {
        "text": sentence.text,
        "entities": [
          found._asdict()
          for found in extract_entities(sentence, tags, probabilities)
        ],
      }
      lines.write(json.dumps(line, ensure_ascii=False) + "\n")
  logging.info("%d sentences tagged in %s.conll and .jsonl", len(said), path)
