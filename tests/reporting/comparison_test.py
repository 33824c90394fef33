"""Tests of the comparison of runs."""

import math
import pathlib
import re

import pytest
import run_folders
from html_pages import Page
from parametrize import parametrize

from bertlib.reporting import comparison
from bertlib.reporting.comparison import TEST

pytestmark = pytest.mark.unit
INTERVAL = r"[-+]\d[.]\d+ to [+]\d[.]\d+"
LABELS = [*"ab"] * 10


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def runs_of(**by_name):
  """Runs with these changes, see `run_folders.write_run`."""
  for name, changed in by_name.items():
    run_folders.write_run(pathlib.Path(name), **changed)
  return run_folders.read(*by_name)


def predictions(gold, predicted):
  return {
    "predictions": [
      {"guid": f"dev-{n}", "gold": a, "predicted": b}
      for n, (a, b) in enumerate(zip(gold, predicted))
    ]
  }


def results(**metrics):
  return {"results": {f"eval_{name}": value for name, value in metrics.items()}}


def evaluated(**metrics):
  """A run with these metrics of the same example as others."""
  return results(**metrics) | predictions(["a"], ["a"])


def difference_rows(runs):
  """Difference, interval and p-value, by run and metric."""
  shown = "difference", "95% interval", "p-value"
  return {
    (row["run"], row["metric"]): tuple(row[name] for name in shown)
    for row in comparison.difference_rows(runs)
  }


def test_a_finished_run_is_read():
  (run,) = runs_of(a=results(loss=0.25, accuracy=0.5, macro_f1=math.nan))
  metrics = [*run.metrics.items()]
  assert metrics[:2] == [("accuracy", 0.5), ("loss", 0.25)]
  assert metrics[2][0] == "macro_f1" and math.isnan(metrics[2][1])


def test_a_receipt_stands_for_its_folder():
  runs_of(a={})
  (run,) = run_folders.read("a/run.json")
  assert run.folder == "a"


def test_a_run_without_evaluation_has_no_metrics():
  receipt = run_folders.receipt("a", results=None)
  del receipt["ended"]
  run_folders.write(pathlib.Path("a"), receipt)
  (run,) = run_folders.read("a")
  assert (run.metrics, run.predictions) == ({}, [])


def test_an_evaluation_after_a_training_leaves_its_flags():
  training = run_folders.receipt("a", flags={"best_metric": "f1"})
  evaluation = run_folders.receipt("a", flags={"do_train": False})
  run_folders.write(pathlib.Path("a"), evaluation, training)
  (run,) = run_folders.read("a")
  assert run.flags["best_metric"] == "f1"


def test_a_folder_of_seeds_stands_for_their_runs():
  runs_of(s={"flags": {"seeds": 3, "seed": 5}})
  for seed in (5, 6):
    path = pathlib.Path("s", f"seed_{seed}")
    run_folders.write_run(path, flags={"seed": seed})
  runs = run_folders.read("s")
  assert [run.folder for run in runs] == ["s/seed_5", "s/seed_6", "s/seed_7"]
  assert [bool(run.metrics) for run in runs] == [True, True, False]


def test_seeds_of_which_none_has_begun_are_runs_without_metrics():
  first, other = runs_of(s={"flags": {"seeds": 2, "seed": 5}, "results": None})
  assert [first.folder, other.folder] == ["s/seed_5", "s/seed_6"]
  assert first.metrics == {}


@parametrize(
  "script, metrics, primary",
  ("run_classifier.py", ["loss", "f1", "accuracy"], "accuracy"),
  ("run_squad.py", ["exact", "f1", "best_f1"], "best_f1"),
  ("two_heads.py", ["sum", "product"], "product"),
)
def test_receipts_that_name_no_metric_have_that_of_the_script(
  script, metrics, primary
):
  of_run = results(**dict.fromkeys(metrics, 0.5))
  flags = {"best_metric": None}
  (run,) = runs_of(a=of_run | {"script": script, "flags": flags})
  assert next(iter(run.metrics)) == primary


def test_best_values_are_highest_or_of_a_loss_lowest():
  runs = runs_of(
    # Counts and thresholds are neither good nor bad.
    a=evaluated(accuracy=0.5, loss=0.3, f1=0.2, total=3, best_f1_thresh=-1.0),
    b=evaluated(accuracy=0.7, loss=0.4, f1=0.2, total=4, best_f1_thresh=-2.0),
    c=evaluated(accuracy=0.7, loss=math.nan, entities_PER=5),
  )
  assert comparison.best_runs(runs) == {"accuracy": {"b", "c"}, "loss": {"a"}}


@parametrize(
  "changed",
  predictions(LABELS[:10], LABELS[:10]),  # as of --dev_fraction
  predictions(["b", *LABELS[1:]], LABELS),
  {"predictions": predictions(["a", *LABELS], LABELS)["predictions"][1:]},
  {},
  ids=["fewer", "other labels", "other ids", "unknown"],
)
def test_runs_on_other_examples_are_named_and_not_compared(changed):
  runs = runs_of(
    a=results(accuracy=0.5) | predictions(LABELS, LABELS),
    b=results(accuracy=0.9) | changed,
    c=results(accuracy=0.6) | predictions(LABELS, LABELS),
  )
  (warning,) = comparison.warnings(runs)
  assert warning.startswith("Not compared with a,")
  assert warning.endswith("of the same examples: b.")
  assert comparison.best_runs(runs) == {"accuracy": {"c"}}
  assert {run for run, _ in difference_rows(runs)} == {"c"}


