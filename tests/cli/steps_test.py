"""Tests of the steps of a run and of a dry run."""

import os

import pytest
from parametrize import parametrize

from bertlib.cli.errors import InputError
from bertlib.cli.steps import RUN, Steps

pytestmark = pytest.mark.unit


def read_data():
  raise InputError("x.tsv, row 3: fix it")


def use_config(step):
  """Two steps that fail, two that need the first, and one that needs none."""
  config = step("config", os.stat, "gone.json")
  step("data", read_data)
  step("weights", str, step("model", str, config))
  step("output", os.getcwd)
  return config


def test_a_run_ends_with_the_first_error():
  with pytest.raises(FileNotFoundError), RUN.until_end():
    use_config(RUN)


def test_a_dry_run_goes_on_where_a_step_needs_no_failed_one(capsys):
  step = Steps(is_dry_run=True)
  with pytest.raises(InputError, match="failed steps: 2"), step.until_end():
    use_config(step)
  config, data, model, weights, output = capsys.readouterr().out.splitlines()
  assert config == "fail  config      gone.json: No such file or directory"
  assert data == "fail  data        x.tsv, row 3: fix it"
  assert model.split()[:2] == ["skip", "model"]
  assert weights.split()[:2] == ["skip", "weights"]
  assert output == "pass  output"


@parametrize("status", "fail", "skip")
def test_a_dry_run_goes_on_with_what_is_given_instead(capsys, status):
  step = Steps(is_dry_run=True)
  path = "gone.json" if status == "fail" else step("config", os.stat, "gone")
  assert step("data", os.stat, path, instead=3) == 3
  assert capsys.readouterr().out.splitlines()[-1].startswith(f"{status}  data")


def test_what_needs_a_failed_step_outside_of_steps_ends_a_dry_run(capsys):
  step = Steps(is_dry_run=True)
  with pytest.raises(InputError, match="failed steps: 1"), step.until_end():
    step.need("found", step("config", os.stat, "gone.json"))
    step("output", os.getcwd)
  assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_step_within_which_a_failed_one_is_needed_is_skipped(capsys):
  def set_up(step):
    step.need(step("config", os.stat, "gone.json"))

  step = Steps(is_dry_run=True)
  step("run", set_up, step)
  config, run = capsys.readouterr().out.splitlines()
  assert config.split()[:2] == ["fail", "config"]
  assert run.split()[:2] == ["skip", "run"]


@parametrize("is_dry_run", True, False)
def test_a_bug_keeps_its_traceback(is_dry_run):
  step = Steps(is_dry_run)
  with pytest.raises(ZeroDivisionError), step.until_end():
    step("x", lambda: 1 / 0)
