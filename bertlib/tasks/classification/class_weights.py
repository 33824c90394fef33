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
  given: Sequence[str] | None,
  problem: Problem,
  examples: Sequence[InputExample | ChoiceExample],
) -> list[float] | None:
  """Computes the weights that --class_weights asks for, and logs them.

  "balanced" makes all labels contribute equally. For single-label
  classification the weight of a label is num_examples / (num_labels *
  examples with the label); for multi-label classification it is the number of
  examples without the label divided by the number with it.

  Args:
    given: value of the flag: ["balanced"] or "LABEL:WEIGHT" strings.
    problem: the task and its labels.
    examples: the training set.

  Returns:
    L weights in the order of the labels; None to weight all labels equally.

  Raises:
    InputError: the task has no classes, or a label or weight is not valid.
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
