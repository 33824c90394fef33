"""HTML report of a run: curves, metrics, and worst errors.

A report is one self-contained HTML file: pictures are inline, nothing is
downloaded, and the same data always give the same bytes. `write` assembles it
from sections, which the other functions return as HTML.
"""

from __future__ import annotations

import html
import io
import math
import numbers
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np

from bertlib.data import model_inputs
from bertlib.files import atomic_write

# Colors of the light and the dark theme.
_COLORS = {
  "ink": ("#24292f", "#e3e6ea"),
  "quiet": ("#68717d", "#98a2ae"),
  "line": ("#e2e6ea", "#343a42"),
  "paper": ("#ffffff", "#16191d"),
  "main": ("#3a6ea5", "#78ade0"),
  "other": ("#c0622f", "#e8965f"),
}
_LIGHT = {name: light for name, (light, _) in _COLORS.items()}

_STYLE = """
body { margin: 0 auto; padding: 2.5rem 1.5rem 5rem; max-width: 66rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, "Segoe UI", "Liberation Sans", sans-serif; }
h1 { margin: 0; font-size: 1.75rem; line-height: 1.25; }
h2 { margin: 3rem 0 1rem; padding-bottom: .35rem; font-size: 1.2rem;
  border-bottom: 1px solid var(--line); }
p { max-width: 46rem; }
a, summary { color: var(--main); text-decoration: none; cursor: pointer; }
nav { margin: .6rem 0 1.6rem; display: flex; flex-wrap: wrap;
  gap: .2rem 1.4rem; }
code { padding: 0 .2em; border-radius: 3px; font-size: .85em;
  color: var(--quiet); background: var(--line); }
dl { margin: 0; columns: 2 24rem; column-gap: 3rem; }
dl div { display: flex; justify-content: space-between; gap: 1.5rem;
  padding: .28rem 0; border-bottom: 1px solid var(--line);
  break-inside: avoid; }
dd { margin: 0; text-align: right; }
dt, th, figcaption span, .note, td.edge { color: var(--quiet); }
dd, table, figcaption { font-variant-numeric: tabular-nums; }
.wide { margin: 1rem 0; overflow-x: auto; }
table { border-collapse: collapse; }
th { font-size: .9rem; font-weight: 500; text-align: left; }
td, th { padding: .32rem 1.6rem .32rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
td:last-child, th:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
.short div { white-space: pre; }
.long div { max-width: 42rem; max-height: 15rem; overflow: auto;
  white-space: pre-wrap; }
.matrix { white-space: nowrap; }
.matrix td, .matrix th { padding: .4rem .7rem; text-align: right; border: 0;
  vertical-align: middle; }
.matrix td { border: 2px solid var(--paper); min-width: 2.5rem; }
.many { font-size: .8rem; }
.many td { padding: .3rem; min-width: 1.2rem; }
.many th + th { padding: .7rem 0; text-align: left;
  writing-mode: vertical-rl; transform: rotate(180deg); }
.matrix .right { background: color-mix(in srgb, var(--main) var(--share),
  transparent); }
.matrix .wrong { background: color-mix(in srgb, var(--other) var(--share),
  transparent); }
.panels { display: grid; gap: 1.6rem 2rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); }
.beside { display: flex; flex-wrap: wrap; align-items: center;
  gap: 1rem 3rem; }
.beside > * { flex: 1 1 20rem; }
figure { margin: 0; min-width: 0; }
figcaption { display: flex; justify-content: space-between; gap: 1rem; }
figcaption span { white-space: nowrap; }
.mark { color: var(--other); font-weight: 700; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
"""

# Maximum number of points drawn per curve.
_MAX_POINTS = 200


# Event files


