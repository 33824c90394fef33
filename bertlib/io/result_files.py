"""Files with metrics and predictions of a run, and its dev scores."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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


def number_predictions(
  gold: Iterable[Any], predicted: Iterable[Any]
) -> list[DevPrediction]:
  """Predictions of examples without ids: these are dev-1, dev-2, ..."""
  return [
    DevPrediction(f"dev-{number}", *answers)
    for number, answers in enumerate(zip(gold, predicted), start=1)
  ]


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


# Dev scores of a training

SCORES_FILE = "dev_scores.jsonl"
_LOWER = "lower_is_better"


class Selection(NamedTuple):
  """Evaluation during training and early stopping."""

  eval_steps: int  # steps between evaluations; 0 for none
  metric: str  # primary metric, which selects the best checkpoint
  # Evaluations without improvement after which training ends; 0 for no early
  # stopping.
  patience: int = 0
  # Metrics of which a lower value is better, beside those that end in "loss".
  lower_is_better: Sequence[str] = ()


def plain_name(metric: str) -> str:
  """A metric's name without the prefix `eval_` of the results files."""
  return metric.removeprefix("eval_")


def is_better(
  metric: str,
  score: float,
  than: float | None,
  lower_is_better: Collection[str] = (),  # of `Selection`
) -> bool:
  """Compares two scores of a metric; NaN is never better."""
  if than is None or math.isnan(than):
    return not math.isnan(score)
  is_lower = metric.endswith("loss") or metric in lower_is_better
  return score < than if is_lower else score > than


def plain_scores(results: Mapping[str, Any]) -> dict[str, float]:
  """Numbers of `eval_results.txt` by `plain_name`, without `global_step`."""
  return {
    plain_name(name): float(f"{value:.7g}")
    for name, value in results.items()
    if not isinstance(value, (list, str))
    and name != "global_step"
    # Estimator's `loss` is a mean over batches: `eval_loss` takes precedence.
    and f"eval_{name}" not in results
  }


def best_row(
  rows: Sequence[Mapping[str, Any]],
  metric: str,
  lower_is_better: Collection[str] = (),  # of `Selection`
) -> Mapping[str, Any] | None:
  """First evaluation with the best score of a metric; None if none has it."""
  best = None
  for row in rows:
    score = row.get(metric, math.nan)
    if is_better(metric, score, best and best[metric], lower_is_better):
      best = row
  return best


def read_scores(path: str) -> list[dict[str, Any]]:
  """Rows of a `dev_scores.jsonl`: a `step`, scores by name, see `DevScores`."""
  rows = []
  lines = text_files.read_lines(path)
  fix = "Remove the line, or remove the file to evaluate again"
  for number, row in json_files.parse_lines(lines, path, {"step": int}, fix):
    row = json_files.with_nan(row)
    scores = (row[name] for name in row if name != _LOWER)
    if set(map(type, scores)) - {int, float}:
      raise InputError(f"{path}, line {number}: a score is not a number. {fix}")
    rows.append(row)
  return rows


def lower_is_better(folder: str) -> Sequence[str]:
  """`Selection.lower_is_better` of a run, by its `dev_scores.jsonl`."""
  path = os.path.join(folder, SCORES_FILE)
  *_, row = [{}, *(read_scores(path) if files.exists(path) else ())]
  return row.get(_LOWER, ())


class DevScores:
  """Dev metrics of a run, stored in `dev_scores.jsonl`."""

  def __init__(self, model_dir: str, selection: Selection):
    """Reads the metrics in `model_dir`, if there are any."""
    self.model_dir = model_dir
    self.selection = selection
    self._path = os.path.join(model_dir, SCORES_FILE)
    # The `step` and the scores by name of each evaluation, in order, and
    # `lower_is_better` if there are such metrics.
    self.rows: list[dict[str, Any]] = []
    if files.exists(self._path):
      self.rows = read_scores(self._path)

  @property
  def best(self) -> dict[str, Any] | None:
    """The first row with the best primary metric; None if there is none."""
    lower = self.selection.lower_is_better
    return best_row(self.rows, self.selection.metric, lower)

  def by_name(self) -> dict[str, list[tuple[int, float]]]:
    """(step, value) pairs of each metric."""
    names = dict.fromkeys(name for row in self.rows for name in row)
    return {
      name: [(row["step"], row[name]) for row in self.rows if name in row]
      for name in names
      if name not in ("step", _LOWER)
    }

  @property
  def last_step(self) -> int:
    """The step of the last evaluation; 0 if there is none."""
    return self.rows[-1]["step"] if self.rows else 0

  def ends_early(self) -> bool:
    """True if patience has run out, which it logs."""
    best, patience = self.best, self.selection.patience
    num_since_best = len(self.rows) - (self.rows.index(best) + 1 if best else 0)
    if not patience or num_since_best < patience:
      return False
    logging.info(
      "--patience=%d: best %s at step %s, no improvement in %d evaluations"
      " since; training ends at step %d",
      patience,
      self.selection.metric,
      best["step"] if best else "-",
      num_since_best,
      self.last_step,
    )
    return True

  def add(self, step: int, scores: Mapping[str, Any]) -> bool:
    """Adds the metrics of a step; True if they are the best so far."""
    row = {"step": step, **plain_scores(scores)}
    if self.selection.lower_is_better:
      row[_LOWER] = [*self.selection.lower_is_better]
    # Later rows are of a training that was resumed from an earlier step.
    self.rows = [r for r in self.rows if r["step"] < step] + [row]
    return self.best is row

  def write(self) -> None:
    """Writes the file."""
    with files.atomic_write(self._path) as file:
      file.writelines(json_files.dumps(row) + "\n" for row in self.rows)
