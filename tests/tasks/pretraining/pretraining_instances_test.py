"""Tests of pretraining text, instances and records."""

import gc
import os
import random
from collections import Counter, defaultdict
from itertools import chain

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from parametrize import parametrize
from pretraining_corpus import (
  CHINESE,
  CLS,
  DOCUMENTS,
  MASK,
  SEP,
  VOCAB,
  Corpus,
  assert_share,
  make,
  masks,
  read_file,
  tokens,
)

import create_pretraining_data
import tokenization
from bertlib.tasks.pretraining import masking, pretraining_instances
from bertlib.tasks.pretraining.pretraining_text import read_documents
from bertlib.tasks.pretraining.recipe import Recipe

pytestmark = pytest.mark.unit


def read(lines, vocab_file, **options):
  counts = Counter()
  tokenizer = tokenization.FullTokenizer(vocab_file)
  return read_documents(lines, tokenizer, counts=counts, **options), counts


def test_line_ends_invalid_bytes_and_blank_lines_do_not_matter(vocab_file):
  plain = [b"w0000 w0003\n", b"w0006\n", b"\n", b"w0009\n"]
  odd = [b"\n", b"w0000 \xffw0003 \r\n", b" w0006\r\n", b"\r\n", b" \n"]
  odd += [b"w0009"]
  documents, counts = read(odd, vocab_file)
  assert documents == read(plain, vocab_file)[0]
  num_sentences = {"sentences": 3, "documents of one sentence": 1}
  assert counts == {"documents": 2} | num_sentences


def test_running_text_is_split_into_sentences(vocab_file):
  pytest.importorskip("sentencex", reason="pip install -e .[sentences]")
  text = [b"W0000 w0003. W0006 w0009! W0012\n", b"\n", b"W0015? W0018.\n"]
  sentences = [b"W0000 w0003.\n", b"W0006 w0009!\n", b"W0012\n", b"\n"]
  sentences += [b"W0015?\n", b"W0018.\n"]
  documents, _ = read(text, vocab_file, split_sentences="en")
  assert documents == read(sentences, vocab_file)[0]


# Pieces to records; `create_pretraining_data_test.py` compares pairs of
# segments with those of the reference.


OPTIONS = st.fixed_dictionaries(
  {
    "max_seq_length": st.integers(5, 40),
    "max_predictions_per_seq": st.integers(1, 10),
    "masked_lm_prob": st.floats(0, 1),
    "short_seq_prob": st.sampled_from([0, 0.1, 1]),
    "dupe_factor": st.integers(1, 3),
    "random_seed": st.integers(),
    "do_whole_word_mask": st.booleans(),
  }
)


# Ten documents of five sentences of five words of three pieces.
LARGE = [[[3] * 5] * 5] * 10


@parametrize("split", (1, 1, 2), (0, 1, 0))
def test_masked_tokens_are_replaced_by_the_split(vocab_file, split):
  options = {"dupe_factor": 20, "mask_split": split}
  records, _ = make(Corpus(LARGE), vocab_file, **options)
  shown = [
    (record["input_ids"][position], token)
    for record in records
    for position, token in masks(record).items()
  ]
  drawn = [token for token, true in shown if token not in (MASK, true)]
  mask, random_token, kept = (part / sum(split) for part in split)
  # A random entry may be [MASK] or the original.
  by_chance = random_token / len(VOCAB)
  num_masked = sum(token == MASK for token, _ in shown)
  assert_share(num_masked, len(shown), mask + by_chance)
  num_kept = sum(token == true for token, true in shown)
  assert_share(num_kept, len(shown), kept + by_chance)
  assert_share(sum(t < len(VOCAB) / 2 for t in drawn), len(drawn), 0.5)


def masked_words(record, corpus):
  """(input id or None if not masked, original id) of each word's pieces."""
  words = defaultdict(list)
  masked = masks(record)
  for position, (token, part) in enumerate(
    zip(tokens(record), record["segment_ids"])
  ):
    if token not in (CLS, SEP):
      shown = record["input_ids"][position] if position in masked else None
      words[part, corpus.positions[token][2]].append((shown, token))
  return list(words.values())


