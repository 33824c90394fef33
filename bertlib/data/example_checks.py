"""Checks of labeled examples, and a dev set drawn from a table."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.absl import logging


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


def draw_dev_set(
  examples: Sequence[Labeled], fraction: float
) -> tuple[list[int], list[int]]:
  """Row numbers of a training and a dev set, in order, stratified by label."""
  counts = collections.Counter(
    label for example in examples for label in _labels(example)
  )
  strata = collections.defaultdict(dict)
  places = {}
  for index, example in enumerate(examples):
    # Of several labels of an example the rarest counts.
    rarest = min(_labels(example), key=counts.get, default=None)
    # Equal texts stay together, also where their labels differ.
    stratum = places.setdefault(example.texts, rarest)
    strata[stratum].setdefault(example.texts, []).append(index)
  # A fixed seed: the set depends on table and fraction alone, so that runs with
  # other seeds are evaluated on the same rows.
  rng = np.random.RandomState(0)
  dev = set()
  for groups in map(list, map(dict.values, strata.values())):
    wanted = round(fraction * sum(map(len, groups)))
    # One example of a rare label is evaluated, one at least is trained on.
    wanted = min(max(wanted, 1), len(groups) - 1)
    for group in rng.permutation(len(groups)):
      if len(groups[group]) <= wanted:
        dev.update(groups[group])
        wanted -= len(groups[group])
  return (
    [index for index in range(len(examples)) if index not in dev],
    sorted(dev),
  )


def _labels(example: Labeled) -> Sequence[Any]:
  return example.label if isinstance(example.label, tuple) else [example.label]
