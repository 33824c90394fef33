"""Tests of the comparison of runs."""

import math
import re
import statistics

import pytest
import run_folders
from event_files_test import write_events
from html_pages import Page

from bertlib.reporting import comparison, recorded_runs
from bertlib.tasks import records

pytestmark = pytest.mark.unit


def runs_of(tmp_path, **by_name):
  """Runs with these changes of a receipt, see `run_folders.receipt`."""
  folders = [
    run_folders.write_run(tmp_path / name, **changed)
    for name, changed in by_name.items()
  ]
  return recorded_runs.find_runs(folders, records.find)


TEST = "McNemar's test"
OTHER_DEV = {"train_file": "a" * 64, "dev_file": "f" * 64}


def results(**metrics):
  return {"results": {f"eval_{name}": value for name, value in metrics.items()}}


def difference_rows(runs):
  """Difference, interval and p-value, by run and metric."""
  rows = comparison.difference_rows(
    comparison.find_differences(runs), comparison.metric_names(runs)
  )
  return {
    (row["run"], row["metric"]): (
      row["difference"],
      row["95% interval"],
      row["p-value"],
    )
    for row in rows
  }


# Metrics


def test_best_values_are_highest_or_of_a_loss_lowest(tmp_path):
  runs = runs_of(
    tmp_path,
    a=results(accuracy=0.5, loss=0.3, f1=0.2),
    b=results(accuracy=0.7, loss=0.4, f1=0.2),
    c=results(accuracy=0.7, loss=math.nan),
  )
  best = comparison.best_runs(runs)
  assert best == {"accuracy": {"b", "c"}, "loss": {"a"}}


def test_counts_and_thresholds_have_no_best_value(tmp_path):
  runs = runs_of(
    tmp_path,
    a=results(total=3, best_f1_thresh=-1.0, entities_PER=5),
    b=results(total=4, best_f1_thresh=-2.0, entities_PER=6),
  )
  assert comparison.best_runs(runs) == {}


def test_runs_on_other_dev_data_are_named_and_not_compared(tmp_path):
  runs = runs_of(
    tmp_path,
    a=results(accuracy=0.5),
    b=results(accuracy=0.9) | {"data": OTHER_DEV},
    c=results(accuracy=0.6),
  )
  (warning,) = comparison.warnings(runs)
  assert warning.endswith("for runs with other dev data than a: b.")
  assert comparison.best_runs(runs) == {"accuracy": {"c"}}
  assert [*difference_rows(runs)] == [("c", "accuracy")]


def test_runs_of_another_script_are_named_and_not_compared(tmp_path):
  runs = runs_of(
    tmp_path,
    a=results(accuracy=0.5),
    b=results(accuracy=0.9) | {"script": "run_ner.py"},
  )
  assert "of another script than a: b" in comparison.warnings(runs)[0]
  assert difference_rows(runs) == {}


def test_a_run_without_receipt_is_compared(tmp_path):
  folder = run_folders.write_run(tmp_path / "a", **results(accuracy=0.5))
  (tmp_path / "old").mkdir()
  (tmp_path / "old" / "eval_results.txt").write_text("eval_accuracy = 0.4\n")
  runs = recorded_runs.find_runs([folder, str(tmp_path / "old")], records.find)
  assert comparison.warnings(runs) == []
  assert difference_rows(runs) == {("old", "accuracy"): ("-0.1000", "", "")}


def test_the_table_begins_with_primary_metrics(tmp_path):
  runs = runs_of(
    tmp_path,
    a=results(loss=0.25, accuracy=0.5),
    b={"results": {"eval_f1": 0.5, "eval_loss": 0.5}}
    | {"flags": {"best_metric": "f1"}},
    c={"results": None},
  )
  rows = comparison.run_rows(runs, comparison.metric_names(runs))
  assert list(rows[0]) == ["run", "accuracy", "f1", "loss", "duration", "note"]
  assert [*rows[2].values()] == [
    *("c", "-", "-", "-", "1 h 00 min 05 s", "not finished")
  ]


def test_the_terminal_has_few_metrics_and_stars(tmp_path):
  many = {f"m{n}": 0.5 for n in range(9)}
  runs = runs_of(
    tmp_path,
    a=results(accuracy=0.5, **many),
    b=results(accuracy=0.75, **many),
  )
  table, *_ = comparison.tables(runs, [], max_metrics=2)
  assert [[*row.values()][:3] for row in table.rows] == [
    ["a", "0.5000", "0.5000"],
    ["b", "0.7500*", "0.5000"],
  ]
  assert list(table.rows[0]) == ["run", "accuracy", "m0", "duration"]


# Settings


def test_flags_differ_by_value(tmp_path):
  runs = runs_of(
    tmp_path,
    a={"flags": {"learning_rate": 1e-4}},
    b={"flags": {"learning_rate": 2e-4}},
  )
  assert comparison.differing(runs) == {"learning_rate": [1e-4, 2e-4]}


