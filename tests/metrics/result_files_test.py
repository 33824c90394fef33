"""Tests of `eval_results.txt`."""

import numpy as np
import pytest

from bertlib.errors import InputError
from bertlib.metrics import result_files

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
  assert read == {
    name: results[name] for name in ("global_step", "confusion_matrix", "note")
  }


def test_missing_results_are_refused(tmp_path):
  with pytest.raises(InputError, match=r"none\.txt: is missing; add --do_eval"):
    result_files.read_results(str(tmp_path / "none.txt"))
