"""WordPiece tokenization: text to tokens, ids and character offsets.

Text is split in two steps (Devlin et al. 2019, section 3): `BasicTokenizer`
splits it into words, `WordpieceTokenizer` splits each word into the longest
pieces in the vocabulary. `FullTokenizer` does both, and caches the result of
each chunk of text between white space. It is a `Tokenizer`, the interface of
all tokenizers.

Needs only the standard library; TensorFlow only to read a vocabulary from a
remote path (`gs://bucket/vocab.txt`).
"""

from __future__ import annotations

import functools
import io
import os
import re
import string
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Callable, NamedTuple


def convert_to_unicode(text: str | bytes) -> str:
  """Converts `text` to str; bytes are decoded as UTF-8, invalid ones dropped.

  Raises:
    ValueError: `text` is neither str nor bytes.
  """
  if isinstance(text, str):
    return text
  if isinstance(text, bytes):
    return text.decode("utf-8", "ignore")
  raise ValueError(f"text must be str or bytes, not {type(text).__name__}")


def printable_text(text: str | bytes) -> str:
  """Alias of `convert_to_unicode`, for older code."""
  return convert_to_unicode(text)


def load_vocab(
  vocab_file: str | bytes | os.PathLike[str],
) -> dict[str, int]:
  """Reads a vocabulary file: one token per line; ids are 0-based line numbers.

  White space around a token is removed. A token that occurs twice keeps its
  first position in the order of the dictionary and gets its last id. In a file
  without line feeds, carriage returns end lines.

  Raises:
    OSError: the file does not exist.
    UnicodeDecodeError: the file is not UTF-8.
  """
  # Bytes are what a session returns for a path in the graph.
  path, open_file = os.fsdecode(vocab_file), open
  if "://" in path:
    from tensorflow import io as tensorflow_io

    open_file = tensorflow_io.gfile.GFile
  with open_file(path, "rb") as file:
    content = file.read()
  if b"\n" not in content:
    content = content.replace(b"\r", b"\n")
  vocab = {}
  for index, line in enumerate(io.BytesIO(content)):
    vocab[line.decode("utf-8").strip()] = index
  return vocab


def check_vocab(
  vocab: Mapping[str, int], vocab_size: int | None = None
) -> None:
  """Checks that a vocabulary fits a model.

  Args:
    vocab: token -> id.
    vocab_size: rows of the model's embedding table; None to skip that check.

  Raises:
    ValueError: [UNK], [CLS] or [SEP] is missing, or an id is not below
      `vocab_size`.
  """
  special = BERT_TOKENS
  words = special.unk, special.cls, special.sep
  missing = [word for word in words if word not in vocab]
  if missing:
    raise ValueError(
      f"the vocabulary has no {', '.join(missing)}; take the vocab.txt that"
      " came with the checkpoint"
    )
  needed = max(vocab.values()) + 1
  if vocab_size is not None and needed > vocab_size:
    raise ValueError(
      f"the vocabulary has {needed} entries, the model's vocab_size is"
      f" {vocab_size}; take the vocab.txt that came with the checkpoint"
    )


def convert_by_vocab(
  vocab: Mapping[Hashable, Any], items: Iterable[Hashable]
) -> list[Any]:
  """Looks up each of `items` in `vocab`.

  Raises:
    KeyError: an item is not in `vocab`.
  """
  return list(map(vocab.__getitem__, items))


def convert_tokens_to_ids(
  vocab: Mapping[str, int], tokens: Iterable[str]
) -> list[int]:
  """Ids of `tokens`; raises KeyError if one is not in `vocab`."""
  return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(
  inv_vocab: Mapping[int, str], ids: Iterable[int]
) -> list[str]:
  """Tokens of `ids`; raises KeyError if one is not in `inv_vocab`."""
  return convert_by_vocab(inv_vocab, ids)


def whitespace_tokenize(text: str) -> list[str]:
  """Splits at white space."""
  return text.split()


