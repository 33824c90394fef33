"""Tests of the inputs of run_ner.py."""

import json
import re

import pytest
import reference_data
from hypothesis import given, settings
from hypothesis import strategies as st

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.settings.ner import NerSettings
from bertlib.tasks.ner import ner, ner_decoding, ner_inputs
from bertlib.tasks.ner.ner_inputs import Columns

pytestmark = pytest.mark.unit


# Files

TO_TAG = Columns(needs_tags=False)


def write(tmp_path, text, name="data.conll"):
  path = tmp_path / name
  path.write_bytes(text.encode())
  return str(path)


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
  first, second = ner_inputs.read_file(write(tmp_path, text), Columns())
  assert first.words == ["Ann", "left"]
  assert first.tags == ["B-PER", "O"]
  assert second.words == ["Rome"]
  assert second.tags == ["B-LOC"]
  assert [first.text[a:b] for a, b in first.offsets] == first.words


@pytest.mark.parametrize(
  ("text", "columns", "words", "tags"),
  [
    (
      "1|NNP|New York|B-LOC|x\n2|VB|is|O|y\n",
      Columns(3, -2, "|"),
      ["New York", "is"],
      ["B-LOC", "O"],
    ),
    # One sentence per line.
    (
      "text_a\tlabel\n北\x02京\x02好\tB-LOC\x02I-LOC\x02O\n",
      Columns(item_delimiter="\x02"),
      ["北", "京", "好"],
      ["B-LOC", "I-LOC", "O"],
    ),
  ],
)
def test_columns_and_delimiters_can_be_chosen(
  tmp_path, text, columns, words, tags
):
  (sentence,) = ner_inputs.read_file(write(tmp_path, text), columns)
  assert (sentence.words, sentence.tags) == (words, tags)


@pytest.mark.parametrize(
  ("text", "columns", "fault"),
  [
    ("Ann\tO\n\nleft\tO\nRome\n", Columns(), "line 4: has 1 columns"),
    ("Ann\tO\n\nleft\tVB\tO\n", Columns(), "line 3: has 3 columns"),
    ("Ann\tO\n", Columns(tag=3), "line 1: "),
    ("", Columns(), "has no sentences"),
    ("\n\r\n", Columns(), "has no sentences"),
    ("-DOCSTART- O\n", Columns(), "has no sentences"),
    ("a\x02b\tO\n", Columns(item_delimiter="\x02"), "line 1: 2 words"),
    ("Ann left .\nBob met .\n", TO_TAG, "line 1: looks like a sentence"),
    ("-DOCSTART- -X- O\n\nAnn left .\n", TO_TAG, "line 3: looks like"),
    ("今天天气很好。\n", TO_TAG, "line 1: looks like a sentence"),
    ("Ann left.\nNo.\n", TO_TAG._replace(delimiter="\t"), "line 1: looks like"),
    ("Ann left.\n\nAnn, Bob met Cy.\n", TO_TAG, "line 1: looks like"),
    ("Ann,B-PER\nleft,O\n\nBob,B-PER\n", TO_TAG, "line 1: looks like"),
    (
      "# text = Ann left\n1\tAnn\tO\n",
      Columns(word=2),
      "line 2: has 3 columns",
    ),
  ],
)
def test_a_file_that_is_not_words_with_tags_is_refused(
  tmp_path, text, columns, fault
):
  path = write(tmp_path, text)
  with pytest.raises(InputError, match=f"^{re.escape(path)}.*{fault}"):
    ner_inputs.read_file(path, columns)


def test_no_file_is_refused(tmp_path):
  with pytest.raises(InputError, match="cannot be read"):
    ner_inputs.read_file(str(tmp_path / "none"), TO_TAG)


def test_json_lines_with_tokens(tmp_path):
  path = write(
    tmp_path,
    '{"tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}\n'
    '\n{"tokens": ["x"], "tags": ["O"]}\n',
    "data.jsonl",
  )
  first, second = ner_inputs.read_file(path, Columns())
  assert first.tags == ["B-PER", "O"]
  assert second.words == ["x"]
  assert ner_inputs.read_file(path, TO_TAG)[0].tags is None


def test_json_lines_with_text_and_entities(tmp_path):
  row = {
    "text": "Dr. Ann-Marie left Rome.",
    "entities": [
      {"start": 4, "end": 7, "label": "PER"},
      {"start": 19, "end": 23, "label": "LOC"},
    ],
  }
  path = write(tmp_path, json.dumps(row), "data.jsonl")
  (sentence,) = ner_inputs.read_file(path, Columns())
  assert sentence.words == [
    "Dr", ".", "Ann", "-", "Marie", "left", "Rome", ".",
  ]  # fmt: skip
  assert sentence.tags == ["O", "O", "B-PER", "O", "O", "O", "B-LOC", "O"]


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
  sentences = ner_inputs.read_file(
    str(reference_data.data(f"ner/{name}")),
    Columns(item_delimiter=item_delimiter),
  )
  assert len(sentences) == num_sentences
  found = sum(len(ner.tags_to_entities(s.tags)) for s in sentences)
  assert found == num_entities


