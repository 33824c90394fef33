"""Tests of learning-rate schedules without a rate, or without their peak."""

import pytest

from bertlib.cli import option
from bertlib.settings.training import OptimizerSettings
from bertlib.training import loop

pytestmark = pytest.mark.unit

TRAPEZOID = {"schedule": "trapezoidal", "decay_proportion": 0.5}


def check(num_warmup_steps=10, **flags):
  """Checks a schedule over 100 steps."""
  settings = option.make(OptimizerSettings, **flags)
  loop.warn_of_schedule(settings, 100, num_warmup_steps)


@pytest.mark.parametrize(
  ("num_warmup_steps", "flags", "words"),
  [
    (10, {"learning_rate": 0.0}, "--learning_rate=0: the weights will not"),
    (51, TRAPEZOID, "--decay_proportion=0.5: the decay begins before"),
    (50, TRAPEZOID, None),
    (100, {"decay_proportion": 0.5}, None),
  ],
)
def test_a_schedule_without_effect_is_said(
  num_warmup_steps, flags, words, caplog
):
  check(num_warmup_steps, **flags)
  assert (words or "") in caplog.text
  assert bool(words) == bool(caplog.messages)
