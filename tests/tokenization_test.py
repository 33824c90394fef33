"""Tokens and offsets, against the reference's and against plain formulas."""

import copy
import hashlib
import itertools
import json
import pathlib
import pickle

import pytest
import reference_data
from hypothesis import given, settings
from hypothesis import strategies as st
from parametrize import parametrize

import tokenization

pytestmark = pytest.mark.unit

# Splits some words in several ways, and fails to split others.
SMALL_VOCAB = """[PAD] [UNK] [CLS] [SEP] [MASK] dog the mask a b s ab ##a ##b
##ab ##s , . ! “ ” ' - [ ] 中 人 α σ ##σ ##ς ᄒ ##ᅡ ##ᆫ e ##e é ##é x ##x"""
VOCAB = {token: index for index, token in enumerate(SMALL_VOCAB.split())}

# Text with the known edge cases, and with arbitrary characters.
TEXT = st.lists(
  st.sampled_from(["dog", "The", "abs", "ab", "zebra", "ΑΣ", "x" * 30, "##ab"])
  | st.sampled_from(["[MASK]", "[UNK]", "e\u0301", "😀\ufe0f", "  ", " "])
  | st.sampled_from(
    "éς한中人\ufa19\ufaff≮İ±\u0301\u0327#,.!'-“”，：。 \t\n\r\u00a0\u2028\u3000"
  )
  | st.sampled_from("\0\x0b\x1c\x1f\x85\u200b\u200d\ufffd\ufeff")
  | st.text(max_size=2)
).map("".join)


@pytest.fixture(
  scope="session", params=[True, False], ids=["lower_case", "cased"]
)
def small(request):
  return tokenization.FullTokenizer(VOCAB, request.param)


LOWER = tokenization.BasicTokenizer(do_lower_case=True)
CASED = tokenization.BasicTokenizer(do_lower_case=False)


def golden_lines(name, golden=reference_data.golden):
  return reference_data.read_jsonl(golden("tokenization", name))


def published(name):
  return tokenization.FullTokenizer(
    reference_data.vocab(name), do_lower_case=name in ("uncased", "chinese")
  )


@parametrize("name", "uncased", "cased", "chinese", "multi_cased")
def test_full_tokenizer_equals_reference(name, golden):
  tokenizer = published(name)
  for line in golden_lines(f"{name}.jsonl.gz", golden):
    assert tokenizer.tokenize(line["text"]) == line["tokens"]
    assert tokenizer.encode(line["text"]) == line["ids"]
    assert tokenizer.convert_tokens_to_ids(line["tokens"]) == line["ids"]
    assert tokenizer.convert_ids_to_tokens(line["ids"]) == line["tokens"]
    tokens, _ = tokenizer.tokenize_with_offsets(line["text"])
    assert tokens == line["tokens"]


@parametrize("name, tokenizer", ("lower", LOWER), ("cased", CASED))
def test_basic_tokenizer_equals_reference(name, tokenizer, golden):
  for line in golden_lines(f"basic_{name}.jsonl.gz", golden):
    assert tokenizer.tokenize(line["text"]) == line["tokens"]


def test_wordpiece_tokenizer_equals_reference():
  for setting in golden_lines("wordpiece_only.jsonl"):
    vocab = {token: index for index, token in enumerate(setting["vocab"])}
    tokenizer = tokenization.WordpieceTokenizer(
      vocab,
      unk_token=setting["unk_token"],
      max_input_chars_per_word=setting["max_input_chars_per_word"],
    )
    for case in setting["cases"]:
      assert tokenizer.tokenize(case["text"]) == case["tokens"]


def test_bytes_are_decoded_like_reference():
  tokenizer = published("uncased")
  for line in golden_lines("bytes_input.jsonl"):
    text = bytes.fromhex(line["hex"])
    assert tokenization.convert_to_unicode(text) == line["convert_to_unicode"]
    assert tokenization.printable_text(text) == line["printable_text"]
    assert tokenizer.tokenize(text) == line["uncased"]
    assert tokenizer.encode(text) == line["uncased_ids"]


