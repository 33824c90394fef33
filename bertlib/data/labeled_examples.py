"""Labeled examples: their faults, and counts of their labels."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bertlib.cli.absl import logging
from bertlib.cli.errors import some_of


class Labeled(NamedTuple):
  """Texts of an example with their label."""

  # The text, the texts of a pair, or a question and its choices.
  texts: tuple[str, ...]
  # A label, or a tuple of labels; None for scores, which may differ between
  # equal texts.
  label: Any
  location: str  # name or line of the example, for messages


def warn_of_faults(
  train: Sequence[Labeled], dev_sets: Mapping[str, Sequence[Labeled]]
) -> None:
  """Warns of empty texts, contradictions, and texts that two sets share."""
  for name, examples in {"the training set": train, **dev_sets}.items():
    _warn_of_empty_texts(name, examples)
    _warn_of_contradictions(name, examples)
  for name, examples in dev_sets.items():
    _warn_of_overlap(name, examples, train)


def _warn_of_empty_texts(name: str, examples: Sequence[Labeled]) -> None:
  empty = [e for e in examples if not all(text.strip() for text in e.texts)]
  if empty:
    logging.warning(
      "%s: examples with an empty text: %d of %d, the first: %s",
      name,
      len(empty),
      len(examples),
      empty[0].location,
    )


def _warn_of_contradictions(name: str, examples: Sequence[Labeled]) -> None:
  by_texts = collections.defaultdict(dict)
  for example in examples:
    if example.label is not None:
      by_texts[example.texts].setdefault(example.label, example.location)
  several = [labels for labels in by_texts.values() if len(labels) > 1]
  if several:
    logging.warning(
      "%s: texts with different labels: %d, the first: %s",
      name,
      len(several),
      " and ".join([*several[0].values()][:2]),
    )


def _warn_of_overlap(
  name: str, examples: Sequence[Labeled], train: Sequence[Labeled]
) -> None:
  known = {example.texts: example.location for example in train}
  shared = [example for example in examples if example.texts in known]
  if shared:
    logging.warning(
      "%s: examples with a text of the training set: %d of %d, the first: %s,"
      " the text of %s. The metrics include what training has seen",
      name,
      len(shared),
      len(examples),
      shared[0].location,
      known[shared[0].texts],
    )


def check_labels(
  labels: Sequence[str], sets: Mapping[str, Iterable[str]]
) -> None:
  """Logs the labels of each split; warns of those that are missing."""
  for name, example_labels in sets.items():
    counts = collections.Counter(example_labels)
    missing = [label for label in labels if not counts[label]]
    shown = [f"{label} {counts[label]}" for label in labels if counts[label]]
    logging.info("%s has %s", name, some_of(shown) or "none")
    if missing:
      logging.warning("%s has no %s", name, some_of([*map(str, missing)]))
