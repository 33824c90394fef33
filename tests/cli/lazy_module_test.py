"""Tests of lazy imports."""

import sys

import pytest

from bertlib.cli import lazy_module

pytestmark = pytest.mark.unit

NAME = "bertlib.reporting.search_report"


def test_a_module_is_executed_at_its_first_use_and_no_sooner(monkeypatch):
  monkeypatch.delitem(sys.modules, NAME, raising=False)
  module = lazy_module.load(NAME)
  for other in [*sys.modules.values()]:  # as AutoGraph does
    getattr(other, "__file__", None)
  assert NAME not in sys.modules
  assert module.__name__ == NAME
  assert NAME in sys.modules
