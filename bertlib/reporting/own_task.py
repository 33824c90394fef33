"""The run of a task whose examples are rows, for a task of your own.

A script has its settings, with --train_file, --dev_file and --predict_file, a
`prepare` like those of the training scripts, and an object of `Rows`; `run`
does the rest. See `examples/two_heads.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from bertlib.cli.steps import Steps
from bertlib.data import tf_records, training_records
from bertlib.io import files, result_files, text_files
from bertlib.reporting import receipts, run_report
from bertlib.settings.training import TrainingSettings
from bertlib.training import loop, runs, step_plan
from bertlib.training.runs import Run


class Data(NamedTuple):
  """Examples of each file; none if the run does not read it."""

  train: Sequence[Any]
  dev: Sequence[Any]
  predict: Sequence[Any]


def accuracy(run: Run, gold: Sequence, predicted: Sequence) -> dict[str, float]:
  """Fraction of the answers that equal the gold ones."""
  del run
  right = sum(a == b for a, b in zip(gold, predicted))
  return {"accuracy": right / len(gold)}


@dataclasses.dataclass(frozen=True)
class Rows:
  """Functions of the examples of a task, which have a `text`."""

  encode: Callable[[Run, Any], Mapping[str, Any]]  # features of an example
  # Answer of a row of predictions: a str, a float, or a list of str.
  decode: Callable[[Run, Mapping[str, Any]], Any]
  gold: Callable[[Any], Any]  # answer of an example
  # Names of the parts of an answer, for the files of predictions.
  columns: Callable[[Run], Sequence[str]] = lambda run: ["answer"]
  # Metrics by name, given the run, and gold and predicted answers.
  measure: Callable[[Run, Sequence, Sequence], dict[str, float]] = accuracy


def run(
  script: str,  # its __file__
  settings: TrainingSettings,
  prepare: Callable[[Any, Steps], tuple[Run, Data]],  # writes nothing
  rows: Rows,
) -> None:
  """Trains, evaluates and predicts, depending on the flags."""
  with receipts.begin(script, settings) as (receipt, step):
    run, data = prepare(settings, step)
  if step.is_dry_run:
    return
  with run_report.started(receipt, run) as outcome:
    if run.seeds:
      loop.train_seeds(run, "--nodo_predict")
    elif run.flags.do_train:
      _train(run, data, rows)
    outcome.checkpoint = checkpoint = loop.select_checkpoint(run)
    if run.evaluates:
      results, predictions = _measure(run, data.dev, rows, checkpoint)
      outcome.found.results = results
      loop.write_metrics(run, results, checkpoint, predictions=predictions)
    if run.predicts:
      _write_answers(run, data.predict, rows, checkpoint)


def _input_fn(run: Run, rows: Rows, name: str, examples, batch_size: int):
  path, is_training = runs.records_path(run, name), name == "train"
  encoded = (rows.encode(run, example) for example in examples)
  if not is_training:
    encoded = runs.fill_last_batch(run, [*encoded], batch_size)
  tf_records.write_records(path, encoded, run.task.features)
  options = runs.input_options(run, is_training)
  return training_records.record_input_fn(path, run.task.features, **options)


def _train(run: Run, data: Data, rows: Rows) -> None:
  unit = run.task.unit
  loop.train(
    run,
    _input_fn(run, rows, "train", data.train, run.flags.train_batch_size),
    step_plan.count_steps(run.flags, len(data.train), unit),
    f"{len(data.train)} {unit}",
    lambda checkpoint: _measure(run, data.dev, rows, checkpoint)[0],
  )


def _predict(run, rows, name, examples, batch_size, checkpoint) -> list[Any]:
  """The answer for each example."""
  input_fn = _input_fn(run, rows, name, examples, batch_size)
  found = loop.predict(run, input_fn, len(examples), checkpoint, batch_size)
  return [rows.decode(run, row) for row in found]


def _measure(run: Run, dev_set, rows: Rows, checkpoint: str | None):
  """Metrics of a dev set, and its predictions."""
  gold, size = [*map(rows.gold, dev_set)], run.flags.eval_batch_size
  predicted = _predict(run, rows, "dev", dev_set, size, checkpoint)
  predictions = result_files.number_predictions(gold, predicted)
  return rows.measure(run, gold, predicted), predictions


def _write_answers(run: Run, examples, rows: Rows, checkpoint: str | None):
  """Writes the answers for --predict_file, a line for each."""
  name = result_files.predictions_name(run.settings.predict_file)
  size = run.flags.predict_batch_size
  answers = _predict(run, rows, "predict", examples, size, checkpoint)
  with files.atomic_write(run.path(f"{name}.tsv")) as file:
    file.write(text_files.tsv_line([*rows.columns(run), "text"]))
    for example, answer in zip(examples, answers):
      cells = answer if isinstance(answer, list) else [answer]
      file.write(text_files.tsv_line([*map(str, cells), example.text]))