def test_lists_of_numbers_may_be_text_in_a_receipt(tmp_path):
  numbers = {"matryoshka_dims": [768, 64], "matryoshka_weights": [1.0, 0.5]}
  text = {"matryoshka_dims": ["768", "64"], "matryoshka_weights": ["1", "0.5"]}
  other = text | {"matryoshka_dims": ["768", "32"]}
  runs = runs_of(
    tmp_path, **{n: {"flags": f} for n, f in zip("abc", (numbers, text, other))}
  )
  assert comparison.differing(runs[:2]) == {}
  assert comparison.group_by_settings(runs) == [runs[:2], runs[2:]]
  assert [*comparison.differing(runs)] == ["matryoshka_dims"]


def test_paths_of_equal_files_do_not_differ(tmp_path):
  runs = runs_of(
    tmp_path,
    a={"flags": {"train_file": "a.tsv", "dev_file": "a.tsv"}},
    b={
      "flags": {"train_file": "b.tsv", "dev_file": "b.tsv"},
      "data": OTHER_DEV,
    },
  )
  assert comparison.differing(runs) == {"dev_file": ["a.tsv", "b.tsv"]}


def test_a_flag_that_one_script_lacks_differs_if_it_was_given(tmp_path):
  runs = runs_of(
    tmp_path,
    a={
      "flags": {"task_name": "MRPC", "language": "zh"},
      "given": ["task_name"],
    },
    b={},
  )
  assert comparison.differing(runs) == {"task_name": ["MRPC", None]}


def test_runs_that_differ_in_their_seed_are_grouped(tmp_path):
  runs = runs_of(
    tmp_path,
    a={"flags": {"seed": 1}},
    b={"flags": {"seed": 2}},
    longer={"flags": {"seed": 2, "num_train_epochs": 9.0}},
    other={"flags": {"seed": 3}, "data": OTHER_DEV},
    ner={"script": "run_ner.py"},
  )
  groups = comparison.group_by_settings(runs)
  assert [[run.name for run in group] for group in groups] == [
    ["a", "b"],
    ["longer"],
    ["other"],
    ["ner"],
  ]


def test_seeds_have_mean_and_standard_deviation(tmp_path):
  scores = [0.5, 0.6, 0.9]
  runs = runs_of(
    tmp_path,
    **{
      f"run{seed}": results(accuracy=score) | {"flags": {"seed": seed}}
      for seed, score in enumerate(scores)
    },
    unfinished={"results": None},
  )
  mean, deviation = statistics.mean(scores), statistics.stdev(scores)
  assert comparison.seed_rows(runs, ["accuracy"]) == [
    {
      "runs": "run0, run1, run2",
      "seeds": "0, 1, 2",
      "accuracy": f"{mean:.4f} ± {deviation:.4f}",
    }
  ]


