"""Downloads published BERT checkpoints by name.

    python download_model.py --list
    python download_model.py bert-base-uncased > output/model.flags
    python run_classifier.py --flagfile=output/model.flags ...

The scripts do the same themselves with `--init_checkpoint=bert-base-uncased`.
`models.json` lists the models. Each gets a folder in the cache with its name,
`bert_config.json`, `vocab.txt` and `bert_model.ckpt.*`. A folder, `NAME.zip` or
`NAME.tar.gz` that is already in the cache is used instead of a download.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.settings.download import DownloadSettings

  app.parse_flags(DownloadSettings)


from bertlib.cli import app, option
from bertlib.cli.errors import InputError
from bertlib.exchange import published_models, zoo
from bertlib.settings.download import DownloadSettings


def define_flags() -> None:
  """Defines the flags."""
  option.define(DownloadSettings)


def main(argv: list[str]) -> None:
  """Lists the models, or downloads one and prints flags for the scripts."""
  settings = option.from_flags(DownloadSettings)
  if settings.list:
    print(_listing())
    return
  if len(argv) != 2:
    raise InputError("name one model, or give --list to see all")
  values = zoo.flags_for(argv[1], settings.cache_dir)
  print("\n".join(f"--{flag}={value}" for flag, value in values.items()))


def _listing() -> str:
  head = "name", "aliases", "language", "case", "layers", "width", "MB"
  rows = [[*head, "good for"]]
  for model in published_models.load_table().values():
    case = "uncased" if model.do_lower_case else "cased"
    size = round(model.size / 1e6) if model.size else "?"
    names = model.name, " ".join(model.aliases), model.language, case
    sizes = model.num_hidden_layers, model.hidden_size, size
    rows.append([*names, *map(str, sizes), model.good_for])
  widths = [max(map(len, column)) for column in zip(*rows)]
  lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
  return "\n".join(map(str.rstrip, lines))


if __name__ == "__main__":
  app.run(main)
