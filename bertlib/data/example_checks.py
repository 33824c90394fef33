"""Checks of examples for the log and a dry run."""

from __future__ import annotations

import collections
import functools
import itertools
import unicodedata
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, some_of
from bertlib.data.model_inputs import EncodedPair

# Pieces per word, on average, above which a warning asks for the language. The
# English vocabulary makes 1.0 to 1.35 of English words, 1.7 of French, 2.3 of
# German, 4.4 of Russian.
_MANY_PIECES = 2.2


class Labeled(NamedTuple):
  """Texts of an example with their label."""

  # The text, the texts of a pair, or a question and its choices.
  texts: tuple[str, ...]
  # A label, or a tuple of labels; None for scores, which may differ between
  # equal texts.
  label: Any
  location: str  # name or line of the example, for messages


def warn_of_faults(
  train: Sequence[Labeled], dev_sets: Mapping[str, Sequence[Labeled]]
) -> None:
  """Warns of empty texts, contradictions, and texts that two sets share."""
  for name, examples in {"the training set": train, **dev_sets}.items():
    _warn_of_empty_texts(name, examples)
    _warn_of_contradictions(name, examples)
  for name, examples in dev_sets.items():
    _warn_of_overlap(name, examples, train)


def _warn_of_empty_texts(name: str, examples: Sequence[Labeled]) -> None:
  empty = [e for e in examples if not all(text.strip() for text in e.texts)]
  if empty:
    logging.warning(
      "%s: examples with an empty text: %d of %d, the first: %s",
      name,
      len(empty),
      len(examples),
      empty[0].location,
    )


def _warn_of_contradictions(name: str, examples: Sequence[Labeled]) -> None:
  by_texts = collections.defaultdict(dict)
  for example in examples:
    if example.label is not None:
      by_texts[example.texts].setdefault(example.label, example.location)
  several = [labels for labels in by_texts.values() if len(labels) > 1]
  if several:
    logging.warning(
      "%s: texts with different labels: %d, the first: %s",
      name,
      len(several),
      " and ".join([*several[0].values()][:2]),
    )


def _warn_of_overlap(
  name: str, examples: Sequence[Labeled], train: Sequence[Labeled]
) -> None:
  known = {example.texts: example.location for example in train}
  shared = [example for example in examples if example.texts in known]
  if shared:
    logging.warning(
      "%s: examples with a text of the training set: %d of %d, the first: %s,"
      " the text of %s. The metrics include what training has seen",
      name,
      len(shared),
      len(examples),
      shared[0].location,
      known[shared[0].texts],
    )


def log_faults(
  num_truncated_tokens: array, num_empty: int, max_seq_length: int
) -> None:
  """Logs how many texts lost tokens, and how many have none."""
  num_truncated = sum(map(bool, num_truncated_tokens))
  if num_truncated:
    logging.info(
      "%d texts were truncated to %d tokens and lost %d tokens in total",
      num_truncated,
      max_seq_length,
      sum(num_truncated_tokens),
    )
  if num_empty:
    logging.warning("%d texts have no tokens", num_empty)


# Of a sample, in a dry run


