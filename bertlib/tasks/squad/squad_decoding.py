"""Answers from logits: the best spans, their text, their files and metrics.

A model computes a start logit and an end logit for every token of every window.
The best spans of a question are searched over all of its windows, and their
WordPieces are projected back to the characters of the paragraph. Imports no
TensorFlow.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

import tokenization
from bertlib.cli import option
from bertlib.cli.absl import logging
from bertlib.data import batch_predictor
from bertlib.data.batch_predictor import BatchPredictor, FileFormat
from bertlib.io import json_files
from bertlib.io.files import atomic_write
from bertlib.tasks.squad import squad_files, squad_scores, squad_windows
from bertlib.tasks.squad.settings import AnswerSettings
from bertlib.tasks.squad.squad_files import Question, SquadExample
from bertlib.tasks.squad.squad_windows import Windows

# Null odds of a question without any valid span.
CERTAIN_ODDS = 1e6


class PrelimPrediction(NamedTuple):
  """A candidate span of tokens."""

  feature_index: int  # of the window in the finder
  start_index: int  # position of the first token in the window
  end_index: int  # position of the last token
  start_logit: float
  end_logit: float


class NbestPrediction(NamedTuple):
  """A candidate answer."""

  text: str  # as in the paragraph; "" for no answer
  start_logit: float
  end_logit: float
  # Of a finder in passages: its first character in the paragraph, and the one
  # after its last.
  start: int = 0
  end: int = 0

  @property
  def score(self) -> float:
    """Sum of the two logits, by which answers are ordered."""
    return self.start_logit + self.end_logit


class Answer(NamedTuple):
  """An answer to a question.

  Attributes:
    text: `passage[start:end]`, the characters of the answer as they are in the
      passage; "" if the passage has no answer.
    probability: softmax of the sum of start and end logit over the answers
      returned with it, "" included.
    start: index of its first character in the passage; 0 for no answer.
    end: index after its last character; 0 for no answer.
  """

  text: str
  probability: float
  start: int
  end: int


def answers(predictions: Sequence[NbestPrediction]) -> list[Answer]:
  """Answers with their probability and their span in the passage."""
  probabilities = compute_softmax([p.score for p in predictions])
  return [
    Answer(p.text, probability, p.start, p.end)
    for p, probability in zip(predictions, probabilities)
  ]


# Text of a span


@functools.lru_cache(maxsize=2**14)
def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool) -> str:
  """Projects an answer made of WordPieces back to the original text.

  Args:
    pred_text: the pieces joined to words, lower-cased if the tokens are.
    orig_text: the paragraph's words that contain them; the result if the pieces
      cannot be found in them.
    do_lower_case: whether the tokenizer lower-cases.
  """
  tok_text = _tokenize(orig_text, do_lower_case)
  start = tok_text.find(pred_text)
  positions = [index for index, char in enumerate(orig_text) if char != " "]
  if (
    start < 0
    or pred_text != pred_text.strip(" ")
    or not pred_text
    or _num_characters(tok_text) != len(positions)
  ):
    return orig_text
  # Both texts have the same number of characters without spaces: the n-th of
  # one is the n-th of the other.
  first = _num_characters(tok_text[:start])
  last = first + _num_characters(pred_text) - 1
  return orig_text[positions[first] : positions[last] + 1]


@functools.lru_cache(maxsize=2**12)
def _tokenize(text: str, do_lower_case: bool) -> str:
  """Splits a text into words and joins them by single spaces."""
  return " ".join(tokenization.BasicTokenizer(do_lower_case).tokenize(text))


def _num_characters(text: str) -> int:
  """Number of characters other than spaces."""
  return len(text) - text.count(" ")


# Search


def get_best_indexes(
  logits: np.ndarray, n_best_size: int | None = None
) -> np.ndarray:
  """Indexes of the highest logits, best first: int32 [..., n_best_size]."""
  # Stable: ties keep their order.
  order = np.argsort(-logits, axis=-1, kind="stable")
  return order[..., :n_best_size].astype(np.int32)


def compute_softmax(scores: Sequence[float]) -> list[float]:
  """Softmax of scores; the sum is computed in order."""
  highest = max(scores, default=0.0)
  powers = [math.exp(score - highest) for score in scores]
  total = squad_scores.sum_in_order(powers)
  return [power / total for power in powers]


def stack_logits(rows: Sequence[Sequence[float]]) -> np.ndarray:
  """Logits of windows of any length: float [windows, S], padded with -inf."""
  arrays = [np.asarray(row) for row in rows]
  width = max(map(len, arrays), default=0)
  dtype = np.result_type(np.float32, *{array.dtype for array in arrays})
  logits = np.full([len(arrays), width], -np.inf, dtype)
  for row, array in zip(logits, arrays):
    row[: len(array)] = array
  return logits


class AnswerFinder:
  """Finds answers given the logits of all windows, for one setting or more."""

  def __init__(
    self,
    examples: Sequence[SquadExample],
    windows: Windows,
    logits: np.ndarray,
    tokenizer: tokenization.Tokenizer,
    in_passages: bool = False,
  ):
    """Sorts the logits of the windows: float [2, windows, S], start and end."""
    # Answers are characters of their passages, as those of exported models, or
    # else found by words, unless these have no tokens of their own. The
    # projection of `get_final_text` joins words by single spaces, and returns
    # whole words where it cannot find the pieces.
    # S is the length of the longest window, or more.
    self.examples = examples
    self._windows = windows
    self._tokenizer = tokenizer
    self._is_in_passages = in_passages or not tokenizer.words_are_independent
    if self._is_in_passages:
      texts = dict.fromkeys(example.context for example in examples)
      encoded = zip(texts, tokenizer.encode_with_offsets(texts))
      # Character ranges [start, end) of the pieces of each passage.
      self._offsets = {text: offsets for text, (_, offsets) in encoded}
    self._start_logits, self._end_logits = logits
    self._start_indexes = get_best_indexes(self._start_logits)
    self._end_indexes = get_best_indexes(self._end_logits)
    lengths = windows.length[:, np.newaxis]
    is_token = np.arange(self._start_logits.shape[1]) < lengths
    self._may_start, self._may_end = np.zeros([2, *is_token.shape], bool)
    self._may_start[is_token] = windows.is_max_context
    self._may_end[is_token] = windows.word >= 0
    # Index of the first token of each window in the columns of tokens.
    self._begins = np.cumsum(windows.length) - windows.length
    self._null_scores, self._null_predictions = self._find_null()

  def _find_null(self) -> tuple[list[float], list[NbestPrediction]]:
    """Null answer of each question: the lowest [CLS] score of its windows."""
    scores = [1e6] * len(self.examples)
    predictions = [NbestPrediction("", 0.0, 0.0)] * len(self.examples)
    for row, index in enumerate(self._windows.example_index.tolist()):
      null = NbestPrediction(
        "", self._start_logits[row, 0].item(), self._end_logits[row, 0].item()
      )
      if null.score < scores[index]:
        scores[index], predictions[index] = null.score, null
    return scores, predictions

  def prelim_predictions(
    self, n_best_size: int, max_answer_length: int
  ) -> Iterator[Iterator[PrelimPrediction]]:
    """Yields the candidate spans of each question, the best first."""
    # Spans start and end at the tokens with the `n_best_size` highest logits of
    # a window. Ties are ordered by window, then by start logit, then by end
    # logit.
    parts = [np.zeros([3, 0], int)]
    block_size = 1024  # windows per block, to bound memory
    for first in range(0, len(self._start_logits), block_size):
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
    # Sums are in double precision, as in google-research/bert.
    start_logits = self._start_logits[rows, starts].astype(np.float64)
    end_logits = self._end_logits[rows, ends].astype(np.float64)
    questions = self._windows.example_index[rows]
    order = np.lexsort([-(start_logits + end_logits), questions])  # is stable
    bounds = np.searchsorted(
      questions[order], np.arange(len(self.examples) + 1)
    )
    columns = rows, starts, ends, start_logits, end_logits
    for first, stop in zip(bounds, bounds[1:]):
      chosen = order[first:stop]
      yield map(PrelimPrediction, *(c[chosen].tolist() for c in columns))

  def with_text(self, prelim: PrelimPrediction) -> NbestPrediction:
    """Converts a span of tokens to an answer with its text."""
    if self._is_in_passages:
      return self._in_passage(prelim)
    row = prelim.feature_index
    begin = self._begins[row]
    span = slice(begin + prelim.start_index, begin + prelim.end_index + 1)
    first, last = self._windows.word[[span.start, span.stop - 1]].tolist()
    doc_tokens = self.examples[self._windows.example_index[row]].doc_tokens
    orig_text = " ".join(doc_tokens[first : last + 1])
    ids = self._windows.ids[span].tolist()
    tokens = self._tokenizer.convert_ids_to_tokens(ids)
    tok_text = self._tokenizer.text_of(tokens)
    is_lower = self._tokenizer.basic_tokenizer.do_lower_case
    text = get_final_text(tok_text, orig_text, is_lower)
    return NbestPrediction(text, prelim.start_logit, prelim.end_logit)

  def _in_passage(self, prelim: PrelimPrediction) -> NbestPrediction:
    """The answer as it is in the passage."""
    row, windows = prelim.feature_index, self._windows
    text = self.examples[windows.example_index[row]].context
    offsets = self._offsets[text]
    # Index in the passage of the token at position 0 of the window.
    shift = windows.doc_start[row] - windows.query_length[row]
    shift -= self._tokenizer.special_tokens.num_before_second
    start, _ = offsets[prelim.start_index + shift]
    _, end = offsets[prelim.end_index + shift]
    # A token may end between a letter and its marks.
    while end < len(text) and unicodedata.category(text[end])[0] == "M":
      end += 1
    return NbestPrediction(
      text[start:end], prelim.start_logit, prelim.end_logit, start, end
    )

  def nbest_predictions(
    self, settings: AnswerSettings
  ) -> Iterator[tuple[list[NbestPrediction], str, float]]:
    """Yields the n best answers of each question, the best, and null odds."""
    has_negative = settings.version_2_with_negative
    prelims = self.prelim_predictions(
      settings.n_best_size, settings.max_answer_length
    )
    for spans, null, null_score in zip(
      prelims, self._null_predictions, self._null_scores
    ):
      predictions = map(self.with_text, spans)
      best = next(predictions, None)
      if best is not None:
        predictions = itertools.chain([best], predictions)
      if has_negative:
        # Of answers that tie, the null answer is the last.
        predictions = heapq.merge(
          predictions, [null], key=lambda answer: -answer.score
        )
      by_text: dict[str, NbestPrediction] = {}
      for prediction in predictions:
        by_text.setdefault(prediction.text, prediction)
        if len(by_text) == settings.n_best_size:
          break
      if has_negative:
        by_text.setdefault("", null)
      elif not by_text:
        by_text["empty"] = NbestPrediction("empty", 0.0, 0.0)
      yield list(by_text.values()), *_text_and_odds(best, null_score)

  def best_predictions(
    self, settings: AnswerSettings
  ) -> Iterator[tuple[str, float]]:
    """Yields the best answer of each question, or "", and null odds."""
    # The odds are the score of the null answer minus that of the best answer.
    prelims = self.prelim_predictions(
      settings.n_best_size, settings.max_answer_length
    )
    for spans, null_score in zip(prelims, self._null_scores):
      best = next(map(self.with_text, spans), None)
      yield _text_and_odds(best, null_score)

  def answers(self, settings: AnswerSettings) -> Iterator[list[Answer]]:
    """Yields the answers to each question, best first; none without words.

    Their spans are those of a finder `in_passages`.
    """
    has_negative = settings.version_2_with_negative
    for predictions, best, odds in self.nbest_predictions(settings):
      found = answers(predictions) if best or has_negative else []
      if has_negative:
        is_null = odds > settings.null_score_diff_threshold
        chosen = "" if is_null else best
        found.sort(key=lambda answer: answer.text != chosen)
      yield found


def _text_and_odds(
  best: NbestPrediction | None, null_score: float
) -> tuple[str, float]:
  if best is None:
    return "", CERTAIN_ODDS
  return best.text, null_score - best.score


# Answers of a run: found, written and evaluated


class Answers(NamedTuple):
  """Answers by question id."""

  predictions: dict[str, str]  # "" for no answer
  nbest: dict[str, list[NbestPrediction]]
  best: dict[str, str]  # regardless of the null odds
  odds: dict[str, float]  # null odds


def find_answers(finder: AnswerFinder, settings: AnswerSettings) -> Answers:
  """Finds the answers to all questions of a finder."""
  found = Answers({}, {}, {}, {})
  has_negative = settings.version_2_with_negative
  for example, (nbest, best, odds) in zip(
    finder.examples, finder.nbest_predictions(settings)
  ):
    key = example.qas_id
    if not has_negative:
      best = nbest[0].text
    is_null = has_negative and odds > settings.null_score_diff_threshold
    found.predictions[key] = "" if is_null else best
    found.nbest[key] = nbest
    found.best[key] = best
    found.odds[key] = odds
  without = [key for key, odds in found.odds.items() if odds == CERTAIN_ODDS]
  if without:
    logging.warning(
      "%d questions have no valid answer span, such as %s",
      len(without),
      without[0],
    )
  return found


def write_answers(
  answers: Answers,
  prediction_file: str,
  nbest_file: str,
  null_odds_file: str | None = None,
) -> None:
  """Writes the files of google-research/bert; null odds are of SQuAD 2.0."""
  _write_json(prediction_file, answers.predictions)
  write_nbest_predictions(nbest_file, answers.nbest)
  if null_odds_file:
    _write_json(null_odds_file, answers.odds)


def _write_json(path: str, values: Mapping[str, str | float]) -> None:
  with atomic_write(path) as file:
    file.write(json_files.dumps(values, indent=4) + "\n")


def write_nbest_predictions(
  path: str, nbest: Mapping[str, Sequence[NbestPrediction]]
) -> None:
  """Writes the best answers of each question with their probabilities."""

  # Same output as `_write_json`, which would take a third of the decoding time.
  def number(value):
    return repr(value) if math.isfinite(value) else "null"

  questions = []
  for name, predictions in nbest.items():
    probabilities = compute_softmax([p.score for p in predictions])
    lines = [
      f"""        {{
            "text": {json_files.dumps(prediction.text)},
            "probability": {number(probability)},
            "start_logit": {number(prediction.start_logit)},
            "end_logit": {number(prediction.end_logit)}
        }}"""
      for prediction, probability in zip(predictions, probabilities)
    ]
    entries = ",\n".join(lines)
    questions.append(f"    {json_files.dumps(str(name))}: [\n{entries}\n    ]")
  with atomic_write(path) as file:
    file.write("{\n" + ",\n".join(questions) + "\n}\n")


def evaluate_answers(
  questions: Sequence[Question],
  best: Mapping[str, str],  # answers, regardless of their null odds
  odds: Mapping[str, float],
  settings: AnswerSettings,
) -> dict[str, float]:
  """Metrics of answers, in percent."""
  if settings.version_2_with_negative:
    return squad_scores.evaluate_v2(
      questions,
      best,
      odds,
      settings.null_score_diff_threshold,
      answer_nothing=-math.inf,
    )
  score = squad_scores.scorer(settings.eval_metric)
  return squad_scores.evaluate_v1(questions, best, score)


def evaluate_best(
  finder: AnswerFinder, questions: Sequence[Question], settings: AnswerSettings
) -> dict[str, float]:
  """Metrics of the best answers of a finder, in percent."""
  names = [example.qas_id for example in finder.examples]
  texts, odds = zip(*finder.best_predictions(settings))
  best = dict(zip(names, texts))
  return evaluate_answers(questions, best, dict(zip(names, odds)), settings)


# From Python


class AnswerPredictor(BatchPredictor):
  """Predicts answers to questions."""

  def predict(
    self,
    pairs: Iterable[tuple[str, str]],
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_score_diff_threshold: float | None = None,
  ) -> list[list[Answer]]:
    """Answers questions.

    Args:
      pairs: pairs of a question and a passage.
      n_best_size: maximum number of answers per question.
      max_answer_length: maximum length of an answer, in tokens.
      null_score_diff_threshold: the first answer is "" if the null score minus
        the score of the best span is above this (SQuAD 2.0 only); None for the
        one of the model, which --do_eval tunes, or 0.

    Returns:
      The answers to each question, best first; empty for a passage without
      words.

    Raises:
      InputError: a pair is not two texts, or another argument is not in the
        range of its flag.
    """
    if null_score_diff_threshold is None:
      null_score_diff_threshold = self.description.get(
        "null_score_diff_threshold", 0.0
      )
    settings = AnswerSettings(
      n_best_size,
      max_answer_length,
      self.description.get("version_2_with_negative", False),
      null_score_diff_threshold,
    )
    for name, flag in option.declarations(AnswerSettings):
      if flag.within:
        option.check_argument(name, getattr(settings, name), flag)
    pairs = batch_predictor.validated(
      pairs,
      batch_predictor.is_pair,
      "a question and a passage, both str",
      "pairs",
    )

    def decode(encoded, outputs):
      return self._finder(encoded, outputs, True).answers(settings)

    return self.predict_blocks(_examples_of(pairs), self._encode, decode)

  def _encode(self, examples: Sequence[SquadExample]):
    """Questions with their windows, and the rows of the windows."""
    settings = squad_windows.WindowSettings.of_model(self.description)
    windows = squad_windows.convert_examples_to_windows(
      examples, self.tokenizer, settings
    )
    rows = squad_windows.window_records(
      windows, settings.max_seq_length, self.tokenizer
    )
    return (examples, windows), list(rows)

  def _finder(self, encoded, outputs, in_passages=False) -> AnswerFinder:
    """Finder of the answers to questions, given them and their windows."""
    return AnswerFinder(
      *encoded,
      [stack_logits([output[kind] for output in outputs]) for kind in (0, 1)],
      self.tokenizer,
      in_passages,
    )

  def read_file(self, settings, bad):
    """See base class; a file is read as a whole."""
    path = settings.predict_file
    has_negative = settings.answers.version_2_with_negative
    questions = squad_files.read_questions(path)
    return squad_files.make_examples(questions, path, False, has_negative)[0]

  def answer_blocks(self, sets):
    """See base class; an answer is that of `find_answers`, for a question."""
    settings = self.file_settings("", {}).answers

    def decode(encoded, outputs):
      found = find_answers(self._finder(encoded, outputs), settings)
      return zip(*(part.values() for part in found))

    return self.map_blocks(sets, self._encode, decode)

  def file_formats(self, examples):
    """See base class; .json is predictions.json of run_squad.py."""
    has_negative = self.description["version_2_with_negative"]

    def json_line(example, answer):
      text, nbest, _, odds = answer
      probabilities = compute_softmax([each.score for each in nbest])
      names = "text", "probability", "start_logit", "end_logit"
      listed = [
        dict(zip(names, (each.text, probability, *each[1:3])))
        for each, probability in zip(nbest, probabilities)
      ]
      line = {"id": example.qas_id, "answer": text, "nbest": listed}
      null_odds = {"null_odds": odds} if has_negative else {}
      return batch_predictor.json_line(line | null_odds)

    def entry(example, answer):
      pair = map(json_files.dumps, (example.qas_id, answer[0]))
      return f"    {': '.join(pair)}".encode()

    return {
      ".jsonl": FileFormat(json_line),
      ".json": FileFormat(entry, lambda _: b"{\n", b",\n", b"\n}\n"),
    }


def _examples_of(pairs: Iterable[tuple[str, str]]) -> Iterator[SquadExample]:
  """Yields the examples of questions and passages."""
  passage, words = None, []
  for question, text in pairs:
    if text != passage:  # questions share the words of a passage
      passage = text
      words, _ = squad_files.split_words(text)
    yield SquadExample("", question, words, context=text)
