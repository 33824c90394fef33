"""Settings of squad_metrics.py."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bertlib.settings import option
from bertlib.settings.ranges import FINITE


@dataclasses.dataclass(frozen=True)
class SquadMetricsSettings:
  """Flags of squad_metrics.py."""

  FLAGS_MAY_FOLLOW_ARGUMENTS: ClassVar[bool] = True

  metric: str = option.choice(
    "auto",
    ["auto", "1.1", "2.0", "chinese"],
    "Which scores: those of SQuAD 1.1 or 2.0 (auto: 2.0 where the data has"
    " is_impossible), or by characters.",
  )
  out_file: str | None = option.text(
    None,
    "File for the scores, in place of standard output.",
    short_name="o",
    name="out-file",
  )
  na_prob_file: str | None = option.text(
    None,
    "2.0: JSON file with how sure it is that a question has no answer, such as"
    " null_odds.json; adds the search for the best threshold.",
    short_name="n",
    name="na-prob-file",
  )
  na_prob_thresh: float = option.number(
    1.0,
    "2.0: above this the answer is none, whatever is predicted.",
    FINITE,
    short_name="t",
    name="na-prob-thresh",
  )
