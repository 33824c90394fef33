"""Tests of vocabularies: checks, comparison and tokenizers."""

import pytest
import reference_data
import tiny_model

import tokenization
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
  ("name", "cased"),
  [("uncased", 0), ("chinese", 0), ("cased", 1), ("multi_cased", 1)],
)
def test_published_vocabularies_pass_with_their_casing(name, cased, caplog):
  path = reference_data.vocab(name)
  vocab = tokenization.load_vocab(path)
  vocabulary.check(path, vocab, len(vocab))
  assert not caplog.messages
  assert vocabulary.is_cased(vocab) == cased


def write(path, *entries, end="\n"):
  path.write_bytes("".join(entry + end for entry in entries).encode())
  return str(path)


def test_line_ends_and_white_space_do_not_matter(tmp_path):
  path = write(tmp_path / "vocab.txt", "a", "b ", end="\r\n")
  other = write(tmp_path / "other.txt", "a", "b")
  assert not vocabulary.difference(path, other)


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
def test_words_may_replace_unused_entries(tmp_path, entries, is_same):
  path = write(tmp_path / "vocab.txt", *entries)
  other = write(tmp_path / "other.txt", "[unused0]", "a", "b")
  different = vocabulary.difference(path, other, ignore_unused=True)
  assert (not different) == is_same


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


@pytest.mark.parametrize(
  ("entries", "cased"),
  [
    (["[UNK]", "##a", "word", "3D"], False),
    (["[UNK]", "a", "##Word"], True),
    (["слово", "Слово"], True),
    (["字", "語"], False),
    (["word"] * 99 + ["DNA"], False),
    (["word"] * 98 + ["DNA"], True),
  ],
)
def test_a_vocabulary_is_cased_if_over_1_percent_of_words_are(entries, cased):
  assert vocabulary.is_cased(entries) == cased


@pytest.mark.parametrize("name", ["cased", "multi_cased"])
def test_a_cased_vocabulary_is_refused_for_lower_cased_text(name):
  path = reference_data.vocab(name)
  with pytest.raises(InputError, match=r"is cased.*--do_lower_case=False"):
    vocabulary.load_tokenizer(path, True)
  vocabulary.load_tokenizer(path, False)


@pytest.mark.parametrize("name", ["uncased", "chinese"])
def test_an_uncased_vocabulary_for_cased_text_logs_a_warning(name, caplog):
  path = reference_data.vocab(name)
  vocabulary.load_tokenizer(path, True)
  assert caplog.messages == []
  assert vocabulary.load_tokenizer(path, False).tokenize("Ab") == ["[UNK]"]
  (line,) = caplog.messages
  assert line.startswith(f"{path}: is uncased")
  assert "--do_lower_case=True" in line


def test_a_published_checkpoint_is_recognized_by_its_folder(tmp_path):
  path = write(tmp_path / "vocab.txt", "[UNK]", "[CLS]", "[SEP]")
  checkpoint = "x/cased_L-12_H-768_A-12/bert_model.ckpt"
  with pytest.raises(InputError, match="--do_lower_case=False"):
    vocabulary.load_tokenizer(path, True, init_checkpoint=checkpoint)
  vocabulary.load_tokenizer(path, False, init_checkpoint=checkpoint)
