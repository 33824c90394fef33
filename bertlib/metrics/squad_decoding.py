"""Answers from the logits of tokens: the search for spans, and their text.

A model scores every token of every window as the start and as the end of the
answer. The best spans of a question are found over all of its windows, and
their word pieces turned back into the paragraph's own characters.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import tokenization
from bertlib.data import squad_features
from bertlib.data.squad_examples import SquadExample
from bertlib.data.squad_features import InputFeatures, Window
from bertlib.errors import InputError
from bertlib.files import atomic_write, open_any
from bertlib.metrics import squad_scores
from bertlib.settings import option

# The logits of a window's tokens.
RawResult = collections.namedtuple(
  "RawResult", ["unique_id", "start_logits", "end_logits"]
)

# The odds of no answer where no span could be one.
CERTAIN_ODDS = 1e6


class PrelimPrediction(NamedTuple):
  """A span of tokens that could be an answer.

  Attributes:
    feature_index: index of the window among those of the finder.
    start_index: its first token in the window.
    end_index: its last token.
    start_logit: logit of its first token.
    end_logit: logit of its last token.
  """

  feature_index: int
  start_index: int
  end_index: int
  start_logit: float
  end_logit: float


class NbestPrediction(NamedTuple):
  """A possible answer.

  Attributes:
    text: the answer, in the paragraph's characters; "" for no answer.
    start_logit: logit of its first token.
    end_logit: logit of its last token.
    words: indexes of its first and last word in the paragraph.
    span: its first character and the one after its last, in these words with
      a space between each two.
  """

  text: str
  start_logit: float
  end_logit: float
  words: tuple[int, int] = (0, -1)
  span: tuple[int, int] = (0, 0)

  @property
  def score(self) -> float:
    """The sum of logits by which answers are ordered."""
    return self.start_logit + self.end_logit

  def span_in_paragraph(
    self, words: Sequence[str], starts: Sequence[int]
  ) -> tuple[int, int]:
    """The characters of the answer in the paragraph.

    Args:
      words: the paragraph's words.
      starts: the character at which each begins.

    Returns:
      Its first character and the one after its last; both 0 for no answer.
    """
    if not self.text:
      return 0, 0
    characters = []
    for index in range(self.words[0], self.words[1] + 1):
      # One more than the word has, for the space after it.
      characters += range(starts[index], starts[index] + len(words[index]) + 1)
    start, stop = self.span
    return characters[start], characters[stop - 1] + 1


# The texts of spans


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool) -> str:
  """Projects an answer made of word pieces back to the original text.

  Args:
    pred_text: the pieces joined to words, lower-cased if the tokens are.
    orig_text: the paragraph's words that they come from.
    do_lower_case: whether the tokenizer lower-cases.

  Returns:
    The part of `orig_text` that became `pred_text`; all of it if none did.
  """
  start, stop = get_final_text_span(pred_text, orig_text, do_lower_case)
  return orig_text[start:stop]


@functools.lru_cache(maxsize=2**14)
def get_final_text_span(
  pred_text: str, orig_text: str, do_lower_case: bool
) -> tuple[int, int]:
  """First and end character of `get_final_text` in `orig_text`."""
  tok_text = _tokenize(orig_text, do_lower_case)
  start = tok_text.find(pred_text)
  if (
    start < 0
    or pred_text != pred_text.strip(" ")
    or not pred_text
    or _num_characters(tok_text) != _num_characters(orig_text)
  ):
    return 0, len(orig_text)
  # The n-th character that is no space in one is the n-th in the other.
  first = _num_characters(tok_text[:start])
  last = first + _num_characters(pred_text) - 1
  return _nth_character(orig_text, first), _nth_character(orig_text, last) + 1


@functools.lru_cache(maxsize=2**12)
def _tokenize(text: str, do_lower_case: bool) -> str:
  """The text's words with a space between each two."""
  return " ".join(tokenization.BasicTokenizer(do_lower_case).tokenize(text))


