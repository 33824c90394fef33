"""Tests of the benchmarks of a training step and of packed rows."""

from types import SimpleNamespace

import pytest

from benchmarks import packing, training_step


def settings(**changed):
  values = {
    "layers": 1,
    "hidden": 16,
    "heads": 2,
    "batch_size": 2,
    "gradient_accumulation_steps": 1,
    "recompute_activations": False,
    "memory_gb": None,
  }
  return SimpleNamespace(**values | changed)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_of_a_small_model_is_timed(precision):
  side = training_step.ours(
    settings(precision=precision, xla="on", seq_length=8, steps=1)
  )
  assert next(side)["description"] == f"{precision}, compiled"
  assert next(side)["a step"] > 0


@pytest.mark.train
@pytest.mark.parametrize("side", ["packed static", "unpadded"])
def test_epochs_of_packed_rows_are_timed(side):
  sizes = {"seq_length": 16, "sequences": 9}
  answers = packing.epochs(
    settings(precision="float32", xla="off", **sizes, **packing.SIDES[side])
  )
  assert "tokens fill" in next(answers)["description"]
  assert next(answers)["an epoch"] > 0