def test_lone_surrogates_are_dropped_like_reference():
  tokenizer = published("uncased")
  for line in golden_lines("lone_surrogates.jsonl"):
    assert LOWER.tokenize(line["text"]) == line["basic_lower"]
    assert CASED.tokenize(line["text"]) == line["basic_cased"]
    assert tokenizer.tokenize(line["text"]) == line["uncased"]


def test_vocab_files_are_read_like_reference(tmp_path):
  path = tmp_path / "vocab.txt"
  for line in golden_lines("vocab_files.jsonl"):
    path.write_bytes(bytes.fromhex(line["hex"]))
    if "error" in line:
      assert line["error"] == "UnicodeDecodeError"
      with pytest.raises(UnicodeDecodeError):
        tokenization.load_vocab(path)
    else:
      vocab = tokenization.load_vocab(path)
      assert [list(item) for item in vocab.items()] == line["result"]


@pytest.mark.graph
def test_checkpoint_case_check_equals_reference():
  for line in golden_lines("checkpoint_case_check.jsonl"):
    arguments = line["do_lower_case"], line["init_checkpoint"]
    if "error" in line:
      assert line["error"] == "ValueError"
      with pytest.raises(ValueError, match="--do_lower_case="):
        tokenization.validate_case_matches_checkpoint(*arguments)
    else:
      tokenization.validate_case_matches_checkpoint(*arguments)


def code_point_bits(code_point):
  char = chr(code_point)
  return (
    tokenization._is_whitespace(char)
    | tokenization._is_control(char) << 1
    | tokenization._is_punctuation(char) << 2
    | tokenization.is_chinese(ord(char)) << 3
  )


def test_every_code_point_is_classed_like_reference():
  for run in golden_lines("codepoint_classes.jsonl.gz"):
    if run["bits"] != -1:  # -1: depends on the version of Unicode
      code_points = range(run["first"], run["last"] + 1)
      assert set(map(code_point_bits, code_points)) == {run["bits"]}, run


def test_every_unicode_block_is_tokenized_like_reference():
  path = reference_data.golden("tokenization", "codepoint_unstable.json")
  ranges = json.loads(pathlib.Path(path).read_text())["ranges"]
  left_out = {c for first, last in ranges for c in range(first, last + 1)}
  left_out.update(range(0xD800, 0xE000))
  for line in golden_lines("codepoint_blocks.jsonl.gz"):
    block = line["block"]
    if block // 256 not in (0, 1, 2, 3, 14) and block % 64:
      continue  # planes without characters: a sample does
    rows = []
    for code_point in range(256 * block, 256 * (block + 1)):
      if code_point not in left_out:
        alone, between = chr(code_point), f"x{chr(code_point)}y"
        rows.append(
          [
            code_point_bits(code_point),
            LOWER.tokenize(alone),
            LOWER.tokenize(between),
            CASED.tokenize(alone),
            CASED.tokenize(between),
          ]
        )
    text = json.dumps(rows, ensure_ascii=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest[:16] == line["sha256_16"], hex(256 * block)


def test_lower_casing_equals_reference():
  for line in golden_lines("codepoint_lowered.jsonl.gz"):
    char = chr(line["cp"])
    assert LOWER.tokenize(char) == line["alone"]
    assert LOWER.tokenize(f"x{char}y") == line["between"]


def plain_tokens(tokenizer, text):
  words = tokenizer.basic_tokenizer.tokenize(text)
  return tokenizer.wordpiece_tokenizer.tokenize(" ".join(words))


def without_cache(tokenizer):
  twin = copy.copy(tokenizer)
  twin.basic_tokenizer = tokenizer.basic_tokenizer
  return twin


@given(text=TEXT)
@settings(max_examples=500, deadline=None)
def test_cached_chunks_equal_uncached_tokenization(small, text):
  tokens = plain_tokens(small, text)
  assert small.tokenize(text) == tokens
  assert small.encode(text) == small.convert_tokens_to_ids(tokens)
  plain = without_cache(small)
  assert small.tokenize_with_offsets(text) == plain.tokenize_with_offsets(text)


@pytest.mark.parametrize("first", range(0, 0x20000, 0x4000))
def test_any_character_may_follow_a_chinese_one(small, first):
  characters = map(chr, range(first, first + 0x4000))
  text = " ".join(f"中{char}a\u0301" for char in characters)
  plain = without_cache(small)
  assert small.tokenize_with_offsets(text) == plain.tokenize_with_offsets(text)
  assert small.tokenize(text) == plain.tokenize(text)


def test_sigma_before_punctuation_is_lower_cased_as_final():
  tokenizer = tokenization.FullTokenizer(VOCAB)
  final = ["α", "##ς"]
  assert tokenizer.tokenize("ΑΣ. “ΑΣ”") == [*final, ".", "“", *final, "”"]


@given(text=TEXT)
def test_full_caches_are_cleared_and_stay_correct(text):
  tokenizer = tokenization.FullTokenizer(VOCAB)
  text += " ".join(f" a{number}, b" for number in range(40))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tokenization._ChunkCache, "MAX_CHUNKS", 16)
    assert tokenizer.tokenize(text) == plain_tokens(tokenizer, text)
    tokens, _ = tokenizer.tokenize_with_offsets(text)
    assert tokens == plain_tokens(tokenizer, text)
    assert tokenizer.encode(text) == tokenizer.convert_tokens_to_ids(tokens)


