"""absl's flags and log, or stand-ins where absl is not installed.

An exported model predicts with NumPy and its engine alone. What it imports
declares flags that nobody parses there.
"""

from __future__ import annotations

try:
  from absl import flags, logging
except ModuleNotFoundError:
  import logging

  class _Nothing:
    """Every class and function of absl.flags; has no effect."""

    def __init__(self, *arguments, **more):
      pass

    def __getattr__(self, name: str) -> type:
      return _Nothing

  flags = _Nothing()

__all__ = ["flags", "logging"]
