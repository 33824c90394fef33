"""Tests of named-entity data: files, tags, windows."""

import json

import pytest
import reference_data
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

import tokenization
from bertlib.data import ner
from bertlib.data.ner import Columns, Entity
from bertlib.errors import InputError

pytestmark = pytest.mark.unit


def write(tmp_path, text, name="data.conll"):
  path = tmp_path / name
  path.write_bytes(text.encode())
  return str(path)


# Files


@pytest.mark.parametrize(
  "text",
  [
    "Ann\tB-PER\nleft\tO\n\nRome\tB-LOC\n",
    "Ann\tB-PER\nleft\tO\n\nRome\tB-LOC\n\n\n",
    "Ann\tB-PER\nleft\tO\n\nRome\tB-LOC",
    "Ann\tB-PER\r\nleft\tO\r\n\r\nRome\tB-LOC\r\n\r\n",
    "\ufeffAnn\tB-PER\nleft\tO\n\t\nRome\tB-LOC\n",
    "-DOCSTART- -X-\n\nAnn B-PER\nleft O\n\nRome B-LOC\n",
    "Ann  B-PER\nleft   O\n\nRome  B-LOC\n",
  ],
)
def test_columns_are_read_with_any_line_ends_and_blank_lines(tmp_path, text):
  first, second = ner.read_sentences(write(tmp_path, text), Columns())
  assert first.words == ["Ann", "left"]
  assert first.tags == ["B-PER", "O"]
  assert second.words == ["Rome"]
  assert second.tags == ["B-LOC"]


def test_columns_and_delimiter_can_be_chosen(tmp_path):
  path = write(tmp_path, "1|NNP|New York|B-LOC|x\n2|VB|is|O|y\n")
  (sentence,) = ner.read_sentences(path, Columns(3, -2, "|"))
  assert sentence.words == ["New York", "is"]
  assert sentence.tags == ["B-LOC", "O"]


def test_offsets_locate_the_words_in_the_text(tmp_path):
  path = write(tmp_path, "Ann\tO\nleft\tO\n")
  (sentence,) = ner.read_sentences(path, Columns())
  assert [sentence.text[a:b] for a, b in sentence.offsets] == sentence.words


def test_a_single_column_has_no_tags(tmp_path):
  (sentence,) = ner.read_sentences(write(tmp_path, "Ann\nleft\n"), Columns())
  assert sentence.tags is None


def test_a_no_break_space_is_a_word(tmp_path):
  (sentence,) = ner.read_sentences(
    write(tmp_path, "\xa0\tO\nAnn\tO\n"), Columns()
  )
  assert sentence.words == ["\xa0", "Ann"]


def test_a_line_with_another_number_of_columns_is_refused(tmp_path):
  path = write(tmp_path, "Ann\tO\n\nleft\tO\nRome\n")
  with pytest.raises(InputError, match=r"line 4: has 1 columns.*have 2"):
    ner.read_sentences(path, Columns())


def test_a_missing_column_is_refused(tmp_path):
  path = write(tmp_path, "Ann\tO\n")
  with pytest.raises(InputError, match=r"line 1: .*--tag_column=3"):
    ner.read_sentences(path, Columns(tag=3))


@pytest.mark.parametrize("text", ["", "\n\r\n", "-DOCSTART- O\n"])
def test_a_file_without_sentences_is_refused(tmp_path, text):
  with pytest.raises(InputError, match="has no sentences"):
    ner.read_sentences(write(tmp_path, text), Columns())


def test_a_missing_file_is_refused(tmp_path):
  with pytest.raises(InputError, match="cannot be read"):
    ner.read_sentences(str(tmp_path / "none"), Columns())


def test_one_sentence_per_line(tmp_path):
  path = write(tmp_path, "text_a\tlabel\n北\x02京\x02好\tB-LOC\x02I-LOC\x02O\n")
  (sentence,) = ner.read_sentences(path, Columns(item_delimiter="\x02"))
  assert sentence.words == ["北", "京", "好"]
  assert sentence.tags == ["B-LOC", "I-LOC", "O"]


def test_a_line_with_too_few_tags_is_refused(tmp_path):
  path = write(tmp_path, "a\x02b\tO\n")
  with pytest.raises(InputError, match="line 1: 2 words, but 1 tags"):
    ner.read_sentences(path, Columns(item_delimiter="\x02"))