def test_runs_without_predictions_are_not_compared():
  runs = runs_of(a=results(accuracy=0.5), b=results(accuracy=0.6))
  assert comparison.best_runs(runs) == difference_rows(runs) == {}


def test_an_unknown_task_says_which_metrics_are_better_when_lower():
  runs_of(**{name: evaluated(mae=n) for n, name in enumerate(["b", "a"], 1)})
  for name in ("a", "b"):
    path = pathlib.Path(name, "run.json")
    path.write_text(path.read_text().replace("run_classifier", "ratings"))
    row = '{"step": 1, "mae": 2, "lower_is_better": ["mae"]}\n'
    pathlib.Path(name, "dev_scores.jsonl").write_text(row)
  assert comparison.best_runs(run_folders.read("a", "b")) == {"mae": {"b"}}


def test_the_table_begins_with_primary_metrics():
  runs = runs_of(
    a=results(loss=0.25, accuracy=0.5),
    b=results(f1=0.5, loss=0.5) | {"flags": {"best_metric": "f1"}},
    c={"results": None},
  )
  metrics = comparison.metric_names(runs)
  assert metrics == ["accuracy", "f1", "loss"]
  rows = comparison.run_rows(runs, metrics[:1])
  assert [list(row) for row in rows] == [["run", "accuracy"]] * 3
  assert [*rows[2].values()] == ["c", "-"]


LISTS = [["a"], ["a", "b"], []] * 10
NUMBERS = [n / 4 for n in range(20)]
TAGS = [["B-PER", "O"], ["O", "O", "B-LOC"]] * 10
ANSWERS = [["Ann", "Ann Lee"], ["the Rome"], []] * 10


@parametrize(
  "script, changed, answers, expected",
  (
    "run_classifier.py",
    {"eval_f1": 0.5, "eval_accuracy": 0.5, "labels": '["a", "b"]'},
    (LABELS, LABELS[:17] + ["a"] * 3, ["a"] * 5 + LABELS[5:]),
    {"f1": INTERVAL, "accuracy": "", TEST: "2 : 2 1.0000"},
  ),
  (
    "run_classifier.py",
    {"eval_f1": 0.5, "labels": '["a"]'},  # "b" is not of the model
    (LABELS, LABELS, ["a"] * 20),
    {"f1": "", TEST: "10 : 0 0.0020"},
  ),
  (
    "run_classifier.py",
    {"eval_micro_f1": 0.5, "thresholds": '{"a": 0.5, "b": 0.5}'},
    (LISTS, [["a"]] * 30, [["b", "a"]] * 30),
    {"micro_f1": INTERVAL, TEST: "10 : 10 1.0000"},
  ),
  (
    "run_classifier.py",
    {"eval_pearson": 0.5, "loss": 1.0},
    (NUMBERS, NUMBERS[::-1], NUMBERS[1:] + NUMBERS[:1]),
    {"pearson": r"[+]1[.]\d+ to [+]2[.]\d+", "loss": ""},
  ),
  (
    "run_ner.py",
    {"eval_f1": 0.5, "eval_f1_PER": 0.5},
    (TAGS, TAGS, [["B-PER", "O"], ["O"] * 3] * 10),
    {"f1": r"-0[.]\d+ to -0[.]\d+", "f1_PER": ""},
  ),
  (
    "run_squad.py",
    {"exact": 0.5, "f1": 0.5, "total": 30},
    # Of two words, one is right.
    (ANSWERS, ["ann", "Rome", ""] * 10, ["Bob", "Rome left", ""] * 10),
    {"exact": "", "f1": r"-\d\d[.]\d+ to -\d\d[.]\d+", TEST: "20 : 0 0.0000"},
  ),
  (
    "two_heads.py",
    {"eval_accuracy": 0.5},
    (LISTS, LISTS, [["a"]] * 30),
    {"accuracy": "", TEST: "20 : 0 0.0000"},
  ),
  ids=["labels", "unknown", "lists", "numbers", "tags", "answers", "own task"],
)
def test_predictions_of_two_runs_have_tests_and_intervals(
  script, changed, answers, expected
):
  gold, first, other = answers
  flags = {"version_2_with_negative": True}
  of_run = {"results": changed, "script": script, "flags": flags}
  first, other = (of_run | predictions(gold, each) for each in (first, other))
  runs = runs_of(a=first, b=other)
  rows = difference_rows(runs)
  assert {metric for _, metric in rows} == {*expected}
  for (_, metric), (difference, interval, p_value) in rows.items():
    if metric == TEST:
      assert f"{difference} {p_value}" == expected[TEST]
    else:
      assert difference == "+0.0000"
      assert re.fullmatch(expected[metric], interval)


def test_the_page_has_tables_and_warnings():
  gold, predicted = ["no", "yes"] * 10, [["yes", "no"] * 10, ["no"] * 20]
  for name, labels in zip(("a", "b<i>"), predicted):
    of_run = results(macro_f1=0.5) | predictions(gold, labels)
    run_folders.write_run(pathlib.Path(name), **of_run)
  run_folders.write_run(pathlib.Path("other"))
  runs = run_folders.read("a", "b<i>", "other")
  path = pathlib.Path("page.html")
  comparison.write_page(str(path), runs, comparison.difference_rows(runs))
  page = Page(path.read_text(encoding="utf-8"))
  assert page.texts("h2") == ["Warning", "Runs", "Differences from a"]
  assert "b<i>" in page.texts("td")
