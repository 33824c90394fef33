"""Tests of text encoding, TFRecords and input pipelines."""

import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
import tiny_model
from hypothesis import given
from hypothesis import strategies as st
from parametrize import parametrize
from refused import assert_refused

from bertlib.cli.errors import InputError
from bertlib.data import (
  input_pipeline,
  model_inputs,
  tf_records,
  training_records,
)

pytestmark = pytest.mark.graph
RECORDS = [b"first", b"", b"the third of three"]
LAYOUT_20 = tf_records.token_layout(20) | {"label": tf_records.Feature()}


@given(st.integers(0, 40), st.integers(0, 40), st.integers(-1, 40))
def test_truncated_lengths_equal_removing_one_by_one(length_a, length_b, room):
  kept = [*range(length_a)], [*range(length_b)]
  while sum(map(len, kept)) > max(room, 0):
    max(reversed(kept), key=len).pop()  # of the second one if equal
  lengths = model_inputs.truncated_lengths(length_a, length_b, room)
  assert lengths == tuple(map(len, kept))
  pair = [*range(length_a)], [*range(length_b)]
  model_inputs._truncate_seq_pair(*pair, room)
  assert pair == kept


@parametrize("blank", "", " ", "\u200b")
def test_a_second_text_without_tokens_is_ignored(blank):
  tokenizer = tiny_model.tokenizer("cat", "sat")
  alone = model_inputs.encode_pair(tokenizer, "cat sat", None, 8)
  assert model_inputs.encode_pair(tokenizer, "cat sat", blank, 8) == alone


LAYOUT = {
  "ids": tf_records.Feature((3,)),
  "label": tf_records.Feature(),
  "score": tf_records.Feature(is_float=True),
  "weights": tf_records.Feature((2,), is_float=True),
}
ROWS = [
  {"ids": [1, -2, 3], "label": 7, "score": 0.1, "weights": [1e-30, -2.5]},
  {"ids": [0, 2**31 - 1, 6], "label": -8, "score": 4, "weights": [0.0, 1e30]},
]


@given(
  ids=st.lists(st.integers(-(2**63), 2**63 - 1)),
  label=st.integers(-(2**63), 2**63 - 1),
  weights=st.lists(st.floats(width=32, allow_nan=False)),
)
def test_record_encoder_equals_protocol_buffers(ids, label, weights):
  layout = {
    "label": tf_records.Feature(),
    "ids": tf_records.Feature((None,)),
    "weights": tf_records.Feature((None,), is_float=True),
  }
  row = {"ids": ids, "label": label, "weights": weights}
  expected = tf.train.Example()
  feature = expected.features.feature
  feature["ids"].int64_list.value.extend(ids)
  feature["label"].int64_list.value.append(label)
  feature["weights"].float_list.value.extend(weights)
  serialized = expected.SerializeToString(deterministic=True)
  assert tf_records.record_encoder(layout)(row) == serialized


def test_files_equal_those_of_tensorflow(tmp_path):
  content, _ = write_serialized(tmp_path / "expected", RECORDS)
  tf_records.write_serialized(str(tmp_path / "written"), RECORDS)
  assert (tmp_path / "written").read_bytes() == content


def test_records_read_back_as_int32_and_float32(tmp_path):
  path = str(tmp_path / "rows")
  assert tf_records.write_records(path, ROWS, LAYOUT) == 2
  serialized = [*tf.data.TFRecordDataset(path).as_numpy_iterator()]
  parsed = input_pipeline.parse_records(serialized, LAYOUT)
  assert list(parsed) == list(LAYOUT)
  for name, feature in LAYOUT.items():
    assert parsed[name].dtype == (tf.float32 if feature.is_float else tf.int32)
    expected = np.array([row[name] for row in ROWS], parsed[name].dtype.name)
    np.testing.assert_array_equal(parsed[name], expected, name)


def test_a_feature_with_a_default_may_be_missing():
  layout = {"label": tf_records.Feature()}
  old = tf_records.record_encoder(layout)({"label": 4})
  layout["real"] = tf_records.Feature(default=1)
  parsed = input_pipeline.parse_records([old], layout)
  assert [int(parsed["label"][0]), int(parsed["real"][0])] == [4, 1]


