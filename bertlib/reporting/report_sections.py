"""Sections of the report: metrics, calibration and worst errors per task."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.errors import some_of
from bertlib.reporting import html_report, report_page
from bertlib.settings.squad import SquadSettings
from bertlib.tasks.classification import classification_scores
from bertlib.tasks.classification.classification import (
  ChoiceExample,
  InputExample,
  Problem,
)
from bertlib.tasks.embeddings import beir, embedding_inputs, similarity_scores
from bertlib.tasks.embeddings.embedding_evaluation import Evaluation
from bertlib.tasks.embeddings.embedding_examples import Example
from bertlib.tasks.ner import ner_decoding
from bertlib.tasks.ner.ner import Sentence
from bertlib.tasks.squad import squad_files, squad_scores


def classification_sections(
  problem: Problem,
  examples: Sequence[InputExample | ChoiceExample],
  label_ids: np.ndarray,
  logits: np.ndarray,
  num_errors: int = 30,
  thresholds: Mapping[str, float] | None = None,
) -> list[str]:
  """Sections on the predictions of a classifier.

  Args:
    problem: labels and kind of the task.
    examples: the evaluated examples.
    label_ids: gold labels, see `classification_scores.evaluate`.
    logits: float [num_examples, num_labels].
    num_errors: number of worst errors to show.
    thresholds: tuned thresholds by label, for a multi-label problem.

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
    error = np.where(correct, 0.0, confidence).max(axis=1)
    tables = [_label_table("Labels (threshold 0.5)", problem, gold, predicted)]
    if thresholds:
      title = "Labels (tuned thresholds)"
      tables.append(_label_table(title, problem, gold, predicted, thresholds))
    return [
      *tables,
      html_report.calibration(confidence.ravel(), correct.ravel()),
      _errors(problem, examples, predicted, error, num_errors),
    ]
  predicted_ids = predicted.argmax(axis=1)
  correct = predicted_ids == label_ids
  confidence = predicted.max(axis=1)
  return [
    html_report.confusion_matrix(problem.labels, label_ids, predicted_ids),
    html_report.calibration(confidence, correct),
    _errors(
      problem,
      examples,
      predicted,
      np.where(correct, 0.0, confidence),
      num_errors,
    ),
  ]


def _label_table(
  title: str,
  problem: Problem,
  gold: np.ndarray,
  predicted: np.ndarray,
  thresholds: Mapping[str, float] | None = None,
) -> str:
  """Section with the metrics of each label of a multi-label problem."""
  rows = []
  shown, which = html_report.shown_labels(gold.sum(axis=0))
  for index in shown:
    label = problem.labels[index]
    row: dict[str, Any] = {"label": label}
    threshold = 0.5
    if thresholds:
      threshold = row["threshold"] = thresholds[label]
    is_predicted = predicted[:, index] >= threshold
    rows.append(row | _precision_and_recall(gold[:, index], is_predicted))
  note = f"{which}." if len(shown) < problem.num_labels else ""
  return html_report.table(title, rows, note)


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
    label = classification_scores.predicted_label(problem, predicted[index])
    if isinstance(example, ChoiceExample):
      texts = [example.choices[0][0], *(b for _, b in example.choices)]
    else:
      texts = [text for text in (example.text_a, example.text_b) if text]
    rows.append(
      {
        "example": example.guid,
        "gold": _label_text(example.label),
        "predicted": _label_text(label),
        "error" if problem.kind == "regression" else "probability": float(
          error[index]
        ),
        "text": "\n".join(texts),
      }
    )
  return html_report.errors(rows)


def _label_text(label: str | float | Sequence[str]) -> str:
  """Text of a label, or of the first ones of many."""
  if isinstance(label, (str, float)) or not label:
    return classification_scores.label_text(label)
  return some_of(label)


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
          "sentence": sentence.location.rpartition(", ")[2],
          "gold": entities(sentence, sentence.tags, [1.0] * len(tags)),
          "predicted": entities(sentence, tags, probabilities),
          "probability": probability,
          "text": sentence.text,
        }
        for probability, sentence, tags, probabilities in errors[:num_errors]
      ]
    ),
  ]


class AnsweredQuestion(NamedTuple):
  """A question with its predicted answer.

  Attributes:
    question: the question with its gold answers.
    predicted: the predicted answer; "" for no answer.
    probability: its probability; 0 if it is not among the best answers.
    score: exact match and F1.
  """

  question: squad_files.Question
  predicted: str
  probability: float
  score: squad_scores.Score


