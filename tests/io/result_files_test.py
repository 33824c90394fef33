"""Tests of `eval_results.txt` and `eval_predictions.jsonl`."""

import numpy as np
import pytest

from bertlib.cli.errors import InputError
from bertlib.io import result_files
from bertlib.io.result_files import DevPrediction

pytestmark = pytest.mark.unit


def test_results_round_trip_through_the_file(tmp_path):
  results = {
    "eval_accuracy": np.float32(2 / 3),
    "eval_loss": np.float32(1e-9),
    "global_step": 12,
    "confusion_matrix": [[1, 2], [3, 4]],
    "note": "a = b",
    "labels": '["a", "\u00fc"]',
  }
  path = str(tmp_path / "eval_results.txt")
  result_files.write_results(path, results)
  read = result_files.read_results(path)
  assert read.pop("labels") == ["a", "\u00fc"]
  for name in ("eval_accuracy", "eval_loss"):
    assert np.float32(read.pop(name)) == results[name]
  names = "global_step", "confusion_matrix", "note"
  assert read == {name: results[name] for name in names}


def test_the_log_has_the_beginning_of_a_large_matrix(tmp_path, log):
  path = tmp_path / "eval_results.txt"
  matrix = [[0] * 100] * 100
  result_files.write_results(str(path), {"confusion_matrix": matrix})
  (line,) = log
  assert len(line) < 1100 and line.endswith("...")
  assert result_files.read_results(str(path))["confusion_matrix"] == matrix


def test_bad_rows_are_written_per_file_and_replace_earlier_ones(tmp_path):
  bad_rows = {"data/a.csv": ["row 1: a\tb", "row 2"], "data/b.csv": []}
  result_files.write_bad_rows(str(tmp_path), bad_rows)
  (path,) = tmp_path.iterdir()
  assert path.name == "a_bad_rows.txt"
  assert path.read_text() == "row 1: a\\tb\nrow 2\n"
  result_files.write_bad_rows(str(tmp_path), {"a.csv": []})
  assert path.read_text() == ""


def test_missing_results_are_refused(tmp_path):
  with pytest.raises(InputError, match=r"none\.txt: is missing; add --do_eval"):
    result_files.read_results(str(tmp_path / "none.txt"))


def test_dev_predictions_round_trip_through_the_file(tmp_path):
  predictions = [
    DevPrediction("a", "yes\tor\nno", "\u00fc"),
    DevPrediction("b", 2.5, 1 / 3),
    DevPrediction("c", ["B-PER", "O"], []),
  ]
  path = str(tmp_path / "eval_predictions.jsonl")
  result_files.write_dev_predictions(path, predictions)
  assert result_files.read_dev_predictions(path) == predictions


def test_a_prediction_without_gold_label_is_refused(tmp_path):
  path = tmp_path / "eval_predictions.jsonl"
  path.write_text('{"guid": "a", "predicted": "yes"}\n')
  with pytest.raises(InputError, match=r"jsonl, line 1: has no gold\. Eval"):
    result_files.read_dev_predictions(str(path))
