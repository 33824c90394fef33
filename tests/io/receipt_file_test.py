"""Tests of reading receipts, of all versions."""

import json
import shutil
from pathlib import Path

import pytest
import run_folders
from parametrize import parametrize

from bertlib.cli.errors import InputError
from bertlib.io import receipt_file

pytestmark = pytest.mark.unit

# Written by those versions.
OLD = Path(__file__).parent / "receipts"


def read(folder):
  return [*receipt_file.read_all(str(folder))]


def test_run_1_json_of_version_0_23_is_an_earlier_run():
  evaluation, training = read(OLD / "0.23.0")
  kinds = [receipt_file.kind_of(r["flags"]) for r in (evaluation, training)]
  assert kinds == ["evaluation", "training"]
  assert receipt_file.last_training(str(OLD / "0.23.0")) == training
  assert receipt_file.chosen(training) == {"xla": "on"}


def test_a_training_of_version_0_21_is_read(tmp_path):
  shutil.copy(OLD / "0.21.1.json", tmp_path / "run.json")
  (training,) = read(tmp_path)
  assert receipt_file.last_training(str(tmp_path)) == training


def test_the_last_entry_is_read_first(tmp_path):
  entries = {
    kind: run_folders.receipt(kind)
    for kind in ("evaluation", "training", "prediction")
  }
  (tmp_path / "run.json").write_text(json.dumps(entries))
  assert read(tmp_path) == [*reversed(entries.values())]


@parametrize(
  "flags, kind",
  ({"do_train": True, "do_eval": True}, "training"),
  ({"do_train": False, "do_eval": True, "do_predict": True}, "evaluation"),
  ({"do_predict": True}, "prediction"),
  ({}, "prediction"),
)
def test_kinds_of_runs(flags, kind):
  assert receipt_file.kind_of(flags) == kind


@parametrize(
  "content, problem",
  ([], "its content is a list, not an object"),
  ({}, "has no script"),
  ({"flags": []}, "has no script"),
  ({"training": {}}, "has no training.script"),
  ({"evaluation": 1}, "evaluation is 1, not an object"),
)
def test_a_malformed_receipt_is_refused(tmp_path, content, problem):
  path = tmp_path / "run.json"
  path.write_text(json.dumps(content))
  with pytest.raises(InputError) as refused:
    read(tmp_path)
  assert str(refused.value).startswith(f"{path}: {problem}. Move it away")
  assert receipt_file.last_training(str(tmp_path)) is None
