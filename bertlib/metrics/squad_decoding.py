"""From the scores of tokens to answers: the search for spans, and their text.

A model scores every token of every window as the start and as the end of the
answer. Here the best spans of a question are found over all of its windows,
and their word pieces turned back into the paragraph's own characters.
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
from bertlib.data import squad
from bertlib.data.squad import InputFeatures, SquadExample, Window
from bertlib.errors import InputError
from bertlib.files import open_any, write_whole
from bertlib.metrics import squad_scores
from bertlib.settings import option

# What a model says of a window, with a score for each token.
RawResult = collections.namedtuple(
  "RawResult", ["unique_id", "start_logits", "end_logits"]
)

# The odds of no answer where no span could be one.
CERTAIN_ODDS = 1e6


class Entry(NamedTuple):
  """A possible answer.

  Attributes:
    text: it, in the paragraph's characters; "" for no answer.
    start_logit: score of its first token.
    end_logit: score of its last token.
    words: its first word in the paragraph, and its last.
    place: its first character and the one after its last, in these words with
      a space between each two.
  """

  text: str
  start_logit: float
  end_logit: float
  words: tuple[int, int] = (0, -1)
  place: tuple[int, int] = (0, 0)

  @property
  def score(self) -> float:
    """The sum by which answers are ordered."""
    return self.start_logit + self.end_logit

  def place_in(
    self, words: Sequence[str], starts: Sequence[int]
  ) -> tuple[int, int]:
    """Where in the paragraph it stands.

    Args:
      words: the paragraph's words.
      starts: the character at which each begins.

    Returns:
      Its first character and the one after its last; both 0 for no answer.
    """
    if not self.text:
      return 0, 0
    places = []
    for index in range(self.words[0], self.words[1] + 1):
      # One more than the word has, for the space after it.
      places += range(starts[index], starts[index] + len(words[index]) + 1)
    start, stop = self.place
    return places[start], places[stop - 1] + 1


# The texts of spans


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool) -> str:
  """Finds what an answer made of word pieces was in the text itself.

  Args:
    pred_text: the pieces joined to words, lower-cased if the tokens are.
    orig_text: the paragraph's words that they come from.
    do_lower_case: whether the tokenizer lower-cases.

  Returns:
    The part of `orig_text` that became `pred_text`; all of it if none did.
  """
  start, stop = _find_text(pred_text, orig_text, do_lower_case)
  return orig_text[start:stop]


@functools.lru_cache(maxsize=2**14)
def _find_text(pred_text, orig_text, do_lower_case) -> tuple[int, int]:
  """Where `get_final_text` is in `orig_text`: first character, end."""
  tok_text = _tokenized(orig_text, do_lower_case)
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
def _tokenized(text: str, do_lower_case: bool) -> str:
  """The text's words with a space between each two."""
  return " ".join(tokenization.BasicTokenizer(do_lower_case).tokenize(text))


def _num_characters(text: str) -> int:
  """How many characters are no spaces."""
  return len(text) - text.count(" ")


def _nth_character(text: str, n: int) -> int:
  """Where the n-th character, from 0, that is no space stands."""
  place = n
  while place != n + text.count(" ", 0, place + 1):
    place = n + text.count(" ", 0, place + 1)
  return place


def _join_pieces(tokens: Sequence[str]) -> str:
  """Word pieces as words with a space between each two."""
  text = " ".join(tokens).replace(" ##", "").replace("##", "")
  return " ".join(text.split())


# The search


