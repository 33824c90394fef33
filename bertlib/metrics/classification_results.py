"""Predictions and thresholds of a run of run_classifier.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bertlib import app
from bertlib.data.classification import ChoiceExample, InputExample, Problem
from bertlib.files import atomic_write
from bertlib.metrics import classification_scores
from bertlib.metrics.classification_scores import Prediction, prediction


def tune_thresholds(
  problem: Problem, label_ids: np.ndarray, logits: np.ndarray
) -> tuple[dict[str, float], dict[str, Any]]:
  """Finds the threshold of each label that gives the best F1.

  Args:
    problem: what was learnt.
    label_ids: [A, L], 1 for each label that a text has.
    logits: [A, L].

  Returns:
    The thresholds by label, and further results: the scores with these
    thresholds, on the set that they are from, and the thresholds as text.
  """
  said = classification_scores.probabilities(problem, logits)
  thresholds = classification_scores.best_thresholds(label_ids, said)
  results: dict[str, Any] = {}
  for name in ("micro_f1", "macro_f1"):
    value = classification_scores.METRICS[name](
      label_ids > 0, said >= thresholds
    )
    results[f"eval_{name}_tuned"] = np.float32(value)
  by_label = dict(zip(problem.labels, map(float, thresholds)))
  results["thresholds"] = json.dumps(by_label, ensure_ascii=False)
  return by_label, results


def label_columns(said: Prediction) -> list[str]:
  """The label of a prediction and its probability; for regression the number.

  Where a text has any number of labels, these have commas between, and so have
  their probabilities.
  """
  if not said.probabilities:
    return [str(said.label)]
  labels = said.label if isinstance(said.label, list) else [said.label]
  shown = (f"{said.probabilities[label]:.3f}" for label in labels)
  return [",".join(labels), ",".join(shown)]


def write_predictions(
  path: str,
  examples: Sequence[InputExample | ChoiceExample],
  rows: Iterable[np.ndarray],
  problem: Problem,
  thresholds: Mapping[str, float] | None,
  show: bool = False,
) -> None:
  """Writes what the model says of each example, as it says it.

  Args:
    path: of both files without their endings: `.tsv` gets the probabilities
      alone, `.jsonl` guid, label and probabilities by label.
    examples: the examples.
    rows: the model's output for each, and maybe for padding after them.
    problem: what was learnt.
    thresholds: see `classification_scores.prediction`.
    show: whether label, its probability and the text also go to standard
      output.
  """
  with (
    atomic_write(path + ".tsv") as table,
    atomic_write(path + ".jsonl") as lines,
  ):
    for example, row in zip(examples, rows):
      table.write("\t".join(str(value) for value in row) + "\n")
      said = prediction(problem, row, thresholds)
      line = {"guid": example.guid, **said._asdict()}
      lines.write(json.dumps(line, ensure_ascii=False) + "\n")
      if show:
        texts = filter(None, [example.text_a, example.text_b])
        app.show(*label_columns(said), *texts)
  logging.info("%d predictions in %s.tsv and .jsonl", len(examples), path)
