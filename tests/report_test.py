"""Tests of report.py."""

import commands
import pytest
import run_folders
import trained_models

from bertlib.reporting import comparison

pytestmark = pytest.mark.train


def test_it_prints_tables_and_writes_a_page(tmp_path):
  page = tmp_path / "page.html"
  page.write_text("an earlier one")
  one = {"guid": "dev-1", "gold": "no", "predicted": "no"}
  for name, accuracy, gold in (
    ("a", 0.5, "no"),
    ("b", 0.75, "no"),
    ("c", 0.9, "yes"),
  ):
    run_folders.write_run(
      tmp_path / name,
      results={"eval_accuracy": accuracy, "global_step": 9},
      predictions=[one | {"gold": gold}],
    )
  given = "a", "b", "c", "--output_file=page.html", "--overwrite"
  done = commands.succeed("report.py", *given, cwd=tmp_path)
  lines = [line.split() for line in done.stdout.splitlines()]
  assert lines == [
    ["run", "accuracy"],
    ["a", "0.5000"],
    ["b", "0.7500*"],
    ["c", "0.9000"],
    [],
    ["Differences", "from", "a:"],
    ["run", "metric", "difference", "95%", "interval", "p-value"],
    ["b", "accuracy", "+0.2500"],
    ["b", "McNemar's", "test", "0", ":", "0", "1.0000"],
  ]
  assert "Not compared with a," in done.stderr and "examples: c." in done.stderr
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
  (run,) = comparison.find_runs([str(folder)])
  assert next(iter(run.metrics)) == run.flags["best_metric"] == metric


@pytest.mark.parametrize("name", ["classifier", "squad", "ner"])
def test_a_run_is_compared_with_one_on_the_same_examples(name, once, tmp_path):
  folders = [
    str(trained_models.copy(once, name, tmp_path / each).folder)
    for each in "ab"
  ]
  rows = comparison.difference_rows(comparison.find_runs(folders))
  tested = [row["metric"] for row in rows if row["p-value"]]
  assert tested == [comparison.TEST] * (name != "ner")
  assert METRICS[name] in [row["metric"] for row in rows]
  assert {row["difference"] for row in rows} <= {"+0.0000", "0 : 0"}
