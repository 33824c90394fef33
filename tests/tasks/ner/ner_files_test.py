"""Tests of files of tagged sentences."""

import json
import re

import pytest
import reference_data
from hypothesis import given
from hypothesis import strategies as st
from parametrize import parametrize
from refused import assert_refused

from bertlib.cli.errors import InputError
from bertlib.tasks.ner import ner, ner_decoding, ner_files
from bertlib.tasks.ner.ner_files import Columns

pytestmark = pytest.mark.unit


TO_TAG = Columns(needs_tags=False)


def write(tmp_path, text, name="data.conll"):
  path = tmp_path / name
  path.write_bytes(text.encode())
  return str(path)


@parametrize(
  "text",
  "Ann\tB-PER\nleft\tO\n\nRome\tB-LOC\n",
  "Ann\tB-PER\nleft\tO\n\nRome\tB-LOC\n\n\n",
  "Ann\tB-PER\nleft\tO\n\nRome\tB-LOC",
  "Ann\tB-PER\r\nleft\tO\r\n\r\nRome\tB-LOC\r\n\r\n",
  "\ufeffAnn\tB-PER\nleft\tO\n\t\nRome\tB-LOC\n",
  "-DOCSTART- -X-\n\nAnn B-PER\nleft O\n\nRome B-LOC\n",
  "Ann  B-PER\nleft   O\n\nRome  B-LOC\n",
)
def test_columns_are_read_with_any_line_ends_and_blank_lines(tmp_path, text):
  first, second = ner_files.read_sentences(write(tmp_path, text), Columns())
  assert first.words == ["Ann", "left"]
  assert first.tags == ["B-PER", "O"]
  assert second.words == ["Rome"]
  assert second.tags == ["B-LOC"]
  assert [first.text[a:b] for a, b in first.offsets] == first.words


def test_columns_and_delimiters_may_vary(tmp_path):
  path = write(tmp_path, "1|NNP|New York|B-LOC|x\n2|VB|is|O|y\n")
  (sentence,) = ner_files.read_sentences(path, Columns(3, -2, "|"))
  assert sentence.words == ["New York", "is"]
  assert sentence.tags == ["B-LOC", "O"]


@parametrize(
  "text, columns, fault",
  ("Ann\tO\n\nleft\tO\nRome\n", Columns(), "line 4: has 1 columns"),
  ("Ann\tO\n\nleft\tVB\tO\n", Columns(), "line 3: has 3 columns"),
  ("Ann\tO\n", Columns(tag=3), "line 1: "),
  ("", Columns(), "has no sentences"),
  ("\n\r\n", Columns(), "has no sentences"),
  ("-DOCSTART- O\n", Columns(), "has no sentences"),
  ("Ann left .\nBob met .\n", TO_TAG, "line 1: looks like a sentence"),
  ("Ann left .\nBob met .\nAnn met Bob .\n", TO_TAG, "line 1: looks like"),
  ("-DOCSTART- -X- O\n\nAnn left .\n", TO_TAG, "line 3: looks like"),
  ("我爱北京，你呢。\n好\n", TO_TAG, "line 1: looks like a sentence"),
  ("今天天气很好。\n", TO_TAG, "line 1: looks like a sentence"),
  ("Ann left.\nNo.\n", TO_TAG._replace(delimiter="\t"), "line 1: looks like"),
  ("Ann left.\nNo.\n", TO_TAG._replace(delimiter="|"), "line 1: looks like"),
  ("Ann,B-PER\nleft,O\n\nBob,B-PER\n", TO_TAG, "such as Ann,B-PER"),
  ("OK\nYes\n#MeToo is big\n", TO_TAG, "line 3: looks like a sentence"),
)
def test_what_is_not_words_with_tags_is_refused(tmp_path, text, columns, fault):
  path = write(tmp_path, text)
  with pytest.raises(InputError, match=f"^{re.escape(path)}.*{fault}"):
    ner_files.read_sentences(path, columns)


@parametrize(
  "name, content, fault",
  ("none", None, "cannot be read"),
  ("a.csv", "id,text\n1,Ann left Rome.\n2,Bob met Ann\n", "is a table"),
  ("a.json", '[{"text": "a b"}]\n', r"a\.json: is JSON"),
  ("a.json", "[\n{\n}\n]\n", r"a\.json: is JSON"),
)
def test_no_file_or_another_format_is_refused(tmp_path, name, content, fault):
  if content:
    write(tmp_path, content, name)
  assert_refused(fault, ner_files.read_sentences, str(tmp_path / name), TO_TAG)


