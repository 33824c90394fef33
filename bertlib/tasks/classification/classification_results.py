"""Prediction files and tuned thresholds of classification runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from bertlib.cli import terminal
from bertlib.io import json_files
from bertlib.io.files import atomic_write
from bertlib.io.result_files import DevPrediction
from bertlib.tasks.classification import classification_scores
from bertlib.tasks.classification.classification import (
  ChoiceExample,
  InputExample,
  Problem,
)
from bertlib.tasks.classification.classification_scores import (
  Prediction,
  predicted_label,
  prediction,
)


def tune_thresholds(
  # Both arrays are [examples, labels].
  problem: Problem,
  label_ids: np.ndarray,
  logits: np.ndarray,
) -> tuple[dict[str, float], dict[str, Any]]:
  """Thresholds by label with the best F1, and `eval_results.txt` of these."""
  probs = classification_scores.probabilities(problem, logits)
  thresholds = classification_scores.best_thresholds(label_ids, probs)
  results: dict[str, Any] = {}
  # On the examples that the thresholds were tuned on.
  for name in ("micro_f1", "macro_f1"):
    value = classification_scores.METRICS[name](
      label_ids > 0, probs >= thresholds
    )
    results[f"eval_{name}_tuned"] = np.float32(value)
  by_label = dict(zip(problem.labels, map(float, thresholds)))
  results["thresholds"] = json_files.dumps(by_label, ensure_ascii=False)
  return by_label, results


def dev_predictions(
  problem: Problem,
  examples: Iterable[InputExample | ChoiceExample],
  rows: Iterable[np.ndarray],
) -> list[DevPrediction]:
  """Gold and predicted labels of a dev set; thresholds of labels are 0.5."""
  return [
    DevPrediction(
      example.guid,
      float(example.label) if problem.kind == "regression" else example.label,
      predicted_label(problem, row),
    )
    for example, row in zip(examples, rows)
  ]


def label_columns(predicted: Prediction) -> list[str]:
  """Labels and probabilities, comma-separated; the value of a regression."""
  if not predicted.probabilities:
    return [str(predicted.label)]
  label = predicted.label
  labels = label if isinstance(label, list) else [label]
  probs = (f"{predicted.probabilities[label]:.3f}" for label in labels)
  return [",".join(labels), ",".join(probs)]


def write_predictions(
  path: str,  # without the endings
  examples: Sequence[InputExample | ChoiceExample],
  rows: Iterable[np.ndarray],  # output of the model; padding may follow
  problem: Problem,
  thresholds: Mapping[str, float] | None,
  show: bool = False,  # prints label, probability and text too
  with_ids: bool = False,  # whether a line of `.tsv` begins with the guid
) -> None:
  """Writes predictions to PATH.tsv and .jsonl, as they are computed."""
  with (
    atomic_write(path + ".tsv") as table,
    atomic_write(path + ".jsonl") as lines,
  ):
    for example, row in zip(examples, rows):
      columns = [example.guid] * with_ids + [str(value) for value in row]
      table.write("\t".join(columns) + "\n")
      predicted = prediction(problem, row, thresholds)
      line = {"guid": example.guid, **predicted._asdict()}
      lines.write(json_files.dumps(line, ensure_ascii=False) + "\n")
      if show:
        texts = filter(None, [example.text_a, example.text_b])
        terminal.show(*label_columns(predicted), *texts)
  logging.info("%d predictions in %s.tsv and .jsonl", len(examples), path)
