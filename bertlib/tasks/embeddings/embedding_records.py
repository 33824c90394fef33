"""Encodes groups of texts for sentence embeddings as TFRecords.

The texts of a group are the anchor, its positive and its hard negatives; the
two of a scored or labeled pair; or a single one. Imports no TensorFlow.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli.absl import logging
from bertlib.data import example_checks, model_inputs, tf_records
from bertlib.data.text_groups import MISSING, Example
from bertlib.settings.common import TRUNCATE, LongTextSettings


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
    features["scores"] = tf_records.Feature(is_float=True)  # from 0 to 1
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
  """Encodes groups of texts as TFRecords; logs how many are faulty."""
  num_texts, max_seq_length = features["input_ids"].shape
  prefixes = (prefixes[0], *[prefixes[1]] * (num_texts - 1))
  # Each distinct text is encoded once.
  keys = dict.fromkeys(
    key for example in examples for key in zip(example.texts, prefixes)
  )
  texts = _encode(tokenizer, keys, max_seq_length, cutting)
  (empty,) = _encode(tokenizer, [("", "")], max_seq_length, cutting).values()
  missing = empty._replace(number=MISSING)
  num_tokens, num_truncated_tokens = array("i"), array("i")
  labels = sorted({example.label or "" for example in examples})
  label_ids = {label: number for number, label in enumerate(labels)}

  def records() -> Iterator[dict[str, Any]]:
    for index, example in enumerate(examples):
      group = [texts[key] for key in zip(example.texts, prefixes)]
      for text in group:
        num_tokens.append(text.num_tokens + text.num_truncated_tokens)
        num_truncated_tokens.append(text.num_truncated_tokens)
      group += [missing] * (num_texts - len(group))
      record: dict[str, Any] = {
        "input_ids": b"".join(
          text.input_ids + bytes(max_seq_length - text.num_tokens)
          for text in group
        ),
        "input_mask": b"".join(
          (b"\1" * text.num_tokens).ljust(max_seq_length, b"\0")
          for text in group
        ),
        "segment_ids": bytes(max_seq_length * num_texts),
        "text_ids": [text.number for text in group],
      }
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
  logging.info(
    "%d examples with %d texts written to %s; %d texts have the same tokens"
    " as an earlier one",
    len(examples),
    len(num_tokens),
    path,
    len(num_tokens) - len({text.number for text in texts.values()}),
  )
  example_checks.log_faults(
    num_truncated_tokens,
    num_tokens.count(tokenizer.special_tokens.num()),
    max_seq_length,
  )


class _Text(NamedTuple):
  """An encoded text."""

  # Number of its tokens among those of all texts.
  number: int
  # With [CLS] and [SEP], each as a `tf_records.varint`.
  input_ids: bytes
  num_tokens: int  # of `input_ids`
  num_truncated_tokens: int  # tokens lost to truncation


def _encode(
  tokenizer: tokenization.Tokenizer,
  keys: Collection[tuple[str, str]],  # texts and their prefixes
  max_seq_length: int,
  cutting: LongTextSettings,
) -> dict[tuple[str, str], _Text]:
  """The encoded texts by key; those with the same tokens have one number."""
  varints = tf_records.Varints()
  numbers: dict[bytes, int] = {}  # by tokens without prefix
  room = max_seq_length - tokenizer.special_tokens.num()
  pairs = model_inputs.encode_pairs(
    tokenizer,
    ((prefix + text, None, prefix) for text, prefix in keys),
    max_seq_length,
    cutting,
    pads=False,
  )
  bodies = tokenizer.encode_batch(text for text, _ in keys)
  found = {}
  for key, pair, body in zip(keys, pairs, bodies):
    number = numbers.setdefault(varints.encode(body[:room]), len(numbers))
    ids = varints.encode(pair.input_ids)
    found[key] = _Text(number, ids, pair.num_tokens, pair.num_truncated_tokens)
  return found
