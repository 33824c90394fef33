"""Text for pretraining data: what is made of it, and its tokenizer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import tokenization
from bertlib import text_files
from bertlib.data import vocabulary
from bertlib.errors import InputError


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Everything that determines the records of a text.

  Attributes:
    vocab_file: the vocabulary.
    do_lower_case: whether to lower-case the text, for an uncased model.
    max_seq_length: tokens per record, [CLS] and both [SEP] included.
    max_predictions_per_seq: maximum number of masked tokens per record.
    masked_lm_prob: fraction of the tokens to mask.
    short_seq_prob: fraction of the documents cut into shorter sequences.
    dupe_factor: number of passes over the text, each with other masks.
    random_seed: seed of all draws.
    do_whole_word_mask: whether to mask all pieces of a word together.
    whole_word_draw: see `create_masked_lm_predictions`.
    word_boundaries: "pieces" if a word is a piece and the ## pieces after it;
      "spaces" if it is what stands between spaces, in segmented text.
    truncate_prob: fraction of the sentences truncated at a random position.
    split_sentences: language of running text whose lines are yet to be split
      into sentences ("en"); "" for none.
  """

  vocab_file: str
  do_lower_case: bool = True
  max_seq_length: int = 128
  max_predictions_per_seq: int = 20
  masked_lm_prob: float = 0.15
  short_seq_prob: float = 0.1
  dupe_factor: int = 10
  random_seed: int = 12345
  do_whole_word_mask: bool = False
  whole_word_draw: str = "piece"
  word_boundaries: str = "pieces"
  truncate_prob: float = 0.0
  split_sentences: str = ""
  encoding: str = "utf-8"
  encoding_errors: str = "strict"

  @property
  def text_encoding(self) -> text_files.Encoding:
    """How the bytes of the text are read."""
    return text_files.Encoding(self.encoding, self.encoding_errors)

  def instance_settings(self) -> dict[str, Any]:
    """The arguments of `create_training_instances` that a recipe has."""
    names = (
      "max_seq_length",
      "dupe_factor",
      "short_seq_prob",
      "masked_lm_prob",
      "max_predictions_per_seq",
      "do_whole_word_mask",
      "whole_word_draw",
      "truncate_prob",
      "split_sentences",
    )
    return {name: getattr(self, name) for name in names}


class SegmentedTextTokenizer:
  """Tokenizes text whose words stand between spaces, as Chinese can be made.

  Every token that continues a word begins with "##", whether the entry of the
  vocabulary does or not; those that do have it twice then.

  Attributes:
    vocab: token -> id of all entries, in the order of the vocabulary.
  """

  def __init__(self, tokenizer: tokenization.FullTokenizer):
    vocab = tokenizer.vocab
    self._tokenize = tokenizer.tokenize
    self._continuations = {entry: "##" + entry for entry in vocab}
    self.vocab = {
      self._continuations[entry] if entry.startswith("##") else entry: index
      for entry, index in vocab.items()
    }
    self._ids = self.vocab | {
      self._continuations[entry]: index for entry, index in vocab.items()
    }

  def tokenize(self, text: str) -> list[str]:
    """Tokens of `text`."""
    continuations = self._continuations
    return [
      continuations[token] if position else token
      for word in text.split()
      for position, token in enumerate(self._tokenize(word))
    ]

  def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
    """Ids of `tokens`; KeyError for one that is not in the vocabulary."""
    return tokenization.convert_by_vocab(self._ids, tokens)


@functools.lru_cache(maxsize=1)
def load_tokenizer(
  recipe: Recipe,
) -> tokenization.FullTokenizer | SegmentedTextTokenizer:
  """The tokenizer of a recipe.

  Raises:
    InputError: the vocabulary is none or has no [MASK], or the package that
      splits sentences is missing.
  """
  vocab_file = recipe.vocab_file
  vocab = vocabulary.load(vocab_file)
  vocabulary.check(vocab_file, vocab)
  tokenizer = tokenization.FullTokenizer(vocab, recipe.do_lower_case)
  if "[MASK]" not in tokenizer.vocab:
    raise InputError(
      f"{vocab_file}: has no [MASK], which pretraining needs; name a vocab.txt"
      " that has one"
    )
  if recipe.split_sentences:
    sentence_splitter()
  if recipe.do_whole_word_mask and recipe.word_boundaries == "spaces":
    return SegmentedTextTokenizer(tokenizer)
  return tokenizer


def sentence_splitter():
  """A function that splits a text into sentences; needs `sentencex`."""
  try:
    from sentencex import segment
  except ImportError as error:
    raise InputError(
      "--split_sentences needs the package sentencex: pip install -e"
      " .[sentences]"
    ) from error
  return segment
