"""Tests of pretraining data: records, blocks, and runs that were stopped."""

import gzip
import hashlib
import inspect
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import chain

import absl.flags
import commands
import pytest
import reference_data
import tensorflow as tf
from absl.testing import flagsaver
from hypothesis import given, settings
from hypothesis import strategies as st

import create_pretraining_data
import tokenization
from bertlib import files
from bertlib.data import (
  pretraining_blocks,
  pretraining_instances,
  pretraining_text,
)
from bertlib.data.pretraining_blocks import BlockRun
from bertlib.data.pretraining_text import Recipe
from bertlib.settings import option
from bertlib.settings.pretraining_data import PretrainingDataSettings

pytestmark = pytest.mark.unit

SCRIPT = "create_pretraining_data.py"

# Words of up to three pieces, none of which another word has: w0000, ##w0001,
# ##w0002; and as many of Chinese characters.
NUM_PIECES = 900
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LATIN = [f"{'##' if n % 3 else ''}w{n:04}" for n in range(NUM_PIECES)]
CHINESE = [chr(0x4E00 + n) for n in range(NUM_PIECES)]
VOCAB = SPECIAL + LATIN + CHINESE
_, _, CLS, SEP, MASK = range(len(SPECIAL))


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
  path.write_text("\n".join(VOCAB), encoding="utf-8")
  return str(path)


class Corpus:
  """A text in which no piece comes twice.

  Attributes:
    lines: the text.
    places: for the id of each piece its document, its place in that, and its
      word.
  """

  def __init__(self, documents, entries=LATIN):
    """Writes a text.

    Args:
      documents: of sentences of words, each given by its number of pieces.
      entries: of the vocabulary.
    """
    self.lines = []
    self.places = {}
    word = 0
    for number, document in enumerate(documents):
      place = 0
      for sentence in document:
        words = []
        for length in sentence:
          pieces = entries[3 * word : 3 * word + length]
          words.append("".join(pieces).replace("##", ""))
          for piece in pieces:
            self.places[VOCAB.index(piece)] = number, place, word
            place += 1
          word += 1
        self.lines.append(f"{' '.join(words)}\n".encode())
      self.lines.append(b"\n")


def make(corpus, vocab_file, **options):
  """The records of a corpus, and the counts."""
  recipe, counts = Recipe(vocab_file, **options), Counter()
  passes = pretraining_blocks.create_block_records(
    recipe,
    pretraining_text.load_tokenizer(recipe),
    0,
    corpus.lines,
    counts,
  )
  return [parsed(record) for one in passes for record in one], counts


def read_file(path):
  """The serialized records of a file."""
  return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def parsed(serialized):
  feature = tf.train.Example.FromString(serialized).features.feature
  return {
    name: list(values.int64_list.value or values.float_list.value)
    for name, values in feature.items()
  }


def masks(record):
  """The true token at each masked position."""
  number = int(sum(record["masked_lm_weights"]))
  positions, ids = record["masked_lm_positions"], record["masked_lm_ids"]
  return dict(zip(positions[:number], ids[:number]))


def tokens(record):
  """The tokens of a record as they were before masking."""
  used = sum(record["input_mask"])
  ids = record["input_ids"][:used]
  for position, token in masks(record).items():
    ids[position] = token
  return ids


def parts(record):
  """Both stretches of text, without [CLS] and [SEP]."""
  ids = tokens(record)
  middle = ids.index(SEP)
  return ids[1:middle], ids[middle + 1 : -1]


def assert_share(count, total, share):
  """Within five standard deviations of what is expected."""
  deviation = (total * share * (1 - share)) ** 0.5
  assert abs(count - total * share) < 5 * deviation


@pytest.mark.process
def test_importing_does_not_load_tensorflow():
  loaded = subprocess.run(
    [sys.executable, "-c", f"import {SCRIPT[:-3]}, sys; print(*sys.modules)"],
    cwd=commands.ROOT,
    capture_output=True,
    text=True,
    check=True,
  ).stdout.split()
  assert "create_pretraining_data" in loaded
  assert "tensorflow" not in loaded


# The reference's records


def golden_run(name):
  """The run of that name, its input files and its vocabulary."""

  def path(file):
    return reference_data.golden("pretraining_data", file)

  with open(path("runs.json")) as file:
    (run,) = (run for run in json.load(file) if run["name"] == name)
  inputs = [path(file) for file in run["input_files"]]
  return run, inputs, reference_data.vocab(run["vocab"])


def assert_golden(paths, run):
  """The files hold what the reference wrote."""
  for path, expected in zip(paths, run["outputs"]):
    records = read_file(path)
    assert len(records) == expected["records"]
    content = hashlib.sha256(b"".join(records)).hexdigest()
    assert content == expected["deterministic_sha256"]


@pytest.mark.graph
@pytest.mark.parametrize(
  "name",
  [
    "readme",
    "short",
    "cased_two_in_three_out",
    "edge",
    "one_document",
    pytest.param("chinese", marks=pytest.mark.needs_data),
    "later_whole_word",
    "later_whole_word_edge",
    "later_plain",
  ],
)
def test_records_equal_the_reference(name, tmp_path):
  run, inputs, vocab = golden_run(name)
  outputs = [str(tmp_path / output["file"]) for output in run["outputs"]]
  recipe = Recipe(vocab, **run["flags"])
  counts = create_pretraining_data.write_in_memory(recipe, inputs, outputs)
  assert_golden(outputs, run)
  for count, field in [
    ("records", "records"),
    ("masked tokens", "masked"),
    ("random next sentences", "random_next"),
  ]:
    assert counts[count] == sum(output[field] for output in run["outputs"])


