"""Lazy imports: modules that are executed at first use."""

from __future__ import annotations

import importlib.util
import sys
import types

from bertlib import PREFIX


def load(name: str) -> types.ModuleType:
  """Returns a module that is executed when an attribute is first accessed.

  For modules that take seconds to import and that a command rarely needs.

  Args:
    name: full name of the module, as in a checkout.
  """
  name = PREFIX + name
  if name in sys.modules:
    return sys.modules[name]
  spec = importlib.util.find_spec(name)
  spec.loader = importlib.util.LazyLoader(spec.loader)
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module
