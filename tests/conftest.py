"""Fixtures of several test files."""

import pytest
from absl import logging


@pytest.fixture
def log(monkeypatch):
  """What is logged, a list of lines."""
  lines = []

  def keep(message, *values):
    lines.append(message % values)

  monkeypatch.setattr(logging, "info", keep)
  return lines
