"""Vocabularies: their tokenizer, their checks, and how two of them differ.

Imports no TensorFlow.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping

from absl import logging

import tokenization
from bertlib import files, text_files
from bertlib.errors import InputError

# Name of a model's vocabulary in its folder.
VOCAB_FILE = "vocab.txt"

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Embedding tables are made larger than the vocabulary up to a round number.
_ROUND = 128

# Words with upper and lower case from which on a vocabulary is checked to be of
# the case of the text; a made-up one has fewer.
_ENOUGH_WORDS = 1000


def load_tokenizer(
  vocab_file: str,
  do_lower_case: bool,
  vocab_size: int | None = None,
  init_checkpoint: str | None = None,
  never_split: Iterable[str] = (),
  checks_case: bool = True,
) -> tokenization.FullTokenizer:
  """Loads the tokenizer of a vocabulary that fits the model and the text.

  Args:
    vocab_file: the vocabulary.
    do_lower_case: whether text is lower-cased.
    vocab_size: rows of the model's embedding table; None: not checked.
    init_checkpoint: checkpoint of the model, whose folder may be that of a
      published one, and may have a vocabulary to compare with.
    never_split: see `tokenization.FullTokenizer`.
    checks_case: whether a large vocabulary of the other case is refused.

  Returns:
    The tokenizer.

  Raises:
    InputError: the vocabulary is missing, lacks a special entry, has more
      entries than the model, or is of the other case.
  """
  vocab = load(vocab_file)
  check(vocab_file, vocab, vocab_size)
  try:
    tokenization.validate_case_matches_checkpoint(
      do_lower_case, init_checkpoint
    )
    tokenizer = tokenization.FullTokenizer(vocab, do_lower_case, never_split)
  except ValueError as error:
    raise InputError(f"{vocab_file}: {error}") from error
  if checks_case and has_enough_words(vocab):
    check_case(vocab_file, vocab, do_lower_case)
  if init_checkpoint:
    _compare_with_checkpoint(vocab_file, init_checkpoint)
  return tokenizer


def _compare_with_checkpoint(path: str, checkpoint: str) -> None:
  """Warns of a vocabulary that is not the one beside a checkpoint."""
  beside = os.path.join(os.path.dirname(checkpoint), VOCAB_FILE)
  if files.exists(beside):
    different = difference(path, beside, ignore_unused=True)
    if different:
      logging.warning(
        "%s: not the vocabulary beside the checkpoint, %s (%s)",
        path,
        beside,
        different,
      )


def read_entries(path: str) -> list[str]:
  """Reads the entries of a vocabulary as `tokenization.load_vocab` does.

  Args:
    path: the file, which may begin with a byte-order mark.

  Raises:
    InputError: it is missing, or not UTF-8.
  """
  if not files.exists(path):
    raise InputError(f"{path}: cannot be read; name a vocab.txt")
  lines = text_files.read_text(path).split("\n")
  if not lines[-1]:
    del lines[-1]
  return [line.strip() for line in lines]


def load(path: str) -> dict[str, int]:
  """Reads a vocabulary as `tokenization.load_vocab` does, and checks its bytes.

  Args:
    path: the file; see `read_entries`.

  Returns:
    The id of each entry.

  Raises:
    InputError: see `read_entries`.
  """
  return {entry: index for index, entry in enumerate(read_entries(path))}


def check(
  path: str, vocab: Mapping[str, int], vocab_size: int | None = None
) -> None:
  """Refuses a vocabulary that cannot serve a model, and warns of an odd one.

  Args:
    path: the file.
    vocab: what `tokenization.load_vocab` read from it.
    vocab_size: rows of the model's embedding table; None: not checked.

  Raises:
    InputError: a special entry is missing or comes twice, or there are more
      entries than `vocab_size`.
  """
  try:
    tokenization.check_vocab(vocab, vocab_size)
  except ValueError as error:
    raise InputError(f"{path}: {error}") from error
  num_entries = max(vocab.values()) + 1
  if len(vocab) < num_entries:
    _check_repeated(path)
  if vocab.get("[PAD]") != 0:
    logging.warning(
      "%s: [PAD] is not its first entry, but padding has the id 0", path
    )
  if vocab_size is not None and vocab_size - num_entries >= _ROUND:
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
  repeated = [entry for entry, n in Counter(entries).items() if n > 1 and entry]
  for entry in repeated:
    if entry in _SPECIAL:
      raise InputError(
        f"{path}, line {_lines_of(entry, entries)[1]}: has {entry} a second"
        " time. Make each line different"
      )
  if repeated:
    shown = ", ".join(
      f"{entry} (lines {', '.join(map(str, _lines_of(entry, entries)))})"
      for entry in repeated[:3]
    )
    logging.warning(
      "%s: %d entries come more than once, of which the last one counts: %s",
      path,
      len(repeated),
      shown,
    )


def _lines_of(entry: str, entries: list[str]) -> list[int]:
  """Line numbers, from 1, of an entry."""
  return [n for n, other in enumerate(entries, start=1) if other == entry]


def is_cased(entries: Iterable[str]) -> bool:
  """Whether more than 1% of a vocabulary's words have capital letters.

  Args:
    entries: of the vocabulary. Those of scripts without upper and lower case,
      and special ones, do not count.
  """
  num_words, num_capitals = _count_case(entries)
  return 100 * num_capitals > num_words


def has_enough_words(entries: Iterable[str]) -> bool:
  """Whether a vocabulary is so large that its case is no accident."""
  return _count_case(entries)[0] >= _ENOUGH_WORDS


def _count_case(entries: Iterable[str]) -> tuple[int, int]:
  """Numbers of words that can have capital letters, and of those that have."""
  words = [entry.removeprefix("##") for entry in entries]
  with_case = [w for w in words if w.isalpha() and w.lower() != w.upper()]
  return len(with_case), sum(word != word.lower() for word in with_case)


def check_case(path: str, entries: Iterable[str], do_lower_case: bool) -> None:
  """Refuses a vocabulary of the other case, see `case_mismatch`.

  Raises:
    InputError: it is of the other case.
  """
  problem = case_mismatch(entries, do_lower_case)
  if problem:
    raise InputError(f"{path}: {problem}")


def case_mismatch(entries: Iterable[str], do_lower_case: bool) -> str | None:
  """Says that a vocabulary is cased and text is not, or the reverse.

  Args:
    entries: entries of the vocabulary.
    do_lower_case: whether text is lower-cased.

  Returns:
    A sentence with the fix; None where the case is the same.
  """
  cased = is_cased(entries)
  if cased and do_lower_case:
    return "is cased, but text is lower-cased. Give --do_lower_case=False"
  if not cased and not do_lower_case:
    return (
      "is uncased, but text keeps its capitals, for which it has no entries."
      " Give --do_lower_case=True"
    )
  return None


def check_same(path: str, trained: str) -> None:
  """Refuses a vocabulary that is not that of a trained model.

  Args:
    path: the vocabulary.
    trained: the file in the model's folder.

  Raises:
    InputError: an entry differs.
  """
  different = difference(path, trained)
  if different:
    raise InputError(
      f"{path}: not the vocabulary that the model in"
      f" {os.path.dirname(trained) or '.'} was trained with ({different})."
      f" Give --vocab_file={trained}, or name another --output_dir"
    )


def difference(path: str, other: str, ignore_unused: bool = False) -> str:
  """Describes how two vocabularies differ; empty if they are equal.

  Args:
    path: a vocabulary.
    other: another.
    ignore_unused: whether words may replace entries that are `[unusedN]` in
      `other`, or follow its last entry.
  """
  ours, theirs = read_entries(path), read_entries(other)
  if ignore_unused:
    del ours[len(theirs) :]
  if len(ours) != len(theirs):
    return f"{len(ours)} entries, not {len(theirs)}"
  lines = [
    line
    for line, (one, another) in enumerate(zip(ours, theirs), start=1)
    if one != another and not (ignore_unused and another.startswith("[unused"))
  ]
  if not lines:
    return ""
  first = lines[0]
  return (
    f"{len(lines)} entries differ, the first in line {first}:"
    f" {ours[first - 1]!r}, not {theirs[first - 1]!r}"
  )