def pickled(tokenizer):
  return pickle.loads(pickle.dumps(tokenizer))


@parametrize("copied", copy.deepcopy, pickled)
def test_copies_tokenize_alike(copied):
  tokenizer = tokenization.FullTokenizer(VOCAB, False, ["[MASK]"])
  text = "the dog, [MASK] É"
  tokens = tokenizer.tokenize(text)
  twin = copied(tokenizer)
  assert twin.tokenize(text) == tokens
  assert twin.tokenize_with_offsets(text)[0] == tokens


def check_offsets(tokenizer, text):
  """Checks that the text in each range is tokenized to the piece again.

  Pieces that share a character (Korean) are checked together. Text outside of
  all ranges must be tokenized to nothing.
  """
  words = tokenizer.basic_tokenizer.tokenize
  tokens, offsets = tokenizer.tokenize_with_offsets(text)
  assert tokens == tokenizer.tokenize(text)
  assert len(tokens) == len(offsets)
  starts, ends = zip(*offsets) if offsets else ((), ())
  assert list(starts) == sorted(starts)
  assert list(ends) == sorted(ends)
  done = 0
  while tokens:
    (start, end), pieces = offsets[0], []
    while offsets and offsets[0][0] < end:
      pieces.append(tokens.pop(0))
      end = offsets.pop(0)[1]
    assert words(text[done:start]) == []
    cut_out = "".join(words(text[start:end]))
    if pieces == ["[UNK]"]:
      assert tokenizer.wordpiece_tokenizer.tokenize(cut_out) == pieces
    else:
      joined = "".join(piece.replace("##", "", 1) for piece in pieces)
      # Only the whole word shows whether a sigma is a final one.
      assert cut_out.replace("ς", "σ") == joined.replace("ς", "σ")
    assert done <= start < end
    done = end
  assert words(text[done:]) == []


@given(text=TEXT)
@settings(max_examples=500, deadline=None)
def test_text_at_the_offsets_of_a_piece_gives_the_piece(small, text):
  check_offsets(small, text)


@parametrize(
  "text, expected",
  ("  the  dog,", [("the", "the"), ("dog", "dog"), (",", ",")]),
  ("DoG\n", [("dog", "DoG")]),
  ("xé", [("x", "x"), ("##e", "é")]),
  ("e\u0301.", [("e", "e\u0301"), (".", ".")]),
  ("a\x00b x", [("ab", "a\x00b"), ("x", "x")]),
  ("\ufeffa\u200b b", [("a", "a"), ("b", "b")]),
  ("中人", [("中", "中"), ("人", "人")]),
  ("한", [("ᄒ", "한"), ("##ᅡ", "한"), ("##ᆫ", "한")]),
  ("a zebra!", [("a", "a"), ("[UNK]", "zebra"), ("!", "!")]),
  ("\u0301", []),
)
def test_offsets_of(text, expected):
  tokenizer = tokenization.FullTokenizer(VOCAB)
  tokens, offsets = tokenizer.tokenize_with_offsets(text)
  cut_out = [text[start:end] for start, end in offsets]
  assert list(zip(tokens, cut_out)) == expected


