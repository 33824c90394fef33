"""Vocabulary and text rules in the files of a Hugging Face tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tokenization
from bertlib.cli.errors import InputError, some_of
from bertlib.data import subword_tokenizer, vocabulary
from bertlib.export import tokenizer_files
from bertlib.export.tokenizer_files import SPECIAL
from bertlib.io import json_files, model_files, text_files

# Classes that split text as BERT does. The first take their rules, but not the
# vocabulary, from `tokenizer_config.json`, the others from `tokenizer.json`.
_OF_BERT = tuple(
  f"{kind}Tokenizer{fast}"
  for kind in ("Bert", "DistilBert", "Electra")
  for fast in ("", "Fast")
)
_OF_FILE = ("PreTrainedTokenizerFast", "TokenizersBackend")

# The limit of transformers where no file names one.
_MAX_CHARS_PER_WORD = 100

_NO_LIMIT = 2**31

# Of byte-level BPE without a tokenizer.json, and its special tokens there.
_MERGES = "merges.txt"
_OF_ROBERTA = {
  f"{role}_token": getattr(subword_tokenizer.OF_ROBERTA, role)
  for role in ("cls", "pad", "sep", "unk", "mask")
}

# Files of tokenizers that have to be converted by the library that wrote them.
_OTHER_FILES = {
  "bpe.codes": "a vocabulary of fastBPE, which transformers alone splits",
  **dict.fromkeys(
    ("sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
    "a model of SentencePiece without a tokenizer.json. Write one with"
    " AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of"
    " transformers",
  ),
}


class Tokenizer(NamedTuple):
  """Vocabulary and rules of a tokenizer."""

  vocab: bytes  # contents of `vocab.txt`, or of `tokenizer.json`
  do_lower_case: bool
  max_input_chars_per_word: int | None
  max_length: int  # in tokens; a large one for no limit
  notes: list[str]  # what is different here
  file: str = model_files.VOCAB  # name of that with the vocabulary


def read(
  folder: str,
  vocab_file: str | None,  # replaces the vocabulary of the folder
  vocab_size: int,
  do_lower_case: bool | None = None,  # replaces that of the files
) -> Tokenizer:
  """Reads the files of a tokenizer."""
  if path := _subword_file(folder, vocab_file):
    return _read_subword(folder, path, do_lower_case)
  config, special, listed, fast, model = read_files(
    folder,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.json",
    "config.json",
  )
  if "class_name" in fast:  # of KerasHub
    preset = fast.get("config") or {}
    names = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
    config, fast = {n: preset.get(key) for n, key in names.items()}, {}
  of_class = config.get("tokenizer_class") or model.get("tokenizer_class")
  rules, notes = _read_rules(config, fast, of_class)
  inputs = config.get("model_input_names") or ["token_type_ids"]
  if do_lower_case and rules["lowercase"] is False:  # accents stay there
    rules["strip_accents"] = rules["strip_accents"] or False
  rules["tokenizer_class"] = of_class
  rules["token_type_ids"] = "token_type_ids" in inputs
  if vocab_file is not None:
    entries, added = vocabulary.read_pieces(vocab_file), {}
  else:
    decoder = config.get("added_tokens_decoder") or {}
    tokens = [
      *({"content": token, "id": i} for token, i in listed.items()),
      *(token | {"id": int(i)} for i, token in decoder.items()),
      *fast.get("added_tokens", ()),
    ]
    added = {token["content"]: token for token in tokens}
    entries, about = _find_vocab(folder, fast)
    notes += about
    for name in {*_further_special(special, config)} & {*entries}:
      token = {"content": name, "id": entries.index(name), "normalized": False}
      added.setdefault(name, token)
  do_lower_case, about = choose_casing(
    [do_lower_case, rules["lowercase"]], entries
  )
  notes += about + _other_rules(config | rules, do_lower_case)
  names = {
    key: _text_of(token)
    for key, token in (_special_names(fast) | special | config).items()
    if key.endswith("_token")
  }
  for name in {*names.values(), *SPECIAL.values()} & added.keys():
    del added[name]
  about = _add_tokens(entries, added, vocab_size, do_lower_case)
  renamed = _give_standard_names(entries, names, folder)
  check_vocab_size(entries, vocab_size, vocab_file or folder)
  return Tokenizer(
    _as_lines(entries),
    do_lower_case,
    rules["max_input_chars_per_word"],
    _max_length(config),
    notes + about + renamed,
  )


def _max_length(config: Mapping[str, Any]) -> int:
  length = config.get("model_max_length", config.get("max_len"))
  is_limit = isinstance(length, (int, float)) and length < _NO_LIMIT
  return int(length) if is_limit else _NO_LIMIT


def read_files(folder: str, *names: str) -> Iterator[dict[str, Any]]:
  """Yields the contents of JSON files in a folder; {} for a missing one."""
  for path in (os.path.join(folder, name) for name in names):
    yield json_files.read(path, dict) if os.path.exists(path) else {}


def write(
  folder: str,
  vocab_file: str,
  description: Mapping[str, Any],
  has_segments: bool = True,
) -> list[str]:
  """Writes the files of a tokenizer; returns what is different there."""
  if vocabulary.is_subword(vocab_file):
    content = subword_tokenizer.read(vocab_file)
    tokenizer_files.write_subword(folder, content, description, has_segments)
    return []
  with open(os.path.join(folder, model_files.VOCAB), "wb") as file:
    file.write(_as_lines(vocabulary.read_pieces(vocab_file)))
  tokenizer_files.write(folder, vocabulary.load(vocab_file), description)
  limit = description.get("max_input_chars_per_word")
  if limit == _MAX_CHARS_PER_WORD:
    return []
  return [
    f"note: words over {_MAX_CHARS_PER_WORD} characters become [UNK] in"
    f" transformers, here those over {limit or 200}"
  ]


def _as_lines(entries: Iterable[str]) -> bytes:
  return "".join(f"{entry}\n" for entry in entries).encode()


def check_vocab_size(
  entries: Sequence[str], vocab_size: int, source: str
) -> None:
  """Refuses a vocabulary with more entries than the model has embeddings."""
  if len(entries) > vocab_size:
    raise InputError(
      f"{source}: the vocabulary has {len(entries)} pieces, the model only"
      f" {vocab_size}. Name the model's vocabulary with --vocab_file"
    )


# Rules


def choose_casing(
  stated: Iterable[bool | None], entries: Iterable[str]
) -> tuple[bool, list[str]]:
  """The first stated casing, else that of the vocabulary with a line."""
  for do_lower_case in stated:
    if do_lower_case is not None:
      return do_lower_case, []
  do_lower_case = not vocabulary.is_cased(entries)
  other = "; transformers lower-cases then" * (not do_lower_case)
  return do_lower_case, [
    f"do_lower_case: {do_lower_case}, by the capital letters in the vocabulary"
    + other
  ]


def _read_rules(
  config: Mapping[str, Any], fast: Mapping[str, Any], of_class: str | None
) -> tuple[dict[str, Any], list[str]]:
  """Rules that transformers applies for a class; a note on ignored ones."""
  none = {"type": "none"}
  before = fast.get("pre_tokenizer") or none
  normalizer = tokenizer_files.bert_normalizer(fast.get("normalizer")) or none
  kind = normalizer["type"]
  for part in normalizer.get("normalizers", ()):
    if part["type"] == "BertNormalizer":
      normalizer = part
  keeps_case = kind == "none"
  found = {
    # None: the vocabulary decides.
    "lowercase": False if keeps_case else normalizer.get("lowercase"),
    "strip_accents": normalizer.get("strip_accents"),
    "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
    "clean_text": normalizer.get("clean_text", True),
    "normalizer": kind,
    "pre_tokenizer": before["type"],
    "max_input_chars_per_word": (fast.get("model") or {}).get(
      "max_input_chars_per_word", _MAX_CHARS_PER_WORD
    ),
  }
  if fast and of_class in _OF_FILE:
    return found, _about_special_tokens(fast)
  rules = {
    # Folders from before `tokenizer.json` may be of cased models.
    "lowercase": config.get("do_lower_case", True if fast else None),
    "strip_accents": config.get("strip_accents"),
    "tokenize_chinese_chars": config.get("tokenize_chinese_chars", True),
    "clean_text": True,
    "normalizer": "BertNormalizer",
    "pre_tokenizer": "BertPreTokenizer",
    "max_input_chars_per_word": _MAX_CHARS_PER_WORD,
  }
  ignored = [
    f"{key}={found[key]}"
    for key, value in rules.items()
    # Without an entry, accents are stripped where text is lower-cased.
    if found[key] not in (None, value, *[rules["lowercase"]] * ("strip" in key))
  ]
  return rules, [
    f"note: {', '.join(ignored)} in tokenizer.json is ignored, as transformers"
    f" does for {of_class or _OF_BERT[0]}. To follow that file, set"
    f" tokenizer_class in tokenizer_config.json to {_OF_FILE[0]}"
  ] * bool(fast and ignored)


def _other_rules(found: Mapping[str, Any], do_lower_case: bool) -> list[str]:
  """Notes on rules that `tokenization.py` does not have."""
  supported = {
    "word_tokenizer_type": ("basic",),
    "tokenizer_class": _OF_BERT + _OF_FILE,
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "strip_accents": (do_lower_case,),
    "tokenize_chinese_chars": (True,),
    "clean_text": (True,),
    "truncation_side": ("right",),
    "token_type_ids": (True,),
  }
  return [
    f"note: tokenization.py does not support {key}={found[key]}; some texts"
    " will have other ids"
    for key, values in supported.items()
    if found.get(key) not in (None, *values)
  ]


# Byte-level BPE and Unigram


def _subword_file(folder: str, vocab_file: str | None) -> str | None:
  """Path of a tokenizer that is not WordPiece; None for WordPiece."""
  if vocab_file:
    return vocab_file if vocabulary.is_subword(vocab_file) else None
  names = os.listdir(folder)
  if tokenizer_files.FILE in names:
    path = os.path.join(folder, tokenizer_files.FILE)
    model = json_files.read(path, dict).get("model") or {}
    return path if subword_tokenizer.kind_of(model) != "WordPiece" else None
  for name, what in _OTHER_FILES.items():
    is_alone = name == "bpe.codes" or model_files.VOCAB not in names
    if name in names and is_alone:
      raise InputError(f"{os.path.join(folder, name)}: is {what}")
  return os.path.join(folder, _MERGES) if _MERGES in names else None


def _read_subword(
  folder: str, path: str, do_lower_case: bool | None
) -> Tokenizer:
  """The tokenizer of a `tokenizer.json`, or of `merges.txt`."""
  if do_lower_case is not None:
    raise InputError(
      f"--do_lower_case: {path} has its own rules for capital letters. Leave"
      " out the flag. If do_lower_case of sentence-transformers is true, write"
      " a normalizer of type Lowercase to that file instead"
    )
  config, special = read_files(
    folder, "tokenizer_config.json", "special_tokens_map.json"
  )
  if os.path.basename(path) == _MERGES:
    content = _from_merges(folder, special | config)
  else:
    content = subword_tokenizer.read(path)
  for token in content.get("added_tokens", ()):
    # As the classes of transformers do: the mask is no word of its own.
    token["lstrip"] |= token["content"] == _OF_ROBERTA["mask_token"]
  stated = config.get("add_prefix_space", False)
  if config.get("tokenizer_class") in _OF_FILE:
    notes = _about_special_tokens(content)
  else:
    notes = [
      f"note: add_prefix_space={stated} in tokenizer_config.json is ignored;"
      f" that of {os.path.basename(path)} counts"
      for step in subword_tokenizer.byte_level_steps(content)
      if step.get("add_prefix_space") != stated
    ]
  return Tokenizer(
    json_files.dumps(content, ensure_ascii=False).encode(),
    False,
    None,
    _max_length(config),
    notes,
    model_files.TOKENIZER,
  )


def _about_special_tokens(fast: Mapping[str, Any]) -> list[str]:
  """A note on a `tokenizer.json` that puts no special tokens around texts."""
  if subword_tokenizer.adds_special_tokens(fast):
    return []
  return [
    "note: tokenizer.json adds no special tokens to texts, which have them here"
  ]


def _from_merges(folder: str, config: Mapping[str, Any]) -> dict[str, Any]:
  """Contents of `tokenizer.json` for a `vocab.json` and a `merges.txt`."""
  path = os.path.join(folder, _MERGES)
  vocab = json_files.read(os.path.join(folder, "vocab.json"), dict)
  (added,) = read_files(folder, "added_tokens.json")
  lines = text_files.read_text(path).splitlines()
  first = int(lines[0].startswith("#version"))  # others may begin with #
  merges = [tuple(line.split(" ")) for line in lines[first:] if line]
  roles = {
    key: _text_of(token)
    for key, token in (_OF_ROBERTA | config).items()
    if key in _OF_ROBERTA
  }
  cls, sep = roles["cls_token"], roles["sep_token"]
  if missing := [repr(name) for name in (cls, sep) if name not in vocab]:
    raise InputError(f"{folder}/vocab.json: has no {some_of(missing)}")
  has_space = config.get("add_prefix_space", False)
  with subword_tokenizer.errors_of(path):
    from tokenizers import AddedToken, ByteLevelBPETokenizer, processors

    made = ByteLevelBPETokenizer(vocab, merges, add_prefix_space=has_space)
    made.post_processor = processors.RobertaProcessing(
      (sep, vocab[sep]), (cls, vocab[cls]), add_prefix_space=has_space
    )
    special = {
      name: AddedToken(
        name, lstrip=key == "mask_token", normalized=False, special=True
      )
      for key, name in roles.items()
    }
    made.add_tokens([special[name] for name in special if name in vocab])
    for name in sorted(added, key=added.get):
      made.add_tokens([special.get(name, name)])
      if made.token_to_id(name) != added[name]:
        raise InputError(f"added_tokens.json: {name} does not continue the ids")
    return json.loads(made.to_str())


# Vocabulary


def _find_vocab(folder: str, fast: Mapping) -> tuple[list[str], list[str]]:
  """Entries of `vocab.txt`, or those in `tokenizer.json`, and a note."""
  names = model_files.VOCAB, "assets/tokenizer/vocabulary.txt"
  paths = (os.path.join(folder, name) for name in names)
  path = next(filter(os.path.exists, paths), None)
  found = vocabulary.read_pieces(path) if path else None
  model = fast.get("model") or {}
  is_wordpiece = subword_tokenizer.kind_of(model) == "WordPiece"
  if not (is_wordpiece and "vocab" in model):
    if found is not None:
      return found, []
    raise InputError(
      f"{folder}: has no vocab.txt and no tokenizer.json with a vocabulary;"
      " name one with --vocab_file"
    )
  mark = model.get("continuing_subword_prefix", "##")
  if mark != "##":
    raise InputError(
      f"{folder}/tokenizer.json: pieces within a word begin with {mark!r}, not"
      " '##'. This model cannot be converted"
    )
  added = {t["content"]: t["id"] for t in fast.get("added_tokens", ())}
  ids, notes = added | model["vocab"], []
  if found is not None:
    listed = added | {entry: i for i, entry in enumerate(found)}
    other = {*zip(listed.values(), listed)} ^ {*zip(ids.values(), ids)}
    other = [repr(entry) for _, entry in sorted(other) if entry]
    if not other:
      return found, []
    notes.append(
      f"note: {model_files.VOCAB} differs from tokenizer.json, which is used"
      f" here as in transformers ({some_of([*dict.fromkeys(other)], 3)})."
      f" --vocab_file={folder}/{model_files.VOCAB} takes the other one"
    )
  entries = sorted(ids, key=ids.get)
  if [ids[entry] for entry in entries] != list(range(len(entries))):
    raise InputError(
      f"{folder}/tokenizer.json: the ids have gaps; name a vocabulary with"
      " --vocab_file"
    )
  return entries, notes


def _add_tokens(
  entries: list[str],
  added: Mapping[str, Mapping[str, Any]],  # as in `tokenizer.json`
  vocab_size: int,
  do_lower_case: bool,
) -> list[str]:
  """Appends the added tokens, by id, that continue the vocabulary."""
  left_out, never_found = [], []
  size, new = len(entries), added.keys() - set(entries)
  for token in sorted(new, key=lambda token: (added[token]["id"], token)):
    is_line = token and token == " ".join(token.split())
    if is_line and added[token]["id"] == len(entries) < vocab_size:
      entries.append(token)
    else:
      left_out.append(token)
  appended = ", ".join(entries[size:])
  tokenizer = tokenization.BasicTokenizer(do_lower_case)
  for token in sorted(added.keys() & {*entries}):
    words = tokenizer.tokenize(token)
    # A token that is not normalized is found only as it is written.
    is_word = len(words) == 1 and added[token].get("normalized", True)
    if is_word or words == [token]:
      entries[entries.index(token)] = words[0]
    else:
      never_found.append(token)
  notes = [f"added tokens: {appended}"] * bool(appended)
  if left_out:
    notes.append(
      "note: added tokens whose ids do not continue vocab.txt within the"
      f" model's vocab_size are left out: {', '.join(map(repr, left_out))}"
    )
  if never_found:
    notes.append(
      "note: text here has no added tokens with punctuation, spaces or, where"
      f" it is lower-cased, capitals: {some_of([*map(repr, never_found)])}"
    )
  return notes


def _special_names(fast: Mapping[str, Any]) -> dict[str, str]:
  """Names of special tokens in `tokenizer.json`."""
  processor = fast.get("post_processor") or {}
  names = {
    "unk_token": (fast.get("model") or {}).get("unk_token"),
    "cls_token": (processor.get("cls") or [None])[0],
    "sep_token": (processor.get("sep") or [None])[0],
  }
  return {key: name for key, name in names.items() if name}


def _further_special(*files: Mapping[str, Any]) -> Iterator[str]:
  """Names of the special tokens that have no role."""
  for file in files:
    for key in ("additional_special_tokens", "extra_special_tokens"):
      tokens = file.get(key) or ()
      named = isinstance(tokens, Mapping)
      yield from map(_text_of, tokens.values() if named else tokens)


def _text_of(token: str | Mapping[str, Any] | None) -> str | None:
  """A token's text; files have it alone or with rules."""
  return token["content"] if isinstance(token, Mapping) else token


def _give_standard_names(
  entries: list[str], names: Mapping[str, Any], folder: str
) -> list[str]:
  """Renames special entries to those of BERT."""
  renamed = []
  for key, standard in SPECIAL.items():
    name = names.get(key) or standard
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
    notes.append(f"renamed in the vocabulary: {', '.join(renamed)}")
  if missing:
    notes.append(f"note: the vocabulary has no {some_of(missing)}")
  return notes
