"""Tests of the flag files in recipes/."""

from pathlib import Path

import commands
import numpy as np
import pytest
import run_outputs
import tiny_pretraining
import trained_models
from absl import flags

from bertlib.cli import command_line, option
from bertlib.tasks.pretraining.settings import PretrainingSettings

RECIPES = sorted(Path(commands.ROOT, "recipes").glob("*.flags"))

SCRIPT = "run_pretraining.py"
NUM_STEPS = 20


@pytest.mark.unit
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_recipe_is_of_flags_that_the_command_takes(recipe):
  added = ["--bert_config_file=x", "--input_file=x", "--output_dir=x"]
  values = flags.FlagValues()
  option.define(PretrainingSettings, values)
  command_line.parse([SCRIPT, f"--flagfile={recipe}", *added], values)
  option.from_flags(PretrainingSettings, values)
  assert list(option.warnings(PretrainingSettings, values)) == []


@pytest.mark.train
def test_second_phase_starts_with_new_steps_moments_and_schedule(
  once, tmp_path
):
  phase_1 = trained_models.copy(once, "pretraining", tmp_path).folder
  commands.succeed(
    SCRIPT,
    f"--flagfile={commands.ROOT}/recipes/pretraining_512.flags",
    *tiny_pretraining.flags(
      tmp_path,
      bert_config_file=None,
      init_checkpoint=phase_1,
      num_train_steps=NUM_STEPS,
      num_warmup_steps=NUM_STEPS,
      save_checkpoints_steps=1,
      keep_checkpoint_max=2 * NUM_STEPS,
      output_dir=tmp_path / "phase_2",
      xla="off",
    ),
  )
  first = run_outputs.read_variables(phase_1)
  # At the rate 0 of the first step, no weight changes.
  found = run_outputs.read_variables(tmp_path / "phase_2" / "model.ckpt-1")
  assert found["global_step"] == 1
  for name, value in found.items():
    if name.endswith("/adam_m"):
      # Moments of one step, from zeros.
      squares = found[name.removesuffix("m") + "v"]
      np.testing.assert_allclose(value**2 / 0.1**2, squares / 1e-3, rtol=1e-3)
    elif not name.endswith("/adam_v") and name != "global_step":
      np.testing.assert_array_equal(value, first[name], name)
  rates = run_outputs.read_scalars(tmp_path / "phase_2")["learning_rate"]
  assert rates[1] == 0
  # Warm-up takes all steps.
  assert rates[NUM_STEPS] == pytest.approx(1e-2 * (NUM_STEPS - 1) / NUM_STEPS)