@pytest.mark.graph
@pytest.mark.parametrize(
  "name", ["cased_two_in_three_out", "later_whole_word_edge"]
)
def test_instances_written_by_a_caller_equal_the_reference(name, tmp_path):
  run, inputs, vocab = golden_run(name)
  outputs = [str(tmp_path / output["file"]) for output in run["outputs"]]
  recipe = Recipe(vocab, **run["flags"])
  tokenizer = tokenization.FullTokenizer(vocab, recipe.do_lower_case)
  instances = create_pretraining_data.create_training_instances(
    inputs,
    tokenizer,
    recipe.max_seq_length,
    recipe.dupe_factor,
    recipe.short_seq_prob,
    recipe.masked_lm_prob,
    recipe.max_predictions_per_seq,
    random.Random(recipe.random_seed),
    do_whole_word_mask=recipe.do_whole_word_mask,
  )
  create_pretraining_data.write_instance_to_example_files(
    instances,
    tokenizer,
    recipe.max_seq_length,
    recipe.max_predictions_per_seq,
    outputs,
  )
  assert_golden(outputs, run)


def test_the_command_of_the_readme_equals_the_reference(tmp_path):
  run, inputs, vocab = golden_run("readme")
  log = commands.succeed(
    SCRIPT,
    f"--input_file={inputs[0]}",
    f"--output_file={tmp_path}/tf_examples.tfrecord",
    f"--vocab_file={vocab}",
    "--do_lower_case=True",
    "--max_seq_length=128",
    "--max_predictions_per_seq=20",
    "--masked_lm_prob=0.15",
    "--random_seed=12345",
    "--dupe_factor=5",
  ).stderr
  assert_golden([tmp_path / "tf_examples.tfrecord"], run)
  assert f"60 records in {tmp_path}/tf_examples.tfrecord" in log
  assert set(os.listdir(tmp_path)) == {
    "tf_examples.tfrecord",
    "tf_examples.tfrecord.run.json",
  }


@given(length=st.integers(0, 300), seed=st.integers())
def test_shuffle_equals_that_of_python(length, seed):
  ours, theirs = random.Random(seed), random.Random(seed)
  mine, yours = list(range(length)), list(range(length))
  pretraining_instances.shuffle(mine, ours)
  theirs.shuffle(yours)
  assert mine == yours
  assert ours.getstate() == theirs.getstate()


# Text to pieces


def read(lines, vocab_file, **options):
  counts = Counter()
  documents = pretraining_text.read_documents(
    lines,
    tokenization.FullTokenizer(vocab_file),
    random.Random(0),
    counts=counts,
    **options,
  )
  return documents, counts


def test_line_ends_bad_bytes_and_blank_lines_more_or_less_change_nothing(
  vocab_file,
):
  plain = [b"w0000 w0003\n", b"w0006\n", b"\n", b"w0009\n"]
  odd = [b"\n", b"w0000 \xffw0003 \r\n", b" w0006\r\n", b"\r\n", b" \n"]
  odd += [b"w0009"]
  documents, counts = read(odd, vocab_file)
  assert documents == read(plain, vocab_file)[0]
  assert counts == {
    "documents": 2,
    "sentences": 3,
    "documents of one sentence": 1,
  }


LONG = Corpus([[[1, 2, 3]] * 30])


def test_truncated_sentences_lose_their_end_but_not_all(vocab_file):
  (whole,), _ = read(LONG.lines, vocab_file)
  (cut,), counts = read(LONG.lines, vocab_file, truncate_prob=1)
  assert counts["sentences truncated"] == len(cut) == 30
  for before, after in zip(whole, cut):
    assert 0 < len(after) < len(before)
    assert after == before[: len(after)]
  assert {len(sentence) for sentence in cut} == {1, 2, 3, 4, 5}


def test_truncate_prob_is_the_share_that_is_cut(vocab_file):
  lines = LONG.lines * 20
  whole, _ = read(lines, vocab_file)
  cut, counts = read(lines, vocab_file, truncate_prob=0.3)
  differ = sum(
    before != after
    for documents in zip(whole, cut)
    for before, after in zip(*documents)
  )
  assert counts["sentences truncated"] == differ
  assert_share(differ, 600, 0.3)


def test_a_piece_alone_is_not_truncated(vocab_file):
  documents, counts = read([b"w0000\n"], vocab_file, truncate_prob=1)
  assert documents == [[["w0000"]]]
  assert not counts["sentences truncated"]


def test_running_text_is_split_into_sentences(vocab_file):
  pytest.importorskip("sentencex", reason="pip install -e .[sentences]")
  text = [b"W0000 w0003. W0006 w0009! W0012\n", b"\n", b"W0015? W0018.\n"]
  sentences = [b"W0000 w0003.\n", b"W0006 w0009!\n", b"W0012\n", b"\n"]
  sentences += [b"W0015?\n", b"W0018.\n"]
  documents, _ = read(text, vocab_file, split_sentences="en")
  assert documents == read(sentences, vocab_file)[0]


# Pieces to records


DOCUMENTS = st.lists(  # of sentences of words of so many pieces
  st.lists(
    st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1, max_size=4
  ),
  min_size=1,
  max_size=4,
)
OPTIONS = st.fixed_dictionaries(
  {
    "max_seq_length": st.integers(5, 40),
    "max_predictions_per_seq": st.integers(1, 10),
    "masked_lm_prob": st.floats(0, 1),
    "short_seq_prob": st.sampled_from([0, 0.1, 1]),
    "dupe_factor": st.integers(1, 3),
    "random_seed": st.integers(),
    "do_whole_word_mask": st.booleans(),
    "whole_word_draw": st.sampled_from(["piece", "word"]),
  }
)


