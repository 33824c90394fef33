"""Answers of a run: found from logits, written, evaluated; saved logits."""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from bertlib.cli.errors import InputError
from bertlib.io import json_files
from bertlib.io.files import atomic_write, open_any
from bertlib.settings.squad import AnswerSettings
from bertlib.tasks.squad import squad_scores, squad_windows
from bertlib.tasks.squad.squad_decoding import (
  CERTAIN_ODDS,
  AnswerFinder,
  NbestPrediction,
  compute_softmax,
)
from bertlib.tasks.squad.squad_files import Question
from bertlib.tasks.squad.squad_windows import Windows


class Answers(NamedTuple):
  """Answers by question id."""

  predictions: dict[str, str]  # "" for no answer
  nbest: dict[str, list[NbestPrediction]]
  best: dict[str, str]  # regardless of the null odds
  odds: dict[str, float]  # null odds


def find_answers(finder: AnswerFinder, settings: AnswerSettings) -> Answers:
  """Finds the answers to all questions of a finder."""
  answers = Answers({}, {}, {}, {})
  has_negative = settings.version_2_with_negative
  for example, (nbest, best, odds) in zip(
    finder.examples, finder.nbest_predictions(settings)
  ):
    key = example.qas_id
    if not has_negative:
      best = nbest[0].text
    is_null = has_negative and odds > settings.null_score_diff_threshold
    answers.predictions[key] = "" if is_null else best
    answers.nbest[key] = nbest
    answers.best[key] = best
    answers.odds[key] = odds
  without = [key for key, odds in answers.odds.items() if odds == CERTAIN_ODDS]
  if without:
    logging.warning(
      "%d questions have no valid answer span, such as %s",
      len(without),
      without[0],
    )
  return answers


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


# Metrics


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


def save_logits(path: str, windows: Windows, logits: np.ndarray) -> None:
  """Saves start and end logits of windows, float32 [2, windows, S], as .npz."""
  unique_ids = np.arange(logits.shape[1]) + squad_windows.FIRST_UNIQUE_ID
  with atomic_write(path, "wb") as file:
    np.savez(
      file,
      key=_digest(windows),
      unique_ids=unique_ids,
      start_logits=logits[0],
      end_logits=logits[1],
    )


def load_logits(path: str, windows: Windows) -> np.ndarray:
  """Loads logits saved for the same windows: float32 [2, windows, S]."""
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
  if saved_key != _digest(windows):
    raise InputError(
      f"{path}: is of other questions or other windows. Pass the flags with"
      " which it was saved (data, vocabulary, lengths), or save it again"
    )
  return logits


def _digest(windows: Windows) -> str:
  digest = hashlib.sha256()
  for column in windows:
    digest.update(column.tobytes())
  return digest.hexdigest()
