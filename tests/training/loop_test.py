"""Tests of evaluation during training, early stopping, seeds, schedules."""

import json
import math
import os
import statistics

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_classifier
from parametrize import parametrize

import run_classifier
from bertlib.checkpoints import checkpoint_files
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.io import json_files, result_files
from bertlib.io.result_files import Selection
from bertlib.reporting import run_report
from bertlib.settings.training import OptimizerSettings
from bertlib.training import loop
from bertlib.training.loop import DevScores

pytestmark = pytest.mark.unit
FALLING = {4: 0.9, 8: 0.8, 12: 0.7, 13: 0.6}
RISING = {4: 0.6, 8: 0.7, 12: 0.8, 13: 0.9}
TRAPEZOID = {"schedule": "trapezoidal", "decay_proportion": 0.5}
PAIRS = [(a, b) for a, b, _ in tiny_classifier.SENTENCES * 2]
EVALUATION = ["--eval_steps=2", "--patience=2", "--best_metric=eval_loss"]


@parametrize(
  "metric, score, than, better",
  ("f1", 0.5, None, True),
  ("f1", 0.5, 0.4, True),
  ("f1", 0.5, 0.5, False),
  ("loss", 0.4, 0.5, True),
  ("masked_lm_loss", 0.5, 0.5, False),
  ("f1", math.nan, None, False),
  ("f1", math.nan, 0.5, False),
  ("loss", math.nan, 0.5, False),
  ("f1", 0.0, math.nan, True),
  ("loss", 9.0, math.nan, True),
  ("mae", 0.4, 0.5, True),
)
def test_higher_is_better_but_for_loss_and_error(metric, score, than, better):
  assert result_files.is_better(metric, score, than, ["mae"]) == better


def test_each_score_has_one_name():
  results = {"eval_loss": 0.25, "loss": 0.5, "eval_f1": 1, "global_step": 3}
  results |= {"confusion_matrix": [[1]], "labels": "[]", "exact_match": 50.0}
  scores = result_files.plain_scores(results)
  assert scores == {"loss": 0.25, "f1": 1.0, "exact_match": 50.0}


@parametrize(
  "metric, best_step", ("f1", 2), ("loss", 1), ("recall", 3), ("accuracy", None)
)
def test_best_row_is_the_first_with_the_best_score(metric, best_step):
  rows = [
    {"step": 1, "f1": 0.1, "loss": 0.5},
    {"step": 2, "f1": 0.9, "loss": 0.5},
    {"step": 3, "f1": 0.9, "loss": 0.6, "recall": 0.2},
  ]
  best = result_files.best_row(rows, metric)
  assert (best and best["step"]) == best_step


def scores_of(folder, metric, *values, patience=0):
  """Dev scores of a run with these values at steps 1, 2, ..."""
  scores = DevScores(str(folder), Selection(1, metric, patience))
  for step, value in enumerate(values, start=1):
    scores.add(step, {f"eval_{metric}": value})
    scores.write()
  return scores


@parametrize(
  "values, patience, ends_early",
  ([0.5, 0.4, 0.4], 0, False),  # 0 disables early stopping
  ([], 1, False),
  ([0.5, 0.4, 0.4], 2, True),
  ([0.5, 0.4, 0.6], 2, False),
  ([0.5, 0.5, 0.5], 2, True),  # equal is no improvement
  ([math.nan, math.nan], 2, True),
)
def test_patience_counts_from_the_best(tmp_path, values, patience, ends_early):
  scores = scores_of(tmp_path, "f1", *values, patience=patience)
  assert scores.ends_early() == ends_early


def test_scores_are_restored_from_the_file(tmp_path):
  written = scores_of(tmp_path, "f1", 0.25, 0.75, 0.5)
  read = DevScores(str(tmp_path), Selection(1, "f1", 1))
  assert read.rows == written.rows
  assert read.best == {"step": 2, "f1": 0.75}
  assert read.last_step == 3
  assert read.ends_early()
  assert not read.add(4, {"f1": 0.6}) and read.add(5, {"f1": 0.8})


def test_the_scores_file_keeps_which_metrics_are_better_when_lower(tmp_path):
  selection = Selection(1, "mae", lower_is_better=["mae"])
  scores = DevScores(str(tmp_path), selection)
  assert all(scores.add(step, {"mae": 1 / step}) for step in (1, 2))
  scores.write()
  assert result_files.lower_is_better(str(tmp_path)) == ["mae"]
  assert scores.by_name() == {"mae": [(1, 1.0), (2, 0.5)]}


