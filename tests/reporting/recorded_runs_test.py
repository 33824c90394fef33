"""Tests of reading what runs left in their folders."""

import datetime

import pytest
import run_folders
from run_folders import read

pytestmark = pytest.mark.unit


def test_a_finished_run_is_read(tmp_path):
  run_folders.write_run(
    tmp_path / "a",
    results={"eval_loss": 0.25, "eval_accuracy": 0.5, "global_step": 10},
    dev_scores=[{"step": 10, "accuracy": 0.5}, {"step": 20, "accuracy": 0.4}],
  )
  (run,) = read(tmp_path / "a")
  assert (run.script, run.note) == ("run_classifier.py", "")
  assert list(run.metrics.items()) == [("accuracy", 0.5), ("loss", 0.25)]
  assert (run.num_steps, run.best_step) == (20, 10)
  assert run.duration == datetime.timedelta(hours=1, seconds=5)


def test_a_receipt_stands_for_its_folder(tmp_path):
  folder = run_folders.write_run(tmp_path / "a")
  (run,) = read(f"{folder}/run.json")
  assert run.folder == folder


def test_an_unfinished_run_has_a_note_and_no_metrics(tmp_path):
  receipt = run_folders.receipt(tmp_path / "a", results=None)
  del receipt["ended"]
  run_folders.write(tmp_path / "a", receipt)
  (run,) = read(tmp_path / "a")
  assert (run.note, run.metrics) == ("not finished", {})
  assert (run.num_steps, run.duration) == (None, None)


def test_a_later_evaluation_gives_metrics_and_the_training_flags(tmp_path):
  training = run_folders.receipt(tmp_path / "a", results={})
  evaluation = run_folders.receipt(
    tmp_path / "a",
    flags={"do_train": False, "learning_rate": 9.0},
    data={"dev_file": "d" * 64},
    results={"eval_accuracy": 0.7},
  )
  run_folders.write(tmp_path / "a", evaluation, training)
  (run,) = read(tmp_path / "a")
  assert run.note == "evaluated by a later command"
  assert run.metrics == {"accuracy": 0.7}
  assert run.hashes == {"training data": "a" * 8, "dev data": "d" * 8}
  assert run.flags["learning_rate"] == 1e-4
  assert run.flags["do_train"] is True


def test_metrics_of_an_earlier_training_are_not_those_of_the_last(tmp_path):
  first = run_folders.receipt(tmp_path / "a")
  last = run_folders.receipt(tmp_path / "a", results=None)
  run_folders.write(tmp_path / "a", last, first)
  (run,) = read(tmp_path / "a")
  assert (run.note, run.metrics) == ("not finished", {})


def test_a_folder_of_seeds_stands_for_their_runs(tmp_path):
  run_folders.write_run(tmp_path / "s", flags={"seeds": 3, "seed": 5})
  for seed in (5, 6):
    run_folders.write_run(tmp_path / "s" / f"seed_{seed}", flags={"seed": seed})
  runs = read(tmp_path / "s")
  seeds = [str(tmp_path / "s" / f"seed_{seed}") for seed in (5, 6)]
  assert [run.folder for run in runs] == seeds


@pytest.mark.parametrize(
  ("script", "metrics", "primary"),
  [
    ("run_classifier.py", ["loss", "f1", "accuracy"], "accuracy"),
    ("run_squad.py", ["exact", "f1", "best_f1"], "best_f1"),
    ("two_heads.py", ["sum", "product"], "sum"),
  ],
)
def test_receipts_that_name_no_metric_have_that_of_the_script(
  tmp_path, script, metrics, primary
):
  run_folders.write_run(
    tmp_path / "a",
    script=script,
    flags={"best_metric": None},
    results={f"eval_{name}": 0.5 for name in metrics},
  )
  (run,) = read(tmp_path / "a")
  assert run.primary_metric == primary


def test_what_auto_stood_for_is_the_value_of_a_flag(tmp_path):
  flags = {"precision": "auto"}
  run_folders.write_run(tmp_path / "a", flags=flags, precision="bfloat16")
  (run,) = read(tmp_path / "a")
  assert run.flags["precision"] == "bfloat16"


# Inputs


@pytest.mark.parametrize(
  ("script", "flags", "name", "use"),
  [
    ("run_classifier.py", ["data_dir", "dev_file"], "dev.tsv", "dev data"),
    ("run_classifier.py", ["data_dir"], "multinli.train.tsv", "training data"),
    ("run_classifier.py", ["data_dir"], "xnli.dev.tsv", "dev data"),
    ("run_classifier.py", ["data_dir"], "xnli.test.tsv", None),
    ("run_ner.py", ["predict_file"], "a.conll", None),
    ("run_squad.py", ["predict_file"], "dev-v1.1.json", "dev data"),
    ("run_pretraining.py", ["eval_input_file"], "train.tfrecord", "dev data"),
  ],
)
def test_use_of_data_follows_from_its_flags(tmp_path, script, flags, name, use):
  folder = "/a/training/set"
  file = run_folders.data_file(f"{folder}/{name}", flags, "e" * 64)
  run_folders.write_run(
    tmp_path / "a",
    script=script,
    flags=dict.fromkeys(flags, f"{folder}/{name}") | {"data_dir": folder},
    files=[file],
  )
  (run,) = read(tmp_path / "a")
  assert run.hashes == ({use: "e" * 8} if use else {})


def test_pretraining_without_held_out_data_evaluates_its_own(tmp_path):
  script, data = "run_pretraining.py", {"input_file": "a" * 64}
  run_folders.write_run(tmp_path / "a", script=script, data=data)
  (run,) = read(tmp_path / "a")
  assert run.dev_data == "a" * 8


def test_the_order_of_files_does_not_change_their_hash(tmp_path):
  for name, hashes in (("a", "12"), ("b", "21"), ("c", "13")):
    files = [
      run_folders.data_file(f"{n}.tfrecord", ["input_file"], digit * 64)
      for n, digit in enumerate(hashes)
    ]
    run_folders.write_run(tmp_path / name, files=files)
  a, b, c = read(*(tmp_path / name for name in "abc"))
  assert a.hashes == b.hashes != c.hashes
