"""Encodes classification examples as TFRecords and reads them as batches."""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import tokenization
from bertlib.cli.errors import InputError, some_of
from bertlib.data import model_inputs, tf_records, training_records
from bertlib.settings.common import TRUNCATE, LongTextSettings
from bertlib.tasks.classification.classification import (
  Example,
  InputExample,
  PaddingInputExample,
  Problem,
  pairs_of,
)

# Examples to features


@dataclasses.dataclass(eq=False, repr=False)
class InputFeatures:
  """The model inputs of one example."""

  input_ids: list[int]  # padded with 0
  input_mask: list[int]  # 1 at tokens, 0 at padding
  segment_ids: list[int]  # 1 in the second text, else 0
  # Index of the label; a float for regression; a 0/1 vector over the labels for
  # multi-label classification.
  label_id: int | float | list[float]
  is_real_example: bool = True  # False for an example that pads the last batch

  def as_record(self) -> dict[str, Any]:
    """The features by their TFRecord keys."""
    return {
      "input_ids": self.input_ids,
      "input_mask": self.input_mask,
      "segment_ids": self.segment_ids,
      "label_ids": self.label_id,
      "is_real_example": int(self.is_real_example),
    }


def record_layout(
  max_seq_length: int,
  problem: Problem | None = None,
  has_windows: bool = False,  # whether texts have several records
) -> tf_records.Layout:
  """Layout of the classifier's records: tokens are [S], or [choices, S]."""
  problem = problem or Problem()
  weights = {"example_weights": tf_records.Feature(is_float=True, default=1.0)}
  has_choices = problem.kind == "multiple_choice"
  return tf_records.token_layout(
    max_seq_length, problem.num_labels if has_choices else None
  ) | {
    "label_ids": tf_records.Feature(
      (problem.num_labels,) if problem.kind == "multi_label" else (),
      is_float=problem.kind in ("regression", "multi_label"),
    ),
    # Records of the first releases, and of NVIDIA's BERT, lack it.
    "is_real_example": tf_records.Feature(default=1),
    **(weights if has_windows else {}),
  }


def convert_single_example(
  ex_index: int,
  example: Example | PaddingInputExample,
  label_list: Sequence[str],
  max_seq_length: int,
  tokenizer: tokenization.Tokenizer,
  problem: Problem | None = None,
) -> InputFeatures:
  """Encodes one example; logs its tokens if it is the first.

  Args:
    ex_index: index of the example; the one at 0 is logged.
    example: an example of the task, or padding.
    label_list: the label set; empty for regression. An example without a
      label gets the index of the first.
    max_seq_length: length of the features, in tokens.
    tokenizer: the model's tokenizer.
    problem: the task; None to infer it from `label_list`.

  Raises:
    InputError: the label is not in the label set.
  """
  problem = problem or _problem_from_labels(label_list)
  rows = encode_examples(
    [example], problem, max_seq_length, tokenizer, ex_index
  )
  (features,), _ = next(rows)
  return features


def _problem_from_labels(label_list: Sequence[str] | None) -> Problem:
  """Classification with these labels; regression if there are none."""
  labels = [] if label_list is None else list(label_list)
  return Problem("classification" if labels else "regression", labels)


def encode_examples(
  examples: Iterable[Example | PaddingInputExample],
  problem: Problem,
  max_seq_length: int,
  tokenizer: tokenization.Tokenizer,
  first_index: int = 0,  # the tokens of example 0 are logged
  cutting: LongTextSettings = TRUNCATE,
) -> Iterator[tuple[list[InputFeatures], list[model_inputs.EncodedPair]]]:
  """Encodes examples: the features of windows, and the encoded texts."""
  examples, read = itertools.tee(examples)
  pairs = itertools.chain.from_iterable(map(pairs_of, read))
  encoded = model_inputs.encode_windows(
    tokenizer, pairs, max_seq_length, cutting
  )
  for index, example in enumerate(examples, first_index):
    if isinstance(example, PaddingInputExample):
      yield [_padding(problem, max_seq_length)], []
      continue
    rows = list(itertools.islice(encoded, len(pairs_of(example))))
    # A group for each choice, or one of all windows.
    groups = [*zip(*rows)]
    rows = [*itertools.chain.from_iterable(rows)]
    model_inputs.warn_of_many_windows(example.guid, len(groups))
    if index == 0:
      _log(example, groups[0], tokenizer)
    label_id = _label_id(example, problem)
    features = [
      InputFeatures(
        *(
          [*itertools.chain.from_iterable(getattr(row, name) for row in group)]
          for name in model_inputs.TOKEN_FEATURES
        ),
        label_id,
      )
      for group in groups
    ]
    yield features, rows


def _padding(problem: Problem, max_seq_length: int) -> InputFeatures:
  """Features of an example that only fills a batch."""
  choices = problem.num_labels if problem.kind == "multiple_choice" else 1
  zeros = [0] * (max_seq_length * choices)
  is_multi_label = problem.kind == "multi_label"
  label_id = [0] * problem.num_labels if is_multi_label else 0
  return InputFeatures(zeros, zeros, zeros, label_id, False)


