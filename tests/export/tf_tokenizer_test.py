"""Tests of the graph tokenizer against `tokenization.FullTokenizer`."""

import functools

import numpy as np
import pytest
import reference_data
import tensorflow as tf
import tokenization_test
from hypothesis import example, given, settings
from hypothesis import strategies as st
from parametrize import parametrize

import tokenization
from bertlib.data import model_inputs
from bertlib.export import tf_tokenizer
from bertlib.settings.common import LongDocumentSettings, LongTextSettings
from bertlib.tasks.ner import ner

pytestmark = pytest.mark.graph

NEVER_SPLIT = ("[MASK]", "[MASK]x")
PUBLISHED = ["uncased", "cased", "chinese", "multi_cased"]


@pytest.fixture(scope="module")
def small_vocab_file(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
  entries = [*tokenization_test.SMALL_VOCAB.split(), "[MASK]x"]
  path.write_text("\n".join(entries), encoding="utf-8")
  return str(path)


@functools.cache
def cached(path, do_lower_case=True, never_split=(), pattern=None):
  """A tokenizer, and its graph version."""
  tokenizer = tokenization.FullTokenizer(path, do_lower_case, never_split)
  return tokenizer, tf_tokenizer.GraphTokenizer(tokenizer, pattern)


@pytest.fixture(scope="module", params=[True, False], ids=["lower", "cased"])
def small(request, small_vocab_file):
  return cached(small_vocab_file, request.param)


@pytest.fixture(params=PUBLISHED)
def published(request, golden):
  name = request.param
  rows = tokenization_test.golden_lines(f"{name}.jsonl.gz", golden)
  tokenizer = tokenization_test.published(name)
  texts = [as_bytes(row["text"]) for row in rows]
  tokens = tf_tokenizer.GraphTokenizer(tokenizer).tokenize(texts)
  return tokenizer, rows, tokens


def as_bytes(text):
  return text.encode("utf-8", "surrogatepass")


def offsets(tokens):
  starts, ends = tokens.starts.to_list(), tokens.ends.to_list()
  return [list(zip(*pair)) for pair in zip(starts, ends)]


def test_ids_and_offsets_of_golden_lines_are_equal(published):
  tokenizer, rows, tokens = published
  assert tokens.ids.to_list() == [row["ids"] for row in rows]
  expected = [
    tokenizer.tokenize_with_offsets(as_bytes(row["text"]))[1] for row in rows
  ]
  assert offsets(tokens) == expected


def test_invalid_utf8_has_equal_ids():
  path = reference_data.golden("tokenization", "bytes_input.jsonl")
  texts = [bytes.fromhex(row["hex"]) for row in reference_data.read_jsonl(path)]
  tokenizer = tokenization_test.published("uncased")
  tokens = tf_tokenizer.GraphTokenizer(tokenizer).tokenize(texts)
  assert tokens.ids.to_list() == [tokenizer.encode(text) for text in texts]


@parametrize("do_lower_case", True, False)
def test_each_character_has_equal_ids(do_lower_case, tmp_path):
  vocab = tmp_path / "vocab.txt"
  vocab.write_text("[UNK]\n[CLS]\n[SEP]\nx\n##x\ny\n##y\n")
  tokenizer = tokenization.FullTokenizer(str(vocab), do_lower_case)
  graph = tf_tokenizer.GraphTokenizer(tokenizer)
  texts = [
    as_bytes(text)
    for point in range(0x110000)
    if point < 0x3100 or point % 97 == 0
    for text in (chr(point), f"x{chr(point)}y")
  ]
  expected = [tokenizer.encode(text) for text in texts]
  assert graph.tokenize(texts).ids.to_list() == expected


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(tokenization_test.TEXT, max_size=4))
@example(texts=["\ud55c\u0301"])  # pieces of one character, with an accent
def test_any_texts_have_equal_ids_and_offsets(small, texts):
  tokenizer, graph = small
  texts = [as_bytes(text) for text in texts]
  tokens = graph.tokenize(tf.constant(texts, tf.string, [len(texts)]))
  assert tokens.ids.to_list() == [tokenizer.encode(text) for text in texts]
  found = offsets(tokens)
  assert found == [tokenizer.tokenize_with_offsets(text)[1] for text in texts]


@settings(max_examples=60, deadline=None)
@given(
  pieces=st.lists(
    st.sampled_from(["[MASK]", "x", "[MASK]x", " ", "\t", "\u2028", "\x1c"])
  )
)
def test_never_split_words_have_equal_ids(small_vocab_file, pieces):
  text = "".join(pieces)
  tokenizer, graph = cached(small_vocab_file, never_split=NEVER_SPLIT)
  (ids,) = graph.tokenize([text]).ids.to_list()
  assert ids == tokenizer.encode(text)


def test_a_never_split_word_does_not_span_two_texts(small_vocab_file):
  _, graph = cached(small_vocab_file, never_split=NEVER_SPLIT)
  ids = graph.tokenize(["[MA", "SK]", "[MASK]"]).ids.to_list()
  assert [len(row) for row in ids] == [2, 2, 1]


