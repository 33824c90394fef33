"""Runs the project's command lines as commands.

`run`, `succeed` and `fail` run a script as `python script.py` does, its last
lines included, but within this process, which spares it importing TensorFlow.
With `own_process=True` it gets a process: for what needs one (signals, workers,
a full disk, what is imported or printed before TensorFlow is there), and for
the one run of each command that shows that it starts.

`in_process` calls `main` of a module, whose functions can be replaced before
and whose exceptions arrive as they are.
"""

import contextlib
import io
import logging
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
from unittest import mock

import absl.app
import absl.flags
import absl.logging
from absl.testing import flagsaver

from bertlib.cli import app, tensorflow_log, terminal

# With those for help, which absl defines only once.
absl.app.define_help_flags()
_FLAGS_AT_START = set(absl.flags.FLAGS)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def as_flags(values):
  """Arguments `--name=value` of a dictionary; None values are omitted."""
  return [f"--{k}={v}" for k, v in values.items() if v is not None]


def run(script, *flags, own_process=False, largest_file=None, **options):
  """Runs a script of the repository; returns a `subprocess.CompletedProcess`.

  A file of `largest_file` bytes counts as a full disk, which needs a process.
  Options are `input` and `cwd`; with a process all of `subprocess.run`.
  """
  argv = [os.path.join(ROOT, script), *map(str, flags)]
  if not own_process and largest_file is None:
    return _run_here(argv, **options)

  environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
  if largest_file:  # before 3.13.1, Python keeps bytecode that is cut off
    environment["PYTHONDONTWRITEBYTECODE"] = "1"

  def limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

  return subprocess.run(
    [sys.executable, *argv],
    capture_output=True,
    text=True,
    check=False,
    preexec_fn=limit if largest_file else None,
    env=environment,
    **options,
  )


def run_code(code, *arguments, **options):
  """Runs Python code in a process that imports the project, as `run` does."""
  environment = os.environ | {"PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "2"}
  environment.pop("TF_USE_LEGACY_KERAS", None)  # selected by this process
  return subprocess.run(
    [sys.executable, "-c", code, *map(str, arguments)],
    **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,
    text=True,
    check=False,
    env=environment,
  )


def python(*arguments, executable=sys.executable, **options):
  """Runs Python in a process that must succeed; returns what it printed."""
  done = subprocess.run(
    [executable, *map(str, arguments)],
    **{"capture_output": True, "text": True, "check": False} | options,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


def succeed(script, *flags, **options):
  """Runs a script that must succeed; returns the result of `run`."""
  done = run(script, *flags, **options)
  assert done.returncode == 0, done.stderr
  return done


def fail(script, *flags, **options):
  """Runs a script that must fail with one line; returns that line."""
  done = run(script, *flags, **options)
  assert done.returncode == 1, done.stderr
  assert "Traceback" not in done.stderr, done.stderr
  last = done.stderr.splitlines()[-1]
  name = os.path.basename(script)
  assert last.startswith(f"{name}: error: "), done.stderr
  return last


def _run_here(argv, input=None, cwd=None):
  """Runs a script within this process; raises what it does not report."""
  stdin, stdout, stderr = (
    io.TextIOWrapper(io.BytesIO(text), "utf-8", write_through=True)
    for text in ((input or "").encode(), b"", b"")
  )
  handler = absl.logging.get_absl_handler().python_handler
  stream, sigint = handler.stream, signal.getsignal(signal.SIGINT)
  code = 0
  with (
    _own_log_levels(),
    _without_flags(),
    mock.patch.object(app, "_arguments", []),
    mock.patch.multiple(sys, argv=argv, stdin=stdin),
    contextlib.redirect_stdout(stdout),
    contextlib.redirect_stderr(stderr),
    # TensorFlow is already imported.
    mock.patch.object(tensorflow_log, "import_quietly"),
    _in_folder(cwd or "."),
  ):
    handler.setStream(stderr)
    try:
      runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as exit_:
      code = exit_.code or 0
    finally:
      handler.setStream(stream)
      signal.signal(signal.SIGINT, sigint)
  out, error = (
    file.buffer.getvalue().decode(errors="replace") for file in (stdout, stderr)
  )
  return subprocess.CompletedProcess(argv, code, out, error)


@contextlib.contextmanager
def _in_folder(path):
  before = os.getcwd()
  os.chdir(path)
  try:
    yield
  finally:
    os.chdir(before)


@contextlib.contextmanager
def _own_log_levels():
  """Undoes what a change of --verbosity does to Python's loggers."""
  loggers = logging.getLogger(), absl.logging.get_absl_logger()
  levels = [logger.level for logger in loggers]
  try:
    yield
  finally:
    for logger, level in zip(loggers, levels):
      logger.setLevel(level)


def _remove_flags(names):
  flags, removed = absl.flags.FLAGS, absl.flags.FlagValues()
  for name in names:
    if name == flags[name].name:  # which brings the short name with it
      removed[name] = flags[name]
  flags.remove_flag_values(removed)
  return removed


@contextlib.contextmanager
def _without_flags():
  """Resets all flags within the block, as in a new process."""
  flags = absl.flags.FLAGS
  tables = [
    flags.flags_by_module_dict(),
    flags.flags_by_module_id_dict(),
    flags.key_flags_by_module_dict(),
  ]
  before = [{key: list(row) for key, row in table.items()} for table in tables]
  was_parsed = flags.is_parsed()
  others = _remove_flags(set(flags) - _FLAGS_AT_START)
  try:
    with flagsaver.flagsaver():
      flags.unparse_flags()
      yield
  finally:
    flags.append_flag_values(others)
    for table, rows in zip(tables, before):
      table.clear()
      table.update(rows)
    if not was_parsed:
      flags.unparse_flags()


def wait_until(condition, *processes):
  """Waits while processes run; fails when one ends or ten minutes pass."""
  deadline = time.time() + 600
  while not condition():
    for process in processes:
      assert process.poll() is None, process.communicate()
    assert time.time() < deadline
    time.sleep(0.005)


@contextlib.contextmanager
def in_process(script):
  """Gives `main` of a module as a function of arguments; defines its flags."""
  flags = absl.flags.FLAGS
  before = set(flags)
  script.define_flags()

  def main(*arguments):
    with _own_log_levels(), flagsaver.flagsaver(), terminal.at_end:
      # Log at the level of a command.
      argv = [script.__file__, "--verbosity=0", *map(str, arguments)]
      return script.main(app.read_arguments(argv))

  try:
    yield main
  finally:
    _remove_flags(set(flags) - before)
    vars(flags["verbosity"]).pop("command", None)  # of `option.command_of`
    with _own_log_levels():
      flags.unparse_flags()