def _num_characters(text: str) -> int:
  """Number of characters that are no spaces."""
  return len(text) - text.count(" ")


def _nth_character(text: str, n: int) -> int:
  """Index of the n-th character, from 0, that is no space."""
  index = n
  while index != n + text.count(" ", 0, index + 1):
    index = n + text.count(" ", 0, index + 1)
  return index


def _join_pieces(tokens: Sequence[str]) -> str:
  """Word pieces as words with a space between each two."""
  text = " ".join(tokens).replace(" ##", "").replace("##", "")
  return " ".join(text.split())


# The search


def get_best_indexes(
  logits: np.ndarray, n_best_size: int | None = None
) -> np.ndarray:
  """Indexes of the highest logits, best first; of equal ones the first.

  Args:
    logits: [..., S].
    n_best_size: the number of indexes at most; None for all.

  Returns:
    int32 [..., min(n_best_size, S)].
  """
  order = np.argsort(-logits, axis=-1, kind="stable")
  return order[..., :n_best_size].astype(np.int32)


def _get_best_indexes(logits: Sequence[float], n_best_size: int) -> list[int]:
  """`get_best_indexes` of lists, as in google-research/bert."""
  return get_best_indexes(np.array(logits), n_best_size).tolist()


def compute_softmax(scores: Sequence[float]) -> list[float]:
  """Probabilities of scores, added up in order."""
  highest = max(scores, default=0.0)
  powers = [math.exp(score - highest) for score in scores]
  total = squad_scores.sum_in_order(powers)
  return [power / total for power in powers]


class _Tokens(NamedTuple):
  """What the search reads of `InputFeatures`, under the names of `Window`."""

  unique_id: int
  example_index: int
  tokens: Sequence[str]
  words: np.ndarray
  is_max_context: np.ndarray


def _searchable(feature: InputFeatures | Window) -> _Tokens | Window:
  """The feature with columns in place of dictionaries."""
  if isinstance(feature, Window):
    return feature
  words = np.full(len(feature.tokens), -1)
  is_max_context = np.zeros(len(feature.tokens), bool)
  for position, word in feature.token_to_orig_map.items():
    if position < len(words):
      words[position] = word
      is_max_context[position] = feature.token_is_max_context.get(position, 0)
  return _Tokens(
    feature.unique_id,
    feature.example_index,
    feature.tokens,
    words,
    is_max_context,
  )


