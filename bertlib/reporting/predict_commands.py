"""Command lines and Python lines that predict with the model of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from bertlib import PREFIX
from bertlib.checkpoints import model_files, model_json
from bertlib.checkpoints.task_record import TaskRecord
from bertlib.cli import help_text, option
from bertlib.io import files
from bertlib.training.task import Run

# Flags of the run that prediction needs again, if they were given.
_COMMON = ("do_lower_case", "encoding", "encoding_errors", "max_seq_length")


def blocks(run: Run) -> list[tuple[str, str]]:
  """Command lines and Python code, each after a sentence about it."""
  task = run.task.record
  if not task.predict:
    return []
  found = [(task.predict.about, command_line(run))]
  description = model_json.load_description(run.output_dir, task)
  code = python_code(task, run.output_dir, description)
  return [*found, ("From Python:", code)] if code else found


def command_line(run: Run) -> str:
  """The command that predicts with the model of a run, over several lines."""
  task, flags = run.task.record, ["--do_predict"]
  flags.append(f"--predict_file={task.predict.file}")
  if not task.predict.reads_folder:
    flags += [
      f"--{flag}={run.path(name)}"
      for flag, name in model_files.BY_FLAG.items()
      if files.exists(run.path(name))
    ]
    given = run.settings.receipt.times_given
    values = option.values_of(run.settings)
    flags += [
      _flag(name, values[name])
      for name in (*task.predict.flags, *_COMMON)
      if name in given
    ]
  flags.append(f"--output_dir={run.output_dir}")
  command = task.command or f"python {task.script}.py"
  lines = [help_text.as_installed(command), *(f"  {_quote(f)}" for f in flags)]
  return " \\\n".join(lines)


def _flag(name: str, value: Any) -> str:
  """A flag with its value, as on a command line."""
  if isinstance(value, bool):
    return f"--{name}" if value else f"--no{name}"
  if isinstance(value, (list, tuple)):
    value = ",".join(map(str, value))
  return f"--{name}={value}"


def _quote(flag: str) -> str:
  """A flag, quoted for a shell where needed."""
  name, equals, value = flag.partition("=")
  return name + equals + (shlex.quote(value) if equals else "")


def python_code(
  task: TaskRecord, folder: str, description: Mapping[str, Any]
) -> str:
  """Python lines that predict with a model; empty without a `Predictor`."""
  if not task.predict.call:
    return ""
  return (
    f"{'from bert ' if PREFIX else ''}import {task.script}\n\n"
    f"with {task.script}.Predictor({folder!r}) as predictor:\n"
    f"  print(predictor.{task.predict.call(description)})"
  )
