"""Tests of the records of texts for sentence embeddings."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_model

from bertlib.data import input_pipeline, model_inputs, tf_records
from bertlib.data.text_groups import Example
from bertlib.settings.common import TRUNCATE
from bertlib.tasks.embeddings import embedding_records as records
from bertlib.training import text_sets

pytestmark = pytest.mark.graph

WORDS = ["query", "passage", ":", *"abcde", *[f"w{n}" for n in range(300)]]
VOCAB = [*tiny_model.SPECIAL, *WORDS]


@pytest.fixture(scope="module")
def tokenizer():
  return tiny_model.tokenizer(*WORDS)


@pytest.fixture
def write(tmp_path, tokenizer):
  """Function that writes records, and returns them as arrays."""

  def write(layout, groups, *arguments):
    path, features = f"{tmp_path}/records", records.layout(*layout)
    examples = [
      group if isinstance(group, Example) else Example(list(group))
      for group in groups
    ]
    records.write_records(path, examples, features, tokenizer, *arguments)
    batches = input_pipeline.record_batches(path, features, 1000, False, False)
    (batch,) = batches.as_numpy_iterator()
    return batch

  return write


def tokens_of(batch):
  """The tokens of each text, with [CLS] and [SEP]."""
  return [
    [" ".join(VOCAB[i] for i in ids[mask > 0]) for ids, mask in zip(*group)]
    for group in zip(batch["input_ids"], batch["input_mask"])
  ]


def test_token_features_are_those_of_each_text(write, tokenizer):
  texts = [["a b", "w299 c d e"], ["w200", "a " * 20]]
  batch = write(("pairs", 2, 8), texts)
  for group, record in enumerate(texts):
    for index, text in enumerate(record):
      pair = model_inputs.encode_pair(tokenizer, text, None, 8)
      for name in model_inputs.TOKEN_FEATURES:
        assert batch[name][group, index].tolist() == getattr(pair, name)


def test_missing_negatives_have_no_tokens_and_no_number(write):
  batch = write(("triplets", 4, 6), ["ab", "cdea", "bcd"])
  ids = batch["text_ids"].tolist()
  assert ids == [[0, 1, -1, -1], [2, 3, 4, 0], [1, 2, 3, -1]]
  missing = ["[CLS] [SEP]"] * 2
  assert tokens_of(batch)[0] == ["[CLS] a [SEP]", "[CLS] b [SEP]", *missing]


def test_texts_with_the_same_tokens_have_the_same_number(write):
  # Case, white space, and what is truncated in both do not reach the model.
  texts = [["a b", "c"], ["C ", "A  b"], ["w0 w1 w2 w3 w4", "w0 w1 w2 w3 w5"]]
  batch = write(("pairs", 2, 6), texts)
  assert batch["text_ids"].tolist() == [[0, 1], [1, 0], [2, 2]]


def test_prefixes_change_the_tokens_and_not_the_numbers(write):
  prefixes = ("query: ", "passage: ")
  batch = write(("triplets", 3, 8), ["abc", "bad"], prefixes)
  prefixes = ["query", "passage", "passage"]
  assert tokens_of(batch) == [
    [f"[CLS] {prefix} : {text} [SEP]" for prefix, text in zip(prefixes, texts)]
    for texts in ("abc", "bad")
  ]
  assert batch["text_ids"].tolist() == [[0, 1, 2], [1, 0, 3]]


def test_values_of_the_examples_are_kept(write):
  examples = [Example(["a", "b"], score) for score in (0.0, 0.76, 1.0)]
  batch = write(("scored_pairs", 2, 4), examples)
  assert batch["scores"].tolist() == np.float32([0, 0.76, 1]).tolist()

  examples = [Example(["a", "b"], label=label) for label in "10"]
  batch = write(("labeled_pairs", 2, 4), examples)
  assert batch["scores"].tolist() == [1, 0]

  examples = [Example(["a"], label=label) for label in ("y", "x", "y", "Z")]
  batch = write(("labeled_texts", 1, 4), examples)
  assert batch["label_ids"].tolist() == [2, 1, 2, 0]


def test_repeated_truncated_and_empty_texts_are_logged(write, tmp_path, caplog):
  texts = [["a b c d e", "\u200b"], ["A b c d e", "a b", "c"]]
  with caplog.at_level(logging.INFO, logger="absl"):
    write(("triplets", 3, 5), texts)
  assert caplog.messages == [
    f"2 examples with 5 texts written to {tmp_path}/records; 1 texts have the"
    " same tokens as an earlier one",
    "2 texts were truncated to 5 tokens and lost 4 tokens in total",
    "1 texts have no tokens",
  ]


def write_texts(folder, texts, tokenizer, length, batch_size=1):
  """Writes texts to encode; returns their number and a batch of them."""
  model = SimpleNamespace(max_seq_length=length)
  run = SimpleNamespace(
    path=lambda name: str(folder / "texts"),
    flags=SimpleNamespace(do_train=True),
    settings=SimpleNamespace(model=model, cutting=TRUNCATE),
    tokenizer=tokenizer,
    on_tpu=True,
  )
  pairs = ((text, None) for text in texts)
  path, num_rows, *_ = text_sets.write(run, "texts", pairs, batch_size)
  features = tf_records.token_layout(6)
  (batch,) = input_pipeline.record_batches(path, features, 9, False, False)
  return sum(num_rows), batch


def test_texts_are_written_in_order(tmp_path, tokenizer, caplog):
  texts = ["a b", "w250 c d e a b c", "\u200b"]
  with caplog.at_level(logging.INFO, logger="absl"):
    count, batch = write_texts(tmp_path, texts, tokenizer, 6)
  assert count == 3
  assert caplog.messages == [
    f"3 texts written to {tmp_path}/texts",
    "1 texts were truncated to 6 tokens and lost 3 tokens in total",
    "1 texts have no tokens",
  ]
  rows = [model_inputs.encode_pair(tokenizer, text, None, 6) for text in texts]
  for name in model_inputs.TOKEN_FEATURES:
    assert batch[name].numpy().tolist() == [getattr(row, name) for row in rows]


def test_the_last_text_fills_the_last_batch(tmp_path, tokenizer):
  count, batch = write_texts(tmp_path, "abc", tokenizer, 6, batch_size=2)
  assert count == 3
  tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"].numpy()[:, 1])
  assert tokens == ["a", "b", "c", "c"]
