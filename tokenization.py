"""From text to WordPiece ids, with the place of each piece in the text.

Text is split in two steps (Devlin et al. 2019, section 3): `BasicTokenizer`
finds words, `WordpieceTokenizer` cuts each into the longest pieces that the
vocabulary has. `FullTokenizer` does both, and remembers what each chunk of
text between white space became.

Needs the standard library alone; TensorFlow only to read a vocabulary whose
path has a scheme (`gs://bucket/vocab.txt`).
"""

from __future__ import annotations

import os
import re
import string
import unicodedata
from collections.abc import Hashable, Iterable, Mapping
from itertools import groupby, islice
from typing import Any, Callable


def convert_to_unicode(text: str | bytes) -> str:
  """`text` as str; bytes are read as UTF-8, without those that are not.

  Raises:
    ValueError: `text` is neither str nor bytes.
  """
  if isinstance(text, str):
    return text
  if isinstance(text, bytes):
    return text.decode("utf-8", "ignore")
  raise ValueError(f"text must be str or bytes, not {type(text).__name__}")


def printable_text(text: str | bytes) -> str:
  """`text` as `print` takes it: what `convert_to_unicode` gives."""
  return convert_to_unicode(text)


def load_vocab(vocab_file: str | os.PathLike[str]) -> dict[str, int]:
  """Reads a vocabulary: one entry a line, its id the line's number from 0.

  White space around an entry is not part of it. An entry that comes twice
  has its first place in the order and its last id.

  Raises:
    OSError: there is no such file.
    UnicodeDecodeError: the file is not UTF-8.
  """
  vocab = {}
  with _open_bytes(os.fspath(vocab_file)) as lines:
    for index, line in enumerate(lines):
      vocab[line.decode("utf-8").strip()] = index
  return vocab


def _open_bytes(path: str) -> Any:
  if "://" in path:
    from tensorflow import io

    return io.gfile.GFile(path, "rb")
  return open(path, "rb")


def check_vocab(
  vocab: Mapping[str, int], vocab_size: int | None = None
) -> None:
  """Checks that a vocabulary can serve a model.

  Args:
    vocab: entry -> id.
    vocab_size: rows of the model's embedding table; None: not checked.

  Raises:
    ValueError: [UNK], [CLS] or [SEP] is missing, or an id is not below
      `vocab_size`.
  """
  missing = [word for word in ("[UNK]", "[CLS]", "[SEP]") if word not in vocab]
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
  """What `vocab` has for each of `items`.

  Raises:
    KeyError: an item is not in `vocab`.
  """
  return list(map(vocab.__getitem__, items))


def convert_tokens_to_ids(
  vocab: Mapping[str, int], tokens: Iterable[str]
) -> list[int]:
  """Ids of `tokens`; KeyError where one is not in `vocab`."""
  return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(
  inv_vocab: Mapping[int, str], ids: Iterable[int]
) -> list[str]:
  """Tokens of `ids`; KeyError where one is not in `inv_vocab`."""
  return convert_by_vocab(inv_vocab, ids)


def whitespace_tokenize(text: str) -> list[str]:
  """Splits at runs of white space."""
  return text.split()


# The published models whose names tell the case of their vocabulary.
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
  """Refuses lower-casing for a published cased model, and the reverse.

  Args:
    do_lower_case: whether text will be lower-cased.
    init_checkpoint: path of a checkpoint. Published models are known by their
      folder, `.../uncased_L-12_H-768_A-12/bert_model.ckpt`; nothing is known
      of others, and they pass.

  Raises:
    ValueError: the model was trained on text of the other kind.
  """
  match = re.search(r"([A-Za-z0-9_-]+)/bert_model\.ckpt", init_checkpoint or "")
  model = match and match.group(1)
  if model in (_CASED_MODELS if do_lower_case else _LOWER_CASED_MODELS):
    trained_on = "cased" if do_lower_case else "lower-cased"
    raise ValueError(
      f"{init_checkpoint} was trained on {trained_on} text; set"
      f" --do_lower_case={not do_lower_case}"
    )


class _Memo(dict):
  """key -> `compute(key)`, computed when first asked for.

  A pickle holds `compute` alone.
  """

  def __init__(self, compute: Callable[[Any], Any]):
    super().__init__()
    self.compute = compute

  def __missing__(self, key):
    value = self[key] = self.compute(key)
    return value

  def __reduce__(self):
    return type(self), (self.compute,)


