"""Writes the HTML page of a comparison of runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertlib.reporting import (
  comparison,
  html_report,
  report_charts,
  report_page,
)
from bertlib.reporting.recorded_runs import RecordedRun

# Colors of the runs, legible in the light and the dark theme.
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
_LINES = ("solid", "dashed", "dotted")

Points = Sequence[tuple[int, float]]


def write_page(path: str, runs: Sequence[RecordedRun]) -> None:
  """Writes the HTML page; the first run is the one to compare with."""
  found = comparison.warnings(runs)
  sections = [html_report.warning(" ".join(found))] if found else []
  sections.append(_runs_section(runs))
  seeds = comparison.seed_rows(runs)
  if seeds:
    note = "Mean ± sample standard deviation over runs that differ in --seed."
    sections.append(_table("Several seeds", seeds, note))
  differences = comparison.differences(runs)
  if differences:
    sections.append(
      _table(
        f"Differences from {runs[0].name}",
        comparison.difference_rows(differences),
        comparison.explain_differences(differences),
      )
    )
  sections.append(_curves_section(runs))
  for title, rows in (
    ("Flags that differ", comparison.flag_rows(runs)),
    ("Inputs and versions that differ", comparison.input_rows(runs)),
  ):
    sections.append(_table(title, rows))
  report_page.write(
    path, f"Comparison of {len(runs)} runs", _facts(runs), sections
  )


def _facts(runs: Sequence[RecordedRun]) -> dict[str, Any]:
  """Best run and dev data, for the top of the page."""
  facts: dict[str, Any] = {}
  metric = next((run.primary_metric for run in runs if run.metrics), None)
  best = comparison.best_runs(runs).get(metric, ())
  for run in runs:
    if run.name in best:
      facts[f"best {metric}"] = f"{run.metrics[metric]:.4f} ({run.name})"
      break
  hashes = {run.dev_data for run in runs}
  if None in hashes:
    facts["dev data"] = "not known of all runs"
  else:
    facts["dev data"] = "differ" if len(hashes) > 1 else "the same"
  return facts


def _runs_section(runs: Sequence[RecordedRun]) -> str:
  """Table of all runs, with the best values in bold."""
  rows = comparison.summary(runs)
  best = comparison.best_runs(runs)
  is_best = iter(
    row["run"] in best.get(column, ()) for row in rows for column in row
  )
  section = _table("Runs", rows, "Best values are in bold." if best else "")
  return re.sub(
    "<td",
    lambda cell: cell[0] + ' style="font-weight: 700"' * next(is_best),
    section,
  )


def _table(
  title: str, rows: Sequence[Mapping[str, Any]], note: str = ""
) -> str:
  """Section with a table, whose rows are cards on a phone, and a note."""
  notes = [report_page.note(report_page.escape(note))] if note else []
  return report_page.section(title, report_page.grid(rows, cards=True), *notes)


# Curves


def _curves_section(runs: Sequence[RecordedRun]) -> str:
  """Panels with the curves of all runs, and their legend."""
  styles = {
    run.name: (
      _COLORS[index % len(_COLORS)],
      _LINES[index // len(_COLORS) % len(_LINES)],
    )
    for index, run in enumerate(runs)
  }
  panels = [
    _panel(title, lines, styles)
    for title, lines in _panels(runs).items()
    if any(len(points) > 1 for points in lines.values())
  ]
  if not panels:
    return report_page.section(
      "Curves", report_page.note("Nothing was recorded.")
    )
  return report_page.section(
    "Curves",
    _legend(styles),
    '<div class="panels" style="grid-template-columns:'
    ' repeat(auto-fill, minmax(min(24rem, 100%), 1fr))">',
    *panels,
    "</div>",
  )


def _legend(styles: Mapping[str, tuple[str, str]]) -> str:
  """Names of the runs, each beside a piece of its line."""
  entries = [
    '<span style="margin-right: 1.4rem; white-space: nowrap"><span'
    ' style="display: inline-block; width: 1.6em; margin-right: .5em;'
    f' vertical-align: middle; border-top: 3px {line} {color}"></span>'
    f"<bdi>{report_page.escape(name)}</bdi></span>"
    for name, (color, line) in styles.items()
  ]
  return "\n".join(["<p>", *entries, "</p>"])


def _panels(runs: Sequence[RecordedRun]) -> dict[str, dict[str, Points]]:
  """Curves by title of the panel and name of the run."""
  panels: dict[str, dict[str, Points]] = {"training loss": {}, "dev loss": {}}
  for run in runs:
    scalars = html_report.read_scalars(run.folder)
    panels["training loss"][run.name] = scalars.get("loss", [])
    for metric in dict.fromkeys(["loss", run.primary_metric]):
      points = [
        (row["step"], row[metric]) for row in run.dev_scores if metric in row
      ]
      panels.setdefault(f"dev {metric}", {})[run.name] = points
  return panels


def _panel(
  title: str,
  lines: Mapping[str, Points],
  styles: Mapping[str, tuple[str, str]],
) -> str:
  """One panel with the line of each run that has points."""

  def draw(axes):
    for name, points in lines.items():
      if points:
        steps, _, mean, _ = report_charts.thin_out(points)
        color, line = styles[name]
        marker = "o" if len(steps) < 40 else ""
        axes.plot(steps, mean, color=color, linestyle=line, marker=marker)
    axes.set(xlabel="step")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:.10g}")
    axes.locator_params(axis="x", integer=True)

  caption = f"<b>{report_page.escape(title)}</b>"
  return report_charts.picture(report_charts.PANEL_SIZE, draw, caption)
