"""Tests of files of tagged sentences."""

import json

import pytest
import reference_data
from hypothesis import given, settings
from hypothesis import strategies as st

from bertlib.cli.errors import InputError
from bertlib.tasks.ner import ner, ner_decoding, ner_files, ner_tags
from bertlib.tasks.ner.ner_files import Columns

pytestmark = pytest.mark.unit


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
  first, second = ner_files.read_sentences(write(tmp_path, text), Columns())
  assert first.words == ["Ann", "left"]
  assert first.tags == ["B-PER", "O"]
  assert second.words == ["Rome"]
  assert second.tags == ["B-LOC"]


def test_columns_and_delimiter_can_be_chosen(tmp_path):
  path = write(tmp_path, "1|NNP|New York|B-LOC|x\n2|VB|is|O|y\n")
  (sentence,) = ner_files.read_sentences(path, Columns(3, -2, "|"))
  assert sentence.words == ["New York", "is"]
  assert sentence.tags == ["B-LOC", "O"]


def test_offsets_locate_the_words_in_the_text(tmp_path):
  path = write(tmp_path, "Ann\tO\nleft\tO\n")
  (sentence,) = ner_files.read_sentences(path, Columns())
  assert [sentence.text[a:b] for a, b in sentence.offsets] == sentence.words


def test_a_single_column_has_no_tags(tmp_path):
  (sentence,) = ner_files.read_sentences(write(tmp_path, "Ann\nleft\n"), TO_TAG)
  assert sentence.tags is None


def test_a_no_break_space_is_a_word(tmp_path):
  (sentence,) = ner_files.read_sentences(
    write(tmp_path, "\xa0\tO\nAnn\tO\n"), Columns()
  )
  assert sentence.words == ["\xa0", "Ann"]


def test_a_line_with_another_number_of_columns_is_refused(tmp_path):
  path = write(tmp_path, "Ann\tO\n\nleft\tO\nRome\n")
  with pytest.raises(InputError, match=r"line 4: has 1 columns.*have 2"):
    ner_files.read_sentences(path, Columns())


def test_a_missing_column_is_refused(tmp_path):
  path = write(tmp_path, "Ann\tO\n")
  with pytest.raises(InputError, match=r"line 1: .*--tag_column=3"):
    ner_files.read_sentences(path, Columns(tag=3))


@pytest.mark.parametrize("text", ["", "\n\r\n", "-DOCSTART- O\n"])
def test_a_file_without_sentences_is_refused(tmp_path, text):
  with pytest.raises(InputError, match="has no sentences"):
    ner_files.read_sentences(write(tmp_path, text), Columns())


def test_a_missing_file_is_refused(tmp_path):
  with pytest.raises(InputError, match="cannot be read"):
    ner_files.read_sentences(str(tmp_path / "none"), Columns())


def test_one_sentence_per_line(tmp_path):
  path = write(tmp_path, "text_a\tlabel\n北\x02京\x02好\tB-LOC\x02I-LOC\x02O\n")
  (sentence,) = ner_files.read_sentences(path, Columns(item_delimiter="\x02"))
  assert sentence.words == ["北", "京", "好"]
  assert sentence.tags == ["B-LOC", "I-LOC", "O"]


def test_a_line_with_too_few_tags_is_refused(tmp_path):
  path = write(tmp_path, "a\x02b\tO\n")
  with pytest.raises(InputError, match="line 1: 2 words, but 1 tags"):
    ner_files.read_sentences(path, Columns(item_delimiter="\x02"))


def test_json_lines_with_tokens(tmp_path):
  path = write(
    tmp_path,
    '{"tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}\n'
    '\n{"tokens": ["x"], "tags": ["O"]}\n',
    "data.jsonl",
  )
  first, second = ner_files.read_sentences(path, Columns())
  assert first.tags == ["B-PER", "O"]
  assert second.words == ["x"]
  assert ner_files.read_sentences(path, TO_TAG)[0].tags is None


def test_json_lines_with_text_and_entities(tmp_path):
  row = {
    "text": "Dr. Ann-Marie left Rome.",
    "entities": [
      {"start": 4, "end": 7, "label": "PER"},
      {"start": 19, "end": 23, "label": "LOC"},
    ],
  }
  path = write(tmp_path, json.dumps(row), "data.jsonl")
  (sentence,) = ner_files.read_sentences(path, Columns())
  assert sentence.words == [
    "Dr", ".", "Ann", "-", "Marie", "left", "Rome", ".",
  ]  # fmt: skip
  assert sentence.tags == ["O", "O", "B-PER", "O", "O", "O", "B-LOC", "O"]


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
    ner_files.read_sentences(path, Columns())