class _ChunkMemo(_Memo):
  """The same for chunks of text, in bounded memory: some 35 MiB when full.

  A long chunk hardly comes twice (Chinese has no spaces) and is not kept. A
  full memo starts anew, and soon holds again what is common.
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


def _is_whitespace(char: str) -> bool:
  """Whether a character separates words."""
  return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
  """Whether a character is dropped: general category C, but \\t, \\n, \\r.

  That takes private-use, unassigned and surrogate code points too.
  """
  return char not in "\t\n\r" and unicodedata.category(char).startswith("C")


def _is_punctuation(char: str) -> bool:
  """Whether a character is a word by itself.

  All that ASCII has beside letters, digits, space and control characters
  counts, even where Unicode calls it a symbol ("$", "^", "`").
  """
  return char in string.punctuation or unicodedata.category(char)[0] == "P"


# First and last code point of the blocks of CJK ideographs, each of which is a
# word by itself. Kana and Hangul are letters like others.
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


def _is_chinese(code_point: int) -> bool:
  return any(first <= code_point <= last for first, last in _CHINESE_BLOCKS)


# What str.translate puts for a code point; None drops it.


def _cleaned(code_point: int) -> str | None:
  char = chr(code_point)
  if char == "\ufffd" or _is_control(char):
    return None
  return " " if _is_whitespace(char) else char


def _chinese_apart(code_point: int) -> str:
  char = chr(code_point)
  return f" {char} " if _is_chinese(code_point) else char


def _cleaned_with_chinese_apart(code_point: int) -> str | None:
  char = _cleaned(code_point)
  return char and _chinese_apart(ord(char))


def _without_accent(code_point: int) -> str | None:
  char = chr(code_point)
  return None if unicodedata.category(char) == "Mn" else char


def _punctuation_apart(code_point: int) -> str:
  char = chr(code_point)
  return f" {char} " if _is_punctuation(char) else char


_CLEANED = _Memo(_cleaned)
_CLEANED_WITH_CHINESE_APART = _Memo(_cleaned_with_chinese_apart)
_WITHOUT_ACCENT = _Memo(_without_accent)
_PUNCTUATION_APART = _Memo(_punctuation_apart)


class BasicTokenizer:
  """Splits text into words: at white space, around punctuation and Chinese.

  The underscored methods are the steps of `tokenize`, one by one; a subclass
  may override them.
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
    """Words of `text`, lower-cased and without accents if so set.

    Accents are removed by canonical decomposition, which is not undone: Korean
    comes out as single jamo.
    """
    text = convert_to_unicode(text)
    if self._overrides_steps:
      return self._tokenize_by_steps(text)
    # The same as the steps, with fewer passes over the text.
    if text.isascii() and text.isalnum():  # most words, and nothing to do
      return [text.lower() if self.do_lower_case else text]
    text = text.translate(_CLEANED_WITH_CHINESE_APART)
    if self.do_lower_case:
      text = text.lower()
      if not text.isascii():  # ASCII has no accents
        text = self._run_strip_accents(text)
    return text.translate(_PUNCTUATION_APART).split()

  def _tokenize_by_steps(self, text: str) -> list[str]:
    text = self._tokenize_chinese_chars(self._clean_text(text))
    words = []
    for word in whitespace_tokenize(text):
      if self.do_lower_case:
        word = self._run_strip_accents(word.lower())
      words += self._run_split_on_punc(word)
    return whitespace_tokenize(" ".join(words))

  def _clean_text(self, text: str) -> str:
    """Drops control characters; white space becomes spaces."""
    return text.translate(_CLEANED)

  def _tokenize_chinese_chars(self, text: str) -> str:
    """Puts spaces around Chinese characters."""
    return "".join(
      f" {char} " if self._is_chinese_char(ord(char)) else char for char in text
    )

  def _is_chinese_char(self, cp: int) -> bool:
    """Whether a code point is a CJK ideograph."""
    return _is_chinese(cp)

  def _run_strip_accents(self, text: str) -> str:
    """Decomposes characters and drops their accents."""
    return unicodedata.normalize("NFD", text).translate(_WITHOUT_ACCENT)

  def _run_split_on_punc(self, text: str) -> list[str]:
    """Splits around punctuation, each character of which is an item."""
    items = []
    for is_punctuation, chars in groupby(text, _is_punctuation):
      run = "".join(chars)
      items += run if is_punctuation else [run]
    return items


