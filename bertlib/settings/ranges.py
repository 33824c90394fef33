"""Ranges of numeric flags."""

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
AT_LEAST_2 = Range(2, _MAX_INT)
COLUMN = INTEGER._replace(excluded=0)
# [CLS], a token and [SEP].
SEQ_LENGTH = Range(3, _MAX_INT)
# Their number has five digits in the name of a file.
SHARDS = Range(0, 99999)
