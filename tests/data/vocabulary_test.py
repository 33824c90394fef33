"""Tests of what a vocabulary has to have."""

import pytest
import reference_data
from absl import logging

import tokenization
from bertlib.data import vocabulary

pytestmark = pytest.mark.unit


@pytest.fixture
def warnings(monkeypatch):
  lines = []
  monkeypatch.setattr(
    logging, "warning", lambda message, *values: lines.append(message % values)
  )
  return lines


@pytest.mark.parametrize("name", ["uncased", "cased", "chinese", "multi_cased"])
def test_published_vocabularies_pass_without_a_warning(name, warnings):
  path = reference_data.vocab(name)
  vocab = tokenization.load_vocab(path)
  vocabulary.check(path, vocab, len(vocab))
  assert not warnings


def write(path, *entries, end="\n"):
  path.write_bytes("".join(entry + end for entry in entries).encode())
  return str(path)


def test_line_ends_and_white_space_are_no_difference(tmp_path):
  ours = write(tmp_path / "ours.txt", "a", "b ", end="\r\n")
  assert not vocabulary.difference(
    ours, write(tmp_path / "other.txt", "a", "b")
  )


@pytest.mark.parametrize(
  ("entries", "is_same"),
  [
    (["[unused0]", "a", "b"], True),
    (["word", "a", "b"], True),
    (["word", "a", "b", "more"], True),
    (["word", "b", "a"], False),
    (["word", "a"], False),
  ],
)
def test_words_may_take_unused_places(tmp_path, entries, is_same):
  ours = write(tmp_path / "ours.txt", *entries)
  other = write(tmp_path / "other.txt", "[unused0]", "a", "b")
  different = vocabulary.difference(ours, other, ignore_unused=True)
  assert (not different) == is_same


def test_a_vocabulary_much_shorter_than_the_table_is_pointed_out(
  tmp_path, warnings
):
  entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  path = write(tmp_path / "vocab.txt", *entries)
  vocab = tokenization.load_vocab(path)
  vocabulary.check(path, vocab, 100)
  assert not warnings
  vocabulary.check(path, vocab, 30522)
  assert "5 entries" in warnings[0]
  assert "30522" in warnings[0]
