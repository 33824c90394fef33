"""What this process can compute with: cores, and TensorFlow's threads."""

from __future__ import annotations

import contextlib
import glob
import os

from bertlib.cli.errors import InputError

# What a command undoes when it ends, as a context around its `main`.
at_end = contextlib.ExitStack()

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