class _Tokens(NamedTuple):
  """What the search reads of `InputFeatures`: those of a `Window`'s names."""

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
  """Finds the answers to questions in the scores of their windows' tokens.

  Made once, it decodes with one setting after the other.
  """

  def __init__(
    self,
    examples: Sequence[SquadExample],
    features: Sequence[InputFeatures | Window],
    results: Sequence[RawResult],
    do_lower_case: bool,
  ):
    """Takes windows and the model's scores of them.

    Args:
      examples: the questions.
      features: their windows; those of other questions are left out.
      results: the scores of each window, in any order.
      do_lower_case: whether the tokenizer lower-cases.

    Raises:
      InputError: a window of these questions has no scores.
    """
    self._examples = examples
    self._features = [
      _searchable(feature)
      for feature in features
      if feature.example_index < len(examples)
    ]
    self._do_lower_case = do_lower_case
    self._starts, self._ends = self._find_scores(results)
    self._start_order = best_first(self._starts)
    self._end_order = best_first(self._ends)
    self._may_start = np.zeros(self._starts.shape, bool)
    self._may_end = np.zeros(self._starts.shape, bool)
    for row, feature in enumerate(self._features):
      part = slice(len(feature.words))
      self._may_start[row, part] = feature.is_max_context
      self._may_end[row, part] = feature.words >= 0
    self._example_index = np.array(
      [feature.example_index for feature in self._features], int
    )
    self._null_scores, self._null_entries = self._find_null()

  def _find_scores(self, results) -> Iterator[np.ndarray]:
    """The scores as start, then those as end: [windows, tokens]."""
    by_id = {result.unique_id: result for result in results}
    for feature in self._features:
      if feature.unique_id not in by_id:
        question = self._examples[feature.example_index].qas_id
        raise InputError(
          f"question {question}: there is no RawResult for its window"
          f" {feature.unique_id}. Give the results of all windows of a question"
        )
    scores = [by_id[feature.unique_id] for feature in self._features]
    for name in ("start_logits", "end_logits"):
      rows = [getattr(result, name) for result in scores]
      width = max(map(len, rows), default=0)
      for index, row in enumerate(rows):
        if len(row) < width:
          rows[index] = [*row, *[-math.inf] * (width - len(row))]
      yield np.array(rows).reshape(len(rows), width)

  def _find_null(self) -> tuple[list[float], list[Entry]]:
    """Of each question the lowest score of its windows' [CLS], no answer."""
    scores = [1e6] * len(self._examples)
    entries = [Entry("", 0.0, 0.0)] * len(self._examples)
    for row, index in enumerate(self._example_index.tolist()):
      entry = Entry("", self._starts[row, 0].item(), self._ends[row, 0].item())
      if entry.score < scores[index]:
        scores[index], entries[index] = entry.score, entry
    return scores, entries

  def find_spans(
    self, n_best_size: int, max_answer_length: int
  ) -> Iterator[Iterator[Entry]]:
    """Finds the spans that could be answers, for one question after the other.

    Their ends are among the `n_best_size` best scored tokens of the window.

    Args:
      n_best_size: tokens that are considered as start and as end.
      max_answer_length: tokens of an answer, at most.

    Yields:
      For each question its spans, the best first; of equal ones that with the
      earlier window, then the better start, then the better end.
    """
    parts = [np.zeros([3, 0], int)]
    block_size = 1024  # windows at a time, for the sake of memory
    for first in range(0, len(self._features), block_size):
      block = slice(first, first + block_size)
      starts = self._start_order[block, :n_best_size]
      ends = self._end_order[block, :n_best_size]
      may_start = np.take_along_axis(self._may_start[block], starts, axis=1)
      may_end = np.take_along_axis(self._may_end[block], ends, axis=1)
      lengths = ends[:, None, :] - starts[:, :, None] + 1  # [windows, n, n]
      is_span = (lengths > 0) & (lengths <= max_answer_length)
      is_span &= may_start[:, :, None] & may_end[:, None, :]
      row, i, j = np.nonzero(is_span)
      parts.append(np.stack([row + first, starts[row, i], ends[row, j]]))
    rows, starts, ends = np.concatenate(parts, axis=1)
    # Sums are made in double precision, as the reference makes them.
    start_logits = self._starts[rows, starts].astype(np.float64)
    end_logits = self._ends[rows, ends].astype(np.float64)
    questions = self._example_index[rows]
    order = np.lexsort([-(start_logits + end_logits), questions])  # is stable
    bounds = np.searchsorted(
      questions[order], np.arange(len(self._examples) + 1)
    )
    columns = rows, starts, ends, start_logits, end_logits
    for first, stop in zip(bounds, bounds[1:]):
      chosen = order[first:stop]
      yield map(self._entry, *(column[chosen].tolist() for column in columns))

  def _entry(self, row, start, end, start_logit, end_logit) -> Entry:
    feature = self._features[row]
    first, last = int(feature.words[start]), int(feature.words[end])
    doc_tokens = self._examples[feature.example_index].doc_tokens
    orig_text = " ".join(doc_tokens[first : last + 1])
    place = _find_text(
      _join_pieces(feature.tokens[start : end + 1]),
      orig_text,
      self._do_lower_case,
    )
    text = orig_text[slice(*place)]
    return Entry(text, start_logit, end_logit, (first, last), place)

  def n_best(
    self,
    n_best_size: int,
    max_answer_length: int,
    version_2_with_negative: bool = False,
  ) -> Iterator[tuple[list[Entry], str, float]]:
    """Lists the best answers, for one question after the other.

    Args:
      n_best_size: how many, at most; see `find_spans` too.
      max_answer_length: tokens of an answer, at most.
      version_2_with_negative: whether no answer is one of them.

    Yields:
      For each question its best answers, each text once; and what `best`
      gives.
    """
    spans = self.find_spans(n_best_size, max_answer_length)
    for entries, null, null_score in zip(
      spans, self._null_entries, self._null_scores
    ):
      best = next(entries, None)
      if best is not None:
        entries = itertools.chain([best], entries)
      if version_2_with_negative:
        entries = _with_null(entries, null)
      by_text: dict[str, Entry] = {}
      for entry in entries:
        by_text.setdefault(entry.text, entry)
        if len(by_text) == n_best_size:
          break
      if version_2_with_negative:
        by_text.setdefault("", null)
      elif not by_text:
        by_text["empty"] = Entry("empty", 0.0, 0.0)
      yield list(by_text.values()), *_text_and_odds(best, null_score)

  def best(
    self, n_best_size: int, max_answer_length: int
  ) -> Iterator[tuple[str, float]]:
    """Gives the best answer alone, for one question after the other.

    Args:
      n_best_size: see `find_spans`.
      max_answer_length: tokens of an answer, at most.

    Yields:
      For each question the best answer, "" where no span could be one; and the
      odds of no answer: by how much that scores better.
    """
    spans = self.find_spans(n_best_size, max_answer_length)
    for entries, null_score in zip(spans, self._null_scores):
      yield _text_and_odds(next(entries, None), null_score)


