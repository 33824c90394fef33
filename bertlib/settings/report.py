"""Settings of report.py."""

from __future__ import annotations

import dataclasses

from bertlib.cli import option


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
