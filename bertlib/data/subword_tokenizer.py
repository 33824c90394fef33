"""Byte-level BPE and SentencePiece unigram, run by the package `tokenizers`.

A model's `tokenizer.json` has the rules, which other programs follow too. What
is different here: names of special tokens in a text are text, and offsets have
no white space at their ends.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, Callable

import tokenization
from bertlib.cli.errors import InputError, needs_package, some_of
from bertlib.io import json_files
from tokenization import SpecialTokens

# Of a `tokenizer.json` that does not say more; or else the names of BERT.
OF_ROBERTA = SpecialTokens("<s>", "</s>", "<pad>", "<mask>", "<unk>", 2, 0)

# Texts that the package encodes at once, in threads.
_BLOCK = 4000

_ADDED = {"id": int, "content": str, "special": bool, "lstrip": bool}
_SURROGATES = re.compile("[\ud800-\udfff]")
_FIX = "Use the tokenizer.json that came with the model"


def load(path: str, finds_mask: bool = False) -> SubwordTokenizer:
  """Tokenizer of a `tokenizer.json`, which finds the mask's name in texts."""
  rules = read(path)
  with errors_of(path):
    return SubwordTokenizer(rules, finds_mask)


@contextlib.contextmanager
def errors_of(path: str) -> Iterator[None]:
  """Turns errors of the package about a file into InputErrors."""
  with needs_package(
    f"{path}: needs the package tokenizers, below 1.0. Install it:"
    " pip install -e '.[tokenizers]'"
  ):
    import tokenizers
    import tokenizers.decoders  # not in release candidates of 1.0
  try:
    yield
  except InputError as error:
    raise InputError(f"{path}: {error}. {_FIX}") from error
  except Exception as error:  # the package raises no other class
    reason, *_ = str(error).split("\n")
    raise InputError(
      f"{path}: tokenizers {tokenizers.__version__} cannot read it"
      f" ({reason}). {_FIX}, or another version of the package"
    ) from error


def read_entries(path: str) -> list[str]:
  """Entries of a `tokenizer.json` by id, "" where there is none."""
  return _by_id(vocab_of(read(path)))


def _by_id(vocab: Mapping[str, int]) -> list[str]:
  entries = [""] * (max(vocab.values(), default=-1) + 1)
  for entry, index in vocab.items():
    entries[index] = entry
  return entries


def read(path: str) -> dict[str, Any]:
  """Contents of a `tokenizer.json`; InputError for other models."""
  model = {"type?": str, "vocab": (dict, list)}
  schema = {"model": model, "added_tokens?": [_ADDED]}
  content = json_files.read(path, schema, _FIX)
  kind = content["model"]["type"] = kind_of(content["model"])
  if kind != "Unigram" and not (kind == "BPE" and byte_level_steps(content)):
    found = "BPE without bytes" if kind == "BPE" else f"a {kind} model"
    raise InputError(
      f"{path}: has {found}; only byte-level BPE, Unigram and, with a"
      " vocab.txt, WordPiece are supported. Use another model"
    )
  return content


def kind_of(model: Mapping[str, Any]) -> str:
  """Type of the `model` of a `tokenizer.json`."""
  # Files from before tokenizers 0.9, such as those of roberta-base and
  # xlm-roberta-base, do not say it.
  is_unigram = isinstance(model.get("vocab"), list)
  others = "BPE" if "merges" in model else "WordPiece"
  return model.get("type") or ("Unigram" if is_unigram else others)


