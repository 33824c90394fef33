"""Settings of extract_features.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.settings import option
from bertlib.settings.common import (
  ComputeSettings,
  DeviceSettings,
  ModelSettings,
  ReceiptSettings,
  TextSettings,
)
from bertlib.settings.ranges import AT_LEAST_1


@dataclasses.dataclass(frozen=True)
class FeatureSettings:
  """Flags of extract_features.py."""

  REQUIRED: ClassVar[Sequence[str]] = (
    "input_file",
    "output_file",
    "vocab_file",
    "bert_config_file",
    "init_checkpoint",
  )
  EXAMPLE: ClassVar[str] = (
    "python extract_features.py --input_file=text.txt"
    " --init_checkpoint=bert-base-uncased --output_file=features.jsonl"
  )

  model: ModelSettings = option.group(ModelSettings)
  text: TextSettings = option.group(TextSettings)
  compute: ComputeSettings = option.group(
    ComputeSettings,
    omit=[
      "gradient_accumulation_steps",
      "recompute_activations",
      "memory_gb",
      "optimizer_on_cpu",
    ],
  )
  devices: DeviceSettings = option.group(DeviceSettings)
  receipt: ReceiptSettings = option.group(ReceiptSettings)
  input_file: str | None = option.text(
    None,
    'Texts, one a line, with " ||| " before the second of a pair; - for'
    " standard input.",
  )
  output_file: str | None = option.text(None, "File for the results.")
  output_format: str = option.choice(
    "jsonl",
    ["jsonl", "npz"],
    "A JSON object a line; or, with --pooling, the NumPy array `vectors`, a"
    " row a line.",
  )
  layers: str = option.text(
    "-1,-2,-3,-4",
    "Layers to take, -1 the last and 0 the first. With --pooling, -1 alone if"
    " not given; the vectors of several are joined.",
  )
  pooling: str | None = option.choice(
    None,
    ["mean", "cls", "max"],
    "Gives one vector a text and not one a token: the mean or the maximum over"
    " its tokens, or that of [CLS].",
  )
  batch_size: int = option.integer(32, "Texts a step.", AT_LEAST_1)
  use_one_hot_embeddings: bool = option.boolean(
    False,
    "Whether words are looked up by a matrix product, which is faster on a"
    " TPU.",
  )
  given: frozenset[str] = frozenset()  # flags on the command line