class WordpieceTokenizer:
  """Cuts words into the longest pieces of a vocabulary, from the left.

  Args:
    vocab: entry -> id; pieces that do not begin a word are marked "##". Not
      to be changed afterwards.
    unk_token: stands for a word that cannot be cut so.
    max_input_chars_per_word: characters; a longer word becomes `unk_token`.
  """

  def __init__(
    self,
    vocab: Mapping[str, int],
    unk_token: str = "[UNK]",
    max_input_chars_per_word: int = 200,
  ):
    self.vocab = vocab
    self.unk_token = unk_token
    self.max_input_chars_per_word = max_input_chars_per_word
    self._longest_entry = max(map(len, vocab), default=0)

  def tokenize(self, text: str | bytes) -> list[str]:
    """Pieces of the words of `text`, which white space separates."""
    words = whitespace_tokenize(convert_to_unicode(text))
    return [piece for word in words for piece in self._cut(word)]

  def _cut(self, word: str) -> list[str]:
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
      mark = "##"
      rest = mark + rest[end:]
    pieces.append(rest)
    return pieces


# A chunk is what stands between white space. The characters named here are
# white space to Python, but `BasicTokenizer` drops them and joins what is left.
_CHUNK = re.compile(r"[\S\x0b\x0c\x1c-\x1f\x85]+")


# Some of the characters that `_is_punctuation` takes, the more common.
_MARKS = string.punctuation + "“”‘’…—"


def split_chunks(text: str) -> list[str]:
  """What stands between white space, as `FullTokenizer` takes it."""
  # The same as the search, quicker where the text has nothing odd.
  return text.split() if text.isprintable() else _CHUNK.findall(text)