# First lines


def words_of(path, columns):
  return [s.words for s in ner_inputs.read_file(path, columns)]


@pytest.mark.parametrize("needs_tags", [True, False])
@pytest.mark.parametrize(
  "text, item_delimiter, words",
  [
    ("Hello\tO\nParis is\tB-LOC O\n", " ", [["Hello"], ["Paris", "is"]]),
    ("text\tO\nParis\tB-LOC\n", " ", [["text"], ["Paris"]]),
    ("Paris\tLOC\nRome\tLOC\n", " ", [["Paris"], ["Rome"]]),
    ("text\tLabels\nParis\tB-LOC\n", " ", [["Paris"]]),
    ("word\ttag\nParis\tB-LOC\n", None, [["Paris"]]),
    ("tag\tO\nParis\tB-LOC\n", None, [["tag", "Paris"]]),
  ],
)
def test_only_names_of_columns_are_no_sentence(
  tmp_path, text, item_delimiter, words, needs_tags
):
  columns = Columns(item_delimiter=item_delimiter, needs_tags=needs_tags)
  assert words_of(write(tmp_path, text), columns) == words


def test_a_notation_of_tags_is_read_and_reported(tmp_path, caplog):
  path = write(tmp_path, "word tag\nAnn U-PER\nleft O\nRome B-LOC\n")
  with caplog.at_level("INFO", "absl"):
    (sentence,) = ner_inputs.read_file(path, Columns())
  assert sentence.tags == ["S-PER", "O", "B-LOC"]
  assert "line 1: is read as the names of" in caplog.messages[0]
  assert "U-PER is read as S-PER, others likewise" in caplog.messages[1]


@pytest.mark.parametrize(
  ("text", "columns", "words"),
  [
    ("Ann NNP B-PER\nleft VBD O\n", TO_TAG, ["Ann", "left"]),
    ("Ann PER\nleft O\n", TO_TAG, ["Ann", "left"]),
    ("Ann NNP\nleft VBD\n", TO_TAG._replace(delimiter=" "), ["Ann", "left"]),
    ("Ann\tNNP\nleft\tVBD\n", TO_TAG, ["Ann", "left"]),
    ("1 Ann NNP\n2 left VBD\n", TO_TAG._replace(word=2), ["Ann", "left"]),
    ("Ann\nleft\n", TO_TAG, ["Ann", "left"]),
    # Punctuation.
    ("http://a.b/c?d=e", TO_TAG, ["http://a.b/c?d=e"]),
    ("北京", TO_TAG, ["北京"]),
    ("。", TO_TAG, ["。"]),
    ("3,5", TO_TAG, ["3,5"]),
    ("#\tO\n#new\tO\n", Columns(), ["#", "#new"]),
    ("\xa0\tO\nAnn\tO\n", Columns(), ["\xa0", "Ann"]),
  ],
)
def test_words_of_columns_are_read(tmp_path, text, columns, words):
  assert words_of(write(tmp_path, text), columns) == [words]


def test_json_is_not_read_as_columns(tmp_path):
  path = write(tmp_path, '{"tokens": ["a"], "tags": ["O"]}\n', "data.json")
  with pytest.raises(InputError, match=r"data\.json: is JSON"):
    ner_inputs.read_file(path, TO_TAG)


# Keys of JSON


def of_abc(*entities):
  return {"text": "abc", "entities": entities}


