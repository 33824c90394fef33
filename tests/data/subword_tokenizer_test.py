"""Byte-level BPE and unigram beside the package `tokenizers` with the file."""

import json
import pickle
import random

import pytest
import tiny_subword
from parametrize import parametrize
from refused import refusal

from bertlib.data import subword_tokenizer, vocabulary

tokenizers = pytest.importorskip("tokenizers", reason=".[tokenizers]")

pytestmark = pytest.mark.unit

PIECES = [*tiny_subword.TEXT, " ", "  ", "\n", "é", "e\u0301", "ﬁ", "👍", "…"]
WORDS = tiny_subword.TEXT.split()


def texts(number=300):
  """Random texts without names of special tokens."""
  draw = random.Random(0)
  drawn = (
    "".join(draw.choices([*PIECES, *WORDS], k=draw.randint(0, 12)))
    for _ in range(number)
  )
  return [t for t in drawn if not any(n in t for n in tiny_subword.SPECIAL)]


@pytest.fixture(name="kind", params=tiny_subword.KINDS)
def kind_of_tokenizer(request):
  return request.param


@pytest.fixture(name="path")
def path_of_file(kind, tmp_path):
  path = tmp_path / "tokenizer.json"
  path.write_text(tiny_subword.content(kind), encoding="utf-8")
  return str(path)


@pytest.fixture(name="tokenizer")
def copied_tokenizer(path):
  """A copy: the options of the package are lost in copies."""
  return pickle.loads(pickle.dumps(subword_tokenizer.load(path)))


@pytest.fixture(name="reference")
def tokenizer_of_the_package(kind):
  return tokenizers.Tokenizer.from_str(tiny_subword.content(kind))


def test_ids_are_those_of_the_package(tokenizer, reference):
  expected = reference.encode_batch(texts(), add_special_tokens=False)
  assert [*tokenizer.encode_batch(texts())] == [e.ids for e in expected]
  for text, encoded in zip(texts(20), expected):
    assert tokenizer.encode(text) == encoded.ids
    names = [*map(reference.id_to_token, encoded.ids)]
    assert tokenizer.tokenize(text) == names
    assert tokenizer.convert_tokens_to_ids(names) == encoded.ids


def test_offsets_have_no_white_space_at_their_ends(tokenizer, reference):
  expected = reference.encode_batch(texts(), add_special_tokens=False)
  found = tokenizer.encode_with_offsets(iter(texts()))
  for text, encoded, (ids, offsets) in zip(texts(), expected, found):
    assert ids == encoded.ids
    words = [text[a:b].strip() for a, b in encoded.offsets]
    assert [text[a:b] for a, b in offsets] == words


def test_offsets_of_a_file_that_puts_a_space_before_texts():
  rules = json.loads(tiny_subword.content("BPE"))
  for part in ("pre_tokenizer", "post_processor"):
    rules[part]["add_prefix_space"] = True
  found = subword_tokenizer.SubwordTokenizer(rules)
  for text, words in {"the cat": ["the", "cat"], "  the": ["", "the"]}.items():
    ((_, offsets),) = found.encode_with_offsets([text])
    assert [text[a:b] for a, b in offsets] == words


def test_words_have_a_space_before_them(kind, tokenizer):
  rules = json.loads(tiny_subword.content(kind))
  if kind == "BPE":
    rules["pre_tokenizer"]["add_prefix_space"] = True
  reference = tokenizers.Tokenizer.from_str(json.dumps(rules))
  sentences = [text.split() for text in texts()]
  expected = reference.encode_batch(
    sentences, is_pretokenized=True, add_special_tokens=False
  )
  found = [*tokenizer.encode_words(iter(sentences))]
  assert found == [(e.ids, e.word_ids) for e in expected]


@parametrize("is_pair", False, True)
def test_texts_are_joined_as_the_file_says(tokenizer, reference, is_pair):
  pair = ["the cat", "on the mat"][: 1 + is_pair]
  encoded = reference.encode(*pair)
  joined = tokenizer.special_ids.join(*map(tokenizer.encode, pair))
  assert joined == (encoded.ids, encoded.type_ids)


def test_names_of_special_tokens_are_text(tokenizer, reference):
  text = "<s> the </s>cat <unk><pad> <mask>"
  assert not {*tokenizer.encode(text)} & {0, 1, 2, tokenizer.special_ids.mask}
  assert tokenizer.text_of(tokenizer.tokenize("the <s> cat")) in (
    "the <s> cat",
    "the<unk>s<unk>cat",
  )
  assert not {*next(tokenizer.encode_words([["<s>", "</s>"]]))[0]} & {0, 2}