def _log(example, rows: Iterable[model_inputs.EncodedPair], tokenizer) -> None:
  """Logs the tokens of an example."""
  # Test sets have placeholder labels, which would mislead in the log.
  is_labelled = not str(example.guid).startswith("test-")
  label = f", label {example.label}" if is_labelled and example.label else ""
  logging.info("Example %s%s", example.guid, label)
  for row in rows:
    tokens = tokenizer.convert_ids_to_tokens(row.input_ids[: row.num_tokens])
    logging.info("  tokens: %s", " ".join(tokens))


def _label_id(example: Example, problem: Problem):
  """Converts a label to `InputFeatures.label_id`."""
  if problem.kind == "multi_label":
    return [float(label in (example.label or ())) for label in problem.labels]
  if example.label is None:
    return 0
  if problem.kind == "regression":
    return float(example.label)
  if example.label not in problem.labels:
    raise InputError(
      f"example {example.guid}: unknown label {example.label!r}; the labels"
      f" are {some_of([*map(repr, problem.labels)])}"
    )
  return problem.labels.index(example.label)


def convert_examples_to_features(
  examples: Iterable[InputExample | PaddingInputExample],
  label_list: Sequence[str],
  max_seq_length: int,
  tokenizer: tokenization.Tokenizer,
) -> list[InputFeatures]:
  """Encodes all examples, see `convert_single_example`."""
  problem = _problem_from_labels(label_list)
  rows = encode_examples(examples, problem, max_seq_length, tokenizer)
  return [features for (features,), _ in rows]


def file_based_convert_examples_to_features(
  examples: Sequence[Example | PaddingInputExample],
  label_list: Sequence[str],
  max_seq_length: int,
  tokenizer: tokenization.Tokenizer,
  output_file: str,
  problem: Problem | None = None,
  cutting: LongTextSettings = TRUNCATE,
) -> Sequence[int]:
  """Encodes examples and writes them to a TFRecord file.

  Logs how many were truncated.

  Args:
    examples: examples of the task, or padding.
    label_list: the label set; empty for regression.
    max_seq_length: length of the features, in tokens.
    tokenizer: the model's tokenizer.
    output_file: path of the TFRecord file.
    problem: the task; None to infer it from `label_list`.
    cutting: how longer texts are cut.

  Returns:
    Number of records of each example.

  Raises:
    InputError: a label is not in the label set.
  """
  problem = problem or _problem_from_labels(label_list)
  num_records, num_lost = array("i"), array("i")

  def records():
    for features, encoded in encode_examples(
      examples, problem, max_seq_length, tokenizer, cutting=cutting
    ):
      num_lost.append(sum(pair.num_truncated_tokens for pair in encoded))
      num_records.append(len(features))
      weight = {"example_weights": 1 / len(features)}
      yield from (window.as_record() | weight for window in features)

  layout = record_layout(max_seq_length, problem, cutting.has_windows)
  tf_records.write_records(output_file, records(), layout)
  logging.info(
    "%d examples%s written to %s; %d were truncated to %d tokens and lost %d"
    " tokens in total",
    len(examples),
    f" in {sum(num_records)} windows" if cutting.has_windows else "",
    output_file,
    sum(map(bool, num_lost)),
    max_seq_length,
    sum(num_lost),
  )
  return num_records


# Features to batches


def file_based_input_fn_builder(
  input_file: str | Sequence[str],
  seq_length: int,
  is_training: bool,
  drop_remainder: bool,
  problem: Problem | None = None,
  **options: Any,
):
  """Builds the `input_fn` of a TFRecord file with S = `seq_length`.

  `problem` None is classification. The other arguments and options are those of
  `training_records.record_input_fn`.
  """
  layout = record_layout(seq_length, problem)
  return training_records.record_input_fn(
    input_file, layout, is_training, drop_remainder, **options
  )


def input_fn_builder(
  features: Sequence[InputFeatures],
  seq_length: int,
  is_training: bool,
  drop_remainder: bool,
  seed: int = 0,
):
  """Builds an `input_fn` over features in memory; for small sets.

  Args:
    features: result of `convert_examples_to_features`.
    seq_length: unused: the features have this length.
    is_training: whether to shuffle, and to repeat indefinitely.
    drop_remainder: whether to drop a last, smaller batch.
    seed: shuffling seed.

  Returns:
    A function of `params`, a mapping with `batch_size`.
  """
  del seq_length
  records = [feature.as_record() for feature in features]
  arrays = {}
  for name in records[0]:
    array = np.array([record[name] for record in records])
    dtype = np.float32 if array.dtype.kind == "f" else np.int32
    arrays[name] = array.astype(dtype)

  def input_fn(params):
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    if is_training:
      dataset = training_records.shuffle_epochs(dataset, len(records), seed)
    return dataset.batch(params["batch_size"], drop_remainder=drop_remainder)

  return input_fn