class AnswerFinder:
  """Finds the answers to questions in the logits of their windows' tokens.

  One finder decodes with any number of settings.
  """

  def __init__(
    self,
    examples: Sequence[SquadExample],
    features: Sequence[InputFeatures | Window],
    results: Sequence[RawResult],
    do_lower_case: bool,
  ):
    """Takes windows and their logits.

    Args:
      examples: the questions.
      features: their windows; those of other questions are left out.
      results: the logits of each window, in any order.
      do_lower_case: whether the tokenizer lower-cases.

    Raises:
      InputError: a window of these questions has no logits.
    """
    self._examples = examples
    self._features = [
      _searchable(feature)
      for feature in features
      if feature.example_index < len(examples)
    ]
    self._do_lower_case = do_lower_case
    self._start_logits, self._end_logits = self._find_logits(results)
    self._start_indexes = get_best_indexes(self._start_logits)
    self._end_indexes = get_best_indexes(self._end_logits)
    self._may_start = np.zeros(self._start_logits.shape, bool)
    self._may_end = np.zeros(self._start_logits.shape, bool)
    for row, feature in enumerate(self._features):
      part = slice(len(feature.words))
      self._may_start[row, part] = feature.is_max_context
      self._may_end[row, part] = feature.words >= 0
    self._example_index = np.array(
      [feature.example_index for feature in self._features], int
    )
    self._null_scores, self._null_predictions = self._find_null()

  def _find_logits(self, results) -> Iterator[np.ndarray]:
    """The start logits, then the end logits: [windows, tokens]."""
    by_id = {result.unique_id: result for result in results}
    for feature in self._features:
      if feature.unique_id not in by_id:
        question = self._examples[feature.example_index].qas_id
        raise InputError(
          f"question {question}: there is no RawResult for its window"
          f" {feature.unique_id}. Give the results of all windows of a question"
        )
    of_windows = [by_id[feature.unique_id] for feature in self._features]
    for name in ("start_logits", "end_logits"):
      rows = [np.asarray(getattr(result, name)) for result in of_windows]
      width = max(map(len, rows), default=0)
      dtype = np.result_type(np.float32, *{row.dtype for row in rows})
      logits = np.full([len(rows), width], -np.inf, dtype)
      for row, values in zip(logits, rows):
        row[: len(values)] = values
      yield logits

  def _find_null(self) -> tuple[list[float], list[NbestPrediction]]:
    """No answer to each question: the lowest score of its windows' [CLS]."""
    scores = [1e6] * len(self._examples)
    predictions = [NbestPrediction("", 0.0, 0.0)] * len(self._examples)
    for row, index in enumerate(self._example_index.tolist()):
      null = NbestPrediction(
        "", self._start_logits[row, 0].item(), self._end_logits[row, 0].item()
      )
      if null.score < scores[index]:
        scores[index], predictions[index] = null.score, null
    return scores, predictions

  def prelim_predictions(
    self, n_best_size: int, max_answer_length: int
  ) -> Iterator[Iterator[PrelimPrediction]]:
    """Finds the spans that could be answers, for one question after the other.

    Args:
      n_best_size: spans start and end at these many best tokens of a window.
      max_answer_length: tokens of an answer, at most.

    Yields:
      The spans of each question, the best first; of equal ones that with the
      earlier window, then the better start, then the better end.
    """
    parts = [np.zeros([3, 0], int)]
    block_size = 1024  # windows at a time, for the sake of memory
    for first in range(0, len(self._features), block_size):
      block = slice(first, first + block_size)
      starts = self._start_indexes[block, :n_best_size]
      ends = self._end_indexes[block, :n_best_size]
      may_start = np.take_along_axis(self._may_start[block], starts, axis=1)
      may_end = np.take_along_axis(self._may_end[block], ends, axis=1)
      lengths = ends[:, None, :] - starts[:, :, None] + 1  # [windows, n, n]
      is_span = (lengths > 0) & (lengths <= max_answer_length)
      is_span &= may_start[:, :, None] & may_end[:, None, :]
      row, i, j = np.nonzero(is_span)
      parts.append(np.stack([row + first, starts[row, i], ends[row, j]]))
    rows, starts, ends = np.concatenate(parts, axis=1)
    # Sums are made in double precision, as google-research/bert makes them.
    start_logits = self._start_logits[rows, starts].astype(np.float64)
    end_logits = self._end_logits[rows, ends].astype(np.float64)
    questions = self._example_index[rows]
    order = np.lexsort([-(start_logits + end_logits), questions])  # is stable
    bounds = np.searchsorted(
      questions[order], np.arange(len(self._examples) + 1)
    )
    columns = rows, starts, ends, start_logits, end_logits
    for first, stop in zip(bounds, bounds[1:]):
      chosen = order[first:stop]
      yield map(PrelimPrediction, *(c[chosen].tolist() for c in columns))

  def with_text(self, prelim: PrelimPrediction) -> NbestPrediction:
    """The answer that a span of tokens stands for."""
    feature = self._features[prelim.feature_index]
    start, end = prelim.start_index, prelim.end_index
    first, last = int(feature.words[start]), int(feature.words[end])
    doc_tokens = self._examples[feature.example_index].doc_tokens
    orig_text = " ".join(doc_tokens[first : last + 1])
    tok_text = _join_pieces(feature.tokens[start : end + 1])
    span = get_final_text_span(tok_text, orig_text, self._do_lower_case)
    return NbestPrediction(
      orig_text[slice(*span)],
      prelim.start_logit,
      prelim.end_logit,
      (first, last),
      span,
    )

  def nbest_predictions(
    self,
    n_best_size: int,
    max_answer_length: int,
    version_2_with_negative: bool = False,
  ) -> Iterator[tuple[list[NbestPrediction], str, float]]:
    """Lists the best answers, for one question after the other.

    Args:
      n_best_size: their number, at most; see `prelim_predictions` too.
      max_answer_length: tokens of an answer, at most.
      version_2_with_negative: whether no answer is one of them.

    Yields:
      The best answers of each question, each text once; and what
      `best_predictions` gives.
    """
    prelims = self.prelim_predictions(n_best_size, max_answer_length)
    for of_question, null, null_score in zip(
      prelims, self._null_predictions, self._null_scores
    ):
      predictions = map(self.with_text, of_question)
      best = next(predictions, None)
      if best is not None:
        predictions = itertools.chain([best], predictions)
      if version_2_with_negative:
        predictions = _with_null(predictions, null)
      by_text: dict[str, NbestPrediction] = {}
      for prediction in predictions:
        by_text.setdefault(prediction.text, prediction)
        if len(by_text) == n_best_size:
          break
      if version_2_with_negative:
        by_text.setdefault("", null)
      elif not by_text:
        by_text["empty"] = NbestPrediction("empty", 0.0, 0.0)
      yield list(by_text.values()), *_text_and_odds(best, null_score)

  def best_predictions(
    self, n_best_size: int, max_answer_length: int
  ) -> Iterator[tuple[str, float]]:
    """Gives the best answer alone, for one question after the other.

    Args:
      n_best_size: see `prelim_predictions`.
      max_answer_length: tokens of an answer, at most.

    Yields:
      The best answer of each question, "" where no span could be one; and the
      odds of no answer: its score minus that of the best answer.
    """
    prelims = self.prelim_predictions(n_best_size, max_answer_length)
    for of_question, null_score in zip(prelims, self._null_scores):
      best = next(map(self.with_text, of_question), None)
      yield _text_and_odds(best, null_score)


