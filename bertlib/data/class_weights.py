"""How much each label counts in training."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from absl import logging

from bertlib.data.classification import ChoiceExample, InputExample, Problem
from bertlib.errors import InputError


def read(
  given: Sequence[str] | None,
  problem: Problem,
  examples: Sequence[InputExample | ChoiceExample],
) -> list[float] | None:
  """What labels count in training, as --class_weights has it.

  Balanced, all labels count alike in the training data: a label's weight is the
  number of examples over the number of labels and of examples that have it.
  Where a text has any number of labels, it is the number of those that lack it
  over the number of those that have it.

  Args:
    given: value of the flag.
    problem: what is learnt.
    examples: the training data.

  Returns:
    L weights; None for all alike.

  Raises:
    InputError: a weight is none, or of no label.
  """
  if not given or not examples:
    return None
  if problem.kind not in ("classification", "multi_label"):
    raise InputError(f"--class_weights: a {problem.kind} has no classes")
  if given == ["balanced"]:
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
      try:
        weight = float(text)
      except ValueError:
        weight = -1.0
      if label not in by_label or not 0 <= weight < float("inf"):
        raise InputError(
          f"--class_weights={pair}: give LABEL:WEIGHT, a label of"
          f" {', '.join(problem.labels)} and a number, or balanced"
        )
      by_label[label] = weight
    weights = list(by_label.values())
  shown = (f"{label} x{w:.4g}" for label, w in zip(problem.labels, weights))
  logging.info("Weight of each label in the loss: %s", ", ".join(shown))
  return weights