def test_masks_are_found_in_fill_mask_alone(path):
  finds = pickle.loads(pickle.dumps(subword_tokenizer.load(path, True)))
  mask = finds.special_ids.mask
  the, cat = finds.encode("the"), finds.encode(" cat")
  assert finds.encode("the <mask> cat </s>")[: len(the) + 1] == [*the, mask]
  assert 2 not in finds.encode("the <mask> cat </s>")
  assert finds.encode("the <mask> cat") == [*the, mask, *cat]


def test_words_begin_with_their_mark(kind, tokenizer):
  begins = {"BPE": "\u0120", "Unigram": "\u2581"}[kind]
  for entry, index in tokenizer.vocab.items():
    continues = not entry.startswith(begins)
    if entry in (*tiny_subword.SPECIAL, "<mask>"):
      continues = False
    assert tokenizer.continues_word[index] == continues
  assert tokenizer.text_of(tokenizer.tokenize(" the  cat sat")) == "the cat sat"


def test_surrogates_are_no_error(tokenizer):
  expected = tokenizer.encode("the \ufffd cat")
  assert tokenizer.encode("the \ud800 cat") == expected
  assert next(tokenizer.encode_words([["the", "\ud800"]]))


def test_blocks_come_in_order(tokenizer, monkeypatch):
  some = [*texts(5), "the \ud800 cat"]  # the last of the second block
  expected = [*map(tokenizer.encode, some)]
  monkeypatch.setattr(subword_tokenizer, "_BLOCK", 3)
  assert [*tokenizer.encode_batch(iter(some))] == expected
  assert not [*tokenizer.encode_batch([])]


def test_added_entries_keep_their_ids(kind, tmp_path):
  """Also without those for special tokens that come before them."""
  tokenizer = tokenizers.Tokenizer.from_str(tiny_subword.content(kind))
  tokenizer.add_tokens(["xyzzy"])
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  found = subword_tokenizer.load(str(tmp_path / "tokenizer.json"))
  expected = tokenizer.encode("the xyzzy cat", add_special_tokens=False)
  assert found.encode("the xyzzy cat") == expected.ids
  assert tokenizer.token_to_id("xyzzy") in expected.ids


def test_a_file_is_chosen_by_its_name(path, tokenizer):
  assert vocabulary.load_tokenizer(path, False).vocab == tokenizer.vocab
  assert vocabulary.read_entries(path)[2] == "</s>"
  size = len(tokenizer.vocab)
  message = refusal(vocabulary.load_tokenizer, path, False, size - 1)
  assert f"has {size} entries, but the model's vocab_size is" in message


def test_a_copy_keeps_the_segments_of_the_model(path):
  loaded = vocabulary.load_tokenizer(path, False, type_vocab_size=1)
  copied = pickle.loads(pickle.dumps(loaded))
  assert copied.special_tokens == loaded.special_tokens
  assert copied.special_ids.second_segment == 0


def test_truncation_and_padding_do_not_change_the_hash(kind, path, tmp_path):
  cuts = {"truncation": {"max_length": 8}, "padding": {"pad_id": 1}}
  rules = json.loads(tiny_subword.content(kind))
  other = tmp_path / "other.json"
  other.write_text(json.dumps(rules | cuts))
  assert vocabulary.hash_of(str(other)) == vocabulary.hash_of(path)
  other.write_text(json.dumps(rules | {"normalizer": {"type": "NFC"}}))
  assert vocabulary.hash_of(str(other)) != vocabulary.hash_of(path)


@parametrize(
  "changed, message",
  (
    {"model": {"type": "WordPiece", "vocab": {}}},
    "has a WordPiece model; on",
  ),
  ({"pre_tokenizer": None}, "has BPE without bytes"),
  ({"post_processor": {"type": "Other"}, "model": 3}, "model is 3, not"),
)
def test_other_files_are_refused(tmp_path, changed, message):
  rules = json.loads(tiny_subword.content("BPE")) | changed
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(rules))
  assert message in refusal(subword_tokenizer.load, str(path))


def test_characters_without_an_unknown_token_are_refused(tmp_path):
  rules = json.loads(tiny_subword.content("Unigram"))
  rules["model"]["unk_id"] = None  # an error of the package at such a text
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(rules))
  message = refusal(subword_tokenizer.load, str(path))
  assert "has no special tokens <unk>" in message