@settings(deadline=None)
@given(DOCUMENTS, OPTIONS)
def test_records_are_two_parts_between_specials_and_padding(
  vocab_file, documents, options
):
  records, counts = make(Corpus(documents), vocab_file, **options)
  assert len(records) == counts["records"] > 0
  assert counts["tokens"] == sum(len(tokens(record)) for record in records)
  for record in records:
    first, second = parts(record)
    assert first and second
    assert tokens(record) == [CLS, *first, SEP, *second, SEP]
    lengths = len(first) + 2, len(second) + 1
    padding = [0] * (options["max_seq_length"] - sum(lengths))
    assert record["input_ids"][sum(lengths) :] == padding
    assert record["input_mask"] == [1] * sum(lengths) + padding
    assert (
      record["segment_ids"] == [0] * lengths[0] + [1] * lengths[1] + padding
    )


@settings(deadline=None)
@given(DOCUMENTS, OPTIONS)
def test_masks_are_sorted_padded_and_as_many_as_asked_for(
  vocab_file, documents, options
):
  records, counts = make(Corpus(documents), vocab_file, **options)
  assert counts["masked tokens"] == sum(len(masks(r)) for r in records)
  most = options["max_predictions_per_seq"]
  for record in records:
    masked, ids = masks(record), tokens(record)
    number = len(masked)
    padding = [0] * (most - number)
    assert record["masked_lm_positions"] == sorted(masked) + padding
    assert record["masked_lm_ids"] == [*masked.values(), *padding]
    assert record["masked_lm_weights"] == [1] * number + padding
    assert not {CLS, SEP} & set(masked.values())
    for position, token in enumerate(ids):
      assert position in masked or record["input_ids"][position] == token
    asked = max(1, round(options["masked_lm_prob"] * len(ids)))
    asked = min(asked, most, len(ids) - 3)
    if options["do_whole_word_mask"]:
      assert number <= asked  # a word may be too long for what is left
    else:
      assert number == asked


@settings(deadline=None)
@given(DOCUMENTS, OPTIONS)
def test_parts_are_stretches_that_follow_each_other_or_of_two_documents(
  vocab_file, documents, options
):
  corpus = Corpus(documents)
  records, counts = make(corpus, vocab_file, **options)
  same_document = 0
  for record in records:
    (first, start, end), (second, next_start, next_end) = (
      (corpus.places[p[0]][0], corpus.places[p[0]][1], corpus.places[p[-1]][1])
      for p in parts(record)
    )
    ids = [*range(start, end + 1), *range(next_start, next_end + 1)]
    assert [corpus.places[i][1] for p in parts(record) for i in p] == ids
    if record["next_sentence_labels"] == [1]:
      same_document += first == second
    else:
      assert first == second
      cut = sum(record["input_mask"]) == options["max_seq_length"]
      assert next_start > end if cut else next_start == end + 1
  assert counts["random next sentences"] == sum(
    record["next_sentence_labels"][0] for record in records
  )
  if len(documents) > 1:
    same_document = 0  # but for chance
  assert counts[pretraining_instances.SAME_DOCUMENT] == same_document


def test_one_in_two_second_parts_is_of_another_document(vocab_file):
  # A document of two sentences becomes one record, or two where the second
  # part is of another document: then its own second sentence is alone.
  corpus = Corpus([[[1], [1]]] * 100)
  records, counts = make(
    corpus, vocab_file, dupe_factor=20, short_seq_prob=0, max_seq_length=16
  )
  follow = sum(not record["next_sentence_labels"][0] for record in records)
  assert_share(follow, 2000, 0.5)
  assert len(records) == follow + 2 * (2000 - follow)
  assert not counts[pretraining_instances.SAME_DOCUMENT]


# Ten documents of five sentences of five words of three pieces.
LARGE = [[[3] * 5] * 5] * 10


@pytest.mark.parametrize("whole_words", [False, True])
def test_of_ten_masked_tokens_eight_are_hidden_one_drawn_and_one_left(
  vocab_file, whole_words
):
  records, _ = make(
    Corpus(LARGE), vocab_file, dupe_factor=50, do_whole_word_mask=whole_words
  )
  shown = [
    (record["input_ids"][position], token)
    for record in records
    for position, token in masks(record).items()
  ]
  drawn = [token for token, true in shown if token not in (MASK, true)]
  by_chance = 0.1 / len(VOCAB)  # the draw is of any entry
  hidden = sum(token == MASK for token, _ in shown)
  assert_share(hidden, len(shown), 0.8 + by_chance)
  left = sum(token == true for token, true in shown)
  assert_share(left, len(shown), 0.1 + by_chance)
  assert_share(sum(t < len(VOCAB) / 2 for t in drawn), len(drawn), 0.5)


WHOLE_WORDS = {
  "of pieces": (LATIN, {"do_whole_word_mask": True}),
  "of Chinese": (
    CHINESE,
    {"do_whole_word_mask": True, "word_boundaries": "spaces"},
  ),
}


def masked_words(record, corpus):
  """For each word of either part, what is shown for its pieces, and they.

  None is shown for a piece that is not masked.
  """
  words = defaultdict(list)
  masked = masks(record)
  for position, (token, part) in enumerate(
    zip(tokens(record), record["segment_ids"])
  ):
    if token not in (CLS, SEP):
      is_masked = position in masked
      shown = record["input_ids"][position] if is_masked else None
      words[part, corpus.places[token][2]].append((shown, token))
  return list(words.values())


