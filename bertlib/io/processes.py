"""Processor, cores and TensorFlow's threads of this process.

Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from bertlib.cli.errors import InputError


def usable_cores() -> int:
  """Cores that this process may use, by its affinity and CPU quotas."""
  return min([_schedulable_cores(), *map(math.ceil, _quotas())])


def num_threads() -> int:
  """Threads in which TensorFlow computes on the CPU."""
  given = os.environ.get("TF_NUM_INTRAOP_THREADS")  # by --num_threads
  return int(given or 0) or _schedulable_cores()


def _schedulable_cores() -> int:
  if hasattr(os, "sched_getaffinity"):  # not on macOS
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _quotas(root: str = "/sys/fs/cgroup") -> Iterator[float]:
  """CPU quotas of the container, in cores, of control groups v2 and v1."""
  for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
    # There may be none, or one of "max".
    with contextlib.suppress(OSError, ValueError):
      text = " ".join(Path(root, name).read_text() for name in names)
      quota, period = map(float, text.split())
      if quota > 0:
        yield quota / period


# The processor

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


# Forks

# Whether TensorFlow had threads at the last fork, and whether this process, or
# one before it, was forked then.
_had_threads = _lost_threads = False


def _before_fork() -> None:
  """Notes whether TensorFlow has computed: it names its threads tf_..."""
  global _had_threads
  _had_threads = False
  for path in glob.glob("/proc/self/task/*/comm"):
    with contextlib.suppress(OSError), open(path) as file:  # it may have ended
      _had_threads |= file.read(3) == "tf_"


def _after_fork() -> None:
  global _lost_threads
  _lost_threads |= _had_threads


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def check_threads(model: str) -> None:
  """Refuses a forked process, in which TensorFlow would wait for ever."""
  if _lost_threads:
    raise InputError(
      f"{model}: TensorFlow has computed before this process was forked, and"
      " its threads do not exist here. Open the model in this process alone"
      ' (gunicorn without --preload, multiprocessing with "spawn"), or use an'
      " OnnxModel"
    )
