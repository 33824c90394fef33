"""Checks of parsed flags: ranges, and rules between flags.

A command runs them before it imports TensorFlow, reads or writes anything.
"""

from __future__ import annotations

import codecs
from typing import Any

from absl import flags, logging

from bertlib.cli.errors import InputError
from bertlib.cli.ranges import Range


def check(values: flags.FlagValues) -> None:
  """Refuses flags that are out of range or contradict each other.

  Args:
    values: parsed flags of a command, defined by `option.define`.

  Raises:
    InputError: a value is out of range, or contradicts another flag.
  """
  for name in values:
    allowed = getattr(values[name], "within", None)
    if allowed and values[name].value is not None:
      _check_range(values[name], allowed)
  _check_names(values)
  if "encoding" in values:
    _check_encoding(values["encoding"].value)
  _check_output_dir(values)
  _check_initial_model(values)
  _check_tpu(values)
  _check_dev_fraction(values)
  _check_workers(values)
  _check_int8(values)
  _check_loss_scale(values)
  _check_evaluation(values)
  _check_training_length(values)
  _check_masks(values)
  _check_windows(values)


def _check_range(flag: flags.Flag, allowed: Range) -> None:
  """Refuses a number, or a list with a number, that is out of range."""
  if isinstance(flag.value, list):
    numbers, kind = flag.value, "numbers"
  else:
    numbers = [flag.value]
    kind = "an integer" if isinstance(flag.value, int) else "a number"
  if not all(number in allowed for number in numbers):
    raise InputError(
      f"{flag.serialize()}: out of range. Give {allowed.describe(kind)}"
    )


def _value(values: flags.FlagValues, name: str) -> Any:
  """The value of a flag; None if the command does not have it."""
  return values[name].value if name in values else None


def _check_names(values: flags.FlagValues) -> None:
  """Refuses texts that no path can have, and outputs without a name."""
  for key in values:
    name, value = values[key].name, values[key].value
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(text, str) and "\0" in text for text in texts):
      raise InputError(
        f"--{name}: contains a NUL character, which no name has. Remove it"
      )
    if value == "" and getattr(values[key], "is_output", False):
      raise InputError(f"--{name}=: names no file or folder. Give a path")


def _check_encoding(name: str) -> None:
  """Refuses an unknown encoding, and one that is not for text."""
  try:
    codecs.getincrementaldecoder(name)
    "a".encode(name)  # fails for base64 and similar codecs
  except (LookupError, ValueError) as error:
    raise InputError(
      f"--encoding={name}: not a text encoding that Python supports. Give one"
      " such as utf-8, latin-1, cp1252, utf-16 or gb18030"
    ) from error


def _check_output_dir(values: flags.FlagValues) -> None:
  """Refuses a folder whose checkpoints TensorFlow would not find."""
  folder = _value(values, "output_dir") or ""
  special = sorted(set(folder) & set("*?[\\"))
  if special:
    raise InputError(
      f"--output_dir={folder}: TensorFlow takes it for a pattern and would find"
      f" no checkpoint in it. Give a name without {special[0]}"
    )


def _check_tpu(values: flags.FlagValues) -> None:
  """Refuses a TPU together with another kind of distribution."""
  kind = _value(values, "distribution")
  if _value(values, "use_tpu") and kind not in (None, "tpu"):
    raise InputError(
      f"--use_tpu: contradicts --distribution={kind}. Give one of them"
    )


def _check_dev_fraction(values: flags.FlagValues) -> None:
  """Refuses a part of the training file beside a file as dev set."""
  if _value(values, "dev_fraction") and values["dev_file"].present:
    raise InputError(
      f"--dev_fraction: contradicts --dev_file={values.dev_file}. Give one of"
      " them"
    )


def _check_workers(values: flags.FlagValues) -> None:
  """Refuses several seeds on workers, each of which would train all of them."""
  seeds, kind = _value(values, "seeds"), _value(values, "distribution")
  if seeds and kind == "multi_worker":
    raise InputError(
      f"--seeds={seeds}: not with --distribution=multi_worker. Train once per"
      " --seed, each in its own --output_dir"
    )


