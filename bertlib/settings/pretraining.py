"""Settings of run_pretraining.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.settings import option
from bertlib.settings.common import (
  OptimizerSettings,
  RunSettings,
  TrainingSettings,
)
from bertlib.settings.ranges import AT_LEAST_1, COUNT, FRACTION


@dataclasses.dataclass(frozen=True)
class PretrainingSettings(TrainingSettings):
  """Flags of run_pretraining.py."""

  REQUIRED: ClassVar[Sequence[str]] = ("bert_config_file", "output_dir")
  EXAMPLE: ClassVar[str] = (
    "python run_pretraining.py --input_file=data.tfrecord"
    " --bert_config_file=bert_config.json --do_train"
    " --output_dir=output/pretraining"
  )

  optimizer: OptimizerSettings = option.group(
    OptimizerSettings, omit=["warmup_proportion"]
  )
  run: RunSettings = option.group(
    RunSettings,
    omit=["num_train_epochs", "seeds", "group_by_length"],
    do_eval=option.boolean(False, "Whether to score."),
    do_predict=option.boolean(
      False,
      "Whether to fill the [MASK]s of --predict_file, and to score the lines"
      " without any by pseudo-perplexity.",
    ),
    predict_batch_size=option.integer(
      32, "Masks a step of filling.", AT_LEAST_1
    ),
    keep_checkpoint_max=5,
  )
  input_file: str | None = option.text(
    None,
    "TFRecord files of create_pretraining_data.py to train on, names or globs"
    " with commas between.",
  )
  eval_input_file: Sequence[str] | None = option.text_list(
    None,
    "Likewise, held out ones to score on, each record once. Without it"
    " --input_file is scored on, from its start again where it has too few"
    " records for --max_eval_steps.",
  )
  max_predictions_per_seq: int = option.integer(
    20,
    "Most masks of a sequence, as it was when the data were made.",
    AT_LEAST_1,
  )
  shard_by: str = option.choice(
    "record",
    ["record", "file"],
    "What each of several processes reads to train: all files, and of each"
    " batch its rows, which gives the same results however many processes"
    " there are; or files of its own, which is less to read.",
  )
  phases: Sequence[str] | None = option.text_list(
    None,
    "Files of flags, names with commas between: trains once by each of them,"
    " one after the other and each from the weights of the one before, in"
    " folders phase_1, phase_2, ... of --output_dir.",
  )
  num_train_steps: int = option.integer(100000, "Steps of training.", COUNT)
  num_warmup_steps: int = option.integer(
    10000, "Steps in which the learning rate rises.", COUNT
  )
  max_eval_steps: int = option.integer(
    100,
    "Steps of evaluation. If given, the records repeat when they are too few;"
    " if not, there is one pass of at most 100 steps.",
    AT_LEAST_1,
  )
  remask: bool = option.boolean(
    False,
    "Whether training draws new masks each time it meets a record, so that one"
    " copy of the data serves many epochs; needs --vocab_file.",
  )
  masked_lm_prob: float = option.number(
    0.15, "With --remask: share of the tokens that is masked.", FRACTION
  )
  do_whole_word_mask: bool = option.boolean(
    False, "With --remask: whether the pieces of a word are masked together."
  )
  predict_file: str | None = option.text(
    None,
    'Texts, one a line, with " ||| " before the second of a pair; - for'
    " standard input.",
  )
  top_k: int = option.integer(
    5, "Fillings that are told of each [MASK].", AT_LEAST_1
  )
  given: frozenset[str] = frozenset()  # flags on the command line