def test_words_of_never_split_are_single_tokens():
  tokenizer = tokenization.FullTokenizer(VOCAB, never_split=["[MASK]", "DOG"])
  text = " the [MASK]\tdog DOG, DOG "
  tokens = ["the", "[MASK]", "dog", "dog", ",", "[UNK]"]
  assert tokenizer.tokenize(text) == tokens
  assert tokenizer.encode(text) == tokenizer.convert_tokens_to_ids(tokens)
  offsets = [(1, 4), (5, 11), (12, 15), (16, 19), (19, 20), (21, 24)]
  assert tokenizer.tokenize_with_offsets(text) == (tokens, offsets)


def test_never_split_does_not_apply_inside_a_chunk():
  plain = tokenization.FullTokenizer(VOCAB)
  words = ["[MASK]", "Dog", "!", "--"]
  tokenizer = tokenization.FullTokenizer(VOCAB, never_split=words)
  text = "[MASK]. “[MASK]” a[MASK] Dog, “Dog” Dog-Dog Dog-- Dog!"
  assert tokenizer.tokenize(text) == plain.tokenize(text)
  assert tokenizer.encode(text) == plain.encode(text)


@parametrize("word", "", "the dog", " dog", "dog\n")
def test_never_split_rejects_all_but_words(word):
  with pytest.raises(ValueError, match="is not one word"):
    tokenization.FullTokenizer(VOCAB, never_split=[word])


def test_check_vocab_requires_special_tokens_and_no_more_ids_than_the_model():
  vocab = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}
  tokenization.check_vocab(vocab)
  tokenization.check_vocab(vocab, vocab_size=3)
  with pytest.raises(ValueError, match=r"no \[UNK\], \[SEP\];"):
    tokenization.check_vocab({"[CLS]": 0, "dog": 1})
  # Ids count, not entries: a repeated line makes an id without an entry.
  with pytest.raises(ValueError, match="4 entries"):
    tokenization.check_vocab(vocab | {"[SEP]": 3}, vocab_size=3)


def test_text_that_is_neither_str_nor_bytes_is_rejected(small):
  with pytest.raises(ValueError, match="str or bytes, not int"):
    small.tokenize(7)


def test_encode_raises_without_unk_in_the_vocabulary():
  tokenizer = tokenization.FullTokenizer({"dog": 0})
  assert tokenizer.tokenize("the dog") == ["[UNK]", "dog"]
  with pytest.raises(KeyError):
    tokenizer.encode("the dog")


def test_remote_vocabulary_is_read_by_tensorflow(tmp_path):
  pytest.importorskip("tensorflow")
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join(VOCAB))
  assert tokenization.load_vocab(f"file://{path}") == VOCAB


# Methods that code for google-research/bert calls and overrides.


class ByDefaultSteps(tokenization.BasicTokenizer):
  """Overrides a step, without changing it."""

  def _run_split_on_punc(self, text):
    return super()._run_split_on_punc(text)


@parametrize("do_lower_case", True, False)
@given(text=TEXT)
def test_the_single_steps_equal_the_tokenizer(do_lower_case, text):
  by_steps = ByDefaultSteps(do_lower_case).tokenize(text)
  assert by_steps == tokenization.BasicTokenizer(do_lower_case).tokenize(text)


