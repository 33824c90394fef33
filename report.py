"""Compares runs: metrics, and paired tests on the same examples.

    python report.py output/a output/b --output_file=output/comparison.html

Takes the output folders of two or more runs of any training script, or their
`run.json`. A folder of `--seeds` stands for the run of each seed. Prints
tables, and writes one HTML file.
"""

from __future__ import annotations

import dataclasses
import os

from absl import logging

from bertlib.cli import app, option, terminal
from bertlib.cli.errors import InputError
from bertlib.io import files, output_folders
from bertlib.reporting import comparison

# Metrics in the tables of the terminal.
_MAX_METRICS = 6


@dataclasses.dataclass(frozen=True)
class ReportSettings(option.CommandSettings):
  """Flags of report.py."""

  TAKES_ARGUMENTS = True
  SECTION = "output"
  EXAMPLE = (
    "python report.py output/a output/b --output_file=output/comparison.html"
  )

  output_file: str = option.path(
    "comparison.html", "HTML file to write.", basic=True, is_output=True
  )
  overwrite: bool = option.boolean(
    False, "Replace --output_file if it exists.", basic=True
  )


def define_flags() -> None:
  """Defines the flags."""
  option.define(ReportSettings)


def main(argv: list[str]) -> None:
  """Compares the runs in the folders that the arguments name."""
  settings = option.from_flags(ReportSettings)
  path = settings.output_file
  if len(argv) < 2:
    raise InputError("name the output folders of two or more runs")
  output_folders.check_new("output_file", path, settings.overwrite)
  runs = comparison.find_runs(argv[1:])
  if len(runs) < 2:
    raise InputError(
      f"{argv[1]}: is a single run, which its report.html describes. Name"
      " another one to compare it with"
    )
  inputs = [
    os.path.join(run.folder, name) for run in runs for name in comparison.FILES
  ]
  files.check_outputs([path], inputs)
  metrics = comparison.metric_names(runs)[:_MAX_METRICS]
  terminal.print_table(comparison.run_rows(runs, metrics))
  differences = comparison.difference_rows(runs)
  shown = [d for d in differences if d["metric"] in (*metrics, comparison.TEST)]
  if shown:
    terminal.show(f"\nDifferences from {runs[0].folder}:")
    terminal.print_table(shown)
  for warning in comparison.warnings(runs):
    logging.warning("%s", warning)
  comparison.write_page(path, runs, differences)
  logging.info("Comparison of %d runs: %s", len(runs), path)


if __name__ == "__main__":
  app.parse_flags(ReportSettings)
  app.run(main)
