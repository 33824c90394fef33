"""Tests of the inputs of run_ner.py."""

import pytest
from parametrize import parametrize
from refused import assert_refused

from bertlib.cli import option
from bertlib.tasks.ner import ner, ner_files, ner_inputs
from bertlib.tasks.ner.settings import NerSettings

pytestmark = pytest.mark.unit
ESCAPES = {r"\t": "\t", r"\x02": "\x02", r"\\": "\\"}


def columns(**flags):
  return ner_files.columns_of(option.make(NerSettings, **flags))


@parametrize("text", *ESCAPES, "|", "·", "｜", "、 ", None)
def test_a_delimiter_may_be_any_characters_and_escapes(text):
  assert columns(delimiter=text).delimiter == ESCAPES.get(text, text)


@parametrize("text", "\\", r"\x0")
def test_an_incomplete_escape_sequence_is_refused(text):
  assert_refused("--delimiter=", columns, delimiter=text)


def tagged(*rows):
  words = [row.lower().split() for row in rows]
  return [ner.from_words(w, r.split(), "line 1") for w, r in zip(words, rows)]


@parametrize(
  "rows, message",
  (["B-X I-X O"], None),
  (["I-X B-X O I-X", "I-X"], "f.conll: tags are in IOB1"),
  (["I-X O", "B-X I-X"], "f.conll: 1 tags are invalid in BIO"),
  (["B-X E-X S-X"], None),
  (["X X O"], None),
)
def test_tags_are_repaired_and_counted(caplog, rows, message):
  settings = option.make(NerSettings, train_file="f.conll")
  sentences = tagged(*rows)
  with caplog.at_level("INFO", "absl"):
    arguments = settings, "train_file", sentences, "BIO", ["O", "B-X", "I-X"]
    repaired = ner_inputs.normalize_tags(*arguments)
  assert all(tags[0] == "B-X" for _, tags, *_ in repaired)
  found = [m.partition(":")[0] for m in caplog.messages]
  assert found == ([message.partition(":")[0]] if message else [])
  assert message is None or message in caplog.text


def test_types_in_two_forms_are_reported(caplog):
  settings = option.make(NerSettings, train_file="f.conll")
  labels = ner_inputs.find_labels(settings, tagged("B-Per I-Per O B-PER"))
  assert labels == ["O", "B-PER", "B-Per", "I-PER", "I-Per"]
  assert "written in two ways: 'PER' and 'Per'. " in caplog.text


def test_labels_that_are_bare_classes_are_types():
  settings = option.make(NerSettings, dev_file="f.conll")
  sentences, labels = tagged("B-X I-X O"), ["O", "X"]
  arguments = settings, "dev_file", sentences, "", labels
  (sentence,) = ner_inputs.normalize_tags(*arguments)
  assert sentence.tags == ["X", "X", "O"]
