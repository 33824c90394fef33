"""Tests with a table of rows."""

import pytest


def parametrize(names, *rows, **options):
  """Runs a test with each row: `pytest.mark.parametrize` without its list."""
  return pytest.mark.parametrize(names, rows, **options)