def test_json_lines_with_tokens(tmp_path):
  path = write(
    tmp_path,
    '{"tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}\n'
    '\n{"tokens": ["x"]}\n',
    "data.jsonl",
  )
  first, second = ner.read_sentences(path, Columns())
  assert first.tags == ["B-PER", "O"]
  assert second.tags is None


def test_json_lines_with_text_and_entities(tmp_path):
  row = {
    "text": "Dr. Ann-Marie left Rome.",
    "entities": [
      {"start": 4, "end": 7, "label": "PER"},
      {"start": 19, "end": 23, "label": "LOC"},
    ],
  }
  path = write(tmp_path, json.dumps(row), "data.jsonl")
  (sentence,) = ner.read_sentences(path, Columns())
  assert sentence.words == [
    "Dr", ".", "Ann", "-", "Marie", "left", "Rome", ".",
  ]  # fmt: skip
  assert sentence.tags == ["O", "O", "B-PER", "O", "O", "O", "B-LOC", "O"]


def test_an_entity_inside_a_word_splits_it():
  sentence = ner.from_text(
    "anti-BRCA1x", [{"start": 5, "end": 10, "label": "G"}]
  )
  assert sentence.words == ["anti", "-", "BRCA1", "x"]
  assert sentence.tags == ["O", "O", "B-G", "O"]


@given(st.text("aé1我 .\u200b", max_size=30), st.data())
def test_entities_cut_words_and_hold_all_words_inside(text, data):
  bounds = data.draw(
    st.lists(st.integers(0, len(text)), unique=True, max_size=12)
  )
  bounds.sort()
  spans = [
    {"start": start, "end": float(end), "label": "X"}
    for start, end in zip(bounds[::2], bounds[1::2])
  ]
  sentence = ner.from_text(text, data.draw(st.permutations(spans)))
  offsets = []
  for match in ner.WORD.finditer(text):
    cuts = [b for b in bounds[: len(spans) * 2] if match.start() < b]
    cuts = [match.start(), *(b for b in cuts if b < match.end()), match.end()]
    offsets += zip(cuts, cuts[1:])
  assert sentence.offsets == offsets
  tags = ["O"] * len(offsets)
  for span in spans:
    prefix = "B"
    for index, (start, end) in enumerate(offsets):
      if span["start"] <= start and end <= span["end"]:
        tags[index] = f"{prefix}-X"
        prefix = "I"
  assert sentence.tags == tags


def test_offsets_of_entities_may_be_floats():
  span = {"start": 2.0, "end": 4.0, "label": "X"}
  sentence = ner.from_text("a bcd", [span])
  assert sentence.words == ["a", "bc", "d"]
  assert sentence.tags == ["O", "B-X", "O"]


@pytest.mark.parametrize(
  "entities, message",
  [
    ([{"start": 0, "end": 9, "label": "X"}], "is not an entity"),
    ([{"start": 2, "end": 2, "label": "X"}], "is not an entity"),
    ([{"start": 0, "end": 1.5, "label": "X"}], "is not an entity"),
    ([{"start": 0, "end": 2}], "is not an entity"),
    (["X"], "is not an entity"),
    (
      [
        {"start": 0, "end": 2, "label": "X"},
        {"start": 1, "end": 3, "label": "Y"},
      ],
      "overlap",
    ),
  ],
)
def test_invalid_spans_are_refused(tmp_path, entities, message):
  line = json.dumps({"text": "abc", "entities": entities})
  path = write(tmp_path, line, "data.jsonl")
  with pytest.raises(InputError, match=f"line 1: .*{message}"):
    ner.read_sentences(path, Columns())


@pytest.mark.parametrize("line", ["{", "[]", '{"words": []}'])
def test_json_without_tokens_or_text_is_refused(tmp_path, line):
  with pytest.raises(InputError, match="line 1: "):
    ner.read_sentences(write(tmp_path, line, "data.jsonl"), Columns())


@pytest.mark.parametrize(
  "word",
  [
    "हिन्दी",  # vowel signs
    "ภาษาไทยที่",
    "مُحَمَّد",
    "می\u200cخواهم",  # a non-joiner within the word
    "Rene\u0301e",
    "in\u00adter",  # a soft hyphen
  ],
)
def test_marks_do_not_end_a_word(word):
  assert ner.from_text(f"a {word}, b").words == ["a", word, ",", "b"]


def test_marks_after_other_characters_are_words():
  assert ner.from_text("❤\ufe0fabc").words == ["❤", "\ufe0f", "abc"]


def test_each_chinese_character_is_a_word():
  assert ner.from_text("我爱New York。").words == [
    "我", "爱", "New", "York", "。",
  ]  # fmt: skip


