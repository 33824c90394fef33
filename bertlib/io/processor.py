"""Instruction sets of the processor. Imports no TensorFlow."""

from __future__ import annotations

import re

# bfloat16 instructions of x86 and ARM processors.
BFLOAT16 = {"amx_bf16", "avx512_bf16", "bf16"}


def features(path: str = "/proc/cpuinfo") -> set[str]:
  """Instruction sets, by their names in Linux; none on other systems."""
  try:
    with open(path) as file:
      lines = re.findall(r"(?m)^(?:flags|Features)\s*:(.*)", file.read())
  except OSError:
    return set()
  return set(lines[0].split()) if lines else set()


def kind() -> str:
  """The best of AMX, VNNI and AVX2 that it has; "other" without them."""
  found = features()
  names = {"amx_int8": "AMX", "avx512_vnni": "VNNI", "avx_vnni": "VNNI"}
  names["avx2"] = "AVX2"
  return next((names[name] for name in names if name in found), "other")


def has_exact_int8() -> bool:
  """True if 8-bit products are added in 32 bits; AVX2 adds pairs in 16."""
  return kind() in ("AMX", "VNNI")