def best_first(scores: np.ndarray) -> np.ndarray:
  """Indexes of the scores, the highest first; of equal ones the first.

  Args:
    scores: [..., tokens].

  Returns:
    int32 [..., tokens].
  """
  return np.argsort(-scores, axis=-1, kind="stable").astype(np.int32)


def _get_best_indexes(logits: Sequence[float], n_best_size: int) -> list[int]:
  """The first indexes of `best_first`, at most `n_best_size`."""
  return best_first(np.array(logits))[:n_best_size].tolist()


def _text_and_odds(best: Entry | None, null_score: float) -> tuple[str, float]:
  if best is None:
    return "", CERTAIN_ODDS
  return best.text, null_score - best.score


def _with_null(entries: Iterator[Entry], null: Entry) -> Iterator[Entry]:
  """Puts no answer where its score belongs; of equal ones it is the last."""
  for entry in entries:
    if entry.score < null.score:
      yield null
      yield entry
      break
    yield entry
  else:
    yield null
  yield from entries


# To files


def write_predictions(
  all_examples: Sequence[SquadExample],
  all_features: Sequence[InputFeatures],
  all_results: Sequence[RawResult],
  n_best_size: int,
  max_answer_length: int,
  do_lower_case: bool,
  output_prediction_file: str,
  output_nbest_file: str,
  output_null_log_odds_file: str,
  version_2_with_negative: bool | None = None,
  null_score_diff_threshold: float | None = None,
) -> None:
  """Finds the answers to all questions and writes them.

  Args:
    all_examples: the questions.
    all_features: their windows, and any of other questions.
    all_results: the scores of each window of these questions, in any order.
    n_best_size: how many answers a question gets in the second file, at most.
    max_answer_length: tokens of an answer, at most.
    do_lower_case: whether the tokenizer lower-cases.
    output_prediction_file: gets the answer by question id.
    output_nbest_file: gets the best answers with probabilities and scores.
    output_null_log_odds_file: gets the odds of no answer, for 2.0 alone.
    version_2_with_negative: whether there may be no answer; None for what
      `option.value_of` gives.
    null_score_diff_threshold: above these odds there is none; likewise.

  Raises:
    InputError: a window of these questions has no scores.
  """
  if version_2_with_negative is None:
    version_2_with_negative = option.value_of("version_2_with_negative", False)
  if null_score_diff_threshold is None:
    null_score_diff_threshold = option.value_of(
      "null_score_diff_threshold", 0.0
    )
  write_answers(
    all_examples,
    AnswerFinder(all_examples, all_features, all_results, do_lower_case),
    n_best_size,
    max_answer_length,
    output_prediction_file,
    output_nbest_file,
    output_null_log_odds_file,
    version_2_with_negative,
    null_score_diff_threshold,
  )