def test_a_failed_write_keeps_the_previous_file(tmp_path):
  def rows():
    yield ROWS[0]
    raise InputError("row 2 is bad")

  path = tmp_path / "rows"
  tf_records.write_records(str(path), ROWS, LAYOUT)
  before = path.read_bytes()
  with pytest.raises(InputError, match="row 2 is bad"):
    tf_records.write_records(str(path), rows(), LAYOUT)
  assert path.read_bytes() == before
  assert list(tmp_path.iterdir()) == [path]


def write_serialized(path, records):
  """Writes a TFRecord file; returns its bytes and the start of each record."""
  with tf.io.TFRecordWriter(str(path)) as writer:
    for record in records:
      writer.write(record)
  sizes = [8 + 4 + len(record) + 4 for record in records]
  content = path.read_bytes()
  assert sum(sizes) == len(content)
  return content, [0, *itertools.accumulate(sizes[:-1])]


@parametrize("scheme", "", "file://")
def test_count_records(tmp_path, scheme):
  write_serialized(tmp_path / "three", RECORDS)
  assert tf_records.count_records(f"{scheme}{tmp_path}/three") == 3


@parametrize("block_bytes", 12, 30, 2**20)
def test_a_truncated_file_is_refused(tmp_path, monkeypatch, block_bytes):
  monkeypatch.setattr(tf_records, "_BLOCK_BYTES", block_bytes)
  path = tmp_path / "cut"
  content, starts = write_serialized(path, RECORDS)
  for end in range(1, len(content)):
    path.write_bytes(content[:end])
    num_begun = sum(start < end for start in starts)
    if end in starts:  # shorter, but between two records
      assert tf_records.count_records(str(path)) == num_begun
    else:
      with pytest.raises(InputError) as refused:
        tf_records.count_records(str(path))
      expected = f"{path}: truncated at byte {end}, in record {num_begun}."
      assert str(refused.value).startswith(expected)


def test_a_record_length_beyond_the_end_is_refused(tmp_path):
  path = tmp_path / "wrong"
  content, starts = write_serialized(path, RECORDS)
  second = content[starts[1] + 8 :]
  path.write_bytes(content[: starts[1]] + b"\xff" * 8 + second)
  assert_refused(f"^{path}: record 1 ", tf_records.count_records, str(path))


def test_a_file_without_records_is_refused(tmp_path):
  path = tmp_path / "empty"
  path.write_bytes(b"")
  with pytest.raises(InputError, match=f"{path}: holds no records"):
    tf_records.count_records(str(path))


def shuffled(num_elements, num_taken, **arguments):
  """The first `num_taken` elements of an infinitely shuffled range."""
  dataset = training_records.shuffle_epochs(
    tf.data.Dataset.range(num_elements), num_elements, **arguments
  )
  return [int(element) for element in dataset.take(num_taken)]


def test_each_epoch_has_each_element_once_in_another_order():
  order = shuffled(20, 100, seed=5)
  epochs = [order[start : start + 20] for start in range(0, 100, 20)]
  assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 5
  assert len(set(map(tuple, epochs))) == 5
  assert shuffled(20, 50, seed=5) == order[:50]
  assert shuffled(20, 50, seed=6) != order[:50]


def test_order_is_the_same_in_every_tensorflow_version():
  assert shuffled(8, 8, seed=1) == [5, 1, 6, 4, 7, 2, 0, 3]


@parametrize("done", 0, 1, 6, 7, 8, 23)
def test_a_resumed_run_sees_the_same_elements(done):
  rest = shuffled(7, 40 - done, seed=2, first_element=done)
  assert rest == shuffled(7, 40, seed=2)[done:]


def test_all_orders_are_equally_likely():
  order = shuffled(3, 3 * 1200, seed=0)
  counts = Counter(zip(order[::3], order[1::3], order[2::3]))
  assert len(counts) == 6
  deviation = sum((count - 200) ** 2 / 200 for count in counts.values())
  assert deviation < 20.5  # chi-squared, 5 degrees of freedom: 0.1 %


