"""Settings of create_pretraining_data.py."""

from __future__ import annotations

import dataclasses
import os

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.io import files
from bertlib.settings.command import RecordedSettings
from bertlib.settings.common import ReceiptSettings
from bertlib.tasks.pretraining.recipe import Recipe, check_masking


@dataclasses.dataclass(frozen=True)
class PretrainingDataSettings(RecordedSettings):
  """Flags of create_pretraining_data.py."""

  REQUIRED = ("input_file", "output_file", "vocab_file")
  EXAMPLE = (
    "python create_pretraining_data.py --input_file=text.txt"
    " --vocab_file=vocab.txt --output_file=data.tfrecord"
  )
  SECTION = "data"

  input_file: str | None = option.path(
    None,
    "Text files, plain or .gz: names or glob patterns, separated by commas. One"
    " sentence per line, a blank line between documents.",
    basic=True,
  )
  output_file: str | None = option.path(
    None,
    "TFRecord files to write, separated by commas.",
    section="output",
    basic=True,
    is_output=True,
  )
  num_shards: int = option.integer(
    0,
    "Number of files to split a single --output_file into, named"
    " NAME-00000-of-00010 and so on. 0 writes --output_file itself.",
    option.SHARDS,
    section="output",
    basic=True,
  )
  recipe: Recipe = option.group(Recipe)
  num_workers: int = option.integer(
    0,
    "Number of processes that work on blocks of the text, for a corpus of any"
    " size; the result does not depend on it. 0 is one process that holds all"
    " text in memory and writes the records of google-research/bert.",
    option.PARALLEL,
    section="devices",
    basic=True,
  )
  receipt: ReceiptSettings = option.group(ReceiptSettings)
  given: frozenset[str] = frozenset()  # flags on the command line

  @property
  def output(self) -> str:
    """The first name of --output_file."""
    return "".join(files.split_names(self.output_file)[:1])

  def check(self) -> None:
    """Refuses sequences without room, and flags that need another."""
    length = self.recipe.max_seq_length
    check_masking(self.recipe, length, self.given)
    if self.recipe.segments == "pairs" and length < 5:
      raise InputError(
        f"--max_seq_length={length}: too short for a pair of"
        " segments with [CLS] and two [SEP]. Give at least 5"
      )
    if vocabulary.is_subword(self.recipe.vocab_file or ""):
      vocabulary.check_own_rules(self.recipe.vocab_file, self.given)
    names = files.split_names(self.output_file)
    if not all(names or [""]):
      raise InputError("--output_file: names no file, or an empty name")
    if self.num_shards and len(names) > 1:
      raise InputError("--num_shards goes with one --output_file")
    if len(set(map(os.path.normpath, names))) < len(names):
      raise InputError("--output_file: names a file twice")


@dataclasses.dataclass(frozen=True)
class BeamDataSettings(PretrainingDataSettings):
  """Flags of create_pretraining_data_beam.py."""

  PASSES_ON_ARGUMENTS = True
  EXAMPLE = (
    "python create_pretraining_data_beam.py --input_file=text.txt"
    " --vocab_file=vocab.txt --output_file=data.tfrecord --num_shards=500"
    " -- --runner=FlinkRunner"
  )