@pytest.mark.needs_data
@pytest.mark.parametrize(
  "name, item_delimiter, num_sentences, num_entities",
  [
    ("wnut17/train.conll", None, 3394, 1975),
    ("wnut17/test.conll", None, 1287, 1079),
    ("ncbi-disease/train.tsv", None, 5432, 5145),
    ("msra/dev.tsv", "\x02", 2318, 3819),
  ],
)
def test_published_data_sets_are_read_completely(
  name, item_delimiter, num_sentences, num_entities
):
  sentences = ner.read_sentences(
    str(reference_data.data(f"ner/{name}")),
    Columns(item_delimiter=item_delimiter),
  )
  assert len(sentences) == num_sentences
  found = sum(len(ner.tags_to_entities(s.tags)) for s in sentences)
  assert found == num_entities


# Tags

TAGS = st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), max_size=12)


@given(TAGS)
@settings(deadline=None)
def test_entities_of_any_bio_tags_equal_those_of_seqeval(tags):
  entities = [(e.label, e.start, e.end - 1) for e in ner.tags_to_entities(tags)]
  assert entities == get_entities(tags)


@st.composite
def entity_lists(draw):
  """Adjacent and separate entities, and the number of words."""
  entities, end = [], 0
  for _ in range(draw(st.integers(0, 4))):
    start = end + draw(st.integers(0, 2))
    end = start + draw(st.integers(1, 3))
    entities.append(Entity(draw(st.sampled_from("XY")), start, end))
  return entities, end + draw(st.integers(0, 2))


@given(entity_lists(), st.sampled_from(["BIO", "BIOES"]))
@settings(deadline=None)
def test_entities_survive_conversion_to_tags(drawn, scheme):
  entities, num_words = drawn
  tags = ner.entities_to_tags(entities, num_words, scheme)
  assert ner.tags_to_entities(tags) == entities


@pytest.mark.parametrize(
  "tags, entities",
  [
    (["X", "X", "O", "Y"], [Entity("X", 0, 2), Entity("Y", 3, 4)]),
    (["U-X", "B-Y", "L-Y"], [Entity("X", 0, 1), Entity("Y", 1, 3)]),
    (["O", "I-X", "I-X"], [Entity("X", 1, 3)]),
    (["E-X", "E-X"], [Entity("X", 0, 1), Entity("X", 1, 2)]),
  ],
)
def test_other_schemes_and_invalid_tags_are_accepted(tags, entities):
  assert ner.tags_to_entities(tags) == entities


def test_repair_tags_counts_the_changed_tags():
  sentence = ner.from_text("a b c")._replace(tags=["O", "I-X", "I-X"])
  (repaired,), count = ner.repair_tags([sentence], "BIO")
  assert repaired.tags == ["O", "B-X", "I-X"]
  assert count == 1


@pytest.mark.parametrize(
  "tags, scheme",
  [(["O", "B-X"], "BIO"), (["S-X"], "BIOES"), (["X", "O"], ""), (["O"], "")],
)
def test_find_scheme(tags, scheme):
  assert ner.find_scheme(tags) == scheme


# Windows


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a", "b"]
  path.write_text("\n".join(pieces) + "\n")
  return tokenization.FullTokenizer(str(path))


@given(
  st.lists(st.sampled_from(["a", "aa", "aaaa", "b", "\u0000"]), max_size=80),
  st.integers(8, 20),
)
@settings(deadline=None)
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
  windows = list(ner.make_windows([sentence], tokenizer, 42))
  for window in windows[1:-1]:
    positions = [i for i, word in enumerate(window.words) if word >= 0]
    assert positions[0] > 10
    assert positions[-1] < 32


def test_windows_are_counted_per_sentence(tokenizer):
  sentences = [ner.from_text("a " * length) for length in (2, 9)]
  windows = list(ner.make_windows(sentences, tokenizer, 8))
  lengths = ner.window_lengths(windows, 8)
  assert lengths == ([4, 8, 8], 8, [0, 0], "sentences", [1, 2])


def test_a_record_has_labels_where_tags_are_predicted(tokenizer):
  sentence = ner.from_text("aa b")
  (window,) = ner.make_windows([sentence], tokenizer, 8)
  record = ner.window_record(window, 7, 8, [3, 5])
  assert record["label_ids"] == [-1, 3, -1, 5, -1, -1, -1, -1]
  assert record["input_mask"] == [1, 1, 1, 1, 1, 0, 0, 0]
  assert record["unique_ids"] == 7
