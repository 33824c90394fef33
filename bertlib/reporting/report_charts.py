"""Pictures of a report, drawn with Matplotlib in the colors of the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from bertlib.reporting import report_page

LIGHT = {name: light for name, (light, _) in report_page.COLORS.items()}

# Width and height of a panel. Its text is 12 px high on a screen of 390 px, and
# 10 px in pictures of 4.2 inches; the browser scales it with the picture.
PANEL_SIZE = 3.5, 2.1

# Maximum number of points drawn per curve.
MAX_POINTS = 200


class Line(NamedTuple):
  """A curve of a panel, of (step, value) pairs in order of steps."""

  points: Sequence[tuple[int, float]]
  color: str = "main"  # a key of `LIGHT`
  style: str = "-"  # of Matplotlib


def panel(
  lines: Sequence[Line],
  step_range: tuple[int, int],
  marked_step: int | None = None,
  caption: str = "",
  size: tuple[float, float] = PANEL_SIZE,
) -> str:
  """A panel with curves, the most important one last."""

  def draw(axes):
    for line in lines:
      steps, lowest, mean, highest = thin_out(line.points)
      color = LIGHT[line.color]
      marker = "o" if len(steps) < 40 else ""
      axes.plot(steps, mean, marker=marker, color=color, linestyle=line.style)
      if len(steps) < len(line.points):
        axes.fill_between(
          steps, lowest, highest, alpha=0.25, linewidth=0, color=color
        )
    first, last = step_range
    margin = 0.03 * (last - first) or 1
    axes.set(xlim=(first - margin, last + margin), xlabel="step")
    if marked_step is not None:
      mark(axes, marked_step)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:.10g}")
    axes.locator_params(axis="x", integer=True)

  return picture(size, draw, caption)


def thin_out(points: Sequence[tuple[int, float]]) -> np.ndarray:
  """Downsamples a curve: mean step, minimum, mean and maximum, [4, points]."""
  pairs = np.array(points, np.float64)
  group_size = math.ceil(len(pairs) / MAX_POINTS)
  rows = []
  for group in np.array_split(pairs, math.ceil(len(pairs) / group_size)):
    # A group without finite values is a gap: NaN.
    values = group[np.isfinite(group[:, 1]), 1]
    if not len(values):
      values = np.array([math.nan])
    rows.append((group[:, 0].mean(), values.min(), values.mean(), values.max()))
  return np.array(rows).T


def dots(
  values: Sequence[float],
  labels: Sequence[str],
  mean: float,
  interval: tuple[float, float],
  name: str,
) -> str:
  """A row per value with a dot, over the mean and its interval."""

  def draw(axes):
    rows = range(len(values))
    # NaN is no interval.
    if all(map(math.isfinite, interval)):
      axes.axvspan(*interval, color=LIGHT["main"], alpha=0.15, linewidth=0)
    axes.axvline(mean, color=LIGHT["quiet"], linestyle=(0, (3, 2)))
    axes.plot(values, rows, "o", markersize=5)
    axes.set(xlabel=name, yticks=rows, yticklabels=labels)
    axes.set(ylim=(len(values) - 0.5, -0.5))
    axes.xaxis.set_major_formatter("{x:.10g}")
    axes.locator_params(axis="x", nbins=6)

  return picture((4.2, 0.7 + 0.24 * len(values)), draw)


def mark(axes, x: float) -> None:
  """Draws a vertical line; `MARK` is its symbol in the text."""
  axes.axvline(x, color=LIGHT["other"], linestyle=(0, (3, 2)))


MARK = '<span class="mark">┆</span>'


def picture(
  size: tuple[float, float], draw: Callable[[Any], None], caption: str = ""
) -> str:
  """Draws with Matplotlib, in the colors and font of the page: a <figure>."""
  import matplotlib
  from matplotlib.figure import Figure

  settings = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.size": 8.5,
    "text.color": LIGHT["quiet"],
    "xtick.labelcolor": LIGHT["quiet"],
    "ytick.labelcolor": LIGHT["quiet"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.labelcolor": LIGHT["quiet"],
    "axes.edgecolor": LIGHT["line"],
    "axes.prop_cycle": matplotlib.cycler(color=[LIGHT["main"]]),
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": LIGHT["line"],
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
  # Ids that are left are hashes of contents: equal ones, in any picture of the
  # page, are of equal elements.
  svg = re.sub(r' (id="[\w.]+_\d+"|xmlns(:xlink)?="[^"]*")', "", svg)
  svg = re.sub(r"\s*\n\s*", " ", svg).replace("> <", "><")
  for name, color in LIGHT.items():
    svg = svg.replace(color, f"var(--{name})")
  if caption:
    caption = f"<figcaption>{caption}</figcaption>\n"
  return f"<figure>\n{caption}{svg}\n</figure>"
