"""The doctor: `--doctor` makes the checks of a run, each a line, and no more.

Functions that begin with `check_` raise an InputError for what would stop a
run, and warn in the log of what would not. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from absl import logging

from bertlib import files
from bertlib.errors import InputError, user_error_message
from bertlib.reporting import receipts
from bertlib.settings.common import TrainingSettings

_WARNING = logging.converter.STANDARD_WARNING

# The value of a check that failed, or was not made.
SKIPPED: Any = object()

# The doctor


class Doctor:
  """Makes checks one after the other, and tells of each on a line.

  Attributes:
    num_failed: checks that failed.
  """

  def __init__(self, say: Callable[[str], Any] = print):
    """Takes what a line is given to."""
    self._say = say
    self.num_failed = 0

  def check(
    self, name: str, check_fn: Callable, *needs: Any, after: Any = None
  ) -> Any:
    """Makes a check, which passes, warns, fails or is skipped.

    Its line has what the check logs: if there is a warning among that, it
    warns; if it raises what a run would tell in one line, it fails.

    Args:
      name: of what is checked, in a word or two.
      check_fn: makes the check.
      *needs: what it takes; if that is of a check that failed, it is skipped.
      after: what else it cannot do without, likewise; a tuple for several.

    Returns:
      What it gives; `SKIPPED` of one that failed or was skipped.
    """
    after = after if isinstance(after, tuple) else (after,)
    if any(need is SKIPPED for need in (*needs, *after)):
      self._tell("skip", name, "needs what failed above")
      return SKIPPED
    with _collect_log() as records:
      try:
        value = check_fn(*needs)
      except Exception as error:
        message = user_error_message(error)
        if message is None:
          raise
        self.num_failed += 1
        self._tell("fail", name, message)
        return SKIPPED
    warns = any(record.levelno >= _WARNING for record in records)
    told = "; ".join(dict.fromkeys(r.getMessage().strip() for r in records))
    self._tell("warn" if warns else "pass", name, told)
    return value

  @staticmethod
  def given(needed: Any, make: Callable, *arguments: Any) -> Any:
    """What `make` gives; `SKIPPED` where the check of `needed` failed."""
    return SKIPPED if needed is SKIPPED else make(*arguments)

  def _tell(self, status: str, name: str, text: str) -> None:
    self._say(f"{status}  {name:<11} {text}".rstrip())


@contextlib.contextmanager
def _collect_log() -> Iterator[list]:
  """Keeps what is logged, which then goes nowhere else."""
  records: list = []

  def keep(record):
    if record.levelno >= logging.converter.STANDARD_INFO:
      records.append(record)
    return False

  logger = logging.get_absl_logger()
  logger.addFilter(keep)
  try:
    yield records
  finally:
    logger.removeFilter(keep)


def diagnose(
  settings: TrainingSettings, examine: Callable[[Any, Doctor], Any]
) -> None:
  """Makes the checks of a script; ends with status 1 if one of them fails.

  Args:
    settings: of the command.
    examine: makes them.
  """
  doctor = Doctor()
  if settings.receipt.rerun:
    doctor.check("rerun", receipts.check_rerun, settings)
  examine(settings, doctor)
  if doctor.num_failed:
    logging.info("%d checks failed", doctor.num_failed)
    sys.exit(1)


# Checks of the doctor's own


def sample(items: Sequence, number: int = 2000) -> Sequence:
  """About so many items, or all, at even distances."""
  return items[:: -(-len(items) // number) or 1]


def check_labels(
  labels: Sequence[str], sets: Mapping[str, Iterable[str]]
) -> None:
  """Warns of labels that a set lacks, or that are rare in it.

  Args:
    labels: the label set.
    sets: by its name, the labels of a set's examples.
  """
  for name, of_examples in sets.items():
    counts = Counter(of_examples)
    found = [label for label in labels if counts[label]]
    missing = [label for label in labels if not counts[label]]
    shown = [f"{label} {counts[label]}" for label in found]
    if len(shown) > 10:
      shown[5:-5] = ["..."]
    logging.info("%s has %s", name, ", ".join(shown) or "none")
    if missing:
      logging.warning("%s has no %s", name, ", ".join(missing))
    if not found:
      continue
    often, rare = max(found, key=counts.get), min(found, key=counts.get)
    if counts[often] > 10 * counts[rare]:
      logging.warning(
        "of %s there are %.0f times as many as of %s",
        often,
        counts[often] / counts[rare],
        rare,
      )


class Lengths(NamedTuple):
  """How much there is to learn from.

  Attributes:
    num_examples: examples, windows or records.
    num_tokens: of a row, on average.
    num_rows: of an example; more than one where it has choices.
  """

  num_examples: int
  num_tokens: float
  num_rows: int = 1


class Encoded(NamedTuple):
  """What there is to know of an example as the model takes it.

  Attributes:
    input_ids: its ids, maybe with padding.
    num_tokens: that are no padding.
    num_cut: that did not fit.
  """

  input_ids: Sequence[int]
  num_tokens: int
  num_cut: int = 0


def check_encoded(
  examples: Iterable[Encoded], vocab_size: int, num_examples: int
) -> Lengths:
  """Looks for ids that the model does not have, and for what is cut.

  Args:
    examples: some of those that the model gets.
    vocab_size: entries that the model has.
    num_examples: that there are in all.

  Returns:
    How many there are, and how long.

  Raises:
    InputError: an id is out of range.
  """
  num_tokens, num_cut = [], []
  for number, example in enumerate(examples, start=1):
    check_ids(example.input_ids, vocab_size, f"example {number}")
    num_tokens.append(example.num_tokens)
    num_cut.append(example.num_cut)
  count = len(num_tokens)
  mean = sum(num_tokens) / max(count, 1)
  cut = sum(number > 0 for number in num_cut) / max(count, 1)
  logging.info(
    "%d of %d looked at: %.0f tokens on average, %d at most",
    count,
    num_examples,
    mean,
    max(num_tokens, default=0),
  )
  if cut:
    logging.log(
      logging.WARNING if cut > 0.05 else logging.INFO,
      "%.1f%% are cut, and lose %.0f tokens on average: think of a higher"
      " --max_seq_length",
      100 * cut,
      sum(num_cut) / (cut * count),
    )
  return Lengths(num_examples, mean)


def check_ids(ids: Iterable[int], vocab_size: int, where: str) -> None:
  """Refuses ids that the model has no embedding for."""
  highest, lowest = max(ids, default=0), min(ids, default=0)
  if lowest < 0 or highest >= vocab_size:
    bad = lowest if lowest < 0 else highest
    raise InputError(
      f"{where}: has the id {bad}, but the model's vocab_size is {vocab_size}."
      " Make the data with the vocabulary of the model"
    )


def check_disk(path: str, num_bytes: int) -> None:
  """Refuses a place that cannot be written, or has too little room.

  Args:
    path: a folder, which may yet have to be made.
    num_bytes: that will be written there.

  Raises:
    InputError: there is less.
    OSError: it cannot be written.
  """
  if files.is_remote(path):
    logging.info("%s: takes about %s", path, size_in_words(num_bytes))
    return
  folder = os.path.abspath(path)
  while not os.path.exists(folder):
    folder = os.path.dirname(folder)
  if not os.path.isdir(folder):
    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
  if not os.access(folder, os.W_OK):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
  free = shutil.disk_usage(folder).free
  if free < num_bytes:
    raise InputError(
      f"{path}: takes about {size_in_words(num_bytes)}, but"
      f" {size_in_words(free)} are free."
      " Make room there, name another place, or keep fewer checkpoints"
      " (--keep_checkpoint_max)"
    )
  logging.info(
    "%s: takes about %s, %s are free",
    path,
    size_in_words(num_bytes),
    size_in_words(free),
  )


def size_in_words(num_bytes: int) -> str:
  """Bytes in words."""
  if num_bytes < 10**8:
    return f"{num_bytes / 10**6:.1f} MB"
  return f"{num_bytes / 10**9:.1f} GB"
