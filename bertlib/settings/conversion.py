"""Settings of convert_checkpoint.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bertlib.cli import option
from bertlib.cli.errors import InputError


@dataclasses.dataclass(frozen=True)
class ConversionSettings(option.CommandSettings):
  """Flags of convert_checkpoint.py."""

  REQUIRED = ("input",)
  EXAMPLE = (
    "python convert_checkpoint.py --input=hugging_face_folder"
    " --output=converted"
  )
  SECTION = "model"

  input: str | None = option.path(
    None,
    "Model to read: a Hugging Face folder, a TensorFlow checkpoint, or a folder"
    " with one. With --average, the folder of a training run, or several"
    " checkpoints separated by commas.",
    basic=True,
  )
  output: str | None = option.path(
    None,
    "Folder to write. Required except with --compare.",
    section="output",
    basic=True,
    is_output=True,
  )
  overwrite: bool = option.boolean(
    False, "Replace existing files in --output.", section="output", basic=True
  )
  to: str | None = option.choice(
    None,
    ["tensorflow", "reranker", "huggingface", "pytorch"],
    "Format to write: reranker is a model of run_reranker.py, of a Hugging Face"
    " folder with two labels or one; pytorch is a Hugging Face folder with"
    " pytorch_model.bin instead of model.safetensors. If not given, tensorflow"
    " if --input has a config.json, otherwise huggingface.",
    section="output",
    basic=True,
  )
  bert_config_file: str | None = option.path(
    None,
    "Config of a TensorFlow checkpoint. If not given, bert_config.json in the"
    " folder of the checkpoint.",
    basic=True,
  )
  vocab_file: str | None = option.path(
    None,
    "Vocabulary file with one WordPiece per line. If not given, the one in the"
    " folder of --input.",
    basic=True,
  )
  dtype: str = option.choice(
    "float32",
    ["float32", "float16", "bfloat16"],
    "Data type of the weights of a Hugging Face folder that is written.",
    section="output",
    needs="not to=tensorflow, not to=reranker",
  )
  do_lower_case: bool | None = option.boolean(
    None,
    "Treat the vocabulary as uncased. If not given, read from the files of"
    " --input.",
    alias="do_lower",
    basic=True,
  )
  strip_optimizer: bool = option.boolean(
    False,
    "Write a TensorFlow checkpoint without the state of the optimizer, which"
    " is two thirds of its size.",
    section="output",
    basic=True,
  )
  average: int | None = option.integer(
    None,
    "Write the mean of this many TensorFlow checkpoints, without the state of"
    " the optimizer: the last ones of the training run in --input, or those"
    " that it lists.",
    option.AT_LEAST_2,
    section="output",
    basic=True,
  )
  rename: Sequence[str] = option.texts(
    [],
    "Rename the variables of a TensorFlow checkpoint by a rule"
    " PATTERN=>REPLACEMENT with a Python regular expression. Can be repeated"
    " and combined with --strip_optimizer and --average.",
    section="output",
  )
  compare: str | None = option.path(
    None,
    "Second model, to compare the weights of --input with: a TensorFlow"
    " checkpoint, a Hugging Face folder or an exported SavedModel. Exits with"
    " status 1 if one differs by more than 0.0001.",
    section="evaluation",
    basic=True,
  )

  @property
  def rewrites(self) -> bool:
    """True if a TensorFlow checkpoint is written from others."""
    return bool(self.strip_optimizer or self.average or self.rename)

  def check(self) -> None:
    """Refuses flags without the one that they need, and two works at once."""
    if self.rewrites and (self.compare or self.to):
      raise InputError(
        "--strip_optimizer, --average and --rename write a TensorFlow"
        " checkpoint. Convert or compare it with a second command"
      )
    if not (self.output or self.compare):
      raise InputError("--output: not given. Name a folder to write to")
    listed = len(self.input.split(","))
    if self.average and listed not in (1, self.average):
      raise InputError(
        f"--average={self.average}: --input lists {listed} checkpoints. Give"
        f" --average={listed}, or the folder of a training run"
      )
