"""Weight of each label in the training loss (--class_weights)."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from absl import logging

from bertlib.cli.errors import InputError, some_of
from bertlib.data import tables
from bertlib.tasks.classification.classification import (
  ChoiceExample,
  InputExample,
  Problem,
)


def read(
  given: Sequence[str] | None,  # ["balanced"] or "LABEL:WEIGHT" strings
  problem: Problem,
  examples: Sequence[InputExample | ChoiceExample],
) -> list[float] | None:
  """Logged weights, in the order of the labels; None to weight all equally."""
  if not given or not examples:
    return None
  if problem.kind not in ("classification", "multi_label"):
    raise InputError(f"--class_weights: a {problem.kind} has no classes")
  if given == ["balanced"]:
    # All labels contribute equally. With several labels per text, the weight of
    # a label is the ratio of examples without it to examples with it.
    has_several = problem.kind == "multi_label"
    counts = collections.Counter()
    for example in examples:
      counts.update(example.label if has_several else [example.label])
    weights = [
      (len(examples) - counts[label]) / max(counts[label], 1)
      if has_several
      else len(examples) / len(problem.labels) / max(counts[label], 1)
      for label in problem.labels
    ]
  else:
    by_label = dict.fromkeys(problem.labels, 1.0)
    for pair in given:
      label, _, text = pair.rpartition(":")
      weight = tables.parse_number(text)
      if label not in by_label or weight is None or weight < 0:
        raise InputError(
          f"--class_weights={pair}: give LABEL:WEIGHT, where LABEL is one"
          f" of {some_of(problem.labels)} and WEIGHT at least 0; or balanced"
        )
      by_label[label] = weight
    weights = list(by_label.values())
  shown = [f"{label} x{w:.4g}" for label, w in zip(problem.labels, weights)]
  logging.info("Weight of each label in the loss: %s", some_of(shown))
  return weights
