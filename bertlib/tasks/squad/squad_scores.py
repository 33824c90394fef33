"""Exact match and F1 for SQuAD 1.1, SQuAD 2.0 and Chinese data sets."""

from __future__ import annotations

import difflib
import functools
import operator
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Callable, NamedTuple

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.tasks.squad import squad_files

# One answer


class Score(NamedTuple):
  """Exact match and F1 of an answer, the maximum over its gold answers."""

  exact: float  # 1 if the answer equals a gold answer, else 0
  f1: float  # of the words in common, in [0, 1]


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
  """Lower-cases; removes ASCII punctuation, articles and extra white space."""
  text = text.lower().translate(_WITHOUT_PUNCTUATION)
  return " ".join(_ARTICLES.sub(" ", text).split())


def score_v1(prediction: str, answers: Sequence[str]) -> Score:
  """Score of an answer in SQuAD 1.1 (Rajpurkar et al. 2016, section 6.1)."""
  predicted = normalize_answer(prediction)
  scores = [Score(0.0, 0.0)]
  for gold in {normalize_answer(answer) for answer in answers}:
    common = Counter(predicted.split()) & Counter(gold.split())
    lengths = len(predicted.split()), len(gold.split())
    f1 = _f1(sum(common.values()), *lengths)
    scores.append(Score(float(predicted == gold), f1))
  return _best(scores)


def scorer(
  metric: str | None, has_negatives: bool = False
) -> Callable[[str, Sequence[str]], Score]:
  """The function that scores an answer."""
  if has_negatives:
    return score_v2
  return score_chinese if metric == "chinese" else score_v1


def score_v2(prediction: str, answers: Sequence[str]) -> Score:
  """Score of an answer in SQuAD 2.0 (Rajpurkar et al. 2018)."""
  answers = [answer for answer in answers if normalize_answer(answer)]
  if answers:
    return score_v1(prediction, answers)
  # "" is correct if no gold answer contains a word.
  is_correct = float(not normalize_answer(prediction))
  return Score(is_correct, is_correct)


# Punctuation that CMRC's evaluator removes.
_CHINESE_PUNCTUATION = str.maketrans(
  "", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"
)
# Units to compare: single ideographs, and words of other scripts.
_UNITS = re.compile(
  r"""[\u4e00-\u9fa5]
    | \d+ (?: ,\d+ )+                                  # 46,600
    | [^\s\u4e00-\u9fa5,;@#$%&?!()\[\]{}<>"—]+         # words, 3.5, c++
    | \S                                               # punctuation""",
  re.VERBOSE,
)


def score_chinese(prediction: str, answers: Sequence[str]) -> Score:
  """Score of an answer in CMRC 2018 and DRCD (Cui et al. 2019, section 4.1)."""
  # F1 is that of the longest common substring, in units: single ideographs, and
  # words and numbers of other scripts. For the latter the official evaluator
  # uses NLTK; here it is a regular expression.
  predicted, *all_gold = (
    text.lower().strip().translate(_CHINESE_PUNCTUATION)
    for text in (prediction, *answers)
  )
  scores = []
  for gold in all_gold:
    a, b = _UNITS.findall(predicted), _UNITS.findall(gold)
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    common = matcher.find_longest_match(0, len(a), 0, len(b)).size
    scores.append(Score(float(predicted == gold), _f1(common, len(a), len(b))))
  return _best(scores)


def _f1(common: int, length: int, other_length: int) -> float:
  """Harmonic mean of precision and recall."""
  if not common:
    return 0.0
  precision, recall = common / length, common / other_length
  return 2 * precision * recall / (precision + recall)


def _best(scores: Sequence[Score]) -> Score:
  return Score(max(s.exact for s in scores), max(s.f1 for s in scores))


# Data sets