@pytest.mark.parametrize("kind", WHOLE_WORDS)
@settings(deadline=None)
@given(documents=DOCUMENTS, options=OPTIONS)
def test_the_pieces_of_a_word_are_masked_together(
  vocab_file, kind, documents, options
):
  entries, whole_words = WHOLE_WORDS[kind]
  corpus = Corpus(documents, entries)
  records, _ = make(corpus, vocab_file, **(options | whole_words))
  for record in records:
    for word in masked_words(record, corpus):
      assert len({shown is None for shown, _ in word}) == 1


@pytest.mark.parametrize("kind", WHOLE_WORDS)
@pytest.mark.parametrize(
  ("draw", "all_hidden", "all_left"),
  [("piece", 0.8**3, 0.1**3), ("word", 0.8, 0.1)],
)
def test_pieces_are_drawn_alone_or_as_a_word(
  vocab_file, kind, draw, all_hidden, all_left
):
  entries, options = WHOLE_WORDS[kind]
  corpus = Corpus(LARGE, entries)
  records, _ = make(
    corpus, vocab_file, dupe_factor=50, whole_word_draw=draw, **options
  )
  words = [
    word
    for record in records
    for word in masked_words(record, corpus)
    if len(word) == 3 and word[0][0] is not None
  ]
  hidden = sum(all(s == MASK for s, _ in word) for word in words)
  left = sum(all(s == token for s, token in word) for word in words)
  assert_share(hidden, len(words), all_hidden)
  assert_share(left, len(words), all_left)


# Instances that other code creates


WORDS = ["[CLS]", "un", "##aff", "##able", "[SEP]", "dog", "##s", "[SEP]"]
VOCAB_WORDS = [f"new{number}" for number in range(50)]


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_masking_keeps_the_original_tokens_as_labels(whole_words, seed):
  tokens, positions, labels = (
    create_pretraining_data.create_masked_lm_predictions(
      WORDS, 0.5, 20, VOCAB_WORDS, random.Random(seed), whole_words
    )
  )
  assert len(tokens) == len(WORDS)
  assert positions == sorted(set(positions))
  assert labels == [WORDS[position] for position in positions]
  assert not {"[CLS]", "[SEP]"} & set(labels)
  for position, (token, original) in enumerate(zip(tokens, WORDS)):
    if position in positions:
      assert token in {"[MASK]", original, *VOCAB_WORDS}
    else:
      assert token == original
  if whole_words:
    assert positions in ([1, 2, 3], [5, 6])
  else:
    assert len(positions) == 4


def test_documents_of_tokens_become_instances():
  documents = [
    [["a", "b"], ["c"], ["d", "e", "f"]],
    [["x", "y"], ["z"]],
  ]
  rng = random.Random(0)
  is_random = Counter()
  for _ in range(50):
    for instance in create_pretraining_data.create_instances_from_document(
      documents, 0, 9, 0.1, 0.15, 2, VOCAB_WORDS, rng
    ):
      assert len(instance.tokens) == len(instance.segment_ids) <= 9
      assert instance.tokens[0] == "[CLS]"
      assert instance.tokens.count("[SEP]") == 2
      second = instance.segment_ids.index(1)
      original = list(instance.tokens)
      for position, label in zip(
        instance.masked_lm_positions, instance.masked_lm_labels
      ):
        original[position] = label
      own = set("xyz" if instance.is_random_next else "abcdef")
      assert set(original[1 : second - 1]) <= set("abcdef")
      assert set(original[second:-1]) <= own
      is_random[instance.is_random_next] += 1
  assert set(is_random) == {False, True}


def test_a_pair_of_segments_is_truncated_in_place():
  ends = set()
  for seed in range(20):
    tokens_a, tokens_b = list("abcdef"), list("xyz")
    create_pretraining_data.truncate_seq_pair(
      tokens_a, tokens_b, 5, random.Random(seed)
    )
    assert len(tokens_a) + len(tokens_b) == 5
    assert "".join(tokens_a) in "abcdef" and "".join(tokens_b) in "xyz"
    ends.add((tokens_a[0] == "a", tokens_a[-1] == "f"))
  assert len(ends) > 1


def instance(**changed):
  return create_pretraining_data.TrainingInstance(
    **{
      "tokens": ["[CLS]", "w0000", "[SEP]", "[MASK]", "[SEP]"],
      "segment_ids": [0, 0, 0, 1, 1],
      "masked_lm_positions": [3],
      "masked_lm_labels": ["w0003"],
      "is_random_next": True,
    }
    | changed
  )


def test_an_instance_is_shown_by_its_content():
  assert str(instance()) == (
    "tokens: [CLS] w0000 [SEP] [MASK] [SEP]\n"
    "segment_ids: 0 0 0 1 1\n"
    "is_random_next: True\n"
    "masked_lm_positions: 3\n"
    "masked_lm_labels: w0003\n"
    "\n"
  )
  assert repr(instance()) == str(instance())


class OtherTokenizer:
  """A tokenizer with nothing but what other code's tokenizers have."""

  def convert_tokens_to_ids(self, tokens):
    return [VOCAB.index(token) for token in tokens]


def write(instances, outputs, max_seq_length=8):
  create_pretraining_data.write_instance_to_example_files(
    instances, OtherTokenizer(), max_seq_length, 2, [*map(str, outputs)]
  )


