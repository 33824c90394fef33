"""Vocabulary and text rules in the files of a Hugging Face tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bertlib.cli.errors import InputError, some_of
from bertlib.export import tokenizer_files
from bertlib.export.tokenizer_files import SPECIAL
from bertlib.io import json_files, model_files, text_files

# Classes that split text as BERT does; the last two read `tokenizer.json`.
_CLASSES = (
  "BertTokenizer",
  "BertTokenizerFast",
  "PreTrainedTokenizerFast",
  "TokenizersBackend",
)

# The limit of transformers where no file names one.
_MAX_CHARS_PER_WORD = 100

_NO_LIMIT = 2**31


class Tokenizer(NamedTuple):
  """Vocabulary and rules of a tokenizer."""

  vocab: bytes  # contents of `vocab.txt`
  do_lower_case: bool | None  # None if no file says it
  max_input_chars_per_word: int
  max_length: int  # in tokens; a large one for no limit
  notes: list[str]  # what is different here


def read(folder: str, vocab_file: str | None, vocab_size: int) -> Tokenizer:
  """Reads a tokenizer; a `vocab_file` replaces the folder's vocabulary."""
  config, special, added, fast, model = read_files(
    folder,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.json",
    "config.json",
  )
  if "class_name" in fast:  # of KerasHub
    preset = fast.get("config") or {}
    rules = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
    config, fast = {n: preset.get(key) for n, key in rules.items()}, {}
  wordpiece = fast.get("model") or {}
  normalizer = tokenizer_files.bert_normalizer(fast.get("normalizer"))
  fast = {**fast, "normalizer": normalizer}
  do_lower_case = config.get("do_lower_case", normalizer.get("lowercase"))
  parts = ("normalizer", "pre_tokenizer")
  types = {part: (fast.get(part) or {}).get("type") for part in parts}
  rules = normalizer | model | config | types
  notes = _other_rules(rules, bool(do_lower_case))
  if vocab_file is not None:
    vocab = read_vocab(vocab_file)
  else:
    vocab = _find_vocab(folder, fast)
    decoder = config.get("added_tokens_decoder") or {}
    added |= {token["content"]: int(i) for i, token in decoder.items()}
    added |= {t["content"]: t["id"] for t in fast.get("added_tokens", ())}
    vocab, appended = _with_added_tokens(vocab, added, vocab_size)
    notes += appended
  names = _special_names(fast) | special | config
  vocab, renamed = _with_standard_names(vocab, names, folder)
  length = config.get("model_max_length")
  is_limit = isinstance(length, (int, float)) and length < _NO_LIMIT
  return Tokenizer(
    vocab,
    do_lower_case,
    wordpiece.get("max_input_chars_per_word", _MAX_CHARS_PER_WORD),
    int(length) if is_limit else _NO_LIMIT,
    notes + renamed,
  )


def read_files(folder: str, *names: str) -> Iterator[dict[str, Any]]:
  """Yields the contents of JSON files in a folder; {} for a missing one."""
  for path in (os.path.join(folder, name) for name in names):
    yield json_files.read(path, dict) if os.path.exists(path) else {}


def write(
  folder: str, vocab: bytes, description: Mapping[str, Any]
) -> list[str]:
  """Writes the files of a tokenizer; returns what is different there."""
  with open(os.path.join(folder, model_files.VOCAB), "wb") as file:
    file.write(vocab)
  ids = {piece: index for index, piece in enumerate(pieces(vocab))}
  tokenizer_files.write(folder, ids, description)
  limit = description.get("max_input_chars_per_word")
  if limit == _MAX_CHARS_PER_WORD:
    return []
  return [
    f"note: words over {_MAX_CHARS_PER_WORD} characters become [UNK] in"
    f" transformers, here those over {limit or 200}"
  ]


def read_vocab(path: str) -> bytes:
  """A vocabulary in UTF-8, without a byte-order mark and blank last lines."""
  lines = text_files.read_text(path).split("\n")
  while lines and not lines[-1].strip():
    lines.pop()
  return "".join(f"{line}\n" for line in lines).encode()


def pieces(vocab: bytes) -> list[str]:
  """The entries of a vocabulary."""
  return [line.decode(errors="replace") for line in vocab.splitlines()]


# Rules