def test_evaluating_a_step_again_replaces_it_and_later_steps(tmp_path):
  scores = scores_of(tmp_path, "f1", 0.1, 0.2, 0.3)
  scores.add(2, {"f1": 0.9})
  scores.write()
  assert rows_of(tmp_path) == [{"step": 1, "f1": 0.1}, {"step": 2, "f1": 0.9}]


def test_scores_are_written_to_tensorboard(tmp_path):
  train(tmp_path, {4: 0.25, 8: 0.5, 12: 0.75})
  scalars = run_report.read_scalars(str(tmp_path / "dev"))
  assert scalars == {"loss": [(4, 0.25), (8, 0.5), (12, 0.75)]}
  assert run_report.read_scalars(str(tmp_path)) == {}


class Killed(Exception):
  """Ends a run immediately."""


class FakeEstimator:
  """Saves a checkpoint every two steps, of a weight equal to the step."""

  def __init__(self, model_dir):
    self.model_dir = str(model_dir)
    os.makedirs(model_dir, exist_ok=True)

  def save(self, step):
    path = os.path.join(self.model_dir, f"model.ckpt-{step}")
    values = {"w": np.float32(step), "w/adam_m": np.float32(0)}
    values["global_step"] = np.int64(step)
    checkpoint_files.write_variables(path, values)
    tf.train.update_checkpoint_state(self.model_dir, path)

  def train(self, input_fn, hooks, max_steps, saving_listeners):
    del input_fn, hooks
    first = run_outputs.steps_done(self.model_dir)
    for step in range(first, max_steps + 1):
      if step % 2 == 0 or step == max_steps:
        self.save(step)
        ends = [each.after_save(None, step) for each in saving_listeners]
        # Estimator ignores the listeners' result at its first step.
        if any(ends) and step > first:
          return


def train(folder, losses, killed_at=None, every=4, patience=2):
  """Trains 13 steps with these dev losses by step; returns the last step."""

  def evaluate(checkpoint):
    step = int(tf.train.load_checkpoint(checkpoint).get_tensor("w"))
    if step == killed_at:
      raise Killed
    return {"eval_loss": losses[step]}

  selection = Selection(every, "loss", patience)
  estimator = FakeEstimator(folder)
  done = run_outputs.steps_done(folder)
  loop.train_and_evaluate(estimator, None, done, 13, selection, evaluate)
  return run_outputs.steps_done(folder)


def best_step(folder):
  best = checkpoint_files.trained_checkpoint(str(folder))
  return int(tf.train.load_checkpoint(best).get_tensor("w"))


def rows_of(folder):
  lines = (folder / "dev_scores.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def evaluated_steps(folder):
  return [row["step"] for row in rows_of(folder)]


@pytest.mark.smoke
@pytest.mark.train
@pytest.mark.parametrize(
  ("losses", "evaluated", "best"),
  [(FALLING, [4, 8, 12, 13], 13), (RISING, [4, 8, 12], 4)],
  ids=["falling", "rising"],
)
def test_last_step_or_patience_ends_training(tmp_path, losses, evaluated, best):
  assert train(tmp_path, losses) == evaluated[-1]
  assert evaluated_steps(tmp_path) == evaluated
  assert best_step(tmp_path) == best


@pytest.mark.train
def test_without_eval_steps_nothing_is_evaluated(tmp_path):
  assert train(tmp_path, {}, every=0) == 13
  assert not (tmp_path / "dev_scores.jsonl").exists()
  assert best_step(tmp_path) == 13


@pytest.mark.smoke
@pytest.mark.train
@pytest.mark.parametrize(
  ("losses", "killed_at"),
  [(FALLING, 4), (FALLING, 8), (FALLING, 13), (RISING, 4), (RISING, 12)],
)
def test_run_killed_in_evaluation_ends_the_same(tmp_path, losses, killed_at):
  straight, killed = tmp_path / "straight", tmp_path / "killed"
  last = train(straight, losses)
  with pytest.raises(Killed):
    train(killed, losses, killed_at)
  assert train(killed, losses) == last
  for name in ("dev_scores.jsonl", "best/checkpoint"):
    assert (killed / name).read_text() == (straight / name).read_text()
  assert best_step(killed) == best_step(straight)


@pytest.mark.train
def test_scores_are_written_after_the_best_is_saved(tmp_path, monkeypatch):
  def killed(*_):
    raise Killed

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint_files, "save_best", killed)
    with pytest.raises(Killed):
      train(tmp_path, RISING)
  assert train(tmp_path, RISING) == 12
  assert best_step(tmp_path) == 4


@pytest.mark.train
def test_scores_of_removed_checkpoints_are_ignored(tmp_path):
  train(tmp_path, RISING)
  for path in [*tmp_path.glob("model.ckpt-*"), tmp_path / "checkpoint"]:
    path.unlink()
  assert train(tmp_path, FALLING) == 13
  assert evaluated_steps(tmp_path) == [4, 8, 12, 13]
  assert best_step(tmp_path) == 13


