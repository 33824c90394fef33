"""Text of pretraining data: settings, tokenizer and documents.

Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import tokenization
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.io import files, text_files

# A list of sentences, each a non-empty list of tokens.
Document = list


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Settings that determine the records of a text.

  Attributes:
    vocab_file: path of the vocabulary.
    do_lower_case: whether to lower-case the text, for an uncased model.
    max_seq_length: tokens per record, [CLS] and both [SEP] included.
    max_predictions_per_seq: maximum number of masked tokens per record.
    masked_lm_prob: fraction of the tokens to mask.
    short_seq_prob: fraction of the documents split into shorter sequences.
    dupe_factor: number of passes over the text, with different masks.
    random_seed: seed of all draws.
    do_whole_word_mask: whether to mask all pieces of a word together.
    whole_word_draw: see `create_masked_lm_predictions`.
    word_boundaries: "pieces" if a word is a piece and the ## pieces after it;
      "spaces" if spaces separate words, in segmented text.
    truncate_prob: fraction of the sentences truncated at a random position.
    split_sentences: language code ("en") of running text, which is split into
      sentences; "" if each line is a sentence.
    encoding: Python codec of the text.
    encoding_errors: see `text_files.Encoding`.
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
    """Encoding of the text."""
    return text_files.Encoding(self.encoding, self.encoding_errors)

  def instance_settings(self) -> dict[str, Any]:
    """Arguments of `create_instances_from_document` that a recipe has."""
    names = (
      "max_seq_length",
      "short_seq_prob",
      "masked_lm_prob",
      "max_predictions_per_seq",
      "do_whole_word_mask",
      "whole_word_draw",
    )
    return {name: getattr(self, name) for name in names}


class SegmentedTextTokenizer:
  """Tokenizer of segmented text, such as Chinese with spaces between words.

  Adds "##" to every token that continues a word, also to tokens that have it in
  the vocabulary.

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
    """Splits `text` into tokens."""
    continuations = self._continuations
    return [
      continuations[token] if position else token
      for word in text.split()
      for position, token in enumerate(self._tokenize(word))
    ]

  def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
    """Looks up ids; KeyError for a token that is not in the vocabulary."""
    return tokenization.convert_by_vocab(self._ids, tokens)


@functools.lru_cache(maxsize=1)
def load_tokenizer(
  recipe: Recipe,
) -> tokenization.FullTokenizer | SegmentedTextTokenizer:
  """Loads the tokenizer of a recipe.

  Raises:
    InputError: the vocabulary is not valid, see `vocabulary.load_tokenizer`, or
      has no [MASK]; or the package `sentencex` is needed but missing.
  """
  vocab_file = recipe.vocab_file
  tokenizer = vocabulary.load_tokenizer(
    vocab_file, recipe.do_lower_case, checks_case=False
  )
  if "[MASK]" not in tokenizer.vocab:
    raise InputError(
      f"{vocab_file}: has no [MASK], which pretraining needs. Give a vocab.txt"
      " that has one"
    )
  if recipe.split_sentences:
    sentence_splitter()
  if recipe.do_whole_word_mask and recipe.word_boundaries == "spaces":
    return SegmentedTextTokenizer(tokenizer)
  return tokenizer


def sentence_splitter():
  """Imports the function of `sentencex` that splits text into sentences."""
  try:
    from sentencex import segment
  except ImportError as error:
    raise InputError(
      "--split_sentences needs the package sentencex: pip install sentencex"
    ) from error
  return segment


def read_corpus(
  input_files: Iterable[str],
  encoding: text_files.Encoding,
  open_file=files.open_any,
) -> Iterator[bytes]:
  """Reads the lines of text files, with their ends, as UTF-8."""
  for path in input_files:
    yield from text_files.read_utf8_lines(path, encoding, open_file)


def read_documents(
  lines: Iterable[bytes],
  tokenizer,
  rng: random.Random,
  truncate_prob: float = 0.0,
  split_sentences: str = "",
  counts: collections.Counter[str] | None = None,
) -> list[Document]:
  """Tokenizes the documents of a text.

  Args:
    lines: UTF-8 lines; invalid bytes are dropped. A blank line ends a document.
    tokenizer: has `tokenize`.
    rng: draws which sentences are truncated, and where.
    truncate_prob: fraction of the sentences that are truncated.
    split_sentences: see `Recipe`.
    counts: incremented by the numbers of what was read.

  Returns:
    The documents that are not empty.

  Raises:
    InputError: the package `sentencex` is needed but missing.
  """
  counts = collections.Counter() if counts is None else counts
  split = sentence_splitter() if split_sentences else None
  documents: list[Document] = [[]]
  for line in lines:
    text = tokenization.convert_to_unicode(line).strip()
    if not text:
      documents.append([])
    for sentence in split(split_sentences, text) if split else [text]:
      tokens = tokenizer.tokenize(sentence)
      if truncate_prob and len(tokens) > 1 and rng.random() < truncate_prob:
        counts["sentences truncated"] += 1
        tokens = tokens[: rng.randint(1, len(tokens) - 1)]
      if tokens:
        documents[-1].append(tokens)
  documents = [document for document in documents if document]
  counts["documents"] += len(documents)
  counts["sentences"] += sum(map(len, documents))
  counts["documents of one sentence"] += sum(
    len(document) == 1 for document in documents
  )
  return documents
