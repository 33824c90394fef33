"""A training command around its task: lock, receipt, and report.html."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from absl import logging

from bertlib.cli import command_line, option
from bertlib.cli.errors import some_of
from bertlib.data import model_inputs
from bertlib.hardware import devices
from bertlib.io import dev_scores, receipt_file, result_files
from bertlib.reporting import html_report, receipts
from bertlib.reporting.html_report import Section, escape, format_value
from bertlib.reporting.statistics import Estimates, Interval
from bertlib.task.task_record import TaskRecord
from bertlib.training import loop, runs
from bertlib.training.runs import Run

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
  sections: list[Section] = dataclasses.field(default_factory=list)
  # Sections of `collapse_warning`, which come first.
  warnings: list[Section] = dataclasses.field(default_factory=list)
  # Intervals and baselines of the metrics.
  estimates: Estimates = dataclasses.field(default_factory=Estimates)


@dataclasses.dataclass
class Outcome:
  """Results of a run, for its receipt and its report."""

  run: Run
  checkpoint: str | None = None  # to use; None for that of --init_checkpoint
  found: Findings = dataclasses.field(default_factory=Findings)
  lengths: model_inputs.Lengths | None = None  # of the training data
  num_examples: Mapping[str, int] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def started(
  receipt: receipts.Receipt,
  run: Run,
  data_files: Iterable[str],  # that were read
) -> Iterator[Outcome]:
  """Holds the lock of --output_dir; records what its block makes of the run."""
  settings = run.settings
  with runs.lock_output_dir(run):
    receipt.start(settings, data_files, run.devices.choices, run.is_chief)
    devices.log_devices(run.devices)
    if settings.run.do_train:
      runs.write_companions(run)
    outcome = Outcome(run)
    yield outcome
    if not run.is_chief:
      return
    receipt.finish(outcome.found.results, outcome.checkpoint)
    if settings.run.do_train:
      write_report(outcome)


def write_report(outcome: Outcome) -> None:
  """Writes the `report.html` of a training run."""
  run, found = outcome.run, outcome.found
  seeds = loop.read_statistics(run.output_dir) if run.seeds else None
  scores = dev_scores.plain_scores(found.results)
  # `Receipt.finish` has been called: it has device, versions, date and
  # duration.
  receipt = next(receipt_file.read_all(run.output_dir))
  sections = [*found.warnings]
  if seeds:
    sections.append(_seeds(seeds))
  sections += [*_curves(run), *found.sections]
  if outcome.lengths:
    sections.append(_lengths(outcome.lengths))
  sections += predict_command(run.task.record, run.output_dir)
  sections.append(_settings(run))
  intervals = found.estimates.intervals
  values = {
    name: _with_interval(value, intervals.get(name))
    for name, value in scores.items()
  }
  path = os.path.join(run.output_dir, "report.html")
  html_report.write_page(
    path,
    os.path.basename(os.path.abspath(run.output_dir)),
    sections,
    _subtitle(run, receipt),
    [
      _headline(run, scores, found.estimates, seeds),
      html_report.facts(values),
      html_report.facts(_details(run, receipt, outcome.num_examples)),
    ],
  )
  logging.info("Report of the run: %s", path)


# The top of the page


def _subtitle(run: Run, receipt: Mapping[str, Any]) -> str:
  """Script, task and date."""
  task = run.task.description.get("task")
  date = receipt["started"][:10]
  return " · ".join(filter(None, [receipt["script"], task, date]))


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
  interval = estimates.intervals.get(metric)
  baseline = estimates.baselines.get(metric)
  lines = []
  if interval:
    low, high = map(format_value, interval[:2])
    lines.append(f"95% confidence interval {low} to {high} ({interval.method})")
  if baseline:
    lines.append(f"Baseline {format_value(baseline[1])}: {baseline[0]}")
  if estimates.count:
    lines.append(estimates.count)
  if seeds:
    low, high = seeds["confidence_interval"]
    lines.append(
      f"Best of {len(seeds['seeds'])} seeds, by {seeds['metric']}: mean"
      f" {seeds['mean']:.4f}, 95% confidence interval of the mean {low:.4f} to"
      f" {high:.4f}"
    )
  return (
    '<div class="headline">\n'
    f"<p><b>{format_value(scores[metric])}</b><br>{escape(metric)}</p>\n"
    f"<p>{'<br>'.join(map(escape, lines))}</p>\n</div>"
  )


def _with_interval(value: float, interval: Interval | None) -> str:
  """A metric with its confidence interval, if there is one."""
  if interval is None:
    return format_value(value)
  value, low, high = map(format_value, (value, interval.low, interval.high))
  return f"{value} ({low} to {high})"


def _details(
  run: Run, receipt: Mapping[str, Any], num_examples: Mapping[str, int]
) -> dict[str, str]:
  """Date, duration, device, precision, seeds and versions, by name."""
  settings = run.settings
  details = {"started": receipt["started"].replace("T", " ")}
  duration = receipt_file.duration(receipt)
  if duration is not None:
    seconds = duration.total_seconds()
    details["duration"] = html_report.format_duration(seconds)
  device = _describe_device(receipt["device"])
  details["device"] = "TPU" if run.on_tpu else device
  details["precision"] = run.devices.precision
  numbers = run.seeds or [settings.run.seed]
  name = "seed" if len(numbers) == 1 else "seeds"
  details[name] = ", ".join(map(str, numbers))
  details |= {name: f"{n:,}" for name, n in num_examples.items() if n}
  versions = receipt["versions"]
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


def _curves(run: Run) -> list[Section]:
  """Losses of training and dev set in one picture, and then other curves."""
  evaluations = dev_scores.DevScores(run.output_dir, run.selection)
  training = read_scalars(run.output_dir)
  dev = evaluations.by_name()
  # Without --eval_steps, the dev loss is that of the end.
  at_end = {} if dev else read_scalars(run.path("dev"))
  loss = {
    "training": training.pop("loss", []),
    "dev set": dev.pop("loss", at_end.get("loss", [])),
  }
  panels = {
    "loss": {name: points for name, points in loss.items() if points},
    **{f"dev {name}": {"": points} for name, points in dev.items()},
    **{name: {"": points} for name, points in training.items()},
  }
  best = evaluations.best
  step = best and best["step"]
  pictures = [
    html_report.curves(title, lines, step)
    for title, lines in panels.items()
    if lines
  ]
  if not pictures:
    return []
  about = f"Dashed: best {run.selection.metric}, step {step:,}." if best else ""
  return [html_report.panels("Curves", pictures, about)]


def read_scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
  """Reads (step, value) pairs in order of steps, by tag, from event files."""
  import tensorflow.compat.v1 as tf

  if not tf.io.gfile.isdir(folder):
    return {}
  written = []
  for name in sorted(tf.io.gfile.listdir(folder)):
    path = os.path.join(folder, name)
    if ".tfevents." not in name or tf.io.gfile.isdir(path):
      continue
    try:
      records = tf.data.TFRecordDataset(path).as_numpy_iterator()
      for event in map(tf.Event.FromString, records):
        for value in event.summary.value:
          number = _scalar(tf, value)
          if number is not None:
            written.append((event.wall_time, value.tag, event.step, number))
    # A killed run may leave an incomplete record at the end.
    except tf.errors.DataLossError:
      pass
  found: dict[str, dict[int, float]] = {}
  # A resumed run may write a step twice: the later value is used.
  for _, tag, step, number in sorted(written, key=lambda entry: entry[0]):
    found.setdefault(tag, {})[step] = number
  return {tag: sorted(found[tag].items()) for tag in sorted(found)}


def _scalar(tf, value) -> float | None:
  """The scalar in a summary value; None if the value is not a scalar."""
  if value.HasField("simple_value"):
    return value.simple_value
  if value.HasField("tensor"):
    array = tf.make_ndarray(value.tensor)
    if array.shape == () and array.dtype.kind in "fiu":
      return float(array)
  return None


def _seeds(statistics: Mapping[str, Any]) -> Section:
  """Metrics of the runs of --seeds, from `loop.summarize_seeds`."""
  metric = statistics["metric"]
  rows = []
  for seed, score in zip(statistics["seeds"], statistics["scores"]):
    is_best = seed == statistics["best_seed"]
    notes = ["kept as the best"] * is_best
    notes += ["collapsed"] * (seed in statistics["collapsed"])
    rows.append({"seed": str(seed), metric: score, "note": ", ".join(notes)})
  for name in ("median", "mean", "standard_deviation"):
    shown = name.replace("_", " ")
    rows.append({"seed": shown, metric: statistics[name], "note": ""})
  low, high = statistics["confidence_interval"]
  about = (
    f"95% confidence interval of the mean (Student's t): {low:.4f} to"
    f" {high:.4f}."
  )
  return html_report.table("Seeds", rows, about)


def _lengths(lengths: model_inputs.Lengths) -> Section:
  """Lengths before truncation, and what was truncated or divided."""
  num_tokens, count = lengths.num_tokens, len(lengths.num_truncated_tokens)
  rows = {lengths.examples: f"{count:,}"}
  if lengths.num_windows:
    num_divided = sum(number > 1 for number in lengths.num_windows)
    rows["windows"] = f"{len(num_tokens):,}"
    rows["divided into several windows"] = _share(num_divided, count)
  if len(num_tokens):
    rows["median length"] = f"{np.median(num_tokens):,.0f} tokens"
    rows["maximum"] = f"{max(num_tokens):,} tokens"
  rows["limit"] = f"{lengths.limit:,} tokens"
  rows[f"truncated {lengths.examples}"] = _share(
    sum(map(bool, lengths.num_truncated_tokens)), count
  )
  # Windows overlap: their tokens are not those of the examples.
  total = 0 if lengths.num_windows else sum(num_tokens)
  rows["removed tokens"] = _share(sum(lengths.num_truncated_tokens), total)
  return Section("Lengths", html_report.facts(rows))


def _share(part: int, whole: int) -> str:
  """A count and its percentage of another one."""
  return f"{part:,} ({part / whole:.1%})" if whole else f"{part:,}"


def predict_command(task: TaskRecord, folder: str) -> list[Section]:
  """The command that predicts with a model, over several lines."""
  if not task.predict:
    return []
  lines = [
    command_line.as_installed(task.command or f"python {task.script}.py"),
    "--do_predict",
    f"--predict_file={task.predict.file}",
    f"--output_dir={shlex.quote(folder)}",
  ]
  command = escape(" \\\n  ".join(lines))
  content = f"<p>{escape(task.predict.about)}</p>\n<pre>{command}</pre>"
  return [Section("Predict with this model", content)]


def _settings(run: Run) -> Section:
  """Rows of the flags given, and of the values chosen for `auto`."""
  values = option.values_of(run.settings)
  names = sorted(run.settings.receipt.times_given)
  given = {name: values[name] for name in names}
  for name in sorted(run.devices.automatic):
    given[name] = f"auto: {run.devices.choices[name]}"
  rows = [{"flag": f"--{n}", "value": str(v)} for n, v in given.items()]
  return html_report.table("Settings", rows)


# Warnings


def collapse_warning(
  answers: Iterable[str], gold: Iterable[str] | None = None
) -> list[Section]:
  """Warns of a model that predicts the same for every example."""
  answers = list(answers)
  gold = None if gold is None else list(gold)
  # Equal predictions are fine if the gold answers are all equal; without these,
  # a few are.
  if not result_files.are_all_equal(answers, gold):
    return []
  shown = answers[0] if len(answers[0]) <= 200 else f"{answers[0][:200]}…"
  return _warning(
    f"All {len(answers)} predictions are {shown!r}: the model"
    " may have collapsed to one answer. Train longer, with a lower"
    " --learning_rate or with --bias_correction"
  )


def missing_labels_warning(
  predicted: Iterable[str], gold: Iterable[str], fix: str
) -> list[Section]:
  """Warns of gold labels that are never predicted."""
  predicted, counts = set(predicted), collections.Counter(gold)
  missing = [
    f"{label} ({counts[label]} of {sum(counts.values())} in the dev set)"
    for label in sorted(counts.keys() - predicted)
  ]
  if not missing:
    return []
  return _warning(f"Never predicted: {some_of(missing)}. {fix}")


def _warning(text: str) -> list[Section]:
  """Logs a warning, and returns it for the report."""
  logging.warning("%s", text)
  return [html_report.warning(text)]
