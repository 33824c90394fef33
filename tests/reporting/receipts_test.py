"""Tests of the starts of a run in its receipt."""

import dataclasses
import datetime
import json
import os

import pytest

from bertlib import receipt_file
from bertlib.reporting import receipts
from bertlib.settings import option
from bertlib.settings.classifier import ClassifierSettings
from bertlib.settings.pretraining import PretrainingSettings

pytestmark = pytest.mark.unit


def clock(time):
  """The time of a day, such as "10:30"."""
  return datetime.datetime.fromisoformat(f"2026-11-23T{time}:00+00:00")


@pytest.fixture
def start(tmp_path, monkeypatch):
  """Starts a training at a time; returns its receipt."""
  monkeypatch.setattr(receipts, "code_hashes", dict)
  monkeypatch.setattr(receipts, "versions", dict)

  def start(time, do_train=True, command_line=()):
    monkeypatch.setattr(receipts, "_now", clock(time).isoformat)
    settings = option.make(
      ClassifierSettings, output_dir=str(tmp_path), do_train=do_train
    )
    of_receipt = dataclasses.replace(
      settings.receipt, command_line=command_line
    )
    settings = dataclasses.replace(settings, receipt=of_receipt)
    receipt = receipts.begin("run_classifier.py", settings)
    receipt.start(settings, [])
    return receipt

  return start


@pytest.fixture
def finish(tmp_path, monkeypatch):
  """Ends a run at a time; returns the content of its receipt."""

  def finish(receipt, time):
    monkeypatch.setattr(receipts, "_now", clock(time).isoformat)
    receipt.finish({"eval_accuracy": 0.5})
    return json.loads((tmp_path / "run.json").read_text())

  return finish


def save(path, time):
  """Saves a checkpoint at a time."""
  path.parent.mkdir(exist_ok=True)
  path.write_text('model_checkpoint_path: "model.ckpt-1"\n')
  os.utime(path, (clock(time).timestamp(),) * 2)


def minutes(receipt):
  return receipt_file.duration(receipt).total_seconds() / 60


@pytest.mark.parametrize("name", ["checkpoint", "seed_7/checkpoint"])
def test_an_interrupted_start_counts_until_its_last_checkpoint(
  start, finish, tmp_path, name
):
  start("10:00")
  save(tmp_path / name, "10:20")
  start("12:00")
  save(tmp_path / name, "12:30")
  done = finish(start("14:00"), "14:05")
  assert minutes(done) == 20 + 30 + 5
  assert [s["started"][11:16] for s in receipt_file.starts(done)] == [
    "10:00",
    "12:00",
    "14:00",
  ]


def test_a_start_that_ended_counts_until_its_end(start, finish, tmp_path):
  receipt = start("10:00")
  save(tmp_path / "checkpoint", "10:20")
  finish(receipt, "10:25")
  assert minutes(finish(start("12:00"), "12:05")) == 25 + 5


def test_a_start_that_saved_nothing_does_not_count(start, finish, tmp_path):
  start("10:00")
  save(tmp_path / "checkpoint", "10:20")
  start("12:00")
  assert minutes(finish(start("14:00"), "14:05")) == 20 + 5


def test_a_run_that_begins_again_has_one_start(start, finish, tmp_path):
  start("10:00")
  save(tmp_path / "checkpoint", "10:20")
  start("12:00")
  (tmp_path / "checkpoint").unlink()
  assert minutes(finish(start("14:00"), "14:05")) == 5


def test_an_evaluation_is_not_resumed(start, finish, tmp_path):
  save(tmp_path / "checkpoint", "10:20")
  finish(start("10:00", do_train=False), "10:25")
  assert minutes(finish(start("12:00", do_train=False), "12:05")) == 5


def test_starts_of_another_run_do_not_count(start, finish, tmp_path):
  start("10:00", command_line=["--seed=1"])
  save(tmp_path / "checkpoint", "10:20")
  assert minutes(finish(start("12:00"), "12:05")) == 5
  other = json.loads((tmp_path / "run-1.json").read_text())
  assert other["given"] == ["--seed=1"]


def test_paths_may_be_no_utf_8(start, finish):
  given = ["--data_dir=für/f\udcfcr"]  # in UTF-8 and in Latin-1
  done = finish(start("10:00", command_line=given), "10:05")
  assert done["given"] == given


@pytest.mark.parametrize(
  "names", ["wiki-*", "wiki-*,books-*", "books-*, wiki-0", "books-*,wiki-0"]
)
def test_a_flag_may_name_several_data_files(tmp_path, names):
  for name in ("wiki-0", "news-0"):
    (tmp_path / name).write_text("text")
  settings = option.make(
    PretrainingSettings,
    input_file=names.replace("wiki", f"{tmp_path}/wiki"),
    output_dir=str(tmp_path / "output"),
  )
  receipt = receipts.begin("run_pretraining.py", settings)
  receipt.start(settings, [f"{tmp_path}/wiki-0", f"{tmp_path}/news-0"])
  recorded = json.loads((tmp_path / "output" / "run.json").read_text())
  found = [file["flags"] for file in recorded["files"]]
  assert found == [["input_file"], []]


def test_an_unfinished_run_has_no_duration(start, tmp_path):
  start("10:00")
  receipt = json.loads((tmp_path / "run.json").read_text())
  assert receipt_file.duration(receipt) is None


@pytest.mark.parametrize("text", ['{"given": [', '{"given": []}', "[]"])
def test_a_malformed_receipt_is_kept(start, finish, tmp_path, text):
  (tmp_path / "run.json").write_text(text)
  finish(start("10:00"), "10:05")
  assert (tmp_path / "run-1.json").read_text() == text
