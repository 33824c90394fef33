"""Checks of parsed flags: ranges, and rules between flags.

A command makes them before it imports TensorFlow, reads or writes anything.
"""

from __future__ import annotations

import codecs
from typing import Any

from absl import flags, logging

from bertlib.errors import InputError
from bertlib.settings.ranges import Range


def check(values: flags.FlagValues) -> None:
  """Refuses flags that are out of range or contradict each other.

  Args:
    values: parsed flags of a command, made by `option.define`.

  Raises:
    InputError: a flag has a value that the command cannot work with.
  """
  for name in values:
    allowed = getattr(values[name], "within", None)
    if allowed and values[name].value is not None:
      _check_range(values[name], allowed)
  if "encoding" in values:
    _check_encoding(values["encoding"].value)
  _check_tpu(values)
  _check_evaluation(values)
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


def _check_encoding(name: str) -> None:
  """Refuses an encoding that Python does not know, or not for text."""
  try:
    codecs.getincrementaldecoder(name)
    "a".encode(name)  # refuses base64 and its like
  except (LookupError, ValueError) as error:
    raise InputError(
      f"--encoding={name}: not an encoding that Python knows. Name one such as"
      " utf-8, latin-1, cp1252, utf-16 or gb18030"
    ) from error


def _check_tpu(values: flags.FlagValues) -> None:
  """Refuses a TPU beside another kind of distribution."""
  kind = _value(values, "distribution")
  if _value(values, "use_tpu") and kind not in (None, "tpu"):
    raise InputError(f"--use_tpu and --distribution={kind}: give one of them")


def _check_evaluation(values: flags.FlagValues) -> None:
  """Refuses evaluations of checkpoints that are not saved."""
  eval_steps = _value(values, "eval_steps")
  if not eval_steps:
    if _value(values, "patience"):
      raise InputError("--patience counts scorings: add --eval_steps")
    return
  saving = values["save_checkpoints_steps"]
  if saving.present and eval_steps % saving.value:
    raise InputError(
      f"--eval_steps={eval_steps} scores checkpoints, so it has to be a"
      f" multiple of --save_checkpoints_steps={saving.value}"
    )


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
