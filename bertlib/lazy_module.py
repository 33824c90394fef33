"""Modules that are executed when something of them is first used."""

from __future__ import annotations

import importlib.util
import sys
import types


def load(name: str) -> types.ModuleType:
  """A module that is executed when one of its attributes is first used.

  For a module that takes seconds to import and that a command seldom needs.

  Args:
    name: of the module, with its packages.
  """
  if name in sys.modules:
    return sys.modules[name]
  spec = importlib.util.find_spec(name)
  spec.loader = importlib.util.LazyLoader(spec.loader)
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module
