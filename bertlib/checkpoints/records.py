"""Finds the record of a task: `RECORD` of `record.py` in its folder."""

from __future__ import annotations

import importlib
import pkgutil

from bertlib import tasks
from bertlib.checkpoints.task_record import TaskRecord
from bertlib.cli.errors import InputError


def all_records() -> list[TaskRecord]:
  """The records of all tasks in `bertlib/tasks`."""
  return [
    importlib.import_module(f"{tasks.__name__}.{folder}.record").RECORD
    for _, folder, is_folder in pkgutil.iter_modules(tasks.__path__)
    if is_folder
  ]


def find(script: str | None) -> TaskRecord | None:
  """The record of a task, by its script; None for one of somebody else."""
  return next((r for r in all_records() if r.script == script), None)


def load(module: str) -> TaskRecord:
  """The record of a task outside `bertlib/tasks`, for --task_module."""
  try:
    return importlib.import_module(module).RECORD
  except ModuleNotFoundError as error:
    problem = f"no module named {error.name!r}"
  except AttributeError:
    problem = "has no RECORD"
  raise InputError(
    f"--task_module={module}: {problem}. Name the module of a task, such as"
    " examples.two_heads"
  )
