"""Sections of the report: scores and errors of predictions."""

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

# What a report shows


def sections(
  problem: Problem,
  examples: Sequence[InputExample | ChoiceExample],
  label_ids: np.ndarray,
  logits: np.ndarray,
  num_errors: int = 30,
) -> list[str]:
  """What a report shows of a scored set.

  Args:
    problem: what was learnt.
    examples: the set.
    label_ids: see `score`.
    logits: [A, L].
    num_errors: errors shown, the worst ones.

  Returns:
    Sections of `report`.
  """
  said = classification_scores.probabilities(problem, logits)
  if problem.kind == "regression":
    wrong = np.abs(said[:, 0] - label_ids)
    return [_errors(problem, examples, said, wrong, num_errors)]
  if problem.kind == "multi_label":
    truth = label_ids > 0
    right = (said >= 0.5) == truth
    sure = np.maximum(said, 1 - said)
    rows = [
      {"label": label, **_precision_and_recall(truth[:, i], said[:, i] >= 0.5)}
      for i, label in enumerate(problem.labels)
    ]
    wrong = np.where(right, 0.0, sure).max(axis=1)
    return [
      html_report.table("Labels, at 0.5", rows),
      html_report.calibration(sure.ravel(), right.ravel()),
      _errors(problem, examples, said, wrong, num_errors),
    ]
  matrix = classification_scores.evaluate((), label_ids, logits, problem)[
    "confusion_matrix"
  ]
  right = said.argmax(axis=1) == label_ids
  sure = said.max(axis=1)
  return [
    html_report.confusion_matrix(problem.labels, matrix),
    html_report.calibration(sure, right),
    _errors(problem, examples, said, np.where(right, 0.0, sure), num_errors),
  ]


def _precision_and_recall(truth, said) -> dict[str, float]:
  from sklearn import metrics

  values = metrics.precision_recall_fscore_support(
    truth, said, average="binary", zero_division=0
  )
  names = ("precision", "recall", "f1")
  return dict(zip(names, map(float, values))) | {"texts": int(truth.sum())}


def _errors(problem, examples, said, wrong, num_errors: int) -> str:
  """The examples that are most wrong, the worst first."""
  worst = np.argsort(-wrong, kind="stable")[:num_errors]
  rows = []
  for index in worst[wrong[worst] > 0]:
    example, told = (
      examples[index],
      classification_scores.prediction(problem, said[index]),
    )
    if isinstance(example, ChoiceExample):
      texts = [example.choices[0][0], *(b for _, b in example.choices)]
    else:
      texts = [text for text in (example.text_a, example.text_b) if text]
    rows.append(
      {
        "example": example.guid,
        "is": classification_scores.label_text(example.label),
        "said": classification_scores.label_text(told.label),
        "off by" if problem.kind == "regression" else "probability": float(
          wrong[index]
        ),
        "text": "\n".join(texts),
      }
    )
  return html_report.errors(rows)


def ner_sections(
  sentences: Sequence[Sentence],
  said: Sequence[tuple[Sequence[str], Sequence[float]]],
  results: Mapping[str, float],
  num_errors: int = 30,
) -> list[str]:
  """What a report shows of tagged sentences.

  Args:
    sentences: with their true tags.
    said: the model's tags and their probabilities.
    results: of `evaluate_tags`.
    num_errors: sentences shown, those with the most certain errors.

  Returns:
    Sections of `report`.
  """
  names = ("precision", "recall", "f1", "entities")
  types = [n.removeprefix("eval_f1_") for n in results if "eval_f1_" in n]
  rows = [
    {"type": kind, **{n: results[f"eval_{n}_{kind}"] for n in names}}
    for kind in types
  ]
  sure, right, errors = [], [], []
  for sentence, (tags, probabilities) in zip(sentences, said):
    correct = [a == b for a, b in zip(sentence.tags, tags)]
    sure += probabilities
    right += correct
    wrong = [p for p, is_right in zip(probabilities, correct) if not is_right]
    if wrong:
      errors.append((max(wrong), sentence, tags, probabilities))
  errors.sort(key=lambda error: -error[0])

  def shown(sentence, tags, probabilities):
    found = ner_decoding.extract_entities(sentence, tags, probabilities)
    return "; ".join(f"{one.text} ({one.label})" for one in found) or "none"

  return [
    html_report.table("Entities", rows),
    html_report.calibration(sure, right),
    html_report.errors(
      [
        {
          "sentence": sentence.location,
          "is": shown(sentence, sentence.tags, [1.0] * len(tags)),
          "said": shown(sentence, tags, probabilities),
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
  """What a report shows of the answers in --output_dir.

  Args:
    settings: of the command.
    questions: with the accepted answers.
    num_errors: wrong answers shown, the most certain ones.

  Returns:
    Sections of `report`.
  """
  answers = squad_files.read_json(
    os.path.join(settings.run.output_dir, "predictions.json")
  )
  listed = squad_files.read_json(
    os.path.join(settings.run.output_dir, "nbest_predictions.json")
  )
  score_one = squad_scores.score_v1
  if settings.version_2_with_negative:
    score_one = squad_scores.score_v2
  elif settings.eval_metric == "chinese":
    score_one = squad_scores.score_chinese
  sure, right, errors = [], [], []
  for question in questions:
    said = answers[question.id]
    accepted = [answer.text for answer in question.answers]
    probability = next(
      (n["probability"] for n in listed[question.id] if n["text"] == said), 0.0
    )
    found = score_one(said, accepted)
    sure.append(probability)
    right.append(found.exact == 1)
    if found.f1 < 0.5:
      errors.append(
        {
          "question": question.text,
          "is": " / ".join(dict.fromkeys(accepted)) or "no answer",
          "said": said or "no answer",
          "probability": probability,
          "text": question.context,
        }
      )
  errors.sort(key=lambda error: -error["probability"])
  return [
    html_report.calibration(sure, right),
    html_report.errors(errors[:num_errors]),
  ]
