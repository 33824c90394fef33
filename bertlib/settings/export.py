"""Settings of export_model.py."""

from __future__ import annotations

import dataclasses

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.settings.command import ModelCommand
from bertlib.settings.common import ModelSettings, QuantizationSettings


@dataclasses.dataclass(frozen=True)
class ExportSettings(ModelCommand):
  """Flags of export_model.py."""

  REQUIRED = ("export_dir",)
  EXAMPLE = (
    "python export_model.py --model_dir=output/mrpc --export_dir=exported"
  )
  SECTION = "output"

  model_dir: str | None = option.path(
    None,
    "Folder of a training run (its --output_dir), which has checkpoint, config"
    " and vocabulary.",
    section="model",
    basic=True,
  )
  export_dir: str | None = option.path(
    None, "Folder to create for the exported model.", basic=True, is_output=True
  )
  overwrite: bool = option.boolean(
    False, "Replace an earlier export in --export_dir.", basic=True
  )
  format: str = option.choice(
    "saved_model",
    ["saved_model", "gguf", "onnx"],
    "saved_model for TensorFlow; onnx for ONNX Runtime and OpenVINO; gguf for"
    " llama.cpp and Ollama: sentence vectors, or with --encoder hidden states.",
    basic=True,
  )
  encoder: bool = option.boolean(
    False, "Export only the encoder, without the task's head.", basic=True
  )
  task_module: str | None = option.text(
    None,
    "Module of a task of your own, such as examples.two_heads. Its RECORD says"
    " how its models are exported.",
    section="model",
  )
  seq_length: int | None = option.integer(
    None,
    "Fixed sequence length in tokens, for hardware that needs static shapes."
    " If not given, the model takes any length.",
    option.SEQ_LENGTH,
    basic=True,
    needs="not format=gguf",
  )
  precision: str = option.choice(
    "auto",
    ["float32", "bfloat16", "float16", "auto"],
    "Compute precision of the exported model; with --quantize=int8, that of"
    " attention. auto is float32, or bfloat16 with --quantize=int8 on a"
    " processor with instructions for it.",
    basic=True,
  )
  quantize: str = option.choice(
    "none",
    ["none", "int8", "dynamic_int8"],
    "int8 computes the encoder's dense layers in 8 bits, for x86 CPUs with"
    " TensorFlow 2.17 or newer. dynamic_int8 writes a TensorFlow Lite model"
    " with 8-bit weights and matrix products, which takes the token ids of"
    " texts or pairs. With --format=gguf, int8 is Q8_0.",
    basic=True,
  )
  quantization: QuantizationSettings = option.group(
    QuantizationSettings,
    calibration_file={
      "help": "With int8: text file, one text or pair 'A ||| B' per line, of"
      " which 256 are used to measure the ranges of the 8-bit layers. The"
      " ranges are kept in quantization.json in --model_dir. Not needed if it"
      " is there.",
      "section": "output",
    },
    int8_skip_layers={"section": "output"},
  )
  model: ModelSettings = option.group(
    ModelSettings,
    omit=["max_input_chars_per_word"],
    init_checkpoint={
      "help": "Checkpoint to export: its path without .index; or the name of a"
      " published model (see docs/how_to/models.md) or the folder of a"
      " model, which bring config and vocabulary. If not given, the best or"
      " last one in --model_dir."
    },
    bert_config_file={
      "help": "JSON file with the sizes of the model. If not given, that of"
      " --model_dir or --init_checkpoint."
    },
    vocab_file={
      "help": "Vocabulary file with one WordPiece per line, needed to export a"
      " model that takes text. If not given, that of --model_dir or"
      " --init_checkpoint."
    },
    bert_hub_module_handle={
      "help": "Folder or URL of a TensorFlow Hub encoder to export instead of"
      " --init_checkpoint."
    },
    max_seq_length={
      "default": None,
      "help": "Maximum sequence length in tokens; longer texts are truncated."
      " If not given, that of --model_dir, or 128.",
    },
  )
  given: frozenset[str] = frozenset()  # flags on the command line

  def check(self) -> None:
    """Refuses precisions that a format or the 8-bit layers do not have."""
    if self.format != "saved_model":
      for name, value in (
        ("precision", "bfloat16"),
        ("quantize", "dynamic_int8"),
      ):
        if getattr(self, name) == value:
          raise InputError(
            f"--{name}={value}: not with --format={self.format}. Give"
            " --precision=float16 or --quantize=int8"
          )
    if self.quantize == "int8" and self.precision == "float16":
      raise InputError(
        "--precision=float16: not with --quantize=int8. Give float32 or"
        " bfloat16"
      )
    if self.quantize == "dynamic_int8" and "precision" in self.given:
      raise InputError(
        f"--precision={self.precision}: has no effect with"
        " --quantize=dynamic_int8, which computes in 8 bits and float32. Leave"
        " out one of them"
      )