@pytest.mark.graph
def test_a_record_equals_an_example_of_its_features(tmp_path):
  ints = create_pretraining_data.create_int_feature
  floats = create_pretraining_data.create_float_feature
  write(iter([instance()]), [tmp_path / "out"])
  (record,) = read_file(tmp_path / "out")
  expected = {
    "input_ids": ints([CLS, 5, SEP, MASK, SEP, 0, 0, 0]),
    "input_mask": ints([1, 1, 1, 1, 1, 0, 0, 0]),
    "segment_ids": ints([0, 0, 0, 1, 1, 0, 0, 0]),
    "masked_lm_positions": ints([3, 0]),
    "masked_lm_ids": ints([8, 0]),
    "masked_lm_weights": floats([1.0, 0.0]),
    "next_sentence_labels": ints([1]),
  }
  assert tf.train.Example.FromString(record).features.feature == expected


@pytest.mark.graph
def test_instances_go_to_the_files_in_turn(tmp_path):
  instances = [instance(is_random_next=number % 3 == 0) for number in range(7)]
  outputs = [tmp_path / name for name in "abc"]
  write(instances, outputs)
  labels = [
    [parsed(record)["next_sentence_labels"] for record in read_file(path)]
    for path in outputs
  ]
  assert labels == [[[1]] * 3, [[0]] * 2, [[0]] * 2]


def test_an_instance_that_does_not_fit_leaves_the_files_as_they_were(tmp_path):
  (tmp_path / "out").write_bytes(b"earlier")
  for instances, max_seq_length in [
    ([instance(), instance()], 4),
    ([instance(masked_lm_positions=[1, 2, 3])], 8),
  ]:
    with pytest.raises(ValueError):
      write(instances, [tmp_path / "out"], max_seq_length)
  assert (tmp_path / "out").read_bytes() == b"earlier"
  assert os.listdir(tmp_path) == ["out"]


# Blocks


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
  """Twenty documents of six sentences of two to three words."""
  path = tmp_path_factory.mktemp("text") / "text.txt"
  lines = Corpus([[[1, 2], [3, 1, 2]] * 3 for _ in range(20)]).lines
  path.write_bytes(b"".join(lines))
  return str(path)


@settings(deadline=None)
@given(
  documents=st.lists(st.lists(st.integers(1, 30), min_size=1)),
  block_bytes=st.integers(1, 100),
  num_blocks=st.integers(1, 7),
  file_number=st.integers(0, 9),
)
def test_every_document_is_dealt_once_and_evenly(
  documents, block_bytes, num_blocks, file_number
):
  lines = [
    [b"%d %s" % (number, b"x" * length) for length in document]
    for number, document in enumerate(documents)
  ]
  text = b"\n\n \n".join(b"\r\n".join(document) for document in lines)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(pretraining_blocks, "BLOCK_BYTES", block_bytes)
    dealt = list(
      pretraining_blocks.deal_documents(
        text.splitlines(keepends=True), file_number, num_blocks, 0
      )
    )
  found = [document.splitlines() for _, document in dealt]
  assert all(document.pop() == b"" for document in found)
  assert [*chain(*found)] == [*chain(*lines)]
  for document in found:
    assert len({line.split()[0] for line in document}) == 1
    assert sum(map(len, document[:-1])) < block_bytes  # else cut before
  if all(sum(map(len, document)) < block_bytes / 2 for document in lines):
    assert len(found) == len(lines)
  sizes = Counter(block for block, _ in dealt)
  sizes = [sizes[block] for block in range(num_blocks)]
  assert max(sizes) - min(sizes) <= 1
  assert sum(sizes) == len(dealt)


def test_files_of_one_document_are_dealt_evenly_too():
  blocks = Counter(
    block
    for number in range(23)
    for block, _ in pretraining_blocks.deal_documents([b"word"], number, 5, 0)
  )
  assert sorted(blocks.values()) == [4, 4, 5, 5, 5]


