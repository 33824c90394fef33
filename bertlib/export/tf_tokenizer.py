"""The tokenizer as core TensorFlow operations, for models that take text.

`GraphTokenizer` gives the ids of `tokenization.FullTokenizer` inside a graph,
so that an exported model needs neither Python nor a custom operation. All
texts of a batch lie in one row of characters here, and each step is taken for
all of them at once. Letters in shapes: B texts, T characters of these, C
characters of words, W words, P pieces.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tokenization

_NUM_CODE_POINTS = sys.maxunicode + 1
_SIGMA, _FINAL_SIGMA = ord("Σ"), ord("ς")

# What becomes of a character: codes, each of which is a code point that is part
# of a word, one that is a word by itself, or the end of a word.
_POINT_BITS = 21
_ALONE = 1 << _POINT_BITS
_SPACE = 2 << _POINT_BITS


class Tokens(NamedTuple):
  """The pieces of texts.

  Attributes:
    ids: ragged int32 [B, None], of the pieces.
    starts: ragged int32 [B, None], the place of the first character of each.
    ends: ragged int32 [B, None], the place after the last. Bytes that are not
      UTF-8 are no characters.
    words: ragged int32 [B, None], the word that each is of, by its number in
      all texts together; None where words do not count, as the others are.
    word_starts: ragged int32 [B, None], the first character of each word.
    word_ends: ragged int32 [B, None], the place after its last.
  """

  ids: Any
  starts: Any
  ends: Any
  words: Any = None
  word_starts: Any = None
  word_ends: Any = None


class GraphTokenizer:
  """A `tokenization.FullTokenizer` for graphs.

  What Python's tables of Unicode and the vocabulary say is a constant of the
  graph. One thing is not followed: signs such as those of musical notes and of
  Hangul tones keep their order where decomposition would sort them.
  """

  def __init__(
    self,
    tokenizer: tokenization.FullTokenizer,
    word_pattern: re.Pattern[str] | None = None,
  ):
    """Takes a tokenizer to be equal to.

    Args:
      tokenizer: with [UNK], [CLS], [SEP] and all of its `never_split` in its
        vocabulary.
      word_pattern: of words that are cut one by one, each a character or a
        run of some kind of characters; None for what white space separates.

    Raises:
      KeyError: they are not.
    """
    lower = tokenizer.basic_tokenizer.do_lower_case
    pieces = tokenizer.wordpiece_tokenizer
    self._codes = _codes(lower)
    self._contexts = _contexts() if lower else None
    self._never_split = sorted(tokenizer.never_split)
    self._separators = _PointTable(_separators()) if self._never_split else None
    self._kinds = _kinds(word_pattern) if word_pattern else None
    self._trie = _Trie(tokenizer.vocab)
    self._longest_word = pieces.max_input_chars_per_word
    self._unknown, self._cls, self._sep, *_ = (
      tokenizer.vocab[word]
      for word in (pieces.unk_token, "[CLS]", "[SEP]", *self._never_split)
    )

  @functools.cached_property
  def tokenize(self):
    """A function that cuts texts, string [B] in UTF-8, into `Tokens`."""
    # One function, so that a graph has its constants once.
    return tf.function(
      self._tokenize,
      input_signature=[tf.TensorSpec([None], tf.string)],
      autograph=False,
    )

  def encode_pairs(self, texts_a, texts_b, max_seq_length: int, pads: bool):
    """Encodes texts, or pairs of texts, as `model_inputs.encode_pair` does.

    Args:
      texts_a: string [B].
      texts_b: string [B], "" for none; None for no pairs at all.
      max_seq_length: in tokens.
      pads: whether S is this, rather than the length of the longest.

    Returns:
      See `join`.
    """
    ids_a = self.tokenize(texts_a).ids
    ids_b = ids_a[:, :0] if texts_b is None else self.tokenize(texts_b).ids
    length_a, length_b = (
      tf.cast(ids.row_lengths(), tf.int32) for ids in (ids_a, ids_b)
    )
    room = max_seq_length - tf.where(length_b > 0, 3, 2)
    keep_b = tf.minimum(length_b, tf.maximum(room // 2, room - length_a))
    keep_a = tf.minimum(length_a, room - keep_b)
    ids_a, ids_b = truncate_rows(ids_a, keep_a), truncate_rows(ids_b, keep_b)
    return self.join(ids_a, ids_b, max_seq_length if pads else None)

  def join(self, ids_a, ids_b, seq_length: int | None = None):
    """Puts [CLS] and [SEP] to pairs.

    Args:
      ids_a: ragged int32 [B, None].
      ids_b: ragged int32 [B, None]; a row without any is no second text.
      seq_length: S, which no pair exceeds; None for that of the longest.

    Returns:
      `input_ids`, `input_mask` and `segment_ids`, int32 [B, S].
    """
    one = tf.ones([ids_a.nrows(), 1], tf.int32)
    end = tf.RaggedTensor.from_tensor(one * self._sep)
    end_of_b = truncate_rows(end, tf.minimum(ids_b.row_lengths(), 1))
    first = tf.concat([one * self._cls, ids_a, end], axis=1)
    second = tf.concat([ids_b, end_of_b], axis=1)

    def padded(*parts):
      pair = tf.concat(parts, axis=1)
      return pair.to_tensor(0, shape=[None, seq_length])

    return {
      "input_ids": padded(first, second),
      "input_mask": padded(tf.ones_like(first), tf.ones_like(second)),
      "segment_ids": padded(tf.zeros_like(first), tf.ones_like(second)),
    }

  def _tokenize(self, texts) -> Tokens:
    texts = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    points = texts.values  # [T]
    text_of = tf.cast(texts.value_rowids(), tf.int32)  # [T]
    # A character is spelled by those of the same part alone.
    part = text_of
    if self._kinds:
      kind = self._kinds(points)
      begins_word = _begins_word(kind, text_of)
      part = tf.cumsum(tf.cast(begins_word, tf.int32)) - 1
    if self._contexts:
      points = _with_final_sigmas(points, part, self._contexts)
    as_is = tf.zeros_like(points, tf.bool)
    for word in self._never_split:
      as_is |= _places_of(word, points, part, self._separators)
    spelled = self._codes.spell(points, as_is)
    words = _find_words(spelled, tf.gather(part, spelled.source))
    first, length, ids = self._cut(words)
    starts = tf.gather(words.source, first)
    ends = tf.gather(
      _ends(spelled, text_of), tf.gather(words.source, first + length - 1)
    )
    before = tf.cast(texts.row_starts(), tf.int32)

    def by_text(values, characters):
      """The values of each text, one for each of some characters."""
      return tf.RaggedTensor.from_value_rowids(
        values,
        tf.cast(tf.gather(text_of, characters), tf.int64),
        texts.nrows(),
        validate=False,
      )

    def places(values, characters):
      values -= tf.gather(before, tf.gather(text_of, characters))
      return by_text(values, characters)

    ids, starts, ends, word = (
      by_text(ids, starts),
      places(starts, starts),
      places(ends, starts),
      by_text(tf.gather(part, starts), starts),
    )
    if not self._kinds:
      return Tokens(ids, starts, ends)
    word_starts = tf.cast(tf.where(begins_word)[:, 0], tf.int32)
    word_ends = tf.math.unsorted_segment_max(
      tf.where(kind != _BETWEEN, tf.range(tf.size(points)) + 1, 0),
      part,  # -1 before the first word, which is passed over
      tf.size(word_starts),
    )
    return Tokens(
      ids,
      starts,
      ends,
      word,
      places(word_starts, word_starts),
      places(word_ends, word_starts),
    )

  def _cut(self, words: _Words):
    """WordPiece: of each piece its first character, length and id, [P]."""
    num_chars = tf.size(words.chars)
    word_end = tf.concat([words.first[1:], [num_chars]], axis=0)
    word_length = word_end - words.first
    length, ids = self._trie.longest(words.chars, words.first, word_end, False)
    is_cut = (length > 0) & (length < word_length)
    is_cut &= word_length <= self._longest_word

    # What could go on a word is looked for at all places of such words at once.
    place = tf.range(num_chars)
    is_first = words.is_first
    inner = tf.where(tf.gather(is_cut, words.word_of) & ~is_first)[:, 0]
    inner = tf.cast(inner, tf.int32)
    inner_end = tf.gather(word_end, tf.gather(words.word_of, inner))
    inner_length, inner_ids = self._trie.longest(
      words.chars, inner, inner_end, True
    )
    of_place = tf.concat([words.first, inner], axis=0)[:, tf.newaxis]
    length, ids = (
      tf.tensor_scatter_nd_update(tf.zeros_like(place), of_place, values)
      for values in (
        tf.concat([length, inner_length], axis=0),
        tf.concat([ids, inner_ids], axis=0),
      )
    )

    # Where pieces begin: at the first place, and where another ends, maybe past
    # all. Each round goes twice as many pieces on as the one before.
    begins = tf.concat([tf.cast(is_first, tf.int32), [1]], axis=0)
    jump = tf.concat([place + length, [num_chars]], axis=0)
    for _ in range(self._longest_word.bit_length()):
      reached = tf.math.unsorted_segment_max(begins, jump, num_chars + 1)
      begins = tf.maximum(begins, reached)
      jump = tf.gather(jump, jump)
    begins = begins[:-1] > 0
    is_unknown = tf.math.unsorted_segment_max(
      tf.cast(begins & (length == 0), tf.int32),
      words.word_of,
      tf.size(word_end),
    )
    is_unknown = (is_unknown > 0) | (word_length > self._longest_word)
    of_unknown = tf.gather(is_unknown, words.word_of)  # [C]
    ids = tf.where(of_unknown, self._unknown, ids)
    length = tf.where(of_unknown, tf.gather(word_length, words.word_of), length)
    is_piece = is_first | (begins & ~of_unknown)
    return tuple(tf.boolean_mask(of, is_piece) for of in (place, length, ids))


def truncate_rows(rows, lengths):
  """The first values of each row.

  Args:
    rows: ragged [B, None].
    lengths: int [B], none above the row's own.

  Returns:
    Ragged [B, None].
  """
  lengths = tf.cast(lengths, tf.int64)
  starts = rows.row_starts()
  places = tf.ragged.range(starts, starts + lengths)
  return places.with_values(tf.gather(rows.values, places.values))


class Windows(NamedTuple):
  """Stretches of rows too long to be taken whole; those of a row in order.

  Attributes:
    row: int32 [W], of each window its row.
    start: int32 [W], the place in the row at which it begins.
    length: int32 [W].
  """

  row: Any
  start: Any
  length: Any


def split_into_windows(lengths, room, stride) -> Windows:
  """Cuts rows into windows that overlap; an empty row is one too.

  Args:
    lengths: int32 [B].
    room: int32 [B], the longest window of each row.
    stride: int32 [B], from the start of a window to that of the next.

  Returns:
    The windows.
  """
  count = 1 - tf.maximum(lengths - room, 0) // -stride
  row = tf.repeat(tf.range(tf.size(lengths)), count)
  nth = tf.range(tf.size(row))
  nth -= tf.gather(tf.cumsum(count, exclusive=True), row)
  start = nth * tf.gather(stride, row)
  left = tf.gather(lengths, row) - start
  return Windows(row, start, tf.minimum(tf.gather(room, row), left))


def gather_windows(rows, windows: Windows):
  """Their values: ragged [B, None] to ragged [W, None]."""
  first = tf.gather(tf.cast(rows.row_starts(), tf.int32), windows.row)
  first += windows.start
  places = tf.ragged.range(first, first + windows.length)
  return places.with_values(tf.gather(rows.values, places.values))


# From characters to words


class _PointTable:
  """A table by code point, of which each different page is kept once."""

  _PAGE = 256

  def __init__(self, values: np.ndarray):
    """Takes int32 [_NUM_CODE_POINTS]."""
    pages, index = np.unique(
      values.reshape(-1, self._PAGE), axis=0, return_inverse=True
    )
    self._values = pages.reshape(-1).astype(np.int32)
    self._first = (index.reshape(-1) * self._PAGE).astype(np.int32)

  def __call__(self, points):
    """The values for code points, int32 [T]."""
    page = tf.gather(self._first, points // self._PAGE)
    return tf.gather(self._values, page + points % self._PAGE)


def _probes() -> Iterable[tuple[int, str]]:
  """All characters that a tokenizer may keep, between two letters."""
  for point in range(_NUM_CODE_POINTS):
    char = chr(point)
    if char in "\t\n\r" or not unicodedata.category(char).startswith("C"):
      yield point, f"a{char}a"


class _Spelled(NamedTuple):
  """Characters as a tokenizer spells them.

  Attributes:
    codes: int32 [N].
    source: int32 [N], of each the place of its character.
    has_code: bool [T], whether a character has any.
    is_accent: bool [T], whether it has none for being an accent.
  """

  codes: Any
  source: Any
  has_code: Any
  is_accent: Any


class _Codes:
  """What becomes of each character.

  Nearly all become one code, whose distance from the code point is kept. Others
  have a row of codes, and in place of the distance its number below `_ROWS`.
  """

  _ROWS = -(1 << 24)
  _DROPPED, _ACCENT = 0, 1  # rows without codes

  def __init__(self, do_lower_case: bool):
    basic = tokenization.BasicTokenizer(do_lower_case)
    changes = np.full(_NUM_CODE_POINTS, self._ROWS - self._DROPPED, np.int32)
    rows: list[list[int]] = [[], []]
    for point, probe in _probes():
      spelled = " ".join(basic.tokenize(probe))[1:-1]
      if len(spelled) == 3 and spelled[0] == spelled[2] == " ":
        codes = [_ALONE + ord(spelled[1])]
      else:
        codes = [_SPACE if char == " " else ord(char) for char in spelled]
      if len(codes) == 1:
        changes[point] = codes[0] - point
      elif codes:
        changes[point] = self._ROWS - len(rows)
        rows.append(codes)
      elif unicodedata.category(chr(point)) == "Mn":
        changes[point] = self._ROWS - self._ACCENT
    self._changes = _PointTable(changes)
    lengths = np.array([len(row) for row in rows], np.int32)
    self._row_lengths = lengths
    self._row_starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    self._in_rows = np.array([c for row in rows for c in row] + [0], np.int32)

  def spell(self, points, as_is) -> _Spelled:
    """Spells characters.

    Args:
      points: int32 [T], code points.
      as_is: bool [T], which are not to be changed.

    Returns:
      What they became.
    """
    changes = tf.where(as_is, 0, self._changes(points))
    has_row = changes <= self._ROWS
    row = tf.where(has_row, self._ROWS - changes, 0)
    length = tf.where(has_row, tf.gather(self._row_lengths, row), 1)
    source = tf.repeat(tf.range(tf.size(points)), length)
    nth = tf.range(tf.size(source))
    nth -= tf.gather(tf.cumsum(length, exclusive=True), source)
    in_rows = tf.gather(self._row_starts, tf.gather(row, source)) + nth
    codes = tf.where(
      tf.gather(has_row, source),
      tf.gather(self._in_rows, in_rows),
      tf.gather(points + changes, source),
    )
    is_accent = has_row & (row == self._ACCENT)
    return _Spelled(codes, source, length > 0, is_accent)


_codes = functools.cache(_Codes)


@functools.cache
def _contexts() -> _PointTable:
  """How each character bears on a capital sigma near it, as Python has it.

  At the end of a word it has another small form: where a cased letter (1) comes
  before it and none after it. Some characters are passed over (2).
  """
  keeps = tokenization.BasicTokenizer(do_lower_case=False)
  contexts = np.full(_NUM_CODE_POINTS, 2, np.int32)
  for point, probe in _probes():
    if keeps.tokenize(probe) != ["aa"]:
      last, inside = (f"aΣ{chr(point)}{end}".lower() for end in ("", "a"))
      if last[1] == "σ":
        contexts[point] = 1
      elif inside[1] != "σ":
        contexts[point] = 0
  return _PointTable(contexts)


def _with_final_sigmas(points, part_of, contexts: _PointTable):
  """Code points [T] with small sigmas for the capital ones that end a word."""

  def replaced():
    context = contexts(points)
    place = tf.where(context != 2)[:, 0]
    is_cased = tf.gather(context == 1, place)
    part = tf.gather(part_of, place)
    nowhere = tf.zeros([1], tf.bool)
    same = part[1:] == part[:-1]
    after_cased = tf.concat([nowhere, is_cased[:-1] & same], axis=0)
    before_cased = tf.concat([is_cased[1:] & same, nowhere], axis=0)
    is_final = tf.gather(points, place) == _SIGMA
    is_final &= after_cased & ~before_cased
    final = tf.boolean_mask(place, is_final)[:, tf.newaxis]
    small = tf.fill(tf.shape(final)[:1], _FINAL_SIGMA)
    return tf.tensor_scatter_nd_update(points, final, small)

  has_any = tf.reduce_any(points == _SIGMA)
  return tf.cond(has_any, replaced, lambda: points)


def _separators() -> np.ndarray:
  """1 for the characters between chunks, which are never parts of one."""
  table = np.zeros(_NUM_CODE_POINTS, np.int32)
  for point, probe in _probes():
    table[point] = len(tokenization.split_chunks(probe)) == 2
  return table


def _places_of(word: str, points, part_of, separators: _PointTable):
  """Bool [T]: where a word stands between separators."""
  size, length = tf.size(points), len(word)

  def at(distance, values, beyond):
    """Of each place, the value that far ahead of it."""
    edge = tf.fill([length], beyond)
    padded = tf.concat([edge, values, edge], axis=0)
    return padded[length + distance :][:size]

  is_separator = separators(points) > 0

  def ends_at(distance):
    is_other_part = at(distance, part_of, -1) != part_of
    return is_other_part | at(distance, is_separator, True)

  found = ends_at(-1) & ends_at(length)
  for place, char in enumerate(word):
    found &= at(place, points, -1) == ord(char)
    found &= at(place, part_of, -1) == part_of
  return functools.reduce(
    tf.logical_or, (at(-place, found, False) for place in range(length))
  )


# Kinds of characters: between words, part of one, one by itself.
_BETWEEN, _PART, _WHOLE = range(3)


@functools.cache
def _kinds(pattern: re.Pattern[str]) -> _PointTable:
  """The kind of each character, for words of a pattern."""
  kinds = np.empty(_NUM_CODE_POINTS, np.int32)
  for point in range(_NUM_CODE_POINTS):
    found = pattern.findall(f"a{chr(point)}a")
    kinds[point] = (_PART, _BETWEEN, _WHOLE)[len(found) - 1]
  return _PointTable(kinds)


def _begins_word(kind, text_of):
  """Bool [T]: whether a word begins with a character."""
  is_part = kind == _PART
  goes_on = is_part[1:] & is_part[:-1] & (text_of[1:] == text_of[:-1])
  goes_on = tf.concat([kind[:1] < 0, goes_on], axis=0)
  return (kind != _BETWEEN) & ~goes_on


class _Words(NamedTuple):
  """The words of texts, character by character.

  Attributes:
    chars: int32 [C], code points.
    source: int32 [C], of each the place of the character that it came from.
    is_first: bool [C], whether a word begins with it.
    word_of: int32 [C], of each its word.
    first: int32 [W], of each word its first character.
  """

  chars: Any
  source: Any
  is_first: Any
  word_of: Any
  first: Any


def _find_words(spelled: _Spelled, part) -> _Words:
  """Parts codes into words, none of which is of two parts, int32 [N]."""
  codes, source, *_ = spelled
  is_space = codes == _SPACE
  is_alone = (codes >= _ALONE) & ~is_space
  is_end = is_space | is_alone
  starts = part[1:] != part[:-1]
  starts = tf.concat([codes[:1] >= 0, starts | is_end[:-1]], axis=0) | is_alone
  is_first = tf.boolean_mask(starts, ~is_space)
  return _Words(
    tf.boolean_mask(codes, ~is_space) % _ALONE,
    tf.boolean_mask(source, ~is_space),
    is_first,
    tf.cumsum(tf.cast(is_first, tf.int32)) - 1,
    tf.cast(tf.where(is_first)[:, 0], tf.int32),
  )


def _ends(spelled: _Spelled, text_of):
  """Int32 [T]: the place after each character that is left, and its accents."""
  _, _, has_code, is_accent = spelled
  place = tf.range(tf.size(text_of))
  left = tf.cast(tf.where(has_code)[:, 0], tf.int32)
  left = tf.concat([left, [0]], axis=0)  # of none, if there are none
  # Of each character the last one left, up to it.
  owner = tf.maximum(tf.cumsum(tf.cast(has_code, tf.int32)) - 1, 0)
  is_own = tf.gather(text_of, tf.gather(left, owner)) == text_of
  belongs = has_code | (is_accent & is_own)
  ends = tf.math.unsorted_segment_max(
    tf.where(belongs, place + 1, 0), owner, tf.size(left)
  )
  return tf.gather(ends, owner)


# From words to pieces


class _Trie:
  """The entries of a vocabulary as paths from one of two roots.

  From the first go those that begin words, from the second those that go on
  with one. An edge is its node and the character on it as one number.
  """

  def __init__(self, vocab: Mapping[str, int]):
    edges: dict[int, int] = {}
    entry_of = [-1, -1]
    for entry, index in vocab.items():
      node = int(entry.startswith("##") and len(entry) > 2)
      for char in entry[2 * node :]:
        edge = node << _POINT_BITS | ord(char)
        node = edges.setdefault(edge, len(entry_of))
        if node == len(entry_of):
          entry_of.append(-1)
      entry_of[node] = index
    self._edges = np.array(sorted(edges), np.int64)
    self._targets = np.array([edges[edge] for edge in sorted(edges)], np.int32)
    self._entry_of = np.array(entry_of, np.int32)

  def longest(self, chars, starts, ends, goes_on: bool):
    """The longest entries that stand at some places.

    Args:
      chars: int32 [C], code points.
      starts: int32 [A], the places.
      ends: int32 [A], where their words end.
      goes_on: whether entries that go on with a word are meant.

    Returns:
      int32 [A], the characters of each, 0 where there is none, and its id.
    """
    edges, targets = tf.constant(self._edges), tf.constant(self._targets)
    entry_of = tf.constant(self._entry_of)

    def step(which, node, place, length, ids):
      """Goes on by a character, from all places that still can."""
      char = tf.cast(tf.gather(chars, place), tf.int64)
      edge = tf.cast(node, tf.int64) * (1 << _POINT_BITS) + char
      index = tf.searchsorted(edges, edge)
      index = tf.minimum(index, len(self._edges) - 1)
      goes = tf.gather(edges, index) == edge
      which, place = (tf.boolean_mask(of, goes) for of in (which, place + 1))
      node = tf.gather(targets, tf.boolean_mask(index, goes))
      entry = tf.gather(entry_of, node)
      is_entry = entry >= 0
      found = tf.boolean_mask(which, is_entry)
      size = tf.boolean_mask(place, is_entry) - tf.gather(starts, found)
      found = found[:, tf.newaxis]
      length = tf.tensor_scatter_nd_update(length, found, size)
      ids = tf.tensor_scatter_nd_update(
        ids, found, tf.boolean_mask(entry, is_entry)
      )
      has_more = place < tf.gather(ends, which)
      alive = (tf.boolean_mask(of, has_more) for of in (which, node, place))
      return *alive, length, ids

    nothing = tf.zeros_like(starts)
    root = tf.fill(tf.shape(starts), int(goes_on))
    state = (tf.range(tf.size(starts)), root, starts, nothing, nothing)
    any_size = tf.TensorShape([None])
    *_, length, ids = tf.while_loop(
      lambda which, *_: tf.size(which) > 0,
      step,
      state,
      shape_invariants=(any_size,) * len(state),
    )
    return length, ids
