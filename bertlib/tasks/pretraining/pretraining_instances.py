"""Pretraining instances: masked sequences of text, and their TFRecords.

Pairs of segments follow Devlin et al. 2019, section 3.1 and appendix A.2; text
without pairs follows Liu et al. 2019, section 4.2. Imports no TensorFlow.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bertlib.data import tf_records
from bertlib.tasks.pretraining.masking import (
  create_masked_lm_predictions,
  num_masks,
)
from bertlib.tasks.pretraining.objectives import MLM, MLM_NSP, Objective
from bertlib.tasks.pretraining.pretraining_text import Document, read_documents
from bertlib.tasks.pretraining.recipe import Recipe
from tokenization import BERT_TOKENS, SpecialTokens

# Keys of counts. Random next sentences of a corpus with a single document; rows
# that --max_sequences_per_row keeps from being full, and their tokens.
SAME_DOCUMENT = "random next sentences from the same document"
SHORT_ROWS = "rows with room for more sequences"
SHORT_ROW_TOKENS = "tokens of these rows"
# Masks for which --max_predictions_per_seq has no room.
CUT_MASKS = "masks cut off"


@dataclasses.dataclass(eq=False, repr=False)
class TrainingInstance:
  """A sequence of text with masked tokens, which becomes one record."""

  tokens: list[str]  # [CLS] A [SEP] B [SEP], some of them masked
  segment_ids: list[int]  # 0 at [CLS] A [SEP], 1 at B [SEP]
  masked_lm_positions: list[int]  # ascending
  masked_lm_labels: list[str]  # the original token at each of them
  # Whether B is a random segment, not the one after A; None for no pair.
  is_random_next: bool | None

  def __str__(self) -> str:
    shown = {
      "tokens": self.tokens,
      "segment_ids": self.segment_ids,
      "is_random_next": [self.is_random_next],
      "masked_lm_positions": self.masked_lm_positions,
      "masked_lm_labels": self.masked_lm_labels,
    }
    lines = [f"{n}: {' '.join(map(str, v))}\n" for n, v in shown.items()]
    return "".join([*lines, "\n"])

  __repr__ = __str__


# Text to instances


def create_passes(
  recipe: Recipe,
  tokenizer,  # has at least `tokenize` and the dictionary `vocab`
  lines: Iterable[bytes],
  rng: random.Random,
  counts: collections.Counter[str],
) -> Iterator[Iterator[TrainingInstance]]:
  """Creates the instances of a text, pass by pass, with different masks."""
  # `counts` is incremented by the numbers of what is read and created.
  documents = read_documents(lines, tokenizer, recipe.split_sentences, counts)
  rng.shuffle(documents)
  vocab_words = [*tokenizer.vocab]
  special = getattr(tokenizer, "special_tokens", BERT_TOKENS)
  for _ in range(recipe.dupe_factor):
    yield _create_pass(recipe, documents, vocab_words, rng, counts, special)


def _create_pass(
  recipe: Recipe,
  all_documents: Sequence[Document],
  vocab_words: Sequence[str],
  rng: random.Random,
  counts: collections.Counter[str],
  special: SpecialTokens,
) -> Iterator[TrainingInstance]:
  """Creates the instances of one pass over all documents, in their order."""
  lengths = recipe.max_seq_length, recipe.short_seq_prob, rng, special
  if recipe.segments == "pairs":
    parts = (
      _segment_pairs(all_documents, index, *lengths)
      for index in range(len(all_documents))
    )
  elif recipe.segments == "sentences":
    parts = (_full_sequences([each], *lengths) for each in all_documents)
  else:
    parts = [_full_sequences(all_documents, *lengths)]
  for instance in _mask_sequences(
    itertools.chain.from_iterable(parts),
    recipe.masked_lm_prob,
    recipe.max_predictions_per_seq,
    vocab_words,
    rng,
    recipe.do_whole_word_mask,
    recipe.do_span_mask,
    recipe.mask_split,
    special,
  ):
    counts["tokens"] += len(instance.tokens)
    counts["masked tokens"] += len(instance.masked_lm_positions)
    num_wanted = num_masks(len(instance.tokens), recipe.masked_lm_prob)
    if num_wanted > recipe.max_predictions_per_seq:
      counts[CUT_MASKS] += num_wanted - recipe.max_predictions_per_seq
    if instance.is_random_next is not None:
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
  *,
  special: SpecialTokens = BERT_TOKENS,
  **masking: Any,
) -> list[TrainingInstance]:
  """Splits a document into pairs of segments, and masks each pair.

  `max_seq_length` includes [CLS] and both [SEP]. With the probability
  `short_seq_prob` the document's instances get a random, shorter length. Random
  next sentences are of `all_documents`, lists of sentences, each a list of
  tokens. The other arguments are those of `create_masked_lm_predictions`.
  """
  pairs = _segment_pairs(
    all_documents, document_index, max_seq_length, short_seq_prob, rng, special
  )
  masking |= {"special": special}
  masked = _mask_sequences(
    pairs, masked_lm_prob, max_predictions_per_seq, vocab_words, rng, **masking
  )
  return list(masked)


# The tokens, segment ids and `is_random_next` of an instance before masking.
_Sequence = tuple[list[str], list[int], "bool | None"]


def _mask_sequences(
  sequences: Iterable[_Sequence], *masking: Any, **more: Any
) -> Iterator[TrainingInstance]:
  """Masks each sequence, before the next one is drawn."""
  # The other arguments are those of `create_masked_lm_predictions`.
  for tokens, segment_ids, is_random_next in sequences:
    masked, positions, labels = create_masked_lm_predictions(
      tokens, *masking, **more
    )
    yield TrainingInstance(
      masked, segment_ids, positions, labels, is_random_next
    )


def _target_length(
  max_num_tokens: int, short_seq_prob: float, rng: random.Random
) -> int:
  """Number of tokens to fill the sequences of a document with."""
  if rng.random() < short_seq_prob:
    return rng.randint(min(2, max_num_tokens), max_num_tokens)
  return max_num_tokens


def _full_sequences(
  documents: Sequence[Document],
  max_seq_length: int,
  short_seq_prob: float,
  rng: random.Random,
  special: SpecialTokens,
) -> Iterator[_Sequence]:
  """Fills sequences with consecutive sentences; [SEP] separates documents."""
  tokens: list[str] = []

  max_num_tokens = max_seq_length - special.num()
  for document in documents:
    target_length = _target_length(max_num_tokens, short_seq_prob, rng)
    border = [special.sep] if tokens else []
    for sentence in document:
      # A sentence that is longer than a sequence is divided.
      for start in range(0, len(sentence), target_length):
        part = sentence[start : start + target_length]
        if tokens and len(tokens) + len(border) + len(part) > target_length:
          yield *special.join(tokens), None
          tokens, border = [], []
        tokens += border + part
        border = []
  if tokens:
    yield *special.join(tokens), None


def _segment_pairs(
  all_documents: Sequence[Document],
  document_index: int,
  max_seq_length: int,
  short_seq_prob: float,
  rng: random.Random,
  special: SpecialTokens,
) -> Iterator[_Sequence]:
  """Splits a document into pairs of segments that fit one instance."""
  # Sentences are collected until they fill an instance, then divided at a
  # random sentence boundary.
  document = all_documents[document_index]
  max_num_tokens = max_seq_length - special.num(is_pair=True)
  target_length = _target_length(max_num_tokens, short_seq_prob, rng)
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
    yield *special.join(tokens_a, tokens_b), is_random_next
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


# Packing: several sequences in one row of S tokens


def pack(
  instances: Sequence[TrainingInstance],
  max_seq_length: int,
  max_predictions_per_seq: int,
  max_sequences_per_row: int,
) -> list[list[TrainingInstance]]:
  """Divides instances into the rows that they share."""
  rows = assign_rows(
    [len(instance.tokens) for instance in instances],
    [len(instance.masked_lm_positions) for instance in instances],
    max_seq_length,
    max_predictions_per_seq,
    max_sequences_per_row,
  )
  return [[instances[number] for number in row] for row in rows]


def assign_rows(
  lengths: Sequence[int],  # tokens per sequence
  num_masked: Sequence[int],  # masked tokens per sequence
  max_seq_length: int,
  max_predictions_per_seq: int,  # masked tokens per row
  max_sequences_per_row: int,
) -> list[list[int]]:
  """Assigns sequences, by number, to rows, so that few positions are free."""

  def fill(spread: bool) -> list[list[int]]:
    """Fills row after row, beginning with the longest sequence that is left."""
    # Then come the longest that fit. With `spread`, it is as many of equal
    # length as fit on average: that uses up short ones, which without long ones
    # would reach `max_sequences_per_row` before a row is full.
    by_length: list[list[int]] = [[] for _ in range(max_seq_length + 1)]
    for number, length in enumerate(lengths):
      by_length[length].append(number)
    num_left, num_tokens = len(lengths), sum(lengths)
    rows: list[list[int]] = []
    while num_left:
      row: list[int] = []
      room, slots = max_seq_length, max_predictions_per_seq
      while num_left and room and len(row) < max_sequences_per_row:
        wanted = room
        if row and spread:
          average = room * num_left // num_tokens
          parts = min(average, max_sequences_per_row - len(row))
          wanted = room // max(parts, 1)
        for length in (*range(wanted, 0, -1), *range(wanted + 1, room + 1)):
          found = by_length[length]
          if found and num_masked[found[-1]] <= slots:
            break
        else:
          break  # nothing fits
        row.append(found.pop())
        room, slots = room - length, slots - num_masked[row[-1]]
        num_left, num_tokens = num_left - 1, num_tokens - length
      rows.append(row)
    return rows

  return min(map(fill, (False, True)), key=len)


def _packed_features(
  lengths: Sequence[int],  # tokens per sequence of the row
  is_random_next: Sequence[int],  # labels of the sequences
  max_seq_length: int,
  max_sequences_per_row: int,
) -> dict[str, list[int]]:
  """Features of a row: which tokens are of a sequence, and where it starts."""
  padding = [0] * (max_seq_length - sum(lengths))
  unused = [0] * (max_sequences_per_row - len(lengths))
  ids = ([number] * size for number, size in enumerate(lengths, start=1))
  starts = itertools.accumulate(lengths[:-1], initial=0)
  return {
    "sequence_ids": [*itertools.chain.from_iterable(ids), *padding],
    "position_ids": [*itertools.chain(*map(range, lengths)), *padding],
    "next_sentence_positions": [*starts, *unused],
    "next_sentence_labels": [*is_random_next, *unused],
    "next_sentence_weights": [1] * len(lengths) + unused,
  }


# Instances to records


def write_in_turn(
  records: Sequence[bytes], output_files: Sequence[str]
) -> None:
  """Writes serialized records as TFRecord files, one to each file in turn."""
  for number, path in enumerate(output_files):
    tf_records.write_serialized(path, records[number :: len(output_files)])


def record_layout(
  max_seq_length: int,
  max_predictions_per_seq: int,
  objective: Objective = MLM_NSP,
  # Of packed rows; None for one sequence in each.
  max_sequences_per_row: int | None = None,
  may_lack_masks: bool = False,  # of records for which new masks are drawn
  is_written: bool = False,  # with the `objective` of text without pairs
) -> dict[str, tf_records.Feature]:
  """Layout of pretraining records: S tokens, P masked positions, padded."""
  no_masks = [0] * max_predictions_per_seq if may_lack_masks else None
  masks = tf_records.Feature((max_predictions_per_seq,), default=no_masks)
  sequences = tf_records.Feature((max_sequences_per_row or 1,))
  layout = tf_records.token_layout(max_seq_length) | {
    "masked_lm_positions": masks,
    "masked_lm_ids": masks,
    "masked_lm_weights": masks._replace(is_float=True),
  }
  labels = {"next_sentence_labels": sequences}
  if max_sequences_per_row is not None:  # see `_packed_features`
    tokens = layout["input_ids"]
    layout |= {
      "sequence_ids": tokens,
      "position_ids": tokens,
      "next_sentence_positions": sequences,
      **labels,
      "next_sentence_weights": sequences._replace(is_float=True),
    }
  layout |= labels
  if is_written and objective.description:
    layout["objective"] = tf_records.Feature(is_text=True)
  return {n: feature for n, feature in layout.items() if objective.reads(n)}


def instance_encoder(
  tokenizer,
  max_seq_length: int,
  max_predictions_per_seq: int,
  objective: Objective = MLM_NSP,  # that the records are made for
  max_sequences_per_row: int | None = None,
) -> Callable[..., bytes]:
  """Function that serializes an instance, or those that share a row.

  It raises ValueError if they do not fit.
  """
  sizes = max_seq_length, max_predictions_per_seq
  layout = record_layout(
    *sizes, objective, max_sequences_per_row, is_written=True
  )
  encode_record = tf_records.record_encoder(layout)
  varints = _TokenVarints(tokenizer)

  def encode_tokens(tokens: Iterable[str]) -> bytes:
    return b"".join(map(varints.__getitem__, tokens))

  return lambda *instances: encode_record(
    row_features(instances, encode_tokens, *sizes, max_sequences_per_row)
  )


def row_features(
  instances: Sequence[TrainingInstance],  # several of them if packed
  ids_of: Callable[[list], list[int] | bytes],  # of tokens
  max_seq_length: int,
  max_predictions_per_seq: int,
  max_sequences_per_row: int | None = None,  # if packed
) -> dict[str, Sequence]:
  """Values of all features of a record; ValueError if they do not fit."""
  instance = instances[0] if len(instances) == 1 else _join(instances)
  num_tokens = len(instance.tokens)
  num_masked = len(instance.masked_lm_positions)
  if num_tokens > max_seq_length or num_masked > max_predictions_per_seq:
    raise ValueError(
      f"an instance of {num_tokens} tokens, {num_masked} of them masked, does"
      f" not fit a record of {max_seq_length} and {max_predictions_per_seq}"
    )
  labels = [int(instance.is_random_next or 0) for instance in instances]
  others = {"next_sentence_labels": labels}
  if max_sequences_per_row is not None:
    lengths = [len(instance.tokens) for instance in instances]
    others = _packed_features(
      lengths, labels, max_seq_length, max_sequences_per_row
    )
  padding = [0] * (max_seq_length - num_tokens)
  no_prediction = [0] * (max_predictions_per_seq - num_masked)
  ids, labels = map(ids_of, (instance.tokens, instance.masked_lm_labels))
  kind = type(ids)
  return {
    "input_ids": ids + kind(padding),
    "input_mask": b"\1" * num_tokens + bytes(padding),
    "segment_ids": instance.segment_ids + padding,
    "masked_lm_positions": instance.masked_lm_positions + no_prediction,
    "masked_lm_ids": labels + kind(no_prediction),
    "masked_lm_weights": [1.0] * num_masked + no_prediction,
    "objective": MLM.name.encode(),  # of text without pairs
    **others,
  }


def _join(instances: Sequence[TrainingInstance]) -> TrainingInstance:
  """One instance with the tokens of several, one after the other."""

  def joined(name: str) -> list[Any]:
    return [item for each in instances for item in getattr(each, name)]

  lengths = [len(instance.tokens) for instance in instances]
  starts = itertools.accumulate(lengths, initial=0)
  return TrainingInstance(
    joined("tokens"),
    joined("segment_ids"),
    [
      start + position
      for start, instance in zip(starts, instances)
      for position in instance.masked_lm_positions
    ],
    joined("masked_lm_labels"),
    None,
  )


def create_records(
  recipe: Recipe,
  tokenizer,
  lines: Iterable[bytes],
  rng: random.Random,
  counts: collections.Counter[str],
) -> Iterator[list[bytes]]:
  """Creates the records of each of the `create_passes`."""
  sizes = recipe.max_seq_length, recipe.max_predictions_per_seq
  most = recipe.max_sequences_per_row if recipe.pack else None
  objective = MLM_NSP if recipe.segments == "pairs" else MLM
  encode = instance_encoder(tokenizer, *sizes, objective, most)
  for instances in create_passes(recipe, tokenizer, lines, rng, counts):
    rows: Iterable = zip(instances)
    if recipe.pack:
      rows = pack(list(instances), *sizes, most)
      _count_rows(rows, recipe, counts)
    records = list(itertools.starmap(encode, rows))
    counts["records"] += len(records)
    yield records


def _count_rows(
  rows: Sequence[Sequence[TrainingInstance]],
  recipe: Recipe,
  counts: collections.Counter[str],
) -> None:
  """Counts packed rows, with histograms of their sequences."""
  max_length, most = recipe.max_seq_length, recipe.max_sequences_per_row
  lengths = [[len(instance.tokens) for instance in row] for row in rows]
  counts["sequences"] += sum(map(len, rows))
  # In steps of an eighth of a row.
  ends = [max_length * part // 8 for part in range(9)]
  for low, high in zip(ends, ends[1:]):
    number = sum(low < length <= high for row in lengths for length in row)
    counts[f"sequences of {low + 1} to {high} tokens"] += number
  for size, number in sorted(collections.Counter(map(len, rows)).items()):
    counts[f"rows of {size} sequences"] += number
  # Rows that have room for another sequence of their mean length.
  full = [sum(row) for row in lengths if len(row) == most]
  short = [size for size in full if size * (most + 1) <= max_length * most]
  counts[SHORT_ROWS] += len(short)
  counts[SHORT_ROW_TOKENS] += sum(short)


class _TokenVarints(dict):
  """Cache of token ids encoded by `tf_records.varint`, by token."""

  # Twice as fast as `functools.cache`, once for each token of the text.
  def __init__(self, tokenizer):
    super().__init__()
    self._convert_tokens_to_ids = tokenizer.convert_tokens_to_ids

  def __missing__(self, token):
    (token_id,) = self._convert_tokens_to_ids([token])
    return self.setdefault(token, tf_records.varint(token_id))
