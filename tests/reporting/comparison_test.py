"""Tests of the comparison of runs."""

import math
import pathlib
import re
import statistics

import pytest
import run_folders
from html_pages import Page

from bertlib.reporting import comparison

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def runs_of(**by_name):
  """Runs with these changes of a receipt, see `run_folders.receipt`."""
  for name, changed in by_name.items():
    run_folders.write_run(pathlib.Path(name), **changed)
  return run_folders.read(*by_name)


TEST = "McNemar's test"
INTERVAL = r"[-+]\d[.]\d+ to [+]\d[.]\d+"
OTHER_DEV = {"train_file": "a" * 64, "dev_file": "f" * 64}


def results(**metrics):
  return {"results": {f"eval_{name}": value for name, value in metrics.items()}}


def difference_rows(runs):
  """Difference, interval and p-value, by run and metric."""
  rows = comparison.difference_rows(
    comparison.find_differences(runs), comparison.metric_names(runs)
  )
  shown = "difference", "95% interval", "p-value"
  return {
    (row["run"], row["metric"]): tuple(row[name] for name in shown)
    for row in rows
  }


# Metrics


def test_best_values_are_highest_or_of_a_loss_lowest():
  runs = runs_of(
    # Counts and thresholds are neither good nor bad.
    a=results(accuracy=0.5, loss=0.3, f1=0.2, total=3, best_f1_thresh=-1.0),
    b=results(accuracy=0.7, loss=0.4, f1=0.2, total=4, best_f1_thresh=-2.0),
    c=results(accuracy=0.7, loss=math.nan, entities_PER=5),
  )
  best = comparison.best_runs(runs)
  assert best == {"accuracy": {"b", "c"}, "loss": {"a"}}


@pytest.mark.parametrize(
  ("change", "warning"),
  [
    ({"data": OTHER_DEV}, "for runs with other dev data than a: b."),
    ({"script": "run_ner.py"}, "for runs of another script than a: b."),
  ],
)
def test_runs_that_cannot_be_compared_are_named(change, warning):
  runs = runs_of(
    a=results(accuracy=0.5),
    b=results(accuracy=0.9) | change,
    c=results(accuracy=0.6),
  )
  (found,) = comparison.warnings(runs)
  assert found.endswith(warning)
  assert comparison.best_runs(runs) == {"accuracy": {"c"}}
  assert [*difference_rows(runs)] == [("c", "accuracy")]


def test_the_table_begins_with_primary_metrics():
  runs = runs_of(
    a=results(loss=0.25, accuracy=0.5),
    b={"results": {"eval_f1": 0.5, "eval_loss": 0.5}}
    | {"flags": {"best_metric": "f1"}},
    c={"results": None},
  )
  table, *_ = comparison.tables(runs, [], max_metrics=1)
  columns = ["run", "accuracy", "duration", "note"]
  assert [list(row) for row in table.rows] == [columns] * 3
  rows = comparison.run_rows(runs, comparison.metric_names(runs))
  assert list(rows[0]) == ["run", "accuracy", "f1", "loss", "duration", "note"]
  values = "c", "-", "-", "-", "1 h 00 min 05 s", "not finished"
  assert tuple(rows[2].values()) == values


# Settings


def test_runs_that_differ_in_their_seed_are_grouped():
  runs = runs_of(
    a={"flags": {"seed": 1}},
    b={"flags": {"seed": 2}},
    longer={"flags": {"seed": 2, "num_train_epochs": 9.0}},
    other={"flags": {"seed": 3}, "data": OTHER_DEV},
    ner={"script": "run_ner.py"},
  )
  groups = comparison.group_by_settings(runs)
  names = [[run.folder for run in group] for group in groups]
  assert names == [["a", "b"], ["longer"], ["other"], ["ner"]]


def test_seeds_have_mean_and_standard_deviation():
  scores = [0.5, 0.6, 0.9]
  runs = runs_of(
    **{
      f"run{seed}": results(accuracy=score) | {"flags": {"seed": seed}}
      for seed, score in enumerate(scores)
    },
    unfinished={"results": None},
  )
  mean, deviation = statistics.mean(scores), statistics.stdev(scores)
  shown = f"{mean:.4f} ± {deviation:.4f}"
  assert comparison.seed_rows(runs, ["accuracy"]) == [
    {"runs": "run0, run1, run2", "seeds": "0, 1, 2", "accuracy": shown}
  ]


def test_settings_that_differ_are_shown_as_one_types_them():
  runs = runs_of(
    a={"flags": {"rate": 1.0, "same": 2.0, "task": "MRPC"}},
    b={
      "flags": {"rate": 5e-5, "same": 2.0},
      "versions": {"python": "3.12.1"},
      "data": OTHER_DEV,
    },
  )
  assert [[*row.values()] for row in comparison.setting_rows(runs)] == [
    ["--rate", "1", "5e-05"],
    ["--task", "MRPC", "-"],
    ["dev data", "b" * 8, "f" * 8],
    ["python", "3.11.7", "3.12.1"],
  ]


