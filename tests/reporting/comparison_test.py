"""Tests of the comparison of runs."""

import math
import re
import statistics

import pytest
import run_folders

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


OTHER_DEV = {"train_file": "a" * 64, "dev_file": "f" * 64}


def results(**metrics):
  return {"results": {f"eval_{name}": value for name, value in metrics.items()}}


def difference_rows(runs):
  return comparison.difference_rows(comparison.differences(runs))


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
  assert [row["run"] for row in difference_rows(runs)] == ["c"]


def test_runs_of_another_script_are_named_and_not_compared(tmp_path):
  runs = runs_of(
    tmp_path,
    a=results(accuracy=0.5),
    b=results(accuracy=0.9) | {"script": "run_ner.py"},
  )
  assert "of another script than a: b" in comparison.warnings(runs)[0]
  assert difference_rows(runs) == []


def test_a_run_without_receipt_is_compared(tmp_path):
  folder = run_folders.write_run(tmp_path / "a", **results(accuracy=0.5))
  (tmp_path / "old").mkdir()
  (tmp_path / "old" / "eval_results.txt").write_text("eval_accuracy = 0.4\n")
  runs = recorded_runs.find_runs([folder, str(tmp_path / "old")], records.find)
  assert comparison.warnings(runs) == []
  (row,) = difference_rows(runs)
  assert row == {"run": "old", "accuracy": "-0.1000"}


def test_the_table_begins_with_primary_metrics(tmp_path):
  runs = runs_of(
    tmp_path,
    a=results(loss=0.25, accuracy=0.5),
    b={"results": {"eval_f1": 0.5, "eval_loss": 0.5}}
    | {"flags": {"best_metric": "f1"}},
    c={"results": None},
  )
  rows = comparison.summary(runs)
  assert list(rows[0]) == ["run", "accuracy", "f1", "loss", "duration", "note"]
  assert rows[2] == {
    "run": "c",
    "accuracy": None,
    "f1": None,
    "loss": None,
    "duration": "1 h 00 min 05 s",
    "note": "not finished",
  }


def test_the_terminal_has_few_metrics_and_stars(tmp_path):
  many = {f"m{n}": 0.5 for n in range(9)}
  runs = runs_of(
    tmp_path,
    a=results(accuracy=0.5, **many),
    b=results(accuracy=0.75, **many),
  )
  first, second = comparison.terminal_table(runs)
  assert first["accuracy"] == "0.5000 "
  assert second["accuracy"] == "0.7500*"
  assert [name for name in first if name.startswith("m")] == [
    "m0", "m1", "m2", "m3", "m4",
  ]  # fmt: skip


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
  assert comparison.seed_rows(runs) == [
    {
      "runs": "run0, run1, run2",
      "seeds": "0, 1, 2",
      "accuracy": f"{mean:.4f} ± {deviation:.4f}",
    }
  ]


def test_inputs_and_versions_that_differ_are_listed(tmp_path):
  runs = runs_of(
    tmp_path,
    a={},
    b={"versions": {"python": "3.12.1"}, "data": OTHER_DEV},
  )
  assert comparison.input_rows(runs) == [
    {"run": "a", "dev data": "b" * 8, "python": "3.11.7"},
    {"run": "b", "dev data": "f" * 8, "python": "3.12.1"},
  ]


def test_the_longer_side_of_a_table_goes_downwards(tmp_path):
  runs = runs_of(
    tmp_path,
    a={"flags": {"x": 1, "y": 2, "z": 3}},
    b={"flags": {"x": 4, "y": 5, "z": 6}},
  )
  assert comparison.flag_rows(runs) == [
    {"flag": "--x", "a": 1, "b": 4},
    {"flag": "--y", "a": 2, "b": 5},
    {"flag": "--z", "a": 3, "b": 6},
  ]