@pytest.mark.parametrize("line", ["{", "[]", '{"words": []}'])
def test_json_without_tokens_or_text_is_refused(tmp_path, line):
  with pytest.raises(InputError, match="line 1: "):
    ner_files.read_sentences(write(tmp_path, line, "data.jsonl"), Columns())


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
  sentences = ner_files.read_sentences(
    str(reference_data.data(f"ner/{name}")),
    Columns(item_delimiter=item_delimiter),
  )
  assert len(sentences) == num_sentences
  found = sum(len(ner_tags.tags_to_entities(s.tags)) for s in sentences)
  assert found == num_entities


# First lines


def words_of(path, columns):
  return [s.words for s in ner_files.read_sentences(path, columns)]


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


def test_names_of_columns_are_logged(tmp_path, caplog):
  path = write(tmp_path, "word tag\nParis B-LOC\n")
  with caplog.at_level("INFO", "absl"):
    ner_files.read_sentences(path, Columns())
  assert f"{path}, line 1: is read as the names of the columns" in caplog.text


# Tags


def test_tags_of_another_notation_are_read_and_logged(tmp_path, caplog):
  path = write(tmp_path, "Ann PER_B\nLee PER_I\nleft O\nRome LOC_B\n")
  with caplog.at_level("INFO", "absl"):
    (sentence,) = ner_files.read_sentences(path, Columns())
  assert sentence.tags == ["B-PER", "I-PER", "O", "B-LOC"]
  assert (
    f"{path}: PER_B is read as B-PER, others likewise; 2 ent" in caplog.text
  )


def test_entities_that_seqeval_finds_elsewhere_are_counted(tmp_path, caplog):
  path = write(tmp_path, "Ann PER\nleft O\nAcme ORG\n")
  with caplog.at_level("INFO", "absl"):
    (sentence,) = ner_files.read_sentences(path, Columns())
  assert sentence.tags == ["PER", "O", "ORG"]
  assert "2 entities; seqeval finds 1 in the tags as they are" in caplog.text


def test_tags_without_o_are_reported(tmp_path, caplog):
  ner_files.read_sentences(write(tmp_path, "Ann NN\nleft VB\n"), Columns())
  assert "no word is tagged O" in caplog.text


def test_standard_tags_are_not_reported(tmp_path, caplog):
  path = write(tmp_path, "Ann B-PER\nleft O\nRome S-LOC\n")
  with caplog.at_level("INFO", "absl"):
    ner_files.read_sentences(path, Columns())
  assert not caplog.messages


# Running text


@pytest.mark.parametrize(
  "text, line",
  [
    ("Ann left .\nBob met .\n", 1),
    ("Ann left .\nBob met .\nAnn met Bob .\n", 1),
    ("-DOCSTART- -X- O\n\nAnn left .\n", 3),
    ("我爱北京，你呢。\n好\n", 1),
    ("今天天气很好。\n", 1),
  ],
)
def test_sentences_instead_of_words_are_refused(tmp_path, text, line):
  with pytest.raises(InputError, match=f"line {line}: looks like a sentence"):
    ner_files.read_sentences(write(tmp_path, text), TO_TAG)


@pytest.mark.parametrize(
  "texts",
  [
    ["Ann left Rome.", "Bob met Ann Lee.", "Nothing happened."],
    ["Ann", "Ann left.", "Ann, Bob met Cy."],
  ],
)
def test_lines_of_other_numbers_of_words_are_texts(tmp_path, texts, caplog):
  path = write(tmp_path, "\n\n".join(texts))
  with caplog.at_level("INFO", "absl"):
    sentences = ner_files.read_sentences(path, TO_TAG)
  assert [s.words for s in sentences] == [ner.from_text(t).words for t in texts]
  assert [s.text for s in sentences] == texts
  assert caplog.messages == [
    f"{path}: each line is read as a text, not as columns"
  ]


def test_a_table_to_tag_is_refused(tmp_path):
  (tmp_path / "a.csv").write_text("id,text\n1,Ann left Rome.\n2,Bob met Ann\n")
  with pytest.raises(InputError, match=r"a\.csv: is a table"):
    ner_files.read_sentences(str(tmp_path / "a.csv"), TO_TAG)


def test_words_with_their_tags_are_refused(tmp_path):
  path = write(tmp_path, "Ann,B-PER\nleft,O\n\nBob,B-PER\n")
  with pytest.raises(InputError, match="a tag in each word, such as Ann,B-PER"):
    ner_files.read_sentences(path, TO_TAG)


@pytest.mark.parametrize("delimiter", ["\t", "|"])
def test_sentences_as_a_column_are_refused(tmp_path, delimiter):
  path = write(tmp_path, "Ann left Rome.\nNothing happened.\n")
  with pytest.raises(InputError, match="line 1: looks like a sentence"):
    ner_files.read_sentences(path, TO_TAG._replace(delimiter=delimiter))