# Predictions


def predictions(gold, predicted):
  """A run with predictions, see `run_folders.write_run`."""
  return {
    "predictions": [
      {"guid": f"dev-{n}", "gold": a, "predicted": b}
      for n, (a, b) in enumerate(zip(gold, predicted))
    ]
  }


@pytest.mark.parametrize(
  ("answered", "changed", "tested"),
  [
    ("xyz", "", ("2 : 0", "", "0.5000")),  # two coins, both on one side
    ("xyz", " ", None),
    ("xy", "", None),
  ],
  ids=["all", "other questions", "fewer answers"],
)
def test_answers_to_the_same_questions_are_tested(answered, changed, tested):
  for name, answer in (("a", "Ann"), ("b", "Rome")):
    answers = dict.fromkeys(answered, answer) | {"x": "Ann"}
    path = run_folders.write_answers(pathlib.Path(name), answers)
  path.write_text(path.read_text() + changed)
  rows = difference_rows(run_folders.read("a", "b"))
  assert rows.pop(("b", TEST), None) == tested
  assert [*rows] == [("b", "accuracy")]


LABELS = [*"ab"] * 10
LISTS = [["a"], ["a", "b"], []] * 10
NUMBERS = [n / 4 for n in range(20)]
TAGS = [["B-PER", "O"], ["O", "O", "B-LOC"]] * 10


@pytest.mark.parametrize(
  ("changed", "answers", "expected"),
  [
    (
      {"eval_f1": 0.5, "eval_accuracy": 0.5, "labels": '["a", "b"]'},
      (LABELS, LABELS[:17] + ["a"] * 3, ["a"] * 5 + LABELS[5:]),
      {"f1": INTERVAL, "accuracy": "", TEST: "2 : 2 1.0000"},
    ),
    (
      {"eval_f1": 0.5, "labels": '["a"]'},  # "b" is not of the model
      (LABELS, LABELS, ["a"] * 20),
      {"f1": "", TEST: "10 : 0 0.0020"},
    ),
    (
      {"eval_micro_f1": 0.5, "thresholds": '{"a": 0.5, "b": 0.5}'},
      (LISTS, [["a"]] * 30, [["b", "a"]] * 30),
      {"micro_f1": INTERVAL, TEST: "10 : 10 1.0000"},
    ),
    (
      {"eval_pearson": 0.5, "loss": 1.0},
      (NUMBERS, NUMBERS[::-1], NUMBERS[1:] + NUMBERS[:1]),
      {"pearson": r"[+]1[.]\d+ to [+]2[.]\d+", "loss": ""},
    ),
    (
      {"eval_f1": 0.5, "eval_f1_PER": 0.5},
      (TAGS, TAGS, [["B-PER", "O"], ["O"] * 3] * 10),
      {"f1": r"-0[.]\d+ to -0[.]\d+", "f1_PER": ""},
    ),
  ],
  ids=["labels", "unknown", "lists", "numbers", "tags"],
)
def test_predictions_of_two_runs_have_tests_and_intervals(
  changed, answers, expected
):
  gold, first, other = answers
  script = "run_ner.py" if gold is TAGS else "run_classifier.py"
  of_run = {"results": changed, "script": script}
  runs = runs_of(
    a=of_run | predictions(gold, first),
    b=of_run | predictions(gold, other),
  )
  rows = difference_rows(runs)
  assert {metric for _, metric in rows} == {*expected}
  for (_, metric), (difference, interval, p_value) in rows.items():
    if metric == TEST:
      assert f"{difference} {p_value}" == expected[TEST]
    else:
      assert difference == "+0.0000"
      assert re.fullmatch(expected[metric], interval)


@pytest.mark.parametrize(
  "gold", [["a"] * 19, ["a"] * 19 + ["b"]], ids=["fewer", "other"]
)
def test_predictions_of_other_examples_are_not_compared(gold):
  of_run = results(accuracy=0.5)
  runs = runs_of(
    a=of_run | predictions(["a"] * 20, ["a"] * 20),
    b=of_run | predictions(gold, gold),
    without_predictions=of_run,
  )
  for _, metric in difference_rows(runs):
    assert metric == "accuracy"


# The page


def test_the_page_has_tables_and_warnings():
  gold, predicted = ["no", "yes"] * 10, [["yes", "no"] * 10, ["no"] * 20]
  for name, labels in zip(("a", "b<i>"), predicted):
    run_folders.write_run(
      pathlib.Path(name),
      **results(macro_f1=0.5),
      flags={"best_metric": "macro_f1"},
      **predictions(gold, labels),
    )
  run_folders.write_run(pathlib.Path("other"), data=OTHER_DEV)
  runs = run_folders.read("a", "b<i>", "other")
  path = pathlib.Path("page.html")
  comparison.write_page(str(path), runs, comparison.find_differences(runs))
  page = Page(path.read_text(encoding="utf-8"))
  titles = ["Warning", "Runs", "Differences from a", "Settings that differ"]
  assert page.texts("h2") == titles
