"""Predicted labels from the outputs of a classifier. Imports no TensorFlow."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.cli.errors import InputError, some_of
from bertlib.cli.ranges import FRACTION
from bertlib.data import batch_predictor, model_inputs
from bertlib.data.batch_predictor import BatchPredictor
from bertlib.tasks.classification import (
  classification,
  classification_scores,
)
from bertlib.tasks.classification.classification import Problem
from bertlib.tasks.classification.classification_scores import Prediction


def _are_choices(value: Any) -> bool:
  return batch_predictor.is_list(value) and all(
    map(batch_predictor.is_text_or_pair, value)
  )


class ClassifierPredictor(BatchPredictor):
  """Predicts labels of texts."""

  @property
  def labels(self) -> list[str]:
    """The label set; empty for regression."""
    return self.description["labels"]

  @property
  def problem(self) -> Problem:
    """The task type and label set."""
    return classification.problem_from_description(self.description)

  def predict(
    self,
    texts: Iterable[str | tuple[str, str] | Sequence[tuple[str, str]]],
    thresholds: Mapping[str, float] | None = None,
  ) -> list[Prediction]:
    """Predicts labels.

    Args:
      texts: each a text, or a pair of texts for tasks on pairs, or a list with
        a pair for each choice.
      thresholds: lowest probability of a label that is predicted, by label, for
        a multi-label model; labels without one have the model's, which
        evaluation tunes, or 0.5.

    Returns:
      A prediction for each, in order; see
      `bertlib.tasks.classification.classification_scores.Prediction`.

    Raises:
      InputError: a text is of another type, a question has another number of
        choices than the model, or a threshold is not valid.
    """
    decode = functools.partial(self._decode, self._thresholds(thresholds or {}))
    if self.problem.kind == "multiple_choice":
      texts = batch_predictor.validated(
        texts, _are_choices, "a list with a pair of str for each choice"
      )
      texts = map(self._with_all_choices, itertools.count(), texts)
    else:
      texts = batch_predictor.validated(
        texts, batch_predictor.is_text_or_pair, "a str, or a pair of str"
      )
    return self.predict_blocks(texts, self._encode, decode)

  def _thresholds(self, given: Mapping[str, float]) -> dict[str, float]:
    """The thresholds of the model, replaced by given ones, after a check."""
    labels = self.labels if self.problem.kind == "multi_label" else []
    for label, threshold in given.items():
      if label not in labels or threshold not in FRACTION:
        raise InputError(
          f"thresholds: {label!r} has {threshold!r}. Give a number {FRACTION}"
          f" for labels of a multi-label model: {some_of(labels) or 'none'}"
        )
    return {**self.description.get("thresholds", {}), **given}

  def _with_all_choices(self, index: int, choices: Sequence[tuple[str, str]]):
    """The choices of the question `texts[index]`, as many as the model has."""
    if len(choices) != self.problem.num_labels:
      raise InputError(
        f"texts[{index}]: has {len(choices)} choices, but the model has"
        f" {self.problem.num_labels}. Give as many"
      )
    return choices

  def _encode(self, texts):
    """The number of texts, and the rows of all their pairs."""
    pairs = texts
    if self.problem.kind == "multiple_choice":
      pairs = itertools.chain.from_iterable(texts)
    length = self.description["max_seq_length"]
    rows = [
      model_inputs.encode_pair(
        self.tokenizer,
        *((pair, None) if isinstance(pair, str) else pair),
        length,
      )._asdict()
      for pair in pairs
    ]
    return len(texts), rows

  def _decode(
    self, thresholds: Mapping[str, float], num_texts: int, outputs
  ) -> Iterator[Prediction]:
    """The predictions of a block."""
    problem = self.problem
    if problem.kind == "multiple_choice":
      logits = np.reshape(outputs, [num_texts, problem.num_labels])
      outputs = classification_scores.probabilities(problem, logits)
    for output in outputs:
      yield classification_scores.prediction(problem, output, thresholds)
