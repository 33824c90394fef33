"""Test of the benchmark of packed rows."""

from types import SimpleNamespace

import pytest

from benchmarks import packing


@pytest.mark.train
@pytest.mark.parametrize("side", ["packed static", "unpadded"])
def test_epochs_of_a_small_model_are_timed(side):
  settings = SimpleNamespace(
    layers=1,
    hidden=16,
    heads=2,
    batch_size=2,
    seq_length=16,
    sequences=9,
    precision="float32",
    xla="off",
    gradient_accumulation_steps=1,
    recompute_activations=False,
    memory_gb=None,
    **packing.SIDES[side],
  )
  answers = packing.epochs(settings)
  assert "tokens fill" in next(answers)["description"]
  assert next(answers)["an epoch"] > 0