def test_each_single_step():
  basic = tokenization.BasicTokenizer()
  assert basic._clean_text("a\tb\0\ufffd\u3000c") == "a b c"
  assert basic._tokenize_chinese_chars("ab中文c") == "ab 中  文 c"
  assert basic._is_chinese_char(ord("中"))
  assert not basic._is_chinese_char(ord("か"))
  assert basic._run_strip_accents("Éà") == "Ea"
  assert basic._run_split_on_punc("(a b).,") == ["(", "a b", ")", ".", ","]
  assert basic._run_split_on_punc("") == []


class KeepsPunctuation(tokenization.BasicTokenizer):
  def _run_split_on_punc(self, text):
    return [text]


def test_a_subclass_may_override_a_step():
  assert KeepsPunctuation().tokenize("U.S. 中") == ["u.s.", "中"]
  assert tokenization.BasicTokenizer().tokenize("u.s") == ["u", ".", "s"]


class Letters:
  def tokenize(self, text):
    return [letter for letter in text if letter.strip()]


def test_tokenizers_replaced_after_use_take_effect():
  tokenizer = tokenization.FullTokenizer(VOCAB, never_split=["[MASK]"])
  text = "Dog ab [MASK]"
  assert tokenizer.tokenize(text) == ["dog", "ab", "[MASK]"]
  ids = tokenizer.encode(text)
  tokenizer.basic_tokenizer = tokenization.BasicTokenizer(do_lower_case=False)
  assert tokenizer.tokenize(text) == ["[UNK]", "ab", "[MASK]"]
  assert tokenizer.encode(text) != ids
  assert tokenizer.tokenize_with_offsets(text)[0][0] == "[UNK]"
  tokenizer.basic_tokenizer = Letters()
  assert tokenizer.tokenize("ab a") == ["a", "b", "a"]
  tokenizer.wordpiece_tokenizer = Letters()
  assert tokenizer.tokenize("xyz") == ["x", "y", "z"]


class OwnParts(tokenization.FullTokenizer):
  def __init__(self, vocab):  # does not call that of the base class
    self.vocab = vocab
    self.basic_tokenizer = Letters()
    self.wordpiece_tokenizer = tokenization.WordpieceTokenizer(vocab)


def test_a_subclass_may_create_its_own_tokenizers():
  tokenizer = OwnParts({"a": 0, "b": 1})
  assert tokenizer.tokenize("ab") == ["a", "b"]
  assert tokenizer.encode("ba") == [1, 0]
  ranges = [(0, 1), (2, 3)]
  assert tokenizer.tokenize_with_offsets("a b") == (["a", "b"], ranges)


# The interface of all tokenizers


def test_texts_are_joined_by_special_tokens():
  names = tokenization.BERT_TOKENS
  assert names.join(["a"]) == (["[CLS]", "a", "[SEP]"], [0, 0, 0])
  tokens, segment_ids = names.join(["a"], ["b", "s"])
  assert tokens == ["[CLS]", "a", "[SEP]", "b", "s", "[SEP]"]
  assert segment_ids == [0, 0, 0, 1, 1, 1]
  assert names.num() == 2
  assert names.num(is_pair=True) == 3


@given(st.lists(TEXT, max_size=4))
def test_all_methods_give_the_same_ids(small, texts):
  ids = [small.encode(text) for text in texts]
  assert [*small.encode_batch(texts)] == ids
  assert [found for found, _ in small.encode_with_offsets(texts)] == ids
  assert [small.convert_tokens_to_ids(small.tokenize(t)) for t in texts] == ids
  ((of_words, words),) = small.encode_words([texts])
  assert of_words == [*itertools.chain(*ids)]
  assert words == [i for i, found in enumerate(ids) for _ in found]


def test_special_ids_are_none_for_missing_entries():
  vocab = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}
  special = tokenization.FullTokenizer(vocab).special_ids
  assert special == (1, 2, None, None, 0, 1, 1)


def test_pieces_that_do_not_begin_a_word():
  continues = tokenization.FullTokenizer(VOCAB).continues_word
  assert continues == [entry.startswith("##") for entry in VOCAB]


def test_text_of_tokens(small):
  assert small.text_of(["dog", "##s", "ab", "."]) == "dogs ab ."
