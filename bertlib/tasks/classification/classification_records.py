"""Encodes classification examples as TFRecords and reads them as batches."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import tokenization
from bertlib.cli.errors import InputError, some_of
from bertlib.data import input_pipeline, model_inputs, tf_records
from bertlib.data.input_pipeline import shuffle_epochs
from bertlib.tasks.classification.classification import (
  ChoiceExample,
  Example,
  InputExample,
  PaddingInputExample,
  Problem,
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
  max_seq_length: int, problem: Problem | None = None
) -> tf_records.Layout:
  """Layout of the classifier's records: tokens are [S], or [choices, S]."""
  problem = problem or Problem()
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
  }


def convert_single_example(
  ex_index: int,
  example: Example | PaddingInputExample,
  label_list: Sequence[str],
  max_seq_length: int,
  tokenizer: tokenization.FullTokenizer,
  problem: Problem | None = None,
) -> InputFeatures:
  """Encodes one example; logs its tokens if it is the first.

  Args:
    ex_index: index of the example; the one at 0 is logged.
    example: an example of the task, or padding.
    label_list: the label set; empty for regression. An example without a
      label gets the index of the first.
    max_seq_length: length of the features, in tokens.
    tokenizer: a WordPiece tokenizer.
    problem: the task; None to infer it from `label_list`.

  Raises:
    InputError: the label is not in the label set.
  """
  problem = problem or _problem_from_labels(label_list)
  features, _ = encode_example(
    ex_index, example, problem, max_seq_length, tokenizer
  )
  return features


def _problem_from_labels(label_list: Sequence[str] | None) -> Problem:
  """Classification with these labels; regression if there are none."""
  labels = [] if label_list is None else list(label_list)
  return Problem("classification" if labels else "regression", labels)


def encode_example(
  ex_index, example, problem: Problem, max_seq_length, tokenizer
) -> tuple[InputFeatures, list[model_inputs.EncodedPair]]:
  """Encodes an example: its features, and each encoded text or choice."""
  choices = problem.num_labels if problem.kind == "multiple_choice" else 1
  if isinstance(example, PaddingInputExample):
    zeros = [0] * (max_seq_length * choices)
    label_id = 0
    if problem.kind == "multi_label":
      label_id = [0] * problem.num_labels
    return InputFeatures(zeros, zeros, zeros, label_id, False), []
  if isinstance(example, ChoiceExample):
    pairs = example.choices
  else:
    pairs = [(example.text_a, example.text_b)]
  encoded = [
    model_inputs.encode_pair(tokenizer, *pair, max_seq_length) for pair in pairs
  ]
  if ex_index == 0:
    # Test sets have placeholder labels, which would mislead in the log.
    is_labelled = not str(example.guid).startswith("test-")
    label = f", label {example.label}" if is_labelled and example.label else ""
    logging.info("Example %s%s", example.guid, label)
    for pair in encoded:
      used = pair.input_ids[: sum(pair.input_mask)]
      tokens = tokenizer.convert_ids_to_tokens(used)
      logging.info("  tokens: %s", " ".join(tokens))
  features = InputFeatures(
    *(
      [*itertools.chain.from_iterable(getattr(pair, name) for pair in encoded)]
      for name in model_inputs.TOKEN_FEATURES
    ),
    _label_id(example, problem),
  )
  return features, encoded


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
  tokenizer: tokenization.FullTokenizer,
) -> list[InputFeatures]:
  """Encodes all examples, see `convert_single_example`."""
  return [
    convert_single_example(
      index, example, label_list, max_seq_length, tokenizer
    )
    for index, example in enumerate(examples)
  ]


def file_based_convert_examples_to_features(
  examples: Sequence[Example | PaddingInputExample],
  label_list: Sequence[str],
  max_seq_length: int,
  tokenizer: tokenization.FullTokenizer,
  output_file: str,
  problem: Problem | None = None,
) -> None:
  """Encodes examples and writes them to a TFRecord file.

  Logs how many were truncated.

  Args:
    examples: examples of the task, or padding.
    label_list: the label set; empty for regression.
    max_seq_length: length of the features, in tokens.
    tokenizer: a WordPiece tokenizer.
    output_file: path of the TFRecord file.
    problem: the task; None to infer it from `label_list`.

  Raises:
    InputError: a label is not in the label set.
  """
  problem = problem or _problem_from_labels(label_list)
  num_truncated = num_truncated_tokens = 0

  def records():
    nonlocal num_truncated, num_truncated_tokens
    for index, example in enumerate(examples):
      features, encoded = encode_example(
        index, example, problem, max_seq_length, tokenizer
      )
      num_lost = sum(pair.num_truncated_tokens for pair in encoded)
      num_truncated_tokens += num_lost
      num_truncated += num_lost > 0
      yield features.as_record()

  tf_records.write_records(
    output_file, records(), record_layout(max_seq_length, problem)
  )
  logging.info(
    "%d examples written to %s; %d were truncated to %d tokens and lost %d"
    " tokens in total",
    len(examples),
    output_file,
    num_truncated,
    max_seq_length,
    num_truncated_tokens,
  )


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
  `input_pipeline.record_input_fn`.
  """
  layout = record_layout(seq_length, problem)
  return input_pipeline.record_input_fn(
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
      dataset = shuffle_epochs(dataset, len(records), seed)
    return dataset.batch(params["batch_size"], drop_remainder=drop_remainder)

  return input_fn
