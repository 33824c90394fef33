"""A training command around its task: lock, receipt, and report.html."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

from absl import logging

from bertlib.cli import command_line, option
from bertlib.cli.errors import some_of
from bertlib.hardware import devices
from bertlib.io import files, receipt_file, result_files
from bertlib.reporting import html_report, receipts
from bertlib.reporting.html_report import Section, escape, format_value
from bertlib.reporting.statistics import Interval
from bertlib.task.task_record import TaskRecord
from bertlib.training import loop, runs
from bertlib.training.runs import Run


@dataclasses.dataclass
class Findings:
  """Result of the evaluation of a run."""

  # Metrics, as in `eval_results.txt`.
  results: dict[str, Any] = dataclasses.field(default_factory=dict)
  # Sections of the report on the predictions.
  sections: list[Section] = dataclasses.field(default_factory=list)
  # Sections of `collapse_warning`, which come first.
  warnings: list[Section] = dataclasses.field(default_factory=list)
  # Confidence intervals by metric, without `eval_`.
  intervals: Mapping[str, Interval | None] = dataclasses.field(
    default_factory=dict
  )


@dataclasses.dataclass
class Outcome:
  """Results of a run, for its receipt and its report."""

  run: Run
  checkpoint: str | None = None  # to use; None for that of --init_checkpoint
  found: Findings = dataclasses.field(default_factory=Findings)
  num_examples: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def add(self, results: Mapping[str, Any], report: Callable[[], Any]) -> None:
    """Writes metrics of the checkpoint; reports `search_report.Evaluation`."""
    loop.write_metrics(self.run, results, self.checkpoint)
    sections, intervals = report()
    self.found = Findings(results, sections, intervals=intervals)


@contextlib.contextmanager
def started(
  receipt: receipts.Receipt,
  run: Run,
  # Paths and their uses; None for those of the settings.
  data_files: Iterable[tuple[str, str | None]] | None = None,
) -> Iterator[Outcome]:
  """Holds the lock of --output_dir; records what its block makes of the run."""
  settings = run.settings
  data_files = settings.data_files() if data_files is None else data_files
  with runs.lock_output_dir(run):
    receipt.start(settings, data_files, run.devices)
    devices.log_devices(run.devices)
    if run.flags.do_train:
      runs.write_companions(run)
    outcome = Outcome(run)
    yield outcome
    if not run.is_chief:
      return
    receipt.finish(outcome.found.results, outcome.checkpoint)
    if run.flags.do_train:
      write_report(outcome)


def write_report(outcome: Outcome) -> None:
  """Writes the `report.html` of a training run."""
  run, found = outcome.run, outcome.found
  # `Receipt.finish` has been called.
  receipt = receipt_file.last_training(run.output_dir)
  seeds = loop.read_statistics(run.output_dir) if run.seeds else None
  scores = result_files.plain_scores(found.results)
  about = receipt["script"], run.task.description.get("task")
  subtitle = " · ".join(filter(None, [*about, receipt["started"][:10]]))
  headline = _headline(run, scores, found.intervals)
  sections = [
    *found.warnings,
    *_metrics(scores, found.intervals),
    *_seeds(seeds),
    *_curves(run),
    *found.sections,
    *predict_command(run.task.record, run.output_dir),
    _settings(run, receipt, outcome.num_examples),
  ]
  path = run.path("report.html")
  title = os.path.basename(os.path.abspath(run.output_dir))
  top = f"{html_report.note(subtitle)}\n{headline}"
  html_report.write_page(path, title, sections, top)
  logging.info("Report of the run: %s", path)


# The top of the page


def _headline(
  run: Run,
  scores: Mapping[str, float],
  intervals: Mapping[str, Interval | None],
) -> str:
  """The primary metric; empty without evaluation."""
  # A loss says little to a reader, and what begins with "best_" is at a
  # threshold that was tuned on the same examples: the next metric is shown
  # instead.
  names = [
    name
    for name in (run.selection.metric, *run.task.metrics)
    if name in scores and not name.endswith("loss")
    if not name.startswith("best_")
  ]
  if not names:
    return ""
  metric, lines = names[0], []
  if interval := intervals.get(metric):
    ends = _ends(interval)
    lines.append(f"95% confidence interval {ends} ({interval.method})")
  if run.seeds:
    lines.append(f"Best of {len(run.seeds)} seeds")
  return (
    '<div class="headline">\n'
    f"<p><b>{format_value(scores[metric])}</b><br>{escape(metric)}</p>\n"
    f"<p>{'<br>'.join(map(escape, lines))}</p>\n</div>"
  )


def _ends(interval: Interval | None) -> str:
  """The ends of an interval; "" for none."""
  if interval is None:
    return ""
  return f"{format_value(interval.low)} to {format_value(interval.high)}"


# Sections


def _metrics(
  scores: Mapping[str, float], intervals: Mapping[str, Interval | None]
) -> list[Section]:
  """All metrics, with their confidence intervals."""
  rows = [
    {
      "metric": name,
      "value": value,
      "95% interval": _ends(intervals.get(name)),
    }
    for name, value in scores.items()
  ]
  return [html_report.table("Metrics", rows)] if rows else []


def _curves(run: Run) -> list[Section]:
  """Losses of training and dev set in one picture, and then other curves."""
  evaluations = result_files.DevScores(run.output_dir, run.selection)
  training, dev = read_scalars(run.output_dir), evaluations.by_name()
  loss = {"training": training.pop("loss", []), "dev set": dev.pop("loss", [])}
  panels = {
    "loss": {name: points for name, points in loss.items() if points},
    **{f"dev {name}": {"": points} for name, points in dev.items()},
    **{name: {"": points} for name, points in training.items()},
  }
  best = evaluations.best
  pictures = [
    html_report.curves(title, lines, best and best["step"])
    for title, lines in panels.items()
    if lines
  ]
  if not pictures:
    return []
  parts = ['<div class="panels">', *pictures, "</div>"]
  if best:
    text = f"Dashed: best {run.selection.metric}, step {best['step']:,}."
    parts.append(html_report.note(text))
  return [Section("Curves", "\n".join(parts))]


def read_scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
  """Reads (step, value) pairs in order of steps, by tag, from event files."""
  import tensorflow.compat.v1 as tf

  found: dict[str, dict[int, float]] = {}
  # The names have the time. A resumed run may write a step twice: the later
  # value is used.
  for path in files.matching(folder, "*.tfevents.*"):
    # A killed run may leave an incomplete record at the end.
    with contextlib.suppress(tf.errors.DataLossError):
      records = tf.data.TFRecordDataset(path).as_numpy_iterator()
      for event in map(tf.Event.FromString, records):
        for value in event.summary.value:
          number = _scalar(tf, value)
          if number is not None:
            found.setdefault(value.tag, {})[event.step] = number
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


def _seeds(statistics: Mapping[str, Any] | None) -> list[Section]:
  """Metrics of the runs of --seeds, from `loop.summarize_seeds`."""
  if not statistics:
    return []
  metric, rows = statistics["metric"], []
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
  return [html_report.table("Seeds", rows, about)]


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


def _settings(
  run: Run, receipt: Mapping[str, Any], num_examples: Mapping[str, int]
) -> Section:
  """Time, device and data of a run, flags, and values chosen for `auto`."""
  values, found = option.values_of(run.settings), run.devices
  rows = {n: receipt[n].replace("T", " ") for n in ("started", "ended")}
  rows["device"] = "TPU" if run.on_tpu else _describe_device(receipt["device"])
  rows["precision"] = found.precision
  seeds = run.seeds or [run.flags.seed]
  rows["seeds" if run.seeds else "seed"] = ", ".join(map(str, seeds))
  rows |= {name: f"{n:,}" for name, n in num_examples.items() if n}
  for name in sorted(run.settings.flags.given):
    rows[f"--{name}"] = values[name]
  for name in sorted(found.automatic):
    rows[f"--{name}"] = f"auto: {found.choices[name]}"
  return html_report.table(
    "Settings", [{"setting": n, "value": str(v)} for n, v in rows.items()]
  )


def _describe_device(device: Mapping[str, Any]) -> str:
  """GPUs, or the processor."""
  gpus = collections.Counter(device.get("gpus", ()))
  names = [f"{n} × {name}" if n > 1 else name for name, n in gpus.items()]
  return ", ".join(names) or device.get("cpu") or "CPU"


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
