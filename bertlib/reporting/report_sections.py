"""Sections of the report: metrics, calibration and worst errors per task."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.data import beir, squad_files
from bertlib.data.classification import ChoiceExample, InputExample, Problem
from bertlib.data.embedding_examples import Example
from bertlib.data.ner import Sentence
from bertlib.metrics import classification_scores, ner_decoding, squad_scores
from bertlib.metrics.embedding_evaluation import Evaluation
from bertlib.reporting import html_report
from bertlib.settings.squad import SquadSettings
from bertlib.training import embedding_inputs


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


def embedding_sections(
  dev_set: embedding_inputs.DevSet | None,
  evaluation: Evaluation,
  num_errors: int = 30,
) -> list[str]:
  """Sections on sentence embeddings.

  Args:
    dev_set: the dev set; None without one.
    evaluation: its evaluation, empty without one.
    num_errors: number of worst errors to show.

  Returns:
    Sections for `html_report.write`; none for labeled texts.
  """
  if dev_set and evaluation.rankings:
    return [_search_errors(dev_set.retrieval, evaluation.rankings, num_errors)]
  if dev_set is None or evaluation.cosines is None:
    return []
  find_errors = _rank_errors
  if dev_set.kind == "labeled_pairs":
    find_errors = _order_errors
  errors = find_errors(dev_set.examples, evaluation.cosines)
  worst = np.argsort(-errors, kind="stable")[:num_errors]
  rows = []
  for index in worst[errors[worst] > 0]:
    example = dev_set.examples[index]
    rows.append(
      {
        "gold": example.label if example.score is None else example.score,
        "cosine": float(evaluation.cosines[index]),
        "error": float(errors[index]),
        "text": "\n".join(example.texts),
      }
    )
  return [html_report.errors(rows)]


def _rank_errors(
  examples: Sequence[Example], cosines: np.ndarray
) -> np.ndarray:
  """Differences between ranks by cosine and by score, from 0 to 1: [N]."""
  from scipy import stats

  scores = [example.score for example in examples]
  difference = stats.rankdata(cosines) - stats.rankdata(scores)
  return np.abs(difference) / max(len(examples) - 1, 1)


def _order_errors(
  examples: Sequence[Example], cosines: np.ndarray
) -> np.ndarray:
  """Share of the pairs with the other label on the wrong side: [N].

  Above a pair with label 1 there should be no cosine of one with label 0, and
  below the latter none of the former.
  """
  is_match = np.array([example.label == "1" for example in examples])
  matches, others = np.sort(cosines[is_match]), np.sort(cosines[~is_match])
  num_above = len(others) - np.searchsorted(others, cosines, "right")
  num_below = np.searchsorted(matches, cosines, "left")
  return np.where(
    is_match,
    num_above / max(len(others), 1),
    num_below / max(len(matches), 1),
  )


def _search_errors(
  retrieval: beir.Retrieval,
  rankings: Mapping[str, Sequence[str]],
  num_errors: int,
) -> str:
  """Section on the queries whose right document is ranked lowest."""
  lowest = []
  for query, found in rankings.items():
    relevant = retrieval.relevance[query]
    rank, right = next(
      ((rank, id_) for rank, id_ in enumerate(found, 1) if id_ in relevant),
      (len(found) + 1, next(iter(relevant))),
    )
    if rank > 1 and found:
      lowest.append((rank, query, found[0], right))
  lowest = sorted(lowest, key=lambda error: -error[0])[:num_errors]
  needed = {id_ for _, _, *ids in lowest for id_ in ids}
  texts = {id_: text for id_, text in retrieval.corpus if id_ in needed}
  rows: list[dict[str, Any]] = [
    {
      "rank": rank if rank <= len(rankings[query]) else f"over {rank - 1}",
      "query": retrieval.queries[query],
      "found first": texts[found],
      "right": texts[right],
    }
    for rank, query, found, right in lowest
  ]
  return html_report.errors(rows)