def sample(items: Collection, number: int = 2000) -> list:
  """About `number` items, evenly spaced; all if there are fewer."""
  return [*itertools.islice(items, 0, None, -(-len(items) // number) or 1)]


def check_labels(
  labels: Sequence[str], sets: Mapping[str, Iterable[str]]
) -> None:
  """Logs the labels of each split; warns of those that are missing."""
  for name, example_labels in sets.items():
    counts = collections.Counter(example_labels)
    missing = [label for label in labels if not counts[label]]
    shown = [f"{label} {counts[label]}" for label in labels if counts[label]]
    logging.info("%s has %s", name, some_of(shown) or "none")
    if missing:
      logging.warning("%s has no %s", name, some_of([*map(str, missing)]))


class LengthSummary(NamedTuple):
  """Number and length of the training examples."""

  num_examples: int  # examples, windows or records
  num_tokens: float  # mean per sequence


class Encoded(NamedTuple):
  """An encoded example."""

  input_ids: Sequence[int]  # with or without padding
  num_tokens: int  # without padding
  num_truncated_tokens: int = 0


def check_encoded(
  examples: Iterable[Encoded | EncodedPair],
  vocab_size: int,
  num_examples: int,
  tokenizer: tokenization.Tokenizer | None,
  texts: Iterable[str] = (),  # of the sample
  # Of texts that --long_texts=windows could divide; None for others.
  max_seq_length: int | None = None,
  # Of the `num_examples`; None: as many as there are `examples`.
  num_sampled: int | None = None,
) -> LengthSummary:
  """Checks a sample of the `num_examples`; warns if many are truncated."""
  num_tokens, num_truncated_tokens = [], []
  num_pieces = num_words = 0

  @functools.cache
  def is_of_word(index: int) -> bool:
    token = tokenizer.inv_vocab.get(index, "")
    is_special = token in tokenizer.special_tokens
    return not is_special and any(map(str.isalnum, tokenizer.text_of([token])))

  for number, example in enumerate(examples, start=1):
    check_ids(example.input_ids, vocab_size, f"example {number}")
    ids = example.input_ids[: example.num_tokens]
    if tokenizer:
      pieces = [index for index in ids if is_of_word(index)]
      num_pieces += len(pieces)
      num_words += sum(not tokenizer.continues_word[index] for index in pieces)
    num_tokens.append(example.num_tokens)
    num_truncated_tokens.append(example.num_truncated_tokens)
  count = len(num_tokens)
  mean = sum(num_tokens) / max(count, 1)
  cut = sum(number > 0 for number in num_truncated_tokens) / max(count, 1)
  ratio = num_pieces / num_words if num_words else 0
  logging.info(
    "checked %d of %d: mean length %.0f tokens, longest %d%s",
    num_sampled or count,
    num_examples,
    mean,
    max(num_tokens, default=0),
    f", {ratio:.2f} pieces per word" if ratio else "",
  )
  if ratio > _MANY_PIECES:
    logging.warning(
      "words are split into %.1f pieces on average. Does the model know the"
      " language of the texts?",
      ratio,
    )
  if cut:
    num_lost, all_tokens = sum(num_truncated_tokens), sum(num_tokens)
    cost = ""
    if max_seq_length:
      # Each window after the first repeats half of the one before it.
      half = max_seq_length // 2
      repeated = sum(-(-n // half) for n in num_truncated_tokens) * half
      times = (all_tokens + num_lost + repeated) / all_tokens
      cost = f", or --long_texts=windows, in about {times:.1f} times the time"
    logging.log(
      logging.WARNING if cut > 0.05 else logging.INFO,
      "%.1f%% are truncated, by %.0f tokens on average, and lose %.1f%% of all"
      " tokens: consider a higher --max_seq_length%s",
      100 * cut,
      num_lost / (cut * count),
      100 * num_lost / (all_tokens + num_lost),
      cost,
    )
  _warn_of_decomposed(texts, tokenizer)
  return LengthSummary(num_examples, mean)


def _warn_of_decomposed(
  texts: Iterable[str], tokenizer: tokenization.Tokenizer
) -> None:
  """Warns of texts whose ids change with Unicode's composed form, NFC."""
  found = [
    text
    for text in texts
    if (composed := unicodedata.normalize("NFC", text)) != text
    and tokenizer.encode(composed) != tokenizer.encode(text)
  ]
  if found:
    logging.warning(
      "texts with other ids in NFC, the usual form of letters with marks: %d,"
      " the first: %.40r. Was the model trained on such texts?",
      len(found),
      found[0],
    )


def check_ids(ids: Iterable[int], vocab_size: int, where: str) -> None:
  """Raises InputError for ids outside the vocabulary of the model."""
  for extreme in min(ids, default=0), max(ids, default=0):
    if not 0 <= extreme < vocab_size:
      raise InputError(
        f"{where}: has the id {extreme}, but the model's vocab_size is"
        f" {vocab_size}. Encode the data with the vocabulary of the model"
      )
