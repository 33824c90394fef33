"""Encodes groups of texts for sentence embeddings as TFRecords.

The texts of a group are the anchor, its positive and its hard negatives; the
two of a scored or labeled pair; or a single one. Imports no TensorFlow.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli.absl import logging
from bertlib.data import model_inputs, text_records, tf_records
from bertlib.data.text_groups import MISSING, Example
from bertlib.settings.long_texts import TRUNCATE, LongTextSettings


def layout(
  kind: str,
  num_texts: int,
  max_seq_length: int,
  teacher_width: int | None = None,
) -> tf_records.Layout:
  """Layout of the records of groups: tokens are [texts, S]."""
  features = tf_records.token_layout(max_seq_length, num_texts)
  # The same number for texts with the same tokens; `MISSING` for a missing
  # negative.
  features["text_ids"] = tf_records.Feature((num_texts,))
  if kind in ("scored_pairs", "labeled_pairs"):
    # From 0 to 1.
    features["scores"] = tf_records.Feature(is_float=True)
  elif kind == "labeled_texts":
    features["label_ids"] = tf_records.Feature()
  if teacher_width:
    shape = (num_texts, teacher_width)
    features["teacher_vectors"] = tf_records.Feature(shape, is_float=True)
  return features


def write_records(
  path: str,
  examples: Sequence[Example],
  features: tf_records.Layout,
  tokenizer: tokenization.Tokenizer,
  # Of the first text of each group, and of its other texts.
  prefixes: tuple[str, str] = ("", ""),
  # float [examples, texts, width]
  teacher_vectors: Sequence[Any] | None = None,
  cutting: LongTextSettings = TRUNCATE,  # not in windows
) -> None:
  """Encodes groups of texts as TFRecords."""
  num_texts, max_seq_length = features["input_ids"].shape
  groups = _GroupEncoder(
    tokenizer, max_seq_length, num_texts, prefixes, cutting
  )
  groups.encode_texts(example.texts for example in examples)
  labels = sorted({example.label or "" for example in examples})
  label_ids = {label: number for number, label in enumerate(labels)}

  def records() -> Iterator[dict[str, Any]]:
    for index, example in enumerate(examples):
      record = groups.encode(example.texts)
      if "scores" in features:
        is_scored = example.score is not None
        record["scores"] = example.score if is_scored else int(example.label)
      if "label_ids" in features:
        record["label_ids"] = label_ids[example.label]
      if "teacher_vectors" in features:
        vectors = teacher_vectors[index]
        record["teacher_vectors"] = [x for vector in vectors for x in vector]
      yield record

  tf_records.write_records(path, records(), features)
  groups.log(path, len(examples))


class _Text(NamedTuple):
  """An encoded text."""

  # Number of its tokens among those of all texts.
  number: int
  # With [CLS] and [SEP], each as a `tf_records.varint`.
  input_ids: bytes
  num_tokens: int  # of `input_ids`
  num_truncated_tokens: int  # tokens lost to truncation


class _GroupEncoder:
  """Encodes groups of texts, and each distinct text once."""

  def __init__(self, tokenizer, max_seq_length, num_texts, prefixes, cutting):
    self._tokenizer, self._cutting = tokenizer, cutting
    self._max_seq_length = max_seq_length
    self._num_texts = num_texts
    self._prefixes = (prefixes[0], *[prefixes[1]] * (num_texts - 1))
    self._varints = tf_records.Varints()
    self._texts: dict[tuple[str, str], _Text] = {}  # by text and prefix
    self._numbers: dict[bytes, int] = {}  # by tokens without prefix
    empty = model_inputs.encode_pair(tokenizer, "", None, max_seq_length)
    self._missing = self._make_text(empty, MISSING)
    self._num_tokens, self._num_truncated_tokens = array("i"), array("i")

  def encode_texts(self, groups: Iterable[Sequence[str]]) -> None:
    """Encodes the texts of groups."""
    keys = dict.fromkeys(
      key for texts in groups for key in zip(texts, self._prefixes)
    )
    pairs = model_inputs.encode_pairs(
      self._tokenizer,
      ((prefix + text, None, prefix) for text, prefix in keys),
      self._max_seq_length,
      cutting=self._cutting,
    )
    bodies = self._tokenizer.encode_batch(text for text, _ in keys)
    for key, pair, body in zip(keys, pairs, bodies):
      self._texts[key] = self._make_text(pair, self._number(body))

  def encode(self, texts: Sequence[str]) -> dict[str, Any]:
    """Token features and `text_ids` of a group."""
    group = [self._texts[key] for key in zip(texts, self._prefixes)]
    for text in group:
      self._num_tokens.append(text.num_tokens + text.num_truncated_tokens)
      self._num_truncated_tokens.append(text.num_truncated_tokens)
    group += [self._missing] * (self._num_texts - len(group))
    padding = [bytes(self._max_seq_length - text.num_tokens) for text in group]
    return {
      "input_ids": b"".join(
        text.input_ids + zeros for text, zeros in zip(group, padding)
      ),
      "input_mask": b"".join(
        b"\1" * text.num_tokens + zeros for text, zeros in zip(group, padding)
      ),
      "segment_ids": bytes(self._max_seq_length * self._num_texts),
      "text_ids": [text.number for text in group],
    }

  def _make_text(self, pair: model_inputs.EncodedPair, number: int) -> _Text:
    ids = self._varints.encode(pair.input_ids[: pair.num_tokens])
    return _Text(number, ids, pair.num_tokens, pair.num_truncated_tokens)

  def _number(self, ids: list[int]) -> int:
    num_special = self._tokenizer.special_tokens.num()
    tokens = self._varints.encode(ids[: self._max_seq_length - num_special])
    return self._numbers.setdefault(tokens, len(self._numbers))

  def log(self, path: str, num_examples: int) -> None:
    """Logs how many texts are repeated, truncated, left out or empty."""
    num_texts = len(self._num_tokens)
    logging.info(
      "%d examples with %d texts written to %s; %d texts have the same tokens"
      " as an earlier one",
      num_examples,
      num_texts,
      path,
      num_texts - len(self._numbers),
    )
    text_records.log_faults(
      self._num_truncated_tokens,
      self._num_tokens.count(self._tokenizer.special_tokens.num()),
      self._max_seq_length,
    )
