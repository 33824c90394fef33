"""Sections of the HTML report of a run: curves, metrics, and worst errors.

A report is one self-contained HTML file: pictures are inline, nothing is
downloaded, and the same data always give the same bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.data import model_inputs
from bertlib.reporting import report_charts, report_page
from bertlib.reporting.report_charts import MARK, Line
from bertlib.reporting.report_page import Html, escape, percent
from bertlib.reporting.report_page import write as write
from bertlib.reporting.statistics import Interval

# Event files


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


# Sections


def warning(text: str) -> str:
  """Section with a warning about the results."""
  return report_page.section("Warning", f'<p dir="auto">{escape(text)}</p>')


def headline(
  name: str,
  value: float,
  count: str = "",
  interval: Interval | None = None,
  baseline: tuple[str, float] | None = None,
  notes: Sequence[str] = (),
) -> str:
  """The primary metric, for the top of the page."""
  # With as many decimals as its interval and its baseline, which is a trivial
  # prediction and the metric of it.
  values = [value, *(interval[:2] if interval else ())]
  values += [baseline[1]] if baseline else []
  shown = iter(report_page.format_column([float(v) for v in values]))
  value = next(shown)
  lines = []
  if interval:
    lines.append(
      f"95% confidence interval {next(shown)} to {next(shown)}"
      f" ({escape(interval.method)})"
    )
  if baseline:
    lines.append(f"Baseline {next(shown)}: {escape(baseline[0])}")
  lines += [escape(line) for line in (count, *notes) if line]
  return "\n".join(
    [
      '<div class="headline">',
      f'<p><span class="value">{value}</span><br>{escape(name)}</p>',
      f"<p>{'<br>'.join(lines)}</p>",
      "</div>",
    ]
  )


def with_interval(value: float, interval: Interval | None) -> float | Html:
  """A value for the top of the page, with its confidence interval if known."""
  if interval is None:
    return value
  value, low, high = report_page.format_column([value, *interval[:2]])
  return Html(f"{value} <i>({low} to {high})</i>")


def losses(
  training: Sequence[tuple[int, float]],
  dev: Sequence[tuple[int, float]],
  marked: tuple[int, str] | None = None,
) -> str:
  """Section with the losses of training and dev set in one panel."""
  lines, shown = [], []
  for name, line in (
    ("solid: training", Line(training)),
    ("dashed: dev set", Line(dev, "ink", (0, (4, 2)))),
  ):
    if line.points:
      lines.append(line)
      last = report_page.format_value(float(line.points[-1][1]))
      shown.append(f"<span>{name}, last {last}</span>")
  steps = [step for line in lines for step, _ in line.points]
  steps += [marked[0]] if marked else []
  pictures = [
    report_charts.panel(
      lines,
      (min(steps), max(steps)),
      marked and marked[0],
      "".join(shown),
      size,
    )
    for size in ((6.2, 2.5), report_charts.PANEL_SIZE)
  ]
  return report_page.section(
    "Loss",
    # The browser scales a picture with its text, so a narrow screen has one of
    # its own.
    *('<div class="single">', pictures[0], "</div>"),
    *('<div class="single narrow">', pictures[1], "</div>"),
    *_curve_notes(lines, marked),
  )


def curves(
  title: str,
  named: Mapping[str, Sequence[tuple[int, float]]],
  marked: tuple[int, str] | None = None,
) -> str:
  """Section with a curve for each name; `marked` is a step and its label."""
  named = {name: points for name, points in named.items() if points}
  steps = [step for points in named.values() for step, _ in points]
  if not steps:
    return report_page.section(title, report_page.note("Nothing was recorded."))
  steps += [marked[0]] if marked else []
  lines = {name: Line(points) for name, points in named.items()}
  panels = [
    report_charts.panel(
      [line],
      (min(steps), max(steps)),
      marked and marked[0],
      f'<b dir="auto">{escape(name)}</b> <span>{_last_value(line)}</span>',
    )
    for name, line in lines.items()
  ]
  return report_page.section(
    title,
    '<div class="panels">',
    *panels,
    "</div>",
    *_curve_notes(lines.values(), marked),
  )


def _last_value(line: Line) -> str:
  """The last value of a curve, and the number of NaN or Inf."""
  summary = f"last {report_page.format_value(float(line.points[-1][1]))}"
  num_nonfinite = sum(not math.isfinite(value) for _, value in line.points)
  if num_nonfinite:
    summary = f"{num_nonfinite:,} NaN or Inf, {summary}"
  return summary


def _curve_notes(
  lines: Iterable[Line], marked: tuple[int, str] | None
) -> list[str]:
  """Notes below curves."""
  notes = []
  if marked:
    step, label = marked
    notes.append(f"{MARK} <bdi>{escape(label)}</bdi>, step {step:,}.")
  if any(len(line.points) > report_charts.MAX_POINTS for line in lines):
    notes.append(
      "Lines are means over neighboring steps; the shaded band spans their"
      " minimum and maximum."
    )
  return [report_page.note(content) for content in notes]


def seeds(statistics: Mapping[str, Any]) -> str:
  """Section on the runs of --seeds, from `multi_run.summarize_seeds`."""
  metric, low_high = statistics["metric"], statistics["confidence_interval"]
  rows = [
    {
      "seed": seed,
      metric: score,
      "note": ", ".join(
        note
        for note, applies in (
          ("kept as the best", seed == statistics["best_seed"]),
          ("collapsed", seed in statistics["collapsed"]),
        )
        if applies
      ),
    }
    for seed, score in zip(statistics["seeds"], statistics["scores"])
  ]
  low, high = low_high
  for name in ("median", "mean", "standard_deviation"):
    shown = name.replace("_", " ")
    rows.append({"seed": shown, metric: statistics[name], "note": ""})
  rows[-2]["note"] = f"95% confidence interval {low:.4f} to {high:.4f}"
  picture = report_charts.dots(
    statistics["scores"],
    [f"seed {seed}" for seed in statistics["seeds"]],
    statistics["mean"],
    low_high,
    metric,
  )
  return report_page.section(
    "Seeds",
    report_page.beside(picture, report_page.grid(rows)),
    report_page.note(
      "A dot per run; dashed: their mean; shaded: the 95% confidence interval"
      " of the mean (Student's t)."
    ),
  )


def commands(title: str, *blocks: tuple[str, str]) -> str:
  """Section with lines to copy, after a sentence about each block."""
  return report_page.section(
    title,
    *(
      f"<p>{escape(about)}</p>\n<pre>{escape(lines)}</pre>"
      for about, lines in blocks
    ),
  )


def table(title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> str:
  """Section with a table: a row per mapping, a column per key; and a note."""
  notes = [report_page.note(escape(note))] if note else []
  return report_page.section(title, report_page.grid(rows), *notes)


def errors(
  rows: Sequence[Mapping[str, str | float]], shows_spans: bool = False
) -> str:
  """Section with a table of the worst errors; explains marked spans."""
  notes = []
  if shows_spans and rows:
    notes.append(
      report_page.note(
        '<mark class="gold">solid underline</mark>: gold answer;'
        ' <mark class="predicted">dashed underline</mark>: predicted answer,'
        " wherever its text occurs."
      )
    )
  return report_page.section(
    "Worst errors", report_page.grid(rows, cards=True), *notes
  )


def confusion_matrix(
  labels: Sequence[str], gold: np.ndarray, predicted: np.ndarray
) -> str:
  """Section with a confusion matrix of label indices, [examples] each."""
  # Of more labels, the most frequent confusions are listed.
  if len(labels) > 20:
    parts = _confusions(labels, gold, predicted)
  else:
    counts = np.zeros([len(labels)] * 2, np.int64)
    np.add.at(counts, (gold, predicted), 1)
    parts = _matrix(labels, counts)
  return report_page.section("Confusion matrix", *parts)


def _matrix(labels: Sequence[str], counts: np.ndarray) -> list[str]:
  """The whole matrix, with cells shaded by their share of the row."""
  correct, gold = counts.diagonal(), counts.sum(axis=1)
  heads = [f"<th>{escape(label)}</th>" for label in labels]
  rows = [["<th>gold ↓ predicted →</th>", *heads, "<th>recall</th>"]]
  for i, head in enumerate(heads):
    cells = [head]
    for j, count in enumerate(counts[i]):
      kind = "right" if i == j else "wrong"
      shade = f"--share: {70 * math.sqrt(count / (gold[i] or 1)):.0f}%"
      kind = f'"{kind}" style="{shade}"' if count else '"edge"'
      cells.append(f"<td class={kind}>{count:,}</td>")
    rows.append([*cells, _edge(correct[i], gold[i])])
  precision = map(_edge, correct, counts.sum(axis=0))
  accuracy = _edge(correct.sum(), counts.sum())
  rows.append(["<th>precision</th>", *precision, accuracy])
  many = " many" if len(labels) > 8 else ""
  return [
    f'<div class="wide"><table class="matrix{many}">',
    *(f"<tr>{''.join(cells)}</tr>" for cells in rows),
    "</table></div>",
    report_page.note("The bottom right cell is the accuracy."),
  ]


def _edge(part: int, whole: int) -> str:
  """A cell of recall or precision at the edge of the matrix."""
  return f'<td class="edge">{percent(part, whole)}</td>'


def _confusions(
  labels: Sequence[str], gold: np.ndarray, predicted: np.ndarray
) -> list[str]:
  """The most frequent confusions, if there are too many labels for a matrix."""
  is_right = gold == predicted
  num_correct, num_gold, num_predicted = (
    np.bincount(ids, minlength=len(labels))
    for ids in (gold[is_right], gold, predicted)
  )
  pairs, counts = np.unique(
    np.stack([gold, predicted])[:, ~is_right], axis=1, return_counts=True
  )
  worst = [
    {
      "gold": labels[pairs[0, i]],
      "predicted": labels[pairs[1, i]],
      "count": counts[i],
      "share of gold label": counts[i] / num_gold[pairs[0, i]],
    }
    for i in np.argsort(-counts, kind="stable")[:20]
  ]
  shown, which = shown_labels(num_gold)
  single = [
    {
      "label": labels[i],
      "examples": num_gold[i],
      "recall": num_correct[i] / num_gold[i] if num_gold[i] else None,
      "precision": (
        num_correct[i] / num_predicted[i] if num_predicted[i] else None
      ),
    }
    for i in shown
  ]
  return [
    f"<p>{percent(num_correct.sum(), len(gold))} of {len(gold):,} predictions"
    " are correct. Most frequent confusions:</p>",
    report_page.grid(worst),
    f"<details><summary>{which}</summary>",
    report_page.grid(single),
    "</details>",
  ]


# Labels in a table, which would fill many screens with more of them.
_MAX_LABELS = 200


def shown_labels(counts: np.ndarray) -> tuple[np.ndarray, str]:
  """Indices of all or the most frequent labels, and words for them."""
  if len(counts) <= _MAX_LABELS:
    return np.arange(len(counts)), f"All {len(counts)} labels"
  shown = np.sort(np.argsort(-counts, kind="stable")[:_MAX_LABELS])
  return shown, f"The {_MAX_LABELS} most frequent of {len(counts):,} labels"


def calibration(confidences: Sequence[float], correct: Sequence[bool]) -> str:
  """Section with a reliability diagram and the expected calibration error."""
  confidence = np.asarray(confidences, float)
  is_correct = np.asarray(correct, float)
  if not len(confidence):
    return report_page.section(
      "Calibration", report_page.note("There are no predictions.")
    )
  bins = np.digitize(confidence, np.arange(1, 10) / 10)
  counts = np.bincount(bins, minlength=10)
  confidence_by_bin = np.bincount(bins, confidence, 10)
  correct_by_bin = np.bincount(bins, is_correct, 10)
  error = np.abs(confidence_by_bin - correct_by_bin).sum() / len(confidence)

  def draw(axes):
    middles = np.arange(10) / 10 + 0.05
    with np.errstate(invalid="ignore"):  # an empty bin has no point
      points = confidence_by_bin / counts, correct_by_bin / counts
    axes.bar(middles, points[1], 0.092, alpha=0.3)
    axes.plot(
      [0, 1], [0, 1], color=report_charts.LIGHT["quiet"], linestyle=(0, (3, 2))
    )
    axes.plot(*points, "o", clip_on=False)
    for middle, count in zip(middles, counts):
      axes.text(middle, 1.04, _short(count), ha="center")
    axes.set(xlabel="confidence", ylabel="accuracy")
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=np.arange(11) / 10)

  return report_page.section(
    "Calibration",
    report_page.beside(
      report_charts.picture((4.2, 2.8), draw),
      f"<p><b>Expected calibration error {error:.4f}.</b> The mean confidence"
      f" is {confidence.mean():.1%}, and {is_correct.mean():.1%} of"
      f" {len(confidence):,} predictions are correct.</p>",
      report_page.note(
        "Each point is a bin: mean confidence, accuracy and, at the top, count."
        " Below the dashed line the model is overconfident. The error is the"
        " mean of |confidence − accuracy| over ten bins of equal width,"
        " weighted by their counts (Guo et al. 2017)."
      ),
    ),
  )


def _short(count: int) -> str:
  """A count with two or three digits: 950, 1.7k, 12k."""
  if count < 1000:
    return str(count)
  return f"{count / 1000:.1f}k" if count < 9950 else f"{count / 1000:,.0f}k"


def lengths(lengths: model_inputs.Lengths) -> str:
  """Section with a histogram of example or window lengths before truncation."""
  num_tokens, limit = lengths.num_tokens, lengths.limit
  unit = "windows" if lengths.num_windows else lengths.examples
  title = "Lengths of windows" if lengths.num_windows else "Lengths"
  if not len(num_tokens):
    return report_page.section(
      title, report_page.note("There are no examples.")
    )
  longest = max(num_tokens)
  # A few very long examples would squeeze all other bars.
  top = max(limit, min(longest, 2 * limit))
  width = math.ceil(top / 60)
  # Bars are aligned so that the limit falls between two of them.
  starts = np.arange(limit % width - width, top, width) + 0.5
  counts, _ = np.histogram(
    np.minimum(num_tokens, top), [*starts, starts[-1] + width]
  )

  def draw(axes):
    colors = [
      report_charts.LIGHT["main" if x < limit else "other"] for x in starts
    ]
    axes.bar(starts, counts, width * 0.9, align="edge", color=colors)
    axes.set(xlim=(0, None), xlabel="tokens", ylabel=unit)
    report_charts.mark(axes, limit + 0.5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(integer=True)

  overflow = (
    f" The last bar includes all above {top:,}." if longest > top else ""
  )
  return report_page.section(
    title,
    report_page.beside(
      report_charts.picture((4.2, 2.1), draw),
      *(f"<p>{text}</p>" for text in _truncation(lengths)),
      report_page.note(
        f"Median length {np.median(num_tokens):,.0f} tokens, maximum"
        f" {longest:,}. {MARK} Limit {limit:,}.{overflow}"
      ),
    ),
  )


def _truncation(lengths: model_inputs.Lengths) -> Iterator[str]:
  """Yields sentences on division into windows and truncation."""
  name, count = lengths.examples, len(lengths.num_cut)
  if lengths.num_windows:
    num_divided = sum(number > 1 for number in lengths.num_windows)
    yield (
      f"<b>{len(lengths.num_tokens):,} windows of {count:,} {name}</b>:"
      f" {num_divided:,} ({percent(num_divided, count)}) did not fit into one"
      " window and were divided into overlapping ones."
    )
  num_truncated, num_cut = sum(map(bool, lengths.num_cut)), sum(lengths.num_cut)
  if not num_truncated:
    yield f"<b>None of {count:,} {name}</b> was truncated."
    return
  truncated = (
    f"<b>{num_truncated:,} of {count:,} {name}</b>"
    f" ({percent(num_truncated, count)}) were truncated, which removed"
    f" {num_cut:,}"
  )
  if lengths.num_windows:
    yield f"{truncated} tokens."
  else:
    total = sum(lengths.num_tokens)
    share = percent(num_cut, total)
    yield f"{truncated} of {total:,} tokens ({share})."