def _check_int8(values: flags.FlagValues) -> None:
  """Refuses training in 8 bits, 8 bits on a TPU, and a needless precision."""
  precision, quantize = _value(values, "precision"), _value(values, "quantize")
  if quantize == "dynamic_int8" and values["precision"].present:
    raise InputError(
      f"--precision={precision}: has no effect with --quantize=dynamic_int8,"
      " which computes in 8 bits and float32. Leave out one of them"
    )
  if "int8" not in (precision, quantize):
    for name in ("calibration_file", "int8_skip_layers"):
      if _value(values, name):
        logging.warning("--%s: has no effect without int8", name)
  if precision != "int8":
    return
  if _value(values, "do_train"):
    raise InputError(
      "--precision=int8: for evaluation and prediction only. Train with"
      " --precision=auto, then evaluate and predict with int8"
    )
  if _value(values, "use_tpu") or _value(values, "distribution") == "tpu":
    raise InputError(
      "--precision=int8: for CPUs only. Give --precision=bfloat16 on a TPU"
    )


def _check_loss_scale(values: flags.FlagValues) -> None:
  """Warns of a loss scale that is not used."""
  precision = _value(values, "precision")
  if _value(values, "loss_scale") and precision not in ("float16", "auto"):
    logging.warning("--loss_scale: has no effect without --precision=float16")


def _check_initial_model(values: flags.FlagValues) -> None:
  """Refuses two initial models."""
  if _value(values, "bert_hub_module_handle") and _value(
    values, "init_checkpoint"
  ):
    raise InputError(
      "--bert_hub_module_handle and --init_checkpoint both name an initial"
      " model: give one of them"
    )


def _check_evaluation(values: flags.FlagValues) -> None:
  """Refuses evaluations at steps that have no checkpoint."""
  eval_steps = _value(values, "eval_steps")
  if not eval_steps:
    if patience := _value(values, "patience"):
      raise InputError(
        f"--patience={patience}: needs evaluations during training. Add"
        " --eval_steps"
      )
    return
  saving = values["save_checkpoints_steps"]
  if saving.present and eval_steps % saving.value:
    raise InputError(
      f"--eval_steps={eval_steps}: evaluation reads a checkpoint, and there is"
      f" none at this step. Give a multiple of --save_checkpoints_steps="
      f"{saving.value}"
    )


def _check_training_length(values: flags.FlagValues) -> None:
  """Refuses training for no steps, and a warm-up longer than training."""
  if not _value(values, "do_train"):
    return
  for name in ("num_train_epochs", "num_train_steps"):
    if _value(values, name) == 0:
      raise InputError(
        f"--{name}={values[name].value}: there is nothing to train. Give a"
        " larger number, or leave out --do_train"
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
  """Refuses more masked tokens than a sequence has tokens."""
  masks = _value(values, "max_predictions_per_seq")
  length = _value(values, "max_seq_length")
  if masks is None or length is None:
    return
  if "short_seq_prob" in values and length < 5:
    raise InputError(
      f"--max_seq_length={length}: too short for a pair of segments with [CLS]"
      " and two [SEP]. Give at least 5"
    )
  if masks <= length:
    return
  if values["max_predictions_per_seq"].present:
    raise InputError(
      f"--max_predictions_per_seq={masks}: more masked tokens than a sequence"
      f" has tokens, --max_seq_length={length}. Give fewer; typical is"
      " --max_seq_length times --masked_lm_prob"
    )
  logging.warning(
    "--max_predictions_per_seq=%d is larger than --max_seq_length=%d: the"
    " masked positions of each record are padded to a number that is never"
    " reached",
    masks,
    length,
  )


def _check_windows(values: flags.FlagValues) -> None:
  """Warns if the windows of a document do not overlap."""
  stride = _value(values, "doc_stride")
  length = _value(values, "max_seq_length")
  if stride is not None and stride > length - 3:
    logging.warning(
      "--doc_stride=%d is longer than the text in a window of"
      " --max_seq_length=%d: windows do not overlap, so an answer that crosses"
      " a window boundary is in no window",
      stride,
      length,
    )
