"""Vocabularies: loading, checks, comparison. Imports no TensorFlow."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tokenization
from bertlib.cli import lazy_module
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, some_of
from bertlib.io import files, json_files, model_files, text_files

# Of models that have a `tokenizer.json`.
subword_tokenizer = lazy_module.load("bertlib.data.subword_tokenizer")

# Embedding tables may be larger than the vocabulary, up to a multiple of this.
_TABLE_MULTIPLE = 128

# Minimum number of words for checking the casing of a vocabulary; toy
# vocabularies have fewer.
_MIN_WORDS = 1000


def load_tokenizer(
  vocab_file: str,
  do_lower_case: bool,
  vocab_size: int | None = None,  # of the embedding table; None: not checked
  init_checkpoint: str | None = None,
  finds_mask: bool = False,  # in texts, by their name
  type_vocab_size: int = 2,
  checks_case: bool = True,  # of WordPiece
  max_input_chars_per_word: int | None = None,  # of WordPiece
) -> tokenization.Tokenizer:
  """Tokenizer of a vocabulary; InputError unless it fits model and text."""
  tokenizer: tokenization.Tokenizer
  if is_subword(vocab_file):
    tokenizer = subword_tokenizer.load(vocab_file, finds_mask)
    _check_rows(vocab_file, max(tokenizer.inv_vocab) + 1, vocab_size)
  else:
    vocab = load(vocab_file)
    check(vocab_file, vocab, vocab_size)
    try:
      # The checkpoint's folder may have the name of a published model, which
      # says its casing.
      tokenization.validate_case_matches_checkpoint(
        do_lower_case, init_checkpoint
      )
      tokenizer = tokenization.FullTokenizer(
        vocab,
        do_lower_case,
        [tokenization.BERT_TOKENS.mask] if finds_mask else [],
        max_input_chars_per_word or tokenization.MAX_INPUT_CHARS_PER_WORD,
      )
    except ValueError as error:
      raise InputError(f"{vocab_file}: {error}") from error
    if checks_case:
      check_case(vocab_file, vocab, do_lower_case)
  if init_checkpoint:
    _compare_with_checkpoint(vocab_file, init_checkpoint)
  if type_vocab_size < 2:
    tokenizer.special_tokens = tokenizer.special_tokens._replace(
      second_segment=0
    )
  return tokenizer


def tokenizer_of_model(
  vocab_file: str,
  description: Mapping[str, Any],  # contents of `model.json`, or flags
  config: Mapping[str, Any],  # contents of `bert_config.json`
  **options: Any,
) -> tokenization.Tokenizer:
  """Tokenizer of a trained model; `options` are those of `load_tokenizer`."""
  return load_tokenizer(
    vocab_file,
    description["do_lower_case"],
    config["vocab_size"],
    max_input_chars_per_word=description.get("max_input_chars_per_word"),
    type_vocab_size=config["type_vocab_size"],
    **options,
  )


def _compare_with_checkpoint(path: str, checkpoint: str) -> None:
  """Warns if the vocabulary in the checkpoint's folder is another."""
  expected = model_files.path_of(os.path.dirname(checkpoint), "vocab_file")
  if files.exists(expected):
    different = difference(path, expected, ignore_unused=True)
    if different:
      logging.warning(
        "%s: differs from the vocabulary of the checkpoint, %s (%s)",
        path,
        expected,
        different,
      )


def is_subword(path: str) -> bool:
  """True for a `tokenizer.json`, false for lines of WordPieces."""
  return path.endswith(".json")


def check_own_rules(path: str, given: Iterable[str]) -> None:
  """Refuses flags that change the rules of a `tokenizer.json`."""
  for flag in ("do_lower_case", "max_input_chars_per_word"):
    if flag in given:
      raise InputError(
        f"--{flag}: {path} has the rules of its tokenizer. Leave out the flag"
      )


def read_entries(path: str) -> list[str]:
  """Entries of a vocabulary by id, see `read_pieces` for those of WordPiece."""
  read = subword_tokenizer.read_entries if is_subword(path) else read_pieces
  return read(path)


def read_pieces(path: str) -> list[str]:
  """WordPieces of a vocabulary, without blank lines at its end."""
  entries = _read_lines(path)
  while entries and not entries[-1]:
    del entries[-1]
  return entries


def _read_lines(path: str) -> list[str]:
  """Lines of a vocabulary, as `tokenization.load_vocab` reads them."""
  if not files.exists(path):
    raise InputError(f"{path}: cannot be read; name a vocab.txt")
  text = text_files.read_text(path)
  text_files.check_not_json(path, text, "Name a vocab.txt")
  lines = text.split("\n")
  if not lines[-1]:
    del lines[-1]
  return [line.strip() for line in lines]


def load(path: str) -> dict[str, int]:
  """Reads WordPieces as a mapping from entry to id, see `read_pieces`."""
  return {entry: index for index, entry in enumerate(read_pieces(path))}