def test_settings_that_differ_are_shown_as_one_types_them(tmp_path):
  runs = runs_of(
    tmp_path,
    a={"flags": {"rate": 1.0, "same": 2.0}},
    b={
      "flags": {"rate": 5e-5, "same": 2.0},
      "versions": {"python": "3.12.1"},
      "data": OTHER_DEV,
    },
  )
  assert [[*row.values()] for row in comparison.setting_rows(runs)] == [
    ["--rate", "1", "5e-05"],
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


def test_answers_of_two_runs_to_the_same_questions_are_tested(tmp_path):
  for name, answer in (("a", "Ann"), ("b", "Rome")):
    run_folders.write_answers(
      tmp_path / name, {"x": "Ann", "y": answer, "z": answer}
    )
  runs = recorded_runs.find_runs(
    [str(tmp_path / name) for name in "ab"], records.find
  )
  # Two coins, both on one side.
  assert difference_rows(runs)["b", TEST] == ("2 : 0", "", "0.5000")


@pytest.mark.parametrize("change", ["questions", "answers"])
def test_answers_to_other_questions_are_not_compared(tmp_path, change):
  for name in "ab":
    answers = dict.fromkeys("xy" if change == "answers" else "xyz", "Ann")
    path = run_folders.write_answers(tmp_path / name, answers)
  if change == "questions":
    path.write_text(path.read_text() + " ")
  runs = recorded_runs.find_runs(
    [str(tmp_path / name) for name in "ab"], records.find
  )
  assert [*difference_rows(runs)] == [("b", "accuracy")]


def test_labels_of_two_runs_are_tested(tmp_path):
  gold = ["no", "yes"] * 10
  of_run = results(accuracy=0.5, f1=0.5)
  of_run["results"]["labels"] = '["no", "yes"]'
  runs = runs_of(
    tmp_path,
    a=of_run | predictions(gold, gold[:17] + ["no"] * 3),
    b=of_run | predictions(gold, ["no"] * 5 + gold[5:]),
  )
  rows = difference_rows(runs)
  assert rows["b", TEST] == ("2 : 2", "", "1.0000")
  assert rows["b", "f1"][0] == "+0.0000"
  assert re.fullmatch(r"-0\.\d+ to \+0\.\d+", rows["b", "f1"][1])
  assert rows["b", "accuracy"] == ("+0.0000", "", "")


def test_values_of_two_runs_have_an_interval(tmp_path):
  gold = [n / 4 for n in range(20)]
  runs = runs_of(
    tmp_path,
    a=results(pearson=0.5, loss=1.0) | predictions(gold, gold[::-1]),
    b=results(pearson=0.75, loss=0.5) | predictions(gold, gold[1:] + gold[:1]),
  )
  rows = difference_rows(runs)
  assert [*rows] == [("b", "pearson"), ("b", "loss")]
  assert rows["b", "pearson"][1].startswith("+1.")


def test_tags_of_two_runs_have_an_interval_over_sentences(tmp_path):
  gold = [["B-PER", "O"], ["O", "O", "B-LOC"]] * 10
  of_run = results(f1=0.5, f1_PER=0.5) | {"script": "run_ner.py"}
  runs = runs_of(
    tmp_path,
    a=of_run | predictions(gold, gold),
    b=of_run | predictions(gold, [["B-PER", "O"], ["O"] * 3] * 10),
  )
  rows = difference_rows(runs)
  assert [*rows] == [("b", "f1"), ("b", "f1_PER")]
  assert rows["b", "f1"][1].startswith("-0.")
  assert rows["b", "f1_PER"] == ("+0.0000", "", "")


def test_lists_of_labels_have_a_test_and_intervals(tmp_path):
  gold = [["a"], ["a", "b"], []] * 10
  of_run = results(accuracy=0.5, micro_f1=0.5)
  of_run["results"]["thresholds"] = '{"a": 0.5, "b": 0.5}'
  runs = runs_of(
    tmp_path,
    a=of_run | predictions(gold, [["a"]] * 30),
    b=of_run | predictions(gold, [["b", "a"]] * 30),
  )
  rows = difference_rows(runs)
  assert rows["b", TEST] == ("10 : 10", "", "1.0000")
  assert re.fullmatch(r"[-+]0\.\d+ to \+0\.\d+", rows["b", "micro_f1"][1])


def test_labels_that_are_not_known_have_a_test_alone(tmp_path):
  gold = ["a", "b"] * 10
  of_run = results(f1=0.5)
  of_run["results"]["labels"] = '["a", "c"]'
  runs = runs_of(
    tmp_path,
    a=of_run | predictions(gold, gold),
    b=of_run | predictions(gold, ["a"] * 20),
  )
  assert difference_rows(runs) == {
    ("b", "f1"): ("+0.0000", "", ""),
    ("b", TEST): ("10 : 0", "", "0.0020"),
  }


@pytest.mark.parametrize(
  "gold", [["a"] * 19, ["a"] * 19 + ["b"]], ids=["fewer", "other"]
)
def test_predictions_of_other_examples_are_not_compared(tmp_path, gold):
  of_run = results(accuracy=0.5)
  runs = runs_of(
    tmp_path,
    a=of_run | predictions(["a"] * 20, ["a"] * 20),
    b=of_run | predictions(gold, gold),
    without_predictions=of_run,
  )
  for _, metric in difference_rows(runs):
    assert metric == "accuracy"


# The page


def test_the_page_has_tables_and_a_line_per_run(tmp_path):
  gold, predicted = ["no", "yes"] * 10, [["yes", "no"] * 10, ["no"] * 20]
  for name, labels in zip(("a", "b<i>"), predicted):
    run_folders.write_run(
      tmp_path / name,
      **results(macro_f1=0.5),
      flags={"best_metric": "macro_f1"},
      dev_scores=[{"step": n, "macro_f1": 0.1 * n} for n in (1, 2)],
      **predictions(gold, labels),
    )
    write_events(tmp_path / name, (1, 1, {"loss": 0.9}), (2, 2, {"loss": 0.8}))
  run_folders.write_run(tmp_path / "other", data=OTHER_DEV)
  runs = recorded_runs.find_runs(
    [str(tmp_path / name) for name in ("a", "b<i>", "other")], records.find
  )
  path = tmp_path / "page.html"
  comparison.write_page(str(path), runs, comparison.find_differences(runs))
  page = Page(path.read_text(encoding="utf-8"))
  assert page.texts("h2") == [
    "Warning",
    "Runs",
    "Differences from a",
    "Settings that differ",
    "Curves",
  ]
  training, dev = (" ".join(t.split()) for t in page.texts("figcaption"))
  assert training == "training loss ━ a last 0.8000 ━ b<i> last 0.8000"
  assert dev == "dev macro_f1 ━ a last 0.2000 ━ b<i> last 0.2000"
