"""Test of the benchmark of a training step."""

from types import SimpleNamespace

import pytest

from benchmarks import training_step


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_of_a_small_model_is_timed(precision):
  settings = SimpleNamespace(
    layers=1,
    hidden=16,
    heads=2,
    batch_size=2,
    seq_length=8,
    steps=1,
    precision=precision,
    xla="on",
    gradient_accumulation_steps=1,
    recompute_activations=False,
    memory_gb=None,
  )
  side = training_step.ours(settings)
  assert next(side)["description"] == f"{precision}, compiled"
  assert next(side)["a step"] > 0