def lengths_of(batches):
  return [batch["input_mask"].numpy().sum(axis=1).tolist() for batch in batches]


def write_rows(path, lengths, labels):
  """Writes records of these numbers of tokens; returns the path."""
  rows = []
  for length, label in zip(lengths, labels):
    mask = [1] * length + [0] * (20 - length)
    row = dict.fromkeys(model_inputs.TOKEN_FEATURES, mask)
    rows.append(row | {"label": label})
  tf_records.write_records(str(path), rows, LAYOUT_20)
  return str(path)


def write_sorted(path, num_rows):
  """Writes records of 1 to 6 tokens, sorted by label."""
  numbers = range(num_rows)
  return write_rows(
    path, [n % 6 + 1 for n in numbers], [n * 2 // num_rows for n in numbers]
  )


def sorted_batches(tmp_path, is_shuffled, size, num_records=10, **options):
  path = write_sorted(tmp_path / "sorted", num_records)
  if is_shuffled:
    options |= {"num_records": num_records, "seed": 0}
    batches = training_records.shuffled_record_batches
  else:
    options = {"drop_remainder": True} | options
    batches = input_pipeline.record_batches
  return batches(path, LAYOUT_20, size, **options)


def test_sorted_files_are_shuffled(tmp_path):
  for batch in sorted_batches(tmp_path, True, 8, 64, trim=False).take(16):
    assert set(batch["label"].numpy()) == {0, 1}


def test_a_resumed_training_goes_on_with_the_batch_of_its_step(tmp_path):
  path = write_sorted(tmp_path / "sorted", 10)

  def masks(first_step, num_batches):
    input_fn = training_records.record_input_fn(
      path, LAYOUT_20, True, True, seed=3, first_step=first_step
    )
    batches = input_fn({"batch_size": 4}).take(num_batches)
    return [batch["input_mask"].numpy().tolist() for batch in batches]

  assert masks(first_step=3, num_batches=4) == masks(0, 7)[3:]


@parametrize("drops, sizes", (False, [4, 4, 2]), (True, [4, 4]))
def test_unshuffled_batches_are_in_order(tmp_path, drops, sizes):
  options = {"drop_remainder": drops, "trim": False}
  batches = [*sorted_batches(tmp_path, False, 4, **options)]
  assert [len(batch["label"]) for batch in batches] == sizes
  lengths = [*itertools.chain(*lengths_of(batches))]
  assert lengths == [n % 6 + 1 for n in range(sum(sizes))]


def test_several_files_are_read_one_after_the_other(tmp_path):
  paths = [write_sorted(tmp_path / str(size), size) for size in (3, 2)]
  batches = input_pipeline.record_batches(paths, LAYOUT_20, 8, False, False)
  assert lengths_of(batches) == [[1, 2, 3, 1, 2]]


@parametrize("is_shuffled", False, True)
def test_shapes_are_static(tmp_path, is_shuffled):
  batches = sorted_batches(tmp_path, is_shuffled, 4, trim=False)
  shapes = {name: [*spec.shape] for name, spec in batches.element_spec.items()}
  expected = {name: [4, 20] for name in model_inputs.TOKEN_FEATURES}
  assert shapes == expected | {"label": [4]}


@parametrize("is_shuffled", False, True)
def test_trimmed_batches_are_as_long_as_the_longest_row(tmp_path, is_shuffled):
  for batch in sorted_batches(tmp_path, is_shuffled, 5, trim=True).take(2):
    for name in model_inputs.TOKEN_FEATURES:
      assert batch[name].shape == [5, 8]


def batch_of(mask):
  """Features with this mask and with other values all different."""
  mask = tf.constant(mask, tf.int32)
  numbers = tf.reshape(tf.range(tf.size(mask)), mask.shape)
  return {
    "input_ids": numbers,
    "input_mask": mask,
    "segment_ids": -numbers,
    "label_ids": tf.range(len(mask)),
  }


@parametrize(
  "mask, multiple, length",
  ([[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]], 1, 3),
  ([[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]], 2, 4),
  ([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]], 2, 4),
  ([[1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]], 4, 6),  # not longer than before
  ([[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]], 8, 6),
  ([[1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0]], 1, 4),  # a gap in a row
  ([[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]], 1, 3),  # a row without tokens
  ([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], 2, 2),
)
def test_only_common_padding_is_removed(mask, multiple, length):
  before = batch_of(mask)
  after = input_pipeline.trim_padding(before, multiple)
  assert list(after) == list(before)
  for name in model_inputs.TOKEN_FEATURES:
    np.testing.assert_array_equal(after[name], before[name][:, :length], name)
  np.testing.assert_array_equal(after["label_ids"], before["label_ids"])