def write_answers(
  examples: Sequence[SquadExample],
  finder: AnswerFinder,
  n_best_size: int,
  max_answer_length: int,
  output_prediction_file: str,
  output_nbest_file: str,
  output_null_log_odds_file: str,
  version_2_with_negative: bool,
  null_score_diff_threshold: float,
) -> tuple[dict[str, str], dict[str, float]]:
  """Writes the answers that `finder` finds, see `write_predictions`.

  Returns:
    By question id the answer, whatever the odds of none; and these odds.
  """
  predictions, n_best, answers, odds = {}, {}, {}, {}
  found = finder.n_best(n_best_size, max_answer_length, version_2_with_negative)
  for example, (entries, best, null_odds) in zip(examples, found):
    name = example.qas_id
    n_best[name] = entries
    odds[name] = null_odds
    answers[name] = best if version_2_with_negative else entries[0].text
    is_none = version_2_with_negative and null_odds > null_score_diff_threshold
    predictions[name] = "" if is_none else answers[name]
  write_json(output_prediction_file, predictions)
  write_n_best(output_nbest_file, n_best)
  if version_2_with_negative:
    write_json(output_null_log_odds_file, odds)
  return answers, odds


def write_json(path: str, values: Any) -> None:
  """Writes an indented JSON file.

  Args:
    path: the file.
    values: what it shall hold.
  """
  _write_text(path, json.dumps(values, indent=4) + "\n")


def _write_text(path: str, text: str) -> None:
  """Writes a file whole; an empty one that somebody holds open gets the text.

  A handle of a temporary file that was made for the purpose can thus be read.
  """
  with contextlib.ExitStack() as stack:
    held = None
    if os.path.isfile(path) and not os.path.getsize(path):
      held = stack.enter_context(open_any(path, "r+"))
    with write_whole(path) as file:
      file.write(text)
    if held:
      held.write(text)


def write_n_best(path: str, n_best: Mapping[str, Sequence[Entry]]) -> None:
  """Writes lists of answers with their probabilities.

  Args:
    path: the file.
    n_best: the best answers by question id, each at least one.
  """
  # As `write_json` would, which takes a third of all of decoding for this.
  questions = []
  for name, entries in n_best.items():
    lines = [
      f"""        {{
            "text": {json.dumps(entry.text)},
            "probability": {probability!r},
            "start_logit": {entry.start_logit!r},
            "end_logit": {entry.end_logit!r}
        }}"""
      for entry, probability in zip(entries, probabilities(entries))
    ]
    listed = ",\n".join(lines)
    questions.append(f"    {json.dumps(name)}: [\n{listed}\n    ]")
  _write_text(path, "{\n" + ",\n".join(questions) + "\n}\n")


def probabilities(entries: Sequence[Entry]) -> list[float]:
  """The softmax of the entries' scores."""
  return _compute_softmax([entry.score for entry in entries])


def _compute_softmax(scores: Sequence[float]) -> list[float]:
  highest = max(scores, default=0.0)
  powers = [math.exp(score - highest) for score in scores]
  total = squad_scores.sum_in_order(powers)
  return [power / total for power in powers]


# The scores of tokens, kept to decode them again


def save_logits(path: str, key: str, logits: np.ndarray) -> None:
  """Writes what a model says of windows.

  Args:
    path: the file, npz.
    key: names the windows, see `squad.cache_key`.
    logits: float32 [2, windows, tokens], scores of starts and of ends.
  """
  unique_ids = np.arange(logits.shape[1]) + squad.FIRST_UNIQUE_ID
  with write_whole(path, "wb") as file:
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
    key: names the windows.

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
      f"{path}: not a file of --save_logits ({error})"
    ) from error
  if saved_key != key:
    raise InputError(
      f"{path}: is of other questions or other windows. Give the flags with"
      " which it was made (data, vocabulary, lengths), or make it again"
    )
  return logits
