"""Ranges of flags, and rules between flags, of every command.

They are checked before a command reads or writes anything. Imports no
TensorFlow.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from absl import flags, logging

import text_files
from command_line import InputError

# Larger counts do not fit the int32 in which TensorFlow takes many of them.
_MAX_INT = 2**31 - 1


class Range(NamedTuple):
  """Values that a number may have.

  Attributes:
    low: the lowest.
    high: the highest.
    includes_low: whether `low` itself is allowed.
    includes_high: whether `high` itself is allowed.
    excluded: a value between them that is not allowed, or None.
  """

  low: float
  high: float = math.inf
  includes_low: bool = True
  includes_high: bool = True
  excluded: float | None = None

  def __contains__(self, value: object) -> bool:
    # NaN is in no range, for all comparisons with it are false.
    return (
      isinstance(value, (int, float))
      and -math.inf < value < math.inf
      and (self.low <= value if self.includes_low else self.low < value)
      and (value <= self.high if self.includes_high else value < self.high)
      and value != self.excluded
    )

  def __str__(self) -> str:
    """The range in words, to follow "a number"."""
    low = "at least" if self.includes_low else "above"
    high = "at most" if self.includes_high else "below"
    ends = []
    if self.low > -_MAX_INT:
      ends.append(f"{low} {self.low:g}")
    if self.high < _MAX_INT:
      ends.append(f"{high} {self.high:g}")
    if self.excluded is not None:
      ends.append(f"other than {self.excluded:g}")
    return " and ".join(ends)


FINITE = Range(-math.inf)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, includes_low=False)
FRACTION = Range(0, 1)
FRACTION_BELOW_1 = Range(0, 1, includes_high=False)
INTEGER = Range(-_MAX_INT - 1, _MAX_INT)
COUNT = Range(0, _MAX_INT)
AT_LEAST_1 = Range(1, _MAX_INT)
COLUMN = INTEGER._replace(excluded=0)
# [CLS], a token and [SEP].
SEQ_LENGTH = Range(3, _MAX_INT)

# Of every numeric flag, by its name; of a list of numbers, each of them.
RANGES = {
  # Lengths and batches.
  "max_seq_length": SEQ_LENGTH,
  "seq_length": SEQ_LENGTH,
  "train_batch_size": AT_LEAST_1,
  "eval_batch_size": AT_LEAST_1,
  "predict_batch_size": AT_LEAST_1,
  "batch_size": AT_LEAST_1,
  # Length of training. What does not train may have 0.
  "num_train_epochs": NOT_NEGATIVE,
  "num_train_steps": COUNT,
  "num_warmup_steps": COUNT,
  "warmup_proportion": FRACTION,
  "seed": INTEGER,
  "seeds": COUNT,
  # Saving, evaluating and logging.
  "save_checkpoints_steps": AT_LEAST_1,
  "save_checkpoints_secs": NOT_NEGATIVE,
  "keep_checkpoint_max": AT_LEAST_1,
  "eval_steps": AT_LEAST_1,
  "max_eval_steps": AT_LEAST_1,
  "patience": COUNT,
  "log_steps": COUNT,
  # The training step.
  "learning_rate": NOT_NEGATIVE,
  "gradient_accumulation_steps": AT_LEAST_1,
  "memory_gb": POSITIVE,
  "beta_1": FRACTION_BELOW_1,
  "beta_2": FRACTION_BELOW_1,
  "epsilon": POSITIVE,
  "weight_decay": NOT_NEGATIVE,
  "clip_norm": NOT_NEGATIVE,
  "schedule_power": NOT_NEGATIVE,
  "layer_decay": FRACTION,
  "freeze_layers": COUNT,
  # Devices.
  "num_replicas": AT_LEAST_1,
  "num_tpu_cores": AT_LEAST_1,
  "iterations_per_loop": AT_LEAST_1,
  # Questions and answers.
  "doc_stride": AT_LEAST_1,
  "max_query_length": AT_LEAST_1,
  "n_best_size": AT_LEAST_1,
  "max_answer_length": AT_LEAST_1,
  "null_score_diff_threshold": FINITE,
  "sweep_n_best_size": AT_LEAST_1,
  "sweep_max_answer_length": AT_LEAST_1,
  "sweep_null_threshold": FINITE,
  "audit_max_seq_lengths": SEQ_LENGTH,
  "audit_doc_strides": AT_LEAST_1,
  "na-prob-thresh": FINITE,
  # Tagged words.
  "word_column": COLUMN,
  "tag_column": COLUMN,
  # Masked language models and their data.
  "max_predictions_per_seq": AT_LEAST_1,
  "masked_lm_prob": FRACTION,
  "short_seq_prob": FRACTION,
  "truncate_prob": FRACTION,
  "dupe_factor": AT_LEAST_1,
  "random_seed": FINITE,
  "num_shards": Range(0, 99999),
  "num_workers": COUNT,
  "top_k": AT_LEAST_1,
  # Vocabularies.
  "vocab_size": AT_LEAST_1,
  "min_frequency": AT_LEAST_1,
  "num_unused": COUNT,
  "limit_alphabet": AT_LEAST_1,
  # Comparing and averaging checkpoints.
  "last": Range(2, _MAX_INT),
  "tolerance": NOT_NEGATIVE,
}


def check(values: flags.FlagValues) -> None:
  """Refuses flags that are out of range or contradict each other.

  Args:
    values: parsed flags of a command. Flags without a range are ignored.

  Raises:
    InputError: a flag has a value that the command cannot work with.
  """
  for name, allowed in RANGES.items():
    if name in values and values[name].value is not None:
      _check_range(values[name], allowed)
  if "encoding" in values:
    text_files.find_codec(values["encoding"].value)
  _check_training_length(values)
  _check_masks(values)
  _check_windows(values)


def _check_range(flag: flags.Flag, allowed: Range) -> None:
  """Refuses a flag of which a number is out of range."""
  if isinstance(flag.value, list):
    numbers, kind = map(_number_of, flag.value), "numbers"
    shown = ",".join(flag.value)
  else:
    numbers, shown = [flag.value], flag.value
    kind = "an integer" if isinstance(flag.value, int) else "a finite number"
  if not all(number in allowed for number in numbers):
    raise InputError(
      f"--{flag.name}={shown}: out of range. Give {kind} {allowed}".rstrip()
    )


def _number_of(text: str) -> float | None:
  """An item of a list flag as a number; None if it is none."""
  try:
    return float(text)
  except ValueError:
    return None


def _value(values: flags.FlagValues, name: str) -> Any:
  """The value of a flag; None where the command has no such flag."""
  return values[name].value if name in values else None


def _check_training_length(values: flags.FlagValues) -> None:
  """Refuses training without a step, and a warm-up that outlasts it."""
  if not _value(values, "do_train"):
    return
  for name in ("num_train_epochs", "num_train_steps"):
    if _value(values, name) == 0:
      raise InputError(
        f"--{name}={values[name].value}: trains nothing. Give more, or leave"
        " out --do_train"
      )
  names = ("num_warmup_steps", "num_train_steps")
  if not all(name in values and values[name].present for name in names):
    return
  warmup, steps = (values[name].value for name in names)
  if warmup > steps:
    raise InputError(
      f"--num_warmup_steps={warmup}: longer than --num_train_steps={steps}, so"
      " the learning rate never reaches its peak. Give fewer warm-up steps"
    )


def _check_masks(values: flags.FlagValues) -> None:
  """Refuses more masks per sequence than it has tokens."""
  masks = _value(values, "max_predictions_per_seq")
  length = _value(values, "max_seq_length")
  if masks is None or length is None:
    return
  if "short_seq_prob" in values and length < 5:
    raise InputError(
      f"--max_seq_length={length}: a pair of segments needs at least 5 tokens,"
      " of which 3 are special. Give a longer one"
    )
  if masks <= length:
    return
  if values["max_predictions_per_seq"].present:
    raise InputError(
      f"--max_predictions_per_seq={masks}: more than the tokens of a sequence,"
      f" --max_seq_length={length}. Give fewer; a usual number is"
      " --max_seq_length times --masked_lm_prob"
    )
  logging.warning(
    "--max_predictions_per_seq=%d is more than --max_seq_length=%d: records"
    " are padded with masks that are never used",
    masks,
    length,
  )


def _check_windows(values: flags.FlagValues) -> None:
  """Warns of windows of a document that do not overlap."""
  stride = _value(values, "doc_stride")
  length = _value(values, "max_seq_length")
  if stride is not None and stride > length - 3:
    logging.warning(
      "--doc_stride=%d is longer than the text of a window of"
      " --max_seq_length=%d: windows do not overlap, so an answer on the border"
      " of two is in neither",
      stride,
      length,
    )
