"""Converts BERT between TensorFlow checkpoints and Hugging Face folders.

  python convert_checkpoint.py --input=FOLDER_OR_CHECKPOINT --output=FOLDER

Weights are only renamed and transposed, so a round trip is bitwise exact. A
tensor without a counterpart in the other format is an error, so that no weight
is dropped silently. PyTorch is needed only for `pytorch_model.bin`.

The same command strips, averages and renames TensorFlow checkpoints
(`bertlib/exchange/rewrite.py`) and compares models
(`bertlib/exchange/compare.py`).
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.settings.conversion import ConversionSettings

  app.parse_flags(ConversionSettings, imports_tensorflow=True)

import os

from bertlib.checkpoints import checkpoint_files
from bertlib.cli import app, option, terminal
from bertlib.cli.errors import InputError
from bertlib.exchange import (
  compare,
  from_huggingface,
  initial_model,
  rewrite,
  to_huggingface,
)
from bertlib.io import files, folder_lock, model_files
from bertlib.settings.conversion import ConversionSettings
from bertlib.task import task_record


def define_flags() -> None:
  """Defines the flags."""
  option.define(ConversionSettings)


def main(_) -> int | None:
  """Converts, rewrites or compares `--input`."""
  settings = option.from_flags(ConversionSettings)
  if settings.compare:
    return 0 if _compare(settings) else 1
  write = _rewrite if settings.rewrites else _convert
  output = settings.output.rstrip("/")
  with files.folders_for([output]), folder_lock.lock_files([output], "output"):
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


def _compare(settings: ConversionSettings) -> bool:
  weights = map(compare.read_weights, (settings.input, settings.compare))
  return compare.compare_weights(*weights)


if __name__ == "__main__":
  app.run(main)
