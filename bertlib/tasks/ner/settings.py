"""Settings of run_ner.py."""

from __future__ import annotations

import dataclasses

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.settings.training import RunSettings, TrainingSettings


@dataclasses.dataclass(frozen=True)
class NerSettings(TrainingSettings):
  """Flags of run_ner.py."""

  SCRIPT = "run_ner"
  WRITES = ("*.tf_record", "predictions*", "test_predictions*")
  EXAMPLE = (
    "python run_ner.py --train_file=train.txt --do_train"
    " --init_checkpoint=bert-base-cased --do_lower_case=false"
    " --output_dir=output/ner"
  )

  flags: RunSettings = option.group(
    RunSettings,
    do_predict={"help": "Tag the sentences of --predict_file."},
    train_batch_size={"help": "Windows per training step, over all devices."},
    eval_batch_size={"help": "Windows per evaluation step."},
    predict_batch_size={"help": "Windows per prediction step."},
  )
  train_file: str | None = option.path(
    None,
    "Tagged sentences to train on: columns, or JSON Lines (.jsonl).",
    basic=True,
    needs="do_train",
  )
  dev_file: str | None = option.path(
    None,
    "Tagged sentences to evaluate on: columns, or JSON Lines (.jsonl).",
    basic=True,
    needs="do_eval or eval_steps",
  )
  predict_file: str | None = option.path(
    None,
    "Sentences to tag: one word per line, or JSON Lines (.jsonl), for running"
    " text too. Tags in the file are ignored. Predictions for NAME.txt go to"
    " NAME_predictions.conll and .jsonl.",
    basic=True,
    needs="do_predict",
  )
  word_column: int = option.integer(
    1,
    "Column of the word, counted from 1, or from -1 backwards.",
    option.COLUMN,
    basic=True,
    kept=True,
  )
  tag_column: int = option.integer(
    -1,
    "Column of the tag, counted from 1, or from -1 backwards.",
    option.COLUMN,
    basic=True,
    kept=True,
  )
  delimiter: str | None = option.text(
    None,
    "Separator between columns; \\t for a tab. If not given, tabs, or spaces"
    " in lines without a tab.",
    kept=True,
  )
  scheme: str = option.choice(
    "data",
    ["data", "BIO", "BIOES"],
    "Tagging scheme to train: that of the training data, or convert its tags"
    " to BIO or BIOES.",
    needs="do_train",
  )

  def check(self) -> None:
    """Refuses an action without its file, and a delimiter that is none."""
    super().check()
    self.need_sets()
    self.need("predict_file", "do_predict", self.flags.do_predict)
    self.unescaped_delimiter()

  def unescaped_delimiter(self) -> str | None:
    """The --delimiter, with \\t and other escape sequences replaced."""
    text = self.delimiter
    if not text:
      return text
    try:
      # The codec reads bytes as Latin-1; other characters become escapes.
      return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
      raise InputError(
        f"--delimiter={text}: {error.reason}. Give \\t for a tab, \\x02 for"
        " that character, \\\\ for a backslash"
      ) from error
