"""Exact match and F1 of SQuAD 1.1, 2.0 and Chinese data."""

from __future__ import annotations

import difflib
import functools
import operator
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Callable, NamedTuple

from absl import logging

from bertlib.data import squad_files
from bertlib.errors import InputError

# One answer


class Score(NamedTuple):
  """How good an answer is.

  Attributes:
    exact: 1 if it equals an accepted one, else 0.
    f1: from 0 to 1, for the share of words that it has in common with the
      accepted answer with which it has most.
  """

  exact: float
  f1: float


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
  """`text` in lower case without ASCII punctuation, articles, spare spaces."""
  text = text.lower().translate(_WITHOUT_PUNCTUATION)
  return " ".join(_ARTICLES.sub(" ", text).split())


def score_v1(prediction: str, answers: Sequence[str]) -> Score:
  """The score that SQuAD 1.1 gives (Rajpurkar et al. 2016, section 6.1).

  Args:
    prediction: the answer.
    answers: the accepted ones, at least one.

  Returns:
    The best score over the accepted answers; without words F1 is 0.
  """
  ours = normalize_answer(prediction)
  scores = [Score(0.0, 0.0)]
  for theirs in {normalize_answer(answer) for answer in answers}:
    common = Counter(ours.split()) & Counter(theirs.split())
    lengths = len(ours.split()), len(theirs.split())
    f1 = _f1(sum(common.values()), *lengths)
    scores.append(Score(float(ours == theirs), f1))
  return _best(scores)


def score_v2(prediction: str, answers: Sequence[str]) -> Score:
  """The score that SQuAD 2.0 gives (Rajpurkar et al. 2018).

  Args:
    prediction: the answer; "" says that there is none.
    answers: the accepted ones; without any that has words in it, "" is right.

  Returns:
    The best score over the accepted answers.
  """
  answers = [answer for answer in answers if normalize_answer(answer)]
  if answers:
    return score_v1(prediction, answers)
  is_right = float(not normalize_answer(prediction))
  return Score(is_right, is_right)


# What CMRC's evaluator drops, and the ideographs that it takes one by one.
_CHINESE_PUNCTUATION = str.maketrans(
  "", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"
)
_PIECES = re.compile(
  r"""[\u4e00-\u9fa5]
    | \d+ (?: ,\d+ )+                                  # 46,600
    | [^\s\u4e00-\u9fa5,;@#$%&?!()\[\]{}<>"—]+         # words, 3.5, c++
    | \S                                               # a mark""",
  re.VERBOSE,
)


def score_chinese(prediction: str, answers: Sequence[str]) -> Score:
  """The score that CMRC 2018 and DRCD give (Cui et al. 2019, section 4.1).

  Pieces are single ideographs, and words and numbers of other scripts, for
  which the official evaluator asks NLTK; a rule stands for that here. What
  two answers have in common is their longest common run of pieces.

  Args:
    prediction: the answer.
    answers: the accepted ones, at least one.

  Returns:
    The best score over the accepted answers.
  """
  ours, *all_theirs = (
    text.lower().strip().translate(_CHINESE_PUNCTUATION)
    for text in (prediction, *answers)
  )
  scores = []
  for theirs in all_theirs:
    a, b = _PIECES.findall(ours), _PIECES.findall(theirs)
    run = difflib.SequenceMatcher(None, a, b, autojunk=False)
    common = run.find_longest_match(0, len(a), 0, len(b)).size
    scores.append(Score(float(ours == theirs), _f1(common, len(a), len(b))))
  return _best(scores)


def _f1(common: int, length: int, other_length: int) -> float:
  """Harmonic mean of precision and recall."""
  if not common:
    return 0.0
  precision, recall = common / length, common / other_length
  return 2 * precision * recall / (precision + recall)


def _best(scores: Sequence[Score]) -> Score:
  return Score(max(s.exact for s in scores), max(s.f1 for s in scores))


# All answers


