"""Tests of vocabularies: checks, comparison and tokenizers."""

import pytest
import reference_data
import tiny_model
from parametrize import parametrize
from refused import assert_refused

import tokenization
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
  ("name", "cased"),
  [("uncased", 0), ("chinese", 0), ("cased", 1), ("multi_cased", 1)],
)
def test_published_vocabularies_are_for_text_in_their_case(name, cased, caplog):
  path = reference_data.vocab(name)
  vocab = tokenization.load_vocab(path)
  vocabulary.check(path, vocab, len(vocab))
  assert vocabulary.is_cased(vocab) == cased
  vocabulary.load_tokenizer(path, not cased)
  assert not caplog.messages
  if cased:
    message = r"is cased.*--do_lower_case=False"
    assert_refused(message, vocabulary.load_tokenizer, path, True)
  else:
    assert vocabulary.load_tokenizer(path, False).tokenize("Ab") == ["[UNK]"]
    (line,) = caplog.messages
    assert line.startswith(f"{path}: is uncased")
    assert "--do_lower_case=True" in line


def write(path, *entries, end="\n"):
  path.write_bytes("".join(entry + end for entry in entries).encode())
  return str(path)


def test_line_ends_and_white_space_do_not_matter(tmp_path):
  path = write(tmp_path / "vocab.txt", "a", "b ", end="\r\n")
  other = write(tmp_path / "other.txt", "a", "b")
  assert not vocabulary.difference(path, other)


@parametrize(
  "entries, is_same",
  (["[unused0]", "a", "b"], True),
  (["word", "a", "b"], True),
  (["word", "a", "b", "more"], True),
  (["word", "b", "a"], False),
  (["word", "a"], False),
)
def test_words_may_replace_unused_entries(tmp_path, entries, is_same):
  path = write(tmp_path / "vocab.txt", *entries)
  other = write(tmp_path / "other.txt", "[unused0]", "a", "b")
  assert (not vocabulary.difference(path, other, ignore_unused=True)) == is_same


def test_a_vocabulary_much_smaller_than_the_table_warns(tmp_path, caplog):
  path = write(tmp_path / "vocab.txt", *tiny_model.SPECIAL)
  vocab = tokenization.load_vocab(path)
  vocabulary.check(path, vocab, 100)
  assert not caplog.messages
  vocabulary.check(path, vocab, 30522)
  assert "5 entries" in caplog.text and "30522" in caplog.text


def test_cr_ends_lines_only_in_a_vocabulary_without_lf(tmp_path):
  path = tmp_path / "vocab.txt"
  contents = {b"[PAD]\ra\r": 2, b"[PAD]\ra\rb": 3, b"a\rb\n": 1}
  for content, num_entries in contents.items():
    path.write_bytes(content)
    assert len(tokenization.load_vocab(path)) == num_entries
    assert vocabulary.load(str(path)) == tokenization.load_vocab(path)


@parametrize(
  "entries, cased",
  (["[UNK]", "##a", "word", "3D"], False),
  (["[UNK]", "a", "##Word"], True),
  (["слово", "Слово"], True),
  (["字", "語"], False),
  (["word"] * 99 + ["DNA"], False),
  (["word"] * 98 + ["DNA"], True),
)
def test_a_vocabulary_is_cased_if_over_1_percent_of_words_are(entries, cased):
  assert vocabulary.is_cased(entries) == cased


def test_a_published_checkpoint_is_recognized_by_its_folder(tmp_path):
  path = write(tmp_path / "vocab.txt", "[UNK]", "[CLS]", "[SEP]")
  checkpoint = "x/cased_L-12_H-768_A-12/bert_model.ckpt"
  with pytest.raises(InputError, match="--do_lower_case=False"):
    vocabulary.load_tokenizer(path, True, init_checkpoint=checkpoint)
  vocabulary.load_tokenizer(path, False, init_checkpoint=checkpoint)
