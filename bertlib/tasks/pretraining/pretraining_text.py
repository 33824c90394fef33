"""Text of pretraining data: settings, tokenizer and documents.

Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
from collections.abc import Iterable, Iterator

import tokenization
from bertlib.cli.errors import InputError, needs_package
from bertlib.data import vocabulary
from bertlib.io import files, text_files

# A list of sentences, each a non-empty list of tokens.
Document = list


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Settings that determine the records of a text."""

  vocab_file: str
  do_lower_case: bool = True
  max_seq_length: int = 128  # [CLS] and both [SEP] included
  max_predictions_per_seq: int = 20  # maximum number of masked tokens
  masked_lm_prob: float = 0.15  # fraction of the tokens to mask
  # Fraction of the documents split into shorter sequences.
  short_seq_prob: float = 0.1
  # Number of passes over the text, with different masks.
  dupe_factor: int = 10
  random_seed: int = 12345
  do_whole_word_mask: bool = False
  whole_word_draw: str = "piece"  # see `create_masked_lm_predictions`
  do_span_mask: bool = False
  mask_split: tuple[int, ...] = (80, 10, 10)
  # "pairs" of segments; or "sentences" of one document, or of all "documents",
  # that fill a sequence.
  segments: str = "pairs"
  pack: bool = False  # whether sequences share rows
  max_sequences_per_row: int = 8
  # "pieces" if a word is a piece and the ## pieces after it; "spaces" if spaces
  # separate words, in segmented text.
  word_boundaries: str = "pieces"
  # Fraction of the sentences truncated at a random position.
  truncate_prob: float = 0.0
  # Language code ("en") of running text, which is split into sentences; "" if
  # each line is a sentence.
  split_sentences: str = ""
  encoding: str = "utf-8"  # Python codec of the text
  encoding_errors: str = "strict"  # see `text_files.Encoding`

  @property
  def text_encoding(self) -> text_files.Encoding:
    """Encoding of the text."""
    return text_files.Encoding(self.encoding, self.encoding_errors)


class SegmentedTextTokenizer:
  """Tokenizer of segmented text, such as Chinese with spaces between words."""

  # Adds "##" to every token that continues a word, also to tokens that have it
  # in the vocabulary.
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
  """Loads the tokenizer of a recipe; InputError without [MASK]."""
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
  rng: random.Random,
  truncate_prob: float = 0.0,
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
