"""Files of SQuAD answers, and of logits to find answers from."""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.io import json_files
from bertlib.io.files import atomic_write, open_any
from bertlib.tasks.squad import squad_features
from bertlib.tasks.squad.squad_decoding import (
  AnswerFinder,
  NbestPrediction,
  RawResult,
  compute_softmax,
  stack_logits,
)
from bertlib.tasks.squad.squad_examples import SquadExample
from bertlib.tasks.squad.squad_features import InputFeatures, Windows

# Answers


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
) -> tuple[dict[str, str], dict[str, float]]:
  """Finds the answers to all questions and writes them.

  Args:
    all_examples: the questions.
    all_features: their windows; windows of other questions are ignored.
    all_results: the logits of each window of these questions, in any order.
    n_best_size: maximum number of answers per question in the n-best file.
    max_answer_length: maximum length of an answer in tokens.
    do_lower_case: whether the tokenizer lower-cases.
    output_prediction_file: receives the answer by question id.
    output_nbest_file: receives the best answers with probabilities and logits.
    output_null_log_odds_file: receives the null odds, for SQuAD 2.0 only.
    version_2_with_negative: whether questions may have no answer; None for the
      flag's value.
    null_score_diff_threshold: null odds above this mean no answer; None for the
      flag's value.

  Returns:
    Answers by question id, regardless of the null odds; and the null odds.

  Raises:
    InputError: a window of these questions has no logits.
  """
  if version_2_with_negative is None:
    version_2_with_negative = option.value_of("version_2_with_negative", False)
  if null_score_diff_threshold is None:
    null_score_diff_threshold = option.value_of(
      "null_score_diff_threshold", 0.0
    )
  return write_answers(
    finder_of(all_examples, all_features, all_results, do_lower_case),
    n_best_size,
    max_answer_length,
    output_prediction_file,
    output_nbest_file,
    output_null_log_odds_file,
    version_2_with_negative,
    null_score_diff_threshold,
  )


def finder_of(
  examples: Sequence[SquadExample],
  features: Sequence[InputFeatures],
  results: Sequence[RawResult],
  do_lower_case: bool,
) -> AnswerFinder:
  """An `AnswerFinder` of features and results of google-research/bert."""
  features = [f for f in features if f.example_index < len(examples)]
  by_id = {result.unique_id: result for result in results}
  for feature in features:
    if feature.unique_id not in by_id:
      question = examples[feature.example_index].qas_id
      raise InputError(
        f"question {question}: there is no RawResult for its window"
        f" {feature.unique_id}. Give the results of all windows of a question"
      )
  ordered = [by_id[feature.unique_id] for feature in features]
  logits = [
    stack_logits([getattr(result, name) for result in ordered])
    for name in ("start_logits", "end_logits")
  ]
  pieces = sorted({token for f in features for token in f.tokens})
  return AnswerFinder(
    examples,
    _as_windows(features, {piece: i for i, piece in enumerate(pieces)}),
    logits,
    do_lower_case,
    dict(enumerate(pieces)),
  )


def _as_windows(
  features: Sequence[InputFeatures], ids: Mapping[str, int]
) -> Windows:
  """The columns of features that an `AnswerFinder` reads; others are 0."""
  tokens = [
    (
      ids[token],
      feature.token_to_orig_map.get(position, -1),
      feature.token_is_max_context.get(position, False),
    )
    for feature in features
    for position, token in enumerate(feature.tokens)
  ]
  zeros = np.zeros(len(features), np.int32)
  columns = dict.fromkeys(Windows._fields, zeros) | {
    "example_index": np.array([f.example_index for f in features], np.int32),
    "length": np.array([len(f.tokens) for f in features], np.int32),
  }
  table = np.array(tokens, np.int32).reshape(-1, 3).T
  columns |= {"ids": table[0], "word": table[1]}
  may_start = (table[1] >= 0) & (table[2] > 0)
  return Windows(**columns | {"is_max_context": may_start})


def write_answers(
  finder: AnswerFinder,
  n_best_size: int,
  max_answer_length: int,
  output_prediction_file: str,
  output_nbest_file: str,
  output_null_log_odds_file: str,
  version_2_with_negative: bool,
  null_score_diff_threshold: float,
) -> tuple[dict[str, str], dict[str, float]]:
  """`write_predictions`, with a finder that may decode again afterwards."""
  found = finder.nbest_predictions(
    n_best_size, max_answer_length, version_2_with_negative
  )
  predictions, nbest, answers, odds = {}, {}, {}, {}
  for example, (nbest_predictions, best, null_odds) in zip(
    finder.examples, found
  ):
    key = example.qas_id
    nbest[key] = nbest_predictions
    odds[key] = null_odds
    answers[key] = best if version_2_with_negative else nbest[key][0].text
    is_null = version_2_with_negative and null_odds > null_score_diff_threshold
    predictions[key] = "" if is_null else answers[key]
  write_json(output_prediction_file, predictions)
  write_nbest_predictions(output_nbest_file, nbest)
  if version_2_with_negative:
    write_json(output_null_log_odds_file, odds)
  return answers, odds


def write_json(path: str, values: Any) -> None:
  """Writes an indented JSON file."""
  _write_text(path, json_files.dumps(values, indent=4) + "\n")


def _write_text(path: str, text: str) -> None:
  """Writes a file atomically."""
  with contextlib.ExitStack() as stack:
    # An existing empty file is also written in place, since the caller may hold
    # a handle of it (`tempfile.NamedTemporaryFile`).
    existing = None
    if os.path.isfile(path) and not os.path.getsize(path):
      existing = stack.enter_context(open_any(path, "r+"))
    with atomic_write(path) as file:
      file.write(text)
    if existing:
      existing.write(text)


def write_nbest_predictions(
  path: str, nbest: Mapping[str, Sequence[NbestPrediction]]
) -> None:
  """Writes the best answers of each question with their probabilities."""

  # Same output as `write_json`, which would take a third of the decoding time.
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
  _write_text(path, "{\n" + ",\n".join(questions) + "\n}\n")


# Saved logits, to decode them again

# Errors of NumPy and `zipfile` for a file of another format, or with flipped
# bytes: an array without a context, an offset out of the file, a flag of
# encryption or an unknown method of compression.
_NOT_LOGITS = (
  AttributeError,
  EOFError,
  KeyError,
  OSError,
  RuntimeError,
  TypeError,
  ValueError,
  zipfile.BadZipFile,
  zlib.error,
)


def save_logits(path: str, key: str, logits: np.ndarray) -> None:
  """Saves start and end logits of windows, float32 [2, windows, S], as .npz."""
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
  """Loads logits saved with the same key: float32 [2, windows, S]."""
  with open_any(path, "rb") as file:
    try:
      with np.load(file) as arrays:
        saved_key = arrays["key"].item()
        logits = np.stack([arrays["start_logits"], arrays["end_logits"]])
    except _NOT_LOGITS as error:
      raise InputError(
        f"{path}: not a file of --save_logits. Name one, or predict again"
        " without --from_logits"
      ) from error
  if saved_key != key:
    raise InputError(
      f"{path}: is of other questions or other windows. Pass the flags with"
      " which it was saved (data, vocabulary, lengths), or save it again"
    )
  return logits
