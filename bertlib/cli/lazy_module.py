"""Lazy imports: modules that are executed at first use."""

from __future__ import annotations

import importlib.util
import sys
import types

from bertlib import PREFIX


def load(name: str) -> types.ModuleType:
  """Module, by its name in a checkout, that is executed at its first use."""
  # Such modules take seconds to import, and commands rarely need them.
  name = PREFIX + name
  if name in sys.modules:
    return sys.modules[name]
  spec = importlib.util.find_spec(name)
  spec.loader = importlib.util.LazyLoader(spec.loader)
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module