def score_all(
  questions: Sequence[squad_files.Question],
  predictions: Mapping[str, str],
  score: Callable[[str, Sequence[str]], Score],
) -> dict[str, Score]:
  """Score of every question by its id; a missing answer scores 0."""
  scores = {}
  for question in questions:
    if question.id in predictions:
      answers = [answer.text for answer in question.answers]
      scores[question.id] = score(predictions[question.id], answers)
  missing = [q.id for q in questions if q.id not in scores]
  if missing:
    logging.warning(
      "%d of %d questions have no answer and score 0, such as %s",
      len(missing),
      len(questions),
      missing[0],
    )
  if len(predictions) > len(scores):
    logging.warning(
      "%d answers are to other questions and are ignored",
      len(predictions) - len(scores),
    )
  return {q.id: scores.get(q.id, Score(0.0, 0.0)) for q in questions}


def evaluate_v1(
  questions: Sequence[squad_files.Question],
  predictions: Mapping[str, str],
  score: Callable[[str, Sequence[str]], Score] = score_v1,
) -> dict[str, float]:
  """Metrics, in percent, of data in which every question has an answer."""
  scores = score_all(questions, predictions, score).values()
  return {
    "exact_match": _percent(s.exact for s in scores),
    "f1": _percent(s.f1 for s in scores),
  }


def evaluate_v2(
  questions: Sequence[squad_files.Question],
  predictions: Mapping[str, str],
  # No-answer probability, or odds of any size, by question id.
  na_probs: Mapping[str, float] | None = None,
  # Values above this mean no answer, whatever is predicted.
  na_prob_thresh: float = 1.0,
  answer_nothing: float = 0.0,  # see `best_threshold`
) -> dict[str, float]:
  """Metrics, in percent, of data in which some questions have no answer."""
  scores = score_all(questions, predictions, score_v2)
  has_answer = {q.id: bool(q.answers) for q in questions}
  at_threshold = dict(scores)
  for name in scores if na_probs else ():
    if name not in na_probs:
      raise InputError(f"question {name} has no no-answer probability")
    if na_probs[name] > na_prob_thresh and name in predictions:
      is_correct = float(not has_answer[name])
      at_threshold[name] = Score(is_correct, is_correct)
  results = {}
  for prefix, kinds in (
    ("", (True, False)),
    ("HasAns_", (True,)),
    ("NoAns_", (False,)),
  ):
    chosen = [s for n, s in at_threshold.items() if has_answer[n] in kinds]
    if chosen:
      results[f"{prefix}exact"] = _percent(s.exact for s in chosen)
      results[f"{prefix}f1"] = _percent(s.f1 for s in chosen)
      results[f"{prefix}total"] = len(chosen)
  if na_probs:
    for key in ("exact", "f1"):
      by_id = {name: getattr(score, key) for name, score in scores.items()}
      best, threshold = best_threshold(
        by_id, predictions, na_probs, has_answer, answer_nothing
      )
      results[f"best_{key}"] = best
      results[f"best_{key}_thresh"] = threshold
  return results


def best_threshold(
  scores: Mapping[str, float],
  predictions: Mapping[str, str],
  na_probs: Mapping[str, float],
  has_answer: Mapping[str, bool],  # gold
  # Threshold to return if it is best to answer no question; 0 in the official
  # evaluator.
  answer_nothing: float = 0.0,
) -> tuple[float, float]:
  """Finds the no-answer threshold with the best score, in percent."""
  # Starts without answering any question, then answers in the order of rising
  # no-answer probability; ties in the order of `na_probs`.
  current = sum(name in predictions and not has_answer[name] for name in scores)
  best, threshold = current, answer_nothing
  for name in sorted(na_probs, key=na_probs.__getitem__):
    if name not in scores or name not in predictions:
      continue
    if has_answer[name]:
      current += scores[name]
    elif predictions[name]:
      current -= 1
    if current > best:
      best, threshold = current, na_probs[name]
  return 100.0 * best / len(scores), threshold


def _percent(scores) -> float:
  scores = list(scores)
  return 100.0 * sum_in_order(scores) / len(scores)


def sum_in_order(values: Iterable[float]) -> float:
  """Sum of floats from left to right, the same on every version of Python."""
  # Since Python 3.12 the built-in `sum` compensates for rounding errors, which
  # would change the last digits of output files.
  return functools.reduce(operator.add, values, 0.0)
