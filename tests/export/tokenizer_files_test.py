"""Tests of the files of a tokenizer in the library that reads them."""

import json
import sys
import unicodedata

import pytest
import tiny_model

from bertlib.export import tokenizer_files

tokenizers = pytest.importorskip("tokenizers", reason=".[vocab]")

pytestmark = pytest.mark.unit

BETWEEN = [
  "'",
  "\u2019",
  "\u00b7",
  ".",
  ":",
  "\u0301",
  "\u00ad",
  "\u02bc",
  "-",
  ",",
]
# Letters, and marks and apostrophes, before and after a capital sigma.
OTHERS = [
  *(
    char
    for char in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(char)[0] == "L"
  ),
  *BETWEEN,
  *(f"{char}\u0391" for char in BETWEEN),
  "\u0391\u0301\u0345",
  *("\u0391" + 9 * mark for mark in ("\u0301", "'")),
]
FORMS = ("\u0391\u03a3{}", "{}\u03a3", "\u0391{}\u03a3", "\u0391\u03a3{}\u0391")


def words_of_python(text):
  """What BERT's first steps make of a text: it lower-cases a word at once."""
  text = unicodedata.normalize("NFD", text.lower())
  return "".join(c for c in text if unicodedata.category(c) not in ("Mn", "Cf"))


def normalizer_of(folder, **description):
  vocab = {word: index for index, word in enumerate(tiny_model.SPECIAL)}
  description = {"do_lower_case": True, "max_seq_length": 9} | description
  tokenizer_files.write(str(folder), vocab, description)
  path = folder / tokenizer_files.FILE
  kept = json.loads(path.read_text(encoding="utf-8"))["normalizer"]
  return tokenizers.Tokenizer.from_file(str(path)).normalizer, kept


def test_a_final_sigma_is_that_of_python(tmp_path):
  normalizer, kept = normalizer_of(tmp_path)
  replace = tokenizers.normalizers.Replace(
    tokenizers.Regex(kept["normalizers"][0]["pattern"]["Regex"]), "\u03c2"
  )

  def sigmas(text):
    return [char.lower() for char in text if char in "\u03a3\u03c3\u03c2"]

  wrong = {
    other
    for other in OTHERS
    for text in (form.format(other) for form in FORMS)
    if sigmas(replace.normalize_str(text)) != sigmas(text.lower())
  }
  assert wrong == set()
  for text in (
    "\u039f\u0394\u039f\u03a3",
    "\u039f\u0394\u039f\u03a3' \u03a3",
    "\u03a3\u0391\u0301\u03a3",
  ):
    assert normalizer.normalize_str(text) == words_of_python(text)


def test_a_cased_tokenizer_keeps_its_sigmas(tmp_path):
  normalizer, kept = normalizer_of(tmp_path, do_lower_case=False)
  assert normalizer.normalize_str("\u0391\u03a3") == "\u0391\u03a3"
  assert kept["type"] == "BertNormalizer"


def test_what_is_written_is_read_as_the_normalizer_of_bert(tmp_path):
  _, kept = normalizer_of(tmp_path)
  assert tokenizer_files.bert_normalizer(kept)["lowercase"] is True
  other = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}
  assert tokenizer_files.bert_normalizer(other) == other
  assert tokenizer_files.bert_normalizer(None) == {}
