"""Converts BERT between TensorFlow checkpoints and Hugging Face folders.

  python convert_checkpoint.py --input=FOLDER_OR_CHECKPOINT --output=FOLDER

Weights are only renamed and transposed, so a round trip is bitwise exact. A
tensor without a counterpart in the other format is an error, so that no weight
is dropped silently. PyTorch is needed only for `pytorch_model.bin`.

The same command compares models, and strips, averages and renames TensorFlow
checkpoints (`bertlib/exchange/rewrite.py`).
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.settings.conversion import ConversionSettings

  app.parse_flags(ConversionSettings, imports_tensorflow=True)

import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bertlib.checkpoints import checkpoint_files
from bertlib.cli import app, option, terminal
from bertlib.cli.errors import InputError
from bertlib.exchange import (
  from_huggingface,
  initial_model,
  rewrite,
  to_huggingface,
)
from bertlib.io import files, folder_lock, model_files
from bertlib.io.output_folders import folders_for
from bertlib.settings.conversion import ConversionSettings
from bertlib.task import task_record


def define_flags() -> None:
  """Defines the flags."""
  option.define(ConversionSettings)


def main(_) -> int | None:
  """Converts, rewrites or compares `--input`."""
  settings = option.from_flags(ConversionSettings)
  if settings.compare:
    weights = map(read_weights, (settings.input, settings.compare))
    return 0 if compare_weights(*weights) else 1
  write = _rewrite if settings.rewrites else _convert
  output = settings.output.rstrip("/")
  with folders_for([output]), folder_lock.lock_files([output], "output"):
    return write(settings)


def _convert(settings: ConversionSettings) -> None:
  source = settings.input
  to_tensorflow = settings.to in ("tensorflow", "reranker") or (
    settings.to is None and initial_model.is_huggingface(source)
  )
  if to_tensorflow:
    lines = from_huggingface.convert(
      source,
      settings.output,
      task_record.all_records(),
      settings.vocab_file,
      settings.do_lower_case,
      settings.overwrite,
      as_reranker=settings.to == "reranker",
    )
  else:
    if files.exists(source):
      initial_model.check_exists(source, "input")
    checkpoint = checkpoint_files.find_checkpoint(source)
    lines = to_huggingface.convert(
      checkpoint,
      _given_or_beside(settings, "bert_config_file", checkpoint),
      _given_or_beside(settings, "vocab_file", checkpoint),
      settings.output,
      settings.do_lower_case,
      settings.overwrite,
      as_pytorch=settings.to == "pytorch",
      dtype=settings.dtype,
    )
  for line in lines:
    terminal.show(line)


def _given_or_beside(
  settings: ConversionSettings, flag: str, checkpoint: str
) -> str:
  given = getattr(settings, flag)
  if given is not None:
    return given
  path = model_files.path_of(os.path.dirname(checkpoint), flag)
  if not files.exists(path):
    raise InputError(f"{path}: no such file. Name the file with --{flag}")
  return path


def _rewrite(settings: ConversionSettings) -> None:
  paths = settings.input.split(",") if settings.average else [settings.input]
  if settings.average and len(paths) == 1:
    checkpoints = rewrite.last_checkpoints(settings.input, settings.average)
  else:
    checkpoints = [checkpoint_files.find_checkpoint(path) for path in paths]
  rewrite.rewrite(
    checkpoints,
    settings.output,
    settings.strip_optimizer or bool(settings.average),
    settings.rename,
    settings.overwrite,
  )


def compare_weights(
  first: Mapping[str, np.ndarray],
  second: Mapping[str, np.ndarray],
  tolerance: float = 1e-4,  # largest difference of two numbers that agree
) -> bool:
  """Prints how the weights of two models differ; True if all agree."""
  largest = []  # of each variable that is not bitwise equal
  names = sorted(first.keys() | second.keys())
  for name in names:
    if name not in first or name not in second:
      largest.append(np.inf)
      print(f"{name}: only in the {'first' if name in first else 'second'}")
      continue
    values, others = first[name], second[name]
    if values.shape != others.shape:
      largest.append(np.inf)
      print(f"{name}: {values.shape} and {others.shape}")
    elif values.dtype != others.dtype or values.tobytes() != others.tobytes():
      largest.append(np.abs(values.astype(np.float64) - others).max())
      print(f"{name}: {largest[-1]:.3g}")
  num_equal = len(names) - len(largest)
  print(f"{num_equal} variables are bitwise equal, {len(largest)} are not")
  # A comparison with NaN is false.
  agree = all(value <= tolerance for value in largest)
  verdict = "agree" if agree else "do not agree"
  print(f"they {verdict} within {tolerance:g}")
  return agree


def read_weights(path: str) -> dict[str, np.ndarray]:
  """Reads the weights of a model in any format, by checkpoint name."""
  model_format = initial_model.model_format(path)
  if model_format == "huggingface":
    return from_huggingface.read_variables(path)
  if model_format == "tensorflow":
    return rewrite.read_weights(checkpoint_files.find_checkpoint(path))
  loaded = tf.saved_model.load(path)
  return {
    variable.name.partition(":")[0]: variable.numpy()
    for signature in loaded.signatures.values()
    for variable in signature.variables
  }


if __name__ == "__main__":
  app.run(main)
