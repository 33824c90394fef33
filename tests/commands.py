"""Runs the project's command lines as commands."""

import contextlib
import os
import resource
import subprocess
import sys
import time

import absl.flags
from absl.testing import flagsaver

from bertlib.settings import rules

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(script, *flags, largest_file=None, **options):
  """Runs a script of the repository.

  Args:
    script: its file name.
    *flags: its arguments.
    largest_file: bytes at which a file of its counts as a full disk, or None.
    **options: of `subprocess.run`, such as `input`.

  Returns:
    A `subprocess.CompletedProcess`, its output as text.
  """

  def limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

  return subprocess.run(
    [sys.executable, os.path.join(ROOT, script), *map(str, flags)],
    capture_output=True,
    text=True,
    check=False,
    preexec_fn=limit if largest_file else None,
    env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
    **options,
  )


def succeed(script, *flags, **options):
  """Runs a script that has to succeed; gives what `run` gives."""
  done = run(script, *flags, **options)
  assert done.returncode == 0, done.stderr
  return done


def fail(script, *flags, **options):
  """Runs a script that has to fail by one line; gives that line."""
  done = run(script, *flags, **options)
  assert done.returncode == 1, done.stderr
  assert "Traceback" not in done.stderr, done.stderr
  last = done.stderr.splitlines()[-1]
  assert last.startswith(f"{script}: error: "), done.stderr
  return last


def wait_until(condition, *processes):
  """Waits while processes run; fails when one ends or ten minutes pass.

  Args:
    condition: function without arguments, true when the wait is over.
    *processes: `subprocess.Popen` objects.
  """
  deadline = time.time() + 600
  while not condition():
    for process in processes:
      assert process.poll() is None, process.communicate()
    assert time.time() < deadline
    time.sleep(0.005)


@contextlib.contextmanager
def in_process(script):
  """Runs a script within this process, which spares importing TensorFlow.

  Args:
    script: its module. Its flags are defined meanwhile.

  Yields:
    A function of the arguments.
  """
  flags = absl.flags.FLAGS
  before = set(flags)
  script.define_flags()

  def main(*arguments):
    with flagsaver.flagsaver():
      # The level of the log is that of a command.
      argv = flags([script.__file__, "--verbosity=0", *map(str, arguments)])
      rules.check(flags)
      script.main(argv)

  try:
    yield main
  finally:
    defined = absl.flags.FlagValues()
    for name in set(flags) - before:
      if name == flags[name].name:  # which brings the short name with it
        defined[name] = flags[name]
    flags.remove_flag_values(defined)
    flags.unparse_flags()