@pytest.mark.train
def test_more_patience_resumes_training(tmp_path):
  train(tmp_path, RISING)
  assert train(tmp_path, RISING, patience=2) == 12
  assert train(tmp_path, RISING, patience=9) == 13
  assert evaluated_steps(tmp_path) == [4, 8, 12, 13]


def test_statistics_over_seeds_match_the_textbook():
  values = [0.71, 0.69, 0.74, 0.5, 0.72]
  results = {7 + i: {"eval_f1": value} for i, value in enumerate(values)}
  summary = loop.summarize_seeds("f1", results)
  mean, deviation = statistics.mean(values), statistics.stdev(values)
  margin = 2.776445105 * deviation / math.sqrt(5)  # t for 4 degrees of freedom
  interval = summary.pop("confidence_interval")
  assert interval == pytest.approx([mean - margin, mean + margin], rel=1e-8)
  assert summary.pop("mean") == pytest.approx(mean, rel=1e-12)
  found = summary.pop("standard_deviation")
  assert found == pytest.approx(deviation, rel=1e-12)
  assert summary.pop("seeds") == [7, 8, 9, 10, 11]
  expected = {"metric": "f1", "median": 0.71, "best_seed": 9}
  assert summary == expected | {"scores": values}


@pytest.mark.parametrize(
  ("metric", "values", "best"),
  [("f1", [0.3, 0.5, 0.5], 1), ("loss", ["nan", 0.2, 0.1], 2)],
)
def test_best_seed_has_the_best_score(metric, values, best):
  results = {i: {f"eval_{metric}": value} for i, value in enumerate(values)}
  assert loop.summarize_seeds(metric, results)["best_seed"] == best


def test_metric_that_a_run_lacks_is_refused():
  results = {3: {"eval_f1": 1.0}, 4: {"eval_loss": 1.0}}
  with pytest.raises(InputError, match=r"seed 4: .*'f1'; there are loss"):
    loop.summarize_seeds("f1", results)


@parametrize(
  "gold, predicted, collapsed",
  (["yes", "no"], ["no", "no"], True),
  (["yes", "no"], ["no", "yes"], False),
  (["no", "no"], ["no", "no"], False),
  ([["a"], ["a", "b"]], [["b"], ["b"]], True),
  ([["a"], ["a", "b"]], [[], ["b"]], False),
  ([["B-PER", "O"], ["O"]], [["O", "O"], ["O"]], True),
  ([["B-PER", "O"], ["O"]], [["O", "B-PER"], ["O"]], False),
  ([0.5, 4.0], [2.5, 2.5000001], True),
  ([0.5, 4.0], [2.5, 2.6], False),
  ([0.5, 4.0], [float("nan")] * 2, True),
)
def test_collapse_is_seen_in_predictions(tmp_path, gold, predicted, collapsed):
  path = str(tmp_path / "eval_predictions.jsonl")
  rows = map(result_files.DevPrediction, map(str, range(99)), gold, predicted)
  result_files.write_dev_predictions(path, rows)
  assert loop.has_collapsed(str(tmp_path)) == collapsed


@pytest.mark.parametrize(
  ("answers", "collapsed"),
  [([""] * 20, True), (["Rome"] * 20, True), ([""] * 19 + ["Rome"], False)],
)
def test_collapse_is_seen_in_answers(tmp_path, answers, collapsed):
  assert not loop.has_collapsed(str(tmp_path))
  content = {str(number): answer for number, answer in enumerate(answers)}
  (tmp_path / "predictions.json").write_text(json.dumps(content))
  assert loop.has_collapsed(str(tmp_path)) == collapsed


def test_statistics_with_nan_are_strict_json(tmp_path):
  scores = {seed: {"eval_pearson": "nan"} for seed in (1, 2)}
  summary = loop.summarize_seeds("pearson", scores)
  path = tmp_path / "seeds.json"
  path.write_text(json_files.dumps(summary | {"collapsed": [1]}))
  json.loads(path.read_text(), parse_constant=pytest.fail)
  read = loop.read_statistics(str(tmp_path))
  assert np.isnan(read["median"]) and np.isnan(read["scores"]).all()


@parametrize(
  "num_warmup_steps, flags, words",
  (10, {"learning_rate": 0.0}, "--learning_rate=0: the weights will not"),
  (51, TRAPEZOID, "--decay_proportion=0.5: the decay begins before"),
  (50, TRAPEZOID, None),
  (100, {"decay_proportion": 0.5}, None),
)
def test_a_useless_schedule_is_said(num_warmup_steps, flags, words, caplog):
  settings = option.make(OptimizerSettings, **flags)
  loop.warn_of_schedule(settings, 100, num_warmup_steps)
  assert (words or "") in caplog.text
  assert bool(words) == bool(caplog.messages)


