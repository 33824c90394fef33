"""Settings of extract_features.py."""

from __future__ import annotations

import dataclasses

from bertlib.cli import option
from bertlib.settings import common
from bertlib.settings.command import EstimatorSettings
from bertlib.settings.common import LongTextSettings


@dataclasses.dataclass(frozen=True)
class FeatureSettings(EstimatorSettings):
  """Flags of extract_features.py."""

  REQUIRED = (
    "input_file",
    "output_file",
    "vocab_file",
    "bert_config_file",
    "init_checkpoint",
  )
  EXAMPLE = (
    "python extract_features.py --input_file=text.txt"
    " --init_checkpoint=bert-base-uncased --output_file=features.jsonl"
  )
  SECTION = "output"

  input_file: str | None = option.path(
    None,
    'Texts, one per line, with " ||| " before the second text of a pair; - for'
    " standard input.",
    section="data",
    basic=True,
  )
  output_file: str | None = option.path(
    None, "File to write the features to.", basic=True, is_output=True
  )
  output_format: str = option.choice(
    "jsonl",
    ["jsonl", "npz"],
    "jsonl writes one JSON object per line of input. npz, which needs"
    " --pooling or a model of sentence vectors, writes the NumPy array vectors"
    " with one row per line of input.",
    basic=True,
  )
  layers: str = option.text(
    "-1,-2,-3,-4",
    "Layers to write, separated by commas; 0 is the first, -1 the last. With"
    " --pooling the default is -1, and the vectors of several layers are"
    " concatenated.",
    basic=True,
  )
  pooling: str | None = option.choice(
    None,
    ["mean", "cls", "max"],
    "Write one vector per text instead of one per token: the mean or maximum"
    " over its tokens, or the vector of [CLS]. A model of sentence vectors does"
    " that as it was trained, unless --pooling or --layers is given.",
    basic=True,
  )
  prompt: str | None = option.text(
    None,
    "Name of the prompt of a model of sentence vectors that is put before each"
    " line, such as query or passage. If not given, the model's default prompt,"
    " or else none.",
    basic=True,
  )
  batch_size: int = option.integer(
    32,
    "Number of texts per step.",
    option.AT_LEAST_1,
    section="devices",
    basic=True,
  )
  use_one_hot_embeddings: bool = option.boolean(
    False,
    "Look up word embeddings by a one-hot matrix product, which is faster on a"
    " TPU.",
    section="devices",
  )
  model: common.ModelSettings = option.group(
    common.ModelSettings,
    init_checkpoint={
      "help": "Checkpoint of the model: its path without .index, or the name"
      " of a published model (see docs/how_to/models.md) or the folder of a"
      " model, which bring config and vocabulary."
    },
    bert_hub_module_handle={
      "help": "Folder or URL of a TensorFlow Hub encoder to use instead of"
      " --init_checkpoint. It brings its config, and its vocabulary if it has"
      " one."
    },
  )
  text: common.TextSettings = option.group(common.TextSettings)
  cutting: LongTextSettings = option.group(
    LongTextSettings, omit=["join_windows"]
  )
  compute: common.ComputeSettings = option.group(
    common.ComputeSettings,
    omit=[
      "gradient_accumulation_steps",
      "recompute_activations",
      "memory_gb",
    ],
    precision={
      "help": "Compute precision of matrix products and activations; weights"
      " stay float32. auto selects the fastest precision that the device"
      " supports."
    },
    xla={
      "help": "Use XLA to fuse the operations between matrix products."
      " Compilation takes about a second per batch shape. auto is on where"
      " there is no GPU."
    },
  )
  quantization: common.QuantizationSettings = option.group(
    common.QuantizationSettings,
    calibration_file={
      "help": "With int8: text file, one text or pair 'A ||| B' per line, of"
      " which 256 are used to measure the ranges of the 8-bit layers. If not"
      " given, those of --input_file."
    },
  )
  devices: common.DeviceSettings = option.group(common.DeviceSettings)
  receipt: common.ReceiptSettings = option.group(common.ReceiptSettings)
  given: frozenset[str] = frozenset()  # flags on the command line

  @property
  def output(self) -> str:
    """The --output_file."""
    return self.output_file