@pytest.fixture
def small_blocks(monkeypatch, text_file):
  """Makes of the text six blocks for two output files."""
  size = os.path.getsize(text_file)
  monkeypatch.setattr(pretraining_blocks, "BLOCK_BYTES", size // 5)
  assert pretraining_blocks.count_blocks({text_file: size}, 2) == 6


def written(paths):
  """When the files were."""
  return [path.stat().st_mtime_ns for path in paths]


def run_blocks(recipe, text_file, outputs, num_workers=1):
  """Runs in this process; gives what each output file holds."""
  counts = BlockRun(
    recipe,
    [text_file],
    [*map(str, outputs)],
  ).run(num_workers)
  content = [path.read_bytes() for path in outputs]
  assert counts["records"] == sum(len(read_file(path)) for path in outputs)
  return content


@pytest.mark.process
@pytest.mark.usefixtures("small_blocks")
def test_blocks_are_apart_and_make_the_files_whatever_the_workers(
  tmp_path, vocab_file, text_file
):
  recipe = Recipe(vocab_file, max_seq_length=24)
  outputs = [tmp_path / "a", tmp_path / "b"]
  content = run_blocks(recipe, text_file, outputs)
  more = [tmp_path / "c", tmp_path / "d"]
  assert content == run_blocks(recipe, text_file, more, num_workers=2)

  corpus = Corpus([[[1, 2], [3, 1, 2]] * 3 for _ in range(20)])
  found = [
    {
      corpus.places[token][0]
      for record in read_file(path)
      for part in parts(parsed(record))
      for token in part
    }
    for path in outputs
  ]
  assert sorted([*found[0], *found[1]]) == list(range(20))
  assert {len(documents) for documents in found} <= {9, 10, 11}


def test_no_more_than_a_pass_of_a_block_is_held_in_memory(vocab_file):
  recipe, counts = (
    Recipe(vocab_file, max_seq_length=16, dupe_factor=5),
    Counter(),
  )
  tokenizer = pretraining_text.load_tokenizer(recipe)
  lines = Corpus([[[1, 1, 1]] * 12] * 8).lines * 40
  held = [
    sys.getallocatedblocks()
    for number in range(3)
    for _ in pretraining_blocks.create_block_records(
      recipe, tokenizer, number, lines, counts
    )
  ]
  a_pass = counts["records"] / 15
  assert a_pass > 1000
  assert max(held) - max(held[:5]) < a_pass  # objects: less than one a record


@pytest.mark.process
def test_other_file_systems_get_the_same_and_keep_it(
  tmp_path, vocab_file, text_file
):
  recipe = Recipe(vocab_file, max_seq_length=24)
  (expected,) = run_blocks(recipe, text_file, [tmp_path / "local"])
  (remote_text,) = files.find_files([f"file://{text_file}*"])
  remote = f"file://{tmp_path}/remote"
  BlockRun(
    recipe,
    [remote_text],
    [remote],
  ).run(1)
  assert (tmp_path / "remote").read_bytes() == expected
  before = written([tmp_path / "remote"])
  BlockRun(
    recipe,
    [remote_text],
    [remote],
  ).run(1)
  assert written([tmp_path / "remote"]) == before


# What is kept of a run


@pytest.fixture
def made(tmp_path, vocab_file, text_file):
  """A finished run: its text, its vocabulary, its recipe, its output files."""
  text, vocab = str(tmp_path / "text.txt"), str(tmp_path / "vocab.txt")
  shutil.copy(text_file, text)
  shutil.copy(vocab_file, vocab)
  recipe = Recipe(vocab, max_seq_length=24, dupe_factor=2)
  outputs = [tmp_path / f"out-{number}" for number in range(3)]
  run_blocks(recipe, text, outputs)
  return text, vocab, recipe, outputs


@pytest.mark.process
def test_a_finished_run_is_kept(made):
  text, _, recipe, outputs = made
  before = written(outputs)
  run_blocks(recipe, text, outputs)
  assert written(outputs) == before


@pytest.mark.process
def test_a_file_that_is_lost_or_cut_is_made_again_alone(made):
  text, _, recipe, outputs = made
  content = [path.read_bytes() for path in outputs]
  before = written(outputs)
  outputs[0].unlink()
  outputs[2].write_bytes(content[2][:-1])
  assert run_blocks(recipe, text, outputs) == content
  assert written(outputs)[1] == before[1]


def other_seed(text, vocab):
  return {"random_seed": 1}


def longer_vocabulary(text, vocab):
  with open(vocab, "a") as file:
    file.write("\nanother")
  return {}


def other_text(text, vocab):
  with open(text, "r+") as file:
    file.write("w0003")  # as long as before
  return {}


@pytest.mark.process
@pytest.mark.parametrize("change", [other_seed, longer_vocabulary, other_text])
def test_what_is_changed_makes_everything_anew(made, change):
  text, vocab, _, outputs = made
  before = written(outputs)
  options = {"max_seq_length": 24, "dupe_factor": 2} | change(text, vocab)
  run_blocks(Recipe(vocab, **options), text, outputs)
  assert not set(before) & set(written(outputs))


# Runs that are stopped


class Stopped:
  """A run of six output files of two blocks, which tests stop."""

  def __init__(self, folder, text_file, vocab_file):
    self.folder = folder
    self.text_file = str(folder / "text.txt")
    with open(text_file, "rb") as file:
      (folder / "text.txt").write_bytes(file.read() * 60)
    self.vocab_file = vocab_file
    self.content = self.run(commands.succeed, "whole", num_workers=1)

  def script(self, *lines):
    """A script that does something, and makes data in small blocks."""
    block_bytes = os.path.getsize(self.text_file) // 11
    path = self.folder / "script.py"
    path.write_text(
      "\n".join(
        [
          f"import sys; sys.path.insert(0, {commands.ROOT!r})",
          "import multiprocessing, os, signal",
          "import create_pretraining_data",
          "from bertlib import app",
          "from bertlib.data import pretraining_blocks",
          "if __name__ == '__main__':",
          *(f"  {line}" for line in lines),
          f"  pretraining_blocks.BLOCK_BYTES = {block_bytes}",
          "  create_pretraining_data.define_flags()",
          "  app.run(create_pretraining_data.main)",
        ]
      )
    )
    return str(path)

  def flags(self, name, num_workers):
    return [
      f"--input_file={self.text_file}",
      f"--vocab_file={self.vocab_file}",
      f"--output_file={self.folder / name / 'out'}",
      "--num_shards=6",
      "--dupe_factor=3",
      f"--num_workers={num_workers}",
    ]

  def run(self, run, name, *lines, num_workers=2, **options):
    """Runs, until it ends or is ended; gives the output files by name."""
    script = self.script(*lines)
    flags = self.flags(name, num_workers)
    self.done = run(script, *flags, own_process=True, **options)
    return self.files(name)

  def files(self, name):
    return {
      path.name: path.read_bytes()
      for path in (self.folder / name).glob("out-0000?-of-00006")
    }

  def others(self, name):
    """What else is in the folder."""
    found = {path.name for path in (self.folder / name).glob("*")}
    return found - set(self.content)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, text_file, vocab_file):
  return Stopped(tmp_path_factory.mktemp("stopped"), text_file, vocab_file)


RECEIPT = ".out-00000-of-00006.receipt.json"

# The second output file is about to take its name.
AT_THE_SECOND = [
  "replace, seen = os.replace, []",
  "def at_the_second(source, path):",
  "  seen.append(path) if path[-8:] == 'of-00006' else None",
  "  if len(seen) == 2: {}",
  "  replace(source, path)",
  "os.replace = at_the_second",
]


