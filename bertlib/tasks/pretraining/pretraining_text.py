"""Text of pretraining data: tokenizer and documents.

Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Iterator

import tokenization
from bertlib.cli.errors import InputError, needs_package
from bertlib.data import vocabulary
from bertlib.io import files, text_files
from bertlib.tasks.pretraining.recipe import Recipe

# A list of sentences, each a non-empty list of tokens.
Document = list


class SegmentedTextTokenizer:
  """Tokenizer of segmented text, such as Chinese with spaces between words."""

  # Adds "##" to every token that continues a word, also to tokens that have it
  # in the vocabulary.
  def __init__(self, tokenizer: tokenization.Tokenizer):
    vocab, mark = tokenizer.vocab, tokenization.CONTINUATION
    self.special_tokens = tokenizer.special_tokens
    self._tokenize = tokenizer.tokenize
    self._continuations = {entry: mark + entry for entry in vocab}
    self.vocab = {
      self._continuations[entry] if entry.startswith(mark) else entry: index
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


def load_tokenizer(
  recipe: Recipe,
) -> tokenization.Tokenizer | SegmentedTextTokenizer:
  """Loads the tokenizer of a recipe; InputError without [MASK]."""
  if recipe.split_sentences:
    sentence_splitter()
  has_spaces = recipe.do_whole_word_mask and recipe.word_boundaries == "spaces"
  return _load_tokenizer(recipe.vocab_file, recipe.do_lower_case, has_spaces)


@functools.lru_cache(maxsize=1)
def _load_tokenizer(vocab_file: str, do_lower_case: bool, has_spaces: bool):
  tokenizer = vocabulary.load_tokenizer(
    vocab_file, do_lower_case, checks_case=False
  )
  check_has_mask(vocab_file, tokenizer)
  return SegmentedTextTokenizer(tokenizer) if has_spaces else tokenizer


def check_has_mask(path: str, tokenizer: tokenization.Tokenizer) -> None:
  """Refuses a vocabulary without [MASK]."""
  mask = tokenizer.special_tokens.mask
  if mask not in tokenizer.vocab:
    raise InputError(
      f"{path}: has no {mask}, which pretraining needs. Give a vocab.txt that"
      " has one"
    )


def sentence_splitter():
  """Imports the function of `sentencex` that splits text into sentences."""
  with needs_package(
    "--split_sentences needs the package sentencex: pip install sentencex"
  ):
    from sentencex import segment
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
  # UTF-8; invalid bytes are dropped. A blank line ends a document.
  lines: Iterable[bytes],
  tokenizer,
  split_sentences: str = "",
  counts: collections.Counter[str] | None = None,
) -> list[Document]:
  """Tokenizes the documents of a text; leaves out empty ones."""
  counts = collections.Counter() if counts is None else counts
  split = sentence_splitter() if split_sentences else None
  documents: list[Document] = [[]]
  for line in lines:
    text = tokenization.convert_to_unicode(line).strip()
    if not text:
      documents.append([])
    for sentence in split(split_sentences, text) if split else [text]:
      tokens = tokenizer.tokenize(sentence)
      if tokens:
        documents[-1].append(tokens)
  documents = [document for document in documents if document]
  counts["documents"] += len(documents)
  counts["sentences"] += sum(map(len, documents))
  counts["documents of one sentence"] += sum(
    len(document) == 1 for document in documents
  )
  return documents
