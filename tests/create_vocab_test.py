"""Tests of learning and extending vocabularies."""

import collections
import dataclasses
import gzip
import json
import os
import sys

import commands
import numpy as np
import pytest
import reference_data
import run_outputs
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import create_vocab
import tokenization
from bertlib.checkpoints import checkpoint_files
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.exchange import rewrite

pytestmark = pytest.mark.unit

SAMPLE = os.path.join(commands.ROOT, "sample_text.txt")

TEXT = st.lists(
  st.sampled_from(["the", "The", "there", "here,", "ab", "abab", "élan", "ΑΣ"])
  | st.sampled_from(["[MASK]", "##ab", "e\u0301", "  ", "\n", "中人", "한국"])
  | st.sampled_from("é≮İ#,.’-\t\u00a0\u2028\0\x0b\x1c\x85\u200d\ufffd\ufeff")
  | st.text(max_size=4),
  max_size=30,
).map(" ".join)
WORDS = st.dictionaries(
  st.text("abc", min_size=1, max_size=6), st.integers(1, 9), min_size=1
)


def write(path, text):
  path.write_bytes(text.encode())
  return str(path)


def read_lines(path):
  with open(path, encoding="utf-8", newline="") as file:
    return file.read().split("\n")[:-1]


def learn(text, vocab_size=200, do_lower_case=True, **options):
  words = create_vocab.count_words(text.splitlines(), do_lower_case)
  return create_vocab.learn_vocab(words, vocab_size, **options)


def full_tokenizer(folder, entries, do_lower_case=True):
  path = write(folder / "vocab.txt", "".join(f"{e}\n" for e in entries))
  return tokenization.FullTokenizer(path, do_lower_case)


@given(st.lists(TEXT), st.booleans(), st.integers(1, 5))
def test_words_are_split_by_basic_tokenizer(lines, lower_case, max_chunks):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(create_vocab, "_MAX_CHUNKS", max_chunks)
    words = create_vocab.count_words(lines, lower_case)
  tokenizer = tokenization.BasicTokenizer(lower_case)
  assert words == collections.Counter(
    word for line in lines for word in tokenizer.tokenize(line)
  )


def test_files_are_read_in_their_order_and_encoding(tmp_path):
  paths = [str(tmp_path / "b.gz"), str(tmp_path / "a")]
  write(tmp_path / "a", "first\nlast")
  (tmp_path / "b.gz").write_bytes(gzip.compress(b"\xe9\r\n\n"))
  encoding = create_vocab.Encoding("latin-1")
  lines = ["é\r", "", "first", "last"]
  assert list(create_vocab.read_text(paths, encoding)) == lines


# Learning


def naive_vocab(words, vocab_size, min_frequency):
  """Joins the most frequent pair, by the formula; quadratic."""
  chars = collections.Counter()
  for word, count in words.items():
    for char in word:
      chars[char] += count
  chars = sorted(c for c, count in chars.items() if count >= min_frequency)
  entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *chars]
  entries += [f"##{char}" for char in chars]
  cut = {
    word: [word[0], *(f"##{char}" for char in word[1:])]
    for word in words
    if set(word) <= set(chars)
  }
  while len(entries) < vocab_size:
    pairs = collections.Counter()
    for word, pieces in cut.items():
      for pair in zip(pieces, pieces[1:]):
        pairs[pair] += words[word]
    if not pairs or max(pairs.values()) < min_frequency:
      break
    first, second = min(
      pairs, key=lambda p: (-pairs[p], entries.index(p[0]), entries.index(p[1]))
    )
    joined = first + second[2:]
    if joined not in entries:
      entries.append(joined)
    for pieces in cut.values():
      index = 0
      while index < len(pieces) - 1:
        if pieces[index : index + 2] == [first, second]:
          pieces[index : index + 2] = [joined]
        index += 1
  return entries