@pytest.mark.process
def test_a_whole_run_leaves_files_and_receipt(stopped):
  assert len(stopped.content) == 6 and all(stopped.content.values())
  assert stopped.others("whole") == {RECEIPT, "out.run.json"}
  stopped.run(commands.succeed, "again")
  assert stopped.files("again") == stopped.content


@pytest.mark.process
def test_a_run_says_how_far_it_is(stopped):
  often = "app.progress = functools.partial("
  often += "app.progress, delay=0, mininterval=0)"
  lines = ["import functools", "from bertlib import app", often]
  stopped.run(commands.succeed, "often", *lines)
  log = stopped.done.stderr
  assert re.search(r"1 of 1 files, \d\d:\d\d left", log)
  assert re.search(r"([\d.]+k) of \1 bytes, \d\d:\d\d left", log)


@pytest.mark.process
def test_killed_and_run_again_it_makes_what_is_missing(stopped):
  die = "os.kill(os.getpid(), signal.SIGKILL)"
  lines = [line.format(die) for line in AT_THE_SECOND]
  # The log has its end when the workers, who have it too, have ended.
  kept = stopped.run(commands.run, "killed", *lines, timeout=600)
  assert stopped.done.returncode == -signal.SIGKILL
  assert len(kept) == 1
  assert kept.items() <= stopped.content.items()
  half_written = [n for n in stopped.others("killed") if n.endswith(".tmp")]
  assert len(half_written) == 1
  (path,) = ((stopped.folder / "killed" / name) for name in kept)
  before = path.stat().st_mtime_ns

  files = stopped.run(commands.succeed, "killed")
  assert "1 of 6 output files are there already" in stopped.done.stderr
  assert files == stopped.content
  assert path.stat().st_mtime_ns == before
  assert stopped.others("killed") == {RECEIPT, "out.run.json"}


@pytest.mark.process
def test_a_worker_that_dies_costs_one_line_and_the_whole_files_are_kept(
  stopped,
):
  die = (
    "[os.kill(child.pid, signal.SIGKILL)"
    " for child in multiprocessing.active_children()]"
  )
  lines = [line.format(die) for line in AT_THE_SECOND]
  kept = stopped.run(commands.run, "worker", *lines, timeout=600)
  assert stopped.done.returncode == 1
  assert "Traceback" not in stopped.done.stderr
  assert stopped.done.stderr.splitlines()[-1].startswith(
    "script.py: error: a worker died (killed, or out of memory)."
  )
  assert 0 < len(kept) < 6
  assert kept.items() <= stopped.content.items()
  assert stopped.others("worker") == {RECEIPT}
  assert stopped.run(commands.succeed, "worker") == stopped.content


@pytest.mark.process
@pytest.mark.parametrize(
  ("full_at", "named"),
  [
    ("text", r"/\.out-00000-of-00006\.blocks/\d+\.txt"),
    ("records", r"/\.out-00000-of-00006\.blocks/\d+\.tfrecord"),
    ("file", r"/out-0000\d-of-00006"),
    ("in memory", r"/out-00000-of-00006"),
  ],
)
def test_a_full_disk_costs_one_line(stopped, full_at, named):
  size = min(map(len, stopped.content.values()))
  room = {
    "text": os.path.getsize(stopped.text_file) // 24,
    "records": size // 4,
    "file": size * 3 // 4,
    "in memory": size // 4,
  }[full_at]
  files = stopped.run(
    commands.run,
    full_at,
    largest_file=room,
    num_workers=0 if full_at == "in memory" else 2,
  )
  assert stopped.done.returncode == 1
  assert "Traceback" not in stopped.done.stderr
  line = stopped.done.stderr.splitlines()[-1]
  folder = re.escape(str(stopped.folder / full_at))
  assert re.match(rf"script\.py: error: {folder}{named}: File too large", line)
  assert not files
  assert not stopped.others(full_at)


# The command line


def test_names_set_from_python_are_split_at_commas(tmp_path, vocab_file):
  text = [tmp_path / "a.txt", tmp_path / "b.txt"]
  for path in text:
    path.write_bytes(b"".join(LONG.lines))
  flag_values = absl.flags.FLAGS
  with commands.in_process(create_pretraining_data), flagsaver.flagsaver():
    flag_values([SCRIPT, *(f"--{name}=a" for name in REQUIRED)])
    flag_values.vocab_file = vocab_file
    flag_values.input_file = ",".join(map(str, text))
    flag_values.output_file = f"{tmp_path}/one, {tmp_path}/two"
    create_pretraining_data.main(None)
  assert (
    len(read_file(tmp_path / "one")) >= len(read_file(tmp_path / "two")) > 0
  )


REQUIRED = ["input_file", "output_file", "vocab_file"]


@pytest.fixture
def flags(tmp_path, text_file, vocab_file):
  """Writes the flags of a command, with changes."""

  def write(**changed):
    values = {
      "input_file": text_file,
      "output_file": tmp_path / "out",
      "vocab_file": vocab_file,
      "dupe_factor": 2,
    }
    return commands.as_flags(values | changed)

  return write


def compressed(text_file, path):
  with open(text_file, "rb") as file:
    path.write_bytes(gzip.compress(file.read()))


@pytest.mark.process
@pytest.mark.parametrize("num_workers", [0, 1])
def test_gzip_is_read_as_text(tmp_path, flags, text_file, num_workers):
  compressed(text_file, tmp_path / "text.txt.gz")
  changed = {"num_workers": num_workers}
  commands.succeed(SCRIPT, *flags(**changed))
  changed |= {"input_file": tmp_path / "*.gz", "output_file": tmp_path / "gz"}
  commands.succeed(SCRIPT, *flags(**changed))
  assert (tmp_path / "gz").read_bytes() == (tmp_path / "out").read_bytes()


