"""WordPiece tokenization with core TensorFlow operations.

`GraphTokenizer` produces the ids of `tokenization.FullTokenizer` in a graph, so
that an exported model needs neither Python nor custom operations. The
characters of all texts of a batch are concatenated, and every step is applied
to all at once. A code is a character after normalization. B is the number of
texts.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tokenization
from bertlib.settings.common import TRUNCATE, LongTextSettings

_NUM_CODE_POINTS = sys.maxunicode + 1
_SIGMA, _FINAL_SIGMA = ord("Σ"), ord("ς")

# Each character becomes codes: a code point that is part of a word; with
# _ALONE added, one that is a separate word; or _SPACE, the end of a word.
_POINT_BITS = 21
_ALONE = 1 << _POINT_BITS
_SPACE = 2 << _POINT_BITS


class Tokens(NamedTuple):
  """The pieces of texts, ragged int32 [B, None] each."""

  ids: Any
  # Offsets count characters, not invalid UTF-8 bytes, from the start of the
  # text to the piece's first character and after its last one.
  starts: Any
  ends: Any
  # Index of each piece's word, counted over all texts. This and the next two
  # are None without a word pattern.
  words: Any = None
  word_starts: Any = None
  word_ends: Any = None


class GraphTokenizer:
  """A `tokenization.FullTokenizer` for graphs."""

  # Python's Unicode tables and the vocabulary become constants of the graph.
  # One difference: combining marks, such as those of musical notes and of
  # Hangul tones, are not reordered by Unicode decomposition.
  def __init__(
    self,
    tokenizer: tokenization.FullTokenizer,
    # Matches words that are tokenized separately, each a single character or a
    # run of characters; None to tokenize texts as a whole.
    word_pattern: re.Pattern[str] | None = None,
  ):
    """Copies a tokenizer; KeyError if its vocabulary lacks a special token."""
    lower = tokenizer.basic_tokenizer.do_lower_case
    pieces = tokenizer.wordpiece_tokenizer
    self._codes = _codes(lower)
    self._contexts = _contexts() if lower else None
    self._never_split = sorted(tokenizer.never_split)
    self._separators = _PointTable(_separators()) if self._never_split else None
    self._kinds = _kinds(word_pattern) if word_pattern else None
    self._trie = _Trie(tokenizer.vocab)
    self._has_segments = tokenizer.special_tokens.second_segment > 0
    self._longest_word = pieces.max_input_chars_per_word
    self._unknown, self._cls, self._sep, *_ = (
      tokenizer.vocab[word]
      for word in (pieces.unk_token, "[CLS]", "[SEP]", *self._never_split)
    )

  @functools.cached_property
  def tokenize(self):
    """Function that splits texts, string [B] in UTF-8, into `Tokens`."""

    def on_host(texts):
      with tf.device("/cpu:0"):  # a function does not inherit it
        return self._tokenize(texts)

    # A single function, so that a graph contains its constants once.
    return tf.function(
      on_host,
      input_signature=[tf.TensorSpec([None], tf.string)],
      autograph=False,
    )

  def encode_pairs(
    self,
    texts_a,  # string [B]
    texts_b,  # None for no pairs at all, or "" for no second text
    max_seq_length: int,
    pads: bool,
    cutting: LongTextSettings = TRUNCATE,
    prompt: Sequence[int] = (),  # with which the first texts begin
  ):
    """Encodes texts as `model_inputs.encode_windows`; the text of each row."""
    ids_a = self.tokenize(texts_a).ids
    ids_b = ids_a[:, :0] if texts_b is None else self.tokenize(texts_b).ids
    length_a, length_b = (
      tf.cast(ids.row_lengths(), tf.int32) for ids in (ids_a, ids_b)
    )
    room = max_seq_length - tf.where(length_b > 0, 3, 2)
    lowest = tf.ones_like(room) if cutting.keeps_first else room // 2
    keep_b = tf.minimum(length_b, tf.maximum(lowest, room - length_a))
    keep_a = tf.minimum(length_a, room - keep_b)
    row = tf.range(tf.size(room))
    num_prompt = _num_equal(ids_a, prompt) if prompt else tf.zeros_like(row)
    if cutting.has_windows:
      is_second = length_b >= (1 if cutting.keeps_first else length_a)
      divided = tf.where(is_second, length_b, length_a)
      other = tf.minimum(
        length_a + length_b - divided, tf.maximum(room // 2, room - divided)
      )
      head = tf.where(is_second, 0, tf.minimum(num_prompt, (room - other) // 2))
      room -= other + head
      stride = tf.minimum(room, cutting.doc_stride or tf.maximum(room // 2, 1))
      windows = split_into_windows(divided - head, room, stride)
      row = windows.row
      is_second, other, head = (
        tf.gather(values, row) for values in (is_second, other, head)
      )
      start = windows.start + head
      of_a = Windows(row, start, tf.where(is_second, 0, windows.length))
      of_b = Windows(row, start, windows.length - of_a.length)
      ids_a = _with_first(ids_a, tf.where(is_second, other, head), of_a)
      ids_b = _with_first(ids_b, tf.where(is_second, 0, other), of_b)
    elif cutting.long_texts == "head_tail":
      num_prompt = tf.minimum(num_prompt, keep_a)
      ids_a = _head_and_tail(ids_a, length_a, keep_a, num_prompt)
      ids_b = _head_and_tail(ids_b, length_b, keep_b, 0)
    else:
      ids_a, ids_b = truncate_rows(ids_a, keep_a), truncate_rows(ids_b, keep_b)
    return self.join(ids_a, ids_b, max_seq_length if pads else None), row

  def join(self, ids_a, ids_b, seq_length: int | None = None):
    """Joins ragged ids with [CLS] and [SEP], and pads them to int32 [B, S]."""
    one = tf.ones([ids_a.nrows(), 1], tf.int32)
    end = tf.RaggedTensor.from_tensor(one * self._sep)
    # An empty row of `ids_b` is no second text.
    end_of_b = truncate_rows(end, tf.minimum(ids_b.row_lengths(), 1))
    first = tf.concat([one * self._cls, ids_a, end], axis=1)
    second = tf.concat([ids_b, end_of_b], axis=1)

    def padded(*parts):
      pair = tf.concat(parts, axis=1).to_tensor(0, shape=[None, seq_length])
      # No pairs at all have the length of an empty one, not 0.
      missing = tf.maximum(2 - tf.shape(pair)[1], 0)
      return tf.pad(pair, [[0, 0], [0, missing]])

    ones = tf.ones_like(second)
    return {
      "input_ids": padded(first, second),
      "input_mask": padded(tf.ones_like(first), ones),
      "segment_ids": padded(
        tf.zeros_like(first), ones if self._has_segments else ones - 1
      ),
    }

  def _tokenize(self, texts) -> Tokens:
    texts = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    points = texts.values  # [characters]
    text_of = tf.cast(texts.value_rowids(), tf.int32)  # [characters]
    # A part (a text, or a word of the pattern) is normalized on its own.
    part = text_of
    if self._kinds:
      kind = self._kinds(points)
      begins_word = _begins_word(kind, text_of)
      part = tf.cumsum(tf.cast(begins_word, tf.int32)) - 1
    if self._contexts:
      points = _with_final_sigmas(points, part, self._contexts)
    as_is = tf.zeros_like(points, tf.bool)
    for word in self._never_split:
      as_is |= _is_part_of(word, points, part, self._separators)
    normalized = self._codes.normalize(points, as_is)
    words = _find_words(normalized, tf.gather(part, normalized.source))
    first, length, ids = self._split_words(words)
    starts = tf.gather(words.source, first)
    after = first + length
    last = tf.gather(words.source, after - 1)
    # Accents belong to the last of the pieces of a character (Korean has many).
    is_whole = last != tf.gather(tf.concat([words.source, [-1]], 0), after)
    ends = tf.where(
      is_whole, tf.gather(_ends(normalized, text_of), last), last + 1
    )
    text_starts = tf.cast(texts.row_starts(), tf.int32)

    def by_text(values, characters):
      """Splits `values` by text; `characters` are their characters' indices."""
      return tf.RaggedTensor.from_value_rowids(
        values,
        tf.cast(tf.gather(text_of, characters), tf.int64),
        texts.nrows(),
        validate=False,
      )

    def offsets(values, characters):
      values -= tf.gather(text_starts, tf.gather(text_of, characters))
      return by_text(values, characters)

    tokens = Tokens(
      by_text(ids, starts), offsets(starts, starts), offsets(ends, starts)
    )
    if not self._kinds:
      return tokens
    word_starts = tf.cast(tf.where(begins_word)[:, 0], tf.int32)
    word_ends = tf.math.unsorted_segment_max(
      tf.where(kind != _BETWEEN, tf.range(tf.size(points)) + 1, 0),
      part,  # -1 before the first word: ignored
      tf.size(word_starts),
    )
    return tokens._replace(
      words=by_text(tf.gather(part, starts), starts),
      word_starts=offsets(word_starts, word_starts),
      word_ends=offsets(word_ends, word_starts),
    )

  def _split_words(self, words: _Words):
    """WordPiece: first character, length and id of each piece, all [pieces]."""
    num_chars = tf.size(words.chars)
    word_end = tf.concat([words.first[1:], [num_chars]], axis=0)
    word_length = word_end - words.first
    length, ids = self._trie.longest(words.chars, words.first, word_end, False)
    is_split = (length > 0) & (length < word_length)
    is_split &= word_length <= self._longest_word

    # Find the longest "##" piece at all inner characters of such words at once.
    position = tf.range(num_chars)
    is_first = words.is_first
    inner = tf.where(tf.gather(is_split, words.word_of) & ~is_first)[:, 0]
    inner = tf.cast(inner, tf.int32)
    inner_end = tf.gather(word_end, tf.gather(words.word_of, inner))
    inner_length, inner_ids = self._trie.longest(
      words.chars, inner, inner_end, True
    )
    indices = tf.concat([words.first, inner], axis=0)[:, tf.newaxis]
    length, ids = (
      tf.tensor_scatter_nd_update(tf.zeros_like(position), indices, values)
      for values in (
        tf.concat([length, inner_length], axis=0),
        tf.concat([ids, inner_ids], axis=0),
      )
    )

    # Pieces start at the first character of a word and where another piece
    # ends, possibly at the very end. Pointer doubling: each iteration follows
    # twice as many pieces as the previous one.
    begins = tf.concat([tf.cast(is_first, tf.int32), [1]], axis=0)
    jump = tf.concat([position + length, [num_chars]], axis=0)
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
    in_unknown = tf.gather(is_unknown, words.word_of)  # [word characters]
    ids = tf.where(in_unknown, self._unknown, ids)
    length = tf.where(in_unknown, tf.gather(word_length, words.word_of), length)
    is_piece = is_first | (begins & ~in_unknown)
    return tuple(
      tf.boolean_mask(values, is_piece) for values in (position, length, ids)
    )


