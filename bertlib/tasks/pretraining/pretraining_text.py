"""Text of pretraining data: tokenizer and documents.

Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterable, Iterator

import tokenization
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, needs_package
from bertlib.data import vocabulary
from bertlib.io import document_files, files, text_files
from bertlib.tasks.pretraining import masking
from bertlib.tasks.pretraining.recipe import Recipe

# A list of sentences, each a non-empty list of tokens.
Document = list


class WordMarkingTokenizer:
  """Marks each token that continues a word, as `masking` needs it.

  Words are between spaces, as in segmented Chinese, or by the tokenizer.
  """

  # Adds "##" also to tokens that have it in the vocabulary.
  def __init__(self, tokenizer: tokenization.Tokenizer, has_spaces: bool):
    vocab, mark = tokenizer.vocab, tokenization.CONTINUATION
    self.special_tokens = tokenizer.special_tokens
    self._tokenizer, self._has_spaces = tokenizer, has_spaces
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
    tokenizer, continuations = self._tokenizer, self._continuations
    if self._has_spaces:
      ids, words = next(tokenizer.encode_words([text.split()]))
    else:
      ids = tokenizer.encode(text)
      begins = (not tokenizer.continues_word[index] for index in ids)
      words = [*itertools.accumulate(begins)]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    # In text without spaces, a word is a whole clause.
    lengths = {}
    if not tokenizer.words_are_independent:
      lengths = collections.Counter(words)
    return [
      continuations[token]
      if token.startswith(tokenization.CONTINUATION)
      or (word == before and lengths.get(word, 0) <= masking.MAX_PIECES)
      else token
      for token, word, before in zip(tokens, words, [None, *words])
    ]

  def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
    """Looks up ids; KeyError for a token that is not in the vocabulary."""
    return tokenization.convert_by_vocab(self._ids, tokens)


def load_tokenizer(
  recipe: Recipe,
) -> tokenization.Tokenizer | WordMarkingTokenizer:
  """Loads the tokenizer of a recipe; InputError without [MASK]."""
  if recipe.split_sentences:
    sentence_splitter()
  has_spaces = recipe.do_whole_word_mask and recipe.word_boundaries == "spaces"
  has_words = recipe.do_whole_word_mask or recipe.do_span_mask
  tokenizer = _load_tokenizer(
    recipe.vocab_file, recipe.do_lower_case, has_spaces, has_words
  )
  if recipe.segments == "pairs" and not tokenizer.special_tokens.second_segment:
    raise InputError(
      f"--segments=pairs: {recipe.vocab_file} has one segment type, and its"
      " models predict no next sentences. Give --segments=documents"
    )
  return tokenizer


@functools.lru_cache(maxsize=1)
def _load_tokenizer(
  vocab_file: str, do_lower_case: bool, has_spaces: bool, has_words: bool
):
  tokenizer = vocabulary.load_tokenizer(
    vocab_file, do_lower_case, checks_case=False
  )
  check_has_mask(vocab_file, tokenizer)
  if has_words and not tokenizer.words_are_independent:
    logging.info(
      "%s: words of more than %d pieces, as in text without spaces, are masked"
      " by pieces",
      vocab_file,
      masking.MAX_PIECES,
    )
    return WordMarkingTokenizer(tokenizer, has_spaces)
  return WordMarkingTokenizer(tokenizer, True) if has_spaces else tokenizer


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
    yield from document_files.read_lines(path, encoding, open_file)


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