@given(documents=DOCUMENTS, options=OPTIONS)
def test_words_between_spaces_are_masked_whole(vocab_file, documents, options):
  corpus = Corpus(documents, CHINESE)
  options |= {"do_whole_word_mask": True, "word_boundaries": "spaces"}
  records, _ = make(corpus, vocab_file, **options)
  for record in records:
    for word in masked_words(record, corpus):
      assert len({shown is None for shown, _ in word}) == 1


def instance(**changed):
  return pretraining_instances.TrainingInstance(
    **{
      "tokens": ["[CLS]", "w0000", "[SEP]", "[MASK]", "[SEP]"],
      "segment_ids": [0, 0, 0, 1, 1],
      "masked_lm_positions": [3],
      "masked_lm_labels": ["w0003"],
      "is_random_next": True,
    }
    | changed
  )


def test_str_and_repr_of_an_instance():
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
  """A minimal tokenizer of other code."""

  def convert_tokens_to_ids(self, tokens):
    return [VOCAB.index(token) for token in tokens]


def write(instances, outputs, max_seq_length=8):
  create_pretraining_data.write_instance_to_example_files(
    instances, OtherTokenizer(), max_seq_length, 2, [*map(str, outputs)]
  )


@pytest.mark.graph
def test_a_record_equals_the_example_built_by_tensorflow(tmp_path):
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


def test_an_instance_that_does_not_fit_leaves_the_files_unchanged(tmp_path):
  (tmp_path / "out").write_bytes(b"earlier")
  for instances, max_seq_length in [
    ([instance(), instance()], 4),
    ([instance(masked_lm_positions=[1, 2, 3])], 8),
  ]:
    with pytest.raises(ValueError):
      write(instances, [tmp_path / "out"], max_seq_length)
  assert (tmp_path / "out").read_bytes() == b"earlier"
  assert os.listdir(tmp_path) == ["out"]


def pieces(corpus):
  """All piece ids of a corpus, by document, in their order."""
  by_document = defaultdict(list)
  for piece, (document, *_) in corpus.positions.items():
    by_document[document].append(piece)
  return list(by_document.values())


def runs(record):
  """The token ids between [CLS] and [SEP]s."""
  ids = tokens(record)
  assert ids[0] == CLS and ids[-1] == SEP
  ends = [position for position, token in enumerate(ids) if token == SEP]
  return [ids[start + 1 : end] for start, end in zip([0, *ends[:-1]], ends)]


@given(DOCUMENTS, OPTIONS, st.integers(3, 20))
def test_sequences_of_sentences_have_each_piece_once(
  vocab_file, documents, options, max_seq_length
):
  corpus = Corpus(documents)
  options |= {"dupe_factor": 1, "max_seq_length": max_seq_length}
  records, counts = make(corpus, vocab_file, segments="sentences", **options)
  assert "random next sentences" not in counts
  found = []
  for record in records:
    assert "next_sentence_labels" not in record
    assert not any(record["segment_ids"])
    (run,) = runs(record)
    found.append(run)
    document, _, _ = corpus.positions[run[0]]
    assert all(corpus.positions[i][0] == document for i in run)
  found.sort(key=lambda run: corpus.positions[run[0]])
  assert [*chain(*found)] == [*chain(*pieces(corpus))]
  if not options["short_seq_prob"]:
    # No sequence has room for the sentence after it.
    for run, after in zip(found, found[1:]):
      if corpus.positions[run[0]][0] == corpus.positions[after[0]][0]:
        assert len(run) + len(after) > max_seq_length - 2


