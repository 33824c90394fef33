"""Sections of the report: metrics, calibration and worst errors per task."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from bertlib.data import squad_files
from bertlib.data.classification import ChoiceExample, InputExample, Problem
from bertlib.data.ner import Sentence
from bertlib.metrics import classification_scores, ner_decoding, squad_scores
from bertlib.reporting import html_report
from bertlib.settings.squad import SquadSettings


def classification_sections(
  problem: Problem,
  examples: Sequence[InputExample | ChoiceExample],
  label_ids: np.ndarray,
  logits: np.ndarray,
  num_errors: int = 30,
) -> list[str]:
  """Sections on the predictions of a classifier.

  Args:
    problem: labels and kind of the task.
    examples: the evaluated examples.
    label_ids: gold labels, see `classification_scores.evaluate`.
    logits: float [num_examples, num_labels].
    num_errors: number of worst errors to show.

  Returns:
    Sections for `html_report.write`.
  """
  predicted = classification_scores.probabilities(problem, logits)
  if problem.kind == "regression":
    error = np.abs(predicted[:, 0] - label_ids)
    return [_errors(problem, examples, predicted, error, num_errors)]
  if problem.kind == "multi_label":
    gold = label_ids > 0
    correct = (predicted >= 0.5) == gold
    confidence = np.maximum(predicted, 1 - predicted)
    rows = [
      {
        "label": label,
        **_precision_and_recall(gold[:, i], predicted[:, i] >= 0.5),
      }
      for i, label in enumerate(problem.labels)
    ]
    error = np.where(correct, 0.0, confidence).max(axis=1)
    return [
      html_report.table("Labels (threshold 0.5)", rows),
      html_report.calibration(confidence.ravel(), correct.ravel()),
      _errors(problem, examples, predicted, error, num_errors),
    ]
  matrix = classification_scores.evaluate((), label_ids, logits, problem)[
    "confusion_matrix"
  ]
  correct = predicted.argmax(axis=1) == label_ids
  confidence = predicted.max(axis=1)
  return [
    html_report.confusion_matrix(problem.labels, matrix),
    html_report.calibration(confidence, correct),
    _errors(
      problem,
      examples,
      predicted,
      np.where(correct, 0.0, confidence),
      num_errors,
    ),
  ]


def _precision_and_recall(gold, predicted) -> dict[str, float]:
  from sklearn import metrics

  values = metrics.precision_recall_fscore_support(
    gold, predicted, average="binary", zero_division=0
  )
  names = ("precision", "recall", "f1")
  return dict(zip(names, map(float, values))) | {"texts": int(gold.sum())}


def _errors(problem, examples, predicted, error, num_errors: int) -> str:
  """Section on the examples with the largest errors."""
  worst = np.argsort(-error, kind="stable")[:num_errors]
  rows = []
  for index in worst[error[worst] > 0]:
    example = examples[index]
    prediction = classification_scores.prediction(problem, predicted[index])
    if isinstance(example, ChoiceExample):
      texts = [example.choices[0][0], *(b for _, b in example.choices)]
    else:
      texts = [text for text in (example.text_a, example.text_b) if text]
    rows.append(
      {
        "example": example.guid,
        "gold": classification_scores.label_text(example.label),
        "predicted": classification_scores.label_text(prediction.label),
        "error" if problem.kind == "regression" else "probability": float(
          error[index]
        ),
        "text": "\n".join(texts),
      }
    )
  return html_report.errors(rows)


def ner_sections(
  sentences: Sequence[Sentence],
  predicted: Sequence[tuple[Sequence[str], Sequence[float]]],
  results: Mapping[str, float],
  num_errors: int = 30,
) -> list[str]:
  """Sections on the predictions of a tagger.

  Args:
    sentences: sentences with gold tags.
    predicted: predicted tags and their probabilities, by sentence.
    results: result of `ner_scores.evaluate_tags`.
    num_errors: number of sentences with the most confident errors to show.

  Returns:
    Sections for `html_report.write`.
  """
  names = ("precision", "recall", "f1", "entities")
  types = [n.removeprefix("eval_f1_") for n in results if "eval_f1_" in n]
  rows = [
    {"type": kind, **{n: results[f"eval_{n}_{kind}"] for n in names}}
    for kind in types
  ]
  confidences, correct, errors = [], [], []
  for sentence, (tags, probabilities) in zip(sentences, predicted):
    matches = [a == b for a, b in zip(sentence.tags, tags)]
    confidences += probabilities
    correct += matches
    wrong = [p for p, is_match in zip(probabilities, matches) if not is_match]
    if wrong:
      errors.append((max(wrong), sentence, tags, probabilities))
  errors.sort(key=lambda error: -error[0])

  def entities(sentence, tags, probabilities):
    found = ner_decoding.extract_entities(sentence, tags, probabilities)
    return "; ".join(f"{e.text} ({e.label})" for e in found) or "none"

  return [
    html_report.table("Entities", rows),
    html_report.calibration(confidences, correct),
    html_report.errors(
      [
        {
          "sentence": sentence.location,
          "gold": entities(sentence, sentence.tags, [1.0] * len(tags)),
          "predicted": entities(sentence, tags, probabilities),
          "probability": probability,
          "text": sentence.text,
        }
        for probability, sentence, tags, probabilities in errors[:num_errors]
      ]
    ),
  ]


def squad_sections(
  settings: SquadSettings,
  questions: Sequence[squad_files.Question],
  num_errors: int = 30,
) -> list[str]:
  """Sections on the predictions and most confident errors in --output_dir."""
  predictions = squad_files.read_json(
    os.path.join(settings.run.output_dir, "predictions.json")
  )
  nbest = squad_files.read_json(
    os.path.join(settings.run.output_dir, "nbest_predictions.json")
  )
  score_one = squad_scores.score_v1
  if settings.version_2_with_negative:
    score_one = squad_scores.score_v2
  elif settings.eval_metric == "chinese":
    score_one = squad_scores.score_chinese
  confidences, correct, errors = [], [], []
  for question in questions:
    predicted = predictions[question.id]
    gold = [answer.text for answer in question.answers]
    probability = next(
      (
        answer["probability"]
        for answer in nbest[question.id]
        if answer["text"] == predicted
      ),
      0.0,
    )
    score = score_one(predicted, gold)
    confidences.append(probability)
    correct.append(score.exact == 1)
    if score.f1 < 0.5:
      errors.append(
        {
          "question": question.text,
          "gold": " / ".join(dict.fromkeys(gold)) or "no answer",
          "predicted": predicted or "no answer",
          "probability": probability,
          "text": question.context,
        }
      )
  errors.sort(key=lambda error: -error["probability"])
  return [
    html_report.calibration(confidences, correct),
    html_report.errors(errors[:num_errors]),
  ]
