"""Pretraining instances: masked pairs of segments, and their TFRecords.

Follows Devlin et al. 2019, section 3.1 and appendix A.2. Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.data import tf_records
from bertlib.tasks.pretraining.pretraining_text import (
  Document,
  Recipe,
  read_documents,
)

# Key of a count: random next sentences of a corpus with a single document.
SAME_DOCUMENT = "random next sentences from the same document"


@dataclasses.dataclass(eq=False, repr=False)
class TrainingInstance:
  """Two segments of text with masked tokens, which become one record."""

  tokens: list[str]  # [CLS] A [SEP] B [SEP], some of them masked
  segment_ids: list[int]  # 0 at [CLS] A [SEP], 1 at B [SEP]
  masked_lm_positions: list[int]  # ascending
  masked_lm_labels: list[str]  # the original token at each of them
  is_random_next: bool  # whether B is a random segment, not the one after A

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
  """A masked token."""

  index: int  # its position
  label: str  # the original token


# Text to instances


def create_passes(
  recipe: Recipe,
  tokenizer,  # has `tokenize` and the dictionary `vocab`
  lines: Iterable[bytes],
  rng: random.Random,
  counts: collections.Counter[str],
) -> Iterator[Iterator[TrainingInstance]]:
  """Creates the instances of a text, pass by pass, with different masks."""
  # `counts` is incremented by the numbers of what is read and created.
  documents = read_documents(
    lines, tokenizer, rng, recipe.truncate_prob, recipe.split_sentences, counts
  )
  rng.shuffle(documents)
  settings = recipe.instance_settings() | {"vocab_words": [*tokenizer.vocab]}
  for _ in range(recipe.dupe_factor):
    yield create_pass(documents, rng, counts, **settings)


def create_pass(
  all_documents: Sequence[Document],
  rng: random.Random,
  counts: collections.Counter[str],
  **settings: Any,  # of `create_instances_from_document`
) -> Iterator[TrainingInstance]:
  """Creates the instances of one pass over all documents, in their order."""
  for document_index in range(len(all_documents)):
    for instance in create_instances_from_document(
      all_documents, document_index, rng=rng, **settings
    ):
      counts["records"] += 1
      counts["tokens"] += len(instance.tokens)
      counts["masked tokens"] += len(instance.masked_lm_positions)
      counts["random next sentences"] += instance.is_random_next
      if len(all_documents) == 1:
        counts[SAME_DOCUMENT] += instance.is_random_next
      yield instance


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
  """Splits a document into pairs of segments, and masks each pair.

  `max_seq_length` includes [CLS] and both [SEP]. With the probability
  `short_seq_prob` the document's instances get a random, shorter length. Random
  next sentences are of `all_documents`, lists of sentences, each a list of
  tokens. The other arguments are those of `create_masked_lm_predictions`.
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
  """Splits a document into pairs of segments that fit one instance."""
  # Sentences are collected until they fill an instance, then divided at a
  # random sentence boundary.
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
    # The second part is put back and replaced by sentences of another document.
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
  """Draws consecutive sentences of another document, about `length` tokens."""
  # Ten draws, as in google-research/bert.
  for _ in range(10):
    other = rng.randint(0, len(all_documents) - 1)
    if other != document_index:
      break
  # If there is only one document, they come from that one.
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
  """Masks tokens at random: 80% [MASK], 10% a random piece, 10% unchanged.

  Args:
    tokens: an instance; its [CLS] and [SEP] are never masked.
    masked_lm_prob: fraction of the tokens to mask; at least one is masked.
    max_predictions_per_seq: maximum number of masked tokens.
    vocab_words: all entries of the vocabulary.
    rng: source of all draws.
    do_whole_word_mask: whether to mask all pieces of a word together. Words
      that would exceed the number of tokens to mask are skipped.
    whole_word_draw: "piece" to draw the replacement ([MASK], random or
      unchanged) of each piece of a word; "word" to draw it once per word.

  Returns:
    The tokens after masking; the masked positions, ascending; and the original
    token at each of these positions.
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
  """Draws positions, each as a word of one token."""
  positions = [
    index for index, token in enumerate(tokens) if token not in _NEVER_MASKED
  ]
  shuffle(positions, rng)
  return [[index] for index in positions[:num_to_predict]]


def _draw_words(
  tokens: Sequence[str], num_to_predict: int, rng: random.Random
) -> list[list[int]]:
  """Draws whole words, as lists of positions, while they fit."""
  words: list[list[int]] = []
  for index, token in enumerate(tokens):
    # `in` is three times as fast as `startswith`, and most tokens lack "##".
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


def truncate_seq_pair(
  tokens_a: list[str],
  tokens_b: list[str],
  max_num_tokens: int,
  rng: random.Random,
) -> None:
  """Removes tokens from the longer segment, in place, until both fit."""
  # `rng` draws the end that loses a token.
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
  """Equals `rng.shuffle`, draw for draw, in less than half the time."""
  # For short lists: the steps are cached per length.
  getrandbits = rng.getrandbits
  for i, num_bits in _shuffle_steps(len(items)):
    j = getrandbits(num_bits)
    while j > i:
      j = getrandbits(num_bits)
    items[i], items[j] = items[j], items[i]


# Instances to records


def write_in_turn(
  records: Sequence[bytes], output_files: Sequence[str]
) -> None:
  """Writes serialized records as TFRecord files, one to each file in turn."""
  for number, path in enumerate(output_files):
    tf_records.write_serialized(path, records[number :: len(output_files)])


def record_layout(
  max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, tf_records.Feature]:
  """Layout of pretraining records: S tokens, P masked positions, padded."""
  masks = (max_predictions_per_seq,)
  return tf_records.token_layout(max_seq_length) | {
    "masked_lm_positions": tf_records.Feature(masks),
    "masked_lm_ids": tf_records.Feature(masks),
    "masked_lm_weights": tf_records.Feature(masks, is_float=True),
    "next_sentence_labels": tf_records.Feature((1,)),
  }


def instance_encoder(
  tokenizer, max_seq_length: int, max_predictions_per_seq: int
) -> Callable[[TrainingInstance], bytes]:
  """Function that serializes an instance; ValueError if it does not fit."""
  encode_record = tf_records.record_encoder(
    record_layout(max_seq_length, max_predictions_per_seq)
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
  """Cache of token ids encoded by `tf_records.varint`, by token."""

  def __init__(self, tokenizer):
    super().__init__()
    self._convert_tokens_to_ids = tokenizer.convert_tokens_to_ids

  def __missing__(self, token):
    (token_id,) = self._convert_tokens_to_ids([token])
    return self.setdefault(token, tf_records.varint(token_id))
