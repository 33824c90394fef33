"""HTML of reports: a page with sections of tables and curves.

A page is one self-contained file: pictures are inline, nothing is downloaded,
and the same data always give the same bytes.
"""

from __future__ import annotations

import base64
import html
import io
import numbers
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.errors import CONTROLS, printable
from bertlib.io.files import atomic_write

Points = Sequence[tuple[int, float]]  # (step, value) in order of steps

# Worst errors that a report shows.
NUM_ERRORS = 30

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
<h1>{title}</h1>
{top}
{parts}
</body>
</html>
"""


class Section(NamedTuple):
  """A part of the page under a heading."""

  title: str
  content: str  # HTML


def write_page(
  path: str,
  title: str,
  sections: Sequence[Section],
  top: str = "",  # HTML above the sections
) -> None:
  """Writes a page."""
  style = pathlib.Path(__file__).with_name("report.css").read_text("utf-8")
  parts = [
    f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"
    for title, content in sections
  ]
  page = _PAGE.format(
    title=escape(title),
    style=style.strip(),
    top=top,
    parts="\n".join(parts),
  )
  with atomic_write(path) as file:
    file.write(page)


# Pieces of a page


def warning(text: str) -> Section:
  """A warning about the results."""
  return Section("Warning", f'<p dir="auto">{escape(text)}</p>')


def note(text: str) -> str:
  """A paragraph in a lighter color; "" for no text."""
  return f'<p class="quiet">{escape(text)}</p>' if text else ""


def table(
  title: str, rows: Sequence[Mapping[str, Any]], about: str = ""
) -> Section:
  """A table: a row per mapping, a column per key; and a note below."""
  if not rows:
    return Section(title, note("There are none.") + note(about))
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
  return Section(title, grid([heads, *zip(*columns)]) + note(about))


def grid(rows: Sequence[Sequence[str]], kind: str = "") -> str:
  """The HTML of a table of this class, from that of its cells."""
  lines = [f"<tr>{''.join(cells)}</tr>" for cells in rows]
  return "\n".join(
    [f'<div class="wide"><table class="{kind}">', *lines, "</table></div>"]
  )


# Pictures

# Colors of one or two lines, and of text, legible in the light and the dark
# theme.
_COLORS, _QUIET = ("#3b82c4", "#d4722a"), "#7d8590"

_MAX_POINTS = 200  # drawn of a line

# Settings of Matplotlib.
_STYLE = {
  "svg.fonttype": "none",
  "svg.hashsalt": "report",
  "font.size": 8.5,
  "axes.labelcolor": _QUIET,
  "axes.grid": True,
  "axes.grid.axis": "y",
  "grid.alpha": 0.4,
  "lines.linewidth": 1.4,
  "lines.markersize": 3.5,
  **{f"{axis}tick.labelcolor": _QUIET for axis in "xy"},
  **{f"{axis}tick.major.size": 0 for axis in "xy"},
}


def curves(
  title: str, lines: Mapping[str, Points], marked_step: int | None = None
) -> str:
  """A <figure> of lines by name; `marked_step` has a vertical line."""
  captions = [f"<b>{escape(title)}</b>"]
  for color, (name, points) in zip(_COLORS, lines.items()):
    mark = f'<span style="color: {color}">━</span> ' if name else ""
    last = format_value(float(points[-1][1]))
    captions.append(f'<span dir="auto">{mark}{escape(name)} last {last}</span>')
  caption = "\n".join(captions)
  data = base64.b64encode(_draw(lines, marked_step)).decode()
  return (
    f"<figure><figcaption>{caption}</figcaption>\n"
    f'<img alt="" src="data:image/svg+xml;base64,{data}"></figure>'
  )


def _draw(lines: Mapping[str, Points], marked_step: int | None) -> bytes:
  """Draws `curves` as SVG."""
  import matplotlib
  from matplotlib.figure import Figure

  file = io.BytesIO()
  with matplotlib.rc_context(_STYLE):
    figure = Figure((3.5, 2.1), layout="constrained")
    axes = figure.subplots()
    for color, points in zip(_COLORS, lines.values()):
      marker = "o" if len(points) < 40 else ""
      axes.plot(*_thin_out(points), color=color, marker=marker)
    if marked_step is not None:
      axes.axvline(marked_step, color=_QUIET, linestyle="--")
    axes.set(xlabel="step", frame_on=False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:.10g}")
    axes.locator_params(axis="x", integer=True)
    # Nothing that differs between two runs.
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=metadata)
  return file.getvalue()


def _thin_out(points: Points) -> np.ndarray:
  """Means over neighboring points: [2, at most `_MAX_POINTS`]."""
  pairs = np.array(points, np.float64)
  groups = np.array_split(pairs, min(len(pairs), _MAX_POINTS))
  with np.errstate(invalid="ignore"):  # NaN and Inf are gaps
    return np.array([group.mean(axis=0) for group in groups]).T


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


def escape(value: Any) -> str:
  """Text as HTML; control characters become escapes such as `\\x00`."""
  # Line breaks and tabs are the layout of a text.
  text = CONTROLS.sub(
    lambda match: match[0] if match[0] in "\n\t" else printable(match[0]),
    str(value),
  )
  return html.escape(text)