def test_json_lines_with_tokens(tmp_path):
  rows = '{"tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}\n\n'
  rows += '{"tokens": ["x"], "tags": ["O"]}\n'
  path = write(tmp_path, rows, "data.jsonl")
  first, second = ner_files.read_sentences(path, Columns())
  assert first.tags == ["B-PER", "O"]
  assert second.words == ["x"]
  assert ner_files.read_sentences(path, TO_TAG)[0].tags is None


def test_json_lines_with_text_and_entities(tmp_path):
  spans = [{"start": 4, "end": 7, "label": "PER"}]
  spans += [{"start": 19, "end": 23, "label": "LOC"}]
  row = {"text": "Dr. Ann-Marie left Rome.", "entities": spans}
  path = write(tmp_path, json.dumps(row), "data.jsonl")
  (sentence,) = ner_files.read_sentences(path, Columns())
  assert " ".join(sentence.words) == "Dr . Ann - Marie left Rome ."
  assert " ".join(sentence.tags) == "O O B-PER O O O B-LOC O"


@pytest.mark.needs_data
@parametrize(
  "name, num_sentences, num_entities",
  ("wnut17/train.conll", 3394, 1975),
  ("wnut17/test.conll", 1287, 1079),
  ("ncbi-disease/train.tsv", 5432, 5145),
)
def test_published_data_sets_are_read_whole(name, num_sentences, num_entities):
  path = str(reference_data.data(f"ner/{name}"))
  sentences = ner_files.read_sentences(path, Columns())
  assert len(sentences) == num_sentences
  found = sum(len(ner.tags_to_entities(s.tags)) for s in sentences)
  assert found == num_entities


def words_of(path, columns):
  return [s.words for s in ner_files.read_sentences(path, columns)]


@parametrize(
  "text, tags, logged",
  ("word tag\nParis B-LOC\n", "B-LOC", "line 1: is read as the names of"),
  (
    "Ann PER_B\nLee PER_I\nleft O\nRome LOC_B\n",
    "B-PER I-PER O B-LOC",
    "PER_B is read as B-PER, others likewise; 2 entities",
  ),
  ("Ann PER\nleft O\nAcme ORG\n", "PER O ORG", "2 entities; seqeval finds 1"),
  ("Ann NN\nleft VB\n", "NN VB", "no word is tagged O"),
  ("Ann B-PER\nleft O\nRome S-LOC\n", "B-PER O S-LOC", None),
)
def test_unusual_tags_are_reported(tmp_path, caplog, text, tags, logged):
  with caplog.at_level("INFO", "absl"):
    (sentence,) = ner_files.read_sentences(write(tmp_path, text), Columns())
  assert sentence.tags == tags.split()
  assert logged in caplog.text if logged else not caplog.messages


@parametrize(
  "texts",
  ["Ann left Rome.", "Bob met Ann Lee.", "Nothing happened."],
  ["Ann", "Ann left.", "Ann, Bob met Cy."],
)
def test_lines_of_other_numbers_of_words_are_texts(tmp_path, texts, log):
  path = write(tmp_path, "\n\n".join(texts))
  sentences = ner_files.read_sentences(path, TO_TAG)
  assert [s.words for s in sentences] == [ner.from_text(t).words for t in texts]
  assert [s.text for s in sentences] == texts
  assert log == [f"{path}: each line is read as a text, not as columns"]


# Files of which the first line may be the names of columns.
FIRST_LINES = [
  ("Hello\tO\nParis is\tB-LOC\n", [["Hello", "Paris is"]]),
  ("text\tO\nParis\tB-LOC\n", [["text", "Paris"]]),
  ("Paris\tLOC\nRome\tLOC\n", [["Paris", "Rome"]]),
  ("text\tLabels\nParis\tB-LOC\n", [["Paris"]]),
  ("word\ttag\nParis\tB-LOC\n", [["Paris"]]),
  ("tag\tO\nParis\tB-LOC\n", [["tag", "Paris"]]),
]
ANN_LEFT = [["Ann", "left"]]
# conllu 6.0 reads the same words.
COMMENTED = [
  f"#{comment}\n1\t#\tO\n2\tAnn\tB-PER\n"
  for comment in (" newdoc id = d", " text = Ann", "id = 2", " a b", " newpar")
]


