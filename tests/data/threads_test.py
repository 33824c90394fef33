"""Tests of iteration in a thread."""

import threading
import time

import pytest

from bertlib.data import batch_predictor
from bertlib.io import files

pytestmark = pytest.mark.unit


def test_items_come_in_order():
  assert list(batch_predictor.prefetch(range(100))) == list(range(100))
  assert list(batch_predictor.prefetch([])) == []


def test_an_item_is_computed_while_the_one_before_is_used():
  computed = threading.Event()

  def items():
    yield 1
    computed.set()
    yield 2

  for item in batch_predictor.prefetch(items()):
    if item == 1:
      assert computed.wait(timeout=60)


def test_the_thread_is_one_item_ahead():
  used, most_ahead = 0, 0

  def items():
    nonlocal most_ahead
    for number in range(1, 51):
      most_ahead = max(most_ahead, number - used)
      yield number

  for used in batch_predictor.prefetch(items()):  # noqa: B007
    pass
  assert used == 50
  # The item in use is not done, and the thread has no more ahead of it.
  assert 1 <= most_ahead <= 2


def test_an_error_is_raised_in_place_of_its_item():
  def items():
    yield 1
    yield 2
    raise KeyError("third")

  received = []
  with pytest.raises(KeyError, match="third"):
    for item in batch_predictor.prefetch(items()):
      received.append(item)
  assert received == [1, 2]


def test_the_thread_ends_with_its_consumer():
  closed = threading.Event()

  def items():
    try:
      while True:
        yield 1
    finally:
      closed.set()

  ahead = batch_predictor.prefetch(items())
  next(ahead)
  before = threading.active_count()
  ahead.close()
  assert threading.active_count() == before - 1
  del ahead
  assert closed.wait(timeout=60)


def test_results_of_threads_come_in_order():
  started = threading.Barrier(2)

  def double(number):
    if number < 2:
      started.wait(timeout=60)  # for the other one
    return 2 * number

  found = files.map_in_threads(double, range(100), num_threads=2)
  assert list(found) == list(range(0, 200, 2))


def test_an_error_in_a_thread_cancels_the_calls_that_have_not_started():
  called = []

  def call(number):
    called.append(number)
    if number == 1:
      raise KeyError("second")
    time.sleep(0.01)
    return number

  received = []
  with pytest.raises(KeyError, match="second"):
    for number in files.map_in_threads(call, range(1000), 2):
      received.append(number)
  assert received == [0]
  assert len(called) < 1000


def test_blocks_are_of_one_size_but_for_the_last():
  found = list(batch_predictor.blocks(iter(range(7)), 3))
  assert found == [[0, 1, 2], [3, 4, 5], [6]]
  assert list(batch_predictor.blocks([], 3)) == []
