"""`eval_results.txt` and the names of prediction files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from absl import logging

from bertlib import files
from bertlib.errors import InputError
from bertlib.files import atomic_write, open_any


def predictions_name(path: str) -> str:
  """Name, without ending, of the files with predictions for a text file.

  Args:
    path: the text file; "-" for standard input.
  """
  stem = os.path.splitext(os.path.basename(path))[0]
  return f"{'stdin' if path == '-' else stem}_predictions"


def write_results(path: str, results: Mapping[str, Any]) -> None:
  """Writes and logs an `eval_results.txt`: lines `key = value`, sorted."""
  lines = [f"{key} = {value!s}" for key, value in sorted(results.items())]
  for line in lines:
    logging.info("  %s", line)
  with atomic_write(path) as file:
    file.writelines(line + "\n" for line in lines)


def read_results(path: str) -> dict[str, Any]:
  """Reads an `eval_results.txt`.

  Returns:
    Values by key; a value that is not JSON is text.

  Raises:
    InputError: the file is missing.
  """
  if not files.exists(path):
    raise InputError(f"{path}: is missing; add --do_eval")
  results: dict[str, Any] = {}
  with open_any(path) as file:
    for line in file:
      key, text = line.rstrip("\n").split(" = ", 1)
      try:
        results[key] = json.loads(text)
      except ValueError:
        results[key] = text
  return results