@given(DOCUMENTS, OPTIONS, st.integers(3, 20))
def test_sequences_of_documents_cross_their_borders(
  vocab_file, documents, options, max_seq_length
):
  corpus = Corpus(documents)
  options |= {"dupe_factor": 1, "max_seq_length": max_seq_length}
  records, _ = make(corpus, vocab_file, segments="documents", **options)
  found = defaultdict(list)
  for record in records:
    borders = runs(record)
    for run in borders:
      found[corpus.positions[run[0]][0]].append(run)
    numbers = [corpus.positions[run[0]][0] for run in borders]
    assert len(set(numbers)) == len(numbers)
  for number, expected in enumerate(pieces(corpus)):
    parts = sorted(found[number], key=lambda run: corpus.positions[run[0]][1])
    assert [*chain(*parts)] == expected
  if not options["short_seq_prob"] and len(records) == 1:
    length = len(corpus.positions) + 1 + len(documents)
    assert sum(records[0]["input_mask"]) == length


def spans_of(positions):
  lengths = []
  for before, position in zip([-2, *positions], positions):
    if position == before + 1:
      lengths[-1] += 1
    else:
      lengths.append(1)
  return lengths


def test_spans_have_geometric_lengths():
  # Few words of a long text are masked, so that spans seldom meet.
  words = ["word"] * 200_000
  _, positions, _ = masking.create_masked_lm_predictions(
    words, 0.01, 2000, VOCAB, random.Random(0), do_span_mask=True
  )
  counts = Counter(spans_of(positions))
  weights = {length: 0.8**length for length in range(1, 11)}
  for length, weight in weights.items():
    share = weight / sum(weights.values())
    assert_share(counts[length], sum(counts.values()), share)


@given(documents=DOCUMENTS, options=OPTIONS)
def test_spans_are_words_with_one_replacement(vocab_file, documents, options):
  corpus = Corpus(documents)
  # Without random tokens, which may be [MASK] by chance.
  options |= {"do_span_mask": True, "mask_split": (1, 0, 1)}
  options["do_whole_word_mask"] = False
  records, _ = make(corpus, vocab_file, **options)
  for record in records:
    for word in masked_words(record, corpus):
      assert len({shown is None for shown, _ in word}) == 1
      assert len({shown == MASK for shown, _ in word if shown is not None}) <= 1
    masked, ids = masks(record), tokens(record)
    wanted = max(1, round(options["masked_lm_prob"] * len(ids)))
    assert len(masked) <= min(wanted, options["max_predictions_per_seq"])


@parametrize("segments", "pairs", "sentences", "documents")
def test_records_leave_no_reference_cycles(vocab_file, segments):
  # Their script does not look for any.
  corpus = Corpus([[[1, 2]] * 3 for _ in range(40)])
  options = {"segments": segments, "pack": segments == "sentences"}
  recipe = Recipe(vocab_file=vocab_file, max_seq_length=16, **options)
  tokenizer = tokenization.FullTokenizer(vocab_file)
  gc.collect()
  for _ in pretraining_instances.create_records(
    recipe, tokenizer, corpus.lines, random.Random(1), Counter()
  ):
    pass
  assert gc.collect() < 40


@parametrize(
  "limit, prob, words",
  (2, 0.15, "cuts off 67% of the masks. Give 6, both"),
  (5, 0.15, "cuts off 17% of the masks. Give 6, both"),
  (6, 0.15, None),
  (21, 0.5, None),
)
def test_masks_cut_off_are_reported(vocab_file, caplog, limit, prob, words):
  options = {"max_seq_length": 42, "segments": "documents", "dupe_factor": 1}
  options |= {"masked_lm_prob": prob, "max_predictions_per_seq": limit}
  corpus = Corpus([[[1] * 40] for _ in range(4)])  # 42 tokens in each record
  _, counts = make(corpus, vocab_file, short_seq_prob=0, **options)
  recipe = Recipe(vocab_file=vocab_file, **options)
  create_pretraining_data.report(counts, recipe)
  assert (words or "") in caplog.text
  assert ("cuts off" in caplog.text) == bool(words)