@parametrize("num_labels", 12, 16)
def test_labels_are_trimmed_only_if_one_per_token(tmp_path, num_labels):
  labels = {"label_ids": tf_records.Feature((num_labels,))}
  tags = {"tags": tf_records.Feature((16,), per_token=True)}
  layout = tf_records.token_layout(16) | labels | tags
  path = str(tmp_path / "labels")
  row = dict.fromkeys(model_inputs.TOKEN_FEATURES, [1] * 3 + [0] * 13)
  row |= {"label_ids": range(num_labels), "tags": range(16)}
  tf_records.write_records(path, [row, row], layout)
  (batch,) = input_pipeline.record_batches(path, layout, 2, False, trim=True)
  assert batch["tags"].numpy().tolist() == [list(range(8))] * 2
  assert batch["label_ids"].numpy().tolist() == [list(range(num_labels))] * 2


@pytest.fixture
def uneven(tmp_path):
  """A file of 50 numbered records of 1 to 20 tokens."""
  lengths = np.random.default_rng(5).integers(1, 21, 50)
  return write_rows(tmp_path / "uneven.tf_record", lengths, range(50))


def ids_of(batches, name="label"):
  return [number for b in batches for number in b[name].numpy().tolist()]


def test_sorted_records_come_longest_first_with_their_input_index(uneven):
  options = 8, False, True, True
  batches = [*input_pipeline.record_batches(uneven, LAYOUT_20, *options)]
  lengths = [*itertools.chain(*lengths_of(batches))]
  assert lengths == sorted(lengths, reverse=True)
  assert ids_of(batches, "input_index") == ids_of(batches)


@parametrize("block_size", 8, 16, 50)
def test_rows_wait_for_those_of_their_block_only(uneven, block_size):
  batches = input_pipeline.record_batches(
    uneven, LAYOUT_20, 8, False, True, by_length=True, block_size=block_size
  )
  num_read = 0

  def rows():
    nonlocal num_read
    for index in ids_of(batches, "input_index"):
      num_read += 1
      yield {"input_index": index}

  order, num_waiting = [], []
  for row in tf_records.restore_input_order(rows()):
    num_waiting.append(num_read - len(order))
    order.append(row["input_index"])
  assert order == list(range(50))
  assert block_size // 2 < max(num_waiting) <= block_size


def bucketed(uneven, num_batches):
  batches = training_records.shuffled_record_batches(
    uneven, LAYOUT_20, 8, True, 50, seed=3, by_length=True
  )
  return list(batches.take(num_batches))


def test_bucketed_batches_have_similar_lengths(uneven):
  # The last 2 of 50 records share a batch with the next epoch's first 6.
  batches = bucketed(uneven, 6)
  spreads = [max(lengths) - min(lengths) for lengths in lengths_of(batches)]
  assert max(spreads) <= 6
  assert np.mean(spreads) < 4


def test_bucketed_epochs_have_every_record_once(uneven):
  ids = ids_of(bucketed(uneven, 25))
  for epoch in range(4):
    assert sorted(ids[50 * epoch : 50 * (epoch + 1)]) == list(range(50))


def test_bucketed_batches_come_in_random_order(uneven):
  totals = [sum(lengths) for lengths in lengths_of(bucketed(uneven, 6))]
  assert totals != sorted(totals) and totals != sorted(totals, reverse=True)
