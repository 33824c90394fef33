"""Command lines and Python lines that predict with the model of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from bertlib import PREFIX
from bertlib.checkpoints.task_record import TaskRecord
from bertlib.cli import help_text
from bertlib.settings import model_description
from bertlib.training.task import Run


def blocks(run: Run) -> list[tuple[str, str]]:
  """Command lines and Python code, each after a sentence about it."""
  task = run.task.record
  if not task.predict:
    return []
  found = [(task.predict.about, command_line(run))]
  description = model_description.load(run.output_dir, task)
  code = python_code(task, run.output_dir, description)
  return [*found, ("From Python:", code)] if code else found


def command_line(run: Run) -> str:
  """The command that predicts with the model of a run, over several lines."""
  task = run.task.record
  return " \\\n  ".join(
    [
      help_text.as_installed(task.command or f"python {task.script}.py"),
      "--do_predict",
      f"--predict_file={task.predict.file}",
      f"--output_dir={shlex.quote(run.output_dir)}",
    ]
  )


def python_code(
  task: TaskRecord, folder: str, description: Mapping[str, Any]
) -> str:
  """Python lines that predict with a model; empty without a `Predictor`."""
  if not task.predict.method:
    return ""
  examples = task.predict.examples(description)
  return (
    f"{'from bert ' if PREFIX else ''}import {task.script}\n\n"
    f"with {task.script}.Predictor({folder!r}) as predictor:\n"
    f"  print(predictor.{task.predict.method}({examples!r}))"
  )
