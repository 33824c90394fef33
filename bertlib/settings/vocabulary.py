"""Settings of create_vocab.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.cli import option
from bertlib.cli.ranges import AT_LEAST_1, Range
from bertlib.settings.common import TextSettings


@dataclasses.dataclass(frozen=True)
class VocabularySettings(option.CommandSettings):
  """Flags of create_vocab.py."""

  REQUIRED: ClassVar[Sequence[str]] = ("output_file",)
  EXAMPLE: ClassVar[str] = (
    "python create_vocab.py --input_file=text.txt --output_file=vocab.txt"
  )

  SECTION: ClassVar[str] = "data"

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
    "Replace existing files: --output_file, --output_checkpoint and"
    " --output_config.",
    section="output",
    basic=True,
  )
  do_lower_case: bool = option.boolean(
    True,
    "Lowercase the text and strip accents: true for uncased models, false for"
    " cased ones.",
    basic=True,
  )
  vocab_size: int = option.integer(
    30522,
    "Maximum number of vocabulary entries.",
    AT_LEAST_1,
    section="training",
    basic=True,
  )
  min_frequency: int = option.integer(
    2,
    "Minimum number of occurrences of a character or piece.",
    AT_LEAST_1,
    section="training",
    basic=True,
  )
  num_unused: int = option.integer(
    0,
    "Number of [unusedN] entries to reserve for words that are added later.",
    Range(0, 10**6),
    section="training",
    basic=True,
  )
  limit_alphabet: int | None = option.integer(
    None,
    "Maximum number of single characters in the vocabulary, the most frequent"
    " ones. If not given, there is no limit.",
    AT_LEAST_1,
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
    "Checkpoint to write, with the embeddings of the new words.",
    section="output",
    basic=True,
    is_output=True,
  )
  bert_config_file: str | None = option.path(
    None, "Config of --init_checkpoint.", section="model", basic=True
  )
  output_config: str | None = option.path(
    None,
    "Config to write for --output_checkpoint.",
    section="output",
    basic=True,
    is_output=True,
  )
  text: TextSettings = option.group(TextSettings)
  given: frozenset[str] = frozenset()  # flags on the command line
