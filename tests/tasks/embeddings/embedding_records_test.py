"""Tests of the records of texts for sentence embeddings."""

import logging

import numpy as np
import pytest
import tiny_model

from bertlib.data import input_pipeline, model_inputs, tf_records
from bertlib.tasks.embeddings import embedding_records
from bertlib.tasks.embeddings.embedding_examples import Example

pytestmark = pytest.mark.unit

WORDS = ["query", "passage", ":", *"abcde", *[f"w{n}" for n in range(300)]]
VOCAB = [*tiny_model.SPECIAL, *WORDS]


@pytest.fixture(scope="module")
def tokenizer():
  return tiny_model.tokenizer(*WORDS)


def write(folder, tokenizer, layout, examples, *arguments):
  """Writes records; returns them parsed, as NumPy arrays, and the lengths."""
  path, features = str(folder / "records"), embedding_records.layout(*layout)
  lengths = embedding_records.write_records(
    path, examples, features, tokenizer, *arguments
  )
  batches = input_pipeline.record_batches(path, features, 1000, False, False)
  (batch,) = batches.as_numpy_iterator()
  return batch, lengths


def tokens_of(batch):
  """The tokens of each text, with [CLS] and [SEP]."""
  return [
    [
      " ".join(VOCAB[i] for i in ids[mask > 0])
      for ids, mask in zip(group_ids, group_mask)
    ]
    for group_ids, group_mask in zip(batch["input_ids"], batch["input_mask"])
  ]


# Groups


def map_examples(groups):
  return [Example(list(texts)) for texts in groups]


@pytest.mark.graph
def test_token_features_are_those_of_each_text(tmp_path, tokenizer):
  texts = [["a b", "w299 c d e"], ["w200", "a " * 20]]
  layout = ("pairs", 2, 8)
  batch, _ = write(tmp_path, tokenizer, layout, map_examples(texts))
  for group, record in enumerate(texts):
    for index, text in enumerate(record):
      pair = model_inputs.encode_pair(tokenizer, text, None, 8)
      for name in model_inputs.TOKEN_FEATURES:
        assert batch[name][group, index].tolist() == getattr(pair, name)


@pytest.mark.graph
def test_missing_negatives_have_no_tokens_and_no_number(tmp_path, tokenizer):
  examples = map_examples([["a", "b"], ["c", "d", "e", "a"], ["b", "c", "d"]])
  layout = ("triplets", 4, 6)
  batch, lengths = write(tmp_path, tokenizer, layout, examples)
  assert batch["text_ids"].tolist() == [
    [0, 1, -1, -1],
    [2, 3, 4, 0],
    [1, 2, 3, -1],
  ]
  assert tokens_of(batch)[0] == [
    "[CLS] a [SEP]",
    "[CLS] b [SEP]",
    "[CLS] [SEP]",
    "[CLS] [SEP]",
  ]
  assert len(lengths.num_tokens) == 9


@pytest.mark.graph
def test_texts_with_the_same_tokens_have_the_same_number(tmp_path, tokenizer):
  # Case, white space, and what is truncated in both do not reach the model.
  texts = [["a b", "c"], ["C ", "A  b"], ["w0 w1 w2 w3 w4", "w0 w1 w2 w3 w5"]]
  layout = ("pairs", 2, 6)
  batch, _ = write(tmp_path, tokenizer, layout, map_examples(texts))
  assert batch["text_ids"].tolist() == [[0, 1], [1, 0], [2, 2]]


@pytest.mark.graph
def test_prefixes_change_the_tokens_and_not_the_numbers(tmp_path, tokenizer):
  examples = map_examples([["a", "b", "c"], ["b", "a", "d"]])
  prefixes = ("query: ", "passage: ")
  layout = ("triplets", 3, 8)
  batch, _ = write(tmp_path, tokenizer, layout, examples, prefixes)
  assert tokens_of(batch) == [
    [
      f"[CLS] query : {first} [SEP]",
      f"[CLS] passage : {second} [SEP]",
      f"[CLS] passage : {third} [SEP]",
    ]
    for first, second, third in ("abc", "bad")
  ]
  assert batch["text_ids"].tolist() == [[0, 1, 2], [1, 0, 3]]


@pytest.mark.graph
def test_values_of_the_examples_are_kept(tmp_path, tokenizer):
  examples = [Example(["a", "b"], score) for score in (0.0, 0.76, 1.0)]
  batch, _ = write(tmp_path, tokenizer, ("scored_pairs", 2, 4), examples)
  assert batch["scores"].tolist() == np.float32([0, 0.76, 1]).tolist()

  examples = [Example(["a", "b"], label=label) for label in "10"]
  batch, _ = write(tmp_path, tokenizer, ("labeled_pairs", 2, 4), examples)
  assert batch["scores"].tolist() == [1, 0]

  examples = [Example(["a"], label=label) for label in ("y", "x", "y", "Z")]
  batch, _ = write(tmp_path, tokenizer, ("labeled_texts", 1, 4), examples)
  assert batch["label_ids"].tolist() == [2, 1, 2, 0]


