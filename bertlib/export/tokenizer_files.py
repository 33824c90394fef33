"""Files of a tokenizer for programs with those of Hugging Face.

`tokenizer.json` is for the library `tokenizers` and for transformers.js, and
`tokenizer_config.json` for what both leave to their callers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import tokenization
from bertlib.data import subword_tokenizer
from bertlib.io import json_files

CONFIG_FILE, FILE = "tokenizer_config.json", "tokenizer.json"

# Special entries of BERT, by their keys in `tokenizer_config.json`.
SPECIAL = {
  f"{role}_token": getattr(tokenization.BERT_TOKENS, role)
  for role in ("pad", "unk", "cls", "sep", "mask")
}

# `BertNormalizer` of `tokenizers` lower-cases each letter alone. BERT makes Σ a
# final ς, as Unicode has it: after a cased letter and before none, with marks
# and apostrophes between. Some programs look back at so many characters only.
_CASED, _BETWEEN = r"[^\P{Cased}\p{Case_Ignorable}]", r"\p{Case_Ignorable}"
_FINAL_SIGMA = {
  "type": "Replace",
  "pattern": {
    "Regex": f"(?<={_CASED}{_BETWEEN}{{0,9}})Σ(?!{_BETWEEN}*{_CASED})"
  },
  "content": "ς",
}


def write(
  folder: str,
  vocab: Mapping[str, int],
  description: Mapping[str, Any],  # contents of `model.json`
  added: Sequence[str] = tuple(SPECIAL.values()),  # words not to be split
  cuts: bool = False,  # truncates and pads, as the model needs it
) -> None:
  """Writes both files; the first needs [CLS] and [SEP] in the vocabulary."""
  if {"[CLS]", "[SEP]"} <= vocab.keys():
    tokenizer = _tokenizer(vocab, description, added)
    lengths = _lengths(description, cuts, 0, "[PAD]")
    json_files.write(os.path.join(folder, FILE), tokenizer | lengths)
  config = {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": description["do_lower_case"],
    "model_max_length": description["max_seq_length"],
    **{key: word for key, word in SPECIAL.items() if word in vocab},
  }
  # transformers.js leaves these out of entities and answers. As added tokens,
  # they would be found in texts too.
  if cuts:
    config["additional_special_tokens"] = ["[PAD]", "[CLS]", "[SEP]"]
  json_files.write(os.path.join(folder, CONFIG_FILE), config)


def write_subword(
  folder: str,
  content: Mapping[str, Any],  # of the `tokenizer.json` of a model
  description: Mapping[str, Any],  # contents of `model.json`
  has_segments: bool,
  cuts: bool = False,  # truncates and pads, as the model needs it
) -> None:
  """Writes both files of a tokenizer that is not WordPiece."""
  names = subword_tokenizer.special_tokens_of(content)._asdict()
  vocab = subword_tokenizer.vocab_of(content)
  pad = names["pad"] or names["cls"]
  written = {**content, **_lengths(description, cuts, vocab[pad], pad)}
  if not subword_tokenizer.adds_special_tokens(content):
    # The class of RoBERTa adds them, and so does the tokenizer here.
    splits = subword_tokenizer.byte_level_steps(content)
    written["post_processor"] = {
      "type": "RobertaProcessing",
      **{role: [names[role], vocab[names[role]]] for role in ("sep", "cls")},
      "trim_offsets": True,
      "add_prefix_space": any(step.get("add_prefix_space") for step in splits),
    }
  json_files.write(os.path.join(folder, FILE), written)
  roles = {key: names[key.removesuffix("_token")] for key in SPECIAL}
  segments = ["token_type_ids"] if has_segments else []
  config = {
    # That which follows the file in all.
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": description["max_seq_length"],
    # Without names, release 4 of transformers gives segments, and 5 gives none.
    "model_input_names": ["input_ids", *segments, "attention_mask"],
    **{key: name for key, name in roles.items() if name},
  }
  json_files.write(os.path.join(folder, CONFIG_FILE), config)


def bert_normalizer(normalizer: Mapping[str, Any] | None) -> Mapping[str, Any]:
  """The `BertNormalizer` in a normalizer that `write` has written."""
  first, *others = (normalizer or {}).get("normalizers") or [None]
  if first == _FINAL_SIGMA and len(others) == 1:
    return others[0]
  return normalizer or {}


def _lengths(
  description: Mapping[str, Any], cuts: bool, pad_id: int, pad_token: str
) -> dict[str, Any]:
  """How texts are truncated and padded, if they are."""
  if not cuts:
    return {"truncation": None, "padding": None}
  length = description.get("seq_length")
  return {
    "truncation": {
      "direction": "Right",
      "max_length": description["max_seq_length"],
      "strategy": "LongestFirst",
      "stride": 0,
    },
    "padding": {
      "strategy": {"Fixed": length} if length else "BatchLongest",
      "direction": "Right",
      "pad_to_multiple_of": None,
      "pad_id": pad_id,
      "pad_type_id": 0,
      "pad_token": pad_token,
    },
  }


def _tokenizer(
  vocab: Mapping[str, int], description: Mapping[str, Any], added: Sequence[str]
) -> dict[str, Any]:
  """Contents of `tokenizer.json`: the ids of `model_inputs.encode_pair`."""
  limit = description.get("max_input_chars_per_word")
  normalizer: dict[str, Any] = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": description["do_lower_case"],
  }
  if description["do_lower_case"]:
    normalizers = [_FINAL_SIGMA, normalizer]
    normalizer = {"type": "Sequence", "normalizers": normalizers}

  def template(*texts):
    names, segments = tokenization.BERT_TOKENS.join(*texts)
    kinds = ("Sequence" if [n] in texts else "SpecialToken" for n in names)
    values = ({"id": n, "type_id": s} for n, s in zip(names, segments))
    return [{kind: value} for kind, value in zip(kinds, values)]

  return {
    "version": "1.0",
    # Texts with the names of other entries are split like all others.
    "added_tokens": [
      {
        "id": vocab[word],
        "content": word,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
      }
      for word in added
      if word in vocab
    ],
    "normalizer": normalizer,
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
      "type": "TemplateProcessing",
      "single": template(["A"]),
      "pair": template(["A"], ["B"]),
      "special_tokens": {
        word: {"id": word, "ids": [vocab[word]], "tokens": [word]}
        for word in ("[CLS]", "[SEP]")
      },
    },
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
      "type": "WordPiece",
      "unk_token": "[UNK]",
      "continuing_subword_prefix": "##",
      "max_input_chars_per_word": limit
      or tokenization.MAX_INPUT_CHARS_PER_WORD,
      "vocab": dict(vocab),
    },
  }
