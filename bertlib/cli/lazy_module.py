"""Lazy imports: modules that are executed at first use."""

from __future__ import annotations

import importlib
from typing import Any

from bertlib import PREFIX


class _LazyModule:
  """Stands for a module, which is imported when something of it is used."""

  # `importlib.util.LazyLoader` would put an unexecuted module into
  # `sys.modules`. Whoever looks through these, as AutoGraph does in each
  # training, executes it, and two threads could at the same moment.
  def __init__(self, name: str):
    self._name = name

  def __getattr__(self, attribute: str) -> Any:
    return getattr(importlib.import_module(self._name), attribute)


def load(name: str) -> Any:
  """Module, by its name in a checkout, that is executed at its first use."""
  # Such modules import libraries that take seconds, and commands rarely need
  # them.
  return _LazyModule(PREFIX + name)
