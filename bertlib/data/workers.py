"""Worker processes for data creation. No TensorFlow, not even indirectly."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from bertlib.cli.errors import InputError

# Submits a call to a pool: takes the call's last arguments, returns its Future.
Submit = Callable[..., concurrent.futures.Future]


@contextlib.contextmanager
def worker_pool(
  num_workers: int, function: Callable[..., Any], *shared: Any, kept: str = ""
) -> Iterator[Submit]:
  """Processes that call `function`; yields a function that submits a call."""
  # The module of `function` must not import TensorFlow. The `shared` arguments
  # are sent once per process. `kept` ends the message of a dead worker: which
  # results survive it. Open a pool before this process starts threads, such as
  # that of a progress bar: workers are then forked, which is cheaper.
  pool = concurrent.futures.ProcessPoolExecutor(
    num_workers,
    multiprocessing.get_context(_start_method()),
    _start_worker,
    (function, *shared),
  )

  def submit(*arguments: Any) -> concurrent.futures.Future:
    with _posing_as_main():
      return pool.submit(_call, *arguments)

  try:
    yield submit
  except BrokenProcessPool as error:
    raise InputError(
      "a worker died (killed, or out of memory). Run the same command again,"
      f" with fewer --num_workers if memory ran out{kept}"
    ) from error
  finally:
    pool.shutdown(cancel_futures=True)


def _start_method() -> str:
  """Start method of workers: a fork has all imports, but no threads."""
  try:
    num_threads = len(os.listdir("/proc/self/task"))
  except OSError:  # not Linux; libraries of macOS may not work in a fork
    return "spawn"
  return "fork" if num_threads == 1 else "spawn"


@contextlib.contextmanager
def _posing_as_main() -> Iterator[None]:
  """Makes this module `__main__` for processes spawned in the block."""
  # A spawned process imports `__main__` again; that of a training script would
  # import TensorFlow.
  main = sys.modules["__main__"]
  sys.modules["__main__"] = sys.modules[__name__]
  try:
    yield
  finally:
    sys.modules["__main__"] = main


# In a worker: the function of its pool, and the first arguments of every call.
_function: Callable[..., Any]
_shared: tuple[Any, ...]


def _start_worker(function: Callable[..., Any], *shared: Any) -> None:
  """Initializes a worker, which exits when its parent process does."""
  global _function, _shared
  _function, _shared = function, shared
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  # One thread per worker. With "true", a forked one would wait for ever for
  # threads of its parent.
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  parent = multiprocessing.parent_process()

  def die_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=die_with_parent, daemon=True).start()


def _call(*arguments: Any) -> Any:
  return _function(*_shared, *arguments)
