"""The flags that determine the records of a pretraining, and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set
from typing import Any

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.settings.common import TextSettings, lower_case_flag


def mask_split_flag(needs: str = "") -> Any:
  """The flag `--mask_split` of two commands."""
  return option.integers(
    [80, 10, 10],
    "Parts of the masked tokens that become [MASK], become a random token, and"
    " stay unchanged.",
    option.COUNT,
    needs=needs,
  )


def check_masking(settings: Any, length: int, given: Set[str]) -> None:
  """Refuses masks that sequences of `length` cannot have."""
  split = settings.mask_split
  if len(split) != 3 or not any(split):
    raise InputError(
      f"--mask_split={','.join(map(str, split))}: not three parts. Give"
      " those of [MASK], random and unchanged tokens, such as 80,10,10"
    )
  masks = settings.max_predictions_per_seq
  if masks > length and "max_predictions_per_seq" in given:
    raise InputError(
      f"--max_predictions_per_seq={masks}: more masked tokens than a sequence"
      f" has tokens, --max_seq_length={length}. Give fewer; typical is"
      " --max_seq_length times --masked_lm_prob"
    )


def max_sequences_flag() -> Any:
  """The flag `--max_sequences_per_row` of two commands."""
  return option.integer(
    8,
    "Maximum number of sequences to pack into a row.",
    option.AT_LEAST_1,
    needs="pack",
  )


@dataclasses.dataclass(frozen=True)
class Recipe(TextSettings):
  """Flags that determine the records of a text."""

  vocab_file: str | None = option.path(
    None,
    "Vocabulary file with one WordPiece per line, or tokenizer.json.",
    section="model",
    basic=True,
  )
  do_lower_case: bool = lower_case_flag(alias="do_lower", section="model")
  max_seq_length: int = option.integer(
    128,
    "Maximum sequence length in tokens, including [CLS] and [SEP].",
    option.SEQ_LENGTH,
    basic=True,
  )
  max_predictions_per_seq: int = option.integer(
    20,
    "Maximum number of masked tokens per sequence.",
    option.AT_LEAST_1,
    basic=True,
  )
  masked_lm_prob: float = option.number(
    0.15, "Fraction of the tokens to mask.", option.FRACTION, basic=True
  )
  mask_split: Sequence[int] = mask_split_flag()
  segments: str = option.choice(
    "pairs",
    ["pairs", "sentences", "documents"],
    "Text of a record: pairs is two segments, for next sentence prediction;"
    " sentences is consecutive sentences of a document, as many as fit;"
    " documents is the same across the borders of documents, with [SEP]"
    " between them. The last two are for run_pretraining.py --objective=mlm.",
    basic=True,
  )
  pack: bool = option.boolean(
    False,
    "Pack several sequences into each row of --max_seq_length tokens, so that"
    " little of it is padding. Tokens attend to those of their own sequence.",
    basic=True,
  )
  max_sequences_per_row: int = max_sequences_flag()
  short_seq_prob: float = option.number(
    0.1,
    "Fraction of the documents whose sequences get a random length below"
    " --max_seq_length.",
    option.FRACTION,
    basic=True,
  )
  dupe_factor: int = option.integer(
    10,
    "Number of passes over the text, each with different masks.",
    option.AT_LEAST_1,
    basic=True,
  )
  random_seed: int = option.integer(
    12345,
    "Random seed. The same seed gives the same records.",
    option.FINITE,
    basic=True,
  )
  do_whole_word_mask: bool = option.boolean(
    False, "Whole word masking: mask all pieces of a word.", basic=True
  )
  do_span_mask: bool = option.boolean(
    False,
    "Span masking: mask spans of 1 to 10 whole words, whose lengths are"
    " geometrically distributed with p = 0.2 (SpanBERT).",
  )
  word_boundaries: str = option.choice(
    "pieces",
    ["pieces", "spaces"],
    "Definition of a word for --do_whole_word_mask: pieces is a piece and the"
    " ## pieces after it; spaces is the text between two spaces, for text that"
    " is already segmented, such as Chinese.",
    needs="do_whole_word_mask",
  )
  split_sentences: str = option.text(
    "",
    "Language code (en, de, zh, ...) of running text with one paragraph per"
    " line, to split it into sentences. A language that the package does not"
    " know is split as English. If empty, the text has one sentence per line.",
  )
