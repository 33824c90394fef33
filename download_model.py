"""Downloads published BERT checkpoints by name.

    python download_model.py bert-base-uncased > output/model.flags
    python run_classifier.py --flagfile=output/model.flags ...

The scripts do the same themselves with `--init_checkpoint=bert-base-uncased`.
`models.json` has the models. Each gets a folder with its name in the cache,
`$BERT_CACHE_DIR` or `~/.cache/bert-estimator`, with `bert_config.json`,
`vocab.txt` and `bert_model.ckpt.*`. A folder, `NAME.zip` or `NAME.tar.gz` that
is already in the cache is used instead of a download.
"""

from __future__ import annotations

import dataclasses

from bertlib.cli import app, option
from bertlib.cli.errors import InputError
from bertlib.exchange import zoo


@dataclasses.dataclass(frozen=True)
class DownloadSettings(option.CommandSettings):
  """The command has no flags, and takes the name of a model."""

  TAKES_ARGUMENTS = True
  SECTION = "model"
  EXAMPLE = "python download_model.py bert-base-uncased"


def define_flags() -> None:
  """Defines the flags."""
  option.define(DownloadSettings)


def main(argv: list[str]) -> None:
  """Downloads a model and prints flags for the scripts."""
  if len(argv) != 2:
    raise InputError("name one model; docs/how_to/models.md lists all")
  values = zoo.flags_for(argv[1])
  print("\n".join(f"--{flag}={value}" for flag, value in values.items()))


if __name__ == "__main__":
  app.parse_flags(DownloadSettings)
  app.run(main)
