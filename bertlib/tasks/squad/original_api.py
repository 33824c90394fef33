"""Names of google-research/bert's run_squad.py that only other programs use.

Its features and results are objects of each window; this project has `Windows`
and arrays of logits. Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np

import tokenization
from bertlib.cli import option
from bertlib.data import tf_records
from bertlib.io.files import atomic_write, open_any
from bertlib.tasks.squad import squad_decoding, squad_files, squad_windows
from bertlib.tasks.squad.settings import AnswerSettings
from bertlib.tasks.squad.squad_files import SquadExample
from bertlib.tasks.squad.squad_windows import Windows

# Examples


def read_squad_examples(
  input_file: str,
  is_training: bool,
  version_2_with_negative: bool | None = None,  # None for the flag's value
  unaligned: list[dict[str, str]] | None = None,  # receives skipped questions
) -> list[SquadExample]:
  """Reads a file in SQuAD format, see `squad_files.make_examples`."""
  if version_2_with_negative is None:
    version_2_with_negative = option.value_of("version_2_with_negative", False)
  examples, skipped = squad_files.make_examples(
    squad_files.read_questions(input_file),
    input_file,
    is_training,
    version_2_with_negative,
  )
  if unaligned is not None:
    unaligned += skipped
  return examples


# Features


@dataclasses.dataclass(eq=False)
class InputFeatures:
  """Features of a window."""

  unique_id: int
  example_index: int  # of the question
  doc_span_index: int  # of the window within its question
  tokens: list[str]  # without padding
  # By position of a token of the paragraph: index of its word; whether no other
  # window shows it with more context.
  token_to_orig_map: dict[int, int]
  token_is_max_context: dict[int, bool]
  input_ids: list[int]  # padded with 0, as are the next two
  input_mask: list[int]
  segment_ids: list[int]
  # Positions of the answer's first and last token; 0 if the window does not
  # contain the answer, None if it is unknown.
  start_position: int | None = None
  end_position: int | None = None
  is_impossible: bool | None = None  # whether the question has no answer


def convert_examples_to_features(
  examples: Sequence[SquadExample],  # grouped by paragraph
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
  doc_stride: int,
  max_query_length: int,
  is_training: bool,
  output_fn: Callable[[InputFeatures], Any],
) -> None:
  """Calls `output_fn` with each window of all questions."""
  windows = squad_windows.convert_examples_to_windows(
    examples,
    tokenizer,
    squad_windows.WindowSettings(
      max_seq_length, doc_stride, max_query_length, is_training
    ),
  )
  for feature in iterate_features(windows, max_seq_length, tokenizer):
    output_fn(feature)


def iterate_features(
  windows: Windows, max_seq_length: int, tokenizer: tokenization.Tokenizer
) -> Iterator[InputFeatures]:
  """Yields the windows as features of google-research/bert."""
  end = 0
  for row, record in enumerate(
    squad_windows.window_records(windows, max_seq_length, tokenizer)
  ):
    begin, end = end, end + int(windows.length[row])
    first = int(windows.query_length[row])
    first += tokenizer.special_tokens.num_before_second
    paragraph = slice(begin + first, end - 1)
    position = int(windows.start_position[row])
    yield InputFeatures(
      record["unique_ids"],
      int(windows.example_index[row]),
      int(windows.doc_span_index[row]),
      tokenizer.convert_ids_to_tokens(windows.ids[begin:end].tolist()),
      dict(enumerate(windows.word[paragraph].tolist(), first)),
      dict(enumerate(windows.is_max_context[paragraph].tolist(), first)),
      record["input_ids"],
      record["input_mask"],
      record["segment_ids"],
      None if position < 0 else position,
      None if position < 0 else int(windows.end_position[row]),
      bool(windows.is_impossible[row]),
    )


class FeatureWriter:
  """Writes windows to a TFRecord file, which appears when it is closed."""

  # As a context manager it closes the file; after an error, no file is left.
  def __init__(self, filename: str, is_training: bool):
    """Opens the file; training records have answers."""
    self.filename = filename
    self.is_training = is_training
    self.num_features = 0
    self._stack = contextlib.ExitStack()
    self._file = self._stack.enter_context(atomic_write(filename, "wb"))
    # The length matters for reading only.
    self._encode = tf_records.record_encoder(
      squad_windows.record_layout(0, is_training)
    )

  def process_feature(self, feature: InputFeatures) -> None:
    """Writes a window."""
    record = {
      "unique_ids": feature.unique_id,
      "input_ids": feature.input_ids,
      "input_mask": feature.input_mask,
      "segment_ids": feature.segment_ids,
      "start_positions": feature.start_position,
      "end_positions": feature.end_position,
      "is_impossible": int(bool(feature.is_impossible)),
    }
    self._file.write(tf_records.frame_record(self._encode(record)))
    self.num_features += 1

  def close(self) -> None:
    """Finishes the file."""
    self._stack.close()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._stack.__exit__(*error)


# Answers

# Logits of a window: `start_logits` and `end_logits`, a number per token.
RawResult = collections.namedtuple(
  "RawResult", ["unique_id", "start_logits", "end_logits"]
)


def write_predictions(
  all_examples: Sequence[SquadExample],
  all_features: Sequence[InputFeatures],  # those of other questions are ignored
  all_results: Sequence[RawResult],  # of each window of the questions
  n_best_size: int,
  max_answer_length: int,
  do_lower_case: bool,
  output_prediction_file: str,
  output_nbest_file: str,
  output_null_log_odds_file: str,  # for SQuAD 2.0 only
  version_2_with_negative: bool | None = None,  # None for the flag's value
  null_score_diff_threshold: float | None = None,  # likewise
) -> tuple[dict[str, str], dict[str, float]]:
  """Writes answers; returns those regardless of the null odds, and the odds."""
  if version_2_with_negative is None:
    version_2_with_negative = option.value_of("version_2_with_negative", False)
  if null_score_diff_threshold is None:
    null_score_diff_threshold = option.value_of(
      "null_score_diff_threshold", 0.0
    )
  answers = squad_decoding.find_answers(
    finder_of(all_examples, all_features, all_results, do_lower_case),
    AnswerSettings(
      n_best_size,
      max_answer_length,
      version_2_with_negative,
      null_score_diff_threshold,
    ),
  )
  paths = [output_prediction_file, output_nbest_file]
  if version_2_with_negative:
    paths.append(output_null_log_odds_file)
  # An existing empty file is also written in place, since the caller may hold
  # a handle of it (`tempfile.NamedTemporaryFile`).
  held = {
    path: open_any(path, "r+")
    for path in paths
    if os.path.isfile(path) and not os.path.getsize(path)
  }
  squad_decoding.write_answers(answers, *paths)
  for path, file in held.items():
    with file, open_any(path) as written:
      file.write(written.read())
  return answers.best, answers.odds


def finder_of(
  examples: Sequence[SquadExample],
  features: Sequence[InputFeatures],
  results: Sequence[RawResult],
  do_lower_case: bool,
) -> squad_decoding.AnswerFinder:
  """An `AnswerFinder` of features and results of google-research/bert."""
  features = [f for f in features if f.example_index < len(examples)]
  by_id = {result.unique_id: result for result in results}
  ordered = [by_id[feature.unique_id] for feature in features]
  logits = [
    squad_decoding.stack_logits([getattr(result, name) for result in ordered])
    for name in ("start_logits", "end_logits")
  ]
  pieces = sorted({token for f in features for token in f.tokens})
  vocab = {piece: index for index, piece in enumerate(pieces)}
  return squad_decoding.AnswerFinder(
    examples,
    _as_windows(features, vocab),
    logits,
    tokenization.FullTokenizer(vocab, do_lower_case),
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


# Functions


def _improve_answer_span(
  doc_tokens: Sequence[str],
  input_start: int,
  input_end: int,
  tokenizer: tokenization.FullTokenizer,
  orig_answer_text: str,
) -> tuple[int, int]:
  """See `squad_windows.improve_answer_span`."""
  return squad_windows.improve_answer_span(
    doc_tokens, input_start, input_end, tokenizer.tokenize(orig_answer_text)
  )


def _get_best_indexes(logits: Sequence[float], n_best_size: int) -> list[int]:
  """See `squad_decoding.get_best_indexes`."""
  return squad_decoding.get_best_indexes(np.array(logits), n_best_size).tolist()