@pytest.mark.parametrize(
  "text, columns",
  [
    ("Ann NNP B-PER\nleft VBD O\n", TO_TAG),
    ("Ann PER\nleft O\n", TO_TAG),
    ("Ann NNP\nleft VBD\n", TO_TAG._replace(delimiter=" ")),
    ("Ann\tNNP\nleft\tVBD\n", TO_TAG),
    ("1 Ann NNP\n2 left VBD\n", TO_TAG._replace(word=2)),
    ("Ann\nleft\n", TO_TAG),
  ],
)
def test_columns_to_tag_are_read(tmp_path, text, columns):
  assert words_of(write(tmp_path, text), columns) == [["Ann", "left"]]


@pytest.mark.parametrize(
  "words", [["http://a.b/c?d=e"], ["北京"], ["。"], ["3,5"]]
)
def test_words_with_punctuation_are_read(tmp_path, words):
  assert words_of(write(tmp_path, "\n".join(words)), TO_TAG) == [words]


@pytest.mark.parametrize(
  "comment", ["# text = Ann left", "# sent_id = 1", "# newdoc", "#id = 2"]
)
def test_comments_are_refused(tmp_path, comment):
  path = write(tmp_path, f"{comment}\n1\tAnn\tO\n")
  with pytest.raises(InputError, match="line 1: is a comment"):
    ner_files.read_sentences(path, Columns(word=2))


def test_a_hash_is_a_word(tmp_path):
  path = write(tmp_path, "#\tO\n#new\tO\n")
  assert words_of(path, Columns()) == [["#", "#new"]]


@pytest.mark.parametrize(
  "text",
  ['{"tokens": ["a"], "tags": ["O"]}\n', '[{"text": "a b"}]\n', "[\n{\n}\n]\n"],
)
def test_json_is_not_read_as_columns(tmp_path, text):
  with pytest.raises(InputError, match=r"data\.json: is JSON"):
    ner_files.read_sentences(write(tmp_path, text, "data.json"), TO_TAG)


# Keys of JSON


@pytest.mark.parametrize(
  "row, message",
  [
    (
      {"id": 1, "tokens": ["a"], "ner_tags": ["O"]},
      'has no "tags", its keys are: "id", "tokens", "ner_tags"',
    ),
    (
      {"text": "a", "label": [[0, 1, "X"]]},
      'no "entities", .* "text", "label"',
    ),
    ({"text": "a", "entities": None}, 'no "entities"'),
    ({"text": "a", "entities": 3}, '"entities" is not a list'),
    ({"words": ["a"], "tags": ["O"]}, 'its keys are: "words", "tags"'),
    ({}, "its keys are: none"),
    (
      {"tokens": ["a"], "tags": [3]},
      '"tags" is not a list of strings: it has 3',
    ),
    ({"tokens": [1], "tags": ["O"]}, '"tokens" is not a list of strings'),
    ({"tokens": ["a"], "tags": []}, "1 tokens, but 0 tags"),
    ({"text": "a", "entities": [[0, 1, "X"]]}, "needs label, start and end"),
    (
      {
        "text": "a",
        "entities": [{"start_offset": 0, "end_offset": 1, "label": "X"}],
      },
      "needs label, start and end",
    ),
    ({"text": "\ud83d!", "entities": []}, r"'\\ud83d' is half of a character"),
    ({"tokens": ["\ude00"], "tags": ["O"]}, "half of a character"),
  ],
)
def test_a_row_without_its_annotation_is_refused(tmp_path, row, message):
  path = write(tmp_path, json.dumps(row), "data.jsonl")
  with pytest.raises(InputError, match=f"line 1: .*{message}"):
    ner_files.read_sentences(path, Columns())


@pytest.mark.parametrize("columns", [Columns(), TO_TAG])
def test_a_row_without_words_is_a_sentence(tmp_path, columns):
  rows = [
    {"tokens": [], "tags": []},
    {"tokens": ["a"], "tags": ["O"]},
    {"text": "", "entities": []},
  ]
  path = write(tmp_path, "\n".join(map(json.dumps, rows)), "data.jsonl")
  assert words_of(path, columns) == [[], ["a"], []]


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
  read = ner_files.read_sentences(str(source), TO_TAG)
  tags = [["S-X"] * len(words) for words in sentences]
  ner_decoding.write_predictions(
    str(path), read, [(row, [1.0] * len(row)) for row in tags]
  )
  table = path.with_suffix(".conll").read_bytes().decode()
  assert len(table.splitlines()) == sum(len(row) + 1 for row in tags)
  again = ner_files.read_sentences(str(path) + ".conll", Columns())
  assert [s.tags for s in again] == tags
  spaced = str.maketrans(dict.fromkeys("\t\n\r\v\x1c\x85\u2028", " "))
  assert [s.words for s in again] == [
    [word.translate(spaced) for word in words] for words in sentences
  ]
  with_text = ner_files.read_sentences(str(path) + ".jsonl", TO_TAG)
  assert [s.text for s in with_text] == [" ".join(words) for words in sentences]