def hash_of(path: str) -> str:
  """SHA-256 of a vocabulary's lines, whatever their ends are, or values."""
  if is_subword(path):
    values = json_files.read(path, dict)
    for key in ("truncation", "padding"):  # which exports change
      values.pop(key, None)
    return hashlib.sha256(json_files.dumps(values).encode()).hexdigest()
  return hashlib.sha256("\n".join(_read_lines(path)).encode()).hexdigest()


def check(
  path: str, vocab: Mapping[str, int], vocab_size: int | None = None
) -> None:
  """Refuses a vocabulary that cannot work; warns of what is unusual."""
  try:
    tokenization.check_vocab(vocab, vocab_size)
  except ValueError as error:
    raise InputError(f"{path}: {error}") from error
  num_entries = max(vocab.values()) + 1
  if len(vocab) < num_entries:
    _check_repeated(path)
  if vocab.get(tokenization.BERT_TOKENS.pad) != 0:
    logging.warning(
      "%s: %s is not its first entry, but padding has id 0",
      path,
      tokenization.BERT_TOKENS.pad,
    )
  _check_rows(path, num_entries, vocab_size)


def _check_rows(path: str, num_entries: int, vocab_size: int | None) -> None:
  """Refuses entries without a row in the embedding table; warns of few."""
  if vocab_size is None:
    return
  if num_entries > vocab_size:
    raise InputError(
      f"{path}: has {num_entries} entries, but the model's vocab_size is"
      f" {vocab_size}. Use the file that came with the checkpoint"
    )
  if vocab_size - num_entries >= _TABLE_MULTIPLE:
    logging.warning(
      "%s: has %d entries, but the model's vocab_size is %d. Is it the"
      " vocabulary of the checkpoint?",
      path,
      num_entries,
      vocab_size,
    )


def _check_repeated(path: str) -> None:
  """Warns of repeated entries; refuses repeated special ones."""
  entries = read_entries(path)
  lines: dict[str, int] = {}  # first line of each entry, from 1
  repeated: dict[str, str] = {}
  for line, entry in enumerate(entries, start=1):
    first = lines.setdefault(entry, line)
    if first == line or not entry:
      continue
    repeated[entry] = f"{entry} (lines {first}, {line})"
    if entry in tokenization.BERT_TOKENS:
      raise InputError(
        f"{path}, line {line}: repeats {entry}. Make each line different"
      )
  if repeated:
    logging.warning(
      "%s: %d entries occur more than once; the last occurrence counts: %s",
      path,
      len(repeated),
      some_of([*repeated.values()], 3),
    )


def is_cased(entries: Iterable[str]) -> bool:
  """True if more than 1% of the words, in scripts with case, have capitals."""
  num_words, num_capitals = _count_case(entries)
  return 100 * num_capitals > num_words


def _count_case(entries: Iterable[str]) -> tuple[int, int]:
  """Counts the words in scripts with letter case, and those with capitals."""
  words = [entry.removeprefix(tokenization.CONTINUATION) for entry in entries]
  with_case = [w for w in words if w.isalpha() and w.lower() != w.upper()]
  return len(with_case), sum(word != word.lower() for word in with_case)


def check_case(
  path: str,
  entries: Collection[str],
  do_lower_case: bool,
  refuses: bool = True,  # or only warns
  min_words: int = _MIN_WORDS,  # of a vocabulary whose casing is known
) -> None:
  """Refuses a cased vocabulary for lower-cased text, warns of the reverse."""
  num_words, _ = _count_case(entries)
  if num_words < min_words or is_cased(entries) != do_lower_case:
    return
  if do_lower_case:
    problem = "is cased, but text is lower-cased. Give --do_lower_case=False"
    if refuses:
      raise InputError(f"{path}: {problem}")
  else:
    # Only a warning: the text may have been lower-cased beforehand, with its
    # accents.
    problem = (
      "is uncased, but text keeps its capitals, for which it has no entries."
      " Give --do_lower_case=True, unless the text has no capitals"
    )
  logging.warning("%s: %s", path, problem)


def check_same(path: str, trained: str) -> None:
  """Raises an InputError if a vocabulary differs from a trained model's."""
  different = difference(path, trained)
  if different:
    raise InputError(
      f"{path}: is not the vocabulary that the model in"
      f" {os.path.dirname(trained) or '.'} was trained with ({different})."
      f" Give --vocab_file={trained}, or name another --output_dir"
    )


def difference(path: str, other: str, ignore_unused: bool = False) -> str:
  """Describes how two vocabularies differ; "" if they are equal."""
  entries, expected = read_entries(path), read_entries(other)
  if ignore_unused:
    # Words may replace `[unusedN]` entries, or be appended.
    del entries[len(expected) :]
  if len(entries) != len(expected):
    return f"{len(entries)} entries, not {len(expected)}"
  lines = [
    line
    for line, (entry, wanted) in enumerate(zip(entries, expected), start=1)
    if entry != wanted and not (ignore_unused and wanted.startswith("[unused"))
  ]
  if not lines:
    return ""
  first = lines[0]
  return (
    f"{len(lines)} entries differ, the first in line {first}:"
    f" {entries[first - 1]!r}, not {expected[first - 1]!r}"
  )