class SpecialTokens(NamedTuple):
  """Special tokens by role, and how they join texts.

  They are entries of the vocabulary, by default those of BERT; or their ids,
  None for one that the vocabulary lacks.
  """

  cls: Any = "[CLS]"
  sep: Any = "[SEP]"
  pad: Any = "[PAD]"
  mask: Any = "[MASK]"
  unk: Any = "[UNK]"
  num_separators: int = 1  # between the texts of a pair
  second_segment: int = 1  # segment id of the second text and its separator

  @property
  def num_before_second(self) -> int:
    """Number of special tokens before the second text of a pair."""
    return 1 + self.num_separators

  def num(self, is_pair: bool = False) -> int:
    """Number of special tokens of a text, or of a pair."""
    return 2 + is_pair * self.num_separators

  def join(
    self, first: Sequence[Any], second: Sequence[Any] = ()
  ) -> tuple[list[Any], list[int]]:
    """Joins the tokens of a text, or of a pair, with special tokens.

    Returns:
      The tokens, [CLS] first [SEP] or [CLS] first [SEP] second [SEP], and their
      segment ids.
    """
    tokens = [self.cls, *first, self.sep]
    if not second:
      return tokens, [0] * len(tokens)
    tokens += [self.sep] * (self.num_separators - 1)
    segment_ids = [0] * len(tokens)
    tokens += [*second, self.sep]
    segment_ids += [self.second_segment] * (len(second) + 1)
    return tokens, segment_ids


BERT_TOKENS = SpecialTokens()


