"""Tests that a bad record is found, before and during training."""

import re

import commands
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import wrong_input_files
import wrong_input_world
from parametrize import parametrize

import modeling
import run_pretraining
from bertlib.cli.errors import InputError
from bertlib.data import tf_records, training_records
from bertlib.tasks.pretraining import pretraining_inputs, training_batches

pytestmark = pytest.mark.graph

LAYOUT = pretraining_inputs.limited_layout(
  modeling.BertConfig(9, type_vocab_size=2), 4, 2
)
ROW = {
  "input_ids": [2, 8, 3, 0],
  "input_mask": [1, 1, 1, 0],
  "segment_ids": [0, 0, 0, 0],
  "masked_lm_positions": [1, 0],
  "masked_lm_ids": [5, 0],
  "masked_lm_weights": [1.0, 0.0],
  "next_sentence_labels": [0],
}


def write(path, **bad):
  """Writes 3000 records; `record_N={...}` changes features of record N."""
  rows = [ROW | bad.get(f"record_{number}", {}) for number in range(3000)]
  tf_records.write_records(str(path), rows, LAYOUT)
  return str(path)


@parametrize("number", 0, 1023, 1024, 2999)
def test_the_first_bad_record_of_many_is_found(tmp_path, number):
  good = write(tmp_path / "good")
  is_bad = {"segment_ids": [7] * 4}
  records = {f"record_{n}": is_bad for n in (number, 2999)}
  bad = write(tmp_path / "bad", **records)
  assert training_records.find([good], LAYOUT) is None
  found = training_records.find([good, bad], LAYOUT)
  assert f"{bad}: record {number} " in found
  assert training_records.find([good, bad], LAYOUT, number) is None
  assert training_records.find([good, bad], LAYOUT, number + 1) == found


@parametrize("name", "segment_ids", "masked_lm_weights")
def test_a_bad_record_is_found_in_a_batch(name):
  batch = {feature: np.array([value] * 3) for feature, value in ROW.items()}
  batch["record_file"] = np.array(["a", "b", "c"])
  batch["record_number"] = np.array([7, 8, 9])
  assert training_records.find_in_batch(batch, LAYOUT) is None
  batch[name][1, 0] = 7 if name == "segment_ids" else np.inf
  found = training_records.find_in_batch(batch, LAYOUT)
  assert found.startswith(f"b: record 8 (the first is 0): {name} has ")


@parametrize("find", None, lambda: None)
def test_other_errors_are_unchanged(find):
  with (
    pytest.raises(tf.errors.InvalidArgumentError),
    training_records.report_bad_record(find),
  ):
    raise tf.errors.InvalidArgumentError(None, None, "of the model")


def test_an_error_is_logged_before_the_search(caplog):
  def find():
    assert caplog.messages == ["of the file"]
    return "a: record 1"

  with (
    pytest.raises(InputError, match="a: record 1"),
    training_records.report_bad_record(find),
  ):
    raise tf.errors.DataLossError(None, None, "of the file")


def test_nan_if_out_of_range():
  batch = {name: np.array([value]) for name, value in ROW.items()}
  bad = {"input_ids": [[0, 9, 0, 0]], "segment_ids": [[0, 0, -1, 0]]}
  bad["next_sentence_labels"] = [[2]]
  with tf.Graph().as_default(), tf.Session() as session:
    check = training_batches.nan_if_out_of_range
    assert session.run(check(batch, LAYOUT)) == 0
    for name, value in bad.items():
      term = check(batch | {name: np.array(value)}, LAYOUT)
      assert np.isnan(session.run(term)), name


@pytest.mark.train
@parametrize(
  "name, value, action",
  ("input_ids", [2, 10**6] + [0] * 14, "--do_train"),  # TensorFlow raises
  ("segment_ids", [7] * 16, "--do_train"),  # TensorFlow does not
  ("next_sentence_labels", [3], "--nodo_train"),
)
def test_training_and_evaluation_name_the_record(
  world, tmp_path, monkeypatch, caplog, name, value, action
):
  caplog.set_level("INFO", logger="absl")
  # As if the record were not among those checked before training.
  monkeypatch.setattr(pretraining_inputs, "_NUM_CHECKED", 0)
  path = tmp_path / "records"
  path.write_bytes(wrong_input_files.records(**{name: value}))
  arguments = [
    argument.format(world=world, out=tmp_path / "out")
    for argument in wrong_input_world.COMMANDS["run_pretraining"]
  ]
  with (
    commands.in_process(run_pretraining) as main,
    pytest.raises(InputError, match=re.escape(f"{path}: record 2 ")) as raised,
  ):
    main(*arguments, f"--input_file={path}", "--do_eval", action)
  assert name in str(raised.value)
  is_nan = name == "segment_ids"
  assert len([*tmp_path.glob("out/failed_step_*.npz")]) == is_nan
  searches = "Searching 1 files for a bad record" in caplog.messages
  assert searches == (name == "input_ids")
