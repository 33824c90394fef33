"""Worker processes that share the work of data making.

Imports no TensorFlow, and nothing that does.
"""

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

from bertlib.errors import InputError

# Submits a call to the workers of a pool, given its last arguments.
Submit = Callable[..., concurrent.futures.Future]


@contextlib.contextmanager
def worker_pool(
  num_workers: int, function: Callable[..., Any], *shared: Any, kept: str = ""
) -> Iterator[Submit]:
  """Runs processes that call one function.

  They start, by `spawn`, as calls are submitted, and end with the block or
  with this process. Calls that have not begun by then are canceled.

  Args:
    num_workers: maximum number of processes.
    function: of a module that imports no TensorFlow.
    *shared: first arguments of every call; each process gets them once.
    kept: for the error message, what a worker that dies leaves behind.

  Yields:
    A function that takes the other arguments of a call and returns its Future.

  Raises:
    InputError: a worker died.
  """
  pool = concurrent.futures.ProcessPoolExecutor(
    num_workers,
    multiprocessing.get_context("spawn"),
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
      f" with fewer --num_workers if memory was short{kept}"
    ) from error
  finally:
    pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _posing_as_main() -> Iterator[None]:
  """Makes this module the main one for processes started in the block.

  A spawned process imports the main module again; the one of a training
  script would bring TensorFlow.
  """
  main = sys.modules["__main__"]
  sys.modules["__main__"] = sys.modules[__name__]
  try:
    yield
  finally:
    sys.modules["__main__"] = main


# In a worker: what its pool calls, and the first arguments of every call.
_function: Callable[..., Any]
_shared: tuple[Any, ...]


def _start_worker(function: Callable[..., Any], *shared: Any) -> None:
  """Prepares a worker, which ends when the process that started it does."""
  global _function, _shared
  _function, _shared = function, shared
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
  parent = multiprocessing.parent_process()

  def die_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=die_with_parent, daemon=True).start()


def _call(*arguments: Any) -> Any:
  return _function(*_shared, *arguments)