@pytest.mark.parametrize(
  "row, message",
  [
    (of_abc({"start": 0, "end": 9, "label": "X"}), "is not an entity"),
    (of_abc({"start": 2, "end": 2, "label": "X"}), "is not an entity"),
    (of_abc({"start": 0, "end": 1.5, "label": "X"}), "is not an entity"),
    (of_abc({"start": 0, "end": 2}), "is not an entity"),
    (of_abc("X"), "is not an entity"),
    (of_abc([0, 1, "X"]), "needs label, start and end"),
    (of_abc({"start_offset": 0, "end_offset": 1, "label": "X"}), "needs label"),
    (
      of_abc(
        {"start": 0, "end": 2, "label": "X"},
        {"start": 1, "end": 3, "label": "Y"},
      ),
      "overlap",
    ),
    ([], "its keys are: none. "),
    ({"id": 1, "tokens": ["a"], "ner_tags": ["O"]}, '"id", "tokens", "ner_'),
    ({"text": "a", "entities": None}, 'keys are: "text", "entities"'),
    ({"words": ["a"], "tags": ["O"]}, 'its keys are: "words", "tags"'),
    ({"tokens": ["a"], "tags": [3]}, 'keys are: "tokens", "tags"'),
    ({"tokens": [1], "tags": ["O"]}, 'keys are: "tokens", "tags"'),
    ({"tokens": ["a"], "tags": []}, "1 words, but 0 tags"),
    ({"text": "\ud83d!", "entities": []}, "half of a character"),
    ({"tokens": ["\ude00"], "tags": ["O"]}, "half of a character"),
  ],
)
def test_a_row_without_its_annotation_is_refused(tmp_path, row, message):
  path = write(tmp_path, json.dumps(row), "data.jsonl")
  with pytest.raises(InputError, match=f"line 1: .*{message}"):
    ner_inputs.read_file(path, Columns())


@pytest.mark.parametrize("columns", [Columns(), TO_TAG])
def test_a_row_without_words_is_a_sentence(tmp_path, columns):
  rows = [
    {"tokens": [], "tags": []},
    {"tokens": ["a"], "tags": ["O"]},
    {"text": "", "entities": []},
  ]
  path = write(tmp_path, "\n".join(map(json.dumps, rows)), "data.jsonl")
  assert words_of(path, columns) == [[], ["a"], []]


# Offsets of entities


@pytest.mark.parametrize(
  ("texts", "logged"),
  [
    # UTF-16 units, and an end that is within the word.
    (
      [("🚀 Mira left", [(3, 7)]), ("Jon", [(0, 3)])],
      "line 1: .* 1 of 2 texts",
    ),
    ([("Mira Holt", [(0, 4)]), ("Mira", [(0, 2)])], "line 2: .* 1 of 2 texts"),
    ([("Mira left  (x)", [(0, 5), (5, 9), (10, 13)])], None),
    ([("a   b", [(1, 3), (4, 5)])], ": 1 entities are only white space"),
  ],
)
def test_entities_that_are_no_whole_words_are_counted(
  tmp_path, caplog, texts, logged
):
  rows = [of_text(text, *spans) for text, spans in texts]
  path = write(tmp_path, "\n".join(map(json.dumps, rows)), "data.jsonl")
  ner_inputs.read_file(path, Columns())
  assert len(caplog.messages) == bool(logged)
  assert not logged or re.search(logged, caplog.text)


def of_text(text, *spans):
  entities = [{"start": a, "end": b, "label": "X"} for a, b in spans]
  return {"text": text, "entities": entities}


# Predictions


@given(
  st.lists(
    st.lists(
      st.text("aB# \t\n\r\v\x1c\x85\u2028\xa0\u200b我", max_size=4),
      min_size=1,
      max_size=5,
    ),
    min_size=1,
    max_size=4,
  )
)
@settings(deadline=None)
def test_written_predictions_are_read_again(tmp_path_factory, sentences):
  path = tmp_path_factory.mktemp("predictions") / "data"
  rows = "\n".join(json.dumps({"tokens": words}) for words in sentences)
  source = path.with_suffix(".in.jsonl")
  source.write_text(rows)
  read = ner_inputs.read_file(str(source), TO_TAG)
  tags = [["S-X"] * len(words) for words in sentences]
  ner_decoding.write_predictions(
    str(path), read, [(row, [1.0] * len(row)) for row in tags]
  )
  table = path.with_suffix(".conll").read_bytes().decode()
  assert len(table.splitlines()) == sum(len(row) + 1 for row in tags)
  again = ner_inputs.read_file(str(path) + ".conll", Columns())
  assert [s.tags for s in again] == tags
  spaced = str.maketrans(dict.fromkeys("\t\n\r\v\x1c\x85\u2028", " "))
  assert [s.words for s in again] == [
    [word.translate(spaced) for word in words] for words in sentences
  ]
  with_text = ner_inputs.read_file(str(path) + ".jsonl", TO_TAG)
  assert [s.text for s in with_text] == [" ".join(words) for words in sentences]


# Tags


def read_tags(tags):
  """Tags in BIO or BIOES for tags of which each is in a line of its own."""
  meanings = ner_inputs.read_tags({tag: f"line {tag}" for tag in tags})
  return [meanings[tag] for tag in tags]


