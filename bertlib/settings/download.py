"""Settings of download_model.py."""

from __future__ import annotations

import dataclasses

from bertlib.cli import option


@dataclasses.dataclass(frozen=True)
class DownloadSettings(option.CommandSettings):
  """Flags of download_model.py."""

  TAKES_ARGUMENTS = True
  SECTION = "model"
  EXAMPLE = "python download_model.py bert-base-uncased"

  list: bool = option.boolean(
    False, "Print a table of the published models and exit.", basic=True
  )
  cache_dir: str | None = option.path(
    None,
    "Folder where models are kept. If not given, $BERT_CACHE_DIR, or"
    " ~/.cache/bert-estimator if that is not set.",
    basic=True,
    is_output=True,
  )
