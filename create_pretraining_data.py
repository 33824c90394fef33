"""Makes the records that BERT is pretrained on, from plain text.

The text has a sentence a line and a blank line between documents. A record is
a pair of stretches of text, of which the second follows the first or is of
another place, with some tokens masked (Devlin et al. 2019, section 3.1 and
appendix A.2).

By default all text is held in memory and one stream of random numbers makes
what google-research/bert makes of the same flags, record for record. With
`--num_workers` the text is dealt into blocks, each a stream of its own, so
that a corpus of any size is worked on by any number of processes, with the
same result. TensorFlow is not imported.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib import app
  from bertlib.settings.pretraining_data import PretrainingDataSettings

  app.parse_flags(PretrainingDataSettings)

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import glob
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from absl import flags, logging

import tokenization
from bertlib import app, files, folder_lock, json_files, text_files
from bertlib.data import tf_records, vocabulary
from bertlib.errors import InputError
from bertlib.files import find_files, open_any, split_names, write_whole
from bertlib.reporting import doctor, receipts
from bertlib.settings import option
from bertlib.settings.pretraining_data import PretrainingDataSettings

FLAGS = flags.FLAGS

Document = list  # of sentences, each a non-empty list of tokens

# A count: random next sentences of a text that has no other document.
SAME_DOCUMENT = "random next sentences from the same document"


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


@dataclasses.dataclass(eq=False, repr=False)
class TrainingInstance:
  """Two segments of text with masked tokens: what becomes one record.

  Attributes:
    tokens: [CLS] A [SEP] B [SEP], some of them masked.
    segment_ids: 0 at [CLS] A [SEP], 1 at B [SEP].
    masked_lm_positions: positions of the masked tokens, ascending.
    masked_lm_labels: the original token at each of these positions.
    is_random_next: whether B comes from another place than after A.
  """

  tokens: list[str]
  segment_ids: list[int]
  masked_lm_positions: list[int]
  masked_lm_labels: list[str]
  is_random_next: bool

  def __str__(self) -> str:
    shown = {
      "tokens": map(tokenization.printable_text, self.tokens),
      "segment_ids": map(str, self.segment_ids),
      "is_random_next": [str(self.is_random_next)],
      "masked_lm_positions": map(str, self.masked_lm_positions),
      "masked_lm_labels": map(
        tokenization.printable_text, self.masked_lm_labels
      ),
    }
    lines = [f"{name}: {' '.join(values)}\n" for name, values in shown.items()]
    return "".join([*lines, "\n"])

  __repr__ = __str__


class MaskedLmInstance(NamedTuple):
  """A masked token.

  Attributes:
    index: its position.
    label: the original token.
  """

  index: int
  label: str


# Text to instances


def create_training_instances(
  input_files: Iterable[str],
  tokenizer,
  max_seq_length: int,
  dupe_factor: int,
  short_seq_prob: float,
  masked_lm_prob: float,
  max_predictions_per_seq: int,
  rng: random.Random,
  do_whole_word_mask: bool = False,
  whole_word_draw: str = "piece",
  truncate_prob: float = 0.0,
  split_sentences: str = "",
  counts: collections.Counter[str] | None = None,
  convert: Callable[[TrainingInstance], Any] | None = None,
  encoding: text_files.Encoding = text_files.AS_ORIGINAL,
) -> list[TrainingInstance]:
  """Creates the instances of a corpus that fits in memory.

  Args:
    input_files: text, one sentence per line, a blank line between documents;
      a document may continue in the next file. A name that ends in .gz is
      unpacked.
    tokenizer: has `tokenize` and the dictionary `vocab`.
    max_seq_length: maximum number of tokens per instance.
    dupe_factor: number of passes over the documents, each with other masks.
    short_seq_prob: see `create_instances_from_document`.
    masked_lm_prob: see `create_masked_lm_predictions`.
    max_predictions_per_seq: maximum number of masked tokens per instance.
    rng: source of all draws.
    do_whole_word_mask: see `create_masked_lm_predictions`.
    whole_word_draw: see `create_masked_lm_predictions`.
    truncate_prob: see `read_documents`.
    split_sentences: see `read_documents`.
    counts: incremented by what was read and created.
    convert: computes what to keep of each instance, such as its record, which
      takes a third of the memory; None to keep the instance.
    encoding: of the files; by default bytes that are not UTF-8 are dropped.

  Returns:
    The instances, or what they are converted to, shuffled. An empty list if
    there is no text.

  Raises:
    InputError: a byte is not of the encoding, or a file is not a complete gzip
      file, though its name says so.
  """
  lines = read_corpus(input_files, encoding)
  instances: list[TrainingInstance] = []
  with app.progress(dupe_factor, "passes") as bar:
    for one_pass in _create_passes(
      lines,
      tokenizer,
      max_seq_length,
      dupe_factor,
      short_seq_prob,
      masked_lm_prob,
      max_predictions_per_seq,
      rng,
      do_whole_word_mask,
      whole_word_draw,
      truncate_prob,
      split_sentences,
      counts,
      convert,
    ):
      instances += one_pass
      bar.update()
  rng.shuffle(instances)
  return instances


def read_corpus(
  input_files: Iterable[str], encoding: text_files.Encoding
) -> Iterator[bytes]:
  """The lines of files as UTF-8, with their ends."""
  for path in input_files:
    yield from text_files.read_utf8_lines(path, encoding)


def _create_passes(
  lines: Iterable[bytes],
  tokenizer,
  max_seq_length: int,
  dupe_factor: int,
  short_seq_prob: float,
  masked_lm_prob: float,
  max_predictions_per_seq: int,
  rng: random.Random,
  do_whole_word_mask: bool,
  whole_word_draw: str,
  truncate_prob: float,
  split_sentences: str,
  counts: collections.Counter[str] | None,
  convert: Callable[[TrainingInstance], Any] | None,
) -> Iterator[list[TrainingInstance]]:
  """Yields the instances of each pass, in the order of the documents."""
  counts = collections.Counter() if counts is None else counts
  documents = read_documents(
    lines, tokenizer, rng, truncate_prob, split_sentences, counts
  )
  rng.shuffle(documents)
  vocab_words = list(tokenizer.vocab)
  for _ in range(dupe_factor):
    one_pass: list[TrainingInstance] = []
    for document_index in range(len(documents)):
      instances = create_instances_from_document(
        documents,
        document_index,
        max_seq_length,
        short_seq_prob,
        masked_lm_prob,
        max_predictions_per_seq,
        vocab_words,
        rng,
        do_whole_word_mask,
        whole_word_draw,
      )
      for instance in instances:
        counts["records"] += 1
        counts["tokens"] += len(instance.tokens)
        counts["masked tokens"] += len(instance.masked_lm_positions)
        counts["random next sentences"] += instance.is_random_next
        if len(documents) == 1:
          counts[SAME_DOCUMENT] += instance.is_random_next
      one_pass += map(convert, instances) if convert else instances
    yield one_pass


def read_documents(
  lines: Iterable[bytes],
  tokenizer,
  rng: random.Random,
  truncate_prob: float = 0.0,
  split_sentences: str = "",
  counts: collections.Counter[str] | None = None,
) -> list[Document]:
  """Tokenizes text.

  Args:
    lines: UTF-8, other bytes are dropped; a blank line ends a document.
    tokenizer: has `tokenize`.
    rng: draws which sentences are truncated, and where.
    truncate_prob: fraction of the sentences that are truncated.
    split_sentences: language of lines that are yet to be split into sentences;
      "" if each line is one.
    counts: incremented by what was read.

  Returns:
    The documents that have tokens, each a list of sentences, each a list of
    tokens.

  Raises:
    InputError: the package that splits sentences is missing.
  """
  counts = collections.Counter() if counts is None else counts
  split = _sentence_splitter() if split_sentences else None
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


def create_instances_from_document(
  all_documents: Sequence[Document],
  document_index: int,
  max_seq_length: int,
  short_seq_prob: float,
  masked_lm_prob: float,
  max_predictions_per_seq: int,
  vocab_words: Sequence[str],
  rng: random.Random,
  do_whole_word_mask: bool = False,
  whole_word_draw: str = "piece",
) -> list[TrainingInstance]:
  """Cuts one document into pairs of segments, and masks each pair.

  Args:
    all_documents: lists of sentences, each a list of tokens. The random next
      sentences come from the others.
    document_index: which document to cut.
    max_seq_length: maximum number of tokens per instance, [CLS] and both [SEP]
      included.
    short_seq_prob: probability that the document's instances get a random,
      shorter target length.
    masked_lm_prob: see `create_masked_lm_predictions`.
    max_predictions_per_seq: see `create_masked_lm_predictions`.
    vocab_words: see `create_masked_lm_predictions`.
    rng: source of all draws.
    do_whole_word_mask: see `create_masked_lm_predictions`.
    whole_word_draw: see `create_masked_lm_predictions`.

  Returns:
    The instances, in the order of the document.
  """
  instances = []
  for tokens_a, tokens_b, is_random_next in _segment_pairs(
    all_documents, document_index, max_seq_length, short_seq_prob, rng
  ):
    tokens, masked_lm_positions, masked_lm_labels = (
      create_masked_lm_predictions(
        ["[CLS]", *tokens_a, "[SEP]", *tokens_b, "[SEP]"],
        masked_lm_prob,
        max_predictions_per_seq,
        vocab_words,
        rng,
        do_whole_word_mask,
        whole_word_draw,
      )
    )
    instances.append(
      TrainingInstance(
        tokens,
        [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1),
        masked_lm_positions,
        masked_lm_labels,
        is_random_next,
      )
    )
  return instances


def _segment_pairs(
  all_documents: Sequence[Document],
  document_index: int,
  max_seq_length: int,
  short_seq_prob: float,
  rng: random.Random,
) -> Iterator[tuple[list[str], list[str], bool]]:
  """Cuts a document into pairs of segments that fit one instance together.

  Sentences are gathered until they fill an instance, and divided between two
  sentences at random. One time in two the second part is put back, and
  sentences of another document take its place.
  """
  document = all_documents[document_index]
  max_num_tokens = max_seq_length - 3  # [CLS], [SEP] and [SEP]
  target_length = max_num_tokens
  if rng.random() < short_seq_prob:
    target_length = rng.randint(2, max_num_tokens)
  chunk: list[list[str]] = []
  length = position = 0
  while position < len(document):
    chunk.append(document[position])
    length += len(document[position])
    position += 1
    if length < target_length and position < len(document):
      continue
    end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
    tokens_a = [token for sentence in chunk[:end] for token in sentence]
    is_random_next = len(chunk) == 1 or rng.random() < 0.5
    if is_random_next:
      tokens_b = _random_next_tokens(
        all_documents, document_index, target_length - len(tokens_a), rng
      )
      position -= len(chunk) - end
    else:
      tokens_b = [token for sentence in chunk[end:] for token in sentence]
    truncate_seq_pair(tokens_a, tokens_b, max_num_tokens, rng)
    yield tokens_a, tokens_b, is_random_next
    chunk, length = [], 0


def _random_next_tokens(
  all_documents: Sequence[Document],
  document_index: int,
  length: int,
  rng: random.Random,
) -> list[str]:
  """Sentences, about `length` tokens, from a random place in another document.

  With one document they come from the same.
  """
  for _ in range(10):
    other = rng.randint(0, len(all_documents) - 1)
    if other != document_index:
      break
  document = all_documents[other]
  tokens: list[str] = []
  for position in range(rng.randint(0, len(document) - 1), len(document)):
    tokens += document[position]
    if len(tokens) >= length:
      break
  return tokens


def create_masked_lm_predictions(
  tokens: Sequence[str],
  masked_lm_prob: float,
  max_predictions_per_seq: int,
  vocab_words: Sequence[str],
  rng: random.Random,
  do_whole_word_mask: bool = False,
  whole_word_draw: str = "piece",
) -> tuple[list[str], list[int], list[str]]:
  """Masks tokens at random.

  Of the masked tokens 80% become [MASK], 10% a random entry of the vocabulary,
  and 10% stay as they are.

  Args:
    tokens: an instance; its [CLS] and [SEP] are never masked.
    masked_lm_prob: fraction of the tokens to mask; at least one is masked.
    max_predictions_per_seq: maximum number of masked tokens.
    vocab_words: all entries of the vocabulary.
    rng: source of all draws.
    do_whole_word_mask: whether to mask all pieces of a word together. Words
      that would exceed the number of tokens to mask are skipped.
    whole_word_draw: "piece" if each piece of a masked word is drawn to become
      [MASK], another or itself; "word" for one draw per word.

  Returns:
    The tokens after masking; the positions of the masked ones, ascending; and
    the original token at each of these positions.
  """
  num_to_predict = max(1, round(len(tokens) * masked_lm_prob))
  num_to_predict = min(num_to_predict, max_predictions_per_seq)
  draw_words = _draw_words if do_whole_word_mask else _draw_single_tokens
  draw_each = whole_word_draw == "piece"
  uniform = rng.random
  output_tokens = list(tokens)
  masked_lms: list[MaskedLmInstance] = []
  for word in draw_words(tokens, num_to_predict, rng):
    for index in word:
      if draw_each or index == word[0]:
        is_mask = uniform() < 0.8
        is_kept = not is_mask and uniform() < 0.5
      if is_mask:
        output_tokens[index] = "[MASK]"
      elif not is_kept:
        output_tokens[index] = vocab_words[rng.randint(0, len(vocab_words) - 1)]
      masked_lms.append(MaskedLmInstance(index, tokens[index]))
  masked_lms.sort()
  return (
    output_tokens,
    [masked_lm.index for masked_lm in masked_lms],
    [masked_lm.label for masked_lm in masked_lms],
  )


_NEVER_MASKED = frozenset(["[CLS]", "[SEP]"])


def _draw_single_tokens(
  tokens: Sequence[str], num_to_predict: int, rng: random.Random
) -> list[list[int]]:
  """Draws positions, each as a word of its own."""
  positions = [
    index for index, token in enumerate(tokens) if token not in _NEVER_MASKED
  ]
  shuffle(positions, rng)
  return [[index] for index in positions[:num_to_predict]]


def _draw_words(
  tokens: Sequence[str], num_to_predict: int, rng: random.Random
) -> list[list[int]]:
  """Draws whole words, each the positions of its tokens, while they fit."""
  words: list[list[int]] = []
  for index, token in enumerate(tokens):
    # `in` takes a third of the time of `startswith`, and most lack "##".
    if "##" in token and words and token.startswith("##"):
      words[-1].append(index)
    elif token not in _NEVER_MASKED:
      words.append([index])
  shuffle(words, rng)
  drawn = []
  room = num_to_predict
  for word in words:
    if not room:
      break
    if len(word) <= room:
      drawn.append(word)
      room -= len(word)
  return drawn


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


def truncate_seq_pair(
  tokens_a: list[str],
  tokens_b: list[str],
  max_num_tokens: int,
  rng: random.Random,
) -> None:
  """Removes tokens from the longer segment, at either end, until both fit.

  Args:
    tokens_a: the first segment; truncated in place.
    tokens_b: the second segment; truncated in place.
    max_num_tokens: maximum length of both together.
    rng: draws the end.
  """
  starts, ends = [0, 0], [len(tokens_a), len(tokens_b)]
  length_a, length_b = ends
  while length_a + length_b > max_num_tokens:
    longer = 0 if length_a > length_b else 1
    if rng.random() < 0.5:
      starts[longer] += 1
    else:
      ends[longer] -= 1
    if longer:
      length_b -= 1
    else:
      length_a -= 1
  tokens_a[:] = tokens_a[starts[0] : ends[0]]
  tokens_b[:] = tokens_b[starts[1] : ends[1]]


@functools.lru_cache(maxsize=1024)
def _shuffle_steps(length: int) -> list[tuple[int, int]]:
  return [(i, (i + 1).bit_length()) for i in range(length - 1, 0, -1)]


def shuffle(items: list, rng: random.Random) -> None:
  """Does what `rng.shuffle` does, draw for draw, in less than half the time.

  For short lists: the steps of each length are remembered.
  """
  getrandbits = rng.getrandbits
  for i, num_bits in _shuffle_steps(len(items)):
    j = getrandbits(num_bits)
    while j > i:
      j = getrandbits(num_bits)
    items[i], items[j] = items[j], items[i]


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
    _sentence_splitter()
  if recipe.do_whole_word_mask and recipe.word_boundaries == "spaces":
    return SegmentedTextTokenizer(tokenizer)
  return tokenizer


@functools.lru_cache(maxsize=1)
def _sentence_splitter():
  try:
    from sentencex import segment
  except ImportError as error:
    raise InputError(
      "--split_sentences needs the package sentencex: pip install -e"
      " .[sentences]"
    ) from error
  return segment


# Instances to records


def write_instance_to_example_files(
  instances: Iterable[TrainingInstance],
  tokenizer,
  max_seq_length: int,
  max_predictions_per_seq: int,
  output_files: Sequence[str],
) -> None:
  """Writes instances as TFRecord files, one record to each file in turn.

  Args:
    instances: what to write.
    tokenizer: has `convert_tokens_to_ids`.
    max_seq_length: tokens per record; shorter instances are padded.
    max_predictions_per_seq: masked tokens per record, likewise.
    output_files: the files. Each appears complete or not at all.

  Raises:
    ValueError: an instance is longer than a record.
  """
  encode = instance_encoder(tokenizer, max_seq_length, max_predictions_per_seq)
  _write_in_turn(list(map(encode, instances)), output_files)


def _write_in_turn(
  records: Sequence[bytes], output_files: Sequence[str]
) -> None:
  """Writes the first record to the first file, the next one to the next."""
  for number, path in enumerate(output_files):
    tf_records.write_serialized(path, records[number :: len(output_files)])


def instance_encoder(
  tokenizer, max_seq_length: int, max_predictions_per_seq: int
) -> Callable[[TrainingInstance], bytes]:
  """Builds the function that serializes instances as `tf.train.Example`.

  Args:
    tokenizer: has `convert_tokens_to_ids`.
    max_seq_length: tokens per record.
    max_predictions_per_seq: masked tokens per record.

  Returns:
    A function of an instance that raises ValueError if it does not fit.
  """
  encode_record = tf_records.record_encoder(
    tf_records.pretraining_layout(max_seq_length, max_predictions_per_seq)
  )

  varints = _TokenVarints(tokenizer)

  def encode_tokens(tokens: Iterable[str]) -> bytes:
    return b"".join(map(varints.__getitem__, tokens))

  def encode(instance: TrainingInstance) -> bytes:
    num_tokens = len(instance.tokens)
    num_masked = len(instance.masked_lm_positions)
    if num_tokens > max_seq_length or num_masked > max_predictions_per_seq:
      raise ValueError(
        f"an instance of {num_tokens} tokens, {num_masked} of them masked, does"
        f" not fit a record of {max_seq_length} and {max_predictions_per_seq}"
      )
    padding = [0] * (max_seq_length - num_tokens)
    no_prediction = [0] * (max_predictions_per_seq - num_masked)
    return encode_record(
      {
        "input_ids": encode_tokens(instance.tokens) + bytes(padding),
        "input_mask": b"\1" * num_tokens + bytes(padding),
        "segment_ids": instance.segment_ids + padding,
        "masked_lm_positions": instance.masked_lm_positions + no_prediction,
        "masked_lm_ids": (
          encode_tokens(instance.masked_lm_labels) + bytes(no_prediction)
        ),
        "masked_lm_weights": [1.0] * num_masked + no_prediction,
        "next_sentence_labels": [int(instance.is_random_next)],
      }
    )

  return encode


class _TokenVarints(dict):
  """Token -> its id as `tf_records.varint` encodes it."""

  def __init__(self, tokenizer):
    super().__init__()
    self._convert_tokens_to_ids = tokenizer.convert_tokens_to_ids

  def __missing__(self, token):
    (token_id,) = self._convert_tokens_to_ids([token])
    return self.setdefault(token, tf_records.varint(token_id))


def create_int_feature(values: Iterable[int]):
  """Builds the int64 `tf.train.Feature` of some values."""
  import tensorflow as tf

  return tf.train.Feature(int64_list=tf.train.Int64List(value=list(values)))


def create_float_feature(values: Iterable[float]):
  """Builds the float32 `tf.train.Feature` of some values."""
  import tensorflow as tf

  return tf.train.Feature(float_list=tf.train.FloatList(value=list(values)))


# All text in memory


def write_in_memory(
  recipe: Recipe, input_files: Iterable[str], output_files: Sequence[str]
) -> collections.Counter[str]:
  """Creates the records of a corpus with one stream of random numbers.

  Args:
    recipe: what to do.
    input_files: see `create_training_instances`.
    output_files: get one record each in turn.

  Returns:
    Counts of what was read and created.

  Raises:
    InputError: there is no text, or it cannot be read.
  """
  tokenizer = load_tokenizer(recipe)
  counts: collections.Counter[str] = collections.Counter()
  records = create_training_instances(
    input_files,
    tokenizer,
    rng=random.Random(recipe.random_seed),
    counts=counts,
    convert=instance_encoder(
      tokenizer, recipe.max_seq_length, recipe.max_predictions_per_seq
    ),
    encoding=recipe.text_encoding,
    **recipe.instance_settings(),
  )
  if not records:
    raise InputError("--input_file: there is no text in it")
  _write_in_turn(records, output_files)
  return counts


# Text in blocks

# Of text, in a block. A pair of stretches that do not belong together is taken
# from one block; a process holds one at a time, in some ten times its size.
BLOCK_BYTES = 2**21


def count_blocks(sizes: Mapping[str, int], num_outputs: int) -> int:
  """How many blocks a corpus is dealt into.

  Args:
    sizes: bytes of each input file; of a gzip file, the text is guessed to be
      three times as long.
    num_outputs: output files.

  Returns:
    A multiple of `num_outputs`.
  """
  text = sum(n * 3 if p.endswith(".gz") else n for p, n in sizes.items())
  return num_outputs * max(1, -(-text // (BLOCK_BYTES * num_outputs)))


def deal_documents(
  lines: Iterable[bytes], file_number: int, num_blocks: int, seed: int
) -> Iterator[tuple[int, bytes]]:
  """Deals the documents of a file to blocks, like cards to players.

  Which block gets a document depends on these arguments alone. The next file
  begins at the next player, so that files of one document are dealt evenly too.

  Args:
    lines: of the file.
    file_number: its place among the input files.
    num_blocks: how many there are.
    seed: a number.

  Yields:
    A block's number and a document, its lines with a blank one at the end.
  """
  players = list(range(num_blocks))
  random.Random(seed).shuffle(players)
  for turn, document in enumerate(_raw_documents(lines), file_number):
    yield players[turn % num_blocks], document


def _raw_documents(lines: Iterable[bytes]) -> Iterator[bytes]:
  """Documents as they are; one that is longer than a block comes in parts."""
  document: list[bytes] = []
  size = 0
  for line in lines:
    if line.strip():
      document.append(line.strip())
      size += len(line)
    if document and (not line.strip() or size >= BLOCK_BYTES):
      yield b"\n".join([*document, b"\n"])
      document, size = [], 0
  if document:
    yield b"\n".join([*document, b"\n"])


def create_block_records(
  recipe: Recipe,
  tokenizer,
  block: int,
  lines: Iterable[bytes],
  counts: collections.Counter[str],
) -> Iterator[list[bytes]]:
  """Creates the records of a block with a stream of random numbers of its own.

  Args:
    recipe: what to do.
    tokenizer: that of the recipe, see `load_tokenizer`.
    block: the block's number.
    lines: its text.
    counts: incremented by what was read and created.

  Yields:
    The serialized records of each pass, shuffled.
  """
  rng = random.Random(f"{recipe.random_seed} {block}")
  for records in _create_passes(
    lines,
    tokenizer,
    rng=rng,
    counts=counts,
    convert=instance_encoder(
      tokenizer, recipe.max_seq_length, recipe.max_predictions_per_seq
    ),
    **recipe.instance_settings(),
  ):
    rng.shuffle(records)
    yield records


# What is noted of a run with workers, see `json_files`.
_NOTED = {
  "recipe": dict,
  "input": list,
  "output": [str],
  "files": dict,
}


class BlockRun:
  """Makes the records of a corpus block by block, in several processes.

  The text of each block, and then its records, wait in a folder beside the
  first output file. Output files take the blocks in turn; each is written when
  all of its blocks are there, and noted in a receipt, so that a run that was
  stopped does the others alone.
  """

  def __init__(
    self, recipe: Recipe, input_files: Sequence[str], output_files: list[str]
  ):
    """Finds out what is left to do.

    Args:
      recipe: what to do.
      input_files: the text.
      output_files: get the records.
    """
    self._recipe = recipe
    self._input_files = input_files
    self._output_files = output_files
    sizes = {path: _text_bytes(path, recipe) for path in input_files}
    self._num_blocks = count_blocks(sizes, len(output_files))
    self._receipt_file = _hidden_beside(output_files[0], ".receipt.json")
    self._receipt = self._read_receipt()
    self._blocks_of = {
      path: range(place, self._num_blocks, len(output_files))
      for place, path in enumerate(output_files)
      if path not in self._receipt["files"]
    }

  def run(self, num_workers: int) -> collections.Counter[str]:
    """Makes what is left.

    Args:
      num_workers: how many processes; what is made does not depend on it.

    Returns:
      Counts of what was read and created, over all output files.

    Raises:
      InputError: there is too little text, or a process died.
    """
    kept = len(self._output_files) - len(self._blocks_of)
    if kept:
      logging.info(
        "%d of %d output files are there already, made by the same flags from"
        " the same text",
        kept,
        len(self._output_files),
      )
    with self._scratch_folder() as folder:
      if self._blocks_of:
        num_bytes = self._deal(folder)
        self._make(folder, num_workers, num_bytes)
    counts: collections.Counter[str] = collections.Counter()
    for state in self._receipt["files"].values():
      counts.update(state["counts"])
    return counts

  def _read_receipt(self) -> dict:
    with open_any(self._recipe.vocab_file, "rb") as file:
      vocab = hashlib.sha256(file.read()).hexdigest()
    wanted = {
      "recipe": dataclasses.asdict(self._recipe) | {"vocab_file": vocab},
      "input": [[path, *_file_state(path)] for path in self._input_files],
      "output": self._output_files,
    }
    receipt = {"files": {}}
    with contextlib.suppress(ValueError):  # empty, after a power failure
      if _exists(self._receipt_file):
        receipt = json_files.read(self._receipt_file, _NOTED, "")
    files = receipt.pop("files")
    if receipt != wanted:
      files = {}
    return wanted | {
      "files": {
        path: state
        for path, state in files.items()
        if _exists(path) and _file_state(path)[0] == state["bytes"]
      }
    }

  @contextlib.contextmanager
  def _scratch_folder(self) -> Iterator[str]:
    """A folder for blocks; what a killed run left behind is removed."""
    first = self._output_files[0]
    folder = _hidden_beside(first, ".blocks")
    if "://" in first:
      folder = os.path.join(tempfile.gettempdir(), folder.replace("/", "_"))
    shutil.rmtree(folder, ignore_errors=True)
    for path in [*self._output_files, self._receipt_file]:
      for half_written in glob.glob(glob.escape(path) + ".*.tmp"):
        os.remove(half_written)
    os.makedirs(folder)
    try:
      yield folder
    finally:
      shutil.rmtree(folder, ignore_errors=True)

  def _deal(self, folder: str) -> int:
    """Writes the text of each block that is left; gives its bytes in all."""
    wanted = {b for blocks in self._blocks_of.values() for b in blocks}
    waiting: dict[int, list[bytes]] = collections.defaultdict(list)
    waiting_bytes = total_bytes = 0
    num_outputs = len(self._output_files)
    documents_of: collections.Counter[int] = collections.Counter()  # an output

    def flush():
      for block, documents in waiting.items():
        path = _text_file(folder, block)
        try:
          with open(path, "ab") as file:
            file.writelines(documents)
        except OSError as error:
          error.filename = path
          raise
      waiting.clear()

    for block in wanted:
      open(_text_file(folder, block), "wb").close()

    with app.progress(len(self._input_files), "files") as bar:
      for number, path in enumerate(self._input_files):
        for block, document in deal_documents(
          text_files.read_utf8_lines(path, self._recipe.text_encoding),
          number,
          self._num_blocks,
          self._recipe.random_seed,
        ):
          documents_of[block % num_outputs] += 1
          if block in wanted:
            waiting[block].append(document)
            waiting_bytes += len(document)
            total_bytes += len(document)
          if waiting_bytes > 2**26:
            flush()
            waiting_bytes = 0
        bar.update()
    flush()
    if len(documents_of) < num_outputs:
      raise InputError(
        f"--input_file: {sum(documents_of.values())} documents are too few for"
        f" {num_outputs} output files; name fewer, or put a blank line after"
        " each document"
      )
    return total_bytes

  def _make(self, folder: str, num_workers: int, num_bytes: int) -> None:
    """Makes all blocks that are left, and of them the output files."""
    context = multiprocessing.get_context("spawn")
    # Without locks, which a worker that is killed would never give back.
    bytes_done = context.RawArray("q", self._num_blocks)
    stop = context.RawValue("b", False)
    pool = concurrent.futures.ProcessPoolExecutor(
      num_workers, context, _start_worker, (bytes_done, stop)
    )
    unmade = {path: len(blocks) for path, blocks in self._blocks_of.items()}
    counts = {path: collections.Counter() for path in unmade}
    try:
      with app.progress(
        num_bytes * self._recipe.dupe_factor, "bytes", unit_scale=True
      ) as bar:
        file_of = {
          pool.submit(_work, self._recipe, folder, block): path
          for path, blocks in self._blocks_of.items()
          for block in blocks
        }
        pending = set(file_of)
        while pending:
          finished, pending = concurrent.futures.wait(
            pending, 1, concurrent.futures.FIRST_COMPLETED
          )
          bar.update(sum(bytes_done) - bar.n)
          for future in finished:
            path = file_of[future]
            counts[path].update(future.result())
            unmade[path] -= 1
            if not unmade[path]:
              self._finish(path, folder, counts[path])
    except BrokenProcessPool as error:
      raise InputError(
        "a worker died (killed, or out of memory). Run the same command"
        " again, with fewer --num_workers if memory was short; output files"
        " that are whole are kept"
      ) from error
    finally:
      stop.value = True
      pool.shutdown(cancel_futures=True)

  def _finish(self, path: str, folder: str, counts) -> None:
    """Joins the blocks of an output file, and notes it in the receipt."""
    with write_whole(path, "wb") as file:
      for block in self._blocks_of[path]:
        with open(_records_file(folder, block), "rb") as records:
          shutil.copyfileobj(records, file)
        os.remove(_records_file(folder, block))
    self._receipt["files"][path] = {
      "bytes": _file_state(path)[0],
      "counts": dict(counts),
    }
    with write_whole(self._receipt_file) as file:
      file.write(json.dumps(self._receipt, indent=1) + "\n")


def _hidden_beside(path: str, ending: str) -> str:
  """A name that wildcards for the files beside `path` do not match."""
  folder, name = os.path.split(path)
  return os.path.join(folder, f".{name}{ending}")


def _exists(path: str) -> bool:
  if "://" in path:
    from tensorflow.io import gfile

    return gfile.exists(path)
  return os.path.exists(path)


def _file_state(path: str) -> tuple[int, int]:
  """Bytes of a file and, if it is local, when it was changed."""
  if "://" in path:
    from tensorflow.io import gfile

    return gfile.stat(path).length, 0
  state = os.stat(path)
  return state.st_size, state.st_mtime_ns


def _text_bytes(path: str, recipe: Recipe) -> int:
  """Bytes of a file, for `count_blocks`: the same ones in every encoding."""
  if recipe.encoding == "utf-8" or path.endswith(".gz"):
    return _file_state(path)[0]
  return sum(map(len, text_files.read_utf8_lines(path, recipe.text_encoding)))


def _text_file(folder: str, block: int) -> str:
  return os.path.join(folder, f"{block}.txt")


def _records_file(folder: str, block: int) -> str:
  return os.path.join(folder, f"{block}.tfrecord")


# In a worker: what it shares with the process that started it.
_shared: tuple = ()


def _start_worker(bytes_done, stop) -> None:
  global _shared
  _shared = bytes_done, stop
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
  parent = multiprocessing.parent_process()

  def die_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=die_with_parent, daemon=True).start()


def _work(recipe: Recipe, folder: str, block: int) -> dict[str, int]:
  """Makes the records of a block in the folder; gives the counts."""
  bytes_done, stop = _shared
  counts: collections.Counter[str] = collections.Counter()
  text_file = _text_file(folder, block)

  def records():
    with open(text_file, "rb") as lines:
      for one_pass in create_block_records(
        recipe, load_tokenizer(recipe), block, lines, counts
      ):
        yield from one_pass
        bytes_done[block] += os.path.getsize(text_file)
        if stop.value:
          raise InterruptedError

  tf_records.write_serialized(_records_file(folder, block), records())
  os.remove(text_file)
  return dict(counts)


# The command line


def define_flags() -> None:
  """Defines the flags."""
  option.define(PretrainingDataSettings)


def recipe_of_flags() -> Recipe:
  """The recipe that the flags ask for.

  Raises:
    InputError: flags contradict each other.
  """
  fields = [field.name for field in dataclasses.fields(Recipe)]
  recipe = Recipe(
    **{name: FLAGS[name].value for name in fields}
    | {"encoding": text_files.from_flags().name}
  )
  for name in ("word_boundaries", "whole_word_draw"):
    if not FLAGS[name].using_default_value and not recipe.do_whole_word_mask:
      raise InputError(
        f"--{name} is about whole words: give --do_whole_word_mask too"
      )
  return recipe


def output_files() -> list[str]:
  """The files that `--output_file` and `--num_shards` name.

  Raises:
    InputError: no file, the same one twice, or several and `--num_shards`.
  """
  names = split_names(FLAGS.output_file)
  if not all(names or [""]):
    raise InputError("--output_file: names no file, or an empty name")
  if FLAGS.num_shards:
    if len(names) > 1:
      raise InputError("--num_shards goes with one --output_file")
    number = FLAGS.num_shards
    names = [f"{names[0]}-{i:05}-of-{number:05}" for i in range(number)]
  if len(set(map(os.path.normpath, names))) < len(names):
    raise InputError("--output_file: names a file twice")
  return names


@contextlib.contextmanager
def folders_for(paths: Iterable[str]) -> Iterator[None]:
  """Makes the folders that files need; if the block fails, they are removed."""
  made = []
  for folder in map(os.path.dirname, paths):
    while folder and "://" not in folder and not os.path.exists(folder):
      made.append(folder)
      folder = os.path.dirname(folder)
  for folder in made:
    os.makedirs(folder, exist_ok=True)
  try:
    yield
  except BaseException:
    for folder in sorted(made, key=len, reverse=True):
      with contextlib.suppress(OSError):  # it is not empty
        os.rmdir(folder)
    raise


def report(counts: collections.Counter[str]) -> None:
  """Logs what was made, and what of the text defeats its purpose.

  Args:
    counts: what was read and created.
  """
  for name, count in counts.items():
    logging.info("  %s: %d", name, count)
  same = counts[SAME_DOCUMENT]
  if same > counts["random next sentences"] / 10:
    logging.warning(
      "%d of %d random next sentences come from the same document, so that"
      " they tell little: is there a blank line between documents?",
      same,
      counts["random next sentences"],
    )
  alone = counts["documents of one sentence"]
  if alone > counts["documents"] / 2:
    logging.warning(
      "%d of %d documents have one sentence, for which no next sentence is ever"
      " the true one: is there a blank line after every sentence?",
      alone,
      counts["documents"],
    )


def main(_) -> None:
  """Makes the records of --input_file."""
  if FLAGS.doctor:
    doctor.diagnose(examine)
    return
  receipt = receipts.begin(__file__)
  recipe, _, inputs, outputs = prepare(doctor.simply)
  receipt.start(inputs)
  logging.info("Text from %d files: %s", len(inputs), ", ".join(inputs[:10]))
  with folders_for(outputs), folder_lock.lock_files(outputs):
    if FLAGS.num_workers:
      counts = BlockRun(recipe, inputs, outputs).run(FLAGS.num_workers)
    else:
      counts = write_in_memory(recipe, inputs, outputs)
  report(counts)
  logging.info("%d records in %s", counts["records"], ", ".join(outputs[:10]))
  hashes = [receipts.fingerprint(path)["sha256"] for path in outputs]
  receipt.finish({**counts, "sha256": hashes})


# What is asked for, and whether it can be


def prepare(check: doctor.Check):
  """Checks all that a run needs but the text itself.

  Args:
    check: makes each check.

  Returns:
    The recipe, its tokenizer, the files of the text and those of the records.
  """
  recipe = check("flags", recipe_of_flags)
  tokenizer = check("vocabulary", load_tokenizer, recipe)
  inputs = check("input", find_files, split_names(FLAGS.input_file))
  outputs = check("output", output_files)
  check("overwriting", check_overwriting, recipe, inputs, outputs)
  return recipe, tokenizer, inputs, outputs


def check_overwriting(
  recipe: Recipe, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
  """Refuses outputs, or files beside them, that are inputs."""
  beside = [
    receipts.receipt_path(),
    _hidden_beside(outputs[0], ".receipt.json"),
  ]
  files.check_outputs([*outputs, *beside], [*inputs, recipe.vocab_file])


def examine(doctor: doctor.Doctor) -> None:
  """Makes the checks of a run, and some more.

  Args:
    doctor: makes each check.
  """
  recipe, tokenizer, inputs, outputs = prepare(doctor.check)
  num_bytes = doctor.check("text", check_text, recipe, tokenizer, inputs)
  doctor.check("disk", check_disk, recipe, num_bytes, outputs)


def check_text(
  recipe: Recipe, tokenizer, inputs: Sequence[str], most: int = 2**27
) -> int:
  """Reads text; warns of what defeats its purpose.

  Args:
    recipe: what the run is to do.
    tokenizer: that of the recipe.
    inputs: the files.
    most: of the text, in bytes, that is read.

  Returns:
    How much text there is, in bytes.

  Raises:
    InputError: there is none, or it cannot be read.
  """
  some: list[bytes] = []
  num_read = 0
  for line in read_corpus(inputs, recipe.text_encoding):
    num_read += len(line)
    if len(some) < 5000:
      some.append(line)
    if num_read > most:
      break
  documents = read_documents(
    some, tokenizer, random.Random(0), split_sentences=recipe.split_sentences
  )
  if not documents:
    raise InputError("--input_file: there is no text in it")
  logging.info(
    "%.1f MB read; of %d lines, %d documents",
    num_read / 1e6,
    len(some),
    len(documents),
  )
  alone = sum(len(document) == 1 for document in documents)
  if alone > len(documents) / 2:
    logging.warning(
      "%d of them have one sentence: is there a blank line after every one?",
      alone,
    )
  if len(documents) == 1:
    logging.warning("is there a blank line between documents?")
  sizes = [_file_state(path)[0] for path in inputs]
  return max(num_read, sum(sizes))


def check_disk(recipe: Recipe, num_bytes: int, outputs: Sequence[str]) -> None:
  """Refuses a place that has too little room for the records.

  Args:
    recipe: how they are made.
    num_bytes: of the text.
    outputs: the files.
  """
  # A token is some four characters of text, and five bytes of a record.
  of_record = 5 * recipe.max_seq_length + 10 * recipe.max_predictions_per_seq
  num_records = recipe.dupe_factor * num_bytes / 4 / recipe.max_seq_length
  doctor.check_disk(
    os.path.dirname(outputs[0]) or ".", int(num_records * of_record)
  )


if __name__ == "__main__":
  app.run(main)
