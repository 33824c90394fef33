"""Tests of iteration in a thread."""

import threading
import time

import pytest

from bertlib.data import batch_predictor
from bertlib.io import files

pytestmark = pytest.mark.unit


def doubled(items, function=lambda item: 2 * item):
  return batch_predictor.map_ahead(function, items)


def test_results_come_in_order():
  assert list(doubled(range(100))) == list(range(0, 200, 2))
  assert list(doubled([])) == []


def test_a_result_is_computed_while_the_one_before_is_used():
  computed = threading.Event()

  def function(item):
    if item == 2:
      computed.set()
    return item

  for item in doubled([1, 2], function):
    if item == 1:
      assert computed.wait(timeout=60)


def test_one_item_is_read_ahead():
  used, most_ahead = 0, 0

  def items():
    nonlocal most_ahead
    for number in range(1, 51):
      most_ahead = max(most_ahead, number - used)
      yield number

  for used in doubled(items(), lambda item: item):  # noqa: B007
    pass
  assert used == 50
  # The item in use is not done.
  assert 1 <= most_ahead <= 2


def test_an_error_of_the_items_comes_after_the_results_before_it():
  def items():
    yield 1
    yield 2
    raise KeyError("third")

  received = []
  with pytest.raises(KeyError, match="third"):
    for item in doubled(items()):
      received.append(item)
  assert received == [2, 4]


def test_an_error_of_the_function_is_raised_in_place_of_its_result():
  received = []
  with pytest.raises(ZeroDivisionError):
    for item in doubled([1, 0, 2], lambda item: 6 // item):
      received.append(item)
  assert received == [6]


def test_the_thread_ends_with_its_consumer():
  results = doubled(iter(int, 1))
  next(results)
  before = threading.active_count()
  results.close()
  assert threading.active_count() == before - 1


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
