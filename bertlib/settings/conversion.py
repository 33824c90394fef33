"""Settings of convert_checkpoint.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.settings import option
from bertlib.settings.common import TextSettings
from bertlib.settings.ranges import AT_LEAST_2, NOT_NEGATIVE, SEQ_LENGTH

# Classes of Hugging Face.
ARCHITECTURES = (
  "BertModel",
  "BertForPreTraining",
  "BertForMaskedLM",
  "BertForNextSentencePrediction",
  "BertForQuestionAnswering",
  "BertForSequenceClassification",
  "BertForTokenClassification",
  "BertForMultipleChoice",
)


@dataclasses.dataclass(frozen=True)
class ConversionSettings:
  """Flags of convert_checkpoint.py."""

  REQUIRED: ClassVar[Sequence[str]] = ("input",)
  EXAMPLE: ClassVar[str] = (
    "python convert_checkpoint.py --input=hugging_face_folder"
    " --output=converted"
  )

  text: TextSettings = option.group(TextSettings)
  input: str | None = option.text(
    None,
    "A Hugging Face folder; or a TensorFlow checkpoint, or a folder that has"
    " one. With --average several checkpoints, with commas between.",
  )
  output: str | None = option.text(
    None, "Folder for what is written. Needed but for --compare and --dry_run."
  )
  overwrite: bool = option.boolean(
    False, "Whether to replace files in --output."
  )
  to: str | None = option.choice(
    None,
    ["tensorflow", "huggingface"],
    "What to write; where left out, tensorflow if --input has a config.json,"
    " else huggingface.",
  )
  bert_config_file: str | None = option.text(
    None,
    "The config of a TensorFlow checkpoint; where left out, bert_config.json"
    " beside it.",
  )
  vocab_file: str | None = option.text(
    None, "The vocabulary; where left out, the one that comes with --input."
  )
  architecture: str | None = option.choice(
    None,
    ARCHITECTURES,
    "The class that Hugging Face shall load; other heads are left out. Where"
    " it is not given, the heads decide.",
  )
  do_lower_case: bool | None = option.boolean(
    None,
    "Whether the vocabulary is for lower-cased words; where left out, what"
    " comes with --input decides.",
    alias="do_lower",
  )
  strip_optimizer: bool = option.boolean(
    False, "Writes a TensorFlow checkpoint without what its optimizer keeps."
  )
  average: bool = option.boolean(
    False, "Writes the mean of TensorFlow checkpoints."
  )
  last: int | None = option.integer(
    None,
    "With --average, how many of the last checkpoints of the training run in"
    " --input.",
    AT_LEAST_2,
  )
  rename: Sequence[str] = option.texts(
    [],
    "Writes a TensorFlow checkpoint with other names, by a rule"
    " PATTERN=>REPLACEMENT of Python's regular expressions. May come several"
    " times, and with the two above.",
  )
  dry_run: bool = option.boolean(
    False, "Prints old and new names and writes nothing."
  )
  compare: str | None = option.text(
    None,
    "A model to compare --input with, each of them a TensorFlow checkpoint, a"
    " Hugging Face folder or an exported SavedModel: by outputs on"
    " --text_file, or else by weights. Exits with status 1 where they do not"
    " agree.",
  )
  text_file: str | None = option.text(
    None, 'Texts, one a line, with " ||| " between two of a pair.'
  )
  tolerance: float = option.number(
    0.0001,
    "The largest difference of two numbers that still agree.",
    NOT_NEGATIVE,
  )
  max_seq_length: int = option.integer(
    128, "Tokens that are kept of a text.", SEQ_LENGTH
  )