def test_a_corpus_of_one_document_is_said_so(tmp_path, flags):
  (tmp_path / "one").write_text("w0000 w0003\nw0006\nw0009\n")
  log = commands.succeed(SCRIPT, *flags(input_file=tmp_path / "one")).stderr
  assert "documents: 1" in log
  said = re.search(
    r"(\d+) of (\d+) random next sentences come from the same document", log
  )
  assert said and int(said[1]) == int(said[2]) > 0


def test_a_blank_line_after_every_sentence_is_said_so(tmp_path, flags):
  (tmp_path / "blank").write_text("w0000 w0003\n\nw0006\n\nw0009\n")
  log = commands.succeed(SCRIPT, *flags(input_file=tmp_path / "blank")).stderr
  assert "3 of 3 documents have one sentence" in log


def test_a_good_corpus_gets_no_warning(flags):
  log = commands.succeed(SCRIPT, *flags()).stderr
  assert "documents: 20" in log
  assert "come from the same document" not in log
  assert "have one sentence" not in log


def test_sentences_need_an_extra(monkeypatch, flags):
  monkeypatch.setitem(sys.modules, "sentencex", None)
  line = commands.fail(SCRIPT, *flags(split_sentences="en", num_workers=1))
  assert line == (
    f"{SCRIPT}: error: --split_sentences needs the package sentencex: pip"
    " install -e .[sentences]"
  )


@pytest.mark.process
@pytest.mark.parametrize(
  ("changed", "said"),
  [
    ({"input_file": "{}/empty"}, "there is no text in it"),
    ({"input_file": "{}/gone*"}, "{}/gone*: no such file"),
    ({"input_file": "{}/cut.gz"}, "{}/cut.gz: "),
    ({"input_file": "{}/empty", "num_workers": 1}, "0 documents are too few"),
    ({"input_file": "{}/cut.gz", "num_workers": 1}, "{}/cut.gz: "),
    ({"vocab_file": "{}/gone"}, "{}/gone: cannot be read; name a vocab.txt"),
    ({"vocab_file": "{}/no_mask"}, "{}/no_mask: has no [MASK]"),
    ({"vocab_file": "{}/cut.gz"}, "{}/cut.gz, line 1, byte "),
    ({"output_file": "{0}/a,{0}/./a"}, "--output_file: names a file twice"),
    ({"output_file": ""}, "--output_file: names no file"),
    ({"output_file": "{0}/a,{0}/b", "num_shards": 2}, "one --output_file"),
    (
      {"num_workers": 1, "num_shards": 21},
      "20 documents are too few for 21 output files",
    ),
    ({"word_boundaries": "spaces"}, "give --do_whole_word_mask too"),
    ({"whole_word_draw": "word"}, "give --do_whole_word_mask too"),
  ],
  ids=str,
)
def test_bad_input_costs_one_line(tmp_path, flags, text_file, changed, said):
  (tmp_path / "empty").write_text("\n \n")
  (tmp_path / "no_mask").write_text("[UNK]\n[CLS]\n[SEP]")
  compressed(text_file, tmp_path / "cut.gz")
  os.truncate(tmp_path / "cut.gz", 100)
  before = set(os.listdir(tmp_path))
  changed = {
    name: value.format(tmp_path) if isinstance(value, str) else value
    for name, value in changed.items()
  }
  assert said.format(tmp_path) in commands.fail(SCRIPT, *flags(**changed))
  assert set(os.listdir(tmp_path)) == before


# Encodings


def test_records_do_not_depend_on_the_encoding(tmp_path, vocab_file):
  text = "w0001 w0002 é\r\nw0003\n\n中 w0004 w0005\nw0006 \u2028 w0007"
  found = set()
  for encoding in ("utf-8", "utf-8-sig", "utf-16", "gb18030"):
    (tmp_path / "text").write_bytes(text.encode(encoding))
    recipe = pretraining_text.Recipe(
      str(vocab_file), dupe_factor=2, encoding=encoding
    )
    files = [str(tmp_path / "text")], [str(tmp_path / "out")]
    create_pretraining_data.write_in_memory(recipe, *files)
    found.add((tmp_path / "out").read_bytes())
  assert len(found) == 1


def test_the_doctor_makes_the_checks_of_a_run(flags):
  functions = []

  class Recorder:
    def check(self, name, function, *arguments):
      functions.append(function)
      return function(*arguments)

  checked = []

  def profile(frame, event, _):
    if event == "call":
      checked.append(frame.f_code)

  with commands.in_process(create_pretraining_data), flagsaver.flagsaver():
    absl.flags.FLAGS([SCRIPT, *flags()])
    settings = option.from_flags(PretrainingDataSettings)
  pretraining_text.load_tokenizer.cache_clear()
  sys.setprofile(profile)
  try:
    create_pretraining_data.setup(settings)
  finally:
    sys.setprofile(None)
  create_pretraining_data.examine(settings, Recorder())
  codes = [inspect.unwrap(function).__code__ for function in functions]
  assert [code for code in checked if code in codes] == codes[:5]


def test_folders_made_for_a_run_that_fails_are_removed(tmp_path):
  (tmp_path / "kept").mkdir()
  paths = [
    str(tmp_path / "kept" / "new" / "a"),
    str(tmp_path / "b" / "c" / "d"),
  ]
  with (
    pytest.raises(ZeroDivisionError),
    create_pretraining_data.folders_for(paths),
  ):
    assert all(map(os.path.isdir, map(os.path.dirname, paths)))
    raise ZeroDivisionError
  assert [path.name for path in tmp_path.rglob("*")] == ["kept"]
