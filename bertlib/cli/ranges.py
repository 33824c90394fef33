"""Ranges of numeric flags, and the values that "auto" stands for."""

from __future__ import annotations

import math
import numbers
from typing import NamedTuple

# TensorFlow takes many counts as int32.
_MAX_INT = 2**31 - 1


class Range(NamedTuple):
  """Allowed values of a number; NaN and Inf never are."""

  low: float
  high: float = math.inf
  includes_low: bool = True  # whether `low` itself is allowed
  includes_high: bool = True
  excluded: float | None = None  # value between the bounds

  def __contains__(self, value: object) -> bool:
    # All comparisons with NaN are false.
    return (
      isinstance(value, numbers.Real)
      and -math.inf < value < math.inf
      and (self.low <= value if self.includes_low else self.low < value)
      and (value <= self.high if self.includes_high else value < self.high)
      and value != self.excluded
    )

  def __str__(self) -> str:
    """The range as words that follow "a number"; "" if it has no bounds."""
    if self.excluded is not None:  # more likely than a number that is too large
      return f"other than {self.excluded}"
    words = []
    has_low, has_high = self.low > -math.inf, self.high < math.inf
    if has_low and has_high and self.includes_low and self.includes_high:
      words.append(f"from {self.low} to {self.high}")
    else:
      if has_low:
        low = f"of {self.low} or more"
        words.append(low if self.includes_low else f"above {self.low}")
      if has_high:
        high = f"up to {self.high}"
        words.append(high if self.includes_high else f"below {self.high}")
    return ", ".join(words)

  def describe(self, kind: str) -> str:
    """The range with the kind of its numbers, such as "an integer"."""
    if not str(self):
      kind = kind.replace("number", "finite number")
    return f"{kind} {self}".rstrip()


FINITE = Range(-math.inf)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, includes_low=False)
FRACTION = Range(0, 1)
FRACTION_BELOW_1 = Range(0, 1, includes_high=False)
INTEGER = Range(-_MAX_INT - 1, _MAX_INT)
COUNT = Range(0, _MAX_INT)
AT_LEAST_1 = Range(1, _MAX_INT)
AT_LEAST_2 = Range(2, _MAX_INT)
COLUMN = INTEGER._replace(excluded=0)
# [CLS], a token and [SEP]; and arrays of one sequence that fit into memory.
SEQ_LENGTH = Range(3, 2**20)
# Threads or processes of one machine. TensorFlow crashes if it cannot start
# them; 0 is one per core.
PARALLEL = Range(0, 1024)
# File names give the number of shards five digits.
SHARDS = Range(0, 99999)

# Values that "auto" selects from, by flag.
AUTO_CHOICES = {
  "precision": ("float32", "bfloat16", "float16"),
  "xla": ("on", "off"),
}