def parts(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
  """The steps of a part of a `tokenizer.json`, of which it may be a list."""
  part = content.get(key) or {}
  if part.get("type") != "Sequence":
    return [part] if part else []
  names = "pretokenizers", "processors"
  return next(part[name] for name in names if name in part)


def byte_level_steps(content: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Steps of byte-level BPE that split texts; none of Unigram."""
  steps = parts(content, "pre_tokenizer")
  return [step for step in steps if step["type"] == "ByteLevel"]


def adds_special_tokens(content: Mapping[str, Any]) -> bool:
  """True if a `tokenizer.json` puts special tokens around texts."""
  steps = parts(content, "post_processor")
  return any(step["type"] != "ByteLevel" for step in steps)


def vocab_of(content: Mapping[str, Any]) -> dict[str, int]:
  """Entries of a `tokenizer.json` with their ids."""
  vocab = content["model"]["vocab"]
  if isinstance(vocab, list):  # pieces with their scores
    vocab = {piece: index for index, (piece, _) in enumerate(vocab)}
  added = {t["content"]: t["id"] for t in content.get("added_tokens", ())}
  return {**vocab, **added}


def special_tokens_of(content: Mapping[str, Any]) -> SpecialTokens:
  """Special tokens of a `tokenizer.json`, and how it joins texts."""
  vocab, names = vocab_of(content), zip(OF_ROBERTA, tokenization.BERT_TOKENS)
  found = {
    role: next((name for name in pair if name in vocab), None)
    for role, pair in zip(SpecialTokens._fields[:5], names)
  }
  model = content["model"]
  if isinstance(model["vocab"], list) and model.get("unk_id") is None:
    found["unk"] = None  # an error of the package at an unknown character
  for part in parts(content, "post_processor"):
    if part["type"] in ("RobertaProcessing", "BertProcessing"):
      found |= {"cls": part["cls"][0], "sep": part["sep"][0]}
    if part["type"] == "BertProcessing":
      found |= {"num_separators": 1, "second_segment": 1}
    if part["type"] == "TemplateProcessing":
      pair = [value for item in part["pair"] for value in item.values()]
      names = [value["id"] for value in pair]
      found |= {
        "cls": names[0],
        "sep": names[-1],
        "num_separators": [*names, "B"].index("B") - 2,
        "second_segment": pair[-1]["type_id"],
      }
      joined, _ = SpecialTokens(**found).join(["A"], ["B"])
      if found["num_separators"] < 1 or names != joined:
        raise InputError(f"joins texts as {' '.join(names)}, unlike BERT")
  needed = ("cls", "sep", "unk")
  missing = [getattr(OF_ROBERTA, role) for role in needed if not found[role]]
  if missing:
    raise InputError(f"has no special tokens {some_of(missing)}")
  return OF_ROBERTA._replace(**found)


class SubwordTokenizer(tokenization.Tokenizer):
  """Tokenizer of the contents of a `tokenizer.json`."""

  def __init__(
    self,
    rules: Mapping[str, Any],  # contents of a `tokenizer.json`
    finds_mask: bool = False,  # whether the mask's name in a text is the mask
  ):
    """Prepares the rules; a copy prepares them again."""
    self.rules, self.finds_mask = rules, finds_mask
    self.is_unigram = rules["model"]["type"] == "Unigram"
    self.special_tokens = special_tokens_of(rules)
    self.vocab = vocab_of(rules)
    self.inv_vocab = {index: entry for entry, index in self.vocab.items()}
    self._special = {
      *(t["content"] for t in rules.get("added_tokens", ()) if t["special"]),
      *filter(None, self.special_tokens[:5]),
    }
    self._encoder = self._make(rules)

  def __reduce__(self):
    # The loader may have changed the segments.
    state = {"special_tokens": self.special_tokens}
    return type(self), (self.rules, self.finds_mask), state

  def _make(self, rules: Mapping[str, Any], has_offsets: bool = True) -> Any:
    """A `tokenizers.Tokenizer` by which names of special tokens are text."""
    import tokenizers

    model, added = {**rules["model"]}, rules.get("added_tokens", ())
    hidden = self._special - {self.finds_mask and self.special_tokens.mask}
    changed = dict.fromkeys(("truncation", "padding", "post_processor"))
    changed["added_tokens"] = [t for t in added if t["content"] not in hidden]
    # No text has pieces with a space in them. The package's own option does
    # nothing for Unigram, and is lost in copies.
    names = [f" {n}" if n in hidden else n for n in _by_id(self.vocab)]
    if self.is_unigram:
      scores = [score for _, score in model["vocab"]]
      scores += [min(scores)] * (len(names) - len(scores))
      model["vocab"] = [
        *zip((n or f" {i}" for i, n in enumerate(names)), scores)
      ]
    else:
      model["vocab"] = {name: i for i, name in enumerate(names) if name}
      if model.get("unk_token") in hidden:
        model["unk_token"] = f" {model['unk_token']}"
      model["dropout"] = None
      if has_offsets:  # strips spaces, in threads
        step, *_ = byte_level_steps(rules)
        changed["post_processor"] = {**step, "trim_offsets": True}
    return tokenizers.Tokenizer.from_str(
      json.dumps({**rules, **changed, "model": model})
    )

  @functools.cached_property
  def _encoder_of_words(self) -> Any:
    """The encoder in which each word has a space before it."""
    steps = byte_level_steps(self.rules)
    if all(step["add_prefix_space"] for step in steps):  # or none, of Unigram
      return self._encoder
    steps = copy.deepcopy(self.rules["pre_tokenizer"])
    rules = {**self.rules, "pre_tokenizer": steps}
    for step in byte_level_steps(rules):
      step["add_prefix_space"] = True
    return self._make(rules, has_offsets=False)

  def encode(self, text):
    """See base class."""
    return next(self.encode_batch([text]))

  def encode_batch(self, texts):
    """See base class."""
    for encoded in _encode(self._encoder.encode_batch_fast, texts):
      yield encoded.ids

  def encode_words(self, sentences):
    """See base class."""
    encode = functools.partial(
      self._encoder_of_words.encode_batch, is_pretokenized=True
    )
    for encoded in _encode(encode, sentences):
      yield encoded.ids, encoded.word_ids

  def encode_with_offsets(self, texts):
    """See base class."""
    texts, originals = itertools.tee(texts)
    encoded_texts = _encode(self._encoder.encode_batch, texts)
    for encoded, text in zip(encoded_texts, originals):
      spans = encoded.offsets
      # Other white space than single spaces, which is rare and takes longer.
      if "  " in text or not text.isprintable():
        spans = [_strip(text, *span) for span in spans]
      elif self.is_unigram:
        spans = _strip_single_spaces(text, spans)
      elif text[:1] == " ":  # the one that BPE leaves
        spans[:1] = _strip_single_spaces(text, spans[:1])
      yield encoded.ids, spans

  @functools.cached_property
  def continues_word(self):
    """See base class."""
    mark = "\u2581" if self.is_unigram else "\u0120"
    return [
      not (entry in self._special or entry.startswith(mark))
      for entry in _by_id(self.vocab)
    ]

  def text_of(self, tokens):
    """See base class."""
    return " ".join(self._decode(tokens).split())

  def shown(self, token):
    """See base class; the space before a word is one."""
    return self._decode([token])

  def _decode(self, tokens: Iterable[str]) -> str:
    if self.is_unigram:
      return "".join(tokens).replace("\u2581", " ")
    from tokenizers import decoders

    return decoders.ByteLevel().decode([*tokens])


def _encode(
  encode: Callable[..., Sequence[Any]], texts: Iterable[Any]
) -> Iterator[Any]:
  """Encodes texts, or lists of words, in blocks, one ahead of the caller."""

  def encode_block(block: list[Any]) -> Sequence[Any]:
    try:
      return encode(block, add_special_tokens=False)
    except TypeError:  # surrogates, which are in no UTF-8
      block = [*map(_without_surrogates, block)]
      return encode(block, add_special_tokens=False)

  texts = iter(texts)
  blocks = iter(lambda: [*itertools.islice(texts, _BLOCK)], [])
  found = encode_block(next(blocks, []))
  with futures.ThreadPoolExecutor(1) as ahead:
    for block in blocks:
      coming = ahead.submit(encode_block, block)
      yield from found
      found = coming.result()
  yield from found


def _without_surrogates(text: str | Sequence[str]) -> str | list[str]:
  if isinstance(text, str):
    return _SURROGATES.sub("\ufffd", text)
  return [_SURROGATES.sub("\ufffd", word) for word in text]


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
  """A range of characters without white space at its ends."""
  kept = text[start:end].lstrip()
  return end - len(kept), end - len(kept) + len(kept.rstrip())


def _strip_single_spaces(
  text: str, spans: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
  """`_strip` of ranges, where each white space of the text is one space."""
  text += "."  # the last range may be empty
  return [
    _strip(text, start, end)
    if text[end - 1] == " "
    else (start + 1, end)
    if text[start] == " " and start < end
    else (start, end)
    for start, end in spans
  ]