# Whole runs


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
  """A small model and data on which training makes the dev loss worse."""
  workspace = tmp_path_factory.mktemp("selection")
  tiny_classifier.write_data(workspace)
  for name, label in [("train", "1"), ("dev", "0"), ("test", "0")]:
    labels = [label] * 7 + ["0"]  # training needs two labels
    rows = [f"{n}\t1\t2\t{a}\t{b}\n" for n, (a, b) in zip(labels, PAIRS)]
    (workspace / f"{name}.tsv").write_text("header\n" + "".join(rows))
  return workspace


def flags_of(workspace, output_dir):
  more = "--num_train_epochs=6", "--keep_checkpoint_max=9", "--xla=off"
  flags = tiny_classifier.flags(workspace, output_dir=output_dir)
  return ["--do_train", *flags, *more]


@pytest.fixture(scope="module")
def main(workspace):
  with commands.in_process(run_classifier) as run:
    yield lambda output_dir, *more: run(*flags_of(workspace, output_dir), *more)


@pytest.fixture(scope="module")
def stopped(workspace, main):
  """Output folder of a run of 12 steps that early stopping ended at step 6."""
  main(workspace / "stopped", *EVALUATION, "--do_eval", "--do_predict")
  return workspace / "stopped"


@pytest.mark.train
def test_reported_score_is_that_of_the_best_checkpoint(stopped):
  results = result_files.read_results(str(stopped / "eval_results.txt"))
  again = DevScores(str(stopped), Selection(2, "loss"))
  assert results["global_step"] == again.best["step"] == 2
  again.add(2, results)
  assert again.rows == rows_of(stopped)[:1]
  assert evaluated_steps(stopped) == [2, 4, 6]  # of 12


@pytest.mark.train
def test_predictor_loads_the_best_weights(stopped):
  table = np.loadtxt(stopped / "test_results.tsv", delimiter="\t")

  def predict(**options):
    with run_classifier.Predictor(str(stopped), **options) as predictor:
      predictions = predictor.predict(PAIRS)
    return np.array([list(p.probabilities.values()) for p in predictions])

  np.testing.assert_allclose(predict(), table, rtol=0, atol=1e-5)
  last = predict(checkpoint=tf.train.latest_checkpoint(str(stopped)))
  assert np.abs(last - table).max() > 1e-3


@pytest.mark.train
def test_evaluation_does_not_change_the_weights(workspace, stopped, main):
  plain = workspace / "plain"
  main(plain, "--save_checkpoints_steps=2")
  assert run_outputs.steps_done(plain) == 12
  assert not (plain / "best").exists()
  folders = (folder / "model.ckpt-6" for folder in (plain, stopped))
  run_outputs.assert_same_variables(*folders)


@pytest.mark.train
def test_best_of_the_seeds_is_kept(workspace, main, monkeypatch, tmp_path):
  more = ["--seeds=2", "--seed=5", "--do_eval", "--best_metric=loss"]
  more += ["--num_train_epochs=1", "--do_predict"]

  def run(folder, flags):  # in this process; `wheel_test.py` has others
    given = [*flags_of(workspace, folder), *more, *flags]
    commands.succeed("run_classifier.py", *given)

  monkeypatch.setattr(loop, "run_again", run)
  main(tmp_path, *more)

  results = {
    seed: result_files.read_results(f"{tmp_path}/seed_{seed}/eval_results.txt")
    for seed in (5, 6)
  }
  summary = run_outputs.read_json(tmp_path / "seeds.json")
  losses = [results[seed]["eval_loss"] for seed in (5, 6)]
  assert losses[0] != losses[1]
  assert summary["scores"] == losses
  best = 5 if losses[0] < losses[1] else 6
  assert summary["best_seed"] == best
  reported = result_files.read_results(f"{tmp_path}/eval_results.txt")
  assert reported == results[best]
  path = checkpoint_files.trained_checkpoint(str(tmp_path))
  kept = run_outputs.read_variables(path)
  trained = run_outputs.read_variables(f"{tmp_path}/seed_{best}/model.ckpt-2")
  weights = {n: value for n, value in trained.items() if "/adam_" not in n}
  run_outputs.assert_same_bits(kept, weights)
  # Only the best model predicts the test set.
  page = (tmp_path / "report.html").read_text()
  assert "kept as the best" in page and "95% confidence interval" in page
  assert (tmp_path / "test_results.tsv").exists()
  assert not list(tmp_path.glob("seed_*/test_results.tsv"))