def _other_rules(found: Mapping[str, Any], do_lower_case: bool) -> list[str]:
  """Notes on rules that `tokenization.py` does not have."""
  supported = {
    "word_tokenizer_type": ("basic",),
    "tokenizer_class": _CLASSES,
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "strip_accents": (do_lower_case,),
    "tokenize_chinese_chars": (True,),
    "handle_chinese_chars": (True,),
    "clean_text": (True,),
  }
  return [
    f"note: tokenization.py does not support {key}={found[key]}; some words"
    " will be tokenized differently"
    for key, values in supported.items()
    if found.get(key) not in (None, *values)
  ]


# Vocabulary


def _find_vocab(folder: str, fast: Mapping[str, Any]) -> bytes:
  """Contents of `vocab.txt`, or the vocabulary in `tokenizer.json`."""
  for name in (model_files.VOCAB, "assets/tokenizer/vocabulary.txt"):
    path = os.path.join(folder, name)
    if os.path.exists(path):
      return read_vocab(path)
  model = fast.get("model", {})
  if model.get("type", "WordPiece") != "WordPiece" or "vocab" not in model:
    raise InputError(
      f"{folder}: has no vocab.txt and no tokenizer.json with WordPiece; name"
      " a vocabulary with --vocab_file"
    )
  mark = model.get("continuing_subword_prefix", "##")
  if mark != "##":
    raise InputError(
      f"{folder}/tokenizer.json: pieces within a word begin with {mark!r}, not"
      " '##'. This model cannot be converted"
    )
  ids = {t["content"]: t["id"] for t in fast.get("added_tokens", ())}
  ids.update(model["vocab"])
  entries = sorted(ids, key=ids.get)
  if [ids[entry] for entry in entries] != list(range(len(entries))):
    raise InputError(
      f"{folder}/tokenizer.json: the ids have gaps; name a vocabulary with"
      " --vocab_file"
    )
  return "".join(f"{entry}\n" for entry in entries).encode()


def _with_added_tokens(
  vocab: bytes, added: Mapping[str, int], vocab_size: int
) -> tuple[bytes, list[str]]:
  """Appends the added tokens, by id, that continue the vocabulary."""
  entries, notes = pieces(vocab), []
  appended, left_out = [], []
  new = added.keys() - set(entries)
  for token in sorted(new, key=lambda token: (added[token], token)):
    is_line = token and token == " ".join(token.split())
    index = len(entries) + len(appended)
    if is_line and added[token] == index < vocab_size:
      appended.append(token)
    else:
      left_out.append(token)
  if left_out:
    notes.append(
      "note: added tokens whose ids do not continue vocab.txt within the"
      f" model's vocab_size are left out: {', '.join(map(repr, left_out))}"
    )
  if appended:
    notes.append(f"added tokens: {', '.join(appended)}")
  return vocab + "".join(f"{token}\n" for token in appended).encode(), notes


def _special_names(fast: Mapping[str, Any]) -> dict[str, str]:
  """Names of special tokens in `tokenizer.json`."""
  processor = fast.get("post_processor") or {}
  names = {
    "unk_token": (fast.get("model") or {}).get("unk_token"),
    "cls_token": (processor.get("cls") or [None])[0],
    "sep_token": (processor.get("sep") or [None])[0],
  }
  return {key: name for key, name in names.items() if name}


def _with_standard_names(
  vocab: bytes, names: Mapping[str, Any], folder: str
) -> tuple[bytes, list[str]]:
  """Renames special entries to those of BERT."""
  entries, renamed = pieces(vocab), []
  for key, standard in SPECIAL.items():
    name = names.get(key) or standard
    name = name["content"] if isinstance(name, Mapping) else name
    if name == standard or name not in entries:
      continue
    if standard in entries:
      raise InputError(
        f"{folder}: its {key} is {name}, but its vocabulary has {standard} too."
        " Name a vocabulary that has one of them with --vocab_file"
      )
    entries[entries.index(name)] = standard
    renamed.append(f"{name} to {standard}")
  missing = [name for name in SPECIAL.values() if name not in entries]
  notes = []
  if renamed:
    vocab = "".join(f"{entry}\n" for entry in entries).encode()
    notes.append(f"renamed in the vocabulary: {', '.join(renamed)}")
  if missing:
    notes.append(f"note: the vocabulary has no {some_of(missing)}")
  return vocab, notes