def read_scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
  """Reads the scalars in the event files of a folder.

  Args:
    folder: folder of the event files, without subfolders; may be missing. A
      file is read up to the first incomplete record, which a killed run may
      leave at the end.

  Returns:
    (step, value) pairs in order of steps, by tag. If a resumed run has written
    a step twice, the later value is used.
  """
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
    except tf.errors.DataLossError:
      pass
  found: dict[str, dict[int, float]] = {}
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


# The page


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
{style}
</style>
</head>
<body>
<h1>{heading}</h1>
<nav>
{links}
</nav>
<dl>
{facts}
</dl>
{sections}
</body>
</html>
"""


def write(
  path: str, title: str, facts: Mapping[str, Any], sections: Sequence[str]
) -> None:
  """Writes the page.

  Args:
    path: the HTML file.
    title: heading of the page.
    facts: values by name, shown at the top.
    sections: HTML of `curves`, `table` and the like.
  """
  links, parts = [], []
  for n, section in enumerate(sections):
    heading = re.search("<h2>(.*?)</h2>", section, re.DOTALL)[1]
    links.append(f'<a href="#part-{n}">{heading}</a>')
    parts.append(section.replace("<section", f'<section id="part-{n}"', 1))
  rows = [
    f'<div><dt>{_text(name)}</dt><dd dir="auto">{_format(value)}</dd></div>'
    for name, value in facts.items()
  ]
  light, dark = (
    "; ".join(f"--{name}: {pair[i]}" for name, pair in _COLORS.items())
    for i in (0, 1)
  )
  page = _PAGE.format(
    title=re.sub("</?code>", "", _text(title)),
    heading=_text(title),
    light=light,
    dark=dark,
    style=_STYLE.strip(),
    links="\n".join(links),
    facts="\n".join(rows),
    sections="\n".join(parts),
  )
  with atomic_write(path) as file:
    file.write(page)


def _section(title: str, *parts: str) -> str:
  """Parts under a heading."""
  return "\n".join(
    ["<section>", f"<h2>{_text(title)}</h2>", *parts, "</section>"]
  )


def _beside(picture: str, *parts: str) -> str:
  """A picture with text beside it."""
  return "\n".join(
    ['<div class="beside">', picture, "<div>", *parts, "</div>", "</div>"]
  )


def _note(text: str) -> str:
  """A paragraph in a lighter color."""
  return f'<p class="note">{text}</p>'


# Sections


def warning(text: str) -> str:
  """Section with a warning about the results."""
  return _section("Warning", f'<p dir="auto">{_text(text)}</p>')


def curves(
  title: str,
  named: Mapping[str, Sequence[tuple[int, float]]],
  marked: tuple[int, str] | None = None,
) -> str:
  """Section with a curve for each name.

  Args:
    title: heading of the section.
    named: (step, value) pairs in order of steps, by name.
    marked: step to mark in every panel, and its label.
  """
  named = {name: points for name, points in named.items() if points}
  steps = [step for points in named.values() for step, _ in points]
  if not steps:
    return _section(title, _note("Nothing was recorded."))
  notes = []
  if marked:
    step, label = marked
    steps.append(step)
    notes.append(f"{_MARK} <bdi>{_text(label)}</bdi>, step {step:,}.")
  if any(len(points) > _MAX_POINTS for points in named.values()):
    notes.append(
      "Lines are means over neighboring steps; the shaded band spans their"
      " minimum and maximum."
    )
  panels = [
    _panel(name, points, (min(steps), max(steps)), marked)
    for name, points in named.items()
  ]
  return _section(
    title, '<div class="panels">', *panels, "</div>", *map(_note, notes)
  )


def _panel(name, points, step_range, marked) -> str:
  """One panel of `curves`, with the x-axis over `step_range`."""
  steps, lowest, mean, highest = _thinned(points)

  def draw(axes):
    axes.plot(steps, mean, marker="o" if len(steps) < 40 else "")
    if len(steps) < len(points):
      axes.fill_between(steps, lowest, highest, alpha=0.25, linewidth=0)
    first, last = step_range
    margin = 0.03 * (last - first) or 1
    axes.set(xlim=(first - margin, last + margin), xlabel="step")
    if marked:
      _mark(axes, marked[0])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:.10g}")
    axes.locator_params(axis="x", integer=True)

  summary = f"last {_format(float(points[-1][1]))}"
  num_nonfinite = sum(not math.isfinite(value) for _, value in points)
  if num_nonfinite:
    summary = f"{num_nonfinite:,} NaN or Inf, {summary}"
  caption = f'<b dir="auto">{_text(name)}</b> <span>{summary}</span>'
  return _picture((3.5, 2.1), draw, caption)


def _thinned(points: Sequence[tuple[int, float]]) -> np.ndarray:
  """Downsamples a long curve by grouping neighboring points.

  Returns:
    float64 [4, at most _MAX_POINTS]: mean step, and minimum, mean and maximum
    of the finite values of each group; NaN if it has none.
  """
  pairs = np.array(points, np.float64)
  group_size = math.ceil(len(pairs) / _MAX_POINTS)
  rows = []
  for group in np.array_split(pairs, math.ceil(len(pairs) / group_size)):
    values = group[np.isfinite(group[:, 1]), 1]
    if not len(values):
      values = np.array([math.nan])
    rows.append((group[:, 0].mean(), values.min(), values.mean(), values.max()))
  return np.array(rows).T


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
  """Section with a table: a row per mapping, a column per key."""
  return _section(title, _grid(rows))


def errors(rows: Sequence[Mapping[str, str | float]]) -> str:
  """Section with a table of the worst errors."""
  return table("Worst errors", rows)


def confusion_matrix(
  labels: Sequence[str], matrix: Sequence[Sequence[int]]
) -> str:
  """Section with a confusion matrix.

  Args:
    labels: names of the labels; for more than 20, the most frequent confusions
      are listed instead.
    matrix: counts [gold label, predicted label].
  """
  counts = np.asarray(matrix, np.int64)
  show = _matrix if len(labels) <= 20 else _confusions
  return _section("Confusion matrix", *show(labels, counts))


def _matrix(labels: Sequence[str], counts: np.ndarray) -> list[str]:
  """The whole matrix, with cells shaded by their share of the row."""
  correct, gold = counts.diagonal(), counts.sum(axis=1)
  heads = [f"<th>{_text(label)}</th>" for label in labels]
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
    _note("The bottom right cell is the accuracy."),
  ]


def _edge(part: int, whole: int) -> str:
  """A cell of recall or precision at the edge of the matrix."""
  return f'<td class="edge">{_percent(part, whole)}</td>'


def _confusions(labels: Sequence[str], counts: np.ndarray) -> list[str]:
  """The most frequent confusions, if there are too many labels for a matrix."""
  correct = counts.diagonal()
  gold, predicted = counts.sum(axis=1), counts.sum(axis=0)
  wrong = counts - np.diag(correct)
  order = np.argsort(-wrong, axis=None, kind="stable")[:20]
  worst = [
    {
      "gold": labels[i],
      "predicted": labels[j],
      "count": wrong[i, j],
      "share of gold label": wrong[i, j] / gold[i],
    }
    for i, j in zip(*np.unravel_index(order, wrong.shape))
    if wrong[i, j]
  ]
  single = [
    {
      "label": labels[i],
      "examples": gold[i],
      "recall": correct[i] / gold[i] if gold[i] else None,
      "precision": correct[i] / predicted[i] if predicted[i] else None,
    }
    for i in range(len(labels))
  ]
  return [
    f"<p>{_percent(correct.sum(), gold.sum())} of {gold.sum():,} predictions"
    " are correct. Most frequent confusions:</p>",
    _grid(worst),
    f"<details><summary>All {len(labels)} labels</summary>",
    _grid(single),
    "</details>",
  ]


def calibration(confidences: Sequence[float], correct: Sequence[bool]) -> str:
  """Section with a reliability diagram and the expected calibration error.

  Args:
    confidences: float [num_predictions] in [0, 1], probability of each
      prediction.
    correct: bool [num_predictions], True where the prediction is correct.
  """
  confidence = np.asarray(confidences, float)
  is_correct = np.asarray(correct, float)
  if not len(confidence):
    return _section("Calibration", _note("There are no predictions."))
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
    axes.plot([0, 1], [0, 1], color=_LIGHT["quiet"], linestyle=(0, (3, 2)))
    axes.plot(*points, "o", clip_on=False)
    for middle, count in zip(middles, counts):
      axes.text(middle, 1.04, f"{count:,}", ha="center")
    axes.set(xlabel="confidence", ylabel="accuracy")
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=np.arange(11) / 10)

  return _section(
    "Calibration",
    _beside(
      _picture((5, 3.2), draw),
      f"<p><b>Expected calibration error {error:.4f}.</b> The mean confidence"
      f" is {confidence.mean():.1%}, and {is_correct.mean():.1%} of"
      f" {len(confidence):,} predictions are correct.</p>",
      _note(
        "Each point is a bin: mean confidence, accuracy and, at the top, count."
        " Below the dashed line the model is overconfident. The error is the"
        " mean of |confidence − accuracy| over ten bins of equal width,"
        " weighted by their counts (Guo et al. 2017)."
      ),
    ),
  )


def lengths(lengths: model_inputs.Lengths) -> str:
  """Section with a histogram of example lengths before truncation.

  If the examples are divided into windows: lengths of the windows.
  """
  num_tokens, limit = lengths.num_tokens, lengths.limit
  unit = "windows" if lengths.num_windows else lengths.examples
  title = "Lengths of windows" if lengths.num_windows else "Lengths"
  if not len(num_tokens):
    return _section(title, _note("There are no examples."))
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
    colors = [_LIGHT["main" if x < limit else "other"] for x in starts]
    axes.bar(starts, counts, width * 0.9, align="edge", color=colors)
    axes.set(xlim=(0, None), xlabel="tokens", ylabel=unit)
    _mark(axes, limit + 0.5)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(integer=True)

  overflow = (
    f" The last bar includes all above {top:,}." if longest > top else ""
  )
  return _section(
    title,
    _beside(
      _picture((5, 2.4), draw),
      *(f"<p>{text}</p>" for text in _truncation(lengths)),
      _note(
        f"Median length {np.median(num_tokens):,.0f} tokens, maximum"
        f" {longest:,}. {_MARK} Limit {limit:,}.{overflow}"
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
      f" {num_divided:,} ({_percent(num_divided, count)}) did not fit into one"
      " window and were divided into overlapping ones."
    )
  num_truncated, num_cut = sum(map(bool, lengths.num_cut)), sum(lengths.num_cut)
  if not num_truncated:
    yield f"<b>None of {count:,} {name}</b> was truncated."
    return
  truncated = (
    f"<b>{num_truncated:,} of {count:,} {name}</b>"
    f" ({_percent(num_truncated, count)}) were truncated, which removed"
    f" {num_cut:,}"
  )
  if lengths.num_windows:
    yield f"{truncated} tokens."
  else:
    total = sum(lengths.num_tokens)
    share = _percent(num_cut, total)
    yield f"{truncated} of {total:,} tokens ({share})."


# Pictures


def _picture(
  size: tuple[float, float], draw: Callable[[Any], None], caption: str = ""
) -> str:
  """Draws with Matplotlib, in the colors and font of the page.

  Args:
    size: width and height in inches, before the browser scales it.
    draw: draws on the Matplotlib axes.
    caption: HTML above the picture.

  Returns:
    HTML of a `<figure>`. Element ids are hashes of the contents, so elements
    with the same id, in any picture of the page, are identical.
  """
  import matplotlib
  from matplotlib.figure import Figure

  settings = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.size": 8.5,
    "text.color": _LIGHT["quiet"],
    "xtick.labelcolor": _LIGHT["quiet"],
    "ytick.labelcolor": _LIGHT["quiet"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.labelcolor": _LIGHT["quiet"],
    "axes.edgecolor": _LIGHT["line"],
    "axes.prop_cycle": matplotlib.cycler(color=[_LIGHT["main"]]),
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _LIGHT["line"],
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
  }
  metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
  file = io.StringIO()
  with matplotlib.rc_context(settings):
    figure = Figure(size, layout="constrained")
    draw(figure.subplots())
    figure.savefig(file, format="svg", transparent=True, metadata=metadata)
  svg = "<svg " + file.getvalue().partition("<svg ")[2].strip()
  # Inline SVG needs no namespaces. Its styles would apply to the whole page.
  svg = re.sub("<style.*?</style>", "", svg, flags=re.DOTALL)
  svg = re.sub(r' (id="[\w.]+_\d+"|xmlns(:xlink)?="[^"]*")', "", svg)
  svg = re.sub(r"\s*\n\s*", " ", svg).replace("> <", "><")
  for name, color in _LIGHT.items():
    svg = svg.replace(color, f"var(--{name})")
  if caption:
    caption = f"<figcaption>{caption}</figcaption>\n"
  return f"<figure>\n{caption}{svg}\n</figure>"


_MARK = '<span class="mark">┆</span>'


def _mark(axes, x: float) -> None:
  """Draws a vertical line; `_MARK` is its symbol in the text."""
  axes.axvline(x, color=_LIGHT["other"], linestyle=(0, (3, 2)))


# Text and numbers


def _grid(rows: Sequence[Mapping[str, Any]]) -> str:
  """A table, without a heading."""
  if not rows:
    return _note("There are none.")
  heads, columns = [], []
  for name in dict.fromkeys(name for row in rows for name in row):
    values = [row.get(name) for row in rows]
    if all(value is None or _is_number(value) for value in values):
      kind, shown = "number", _format_column(values)
    else:
      kind = "long" if any(len(str(v)) > 24 for v in values) else "short"
      shown = [_format(value) for value in values]
    heads.append(f'<th class="{kind}">{_text(name)}</th>')
    cell = f'<td class="{kind}"><div dir="auto">{{}}</div></td>'
    columns.append(map(cell.format, shown))
  return "\n".join(
    [
      '<div class="wide"><table>',
      f"<tr>{''.join(heads)}</tr>",
      *(f"<tr>{''.join(cells)}</tr>" for cells in zip(*columns)),
      "</table></div>",
    ]
  )


def _format_column(values: Sequence[Any]) -> list[str]:
  """Formats a column of numbers, if possible with equally many decimals."""
  sizes = [abs(v) for v in values if _is_float(v) and v and math.isfinite(v)]
  largest, smallest = max(sizes, default=1), min(sizes, default=1)
  num_decimals = max(0, 4 - math.ceil(math.log10(largest)))
  if num_decimals > 6 or largest > 1e4 * smallest:
    return [_format(value) for value in values]
  return [
    f"{v:.{num_decimals}f}" if _is_float(v) else _format(v) for v in values
  ]


def _format(value: Any) -> str:
  """Formats a value as HTML, floats with four significant digits."""
  if value is None:
    return "–"
  if not _is_float(value):
    return _text(value)
  return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def _is_number(value: Any) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_float(value: Any) -> bool:
  return isinstance(value, (float, np.floating))


def _percent(part: int, whole: int) -> str:
  return f"{part / whole:.1%}" if whole else "–"


def _text(value: Any) -> str:
  """Text as HTML; invisible characters become escapes such as `\\u200b`."""
  return "".join(
    html.escape(char)
    if char.isprintable() or char == "\n"
    else f"<code>{char.encode('unicode_escape').decode()}</code>"
    for char in str(value)
  )