def test_words_around_the_maximum_length_have_equal_ids(small):
  tokenizer, graph = small
  texts = ["a" * 200, "a" * 201, "ab" * 100, "ab" * 100 + "z"]
  expected = [tokenizer.encode(text) for text in texts]
  assert graph.tokenize(texts).ids.to_list() == expected


@parametrize("max_seq_length", 3, 4, 7, 8, 40)
@parametrize("pads", True, False)
def test_pairs_are_encoded_and_truncated_equally(small, max_seq_length, pads):
  tokenizer, graph = small
  words = ["dog", "the", ",", "ab", "s", "a", "b", "mask", "!", "x", "e"]
  pairs = [
    (" ".join(words[:a]), " ".join(words[:b]))
    for a in range(8)
    for b in range(8)
  ]
  expected = [
    model_inputs.encode_pair(tokenizer, *p, max_seq_length) for p in pairs
  ]
  encoded, _ = graph.encode_pairs(*zip(*pairs), max_seq_length, pads)
  length = max(sum(row.input_mask) for row in expected)
  for name in model_inputs.TOKEN_FEATURES:
    rows = [getattr(row, name) for row in expected]
    if not pads:
      rows = [row[:length] for row in rows]
    assert encoded[name].numpy().tolist() == rows


@parametrize(
  "cutting",
  LongTextSettings("head_tail"),
  LongTextSettings("windows"),
  LongTextSettings("windows", doc_stride=1),
  LongTextSettings("windows", doc_stride=99),
  LongDocumentSettings("head_tail"),
  LongDocumentSettings("windows"),
)
def test_long_texts_are_cut_equally(small, cutting):
  tokenizer, graph = small
  words = ["dog", "the", ",", "ab", "s", "a", "b", "mask", "!", "x", "e"]
  for prompt, counts in (("", (0, 1, 3, 4, 5, 20)), ("dog the ", (0,))):
    pairs = [
      (prompt + " ".join(words * 2)[:a], " ".join(words * 2)[:b], prompt)
      for a in range(0, 48, 3)
      for b in counts
    ]
    for length in (5, 9, 16):
      expected = [
        *model_inputs.encode_windows(tokenizer, pairs, length, cutting)
      ]
      first, second, _ = zip(*pairs)
      encoded, text_of = graph.encode_pairs(
        first, second, length, True, cutting, tokenizer.encode(prompt)
      )
      assert np.bincount(text_of).tolist() == [len(rows) for rows in expected]
      for name in model_inputs.TOKEN_FEATURES:
        rows = [getattr(row, name) for rows in expected for row in rows]
        assert encoded[name].numpy().tolist() == rows


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(tokenization_test.TEXT, max_size=3))
@example(texts=["ΑΣ\x00dog"])  # whose sigma ends a word
@example(texts=["abe\u0301 a\u0301\u200db", "\u0301ab", "❤\ufe0fab 中\u0301ab"])
def test_words_of_a_pattern_are_tokenized_separately(small_vocab_file, texts):
  tokenizer, graph = cached(small_vocab_file, pattern=ner.WORD)
  texts = [tokenization.convert_to_unicode(as_bytes(text)) for text in texts]
  tokens = graph.tokenize(tf.constant(texts, tf.string, [len(texts)]))
  sentences = [ner.from_text(text) for text in texts]
  words = [word for sentence in sentences for word in sentence.words]
  spans = zip(tokens.word_starts.to_list(), tokens.word_ends.to_list())
  assert [list(zip(*pair)) for pair in spans] == [s.offsets for s in sentences]
  encoded = [tokenizer.encode(word) for word in words]
  expected = [piece for ids in encoded for piece in ids]
  assert tokens.ids.values.numpy().tolist() == expected
  assert tokens.words.values.numpy().tolist() == [
    number for number, ids in enumerate(encoded) for _ in ids
  ]


@given(
  lengths=st.lists(st.integers(0, 40), max_size=4),
  room=st.integers(1, 12),
  stride=st.integers(1, 14),
)
@settings(max_examples=60, deadline=None)
def test_windows_are_those_of_make_doc_spans(lengths, room, stride):
  rows = tf.RaggedTensor.from_row_lengths(tf.range(sum(lengths)), lengths)
  size = tf.fill([len(lengths)], room)
  step = tf.minimum(size, stride)
  windows = tf_tokenizer.split_into_windows(
    tf.constant(lengths, tf.int32), size, step
  )
  expected = [
    (row, *span)
    for row, length in enumerate(lengths)
    for span in model_inputs.make_doc_spans(length, room, stride) or [(0, 0)]
  ]
  assert list(zip(*(x.numpy().tolist() for x in windows))) == expected
  values = rows.to_list()
  assert tf_tokenizer.gather_windows(rows, windows).to_list() == [
    values[row][start : start + length] for row, start, length in expected
  ]
