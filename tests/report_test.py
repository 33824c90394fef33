"""Tests of report.py."""

import commands
import pytest
import run_folders
import trained_models

from bertlib.reporting import recorded_runs
from bertlib.task import task_record

pytestmark = pytest.mark.train


def test_it_prints_tables_and_writes_a_page(tmp_path):
  page = tmp_path / "page.html"
  page.write_text("an earlier one")
  for name, accuracy in (("a", 0.5), ("b", 0.75)):
    results = {"eval_accuracy": accuracy, "global_step": 9}
    run_folders.write_run(tmp_path / name, results=results)
  data = run_folders.DATA | {"dev_file": "f" * 64}
  run_folders.write_run(tmp_path / "other", data=data)
  given = "a", "b", "other", "--output_file=page.html", "--overwrite"
  done = commands.succeed("report.py", *given, cwd=tmp_path)
  title, *lines = done.stdout.splitlines()
  assert title == "Runs:"
  head, first, second = map(str.split, lines[:3])
  assert head == ["run", "accuracy", "steps", "duration"]
  duration = ["1", "h", "00", "min", "05", "s"]
  assert first == ["a", "0.5000", "9", *duration]
  assert second == ["b", "0.7500*", "9", *duration]
  assert lines[5] == "Differences from a:"
  assert lines[7].split() == ["b", "accuracy", "+0.2500"]
  assert "with other dev data than a: other" in done.stderr
  assert "Comparison of 3 runs" in page.read_text(encoding="utf-8")


def test_without_arguments_folders_are_asked_for(tmp_path):
  last = commands.fail("report.py", cwd=tmp_path)
  assert "name the output folders" in last


@pytest.mark.process
def test_a_missing_folder_is_refused_before_tensorflow_is_imported(
  tmp_path, monkeypatch
):
  (tmp_path / "tensorflow.py").write_text("raise RuntimeError")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  last = commands.fail(
    "report.py", tmp_path / "a", cwd=tmp_path, own_process=True
  )
  assert "/a: no such folder" in last


METRICS = {
  "classifier": "accuracy",
  "squad": "best_f1",
  "ner": "f1",
  "embeddings": "ndcg@10",
  "pretraining": "masked_lm_loss",
}


@pytest.mark.parametrize(("name", "metric"), METRICS.items())
def test_runs_of_every_script_are_read(name, metric, once, tmp_path):
  folder = trained_models.copy(once, name, tmp_path).folder
  (run,) = recorded_runs.find_runs([str(folder)], task_record.find)
  assert (run.note, run.primary_metric) == ("", metric)
  assert run.flags["best_metric"] == metric
  assert run.num_steps and run.duration and run.dev_data
