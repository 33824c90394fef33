"""Tests of the worker pool."""

import os
import sys
import time

import commands
import pytest
from parametrize import parametrize

from bertlib.cli.errors import InputError
from bertlib.data.workers import worker_pool

pytestmark = pytest.mark.process


def test_calls_get_the_shared_arguments_first():
  main = sys.modules["__main__"]
  with worker_pool(2, pow, 2) as submit:
    futures = [submit(exponent) for exponent in range(5)]
    assert [future.result() for future in futures] == [1, 2, 4, 8, 16]
  assert sys.modules["__main__"] is main


@parametrize("before", "", "threading.Timer(9, print).start()")
def test_a_process_of_one_thread_forks_and_another_does_not(before):
  # A fork has the module that its parent imported.
  done = commands.run_code(f"""
import colorsys, os, threading
from bertlib.data.workers import worker_pool
{before}
with worker_pool(1, eval) as submit:
  print(submit("'colorsys' in __import__('sys').modules").result(), flush=True)
os._exit(0)
""")
  forks = sys.platform == "linux" and not before
  assert done.stdout == f"{forks}\n", done.stderr
  assert "Warning" not in done.stderr


def test_an_exception_of_a_call_is_raised_by_its_future():
  with worker_pool(1, pow, 2) as submit:
    future = submit("x")
    with pytest.raises(TypeError):
      future.result()
    assert submit(3).result() == 8


def test_a_dead_worker_is_an_error_that_names_what_is_kept():
  with (
    pytest.raises(
      InputError, match=r"a worker died .* ran out; files are kept"
    ),
    worker_pool(1, os._exit, kept="; files are kept") as submit,
  ):
    submit(1).result()


def test_calls_that_have_not_started_are_canceled_at_the_end():
  with pytest.raises(KeyError), worker_pool(1, time.sleep) as submit:
    futures = [submit(0.01) for _ in range(1000)]
    raise KeyError
  assert futures[-1].cancelled()
  assert all(future.done() for future in futures)
