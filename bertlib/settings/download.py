"""Settings of download_model.py."""

from __future__ import annotations

import dataclasses

from bertlib.settings import option


@dataclasses.dataclass(frozen=True)
class DownloadSettings:
  """Flags of download_model.py."""

  list: bool = option.boolean(False, "Print the models that there are.")
  cache_dir: str | None = option.text(
    None,
    "Where models are kept. If not given, $BERT_CACHE_DIR, and without that"
    " ~/.cache/bert-estimator.",
  )