def truncate_rows(rows, lengths):
  """Truncates the rows of a ragged tensor to `lengths`, int [B]."""
  lengths = tf.cast(lengths, tf.int32)
  return gather_windows(rows, Windows(tf.range(tf.size(lengths)), 0, lengths))


def _num_equal(rows, prompt: Sequence[int]):
  """Number of values, int32 [B], with which rows and a prompt begin."""
  first = rows.to_tensor(-1, shape=[None, len(prompt)])
  is_equal = tf.cast(first == tf.constant(prompt, tf.int32), tf.int32)
  return tf.reduce_sum(tf.math.cumprod(is_equal, axis=1), axis=1)


def _head_and_tail(rows, lengths, keep, num_prompt):
  """Cuts rows to `keep`, int32 [B], as `model_inputs.cut` does."""
  head = num_prompt + (keep - num_prompt + 2) // 4
  tail = Windows(tf.range(tf.size(keep)), lengths - keep + head, keep - head)
  return _with_first(rows, head, tail)


class Windows(NamedTuple):
  """Overlapping windows of long rows, sorted by row and start."""

  row: Any  # int32 [windows], index of the row
  start: Any  # int32 [windows], index in the row of its first value
  length: Any  # int32 [windows], number of values


def split_into_windows(lengths, room, stride) -> Windows:
  """Splits rows into overlapping windows; an empty row has an empty one."""
  # int32 [B] each: a row's length, the maximum length of its windows, and the
  # distance between their starts.
  count = 1 - tf.maximum(lengths - room, 0) // -stride
  row = tf.repeat(tf.range(tf.size(lengths)), count)
  nth = tf.range(tf.size(row))
  nth -= tf.gather(tf.cumsum(count, exclusive=True), row)
  start = nth * tf.gather(stride, row)
  left = tf.gather(lengths, row) - start
  return Windows(row, start, tf.minimum(tf.gather(room, row), left))


