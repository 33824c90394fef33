"""Settings of squad_metrics.py."""

from __future__ import annotations

import dataclasses

from bertlib.cli import option
from bertlib.cli.option import FINITE


@dataclasses.dataclass(frozen=True)
class SquadMetricsSettings(option.CommandSettings):
  """Flags of squad_metrics.py."""

  TAKES_ARGUMENTS = True
  SECTION = "evaluation"
  EXAMPLE = (
    "python squad_metrics.py dev-v2.0.json predictions.json"
    " --na-prob-file=null_odds.json"
  )

  metric: str = option.choice(
    "auto",
    ["auto", "1.1", "2.0", "chinese"],
    "Metrics to compute: those of SQuAD 1.1 or 2.0, or chinese for comparison"
    " by characters. auto is 2.0 if the data has is_impossible, or if only some"
    " questions have answers, otherwise 1.1.",
    basic=True,
  )
  out_file: str | None = option.path(
    None,
    "File to write the metrics to instead of standard output.",
    short_name="o",
    name="out-file",
    section="output",
    basic=True,
    is_output=True,
  )
  na_prob_file: str | None = option.path(
    None,
    "SQuAD 2.0: JSON file with the probability or score of no answer per"
    " question, such as null_odds.json. Adds the best threshold to the output.",
    short_name="n",
    name="na-prob-file",
    basic=True,
    needs="not metric=1.1, not metric=chinese",
  )
  na_prob_thresh: float = option.number(
    1.0,
    "SQuAD 2.0: questions whose value in --na-prob-file is above this count as"
    " answered by no answer, whatever is predicted.",
    FINITE,
    short_name="t",
    name="na-prob-thresh",
    basic=True,
    needs="na-prob-file",
  )