def _text_and_odds(
  best: NbestPrediction | None, null_score: float
) -> tuple[str, float]:
  if best is None:
    return "", CERTAIN_ODDS
  return best.text, null_score - best.score


def _with_null(
  predictions: Iterator[NbestPrediction], null: NbestPrediction
) -> Iterator[NbestPrediction]:
  """Puts no answer where its score belongs; of equal ones it is the last."""
  for prediction in predictions:
    if prediction.score < null.score:
      yield null
      yield prediction
      break
    yield prediction
  else:
    yield null
  yield from predictions


# To files


def write_predictions(
  all_examples: Sequence[SquadExample],
  all_features: Sequence[InputFeatures | Window],
  all_results: Sequence[RawResult],
  n_best_size: int,
  max_answer_length: int,
  do_lower_case: bool,
  output_prediction_file: str,
  output_nbest_file: str,
  output_null_log_odds_file: str,
  version_2_with_negative: bool | None = None,
  null_score_diff_threshold: float | None = None,
) -> tuple[dict[str, str], dict[str, float]]:
  """Finds the answers to all questions and writes them.

  Args:
    all_examples: the questions.
    all_features: their windows, and any of other questions.
    all_results: the logits of each window of these questions, in any order.
    n_best_size: the number of answers per question in the second file, at most.
    max_answer_length: tokens of an answer, at most.
    do_lower_case: whether the tokenizer lower-cases.
    output_prediction_file: gets the answer by question id.
    output_nbest_file: gets the best answers with probabilities and logits.
    output_null_log_odds_file: gets the odds of no answer, for 2.0 alone.
    version_2_with_negative: whether there may be no answer; None for what
      `option.value_of` gives.
    null_score_diff_threshold: above these odds there is none; likewise.

  Returns:
    By question id the answer, whatever the odds of none; and these odds.

  Raises:
    InputError: a window of these questions has no logits.
  """
  if version_2_with_negative is None:
    version_2_with_negative = option.value_of("version_2_with_negative", False)
  if null_score_diff_threshold is None:
    null_score_diff_threshold = option.value_of(
      "null_score_diff_threshold", 0.0
    )
  finder = AnswerFinder(all_examples, all_features, all_results, do_lower_case)
  found = finder.nbest_predictions(
    n_best_size, max_answer_length, version_2_with_negative
  )
  predictions, nbest, answers, odds = {}, {}, {}, {}
  for example, (nbest_predictions, best, null_odds) in zip(all_examples, found):
    name = example.qas_id
    nbest[name] = nbest_predictions
    odds[name] = null_odds
    answers[name] = best if version_2_with_negative else nbest[name][0].text
    is_none = version_2_with_negative and null_odds > null_score_diff_threshold
    predictions[name] = "" if is_none else answers[name]
  write_json(output_prediction_file, predictions)
  write_nbest_predictions(output_nbest_file, nbest)
  if version_2_with_negative:
    write_json(output_null_log_odds_file, odds)
  return answers, odds


