"""Fixtures of several test files."""

import hypothesis
import pytest
from absl import logging

# No test is about how long an example takes on a busy machine.
hypothesis.settings.register_profile("project", deadline=None)
hypothesis.settings.load_profile("project")


@pytest.fixture
def log(monkeypatch):
  """What is logged, a list of lines."""
  lines = []

  def keep(message, *values):
    lines.append(message % values)

  monkeypatch.setattr(logging, "info", keep)
  return lines