class Tokenizer:
  """Interface of tokenizers: text to tokens, ids and offsets.

  Tokens are entries of the vocabulary. None of the methods adds special tokens;
  `special_tokens.join` and `special_ids.join` do. The name of a special token
  in a text is text, except the mask's for a tokenizer that finds masks.

  Methods for several texts read them, and return results, one after the other,
  in order: they may be of any number.

  Attributes:
    vocab: entry -> id.
    inv_vocab: id -> entry.
    special_tokens: entries for special tokens; `special_tokens.mask` is also
      the name of the mask in text.
    words_are_independent: whether the tokens of a word between spaces are the
      same in every text.
  """

  vocab: dict[str, int]
  inv_vocab: dict[int, str]
  special_tokens = BERT_TOKENS
  words_are_independent = False

  @functools.cached_property
  def special_ids(self) -> SpecialTokens:
    """Ids of `special_tokens`."""
    *entries, num_separators, second_segment = self.special_tokens
    ids = map(self.vocab.get, entries)
    return SpecialTokens(*ids, num_separators, second_segment)

  @functools.cached_property
  def continues_word(self) -> Sequence[bool]:
    """True for the ids [V] of pieces that do not begin a word."""
    raise NotImplementedError

  def encode(self, text: str) -> list[int]:
    """Ids of a text."""
    raise NotImplementedError

  def encode_batch(self, texts: Iterable[str]) -> Iterator[list[int]]:
    """Ids of each text."""
    return map(self.encode, texts)

  def encode_words(
    self, sentences: Iterable[Sequence[str]]
  ) -> Iterator[tuple[list[int], list[int]]]:
    """Ids of each sentence, given as words, and the index of each id's word."""
    raise NotImplementedError

  def encode_with_offsets(
    self, texts: Iterable[str]
  ) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Ids of each text, and the character range [start, end) of each id."""
    raise NotImplementedError

  def tokenize(self, text: str) -> list[str]:
    """Tokens of a text."""
    return self.convert_ids_to_tokens(self.encode(text))

  def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
    """Ids of `tokens`; raises KeyError if one is not in the vocabulary."""
    return convert_tokens_to_ids(self.vocab, tokens)

  def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
    """Tokens of `ids`; raises KeyError if one is not in the vocabulary."""
    return convert_ids_to_tokens(self.inv_vocab, ids)

  def text_of(self, tokens: Iterable[str]) -> str:
    """Text of consecutive tokens, with single spaces between words."""
    raise NotImplementedError

  def shown(self, token: str) -> str:
    """A token as people read it."""
    return token

  def mark_masks(self, text: str) -> str:
    """A text in which a tokenizer that finds masks finds each of them."""
    return text


# Published models whose casing is known by their name.
_LOWER_CASED_MODELS = {
  "uncased_L-12_H-768_A-12",
  "uncased_L-24_H-1024_A-16",
  "multilingual_L-12_H-768_A-12",
  "chinese_L-12_H-768_A-12",
}
_CASED_MODELS = {
  "cased_L-12_H-768_A-12",
  "cased_L-24_H-1024_A-16",
  "multi_cased_L-12_H-768_A-12",
}


def validate_case_matches_checkpoint(
  do_lower_case: bool, init_checkpoint: str | None
) -> None:
  """Checks that `do_lower_case` fits the casing of a published model.

  Args:
    do_lower_case: whether text will be lower-cased.
    init_checkpoint: path of a checkpoint. Published models are recognized by
      their folder, `.../uncased_L-12_H-768_A-12/bert_model.ckpt`; all others
      pass.

  Raises:
    ValueError: the model was trained on text of the other casing.
  """
  match = re.search(r"([A-Za-z0-9_-]+)/bert_model\.ckpt", init_checkpoint or "")
  model = match and match.group(1)
  if model in (_CASED_MODELS if do_lower_case else _LOWER_CASED_MODELS):
    trained_on = "cased" if do_lower_case else "lower-cased"
    raise ValueError(
      f"{init_checkpoint} was trained on {trained_on} text; set"
      f" --do_lower_case={not do_lower_case}"
    )


class _Cache(dict):
  """Cache of `compute(key)` by key; a pickle contains only `compute`."""

  def __init__(self, compute: Callable[[Any], Any]):
    super().__init__()
    self.compute = compute

  def __missing__(self, key):
    value = self[key] = self.compute(key)
    return value

  def __reduce__(self):
    return type(self), (self.compute,)


class _ChunkCache(_Cache):
  """Cache for chunks of text, of bounded size: about 35 MiB of ids when full.

  Long chunks rarely recur (Chinese has no spaces) and are not cached. A full
  cache is cleared, and soon contains the common chunks again.
  """

  MAX_CHUNKS = 2**17
  MAX_CHARACTERS = 24

  def __missing__(self, chunk):
    value = self.compute(chunk)
    if len(chunk) <= self.MAX_CHARACTERS:
      if len(self) >= self.MAX_CHUNKS:
        self.clear()
      self[chunk] = value
    return value

  def concatenate(self, chunks: Iterable[str]) -> list:
    """The values of chunks, which are sequences, as one list."""
    result = []
    for value in map(self.__getitem__, chunks):
      result += value
    return result


def _is_whitespace(char: str) -> bool:
  """True for characters that separate words."""
  return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
  """True for characters to drop: general category C except \\t, \\n, \\r.

  This includes private-use, unassigned and surrogate code points.
  """
  return char not in "\t\n\r" and unicodedata.category(char).startswith("C")


def _is_punctuation(char: str) -> bool:
  """True for punctuation: Unicode category P and ASCII symbols.

  ASCII symbols are "$", "^", "`" and the like, which Unicode does not class as
  punctuation. Each punctuation character is a word of its own.
  """
  return char in string.punctuation or unicodedata.category(char)[0] == "P"


# First and last code point of the blocks of CJK ideographs, each of which is a
# word of its own. Kana and Hangul are treated like other letters.
_CHINESE_BLOCKS = (
  (0x4E00, 0x9FFF),  # Unified Ideographs
  (0x3400, 0x4DBF),  # Extension A
  (0x20000, 0x2A6DF),  # Extension B
  (0x2A700, 0x2B73F),  # Extension C
  (0x2B740, 0x2B81F),  # Extension D
  (0x2B820, 0x2CEAF),  # Extension E
  (0xF900, 0xFAFF),  # Compatibility Ideographs
  (0x2F800, 0x2FA1F),  # Compatibility Ideographs Supplement
)


def is_chinese(code_point: int) -> bool:
  """True for a Chinese character, which is a word of its own."""
  return any(first <= code_point <= last for first, last in _CHINESE_BLOCKS)


# Mappings for `str.translate`: from a code point to its replacement; None drops
# the character.


def _clean_char(code_point: int) -> str | None:
  char = chr(code_point)
  if char == "\ufffd" or _is_control(char):
    return None
  return " " if _is_whitespace(char) else char


def _clean_and_space_chinese(code_point: int) -> str | None:
  char = _clean_char(code_point)
  return f" {char} " if char and is_chinese(code_point) else char


def _drop_accent(code_point: int) -> str | None:
  char = chr(code_point)
  return None if unicodedata.category(char) == "Mn" else char


def _space_punctuation(code_point: int) -> str:
  char = chr(code_point)
  return f" {char} " if _is_punctuation(char) else char


_CLEAN = _Cache(_clean_char)
_CLEAN_AND_SPACE_CHINESE = _Cache(_clean_and_space_chinese)
_DROP_ACCENTS = _Cache(_drop_accent)
_SPACE_PUNCTUATION = _Cache(_space_punctuation)

# Ranges of characters. Reusing a tuple takes less time and memory than keeping
# an equal one.
_RANGES = _ChunkCache(tuple)


class BasicTokenizer:
  """Splits text into words: at white space, around punctuation and Chinese.

  The underscored methods are the single steps of `tokenize`. Subclasses may
  override them.

  Args:
    do_lower_case: whether to lower-case the text and strip accents.
  """

  _STEPS = (
    "_clean_text",
    "_tokenize_chinese_chars",
    "_is_chinese_char",
    "_run_strip_accents",
    "_run_split_on_punc",
  )
  _overrides_steps = False

  def __init_subclass__(cls, **options):
    super().__init_subclass__(**options)
    cls._overrides_steps = any(
      getattr(cls, step) is not getattr(BasicTokenizer, step)
      for step in cls._STEPS
    )

  def __init__(self, do_lower_case: bool = True):
    self.do_lower_case = do_lower_case

  def tokenize(self, text: str | bytes) -> list[str]:
    """Splits `text` into words.

    Accents are stripped by canonical decomposition (NFD), which is not undone:
    Korean syllables come out as single jamo.
    """
    text = convert_to_unicode(text)
    if self._overrides_steps:
      return self._tokenize_in_steps(text)
    # Equivalent to the single steps, with fewer passes over the text.
    if text.isascii() and text.isalnum():  # most words: nothing to split
      return [text.lower() if self.do_lower_case else text]
    text = text.translate(_CLEAN_AND_SPACE_CHINESE)
    if self.do_lower_case:
      text = text.lower()
      if not text.isascii():  # ASCII has no accents
        text = self._run_strip_accents(text)
    return text.translate(_SPACE_PUNCTUATION).split()

  def _tokenize_in_steps(self, text: str) -> list[str]:
    text = self._tokenize_chinese_chars(self._clean_text(text))
    words = []
    for word in whitespace_tokenize(text):
      if self.do_lower_case:
        word = self._run_strip_accents(word.lower())
      words += self._run_split_on_punc(word)
    return whitespace_tokenize(" ".join(words))

  def _clean_text(self, text: str) -> str:
    """Drops control characters; white space becomes spaces."""
    return text.translate(_CLEAN)

  def _tokenize_chinese_chars(self, text: str) -> str:
    """Puts spaces around Chinese characters."""
    return "".join(
      f" {char} " if self._is_chinese_char(ord(char)) else char for char in text
    )

  def _is_chinese_char(self, cp: int) -> bool:
    """True for the code point of a CJK ideograph."""
    return is_chinese(cp)

  def _run_strip_accents(self, text: str) -> str:
    """Decomposes characters and drops their accents."""
    return unicodedata.normalize("NFD", text).translate(_DROP_ACCENTS)

  def _run_split_on_punc(self, text: str) -> list[str]:
    """Splits around punctuation; each punctuation character is an item."""
    items = []
    for is_punctuation, chars in groupby(text, _is_punctuation):
      run = "".join(chars)
      items += run if is_punctuation else [run]
    return items


# A longer word becomes [UNK].
MAX_INPUT_CHARS_PER_WORD = 200

# Begins pieces that do not begin a word.
CONTINUATION = "##"


class WordpieceTokenizer:
  """Splits words into WordPieces by greedy longest match, left to right.

  Args:
    vocab: token -> id; pieces that do not begin a word start with "##". Must
      not change afterwards.
    unk_token: replaces a word that cannot be split into pieces.
    max_input_chars_per_word: in characters; a longer word becomes `unk_token`.
  """

  def __init__(
    self,
    vocab: Mapping[str, int],
    unk_token: str = BERT_TOKENS.unk,
    max_input_chars_per_word: int = MAX_INPUT_CHARS_PER_WORD,
  ):
    self.vocab = vocab
    self.unk_token = unk_token
    self.max_input_chars_per_word = max_input_chars_per_word
    self._longest_entry = max(map(len, vocab), default=0)

  def tokenize(self, text: str | bytes) -> list[str]:
    """Splits `text`, words separated by white space, into WordPieces."""
    words = whitespace_tokenize(convert_to_unicode(text))
    return [piece for word in words for piece in self._split_word(word)]

  def _split_word(self, word: str) -> list[str]:
    if len(word) > self.max_input_chars_per_word:
      return [self.unk_token]
    pieces, rest, mark = [], word, ""
    while rest not in self.vocab:
      for end in range(min(len(rest), self._longest_entry), len(mark), -1):
        if rest[:end] in self.vocab:
          break
      else:
        return [self.unk_token]
      pieces.append(rest[:end])
      mark = CONTINUATION
      rest = mark + rest[end:]
    pieces.append(rest)
    return pieces


# Separates chunks of text. The control characters here are white space to
# Python, but `BasicTokenizer` drops them without splitting.
_SEPARATOR = re.compile(r"[^\S\x0b\x0c\x1c-\x1f\x85]")

# A Chinese character, or text between Chinese characters. What follows the
# character stays with it, unless it surely is part of a word: accents are not.
_PART = re.compile(
  r"[\u4e00-\u9fef](?:[^\w -~\u2010-\u2027\u3001-\u3029\uff01-\uff5e]"
  r"[^\u4e00-\u9fef]*)?|[^\u4e00-\u9fef]+"
)

# A subset of the characters for which `_is_punctuation` is true.
_COMMON_PUNCTUATION = string.punctuation + "“”‘’…—"


def split_chunks(text: str) -> list[str]:
  """Splits text at white space into the chunks of `FullTokenizer`."""
  # Printable text has no control characters, so that `split` gives the same.
  if text.isprintable():
    return text.split()
  return [chunk for chunk in _SEPARATOR.split(text) if chunk]


class FullTokenizer(Tokenizer):
  """Splits text into WordPieces and converts them to ids.

  The pieces of a chunk between white space do not depend on its context, so
  they are cached: most of a text is looked up, not computed.
  `basic_tokenizer` and `wordpiece_tokenizer` may be replaced by any object with
  a method `tokenize`, which disables the cache.

  Args:
    vocab_file: path, see `load_vocab`; or a loaded vocabulary.
    do_lower_case: whether to lower-case and strip accents, as was done with the
      model's training text.
    never_split: words to keep as single tokens ("[MASK]") if white space
      surrounds them. A word that is not in the vocabulary becomes [UNK].
    max_input_chars_per_word: see `WordpieceTokenizer`.

  Raises:
    ValueError: a word of `never_split` is empty or contains white space; see
      also `load_vocab`.
  """

  # Defaults for subclasses that do not call `__init__`.
  never_split = frozenset()
  words_are_independent = True
  _uses_cache = False

  def __init__(
    self,
    vocab_file: str | os.PathLike[str] | Mapping[str, int],
    do_lower_case: bool = True,
    never_split: Iterable[str] = (),
    max_input_chars_per_word: int = MAX_INPUT_CHARS_PER_WORD,
  ):
    is_loaded = isinstance(vocab_file, Mapping)
    self.vocab = dict(vocab_file) if is_loaded else load_vocab(vocab_file)
    self.inv_vocab = {index: token for token, index in self.vocab.items()}
    self.basic_tokenizer = BasicTokenizer(do_lower_case=do_lower_case)
    self.wordpiece_tokenizer = WordpieceTokenizer(
      self.vocab, max_input_chars_per_word=max_input_chars_per_word
    )
    self.never_split = frozenset(never_split)
    for word in self.never_split:
      if split_chunks(word) != [word]:
        raise ValueError(f"never_split: {word!r} is not one word")
    self._chunk_tokens = _ChunkCache(self._tokenize_chunk)
    self._chunk_ids = _ChunkCache(self._encode_chunk)
    self._chunk_offsets = _ChunkCache(self._locate_chunk)
    self._char_counts = _ChunkCache(self._count_chars)
    self._uses_cache = True

  @property
  def basic_tokenizer(self) -> BasicTokenizer:
    """Splits text into words."""
    return self._basic_tokenizer

  @basic_tokenizer.setter
  def basic_tokenizer(self, tokenizer: BasicTokenizer) -> None:
    self._basic_tokenizer = tokenizer
    self._uses_cache = False

  @property
  def wordpiece_tokenizer(self) -> WordpieceTokenizer:
    """Splits words into pieces."""
    return self._wordpiece_tokenizer

  @wordpiece_tokenizer.setter
  def wordpiece_tokenizer(self, tokenizer: WordpieceTokenizer) -> None:
    self._wordpiece_tokenizer = tokenizer
    self._uses_cache = False

  def tokenize(self, text: str | bytes) -> list[str]:
    """Splits `text` into WordPieces, without [CLS] and [SEP]."""
    if not self._uses_cache:
      return self._tokenize_uncached(text)
    chunks = split_chunks(convert_to_unicode(text))
    return self._chunk_tokens.concatenate(chunks)

  def encode(self, text: str | bytes) -> list[int]:
    """Ids of the WordPieces of `text`, without [CLS] and [SEP].

    Raises:
      KeyError: the text needs [UNK], which is not in the vocabulary.
    """
    if not self._uses_cache:
      return self.convert_tokens_to_ids(self.tokenize(text))
    chunks = split_chunks(convert_to_unicode(text))
    return self._chunk_ids.concatenate(chunks)

  def tokenize_with_offsets(
    self, text: str | bytes
  ) -> tuple[list[str], list[tuple[int, int]]]:
    """Splits `text` into WordPieces with character offsets.

    Returns:
      The tokens, and for each its character range [start, end) in `text` as
      given (bytes: as decoded by `convert_to_unicode`). Ranges are not empty;
      starts and ends never decrease. The range of [UNK] is its whole word. A
      stripped accent belongs to its letter. Several pieces of one character
      (Korean) all have the range of that character.
    """
    text = convert_to_unicode(text)
    if not text.isprintable():
      text = _SEPARATOR.sub(" ", text)
    tokens, offsets = self._locate_chunk(text)
    return list(tokens), list(offsets)

  def encode_words(self, sentences):
    """See base class."""
    for sentence in sentences:
      ids: list[int] = []
      words: list[int] = []
      for index, word in enumerate(sentence):
        pieces = self.encode(word)
        ids += pieces
        words += [index] * len(pieces)
      yield ids, words

  def encode_with_offsets(self, texts):
    """See base class and `tokenize_with_offsets`."""
    for text in texts:
      tokens, offsets = self.tokenize_with_offsets(text)
      yield self.convert_tokens_to_ids(tokens), offsets

  @functools.cached_property
  def continues_word(self):
    """See base class."""
    entries = map(self.inv_vocab.get, range(max(self.inv_vocab) + 1))
    return [(entry or "").startswith(CONTINUATION) for entry in entries]

  @staticmethod
  def text_of(tokens):
    """See base class."""
    text = " ".join(tokens).replace(" " + CONTINUATION, "")
    return " ".join(text.replace(CONTINUATION, "").split())

  def mark_masks(self, text):
    """Puts spaces around masks, as `never_split` needs them."""
    mask = self.special_tokens.mask
    return text.replace(mask, f" {mask} ")

  def _tokenize_uncached(self, text: str | bytes) -> list[str]:
    tokens = []
    # Chunks matter only if some of them must not be split.
    chunks = (
      split_chunks(convert_to_unicode(text)) if self.never_split else [text]
    )
    for chunk in chunks:
      if chunk in self.never_split:
        tokens.append(self._unsplit_token(chunk))
        continue
      for word in self.basic_tokenizer.tokenize(chunk):
        tokens += self.wordpiece_tokenizer.tokenize(word)
    return tokens

  def _unsplit_token(self, word: str) -> str:
    """Token of a word of `never_split`."""
    return word if word in self.vocab else self.wordpiece_tokenizer.unk_token

  # Functions of a chunk that are cached.

  def _tokenize_chunk(self, chunk: str) -> tuple[str, ...]:
    if chunk in self.never_split:
      return (self._unsplit_token(chunk),)
    parts, _ = self._split_chunk(chunk)
    if parts:
      return tuple(self._chunk_tokens.concatenate(parts))
    tokens = []
    for word in self.basic_tokenizer.tokenize(chunk):
      tokens += self.wordpiece_tokenizer._split_word(word)
    return tuple(tokens)

  def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
    parts, _ = self._split_chunk(chunk)
    if parts:
      return tuple(self._chunk_ids.concatenate(parts))
    return tuple(self.convert_tokens_to_ids(self._tokenize_chunk(chunk)))

  def _split_chunk(self, chunk: str) -> tuple[Sequence[str], int]:
    """Splits a chunk, or several with spaces, into parts for the cache.

    The parts do not depend on each other, and are often in the cache: Chinese
    characters, and punctuation at both ends: “dog,” is “, dog and ,”.

    Returns:
      The parts, and the number of spaces between them; no parts if the chunk is
      a part itself.
    """
    may_split = self._uses_cache and not self.never_split
    if may_split and not chunk.isascii():
      parts = _PART.findall(chunk)
      if len(parts) > 1:
        return parts, 0
    if " " in chunk:
      return chunk.split(" "), 1
    core = chunk.strip(_COMMON_PUNCTUATION)
    if may_split and core != chunk and core[:1].isalnum():
      return chunk.partition(core), 0
    return (), 0

  def _locate_chunk(
    self, chunk: str
  ) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """Tokens of a chunk, or of several with spaces, and their ranges."""
    if chunk in self.never_split:
      return self._tokenize_chunk(chunk), ((0, len(chunk)),)
    parts, gap = self._split_chunk(chunk)
    if not parts:
      return self._locate_words(chunk)
    locate = self._locate_chunk
    if self._uses_cache:
      locate = self._chunk_offsets.__getitem__
    tokens, offsets, position = [], [], 0
    for part in parts:
      part_tokens, part_offsets = locate(part)
      tokens += part_tokens
      for start, end in part_offsets:
        offsets.append(_RANGES[position + start, position + end])
      position += len(part) + gap
    return tuple(tokens), tuple(offsets)

  def _locate_words(
    self, chunk: str
  ) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    ranges = self._char_ranges(chunk)
    tokens, offsets, first = [], [], 0
    for word in self.basic_tokenizer.tokenize(chunk) if chunk else ():
      pieces = self.wordpiece_tokenizer.tokenize(word)
      is_unknown = pieces == [self.wordpiece_tokenizer.unk_token]
      for index, piece in enumerate(pieces):
        mark = CONTINUATION if index else ""
        last = first + len(word if is_unknown else piece) - len(mark) - 1
        tokens.append(piece)
        offsets.append(_RANGES[ranges[first][0], ranges[last][1]])
        first = last + 1
    return tuple(tokens), tuple(offsets)

  def _char_ranges(self, chunk: str) -> list[tuple[int, int]]:
    """Range in the chunk of each character of the chunk's words.

    `BasicTokenizer` may drop a character or replace it by several, regardless
    of its neighbors, so each is tokenized alone.
    """
    count = self._count_chars
    if self._uses_cache:
      count = self._char_counts.__getitem__
    ranges = []
    for index, char in enumerate(chunk):
      num_chars = count(char)
      ranges += [(index, index + 1)] * num_chars
      if not num_chars and ranges and unicodedata.category(char) == "Mn":
        ranges[-1] = (ranges[-1][0], index + 1)
    return ranges

  def _count_chars(self, char: str) -> int:
    return len("".join(self.basic_tokenizer.tokenize(char)))
