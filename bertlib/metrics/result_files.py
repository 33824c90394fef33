"""Files of results: `eval_results.txt`, and names of predictions."""

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
  """What files with predictions of a text file are called, without endings.

  Args:
    path: the text file; "-" for standard input.
  """
  stem = os.path.splitext(os.path.basename(path))[0]
  return f"{'stdin' if path == '-' else stem}_predictions"


def write_results(path: str, results: Mapping[str, Any]) -> None:
  """Writes an `eval_results.txt` and logs it: `key = value`, keys sorted.

  Args:
    path: the file.
    results: values by key.
  """
  lines = [f"{key} = {value!s}" for key, value in sorted(results.items())]
  for line in lines:
    logging.info("  %s", line)
  with atomic_write(path) as file:
    file.writelines(line + "\n" for line in lines)


def read_results(path: str) -> dict[str, Any]:
  """Reads what `write_results` wrote.

  Args:
    path: the file.

  Returns:
    Values by key; text where a value is not JSON.

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
