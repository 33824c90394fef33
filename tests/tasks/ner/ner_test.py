"""Tests of sentences: words of running text, windows."""

import pytest
import tiny_model
from hypothesis import given
from hypothesis import strategies as st
from parametrize import parametrize

from bertlib.tasks.ner import ner, ner_decoding

pytestmark = pytest.mark.unit


def test_an_entity_reaches_to_the_end_of_its_last_word():
  sentence = ner.from_text("Ann saw New York")
  tags = ["B-PER", "O", "B-LOC", "I-LOC"]
  found = ner_decoding.extract_entities(sentence, tags, [0.9, 1.0, 0.8, 0.7])
  assert found == [("PER", "Ann", 0, 3, 0.9), ("LOC", "New York", 8, 16, 0.7)]


@given(st.text("aé1我 .\u200b", max_size=30), st.data())
def test_entities_cut_words_and_hold_all_words_inside(text, data):
  positions = st.integers(0, len(text))
  bounds = data.draw(st.lists(positions, unique=True, max_size=12))
  bounds.sort()
  spans = [
    {"start": float(start), "end": float(end), "label": "X"}
    for start, end in zip(bounds[::2], bounds[1::2])
  ]
  sentence = ner.from_text(text, data.draw(st.permutations(spans)))
  offsets = []
  for match in ner.WORD.finditer(text):
    cuts = [b for b in bounds[: len(spans) * 2] if match.start() < b]
    cuts = [match.start(), *(b for b in cuts if b < match.end()), match.end()]
    offsets += zip(cuts, cuts[1:])
  assert sentence.offsets == offsets
  assert sentence.words == [text[start:end] for start, end in offsets]
  tags = ["O"] * len(offsets)
  for span in spans:
    prefix = "B"
    for index, (start, end) in enumerate(offsets):
      if span["start"] <= start and end <= span["end"]:
        tags[index] = f"{prefix}-X"
        prefix = "I"
  assert sentence.tags == tags


@parametrize(
  "text, words",
  *(
    (f"a {word}, b", ["a", word, ",", "b"])
    for word in (
      "हिन्दी",  # vowel signs
      "ภาษาไทยที่",
      "مُحَمَّد",
      "می\u200cخواهم",  # a non-joiner within the word
      "Rene\u0301e",
      "in\u00adter",  # a soft hyphen
    )
  ),
  ("❤\ufe0fabc", ["❤", "\ufe0f", "abc"]),
  ("我爱New York。", ["我", "爱", "New", "York", "。"]),
)
def test_marks_are_part_of_a_word_and_ideographs_are_words(text, words):
  assert ner.from_text(text).words == words


@pytest.fixture(scope="module")
def tokenizer():
  return tiny_model.tokenizer("a", "##a", "b")


@given(
  st.lists(st.sampled_from(["a", "aa", "aaaa", "b", "\u0000"]), max_size=80),
  st.integers(8, 20),
)
def test_every_word_is_predicted_once(tokenizer, words, max_seq_length):
  sentence = ner.from_text("")._replace(words=words)
  windows = list(ner.make_windows([sentence], tokenizer, max_seq_length))
  predicted = sorted(w for window in windows for w in window.words if w >= 0)
  assert predicted == [i for i, word in enumerate(words) if word != "\u0000"]
  for window in windows:
    assert len(window.input_ids) == len(window.words) <= max_seq_length
    for piece, word in zip(window.input_ids, window.words):
      if word >= 0:
        assert piece == tokenizer.encode(words[word])[0]


def test_a_word_of_a_long_sentence_is_predicted_with_context(tokenizer):
  sentence = ner.from_text(" ".join(["b"] * 10_000))
  for window in list(ner.make_windows([sentence], tokenizer, 42))[1:-1]:
    positions = [i for i, word in enumerate(window.words) if word >= 0]
    assert positions[0] > 10
    assert positions[-1] < 32


def test_a_record_has_labels_where_tags_are_predicted(tokenizer):
  sentence = ner.from_text("aa b")._replace(tags=["B-X", "O"])
  windows = [*ner.make_windows([sentence], tokenizer, 8)] * 2
  _, record = ner.window_records([sentence], windows, 8, ["O", "B-X"])
  assert record["label_ids"] == [-1, 1, -1, 0, -1, -1, -1, -1]
  assert record["input_mask"] == [1, 1, 1, 1, 1, 0, 0, 0]
