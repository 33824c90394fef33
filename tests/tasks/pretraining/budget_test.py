"""Tests of training within a budget of tokens or of time."""

import itertools
import shutil
from unittest import mock

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_pretraining
from parametrize import parametrize

import run_pretraining
from bertlib.cli.errors import InputError
from bertlib.tasks.pretraining import budget
from bertlib.training import hooks
from bertlib.training.hooks import StopRequest

pytestmark = pytest.mark.train

SCRIPT = "run_pretraining.py"
NUM_TOKENS = 1500


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Folder with records, and a training on them within a budget of tokens."""
  folder = tmp_path_factory.mktemp("budget")
  tiny_pretraining.write_data(folder)
  with mock.patch.object(hooks, "LOG_STEPS", 1):
    commands.succeed(SCRIPT, *flags(folder, folder / "whole"))
  return folder


def flags(folder, output_dir, **changed):
  values = {
    "token_budget": NUM_TOKENS,
    "num_train_steps": None,
    "num_warmup_steps": None,
    "warmup_proportion": 0.2,
    "schedule": "trapezoidal",
    "decay_proportion": 0.4,
    "save_checkpoints_steps": 3,
    "xla": "off",
    "output_dir": output_dir,
  }
  return ["--do_train", *tiny_pretraining.flags(folder, **(values | changed))]


def test_rate_follows_the_tokens(folder):
  scalars = run_outputs.read_scalars(folder / "whole")
  used = np.array([*scalars["budget_used"].values()])
  assert used[0] == 0 and used[-1] < 1 and (np.diff(used) > 0).all()
  expected = 1e-2 * np.minimum(used / 0.2, 1)
  expected = np.minimum(expected, 1e-2 * (1 - used) / 0.4)
  rates = [*scalars["learning_rate"].values()]
  np.testing.assert_allclose(rates, expected, rtol=1e-4)


def test_training_ends_with_the_step_that_uses_up_the_budget(folder):
  # The first epoch has each record once.
  files = sorted(map(str, folder.glob("train-*.tfrecord")))
  settings = tiny_pretraining.SEQ_LENGTH, tiny_pretraining.NUM_PREDICTIONS
  input_fn = run_pretraining.input_fn_builder(
    files, *settings, is_training=True, seed=12345
  )
  batches = input_fn({"batch_size": 8}).as_numpy_iterator()
  tokens = itertools.accumulate(batch["input_mask"].sum() for batch in batches)
  expected = next((n, t) for n, t in enumerate(tokens, 1) if t >= NUM_TOKENS)
  variables = run_outputs.read_variables(folder / "whole")
  assert (variables["global_step"], variables["budget/tokens"]) == expected


def test_resumed_run_ends_with_the_weights_of_a_whole_one(folder, tmp_path):
  for path in (folder / "whole").glob("model.ckpt-6.*"):
    shutil.copy(path, tmp_path)
  done = commands.succeed(SCRIPT, *flags(folder, tmp_path))
  assert "from step 6 within --token_budget=1500," in done.stderr
  # All but the measured time is equal, bit for bit.
  resumed, whole = map(run_outputs.read_variables, (tmp_path, folder / "whole"))
  for variables in (resumed, whole):
    assert variables.pop("budget/seconds") > 0
  run_outputs.assert_same_bits(resumed, whole)


@pytest.mark.slow
def test_replicas_share_one_budget(folder, tmp_path):
  shared = ["--distribution=mirrored", "--num_replicas=2"]
  commands.succeed(SCRIPT, *flags(folder, tmp_path), *shared)
  found, expected = (
    run_outputs.read_variables(place) for place in (tmp_path, folder / "whole")
  )
  for name in ("global_step", "budget/tokens", "budget/token_budget"):
    assert found[name] == expected[name]


def test_used_up_budget_is_not_trained_further(folder):
  last = run_outputs.steps_done(folder / "whole")
  done = commands.succeed(SCRIPT, *flags(folder, folder / "whole"))
  assert "nothing is left to train" in done.stderr
  assert run_outputs.steps_done(folder / "whole") == last


def test_last_step_of_a_budget_is_evaluated(folder, tmp_path):
  more = ["--eval_steps=999", f"--eval_input_file={folder}/held_out.tfrecord"]
  commands.succeed(SCRIPT, *flags(folder, tmp_path, token_budget=300), *more)
  (row,) = (tmp_path / "dev_scores.jsonl").read_text().splitlines()
  last = run_outputs.read_variables(tmp_path)["global_step"]
  assert row.startswith(f'{{"step": {last}, ')


@parametrize(
  "given, changed",
  ("--token_budget=3000", {"token_budget": 3000}),
  ("--time_budget_minutes=5", {"time_budget_minutes": 5}),
  ("no budget", {"warmup_proportion": None, "num_train_steps": 50}),
)
def test_another_budget_is_refused_to_resume(folder, given, changed):
  whole = folder / "whole"
  path = whole / f"model.ckpt-{run_outputs.steps_done(whole)}"
  changed = {"token_budget": None} | changed
  error = commands.fail(SCRIPT, *flags(folder, whole, **changed))
  assert f"{given}: {path} was trained with --token_budget=1500" in error


def train_within_a_minute(folder, num_steps=None):
  """Trains with steps of 5 seconds, and saves; returns the steps done."""
  within = budget.Budget("time_budget_minutes", 1)
  ticks = itertools.count(0, 5)  # read as a step begins and as it ends
  with tf.Graph().as_default():
    step = tf.train.create_global_step()
    account = budget.Account(within, tf.constant(7.0))
    train_op = account.add_after(step.assign_add(1))
    hook = budget.BudgetHook(within, StopRequest(), lambda: next(ticks))
    saver = tf.train.Saver()
    with tf.train.SingularMonitoredSession(
      [hook], checkpoint_dir=str(folder)
    ) as session:
      done = 0
      while not session.should_stop() and done != num_steps:
        session.run(train_op)
        done += 1
      saver.save(session.raw_session(), str(folder / "model.ckpt"), step)
  return done


@pytest.mark.graph
def test_a_minute_has_twelve_steps_of_five_seconds(tmp_path):
  # The duration of a step is known in the next one.
  assert train_within_a_minute(tmp_path) == 13
  saved = run_outputs.read_variables(tmp_path)
  assert saved["budget/seconds"] == 60
  assert saved["budget/tokens"] == 13 * 7
  assert saved["budget/time_budget_minutes"] == 1


@pytest.mark.graph
def test_resumed_training_continues_with_the_rest_of_the_time(tmp_path):
  assert train_within_a_minute(tmp_path, num_steps=5) == 5
  assert run_outputs.read_variables(tmp_path)["budget/seconds"] == 20
  assert train_within_a_minute(tmp_path) == 9
  within = budget.Budget("time_budget_minutes", 1)
  assert within.is_used_up(tf.train.latest_checkpoint(str(tmp_path)))


@pytest.mark.unit
def test_budgets_are_not_for_a_tpu():
  with pytest.raises(InputError, match="--token_budget=7: not for a TPU"):
    budget.check(budget.Budget("token_budget", 7), None, on_tpu=True)
