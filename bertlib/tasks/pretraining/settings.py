"""Settings of run_pretraining.py and create_pretraining_data.py."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.io import files
from bertlib.settings.command import RecordedSettings
from bertlib.settings.common import ReceiptSettings
from bertlib.settings.training import (
  OptimizerSettings,
  RunSettings,
  TrainingSettings,
  nothing_to_train,
)
from bertlib.tasks.pretraining.objectives import MLM_NSP, OBJECTIVES, Objective
from bertlib.tasks.pretraining.recipe import (
  Recipe,
  check_masking,
  mask_split_flag,
  max_sequences_flag,
)

# Making records


@dataclasses.dataclass(frozen=True)
class PretrainingDataSettings(RecordedSettings):
  """Flags of create_pretraining_data.py."""

  REQUIRED = ("input_file", "output_file", "vocab_file")
  EXAMPLE = (
    "python create_pretraining_data.py --input_file=text.txt"
    " --vocab_file=vocab.txt --output_file=data.tfrecord"
  )
  SECTION = "data"

  input_file: str | None = option.path(
    None,
    "Text files, plain or .gz: names or glob patterns, separated by commas. One"
    " sentence per line, a blank line between documents.",
    basic=True,
  )
  output_file: str | None = option.path(
    None,
    "TFRecord files to write, separated by commas.",
    section="output",
    basic=True,
    is_output=True,
  )
  num_shards: int = option.integer(
    0,
    "Number of files to split a single --output_file into, named"
    " NAME-00000-of-00010 and so on. 0 writes --output_file itself.",
    option.SHARDS,
    section="output",
    basic=True,
  )
  recipe: Recipe = option.group(Recipe)
  num_workers: int = option.integer(
    0,
    "Number of processes that work on blocks of the text, for a corpus of any"
    " size; the result does not depend on it. 0 is one process that holds all"
    " text in memory and writes the records of google-research/bert.",
    option.PARALLEL,
    section="devices",
    basic=True,
  )
  receipt: ReceiptSettings = option.group(ReceiptSettings)
  given: frozenset[str] = frozenset()  # flags on the command line

  @property
  def output(self) -> str:
    """The first name of --output_file."""
    return "".join(files.split_names(self.output_file)[:1])

  def check(self) -> None:
    """Refuses sequences without room, and flags that need another."""
    length = self.recipe.max_seq_length
    check_masking(self.recipe, length, self.given)
    if self.recipe.segments == "pairs" and length < 5:
      raise InputError(
        f"--max_seq_length={length}: too short for a pair of"
        " segments with [CLS] and two [SEP]. Give at least 5"
      )
    if vocabulary.is_subword(self.recipe.vocab_file or ""):
      vocabulary.check_own_rules(self.recipe.vocab_file, self.given)
    names = files.split_names(self.output_file)
    if not all(names or [""]):
      raise InputError("--output_file: names no file, or an empty name")
    if self.num_shards and len(names) > 1:
      raise InputError("--num_shards goes with one --output_file")
    if len(set(map(os.path.normpath, names))) < len(names):
      raise InputError("--output_file: names a file twice")


@dataclasses.dataclass(frozen=True)
class BeamDataSettings(PretrainingDataSettings):
  """Flags of create_pretraining_data_beam.py."""

  PASSES_ON_ARGUMENTS = True
  EXAMPLE = (
    "python create_pretraining_data_beam.py --input_file=text.txt"
    " --vocab_file=vocab.txt --output_file=data.tfrecord --num_shards=500"
    " -- --runner=FlinkRunner"
  )


# Training


@dataclasses.dataclass(frozen=True)
class PretrainingSettings(TrainingSettings):
  """Flags of run_pretraining.py."""

  REQUIRED = ("bert_config_file", "output_dir")
  KEPT_IN_TRAINING = (*TrainingSettings.KEPT_IN_TRAINING, "objective")
  SCRIPT = "run_pretraining"
  WRITES = ("predictions*",)
  EXAMPLE = (
    "python run_pretraining.py --input_file=data.tfrecord"
    " --bert_config_file=bert_config.json --do_train"
    " --output_dir=output/pretraining"
  )

  optimizer: OptimizerSettings = option.group(
    OptimizerSettings,
    warmup_proportion={
      "help": "Fraction of the budget over which the learning rate rises from 0"
      " to --learning_rate.",
      "basic": False,
      "needs": "token_budget or time_budget_minutes",
    },
  )
  flags: RunSettings = option.group(
    RunSettings,
    omit=["num_train_epochs", "seeds", "group_by_length"],
    do_train={"help": "Train on --input_file."},
    do_eval={"help": "Evaluate on --eval_input_file or --input_file."},
    do_predict={
      "help": "Fill the [MASK] tokens of --predict_file; for lines without"
      " [MASK], compute the pseudo-perplexity; for pairs, also the probability"
      " that the second text follows the first."
    },
    predict_batch_size={
      "default": 32,
      "help": "Masked positions per prediction step.",
    },
    eval_steps={
      "help": "Evaluate every this many training steps, and keep the best"
      " weights in best/, where evaluation and prediction find them. If not"
      " given, there is no evaluation during training."
    },
    keep_checkpoint_max=5,
  )
  input_file: str | None = option.path(
    None,
    "TFRecord files of create_pretraining_data.py to train on: names or glob"
    " patterns, separated by commas.",
    basic=True,
  )
  eval_input_file: Sequence[str] | None = option.text_list(
    None,
    "Held-out TFRecord files to evaluate on, each record once: names or glob"
    " patterns, separated by commas. If not given, --input_file, repeated if"
    " it has too few records for --max_eval_steps.",
    basic=True,
    needs="do_eval or eval_steps",
  )
  max_predictions_per_seq: int = option.integer(
    20,
    "Maximum number of masked tokens per sequence, as given to"
    " create_pretraining_data.py.",
    option.AT_LEAST_1,
    basic=True,
    kept=True,
  )
  objective: str = option.choice(
    MLM_NSP.name,
    [*OBJECTIVES],
    "Losses to train and evaluate: mlm_nsp is masked LM and next sentence"
    " prediction; mlm is masked LM alone, on records of any --segments; nsp is"
    " next sentence prediction alone; electra trains a small generator on"
    " masked LM, and the model to find the tokens that it replaced. If not"
    " given, as the initial model was pretrained, or else mlm_nsp.",
    basic=True,
    kept=True,
  )
  pack: bool = option.boolean(
    False,
    "Pack several records of --input_file into each row of --max_seq_length"
    " tokens while training. --train_batch_size and steps then count rows.",
    needs="do_train",
  )
  max_sequences_per_row: int = max_sequences_flag()
  num_train_steps: int = option.integer(
    100000,
    "Number of training steps.",
    option.COUNT,
    section="training",
    basic=True,
    needs="do_train",
  )
  num_warmup_steps: int = option.integer(
    10000,
    "Number of warm-up steps, in which the learning rate rises from 0 to"
    " --learning_rate.",
    option.COUNT,
    section="training",
    basic=True,
    needs="do_train",
  )
  token_budget: int | None = option.integer(
    None,
    "Train on this many tokens, padding not counted, instead of"
    " --num_train_steps. The learning rate follows the tokens.",
    option.Range(1, 10**15),
    section="training",
    needs="do_train",
  )
  time_budget_minutes: float | None = option.number(
    None,
    "Train for this long instead of --num_train_steps; saving and evaluation do"
    " not count. The learning rate follows the time.",
    option.Range(0, 10**9, includes_low=False),
    section="training",
    needs="do_train",
  )
  max_eval_steps: int = option.integer(
    100,
    "Maximum number of evaluation steps. If given, records repeat when there"
    " are too few; if not, evaluation is a single pass of at most 100 steps.",
    option.AT_LEAST_1,
    section="evaluation",
    basic=True,
    needs="do_eval or eval_steps",
  )
  remask: bool = option.boolean(
    False,
    "Dynamic masking: draw new masks each time a record is read in training,"
    " so that one copy of the data serves many epochs. Needs --vocab_file.",
    needs="do_train",
  )
  masked_lm_prob: float = option.number(
    0.15,
    "Fraction of the tokens to mask with --remask.",
    option.FRACTION,
    needs="remask",
  )
  mask_split: Sequence[int] = mask_split_flag(needs="remask")
  do_whole_word_mask: bool = option.boolean(
    False,
    "Whole word masking with --remask: mask all pieces of a word.",
    needs="remask",
  )
  do_span_mask: bool = option.boolean(
    False,
    "Span masking with --remask: mask spans of 1 to 10 whole words, as"
    " create_pretraining_data.py does.",
    needs="remask",
  )
  predict_file: str | None = option.path(
    None,
    'Texts for --do_predict, one per line, with " ||| " before the second text'
    " of a pair; - for standard input.",
    basic=True,
    needs="do_predict",
  )
  top_k: int = option.integer(
    5,
    "Number of predictions to write per [MASK], most probable first.",
    option.AT_LEAST_1,
    section="evaluation",
    needs="do_predict",
  )
  given: frozenset[str] = frozenset()  # flags on the command line

  @property
  def chosen_objective(self) -> Objective:
    """The objective that --objective names."""
    return OBJECTIVES[self.objective]

  def check(self) -> None:
    """Refuses an action without its file, and steps or masks that cannot be."""
    flags, steps = self.flags, self.num_train_steps
    super().check()
    check_masking(self, self.model.max_seq_length, self.given)
    if self.remask and not self.chosen_objective.predicts_tokens:
      raise InputError(
        f"--remask: --objective={self.objective} predicts no masked tokens."
        " Leave it out"
      )
    self._check_budget()
    if flags.do_train and steps == 0:
      raise InputError(nothing_to_train("num_train_steps", 0))
    if (
      flags.do_train
      and self.num_warmup_steps > steps
      and {"num_warmup_steps", "num_train_steps"} <= self.given
    ):
      raise InputError(
        f"--num_warmup_steps={self.num_warmup_steps}: longer than"
        f" --num_train_steps={steps}, so the learning rate never reaches its"
        " peak. Give fewer warm-up steps"
      )
    reads_input = flags.evaluates and not self.eval_input_file
    self.need("input_file", "do_train", flags.do_train)
    self.need("input_file", "do_eval", reads_input)
    self.need("predict_file", "do_predict", flags.do_predict)

  def _check_budget(self) -> None:
    """Refuses a second length of the training, and a warm-up without end."""
    lengths = ("token_budget", "time_budget_minutes", "num_train_steps")
    given = [name for name in lengths if name in self.given]
    if not set(given) - {"num_train_steps"}:
      return
    if len(given) > 1:
      raise InputError(
        f"--{given[0]} and --{given[1]}: each is the length of the training."
        " Give one of them"
      )
    if "num_warmup_steps" in self.given:
      raise InputError(
        "--num_warmup_steps: counts steps, but the schedule runs over"
        f" --{given[0]}. Give --warmup_proportion, a fraction of that"
      )
    warmup, decay = self.optimizer.warmup_proportion, 0.0
    if self.optimizer.schedule == "trapezoidal":
      decay = self.optimizer.decay_proportion
    if warmup == 1 or warmup + decay > 1:
      raise InputError(
        f"--warmup_proportion={warmup:g}: too large for the rest of the"
        f" schedule over --{given[0]}. Give less"
      )