def read_answers(
  settings: SquadSettings, questions: Sequence[squad_files.Question]
) -> list[AnsweredQuestion]:
  """Reads the answers in --output_dir."""
  predictions, nbest = (
    squad_files.read_json(os.path.join(settings.run.output_dir, name))
    for name in ("predictions.json", "nbest_predictions.json")
  )
  score_one = squad_scores.scorer(
    settings.eval_metric, settings.version_2_with_negative
  )
  answered = []
  for question in questions:
    predicted = predictions[question.id]
    probability = next(
      (
        answer["probability"]
        for answer in nbest[question.id]
        if answer["text"] == predicted
      ),
      0.0,
    )
    score = score_one(predicted, [answer.text for answer in question.answers])
    answered.append(AnsweredQuestion(question, predicted, probability, score))
  return answered


def squad_sections(
  answered: Sequence[AnsweredQuestion],
  results: Mapping[str, float],
  threshold: float,
  num_errors: int = 30,
) -> list[str]:
  """Sections on answers to questions.

  Args:
    answered: the questions with their answers.
    results: metrics by name.
    threshold: --null_score_diff_threshold.
    num_errors: number of most confident errors to show.

  Returns:
    Sections for `html_report.write`.
  """
  sections = [
    html_report.calibration(
      [answer.probability for answer in answered],
      [answer.score.exact == 1 for answer in answered],
    )
  ]
  if "best_f1_thresh" in results:
    sections.insert(0, _threshold_table(results, threshold))
  errors = [answer for answer in answered if answer.score.f1 < 0.5]
  errors.sort(key=lambda answer: -answer.probability)
  rows = [
    {
      "question": answer.question.text,
      "gold": " / ".join(dict.fromkeys(a.text for a in answer.question.answers))
      or "no answer",
      "predicted": answer.predicted or "no answer",
      "probability": answer.probability,
      "text": report_page.marked_text(
        answer.question.context, find_spans(answer.question, answer.predicted)
      ),
    }
    for answer in errors[:num_errors]
  ]
  return [*sections, html_report.errors(rows, shows_spans=True)]


def _threshold_table(results: Mapping[str, float], threshold: float) -> str:
  """Section on the tuned thresholds of SQuAD 2.0."""
  rows = [
    {"threshold": threshold, "exact": results["exact"], "F1": results["f1"]},
    {"threshold": results["best_exact_thresh"], "exact": results["best_exact"]},
    {"threshold": results["best_f1_thresh"], "F1": results["best_f1"]},
  ]
  kinds = ("of this run", "best exact match", "best F1")
  return html_report.table(
    "Tuned --null_score_diff_threshold",
    [{"": kind, **row} for kind, row in zip(kinds, rows)],
  )


# Most places in which the text of a predicted answer is marked.
_MAX_PLACES = 5


def find_spans(
  question: squad_files.Question, predicted: str
) -> list[tuple[int, int, str]]:
  """Spans of the gold answers and of a predicted one in the context.

  The file of predictions has no positions: of a predicted answer, the first
  places of its text are found.

  Returns:
    Start, end and kind of each span, see `report_page.marked_text`.
  """
  context = question.context
  spans = set()
  for text, start in question.answers:
    end = start + len(text)
    if context[start:end] == text and text:
      spans.add((start, end, "gold"))
  words = r"\s+".join(map(re.escape, predicted.split()))
  places: list[re.Match] = []
  if words:
    places = [*re.finditer(rf"(?<!\w){words}(?!\w)", context)]
    places = places or [*re.finditer(words, context)]
  spans |= {(*place.span(), "predicted") for place in places[:_MAX_PLACES]}
  return sorted(spans)


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
    Sections for `html_report.write`.
  """
  if dev_set and evaluation.rankings:
    return [_search_errors(dev_set.retrieval, evaluation.rankings, num_errors)]
  if dev_set and evaluation.neighbors:
    return [
      _neighbor_errors(dev_set.examples, evaluation.neighbors, num_errors)
    ]
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


def _neighbor_errors(
  examples: Sequence[Example],
  neighbors: similarity_scores.Neighbors,
  num_errors: int,
) -> str:
  """Section on the texts that are most similar to one with another label."""
  (wrong,) = np.nonzero(~neighbors.is_right.astype(bool))
  order = np.argsort(-neighbors.cosines[wrong], kind="stable")[:num_errors]
  rows = []
  for index in wrong[order]:
    text, other = (
      examples[int(numbers[index])]
      for numbers in (neighbors.queries, neighbors.nearest)
    )
    rows.append(
      {
        "label": text.label,
        "label of neighbor": other.label,
        "cosine": float(neighbors.cosines[index]),
        "text": text.texts[0],
        "nearest text": other.texts[0],
      }
    )
  return html_report.errors(rows)


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
      "right": texts.get(right, f"{right} (not in the corpus)"),
    }
    for rank, query, found, right in lowest
  ]
  return html_report.errors(rows)