class FullTokenizer:
  """From text to the pieces of a vocabulary, and their ids.

  A chunk between white space becomes the same pieces wherever it stands, so
  what one became is remembered: most of a text is looked up, not computed.
  `basic_tokenizer` and `wordpiece_tokenizer` may be replaced by any object with
  a method `tokenize`; then nothing is remembered.

  Args:
    vocab_file: see `load_vocab`; or what that gives.
    do_lower_case: whether to lower-case and strip accents, as the model's
      training text was.
    never_split: words that are pieces as they are ("[MASK]") where they stand
      between white space. One that the vocabulary lacks becomes [UNK].

  Raises:
    ValueError: a word of `never_split` is empty or has white space.
  """

  # Also for subclasses that make their own parts.
  never_split = frozenset()
  _remembers = False

  def __init__(
    self,
    vocab_file: str | os.PathLike[str],
    do_lower_case: bool = True,
    never_split: Iterable[str] = (),
  ):
    is_loaded = isinstance(vocab_file, Mapping)
    self.vocab = dict(vocab_file) if is_loaded else load_vocab(vocab_file)
    self.inv_vocab = {index: token for token, index in self.vocab.items()}
    self.basic_tokenizer = BasicTokenizer(do_lower_case=do_lower_case)
    self.wordpiece_tokenizer = WordpieceTokenizer(vocab=self.vocab)
    self.never_split = frozenset(never_split)
    for word in self.never_split:
      if split_chunks(word) != [word]:
        raise ValueError(f"never_split: {word!r} is not one word")
    self._chunk_tokens = _ChunkMemo(self._tokenize_chunk)
    self._chunk_ids = _ChunkMemo(self._encode_chunk)
    self._chunk_places = _ChunkMemo(self._place_chunk)
    self._remembers = True

  @property
  def basic_tokenizer(self) -> BasicTokenizer:
    """Finds the words of a text."""
    return self._basic_tokenizer

  @basic_tokenizer.setter
  def basic_tokenizer(self, tokenizer: BasicTokenizer) -> None:
    self._basic_tokenizer = tokenizer
    self._remembers = False

  @property
  def wordpiece_tokenizer(self) -> WordpieceTokenizer:
    """Cuts words into pieces."""
    return self._wordpiece_tokenizer

  @wordpiece_tokenizer.setter
  def wordpiece_tokenizer(self, tokenizer: WordpieceTokenizer) -> None:
    self._wordpiece_tokenizer = tokenizer
    self._remembers = False

  def tokenize(self, text: str | bytes) -> list[str]:
    """Pieces of `text`."""
    if not self._remembers:
      return self._tokenize_by_parts(text)
    tokens = []
    chunks = split_chunks(convert_to_unicode(text))
    for chunk_tokens in map(self._chunk_tokens.__getitem__, chunks):
      tokens += chunk_tokens
    return tokens

  def encode(self, text: str | bytes) -> list[int]:
    """Ids of the pieces of `text`, without [CLS] and [SEP].

    Raises:
      KeyError: the text needs [UNK], which the vocabulary lacks.
    """
    if not self._remembers:
      return self.convert_tokens_to_ids(self.tokenize(text))
    ids = []
    chunks = split_chunks(convert_to_unicode(text))
    for chunk_ids in map(self._chunk_ids.__getitem__, chunks):
      ids += chunk_ids
    return ids

  def tokenize_with_offsets(
    self, text: str | bytes
  ) -> tuple[list[str], list[tuple[int, int]]]:
    """Pieces of `text`, and where in it each stands.

    Returns:
      The pieces, and for each the characters that it came from, [start, end)
      in `text` as given (bytes: as `convert_to_unicode` reads them). No range
      is empty, and none begins or ends before the one in front of it. [UNK]
      has that of its whole word. An accent that was stripped belongs to its
      letter; a character that became several pieces (Korean) is the range of
      each of them.
    """
    place = self._chunk_places.__getitem__
    if not self._remembers:
      place = self._place_chunk
    tokens, offsets = [], []
    for chunk in _CHUNK.finditer(convert_to_unicode(text)):
      for token, start, end in place(chunk.group()):
        tokens.append(token)
        offsets.append((chunk.start() + start, chunk.start() + end))
    return tokens, offsets

  def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
    """Ids of `tokens`; KeyError where one is not in the vocabulary."""
    return convert_tokens_to_ids(self.vocab, tokens)

  def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
    """Tokens of `ids`; KeyError where one is not in the vocabulary."""
    return convert_ids_to_tokens(self.inv_vocab, ids)

  def _tokenize_by_parts(self, text: str | bytes) -> list[str]:
    tokens = []
    # Chunk by chunk only where some of them are not to be split.
    chunks = (
      split_chunks(convert_to_unicode(text)) if self.never_split else [text]
    )
    for chunk in chunks:
      if chunk in self.never_split:
        tokens.append(self._whole(chunk))
        continue
      for word in self.basic_tokenizer.tokenize(chunk):
        tokens += self.wordpiece_tokenizer.tokenize(word)
    return tokens

  def _whole(self, word: str) -> str:
    """The piece of a word of `never_split`."""
    return word if word in self.vocab else self.wordpiece_tokenizer.unk_token

  # What the memos hold of a chunk.

  def _tokenize_chunk(self, chunk: str) -> tuple[str, ...]:
    if chunk in self.never_split:
      return (self._whole(chunk),)
    parts = self._marks_and_core(chunk)
    if parts:
      before, core, after = map(self._chunk_tokens.__getitem__, parts)
      return before + core + after
    tokens = []
    for word in self.basic_tokenizer.tokenize(chunk):
      tokens += self.wordpiece_tokenizer._cut(word)
    return tuple(tokens)

  def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
    parts = self._marks_and_core(chunk)
    if parts:
      before, core, after = map(self._chunk_ids.__getitem__, parts)
      return before + core + after
    return tuple(self.convert_tokens_to_ids(self._tokenize_chunk(chunk)))

  def _marks_and_core(self, chunk: str) -> tuple[str, str, str] | None:
    """Splits punctuation off at both ends; None if there is none.

    It becomes what it becomes alone, and so does the core, which often was met
    before: “dog,” is “ and dog and ,”.
    """
    core = chunk.strip(_MARKS)
    if not core or core == chunk or self.never_split:
      return None
    return chunk.partition(core)

  def _place_chunk(self, chunk: str) -> tuple[tuple[str, int, int], ...]:
    if chunk in self.never_split:
      (token,) = self._tokenize_chunk(chunk)
      return ((token, 0, len(chunk)),)
    ranges = iter(self._ranges(chunk))
    placed = []
    for word in self.basic_tokenizer.tokenize(chunk):
      pieces = self.wordpiece_tokenizer.tokenize(word)
      if pieces == [self.wordpiece_tokenizer.unk_token]:
        lengths = [len(word)]
      else:
        lengths = [len(pieces[0]), *(len(piece) - 2 for piece in pieces[1:])]
      for piece, length in zip(pieces, lengths):
        own = list(islice(ranges, length))
        placed.append((piece, own[0][0], own[-1][1]))
    return tuple(placed)

  def _ranges(self, chunk: str) -> list[tuple[int, int]]:
    """For each character of the chunk's words, where it came from.

    How many characters become of one does not depend on its neighbours, so
    each is put through `BasicTokenizer` alone.
    """
    ranges = []
    for place, char in enumerate(chunk):
      left = len("".join(self.basic_tokenizer.tokenize(char)))
      ranges += [(place, place + 1)] * left
      if not left and ranges and unicodedata.category(char) == "Mn":
        ranges[-1] = (ranges[-1][0], place + 1)
    return ranges