@settings(max_examples=200)
@given(WORDS, st.integers(11, 40), st.integers(1, 4))
def test_learned_pieces_equal_the_naive_algorithm(
  words, vocab_size, min_frequency
):
  expected = naive_vocab(words, vocab_size, min_frequency)
  if len(expected) == 5:
    with pytest.raises(InputError, match="no character"):
      create_vocab.learn_vocab(words, vocab_size, min_frequency)
  else:
    learned = create_vocab.learn_vocab(words, vocab_size, min_frequency)
    assert learned == expected


@given(TEXT, st.booleans())
def test_every_entry_can_occur_in_text(text, lower_case):
  tokenizer = tokenization.BasicTokenizer(lower_case)
  if not tokenizer.tokenize(text):
    return
  entries = learn(text, 2000, lower_case, min_frequency=1)
  assert len(set(entries)) == len(entries)
  for entry in entries[5:]:
    if entry.startswith("##"):
      assert tokenizer.tokenize(f"a{entry[2:]}") == [f"a{entry[2:]}"]
    else:
      assert tokenizer.tokenize(entry) == [entry]


@given(TEXT, TEXT, st.booleans())
def test_only_words_with_other_characters_are_unknown(text, other, lower_case):
  words = tokenization.BasicTokenizer(lower_case).tokenize(text)
  if not words:
    return
  entries = learn(text, 2000, lower_case, min_frequency=1)
  cut = tokenization.WordpieceTokenizer(dict.fromkeys(entries)).tokenize
  for word in tokenization.BasicTokenizer(lower_case).tokenize(other):
    # Punctuation is always a word of its own.
    assert (cut(word) == ["[UNK]"]) == (not set(word) <= set("".join(words)))


def test_alphabet_keeps_the_most_frequent_characters():
  entries = learn("aaa bbb cc cc dd", limit_alphabet=3, min_frequency=1)
  assert entries[5:11] == ["a", "b", "c", "##a", "##b", "##c"]
  assert "d" not in "".join(entries[5:])


def test_vocab_size_must_hold_all_characters():
  entries = learn("ab 中, ba", 5 + 4 + 2, min_frequency=1)
  assert entries[5:] == [",", "a", "b", "中", "##a", "##b"]
  with pytest.raises(InputError, match=r"--vocab_size=10 .* 5, .* 6\. Give 11"):
    learn("ab 中, ba", 10, min_frequency=1)