def gather_windows(rows, windows: Windows):
  """Gathers the values of windows: ragged [B, None] to [windows, None]."""
  first = tf.gather(tf.cast(rows.row_starts(), tf.int32), windows.row)
  first += windows.start
  indices = tf.ragged.range(first, first + windows.length)
  return indices.with_values(tf.gather(rows.values, indices.values))


def _with_first(rows, num_first, windows: Windows):
  """Gathers the first values, int32 [windows], of rows before windows."""
  first = Windows(windows.row, 0, num_first)
  parts = gather_windows(rows, first), gather_windows(rows, windows)
  return tf.concat(parts, axis=1)


# From characters to words


class _PointTable:
  """A lookup table by code point, compressed by storing equal pages once."""

  _PAGE = 256

  def __init__(self, values: np.ndarray):
    """Compresses a table, int32 [_NUM_CODE_POINTS]."""
    pages, index = np.unique(
      values.reshape(-1, self._PAGE), axis=0, return_inverse=True
    )
    self._values = pages.reshape(-1).astype(np.int32)
    self._first = (index.reshape(-1) * self._PAGE).astype(np.int32)

  def __call__(self, points):
    """Looks up code points, int32 [characters]."""
    page = tf.gather(self._first, points // self._PAGE)
    return tf.gather(self._values, page + points % self._PAGE)


def _probes() -> Iterable[tuple[int, str]]:
  """Yields characters that a tokenizer may keep, each between two letters."""
  for point in range(_NUM_CODE_POINTS):
    char = chr(point)
    if char in "\t\n\r" or not unicodedata.category(char).startswith("C"):
      yield point, f"a{char}a"


class _Normalized(NamedTuple):
  """Characters after cleaning, lower-casing and accent stripping."""

  codes: Any  # int32 [codes]
  source: Any  # int32 [codes], index of each code's character
  has_code: Any  # bool [characters], whether it has any code
  # bool [characters], whether it has none because it is an accent.
  is_accent: Any


class _Codes:
  """Table of the codes of each character."""

  # Nearly all characters have one code; the table contains its difference from
  # the code point. For other characters, which have a row of codes, it contains
  # `_ROWS` minus the index of the row.
  _ROWS = -(1 << 24)
  _DROPPED, _ACCENT = 0, 1  # indices of empty rows

  def __init__(self, do_lower_case: bool):
    basic = tokenization.BasicTokenizer(do_lower_case)
    changes = np.full(_NUM_CODE_POINTS, self._ROWS - self._DROPPED, np.int32)
    rows: list[list[int]] = [[], []]
    for point, probe in _probes():
      text = " ".join(basic.tokenize(probe))[1:-1]
      if len(text) == 3 and text[0] == text[2] == " ":
        codes = [_ALONE + ord(text[1])]
      else:
        codes = [_SPACE if char == " " else ord(char) for char in text]
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

  def normalize(self, points, as_is) -> _Normalized:
    """Normalizes code points, but not those that are `as_is`."""
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
    return _Normalized(codes, source, length > 0, is_accent)


_codes = functools.cache(_Codes)


@functools.cache
def _contexts() -> _PointTable:
  """Class of each character for lower-casing Σ, as in Python's `str.lower`."""
  # Σ becomes ς at the end of a word: if a cased letter (class 1) precedes it
  # and none follows. Characters of class 2 are skipped; all others have class
  # 0.
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
  """Code points [characters], with ς for each Σ at the end of a word."""

  def replaced():
    context = contexts(points)
    position = tf.where(context != 2)[:, 0]
    is_cased = tf.gather(context == 1, position)
    part = tf.gather(part_of, position)
    false = tf.zeros([1], tf.bool)
    same = part[1:] == part[:-1]
    after_cased = tf.concat([false, is_cased[:-1] & same], axis=0)
    before_cased = tf.concat([is_cased[1:] & same, false], axis=0)
    is_final = tf.gather(points, position) == _SIGMA
    is_final &= after_cased & ~before_cased
    final = tf.boolean_mask(position, is_final)[:, tf.newaxis]
    small = tf.fill(tf.shape(final)[:1], _FINAL_SIGMA)
    return tf.tensor_scatter_nd_update(points, final, small)

  has_any = tf.reduce_any(points == _SIGMA)
  return tf.cond(has_any, replaced, lambda: points)


def _separators() -> np.ndarray:
  """1 for characters that separate the chunks of `split_chunks`, else 0."""
  table = np.zeros(_NUM_CODE_POINTS, np.int32)
  for point, probe in _probes():
    table[point] = len(tokenization.split_chunks(probe)) == 2
  return table


def _is_part_of(word: str, points, part_of, separators: _PointTable):
  """Bool [characters]: part of a `word` between separators."""
  size, length = tf.size(points), len(word)

  def at(distance, values, padding):
    """Shifts values: element i is values[i + distance], or padding."""
    edge = tf.fill([length], padding)
    padded = tf.concat([edge, values, edge], axis=0)
    return padded[length + distance :][:size]

  is_separator = separators(points) > 0

  def ends_at(distance):
    is_other_part = at(distance, part_of, -1) != part_of
    return is_other_part | at(distance, is_separator, True)

  found = ends_at(-1) & ends_at(length)
  for i, char in enumerate(word):
    found &= at(i, points, -1) == ord(char)
    found &= at(i, part_of, -1) == part_of
  return functools.reduce(
    tf.logical_or, (at(-i, found, False) for i in range(length))
  )


# Kinds of characters: between words, part of a word, part of the word before it
# or else a word of its own, a word of its own.
_BETWEEN, _PART, _MARK, _WORD = range(4)


@functools.cache
def _kinds(pattern: re.Pattern[str]) -> _PointTable:
  """Kind of each character, for the words that a pattern matches."""
  kinds = np.empty(_NUM_CODE_POINTS, np.int32)
  for point in range(_NUM_CODE_POINTS):
    found = pattern.findall(f"a{chr(point)}a")
    kinds[point] = (_PART, _BETWEEN, _WORD)[len(found) - 1]
    if kinds[point] == _PART and len(pattern.findall(f"{chr(point)}a")) > 1:
      kinds[point] = _MARK
  return _PointTable(kinds)


def _begins_word(kind, text_of):
  """Bool [characters]: a word begins with it."""
  # What a mark belongs to: the last character before it that is none.
  is_base = kind != _MARK
  bases = tf.concat([[0], tf.cast(tf.where(is_base)[:, 0], tf.int32)], axis=0)
  base = tf.gather(bases, tf.cumsum(tf.cast(is_base, tf.int32)))
  is_part = tf.gather(kind, base) == _PART
  is_part &= tf.gather(text_of, base) == text_of
  continues = is_part[1:] & is_part[:-1] & (text_of[1:] == text_of[:-1])
  continues = tf.concat([kind[:1] < 0, continues], axis=0)
  return (kind != _BETWEEN) & ~continues


class _Words(NamedTuple):
  """The words of texts, as one sequence of the characters of words."""

  chars: Any  # int32 [word characters], code points
  # int32 [word characters], index of the original character of each.
  source: Any
  # bool [word characters], whether a word begins with it.
  is_first: Any
  # int32 [word characters], index of its word.
  word_of: Any
  # int32 [words], index of each word's first character.
  first: Any


def _find_words(normalized: _Normalized, part) -> _Words:
  """Splits codes into words, which do not cross a `part`, int32 [codes]."""
  codes, source, *_ = normalized
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


def _ends(normalized: _Normalized, text_of):
  """Int32 [characters]: index after a character with a code and its accents."""
  _, _, has_code, is_accent = normalized
  position = tf.range(tf.size(text_of))
  kept = tf.cast(tf.where(has_code)[:, 0], tf.int32)
  kept = tf.concat([kept, [0]], axis=0)  # not empty, even without characters
  # The last kept character up to each character.
  base = tf.maximum(tf.cumsum(tf.cast(has_code, tf.int32)) - 1, 0)
  same_text = tf.gather(text_of, tf.gather(kept, base)) == text_of
  belongs = has_code | (is_accent & same_text)
  ends = tf.math.unsorted_segment_max(
    tf.where(belongs, position + 1, 0), base, tf.size(kept)
  )
  return tf.gather(ends, base)


# From words to pieces


class _Trie:
  """A trie of the vocabulary, with two roots."""

  # Node 0 is the root of pieces that begin words, node 1 that of "##" pieces.
  # An edge is encoded as one number: its source node and its character.
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

  def longest(self, chars, starts, ends, is_continuation: bool):
    """Longest vocabulary entry at each start: its length, 0 if none, and id."""
    # `ends` are those of the words at the starts, as indices in `chars`.
    edges, targets = tf.constant(self._edges), tf.constant(self._targets)
    entry_of = tf.constant(self._entry_of)

    def step(query, node, position, length, ids):
      """Follows one more edge for all queries that are still active."""
      char = tf.cast(tf.gather(chars, position), tf.int64)
      edge = tf.cast(node, tf.int64) * (1 << _POINT_BITS) + char
      index = tf.searchsorted(edges, edge)
      index = tf.minimum(index, len(self._edges) - 1)
      has_edge = tf.gather(edges, index) == edge
      query = tf.boolean_mask(query, has_edge)
      position = tf.boolean_mask(position + 1, has_edge)
      node = tf.gather(targets, tf.boolean_mask(index, has_edge))
      entry = tf.gather(entry_of, node)
      is_entry = entry >= 0
      found = tf.boolean_mask(query, is_entry)
      size = tf.boolean_mask(position, is_entry) - tf.gather(starts, found)
      found = found[:, tf.newaxis]
      length = tf.tensor_scatter_nd_update(length, found, size)
      ids = tf.tensor_scatter_nd_update(
        ids, found, tf.boolean_mask(entry, is_entry)
      )
      has_more = position < tf.gather(ends, query)
      active = (
        tf.boolean_mask(values, has_more) for values in (query, node, position)
      )
      return *active, length, ids

    zeros = tf.zeros_like(starts)
    root = tf.fill(tf.shape(starts), int(is_continuation))
    state = (tf.range(tf.size(starts)), root, starts, zeros, zeros)
    any_size = tf.TensorShape([None])
    *_, length, ids = tf.while_loop(
      lambda query, *_: tf.size(query) > 0,
      step,
      state,
      shape_invariants=(any_size,) * len(state),
    )
    return length, ids
