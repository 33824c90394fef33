"""Settings of create_pretraining_data.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.settings import option
from bertlib.settings.common import ReceiptSettings, TextSettings
from bertlib.settings.ranges import (
  AT_LEAST_1,
  COUNT,
  FINITE,
  FRACTION,
  SEQ_LENGTH,
  SHARDS,
)


@dataclasses.dataclass(frozen=True)
class PretrainingDataSettings:
  """Flags of create_pretraining_data.py."""

  REQUIRED: ClassVar[Sequence[str]] = (
    "input_file",
    "output_file",
    "vocab_file",
  )
  EXAMPLE: ClassVar[str] = (
    "python create_pretraining_data.py --input_file=text.txt"
    " --vocab_file=vocab.txt --output_file=data.tfrecord"
  )

  text: TextSettings = option.group(TextSettings)
  receipt: ReceiptSettings = option.group(ReceiptSettings)
  input_file: str | None = option.text(
    None,
    "Text files, names and wildcards with commas between; .gz is unpacked. A"
    " sentence a line, a blank line between documents.",
  )
  output_file: str | None = option.text(
    None, "TFRecord files to write, with commas between."
  )
  num_shards: int = option.integer(
    0,
    "Makes of one --output_file that many: NAME-00000-of-00010 and so on.",
    SHARDS,
  )
  vocab_file: str | None = option.text(
    None, "Vocabulary, one word piece a line."
  )
  do_lower_case: bool = option.boolean(
    True,
    "Whether text is lower-cased and loses its accents: true for uncased"
    " models, false for cased ones.",
    alias="do_lower",
  )
  max_seq_length: int = option.integer(128, "Tokens a record.", SEQ_LENGTH)
  max_predictions_per_seq: int = option.integer(
    20, "Most masked tokens a record.", AT_LEAST_1
  )
  masked_lm_prob: float = option.number(
    0.15, "Share of the tokens that is masked.", FRACTION
  )
  short_seq_prob: float = option.number(
    0.1, "Share of the documents cut into shorter stretches than fit.", FRACTION
  )
  dupe_factor: int = option.integer(
    10,
    "How often the text is gone through, each time with other masks.",
    AT_LEAST_1,
  )
  random_seed: int = option.integer(12345, "Fixes all draws.", FINITE)
  do_whole_word_mask: bool = option.boolean(
    False, "Whether the pieces of a word are masked together."
  )
  whole_word_draw: str = option.choice(
    "piece",
    ["piece", "word"],
    "Of a masked word, whether each piece is drawn to become [MASK], another"
    " or itself, or all of them by one draw.",
  )
  word_boundaries: str = option.choice(
    "pieces",
    ["pieces", "spaces"],
    "What a whole word is: a piece and the ## pieces after it; or what stands"
    " between spaces, in text segmented beforehand, as Chinese has to be.",
  )
  truncate_prob: float = option.number(
    0.0,
    "Share of the sentences cut at a random place, for a model that is to read"
    " more than whole sentences; 0.02 is enough.",
    FRACTION,
  )
  split_sentences: str = option.text(
    "",
    "Language (en, de, zh, ...) of running text, a paragraph a line, that has"
    " yet to be cut into sentences.",
  )
  num_workers: int = option.integer(
    0,
    "Processes that work on blocks of the text, of any size in all; the result"
    " is the same for any number. 0: one process, all text in memory, and the"
    " records of google-research/bert.",
    COUNT,
  )
  given: frozenset[str] = frozenset()  # flags on the command line
