"""Tests of hiding the log of TensorFlow."""

import os
import subprocess
import sys

import commands
import pytest

pytestmark = pytest.mark.process

SCRIPT = """
import os, sys
from bertlib import tensorflow_log
with tensorflow_log.stderr_on_failure():
  os.write(2, b"held back\\n")
  {last}
os.write(2, b"after\\n")
"""


def run(last, **options):
  return subprocess.run(
    [sys.executable, "-c", SCRIPT.format(last=last)],
    capture_output=True,
    cwd=commands.ROOT,
    text=True,
    check=False,
    **options,
  )


@pytest.mark.parametrize(
  ("last", "shown"),
  [
    ("pass", ["after"]),
    ("raise ImportError('no such module')", ["held back", "no such module"]),
    ("sys.exit('ends here')", ["held back", "ends here"]),
    ("os.abort()", ["held back"]),  # as TensorFlow does on old processors
  ],
)
def test_captured_output_is_printed_if_the_block_fails(last, shown):
  done = run(last)
  lines = done.stderr.splitlines()
  assert (done.returncode == 0) == (last == "pass")
  assert ("held back" in lines) == (last != "pass")
  assert all(text in done.stderr for text in shown)


def test_output_larger_than_a_pipe_buffer_is_captured():
  done = run("os.write(2, b'x' * 10**6); os.abort()")
  assert done.stderr.count("x") >= 10**6


def test_closed_stderr_is_not_an_error():
  script = "from bertlib import tensorflow_log\n"
  script += "with tensorflow_log.stderr_on_failure():\n"
  done = subprocess.run(
    [sys.executable, "-c", script + "  print('done')"],
    stdout=subprocess.PIPE,
    cwd=commands.ROOT,
    check=True,
    preexec_fn=lambda: os.close(2),
  )
  assert done.stdout == b"done\n"