def test_counts_too_large_for_the_library_are_divided(monkeypatch):
  words = {"ab": 8, "cd": 11, "ef": 7, "e": 1, "f": 1}
  joined = create_vocab.learn_vocab(words, 40, min_frequency=8)[17:]
  assert joined == ["cd", "ab"]
  monkeypatch.setattr(create_vocab, "_MAX_PAIRS", (8 + 11 + 7) // 3)
  # Divided by 4, the counts are 2, 2 and 1, and the minimum frequency 2.
  joined = create_vocab.learn_vocab(words, 40, min_frequency=8)[17:]
  assert joined == ["ab", "cd"]


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize(
  "name", ["sample", pytest.param("gutenberg", marks=pytest.mark.needs_data)]
)
def test_library_gives_the_same_ids(name, lower_case, tmp_path):
  path = SAMPLE
  if name == "gutenberg":
    path = reference_data.data("text", "gutenberg_sentences.txt.gz")
  lines = list(create_vocab.read_text([path]))[:10000]
  entries = learn("\n".join(lines), 2000, lower_case)
  tokenizer = full_tokenizer(tmp_path, entries, lower_case)
  library = tokenizers.BertWordPieceTokenizer(
    str(tmp_path / "vocab.txt"), lowercase=lower_case
  )
  assert library.get_vocab() == tokenizer.vocab
  encoded = library.encode_batch(lines, add_special_tokens=False)
  assert [e.ids for e in encoded] == [tokenizer.encode(line) for line in lines]


@pytest.mark.process
def test_command_is_deterministic(tmp_path):
  with open(SAMPLE, "rb") as file:
    lines = sorted(file)
  (tmp_path / "1.txt").write_bytes(b"".join(lines[:20]))
  rest = gzip.compress(b"".join(lines[20:]))
  (tmp_path / "2.txt.gz").write_bytes(rest)
  words = create_vocab.count_words(create_vocab.read_text([SAMPLE]), True)
  entries = create_vocab.learn_vocab(words, 250)
  for name, text in (("a", SAMPLE), ("c", f"{tmp_path}/*.*")):
    files = f"--input_file={text}", f"--output_file={tmp_path / name}"
    done = commands.succeed(
      "create_vocab.py", *files, "--vocab_size=250", own_process=True
    )
    assert read_lines(tmp_path / name) == entries
  assert f"{tmp_path / 'c'}: 250 entries" in done.stderr
  split = tokenization.WordpieceTokenizer(dict.fromkeys(entries)).tokenize
  unknown = sum(n for word, n in words.items() if split(word) == ["[UNK]"])
  share = f"{100 * unknown / sum(words.values()):.3f}%"
  assert f"{share} of the words" in done.stderr


def test_command_warns_if_there_are_fewer_pieces(tmp_path):
  """The folder is made."""
  write(tmp_path / "text", "ab ab")
  flags = "--input_file=text", "--output_file=new/vocab.txt"
  done = commands.succeed("create_vocab.py", *flags, cwd=tmp_path)
  entries = read_lines(tmp_path / "new" / "vocab.txt")
  assert entries[5:] == ["a", "b", "##a", "##b", "ab"]
  assert "vocab_size must be 10, not 30522" in done.stderr


@pytest.mark.parametrize("module", ["tokenizers", "tokenizers.trainers"])
def test_missing_extra_is_named(monkeypatch, module):
  """Release candidates of 1.0 have no trainers."""
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(InputError, match=r"pip install 'tokenizers<1'"):
    create_vocab.learn_vocab({"a": 2}, 10)


@pytest.mark.parametrize(
  ("flags", "expected"),
  [
    (["--input_file=no.txt"], "no.txt: no such file"),
    (["--input_file=empty"], "empty: has no words"),
    (["--input_file=cut.gz"], "cut.gz: "),
    (["--input_file=text", "--grow"], "--grow goes with --add_words"),
    (["--input_file=text", "--add_words=text"], "either --input_file"),
    (["--add_words=text", "--vocab_size=9"], "goes with --input_file"),
    (["--add_words=text", "--vocab_file=text"], "has no [UNK], [CLS], [SEP]"),
    (["--add_words=empty", "--vocab_file=vocab"], "empty: has no words"),
    (["--add_words=text", "--vocab_file=twice"], "twice: has an entry twice"),
    (["--add_words=text", "--vocab_file=cased"], "--do_lower_case=False"),
    (
      ["--add_words=text", "--vocab_file=vocab", "--init_checkpoint=c"],
      "give --output_checkpoint, --bert_config_file too",
    ),
  ],
)
def test_bad_input_prints_one_line(flags, expected, tmp_path):
  special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n"
  write(tmp_path / "text", "word\nword\nother\n")
  write(tmp_path / "empty", " \n\n\0\n")
  (tmp_path / "cut.gz").write_bytes(gzip.compress(b"word" * 99)[:-9])
  write(tmp_path / "vocab", f"{special}[unused0]\n")
  write(tmp_path / "twice", f"{special}a\na\n")
  write(tmp_path / "cased", f"{special}a\nB\n")
  error = commands.fail(
    "create_vocab.py", "--output_file=out", *flags, cwd=tmp_path
  )
  assert expected in error
  assert not (tmp_path / "out").exists()


# Adding words

ENTRIES = "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] [unused7] [unusedX]"
ENTRIES += " a b ##a ##b ab the ##rapy t ##h ##e"
ENTRIES = ENTRIES.split(" ")
IDS = {entry: index for index, entry in enumerate(ENTRIES)}
NEW_WORDS = st.lists(st.text("abthe", min_size=1, max_size=5), unique=True)


@given(NEW_WORDS)
def test_added_words_keep_other_ids_and_are_one_piece(tmp_path_factory, words):
  entries, pieces = create_vocab.insert_words(IDS, words, grow=True)
  for entry, index in IDS.items():
    assert entries[index] == entry or entry in ("[unused0]", "[unused7]")
  added = [word for word in words if word not in IDS]
  assert [entries[index] for index in pieces] == added
  indices = [1, 6, *range(len(ENTRIES), len(entries))]
  assert list(pieces) == indices[: len(pieces)]
  folder = tmp_path_factory.mktemp("added")
  before = full_tokenizer(folder, ENTRIES)
  after = full_tokenizer(folder, entries)
  for word in words:
    assert after.tokenize(word) == [word]
  for index, ids in pieces.items():
    assert ids == before.encode(entries[index])


def test_words_beyond_the_unused_entries_need_grow():
  words = ["ba", "the", "bb", "aa"]
  with pytest.raises(InputError, match=r"3 words are new.* 2 \[unusedN\] .* 1"):
    create_vocab.insert_words(IDS, words, grow=False)
  entries, _ = create_vocab.insert_words(IDS, words[:3], grow=False)
  assert [entries[1], entries[6]] == ["ba", "bb"]
  assert len(entries) == len(ENTRIES)


def test_words_are_normalized():
  lines = ["Élan ", "elan", "", "COVID-19", "new york", "x" * 201, "\u0301"]
  assert create_vocab.normalize_words(lines, True) == (["elan"], lines[3:])
  words, _ = create_vocab.normalize_words(lines, False)
  assert words == ["Élan", "elan", "\u0301"]


# Growing a checkpoint

HIDDEN = 3
TABLE = "bert/embeddings/word_embeddings"
# Of an ELECTRA with disentangled gradients.
TABLES = [
  "generator/embeddings/word_embeddings",
  "bert/embeddings_added/word_embeddings",
]
BIAS = "cls/predictions/output_bias"


def random_tensors(vocab_size, tables):
  rng = np.random.default_rng(0)
  shapes = dict.fromkeys(tables, (vocab_size, HIDDEN)) | {BIAS: (vocab_size,)}
  shapes["bert/embeddings/position_embeddings"] = (vocab_size, HIDDEN)
  shapes["output_bias"] = (vocab_size,)
  tensors = {
    name + slot: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
    for slot in ("", "/adam_m", "/adam_v")
  }
  return {**tensors, "global_step": np.array(7, np.int64)}


def make_model(folder, vocab_size, tables=(TABLE,)):
  """Writes a checkpoint, a config and a vocabulary; returns the tensors."""
  tensors = random_tensors(vocab_size, tables)
  (folder / "new").mkdir()  # for outputs
  checkpoint_files.write_variables(str(folder / "model.ckpt"), tensors)
  config = {"hidden_size": HIDDEN, "vocab_size": vocab_size, "note": "é"}
  write(folder / "config.json", json.dumps(config))
  write(folder / "vocab.txt", "".join(f"{entry}\n" for entry in ENTRIES))
  return tensors


def grow_flags(folder):
  """Command line that adds the words of `words.txt` to the model."""
  return [
    f"--add_words={folder}/words.txt",
    f"--vocab_file={folder}/vocab.txt",
    f"--output_file={folder}/new_vocab.txt",
    "--grow",
    f"--init_checkpoint={folder}/model.ckpt",
    f"--output_checkpoint={folder}/new/model.ckpt",
    f"--bert_config_file={folder}/config.json",
  ]


def expected_tensors(tensors, rows, vocab_size):
  """Expected tensors after adding `rows` (id -> ids of pieces)."""
  expected = dict(tensors)
  for weight in {TABLE, *TABLES, BIAS} & tensors.keys():
    for name in (weight, f"{weight}/adam_m", f"{weight}/adam_v"):
      old = tensors[name]
      expected[name] = np.resize(old, (vocab_size, *old.shape[1:]))
      expected[name][len(old) :] = 0
      for index, ids in rows.items():
        mean = np.mean(old[ids], axis=0, dtype=np.float64)
        expected[name][index] = mean if name == weight else 0
  return expected


@pytest.mark.parametrize(
  "num_spare, tables",  # rows beyond the last entry
  [(0, [TABLE]), (2, [TABLE]), (0, TABLES)],
)
def test_command_grows_a_model(tmp_path, num_spare, tables):
  tensors = make_model(tmp_path, len(ENTRIES) + num_spare, tables)
  write(tmp_path / "words.txt", "Abba\nthe\ntherapy\nnot one\nquay\nabba\n")
  done = commands.succeed("create_vocab.py", *grow_flags(f"file://{tmp_path}"))
  entries = list(ENTRIES)
  entries[1], entries[6] = "abba", "therapy"
  assert read_lines(tmp_path / "new_vocab.txt") == [*entries, "quay"]
  config = json.loads((tmp_path / "new/bert_config.json").read_text("utf-8"))
  vocab_size = max(19, 18 + num_spare)
  assert config == {"hidden_size": 3, "vocab_size": vocab_size, "note": "é"}
  rows = {
    1: [IDS["ab"], IDS["##b"], IDS["##a"]],
    6: [IDS["the"], IDS["##rapy"]],
    18: [IDS["[UNK]"]],
  }
  run_outputs.assert_same_bits(
    rewrite.read_with_rows(str(tmp_path / "new/model.ckpt"), vocab_size, {}, 0),
    expected_tensors(tensors, rows, vocab_size),
  )
  log = done.stderr
  assert "Of 4 words, 1 were entries, 2 replaced [unusedN], 1 were" in log
  assert "1 lines are not a single word and were skipped: not one" in log
  assert "1 words were [UNK] and start from its embedding: quay" in log


@pytest.mark.parametrize(
  "name", ["vocab.txt", "bert_config.json", "new.ckpt.index"]
)
def test_an_existing_output_is_refused(tmp_path, name):
  settings = option.make(
    create_vocab.VocabularySettings,
    output_file=f"{tmp_path}/vocab.txt",
    output_checkpoint=f"{tmp_path}/new.ckpt",
  )
  write(tmp_path / name, "earlier")
  with pytest.raises(InputError, match=rf"^--output_\w+=.*/{name}: .*overwr"):
    create_vocab.check_outputs(settings, [])
  settings = dataclasses.replace(settings, overwrite=True)
  create_vocab.check_outputs(settings, [])


@pytest.mark.process
def test_full_disk_leaves_no_new_files(tmp_path):
  make_model(tmp_path, len(ENTRIES))
  write(tmp_path / "words.txt", "abba\n")
  write(tmp_path / "new" / "bert_config.json", "earlier")
  before = sorted(tmp_path.rglob("*"))
  error = commands.fail(
    "create_vocab.py", *grow_flags(tmp_path), "--overwrite", largest_file=512
  )
  assert os.strerror(27) in error
  assert sorted(tmp_path.rglob("*")) == before
  assert (tmp_path / "new" / "bert_config.json").read_text() == "earlier"


@pytest.mark.graph
def test_checkpoint_may_replace_its_source(tmp_path):
  make_model(tmp_path, len(ENTRIES))
  path = str(tmp_path / "model.ckpt")
  tensors = random_tensors(30, [TABLE])
  rewrite.write_checkpoint(path, tensors)
  run_outputs.assert_same_bits(rewrite.read_with_rows(path, 30, {}, 0), tensors)


@pytest.mark.graph
def test_incompatible_checkpoint_is_refused(tmp_path):
  make_model(tmp_path, 20)
  path = str(tmp_path / "model.ckpt")
  with pytest.raises(InputError, match=r"has 20 rows, but vocab_size .* is 21"):
    rewrite.read_with_rows(path, 21, {}, 0)
  with pytest.raises(InputError, match="no such checkpoint"):
    rewrite.read_with_rows(f"{path}-1", 20, {}, 0)
  with pytest.raises(InputError, match=r"18 entries, .* vocab_size is 17"):
    create_vocab.read_vocab(str(tmp_path / "vocab.txt"), True, 17)
  for name in ("w", BIAS):  # a bias has as many rows, and is no table
    rewrite.write_checkpoint(path, {name: np.zeros(20)})
    with pytest.raises(InputError, match="not a BERT checkpoint"):
      rewrite.read_with_rows(path, 20, {}, 0)
