"""Tests of the files of a tokenizer in the library that reads them."""

import json
import sys
import unicodedata

import pytest
import tiny_model

from bertlib.export import tokenizer_files

tokenizers = pytest.importorskip("tokenizers", reason=".[vocab]")

pytestmark = pytest.mark.unit

# Of those of Chinese and Korean, which are most and have no case, some.
LETTERS = [
  char
  for char in map(chr, range(sys.maxunicode + 1))
  if unicodedata.category(char).startswith("L")
  and (
    ord(char) % 64 == 0
    or not unicodedata.name(char, "").startswith(("CJK", "HANGUL"))
  )
]
# Apostrophes, marks and others, also between letters.
BETWEEN = [*"'.:-,\u2019\u00b7\u0301\u00ad\u02bc", 9 * "'", "'\u0301\u0345"]
OTHERS = [*LETTERS, *BETWEEN, *(f"Α{between}" for between in BETWEEN)]

TEXTS = [
  text
  for other in OTHERS
  for text in (f"ΑΣ{other}", f"{other}Σ", f"Α{other}Σ", f"ΑΣ{other}Α")
]


def normalizer(folder, do_lower_case):
  vocab = {word: index for index, word in enumerate(tiny_model.SPECIAL)}
  description = {"do_lower_case": do_lower_case, "max_seq_length": 9}
  tokenizer_files.write(str(folder), vocab, description)
  path = folder / tokenizer_files.FILE
  written = json.loads(path.read_text(encoding="utf-8"))["normalizer"]
  return tokenizers.Tokenizer.from_file(str(path)).normalizer, written


def sigmas(text):
  return [char.lower() for char in text if char in "Σσς"]


def test_a_final_sigma_is_that_of_python(tmp_path):
  whole, written = normalizer(tmp_path, True)
  (first, _) = written["normalizers"]
  pattern = tokenizers.Regex(first["pattern"]["Regex"])
  replace = tokenizers.normalizers.Replace(pattern, first["content"])
  found = [sigmas(replace.normalize_str(text)) for text in TEXTS]
  assert found == [sigmas(text.lower()) for text in TEXTS]
  assert whole.normalize_str("ΟΔΌΣ' Σ") == "οδος' σ"


def test_a_cased_tokenizer_keeps_its_sigmas(tmp_path):
  assert normalizer(tmp_path, False)[0].normalize_str("ΑΣ") == "ΑΣ"
