"""Files with metrics, predictions and vectors of a run."""

from __future__ import annotations

import itertools
import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any, NamedTuple

import numpy as np

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError, printable
from bertlib.io import files, json_files, text_files
from bertlib.io.files import atomic_write

# Name, without ending, of the file with predictions of the dev set.
DEV_PREDICTIONS = "eval_predictions"

# Equal predictions of fewer examples, without gold answers, may be chance.
_MIN_PREDICTIONS = 20


class DevPrediction(NamedTuple):
  """Prediction for an example of the dev set."""

  guid: str  # unique in the dev set
  # A label; a number for regression; a list of labels if there may be several;
  # a list with the tag of each word; a list of the accepted answers.
  gold: str | float | Sequence[str]
  predicted: str | float | Sequence[str]  # in the same form, or an answer


def predictions_name(path: str) -> str:
  """Name, without ending, of the files with predictions for a text file."""
  return name_with(path, "predictions")


def check_predict_file(path: str | None) -> None:
  """Refuses a --predict_file with the name of the dev set's predictions."""
  if path and predictions_name(path) == DEV_PREDICTIONS:
    raise InputError(
      f"--predict_file={path}: its predictions would be written to"
      f" {DEV_PREDICTIONS}.jsonl, the file of those of the dev set. Rename the"
      " text file"
    )


def name_with(path: str, ending: str) -> str:
  """Name NAME_ENDING of the files that a run writes for the file NAME.txt."""
  return f"{stem_of(path)}_{ending}"


def stem_of(path: str) -> str:
  """NAME for a file NAME.txt; "stdin" for "-", standard input."""
  stem = os.path.splitext(os.path.basename(path))[0]
  return "stdin" if path == "-" else stem


def write_results(path: str, results: Mapping[str, Any]) -> None:
  """Writes and logs an `eval_results.txt`: lines `key = value`, sorted."""
  lines = [f"{key} = {value!s}" for key, value in sorted(results.items())]
  for line in lines:
    # Only the beginning of a long line, such as a large matrix.
    logging.info("  %s%s", line[:1000], "..." if len(line) > 1000 else "")
  with atomic_write(path) as file:
    file.writelines(line + "\n" for line in lines)


def read_results(path: str) -> dict[str, Any]:
  """Values of an `eval_results.txt` by key; text if they are not JSON."""
  if not files.exists(path):
    raise InputError(f"{path}: is missing; add --do_eval")
  results: dict[str, Any] = {}
  for number, line in enumerate(text_files.read_lines(path), start=1):
    key, separator, text = line.rstrip("\n").partition(" = ")
    if not separator:
      raise InputError(
        f"{path}, line {number}: is not `name = value`. Evaluate again with"
        " --do_eval"
      )
    try:
      results[key] = json.loads(text)
    except ValueError:
      results[key] = text
  return results


def write_dev_predictions(
  path: str, predictions: Iterable[DevPrediction]
) -> None:
  """Writes an `eval_predictions.jsonl`: a JSON object per example."""
  with atomic_write(path) as file:
    for prediction in predictions:
      line = json_files.dumps(prediction._asdict(), ensure_ascii=False)
      file.write(line + "\n")


def read_dev_predictions(path: str) -> list[DevPrediction]:
  """Reads an `eval_predictions.jsonl`."""
  value = (str, float, list, json_files.NULL)
  schema = {"guid": str, "gold": value, "predicted": value}
  lines = json_files.parse_lines(
    text_files.read_lines(path), path, schema, "Evaluate again with --do_eval"
  )
  return [
    DevPrediction(*(json_files.with_nan(row[k]) for k in DevPrediction._fields))
    for _, row in lines
  ]


def write_bad_rows(
  output_dir: str, bad_rows: Mapping[str, Sequence[str]]
) -> None:
  """Writes the messages of skipped rows, a NAME_bad_rows.txt per data file."""
  for data_file, messages in bad_rows.items():
    path = os.path.join(output_dir, f"{name_with(data_file, 'bad_rows')}.txt")
    # Without messages, only an earlier list is replaced.
    if messages or files.exists(path):
      with atomic_write(path) as file:
        file.writelines(f"{printable(message)}\n" for message in messages)
      logging.info("The %d bad rows of %s: %s", len(messages), data_file, path)


def answers_to_compare(
  predictions: Sequence[DevPrediction],
) -> tuple[list[str], list[str]]:
  """Predicted and gold answers as text, see `are_all_equal`."""

  def text(answer):
    if isinstance(answer, float):
      return f"{answer:.3g}"
    if isinstance(answer, str):
      return answer
    # Tags of a sentence are its entities: sentences without any are equal.
    return ", ".join(answer) if {*answer} - {"O"} else "none"

  return (
    [text(prediction.predicted) for prediction in predictions],
    [text(prediction.gold) for prediction in predictions],
  )


def are_all_equal(
  answers: Sequence[str], gold: Sequence[str] | None = None
) -> bool:
  """True if a model has collapsed: it predicts the same for every example."""
  if len(set(answers)) != 1:
    return False
  # Without gold answers, a few equal predictions are fine; with gold answers
  # that are all equal, any number.
  if gold is None:
    return len(answers) >= _MIN_PREDICTIONS
  return len(set(gold)) > 1


def write_vectors(
  path: str, vectors: Iterable[np.ndarray], num_vectors: int
) -> None:
  """Writes vectors, float32 [D] each, as an .npy file, one after the other."""
  vectors = iter(vectors)
  first = next(vectors)
  with atomic_write(path, "wb") as file:
    # The header needs their number, at least 1, and width.
    rows = itertools.chain([first], vectors)
    _write_array(file, rows, num_vectors, len(first))
  logging.info("%d vectors, %d wide: %s", num_vectors, len(first), path)


def write_npz(
  file: IO[bytes], vectors: Iterable[np.ndarray], num_vectors: int, width: int
) -> None:
  """Writes the array `vectors`, float32 [num_vectors, width], row by row."""
  # TensorFlow's files cannot seek while writing, and `write` returns None.
  forward = SimpleNamespace(
    write=lambda data: file.write(data) or len(data), flush=file.flush
  )
  with (
    zipfile.ZipFile(forward, "w") as archive,
    archive.open("vectors.npy", "w", force_zip64=True) as member,
  ):
    _write_array(member, vectors, num_vectors, width)


def _write_array(
  file: IO[bytes], rows: Iterable[np.ndarray], num_rows: int, width: int
) -> None:
  """Writes rows, float32 [width] each, in the format .npy."""
  header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, width)}
  np.lib.format.write_array_header_1_0(file, header)
  for row in rows:
    file.write(row.astype("<f4").tobytes())
