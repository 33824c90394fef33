"""Writes the report of a training run (report.html)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import logging

from bertlib import json_files
from bertlib.data import model_inputs
from bertlib.reporting import html_report
from bertlib.settings import option
from bertlib.settings.common import TrainingSettings
from bertlib.training import model_selection, multi_run
from bertlib.training.task import Run


def write_report(
  run: Run,
  results: Mapping[str, Any],
  sections: Sequence[str] = (),
  lengths: model_inputs.Lengths | None = None,
  warnings: Sequence[str] = (),
) -> None:
  """Writes the `report.html` of a training run.

  Args:
    run: the run.
    results: evaluation results of the trained model, by name.
    sections: the task's sections, see `report_sections`.
    lengths: lengths of the training examples, if known.
    warnings: sections of `collapse_warning`; they come first.
  """
  settings, selection = run.settings, run.selection
  scores = model_selection.DevScores(run.output_dir, selection)
  best = scores.best
  marked = best and (best["step"], f"best {selection.metric}")
  parts = list(warnings)
  scalars = html_report.read_scalars(settings.run.output_dir)
  if scalars:
    parts.append(html_report.curves("Training", scalars, marked))
  if scores.rows:
    parts.append(html_report.curves("Dev scores", scores.by_name(), marked))
  parts += _seeds_section(settings)
  parts += sections
  if lengths:
    parts.append(html_report.lengths(lengths))
  parts.append(html_report.table("Settings", _settings(settings)))
  path = os.path.join(settings.run.output_dir, "report.html")
  folder = os.path.basename(os.path.abspath(settings.run.output_dir))
  html_report.write(path, folder, model_selection.plain_scores(results), parts)
  logging.info("Report of the run: %s", path)


def _seeds_section(settings: TrainingSettings) -> list[str]:
  """Section on the runs of --seeds; empty without them."""
  path = os.path.join(settings.run.output_dir, multi_run.SEEDS_FILE)
  if not (settings.run.seeds and tf.gfile.Exists(path)):
    return []
  found = json_files.read(
    path,
    {
      "metric": str,
      "seeds": [int],
      "scores": [float],
      "best_seed": int,
      "collapsed": [int],
      "confidence_interval": [float],
    },
    "Remove it, or repeat the run",
  )
  rows = [
    {
      "seed": seed,
      found["metric"]: score,
      "note": ", ".join(
        note
        for note, applies in (
          ("kept as the best", seed == found["best_seed"]),
          ("collapsed", seed in found["collapsed"]),
        )
        if applies
      ),
    }
    for seed, score in zip(found["seeds"], found["scores"])
  ]
  low, high = found["confidence_interval"]
  for name in ("median", "mean", "standard_deviation"):
    shown = name.replace("_", " ")
    rows.append({"seed": shown, found["metric"]: found[name], "note": ""})
  rows[-2]["note"] = f"95% confidence interval {low:.4f} to {high:.4f}"
  return [html_report.table("Seeds", rows)]


def _settings(settings: TrainingSettings) -> list[dict[str, Any]]:
  """Rows of the flags given, and of the values chosen for `auto`."""
  values = option.values_of(settings)
  given = {name: values[name] for name in sorted(settings.receipt.times_given)}
  for name in sorted(settings.compute.automatic):
    given[name] = f"auto: {values[name]}"
  return [{"flag": f"--{n}", "value": value} for n, value in given.items()]


def collapse_warning(
  answers: Iterable[str], gold: Iterable[str] | None = None
) -> list[str]:
  """Logs a warning of `model_selection.describe_collapse`, if there is one.

  Returns:
    The warning as a section of the report; empty if predictions differ.
  """
  text = model_selection.describe_collapse(answers, gold)
  if not text:
    return []
  logging.warning("%s", text)
  return [html_report.warning(text)]
