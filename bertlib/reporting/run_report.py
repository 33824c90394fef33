"""Writes the report of a training run (report.html)."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from bertlib.cli import option
from bertlib.cli.errors import some_of
from bertlib.data import model_inputs
from bertlib.io import receipt_file, result_files
from bertlib.reporting import (
  html_report,
  predict_commands,
  report_page,
)
from bertlib.reporting.statistics import Estimates
from bertlib.settings.common import TrainingSettings
from bertlib.training import model_selection, multi_run
from bertlib.training.task import Run

# Versions shown, by their names in the receipt.
_VERSIONS = {
  "tensorflow": "TensorFlow",
  "tensorflow-cpu": "TensorFlow",
  "python": "Python",
  "project": "version",
  "commit": "commit",
}


@dataclasses.dataclass
class Findings:
  """Result of the evaluation of a run."""

  # Metrics, as in `eval_results.txt`.
  results: dict[str, Any] = dataclasses.field(default_factory=dict)
  # Sections of the report on the predictions.
  sections: list[str] = dataclasses.field(default_factory=list)
  # Sections of `collapse_warning`, which come first.
  warnings: list[str] = dataclasses.field(default_factory=list)
  # Intervals and baselines of the metrics.
  estimates: Estimates = dataclasses.field(default_factory=Estimates)


def write_report(
  run: Run,
  found: Findings,
  lengths: model_inputs.Lengths | None = None,
  num_examples: Mapping[str, int] | None = None,
) -> None:
  """Writes the `report.html` of a training run."""
  seeds = None
  if run.seeds:
    seeds = multi_run.read_statistics(run.output_dir)
  scores = model_selection.plain_scores(found.results)
  # `Receipt.finish` has been called: it has device, versions, date and
  # duration.
  receipt = next(receipt_file.read_all(run.output_dir), {})
  parts = [*found.warnings, *([html_report.seeds(seeds)] if seeds else [])]
  parts += [*_curves(run), *found.sections]
  if lengths:
    parts.append(html_report.lengths(lengths))
  intervals = found.estimates.intervals
  predict = predict_commands.blocks(run)
  if predict:
    parts.append(html_report.commands("Predict with this model", *predict))
  parts.append(html_report.table("Settings", _settings(run.settings)))
  path = os.path.join(run.output_dir, "report.html")
  html_report.write(
    path,
    os.path.basename(os.path.abspath(run.output_dir)),
    {
      name: html_report.with_interval(value, intervals.get(name))
      for name, value in scores.items()
    },
    parts,
    subtitle=_subtitle(run, receipt),
    headline=_headline(run, scores, found.estimates, seeds),
    details=_details(run, receipt, num_examples or {}),
  )
  logging.info("Report of the run: %s", path)


# The top of the page


def _subtitle(run: Run, receipt: Mapping[str, Any]) -> str:
  """Script, task and date."""
  script = receipt.get("script", f"{run.task.name}.py")
  task = run.task.description.get("task")
  date = receipt_file.starts(receipt)[0]["started"][:10] if receipt else None
  return " · ".join(filter(None, [script, task, date]))


def _headline(
  run: Run,
  scores: Mapping[str, float],
  estimates: Estimates,
  seeds: Mapping[str, Any] | None,
) -> str:
  """The primary metric; empty without evaluation."""
  # A loss says little to a reader, and what begins with "best_" is at a
  # threshold that was tuned on the same examples: the next metric is shown
  # instead.
  metric = next(
    (
      name
      for name in (run.selection.metric, *run.task.metrics)
      if name in scores and not name.endswith("loss")
      if not name.startswith("best_")
    ),
    None,
  )
  if metric is None:
    return ""
  notes = []
  if seeds:
    low, high = seeds["confidence_interval"]
    notes = [
      f"Best of {len(seeds['seeds'])} seeds, by {seeds['metric']}: mean"
      f" {seeds['mean']:.4f}, 95% confidence interval of the mean {low:.4f} to"
      f" {high:.4f}"
    ]
  return html_report.headline(
    metric,
    scores[metric],
    estimates.count,
    estimates.intervals.get(metric),
    estimates.baselines.get(metric),
    notes,
  )


def _details(
  run: Run, receipt: Mapping[str, Any], num_examples: Mapping[str, int]
) -> dict[str, str]:
  """Date, duration, device, precision, seeds and versions, by name."""
  settings = run.settings
  details = {}
  if receipt:
    starts = receipt_file.starts(receipt)
    details["started"] = starts[0]["started"].replace("T", " ")
    duration = receipt_file.duration(receipt)
    if duration is not None:
      text = report_page.format_duration(duration.total_seconds())
      of_several = f" in {len(starts)} starts" if len(starts) > 1 else ""
      details["duration"] = text + of_several
    device = _describe_device(receipt["device"])
    details["device"] = "TPU" if run.on_tpu else device
  details["precision"] = settings.compute.precision
  numbers = run.seeds or [settings.run.seed]
  name = "seed" if len(numbers) == 1 else "seeds"
  details[name] = ", ".join(map(str, numbers))
  details |= {name: f"{n:,}" for name, n in num_examples.items() if n}
  versions = receipt.get("versions", {})
  for key, name in _VERSIONS.items():
    if versions.get(key):
      details[name] = versions[key][:12]  # of a commit
  return details


def _describe_device(device: Mapping[str, Any]) -> str:
  """GPUs, or the processor and its cores."""
  gpus = collections.Counter(device.get("gpus", ()))
  if gpus:
    return ", ".join(
      name if number == 1 else f"{number} × {name}"
      for name, number in gpus.items()
    )
  cores = device.get("cores")
  return f"{device.get('cpu') or 'CPU'}, {cores} core{'s' * (cores != 1)}"


# Sections


def _curves(run: Run) -> list[str]:
  """Sections with losses, and then the other curves."""
  dev_scores = model_selection.DevScores(run.output_dir, run.selection)
  best = dev_scores.best
  marked = best and (best["step"], f"best {run.selection.metric}")
  training = html_report.read_scalars(run.output_dir)
  dev = dev_scores.by_name()
  shown = dict(dev)
  if training and not dev:  # the evaluation at the end
    dev = html_report.read_scalars(run.path("dev"))
  parts = []
  losses = training.pop("loss", []), dev.get("loss", [])
  shown.pop("loss", None)
  if any(losses):
    parts.append(html_report.losses(*losses, marked))
  for title, named in (("Training", training), ("Dev metrics", shown)):
    if named:
      parts.append(html_report.curves(title, named, marked))
  return parts


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
  """Logs and returns a warning of `describe_collapse`, if there is one."""
  text = describe_collapse(answers, gold)
  if not text:
    return []
  logging.warning("%s", text)
  return [html_report.warning(text)]


def describe_collapse(
  answers: Iterable[str], gold: Iterable[str] | None = None
) -> str | None:
  """Describes a model that predicts the same for every example, or None."""
  answers = list(answers)
  gold = None if gold is None else list(gold)
  # Equal predictions are fine if the gold answers are all equal; without these,
  # a few are.
  if not result_files.are_all_equal(answers, gold):
    return None
  return (
    f"All {len(answers)} predictions are {_start_of(answers[0])!r}: the model"
    " may have collapsed to one answer. Train longer, with a lower"
    " --learning_rate or with --bias_correction"
  )


def missing_labels_warning(
  predicted: Iterable[str], gold: Iterable[str], fix: str
) -> list[str]:
  """Logs and returns a warning of gold labels that are never predicted."""
  predicted, counts = set(predicted), collections.Counter(gold)
  missing = [
    f"{label} ({counts[label]} of {sum(counts.values())} in the dev set)"
    for label in sorted(counts.keys() - predicted)
  ]
  if not missing:
    return []
  text = f"Never predicted: {some_of(missing)}. {fix}"
  logging.warning("%s", text)
  return [html_report.warning(text)]


def _start_of(text: str, limit: int = 200) -> str:
  """The first characters of a text."""
  return text if len(text) <= limit else f"{text[:limit]}…"
