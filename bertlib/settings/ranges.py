"""Ranges of flags of every command. Imports no TensorFlow."""

from __future__ import annotations

import math
from typing import NamedTuple

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