@parametrize(
  "text, columns, words",
  *(
    (text, Columns(needs_tags=needs_tags), words)
    for text, words in FIRST_LINES
    for needs_tags in (True, False)
  ),
  ("Ann NNP B-PER\nleft VBD O\n", TO_TAG, ANN_LEFT),
  ("Ann PER\nleft O\n", TO_TAG, ANN_LEFT),
  ("Ann NNP\nleft VBD\n", TO_TAG._replace(delimiter=" "), ANN_LEFT),
  ("Ann\tNNP\nleft\tVBD\n", TO_TAG, ANN_LEFT),
  ("1 Ann NNP\n2 left VBD\n", TO_TAG._replace(word=2), ANN_LEFT),
  ("Ann\nleft\n", TO_TAG, ANN_LEFT),
  ("http://a.b/c?d=e", TO_TAG, [["http://a.b/c?d=e"]]),
  *((text, TO_TAG, [[text]]) for text in ("北京", "。", "3,5")),
  ("#\tO\n#new\tO\n", Columns(), [["#", "#new"]]),
  *(
    (text, Columns(2, needs_tags=needs_tags), [["#", "Ann"]])
    for text in COMMENTED
    for needs_tags in (True, False)
  ),
  ("# a note\nAnn B-PER\n# a b c\nleft O\n", Columns(), ANN_LEFT),
  ("# text = Ann\nAnn left O\n", Columns(2), [["left"]]),
  ("#begin document (x)\nAnn\nleft\n#end document\n", TO_TAG, ANN_LEFT),
  ("# a note\n#\n#new\nleft\n", TO_TAG, [["#", "#new", "left"]]),
  ("#a\n#b\n", TO_TAG, [["#a", "#b"]]),
  ("# = O\nAnn = O\n", Columns(), [["#", "Ann"]]),
  ("\xa0\tO\nAnn\tO\n", Columns(), [["\xa0", "Ann"]]),
)
def test_words_of_columns_are_read(tmp_path, text, columns, words):
  assert words_of(write(tmp_path, text), columns) == words


def entity(start, end):
  return {"start": start, "end": end, "label": "X"}


def of_abc(*entities):
  return {"text": "abc", "entities": entities}


@parametrize(
  "row, message",
  (of_abc(entity(0, 9)), "is not an entity"),
  (of_abc(entity(2, 2)), "is not an entity"),
  (of_abc(entity(0, 1.5)), "is not an entity"),
  (of_abc({"start": 0, "end": 2}), "is not an entity"),
  (of_abc("X"), "is not an entity"),
  (of_abc({"start_offset": 0, "end_offset": 1, "label": "X"}), "needs label"),
  (of_abc(entity(0, 2), entity(1, 3)), "overlap"),
  ([], ""),
  ({"words": []}, ""),
  ({"text": "a", "entities": None}, 'no "entities"'),
  ({"text": "a", "entities": 3}, '"entities" is not a list'),
  ({}, "its keys are: none"),
  ({"tokens": [1], "tags": ["O"]}, '"tokens" is not a list of strings'),
  ({"tokens": ["a"], "tags": []}, "1 tokens, but 0 tags"),
)
def test_a_row_without_its_annotation_is_refused(tmp_path, row, message):
  path = write(tmp_path, json.dumps(row), "data.jsonl")
  with pytest.raises(InputError, match=f"line 1: .*{message}"):
    ner_files.read_sentences(path, Columns())


@parametrize("columns", Columns(), TO_TAG)
def test_a_row_without_words_is_a_sentence(tmp_path, columns):
  rows = [{"tokens": [], "tags": []}, {"tokens": ["a"], "tags": ["O"]}]
  rows += [{"text": "", "entities": []}]
  path = write(tmp_path, "\n".join(map(json.dumps, rows)), "data.jsonl")
  assert words_of(path, columns) == [[], ["a"], []]


WORDS = st.text("aB# \t\n\r\v\x1c\x85\u2028\xa0\u200b我", max_size=4)
SENTENCES = st.lists(WORDS, min_size=1, max_size=5)


@given(st.lists(SENTENCES, min_size=1, max_size=4))
def test_written_predictions_are_read_again(tmp_path_factory, sentences):
  path = tmp_path_factory.mktemp("predictions") / "data"
  rows = "\n".join(json.dumps({"tokens": words}) for words in sentences)
  source = path.with_suffix(".in.jsonl")
  source.write_text(rows)
  read = ner_files.read_sentences(str(source), TO_TAG)
  tags = [["S-X"] * len(words) for words in sentences]
  predicted = [(row, [1.0] * len(row)) for row in tags]
  ner_decoding.write_predictions(str(path), read, predicted)
  table = path.with_suffix(".conll").read_bytes().decode()
  assert len(table.splitlines()) == sum(len(row) + 1 for row in tags)
  again = ner_files.read_sentences(str(path) + ".conll", Columns())
  assert [s.tags for s in again] == tags
  spaced = str.maketrans(dict.fromkeys("\t\n\r\v\x1c\x85\u2028", " "))
  expected = [[word.translate(spaced) for word in row] for row in sentences]
  assert [s.words for s in again] == expected
  with_text = ner_files.read_sentences(str(path) + ".jsonl", TO_TAG)
  assert [s.text for s in with_text] == [" ".join(words) for words in sentences]
