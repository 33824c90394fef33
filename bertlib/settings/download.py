"""Settings of download_model.py."""

from __future__ import annotations

import dataclasses

from bertlib.cli import option


@dataclasses.dataclass(frozen=True)
class DownloadSettings(option.CommandSettings):
  """download_model.py has no flags, and takes the name of a model."""

  TAKES_ARGUMENTS = True
  SECTION = "model"
  EXAMPLE = "python download_model.py bert-base-uncased"
