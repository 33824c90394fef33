"""Iteration in threads, ahead of its consumer. Imports no TensorFlow."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_END = object()


def read_ahead(items: Iterable[Item], num_items: int = 1) -> Iterator[Item]:
  """Iterates over items that a thread computes in advance.

  The thread stops when the iterator is closed. It raises its errors here, in
  place of the item at which they occurred.

  Args:
    items: computed in order, in the thread.
    num_items: maximum number of items that are computed ahead of the one that
      the consumer holds.

  Yields:
    The items, in order.
  """
  iterator = iter(items)
  with ThreadPoolExecutor(1) as thread:
    try:
      pending = collections.deque(
        thread.submit(next, iterator, _END) for _ in range(num_items)
      )
      while True:
        item = pending.popleft().result()
        if item is _END:
          return
        pending.append(thread.submit(next, iterator, _END))
        yield item
    finally:
      thread.shutdown(wait=False, cancel_futures=True)


def map_in_threads(
  function: Callable[[Item], Result],
  items: Iterable[Item],
  num_threads: int = 8,
) -> Iterator[Result]:
  """Calls a function that waits for files, for several items at a time.

  Calls that have not started when the iterator is closed, or when one raises an
  error, are canceled.

  Args:
    function: called with each item, in a thread.
    items: read at once.
    num_threads: maximum number of calls at a time.

  Yields:
    The results, in order; raises the error of a call in place of its result.
  """
  with ThreadPoolExecutor(num_threads) as threads:
    yield from threads.map(function, items)


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
  """Lists of `size` items; the last one may be shorter."""
  iterator = iter(items)
  while block := list(itertools.islice(iterator, size)):
    yield block
