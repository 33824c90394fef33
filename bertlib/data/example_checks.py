"""Checks of encoded examples, for the log and a dry run."""

from __future__ import annotations

import functools
import itertools
import unicodedata
from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import tokenization
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data.model_inputs import EncodedPair

# Pieces per word, on average, above which a warning asks for the language. The
# English vocabulary makes 1.0 to 1.35 of English words, 1.7 of French, 2.3 of
# German, 4.4 of Russian.
_MANY_PIECES = 2.2


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
