"""Tests of the steps of a run and of a dry run."""

import os

import pytest

from bertlib.cli.errors import InputError
from bertlib.cli.steps import RUN, Steps

pytestmark = pytest.mark.unit


def use_config(step):
  """Two steps that fail, and one that needs what the first does not find."""
  with step("config"):
    config = os.stat("gone.json")
  with step("data"):
    raise InputError("x.tsv, row 3: fix it")
  with step("model"):
    print(config)
  with step("output"):
    pass
  return config


def test_a_run_ends_with_the_first_error():
  with pytest.raises(FileNotFoundError), RUN.until_end():
    use_config(RUN)


def test_a_dry_run_goes_on_where_a_step_needs_no_failed_one(capsys):
  step = Steps(is_dry_run=True)
  with pytest.raises(InputError, match="failed steps: 2"), step.until_end():
    use_config(step)
  config, data, model, output = capsys.readouterr().out.splitlines()
  assert config == "fail  config      gone.json: No such file or directory"
  assert data == "fail  data        x.tsv, row 3: fix it"
  assert model.split()[:2] == ["skip", "model"]
  assert output == "pass  output"


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_a_bug_keeps_its_traceback(is_dry_run):
  step = Steps(is_dry_run)
  with pytest.raises(ZeroDivisionError), step.until_end(), step("x"):
    print(1 / 0)
  with pytest.raises(UnboundLocalError), step.until_end(), step("y"):
    print(later)  # noqa: F821
    later = 0  # noqa: F841


def test_a_dry_run_without_failures_just_ends(capsys):
  step = Steps(is_dry_run=True)
  with step.until_end(), step("x"):
    pass
  assert capsys.readouterr().out == "pass  x\n"
