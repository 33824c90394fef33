"""Tests of the flag files in recipes/."""

from pathlib import Path

import commands
import numpy as np
import pytest
import run_outputs
import tiny_pretraining
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


def second_phase(folder, output_dir):
  """Flags of a small second phase, from the checkpoint of the first."""
  tiny = tiny_pretraining.flags(
    folder,
    bert_config_file=None,
    init_checkpoint=folder / "phase_1",
    num_train_steps=NUM_STEPS,
    num_warmup_steps=NUM_STEPS,
    save_checkpoints_steps=4,
    output_dir=output_dir,
    xla="off",
  )
  return [f"--flagfile={commands.ROOT}/recipes/pretraining_512.flags", *tiny]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Folder with records, and a first and a second phase trained on them."""
  folder = tmp_path_factory.mktemp("recipes")
  tiny_pretraining.write_data(folder)
  commands.succeed(
    SCRIPT,
    f"--flagfile={commands.ROOT}/recipes/pretraining_128.flags",
    *tiny_pretraining.flags(
      folder,
      vocab_file=folder / "vocab.txt",
      num_train_steps=12,
      output_dir=folder / "phase_1",
      xla="off",
    ),
  )
  commands.succeed(SCRIPT, *second_phase(folder, folder / "phase_2"))
  return folder


@pytest.mark.train
def test_second_phase_starts_with_new_steps_moments_and_schedule(
  folder, tmp_path
):
  still = ["--learning_rate=0", "--num_train_steps=1", "--num_warmup_steps=0"]
  commands.succeed(SCRIPT, *second_phase(folder, tmp_path), *still)
  first = run_outputs.read_variables(folder / "phase_1")
  found = run_outputs.read_variables(tmp_path)
  assert found["global_step"] == 1
  for name, value in found.items():
    if name.endswith("/adam_m"):
      # Moments of one step, from zeros.
      squares = found[name.removesuffix("m") + "v"]
      np.testing.assert_allclose(value**2 / 0.1**2, squares / 1e-3, rtol=1e-3)
    elif not name.endswith("/adam_v") and name != "global_step":
      np.testing.assert_array_equal(value, first[name], name)
  rates = run_outputs.read_scalars(folder / "phase_2")["learning_rate"]
  assert rates[1] == 0
  # Warm-up takes all steps.
  assert rates[NUM_STEPS] == pytest.approx(1e-2 * (NUM_STEPS - 1) / NUM_STEPS)