def write_json(path: str, values: Any) -> None:
  """Writes values to an indented JSON file."""
  _write_text(path, json.dumps(values, indent=4) + "\n")


def _write_text(path: str, text: str) -> None:
  """Writes a file atomically; an empty one that is held open gets the text.

  So the handle of a temporary file made for the purpose can be read.
  """
  with contextlib.ExitStack() as stack:
    held = None
    if os.path.isfile(path) and not os.path.getsize(path):
      held = stack.enter_context(open_any(path, "r+"))
    with atomic_write(path) as file:
      file.write(text)
    if held:
      held.write(text)


def write_nbest_predictions(
  path: str, nbest: Mapping[str, Sequence[NbestPrediction]]
) -> None:
  """Writes lists of answers with their probabilities.

  Args:
    path: the file.
    nbest: the best answers by question id, at least one each.
  """
  # As `write_json` would, which takes a third of all of decoding for this.
  questions = []
  for name, predictions in nbest.items():
    probabilities = compute_softmax([p.score for p in predictions])
    lines = [
      f"""        {{
            "text": {json.dumps(prediction.text)},
            "probability": {probability!r},
            "start_logit": {prediction.start_logit!r},
            "end_logit": {prediction.end_logit!r}
        }}"""
      for prediction, probability in zip(predictions, probabilities)
    ]
    listed = ",\n".join(lines)
    questions.append(f"    {json.dumps(name)}: [\n{listed}\n    ]")
  _write_text(path, "{\n" + ",\n".join(questions) + "\n}\n")


# Logits, kept to decode them again


def save_logits(path: str, key: str, logits: np.ndarray) -> None:
  """Writes the logits of windows.

  Args:
    path: the file, npz.
    key: the windows' key, see `squad_windows.cache_key`.
    logits: float32 [2, windows, tokens], of starts and of ends.
  """
  unique_ids = np.arange(logits.shape[1]) + squad_features.FIRST_UNIQUE_ID
  with atomic_write(path, "wb") as file:
    np.savez(
      file,
      key=key,
      unique_ids=unique_ids,
      start_logits=logits[0],
      end_logits=logits[1],
    )


def load_logits(path: str, key: str) -> np.ndarray:
  """Reads what `save_logits` wrote.

  Args:
    path: the file.
    key: the windows' key.

  Returns:
    float32 [2, windows, tokens].

  Raises:
    InputError: it is not such a file, or of other windows.
  """
  try:
    with open_any(path, "rb") as file, np.load(file) as arrays:
      saved_key = arrays["key"].item()
      logits = np.stack([arrays["start_logits"], arrays["end_logits"]])
  except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    raise InputError(
      f"{path}: not a file of --save_logits. Name one, or predict again without"
      " --from_logits"
    ) from error
  if saved_key != key:
    raise InputError(
      f"{path}: is of other questions or other windows. Give the flags with"
      " which it was made (data, vocabulary, lengths), or make it again"
    )
  return logits
