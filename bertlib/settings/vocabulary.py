"""Settings of create_vocab.py."""

from __future__ import annotations

import dataclasses
import os

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.io import model_files
from bertlib.settings.common import TextSettings, lower_case_flag

# Flags of adding words, and those of them that come together.
_MODEL_FLAGS = ("init_checkpoint", "output_checkpoint", "bert_config_file")
_ADD_FLAGS = ("vocab_file", "grow", *_MODEL_FLAGS)


@dataclasses.dataclass(frozen=True)
class VocabularySettings(option.CommandSettings):
  """Flags of create_vocab.py."""

  REQUIRED = ("output_file",)
  EXAMPLE = (
    "python create_vocab.py --input_file=text.txt --output_file=vocab.txt"
  )
  SECTION = "data"

  input_file: str | None = option.path(
    None,
    "Text files to train the vocabulary on, plain or .gz: names or glob"
    " patterns, separated by commas.",
    basic=True,
  )
  output_file: str | None = option.path(
    None,
    "Vocabulary file to write.",
    section="output",
    basic=True,
    is_output=True,
  )
  overwrite: bool = option.boolean(
    False,
    "Replace existing files: --output_file, --output_checkpoint and the"
    " bert_config.json beside it.",
    section="output",
    basic=True,
  )
  do_lower_case: bool = lower_case_flag()
  vocab_size: int = option.integer(
    30522,
    "Maximum number of vocabulary entries.",
    option.AT_LEAST_1,
    section="training",
    basic=True,
  )
  add_words: str | None = option.path(
    None,
    "File with words, one per line, to add to --vocab_file. They replace its"
    " [unusedN] entries.",
    basic=True,
  )
  vocab_file: str | None = option.path(
    None,
    "Existing vocabulary that --add_words extends.",
    section="model",
    basic=True,
  )
  grow: bool = option.boolean(
    False,
    "Append the words of --add_words for which no [unusedN] entry is left.",
    basic=True,
  )
  init_checkpoint: str | None = option.path(
    None,
    "Checkpoint of the model of --vocab_file, to add embeddings of the new"
    " words to. Each is the mean of the embeddings of its old pieces, with"
    " Adam moments of 0; all other values are copied.",
    section="model",
    basic=True,
  )
  output_checkpoint: str | None = option.path(
    None,
    "Checkpoint to write, with the embeddings of the new words. Its config,"
    " bert_config.json, is written into the same folder.",
    section="output",
    basic=True,
    is_output=True,
  )
  bert_config_file: str | None = option.path(
    None, "Config of --init_checkpoint.", section="model", basic=True
  )
  text: TextSettings = option.group(TextSettings)
  given: frozenset[str] = frozenset()  # flags on the command line

  @property
  def output_config(self) -> str | None:
    """The config to write beside --output_checkpoint."""
    if not self.output_checkpoint:
      return None
    folder = os.path.dirname(self.output_checkpoint)
    return os.path.join(folder, model_files.CONFIG)

  def check(self) -> None:
    """Refuses flags of the other mode, and a part of those of a model."""
    learns = self.input_file is not None
    if learns != (self.add_words is None):
      raise InputError(
        "give either --input_file, to learn a vocabulary from, or --add_words,"
        " to add to one"
      )
    unused, mode = ("vocab_size",), "input_file"
    if learns:
      unused, mode = _ADD_FLAGS, "add_words"
    for name in unused:
      if name in self.given:
        raise InputError(f"--{name} goes with --{mode}; leave it out")
    if not learns and self.vocab_file is None:
      raise InputError("--add_words needs --vocab_file, to add them to")
    missing = [name for name in _MODEL_FLAGS if not getattr(self, name)]
    if missing and len(missing) < len(_MODEL_FLAGS):
      raise InputError(f"to add to a model, give --{', --'.join(missing)} too")
