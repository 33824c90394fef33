"""HTML of reports: the page, and its sections of tables, curves and text.

A page is one self-contained file: pictures are inline, nothing is downloaded,
and the same data always give the same bytes.
"""

from __future__ import annotations

import base64
import html
import io
import itertools
import numbers
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from bertlib.cli.errors import CONTROLS, printable
from bertlib.io.files import atomic_write

Points = Sequence[tuple[int, float]]  # (step, value) in order of steps

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
</body>
</html>
"""


class Html(str):
  """Text that is HTML already, which `escape` keeps."""


class Section(NamedTuple):
  """A part of the page under a heading."""

  title: str
  content: str  # HTML


def write_page(
  path: str,
  title: str,
  sections: Sequence[Section],
  subtitle: str = "",
  top: Sequence[str] = (),  # HTML above the sections
) -> None:
  """Writes a page with links to its sections."""
  links = [
    f'<a href="#part-{number}">{escape(section.title)}</a>'
    for number, section in enumerate(sections)
  ]
  parts = [
    f'<section id="part-{number}">\n<h2>{escape(section.title)}</h2>\n'
    f"{section.content}\n</section>"
    for number, section in enumerate(sections)
  ]
  head = [f"<h1>{escape(title)}</h1>"]
  if subtitle:
    head.append(note(subtitle))
  nav = "\n".join(["<nav>", *links, "</nav>"])
  style = pathlib.Path(__file__).with_name("report.css").read_text("utf-8")
  with atomic_write(path) as file:
    file.write(
      _PAGE.format(
        title=escape(title),
        style=style.strip(),
        body="\n".join([*head, *top, nav, *parts]),
      )
    )


# Sections


def warning(text: str) -> Section:
  """A warning about the results."""
  return Section("Warning", f'<p dir="auto">{escape(text)}</p>')


def table(
  title: str, rows: Sequence[Mapping[str, Any]], about: str = ""
) -> Section:
  """A table: a row per mapping, a column per key; and a note below."""
  return Section(title, grid(rows) + (note(about) if about else ""))


def panels(title: str, pictures: Sequence[str], about: str = "") -> Section:
  """Pictures in a grid, and a note below."""
  parts = ['<div class="panels">', *pictures, "</div>"]
  return Section(title, "\n".join(parts + [note(about)] * bool(about)))


def errors(rows: Sequence[Mapping[str, Any]], about: str = "") -> Section:
  """A table of the worst errors."""
  return table("Worst errors", rows, about)


def calibration(
  confidences: Sequence[float], correct: Sequence[bool]
) -> Section:
  """Reliability diagram and expected calibration error (Guo et al. 2017)."""
  confidence = np.asarray(confidences, float)
  is_correct = np.asarray(correct, float)
  if not len(confidence):
    return Section("Calibration", note("There are no predictions."))
  bins = np.digitize(confidence, np.arange(1, 10) / 10)
  counts, confidence_sums, correct_sums = (
    np.bincount(bins, weights, 10) for weights in (None, confidence, is_correct)
  )
  error = np.abs(confidence_sums - correct_sums).sum() / len(confidence)

  def draw(axes):
    filled = counts > 0
    accuracy = correct_sums[filled] / counts[filled]
    axes.bar(np.arange(0.05, 1, 0.1)[filled], accuracy, 0.092, alpha=0.3)
    axes.plot([0, 1], [0, 1], color=_QUIET, linestyle="--")
    axes.plot(
      confidence_sums[filled] / counts[filled], accuracy, "o", clip_on=False
    )
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))

  summary = (
    f"Expected calibration error {error:.4f}: the mean confidence is"
    f" {confidence.mean():.1%}, and {is_correct.mean():.1%} of"
    f" {len(confidence):,} predictions are correct."
  )
  about = (
    "Points are ten bins of predictions. Below the dashed line the model is"
    " overconfident. The error is the mean distance from the line, weighted by"
    " the number of predictions."
  )
  return Section(
    "Calibration", f"<p>{summary}</p>\n{picture(draw)}\n{note(about)}"
  )


# Pieces of a section


def note(text: str) -> str:
  """A paragraph in a lighter color."""
  return f'<p class="quiet">{escape(text)}</p>'


def facts(values: Mapping[str, Any]) -> str:
  """Values by name, in two columns where the page is wide."""
  rows = [
    f"<div><dt>{escape(name)}</dt>"
    f'<dd dir="auto">{format_value(value)}</dd></div>'
    for name, value in values.items()
  ]
  return "\n".join(["<dl>", *rows, "</dl>"])


def grid(rows: Sequence[Mapping[str, Any]]) -> str:
  """A table: a row per mapping, a column per key."""
  if not rows:
    return note("There are none.")
  heads, columns = [], []
  for name in dict.fromkeys(name for row in rows for name in row):
    values = [row.get(name) for row in rows]
    if all(isinstance(v, (numbers.Real, type(None))) for v in values):
      start, end = '<td class="number">', "</td>"
      heads.append(f'<th class="number">{escape(name)}</th>')
    else:
      start, end = '<td><div dir="auto">', "</div></td>"
      heads.append(f"<th>{escape(name)}</th>")
    columns.append([f"{start}{format_value(value)}{end}" for value in values])
  lines = [heads, *zip(*columns)]
  return "\n".join(
    [
      '<div class="wide"><table>',
      *(f"<tr>{''.join(cells)}</tr>" for cells in lines),
      "</table></div>",
    ]
  )


def marked_text(
  content: str, spans: Sequence[tuple[int, int, str]], margin: int = 160
) -> Html:
  """Text with marked spans, shortened where it is far from all of them."""
  # A span is its first character, the one after the last, and "gold" or
  # "predicted". Spans may overlap.
  ends = {index for start, end, _ in spans for index in (start, end)}
  parts = []
  for first, last in _excerpts(content, spans, margin):
    parts.append("" if first == 0 else "… ")
    cuts = sorted({first, last} | {i for i in ends if first < i < last})
    for start, end in zip(cuts, cuts[1:]):
      piece = escape(content[start:end])
      kinds = {kind for a, b, kind in spans if a <= start and end <= b}
      if kinds:
        piece = f'<mark class="{" ".join(sorted(kinds))}">{piece}</mark>'
      parts.append(piece)
    parts.append("" if last == len(content) else " …\n")
  return Html("".join(parts).rstrip("\n"))


def _excerpts(
  content: str, spans: Sequence[tuple[int, int, str]], margin: int
) -> list[tuple[int, int]]:
  """Segments of a text, of whole words, that have all spans."""
  found: list[tuple[int, int]] = []
  for start, end, _ in sorted(spans) or [(0, margin, "")]:
    first, last = max(0, start - margin), min(len(content), end + margin)
    while first > 0 and not content[first - 1].isspace() and first < start:
      first += 1
    while last < len(content) and not content[last].isspace() and last > end:
      last -= 1
    if found and first <= found[-1][1]:
      first, last = found[-1][0], max(last, found.pop()[1])
    found.append((first, last))
  return found


# Pictures

# Colors of lines and text, legible in the light and the dark theme.
_COLORS = (
  "#3b82c4",
  "#d4722a",
  "#3d9a50",
  "#c94f6d",
  "#8f6fd0",
  "#a5784b",
  "#2f9a9a",
  "#8a8f98",
)
_QUIET = "#7d8590"

_MAX_POINTS = 200  # drawn of a line


def curves(
  title: str, lines: Mapping[str, Points], marked_step: int | None = None
) -> str:
  """A picture of lines by name; `marked_step` has a vertical line."""
  colors = dict(zip(lines, itertools.cycle(_COLORS)))

  def draw(axes):
    for name, points in lines.items():
      marker = "o" if len(points) < 40 else ""
      axes.plot(*_thin_out(points), color=colors[name], marker=marker)
    if marked_step is not None:
      axes.axvline(marked_step, color=_QUIET, linestyle="--")
    axes.set(xlabel="step")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:.10g}")
    axes.locator_params(axis="x", integer=True)

  names = [f"<b>{escape(title)}</b>"]
  for name, points in lines.items():
    color = f'<span style="color: {colors[name]}">━</span> ' if name else ""
    last = format_value(float(points[-1][1]))
    names.append(f'<span dir="auto">{color}{escape(name)} last {last}</span>')
  return picture(draw, "\n".join(names))


def _thin_out(points: Points) -> np.ndarray:
  """Means over neighboring points: [2, at most `_MAX_POINTS`]."""
  pairs = np.array(points, np.float64)
  groups = np.array_split(pairs, min(len(pairs), _MAX_POINTS))
  with np.errstate(invalid="ignore"):  # NaN and Inf are gaps
    return np.array([group.mean(axis=0) for group in groups]).T


def picture(draw: Callable[[Any], None], caption: str = "") -> str:
  """A <figure> that `draw` draws on the axes of Matplotlib; HTML above it."""
  import matplotlib
  from matplotlib.figure import Figure

  settings = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.size": 8.5,
    "text.color": _QUIET,
    "xtick.labelcolor": _QUIET,
    "ytick.labelcolor": _QUIET,
    "axes.labelcolor": _QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.prop_cycle": matplotlib.cycler(color=_COLORS),
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.4,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
  }
  for side in ("left", "right", "top", "bottom"):
    settings[f"axes.spines.{side}"] = False
  # Nothing that differs between two runs.
  metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
  file = io.BytesIO()
  with matplotlib.rc_context(settings):
    figure = Figure((3.5, 2.1), layout="constrained")
    draw(figure.subplots())
    figure.savefig(file, format="svg", transparent=True, metadata=metadata)
  data = base64.b64encode(file.getvalue()).decode()
  return (
    f"<figure><figcaption>{caption}</figcaption>\n"
    f'<img alt="" src="data:image/svg+xml;base64,{data}"></figure>'
  )


# Text and numbers


def format_value(value: Any) -> str:
  """Formats a value as HTML, floats with four digits or so."""
  if value is None:
    return "–"
  if not isinstance(value, (float, np.floating)):
    return escape(value)
  size = abs(value)
  if size and not 1e-3 <= size < 1e7:
    return f"{value:.4g}"
  return f"{value:.4f}" if size < 10 else f"{value:.2f}"


def format_duration(seconds: float) -> str:
  """Hours, minutes and seconds, such as "1 h 02 min 03 s"."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours} h {minutes:02} min {seconds:02} s"
  return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def escape(value: Any) -> str:
  """Text as HTML; control characters become escapes such as `\\x00`."""
  if isinstance(value, Html):
    return value
  # Line breaks and tabs are the layout of a text.
  text = CONTROLS.sub(
    lambda match: match[0] if match[0] in "\n\t" else printable(match[0]),
    str(value),
  )
  return html.escape(text)