def score_all(
  questions: Sequence[squad_files.Question],
  predictions: Mapping[str, str],
  score: Callable[[str, Sequence[str]], Score],
) -> dict[str, Score]:
  """Scores the answers to a data set.

  Args:
    questions: the data set.
    predictions: an answer by question id. A missing one scores 0, and how
      many are is said; those to other questions are passed over.
    score: one of the functions above.

  Returns:
    By question id, in the order of the questions.
  """
  scores = {}
  for question in questions:
    if question.id in predictions:
      answers = [answer.text for answer in question.answers]
      scores[question.id] = score(predictions[question.id], answers)
  missing = [q.id for q in questions if q.id not in scores]
  if missing:
    logging.warning(
      "%d of %d questions have no answer and score 0: %s",
      len(missing),
      len(questions),
      ", ".join(missing[:5]) + (", ..." if missing[5:] else ""),
    )
  if len(predictions) > len(scores):
    logging.warning(
      "%d answers are to none of these questions",
      len(predictions) - len(scores),
    )
  return {q.id: scores.get(q.id, Score(0.0, 0.0)) for q in questions}


def evaluate_v1(
  questions: Sequence[squad_files.Question],
  predictions: Mapping[str, str],
  score: Callable[[str, Sequence[str]], Score] = score_v1,
) -> dict[str, float]:
  """The scores of a data set in which every question has an answer.

  Args:
    questions: the data set.
    predictions: an answer by question id.
    score: `score_v1` or `score_chinese`.

  Returns:
    exact_match and f1, in percent.

  Raises:
    InputError: a question has no accepted answer.
  """
  for question in questions:
    if not question.answers:
      raise InputError(
        f"question {question.id} has no accepted answer to score by. Data"
        " with such questions is scored as SQuAD 2.0"
      )
  scores = score_all(questions, predictions, score).values()
  return {
    "exact_match": _percent(s.exact for s in scores),
    "f1": _percent(s.f1 for s in scores),
  }


def evaluate_v2(
  questions: Sequence[squad_files.Question],
  predictions: Mapping[str, str],
  na_probs: Mapping[str, float] | None = None,
  na_prob_thresh: float = 1.0,
  answer_nothing: float = 0.0,
) -> dict[str, float]:
  """The scores of a data set with questions that have no answer.

  Args:
    questions: the data set.
    predictions: an answer by question id, "" for none.
    na_probs: by question id how sure it is that there is no answer: a
      probability, or odds of any size.
    na_prob_thresh: above this the answer is none, whatever is predicted.
    answer_nothing: see `best_threshold`.

  Returns:
    exact and f1, in percent, and total; the same for questions that have an
    answer (HasAns_) and that have none (NoAns_), where there are such. With
    `na_probs` also what the best threshold would give, and which that is:
    best_exact, best_exact_thresh, best_f1, best_f1_thresh.

  Raises:
    InputError: `na_probs` lacks a question.
  """
  scores = score_all(questions, predictions, score_v2)
  has_answer = {q.id: bool(q.answers) for q in questions}
  at_threshold = dict(scores)
  for name in scores if na_probs else ():
    if name not in na_probs:
      raise InputError(f"question {name} has no no-answer probability")
    if na_probs[name] > na_prob_thresh and name in predictions:
      is_right = float(not has_answer[name])
      at_threshold[name] = Score(is_right, is_right)
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
  has_answer: Mapping[str, bool],
  answer_nothing: float = 0.0,
) -> tuple[float, float]:
  """Finds where to stop answering.

  Begins with no answer to any question, and answers one after the other, the
  surest first; of equal ones that which comes first in `na_probs`.

  Args:
    scores: of each question if `predictions` is its answer.
    predictions: an answer by question id, "" for none.
    na_probs: by question id how sure it is that there is no answer.
    has_answer: whether a question has an answer, by id.
    answer_nothing: the threshold to name where no answer at all is best; the
      official evaluator says 0.

  Returns:
    The best score in percent, and the threshold up to which questions are to
    be answered.
  """
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
  """Sum of floats, added from left to right.

  The built-in `sum` compensates for rounding from Python 3.12 on, which
  changes the last digits of the files that we write.

  Args:
    values: the numbers.

  Returns:
    Their sum, the same on every version of Python.
  """
  return functools.reduce(operator.add, values, 0.0)
