"""Start and end of a command: flags, signals, one-line errors."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from logging import Formatter
from typing import Any, Callable

from absl import app, flags, logging

from bertlib.cli import command_line, errors, option, tensorflow_log, terminal
from bertlib.cli.option import CommandSettings


def parse_flags(
  # None: flags are already defined, and there are no other arguments.
  settings: type[CommandSettings] | None = None,
  imports_tensorflow: bool = False,  # afterwards, without its log
  checks: Iterable[Callable[[Any], Any]] = (),  # take the settings; may raise
) -> None:
  """Parses and checks the flags of a command, before it imports TensorFlow."""
  if settings:
    option.define(settings)
  flags.DEFINE_bool(
    "tensorflow_log",
    False,
    "Show TensorFlow's own log: devices, compilers and warnings. Errors are"
    " always shown.",
  )
  app.define_help_flags()
  if settings:
    for name in ("help", "helpfull"):
      flags.FLAGS[name].parse = functools.partial(
        _print_help, settings, name == "helpfull"
      )
  flags.FLAGS.set_default("verbosity", logging.INFO)
  # While modules are imported, there is nothing to end but the process.
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  with _one_line():
    _arguments[:] = read_arguments(sys.argv)
    for check in checks:
      check(option.from_flags(settings))
  if not flags.FLAGS.tensorflow_log:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  if imports_tensorflow:
    import_tensorflow()


def import_tensorflow() -> None:
  """Imports TensorFlow without its log, where only some flags need it."""
  tensorflow_log.select_keras_2()
  if not option.value_of("tensorflow_log", False):
    tensorflow_log.import_quietly()


def read_arguments(argv: list[str]) -> list[str]:
  """Parses the defined flags; returns the program and its arguments."""
  settings = option.command_of(flags.FLAGS)
  arguments = command_line.parse(
    argv,
    takes_arguments=settings.TAKES_ARGUMENTS,
    passes_on=settings.PASSES_ON_ARGUMENTS,
  )
  if settings is not CommandSettings:
    for warning in option.warnings(settings):
      logging.warning("%s", warning)
  return arguments


# Program name and the arguments that are not flags.
_arguments: list[str] = []


def run(main: Callable[[list[str]], Any]) -> None:
  """Runs `main` under absl; ends errors that users can fix with one line."""
  _open_closed_streams()
  # `parse_flags` may have parsed the flags already.
  if not _arguments:
    parse_flags()

  def main_or_one_line(argv):
    logging.get_absl_handler().setFormatter(
      _LogFormatter("%(asctime)s %(message)s", "%H:%M:%S")
    )
    with (
      _one_line(),
      terminal.on_stop_signals(terminal.stop),
      terminal.at_end,
    ):
      status = main(argv)
    # The interpreter's last collection would look for cycles in all graphs.
    gc.freeze()
    return status

  app.run(main_or_one_line, flags_parser=lambda argv: _arguments)


def _print_help(
  settings: type[CommandSettings], full: bool, value: str
) -> None:
  """Prints the help of a command and exits, unless the flag is false."""
  if not flags.BooleanParser().parse(value):
    return
  summary, *_ = (sys.modules["__main__"].__doc__ or "").splitlines() or [""]
  for line in command_line.help_text(settings, full, summary).splitlines():
    terminal.show(line)
  sys.exit(0)


def _open_closed_streams() -> None:
  """Opens the null device for standard streams that the caller has closed."""
  # Otherwise they are None, and the next files that are opened get their
  # numbers: libraries would print into those.
  for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
  """Turns an error that the user can fix, or a signal, into one line."""
  try:
    yield
    return
  except terminal.Stopped as stopped:
    message, status = f"stopped by {stopped.signal_name}", stopped.code
    logging.debug("Traceback of the stop:", exc_info=True)
  except Exception as error:
    problem = errors.user_error_message(error)
    if problem is None:
      raise
    message, status = f"error: {problem}", 1
    # --verbosity=1 shows it.
    logging.debug("Traceback of the error:", exc_info=True)
  logging.flush()
  program = os.path.basename(sys.argv[0])
  print(f"{program}: {message}", file=sys.stderr)
  sys.exit(status)


class _LogFormatter(Formatter):
  """Formats a record as one line, and a traceback on the lines after it."""

  def formatMessage(self, record) -> str:
    record.message = errors.printable(record.message)
    return super().formatMessage(record)