@pytest.mark.parametrize(
  "tags, standard",
  [
    ("B-PER I-LOC O", "B-PER I-LOC O"),
    ("I-PER O", "I-PER O"),
    ("B-creative-work I-creative-work", "B-creative-work I-creative-work"),
    ("B-LOC.city S-A/B-cell", "B-LOC.city S-A/B-cell"),
    ("B-X M-X E-X W-Y", "B-X I-X E-X S-Y"),
    ("U-X B-Y L-Y", "S-X B-Y E-Y"),
    ("B I O", "B-ENTITY I-ENTITY O"),
    ("B M E S", "B-ENTITY I-ENTITY E-ENTITY S-ENTITY"),
    ("PER LOC O", "PER LOC O"),
    ("E_MAIL PHONE O", "E_MAIL PHONE O"),
    ("BN NN IN", "BN NN IN"),
    ("O", "O"),
  ],
)
def test_the_meaning_of_tags(tags, standard):
  assert read_tags(tags.split()) == standard.split()


@pytest.mark.parametrize(
  "tags, uncertain",
  [
    ("B_PER I_PER O", "B_PER"),
    ("PER-B PER-I O", "PER-B"),
    ("b-per i-per o", "b-per"),
    ("B_CELL T_CELL", "B_CELL"),
    ("LOC I_PER O", "I_PER"),
    ("Vitamin-B Vitamin-E O", "Vitamin-B"),
    ("B-PER PER", "PER"),
    ("B-PER X-PER", "X-PER"),
    ("B-PER o", "o"),
    ("per o", "o"),
    ("B- O", "B-"),
    ("B O", "B"),
    ("BPER IPER O", "BPER"),
    ("PERB PERI", "PERB"),
    ("Begin-PER Inside-PER", "Begin-PER"),
    ("PER_begin PER_inside O", "PER_begin"),
    ("(PER* * *)", "(PER*"),
    ("[PER O", "[PER"),
    ("PER - O", "-"),
    ("PER _", "_"),
    ("1 2 O", "1"),
    ("0 PER", "0"),
  ],
)
def test_a_tag_without_certain_meaning_is_refused(tags, uncertain):
  with pytest.raises(InputError) as raised:
    read_tags(tags.split())
  assert str(raised.value).startswith(
    f"line {uncertain}: the tag {uncertain!r} has no certain meaning"
  )


@pytest.mark.parametrize("tag", ["B-PER|I-ORG", "B-PER, B-ORG", "B_X;I_Y", ""])
def test_two_tags_of_a_word_and_none_are_refused(tag):
  with pytest.raises(InputError, match=r"more than one tag|is empty"):
    read_tags([tag, "O"])


# Flags, and tags of the model


def columns(**flags):
  return ner_inputs.columns(option.make(NerSettings, **flags))


@pytest.mark.parametrize("flag", ["delimiter", "item_delimiter"])
@pytest.mark.parametrize(
  ("text", "delimiter"),
  [
    ("|", "|"),
    (r"\t", "\t"),
    (r"\x02", "\x02"),
    (r"\\", "\\"),
    ("·", "·"),
    ("｜", "｜"),
    ("、 ", "、 "),
    (None, None),
  ],
)
def test_delimiters_may_be_any_characters_and_escapes(flag, text, delimiter):
  assert getattr(columns(**{flag: text}), flag) == delimiter


@pytest.mark.parametrize("text", ["\\", r"\x0"])
def test_an_incomplete_escape_sequence_is_refused(text):
  with pytest.raises(InputError, match="--delimiter="):
    columns(delimiter=text)


def tagged(*rows):
  return [
    ner.from_words([tag.lower() for tag in row.split()], row.split(), "line 1")
    for row in rows
  ]


@pytest.mark.parametrize(
  "rows, message",
  [
    (["B-X I-X O"], None),
    (["I-X O", "B-X I-X"], "f.conll: 1 tags are invalid in BIO"),
    (["B-X E-X S-X"], None),
    (["X X O"], None),
  ],
)
def test_tags_are_repaired_and_counted(caplog, rows, message):
  flags = option.make(NerSettings, train_file="f.conll")
  sentences = tagged(*rows)
  with caplog.at_level("INFO", "absl"):
    repaired = ner_inputs.normalize_tags(
      flags, "train_file", sentences, "BIO", ["O", "B-X", "I-X"]
    )
  assert all(tags[0] == "B-X" for _, tags, *_ in repaired)
  assert [m.partition(":")[0] for m in caplog.messages] == (
    [message.partition(":")[0]] if message else []
  )
  assert message is None or message in caplog.text


def test_labels_that_are_bare_classes_are_types():
  flags = option.make(NerSettings, dev_file="f.conll")
  (sentence,) = ner_inputs.normalize_tags(
    flags, "dev_file", tagged("B-X I-X O"), "", ["O", "X"]
  )
  assert sentence.tags == ["X", "X", "O"]
