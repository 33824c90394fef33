"""Settings of create_vocab.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.settings import option
from bertlib.settings.common import TextSettings
from bertlib.settings.ranges import AT_LEAST_1, COUNT


@dataclasses.dataclass(frozen=True)
class VocabularySettings:
  """Flags of create_vocab.py."""

  REQUIRED: ClassVar[Sequence[str]] = ("output_file",)
  EXAMPLE: ClassVar[str] = (
    "python create_vocab.py --input_file=text.txt --output_file=vocab.txt"
  )

  text: TextSettings = option.group(TextSettings)
  input_file: str | None = option.text(
    None,
    "Text to learn from: files and globs with commas between, plain or .gz.",
  )
  output_file: str | None = option.text(None, "The vocabulary to write.")
  do_lower_case: bool = option.boolean(
    True, "Whether to lower-case and strip accents."
  )
  vocab_size: int = option.integer(30522, "Entries.", AT_LEAST_1)
  min_frequency: int = option.integer(
    2, "How often a character or piece has to come to be an entry.", AT_LEAST_1
  )
  num_unused: int = option.integer(
    0, "Entries [unusedN], places for words of later.", COUNT
  )
  limit_alphabet: int | None = option.integer(
    None,
    "How many characters are entries, the most frequent; all if not given.",
    AT_LEAST_1,
  )
  add_words: str | None = option.text(
    None, "Words, one a line, to put in the [unusedN] places of --vocab_file."
  )
  vocab_file: str | None = option.text(None, "The vocabulary to add words to.")
  grow: bool = option.boolean(
    False, "Whether to append the words for which there is no place."
  )
  init_checkpoint: str | None = option.text(
    None,
    "A checkpoint of --vocab_file's model, to give the new words embeddings:"
    " the mean of their pieces'. Adam's moments of these are 0, and all other"
    " numbers stay.",
  )
  output_checkpoint: str | None = option.text(None, "The checkpoint to write.")
  bert_config_file: str | None = option.text(
    None, "The config of --init_checkpoint."
  )
  output_config: str | None = option.text(
    None, "The config to write, of --output_checkpoint."
  )
  given: frozenset[str] = frozenset()  # flags on the command line