@pytest.mark.graph
def test_lengths_and_faults_are_logged(tmp_path, tokenizer, caplog):
  texts = [["a b c d e", "\u200b"], ["A b c d e", "a b", "c"]]
  layout = ("triplets", 3, 5)
  with caplog.at_level(logging.INFO, logger="absl"):
    _, lengths = write(tmp_path, tokenizer, layout, map_examples(texts))
  assert list(lengths.num_tokens) == [7, 2, 7, 4, 3]
  assert list(lengths.num_truncated_tokens) == [2, 0, 2, 0, 0]
  assert (lengths.limit, lengths.examples) == (5, "texts")
  path = f"{tmp_path}/records"
  assert caplog.messages == [
    f"2 examples with 5 texts written to {path}; 1 texts have the same tokens"
    " as an earlier one",
    "2 texts were truncated to 5 tokens and lost 4 tokens in total",
    "1 texts have no tokens",
  ]


# Batches of groups


@pytest.fixture
def uneven(tmp_path, tokenizer):
  """A file of 30 triplets of 1 to 24 words, and their layout."""
  rng = np.random.default_rng(3)
  examples = [
    Example([" ".join(["a"] * n) for n in rng.integers(1, 25, size=3)])
    for _ in range(30)
  ]
  features = embedding_records.layout("triplets", 3, 32)
  path = str(tmp_path / "uneven.tf_record")
  embedding_records.write_records(path, examples, features, tokenizer)
  return path, features


def batches_of(uneven):
  """Training batches of 4 groups, bucketed by length and trimmed."""
  path, features = uneven
  batches = input_pipeline.shuffled_record_batches(
    path, features, 4, True, 30, 7, by_length=True
  )
  return [*batches.take(7).as_numpy_iterator()]


@pytest.mark.graph
def test_groups_of_a_batch_have_similar_longest_texts(uneven):
  batches = batches_of(uneven)
  longest = [b["input_mask"].sum(axis=-1).max(axis=-1) for b in batches]
  within = np.mean([lengths.max() - lengths.min() for lengths in longest])
  everywhere = np.ptp(np.concatenate(longest))
  assert within < everywhere / 3


@pytest.mark.graph
def test_vectors_and_scores_are_not_trimmed(tmp_path, tokenizer):
  features = embedding_records.layout("scored_pairs", 2, 32, teacher_width=20)
  path = str(tmp_path / "train.tf_record")
  teacher = np.random.default_rng(0).normal(size=[1, 2, 20]).astype(np.float32)
  embedding_records.write_records(
    path, [Example(["a", "b"], 1.0)], features, tokenizer, ("", ""), teacher
  )
  (batch,) = input_pipeline.record_batches(path, features, 1, False, True)
  assert batch["input_ids"].shape == [1, 2, 8]
  np.testing.assert_array_equal(batch["teacher_vectors"], teacher)
  assert batch["scores"].shape == [1]


# Texts to encode


@pytest.mark.graph
def test_texts_are_written_in_order(tmp_path, tokenizer, caplog):
  path = str(tmp_path / "texts.tf_record")
  texts = ["a b", "w250 c d e a b c", "\u200b"]
  with caplog.at_level(logging.INFO, logger="absl"):
    count = embedding_records.write_texts(path, iter(texts), tokenizer, 6)
  assert count == 3
  assert caplog.messages == [
    f"3 texts written to {path}",
    "1 texts were truncated to 6 tokens and lost 3 tokens in total",
    "1 texts have no tokens",
  ]
  features = tf_records.token_layout(6)
  (batch,) = input_pipeline.record_batches(path, features, 9, False, False)
  for name in model_inputs.TOKEN_FEATURES:
    expected = [
      getattr(model_inputs.encode_pair(tokenizer, text, None, 6), name)
      for text in texts
    ]
    assert batch[name].numpy().tolist() == expected


@pytest.mark.graph
def test_the_last_text_fills_the_last_batch(tmp_path, tokenizer):
  path = str(tmp_path / "texts.tf_record")
  texts = iter(["a", "b", "c"])
  count = embedding_records.write_texts(
    path, texts, tokenizer, 6, multiple_of=2
  )
  assert count == 3
  features = tf_records.token_layout(6)
  (batch,) = input_pipeline.record_batches(path, features, 9, False, False)
  tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"].numpy()[:, 1])
  assert tokens == ["a", "b", "c", "c"]