def test_flags_are_shown_as_one_types_them(tmp_path):
  rates = (1.0, "1"), (5e-5, "5e-05")
  first, other = ({"flags": {"rate": rate}} for rate, _ in rates)
  rows = comparison.flag_rows(runs_of(tmp_path, a=first, b=other))
  assert [row["--rate"] for row in rows] == [shown for _, shown in rates]


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
  (row,) = difference_rows(runs)
  assert row["right in one run only"] == "2 : 0"
  assert row["p-value"] == pytest.approx(0.5)  # two coins, both on one side


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
  (row,) = difference_rows(runs)
  assert "p-value" not in row


def test_labels_of_two_runs_are_tested(tmp_path):
  gold = ["no", "yes"] * 10
  of_run = results(accuracy=0.5, f1=0.5)
  of_run["results"]["labels"] = '["no", "yes"]'
  runs = runs_of(
    tmp_path,
    a=of_run | predictions(gold, gold[:17] + ["no"] * 3),
    b=of_run | predictions(gold, ["no"] * 5 + gold[5:]),
  )
  (row,) = difference_rows(runs)
  assert row["right in one run only"] == "2 : 2"
  assert row["p-value"] == 1
  assert re.fullmatch(r"\+0\.0000 \(-0\.\d+ to \+0\.\d+\)", row["f1"])
  assert row["accuracy"] == "+0.0000"


def test_values_of_two_runs_have_an_interval(tmp_path):
  gold = [n / 4 for n in range(20)]
  runs = runs_of(
    tmp_path,
    a=results(pearson=0.5, loss=1.0) | predictions(gold, gold[::-1]),
    b=results(pearson=0.75, loss=0.5) | predictions(gold, gold[1:] + gold[:1]),
  )
  (row,) = difference_rows(runs)
  assert row["pearson"].startswith("+0.2500 (+1.")
  assert list(row) == ["run", "pearson", "loss"]


def test_tags_of_two_runs_have_an_interval_over_sentences(tmp_path):
  gold = [["B-PER", "O"], ["O", "O", "B-LOC"]] * 10
  of_run = results(f1=0.5, f1_PER=0.5) | {"script": "run_ner.py"}
  runs = runs_of(
    tmp_path,
    a=of_run | predictions(gold, gold),
    b=of_run | predictions(gold, [["B-PER", "O"], ["O"] * 3] * 10),
  )
  (row,) = difference_rows(runs)
  assert list(row) == ["run", "f1", "f1_PER"]
  assert row["f1"].startswith("+0.0000 (-0.")
  assert row["f1_PER"] == "+0.0000"


def test_lists_of_labels_have_a_test_and_intervals(tmp_path):
  gold = [["a"], ["a", "b"], []] * 10
  of_run = results(accuracy=0.5, micro_f1=0.5)
  of_run["results"]["thresholds"] = '{"a": 0.5, "b": 0.5}'
  runs = runs_of(
    tmp_path,
    a=of_run | predictions(gold, [["a"]] * 30),
    b=of_run | predictions(gold, [["b", "a"]] * 30),
  )
  (row,) = difference_rows(runs)
  assert row["right in one run only"] == "10 : 10"
  # The difference is 0.8 for the two labels, 0.667 for one, 0 for none.
  assert re.fullmatch(r"\+0\.0000 \([-+]0\.\d+ to \+0\.\d+\)", row["micro_f1"])


def test_labels_that_are_not_known_have_a_test_alone(tmp_path):
  gold = ["a", "b"] * 10
  of_run = results(f1=0.5)
  of_run["results"]["labels"] = '["a", "c"]'
  runs = runs_of(
    tmp_path,
    a=of_run | predictions(gold, gold),
    b=of_run | predictions(gold, ["a"] * 20),
  )
  (row,) = difference_rows(runs)
  assert (row["f1"], row["right in one run only"]) == ("+0.0000", "10 : 0")


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
  for row in difference_rows(runs):
    assert list(row) == ["run", "accuracy"]
