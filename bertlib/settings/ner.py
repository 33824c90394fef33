"""Settings of run_ner.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.settings import option
from bertlib.settings.common import RunSettings, TrainingSettings
from bertlib.settings.ranges import AT_LEAST_1, COLUMN


@dataclasses.dataclass(frozen=True)
class NerSettings(TrainingSettings):
  """Flags of run_ner.py."""

  REQUIRED: ClassVar[Sequence[str]] = (
    "vocab_file",
    "bert_config_file",
    "output_dir",
  )
  EXAMPLE: ClassVar[str] = (
    "python run_ner.py --train_file=train.txt --do_train"
    " --init_checkpoint=bert-base-cased --do_lower_case=false"
    " --output_dir=output/ner"
  )

  run: RunSettings = option.group(
    RunSettings,
    do_eval=option.boolean(False, "Whether to score on --dev_file."),
    do_predict=option.boolean(False, "Whether to tag --predict_file."),
    train_batch_size=option.integer(
      32, "Windows a step of training.", AT_LEAST_1
    ),
    eval_batch_size=option.integer(8, "Windows a step of scoring.", AT_LEAST_1),
    predict_batch_size=option.integer(
      8, "Windows a step of tagging.", AT_LEAST_1
    ),
  )
  train_file: str | None = option.text(None, "Tagged sentences to learn from.")
  dev_file: str | None = option.text(None, "Tagged sentences to score on.")
  predict_file: str | None = option.text(
    None,
    "Sentences to tag; tags in it are ignored. The predictions for NAME.txt go"
    " to NAME_predictions.conll and .jsonl.",
  )
  word_column: int = option.integer(
    1, "Column of the word, from 1, or from -1 backwards.", COLUMN
  )
  tag_column: int = option.integer(-1, "Column of the tag, likewise.", COLUMN)
  delimiter: str | None = option.text(
    None,
    "Between columns, \\t for a tab; if not given, tabs or, in lines without,"
    " spaces.",
  )
  item_delimiter: str | None = option.text(
    None,
    "For files with a sentence a line, its words in one column and its tags in"
    " another: what is between words, \\x02 for that character.",
  )
  scheme: str = option.choice(
    "data",
    ["data", "BIO", "BIOES"],
    "Tags to learn: those of the training data, or others for the same"
    " entities.",
  )
