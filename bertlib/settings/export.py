"""Settings of export_model.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.settings import option
from bertlib.settings.common import ModelSettings
from bertlib.settings.ranges import SEQ_LENGTH


@dataclasses.dataclass(frozen=True)
class ExportSettings:
  """Flags of export_model.py."""

  REQUIRED: ClassVar[Sequence[str]] = ("export_dir",)
  EXAMPLE: ClassVar[str] = (
    "python export_model.py --model_dir=output/mrpc --export_dir=exported"
  )

  model: ModelSettings = option.group(ModelSettings, max_seq_length=None)
  model_dir: str | None = option.text(
    None, "Folder of a training run: its --output_dir."
  )
  export_dir: str | None = option.text(None, "Folder to make.")
  encoder: bool = option.boolean(
    False, "Whether to export the encoder alone, without its task."
  )
  seq_length: int | None = option.integer(
    None,
    "Length of every batch, for what needs static shapes; any length if not"
    " given.",
    SEQ_LENGTH,
  )
  precision: str = option.choice(
    "float32", ["float32", "bfloat16", "float16"], "What to compute in."
  )
  quantize: str = option.choice(
    "none",
    ["none", "dynamic_int8"],
    "dynamic_int8 exports for TensorFlow Lite, with weights and matrix"
    " products of 8 bits; it takes the ids of one text.",
  )
