"""Bases of the settings classes of commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.settings import common, model_description
from bertlib.settings.common import TRUNCATE, LongTextSettings


class RecordedSettings(option.CommandSettings):
  """Settings of a command that writes a receipt.

  Attributes:
    receipt: flags about the receipt.
    output: the folder or the first file that the command writes.
    flags: `training.RunSettings`; None in a command without --output_dir.
    compute: None in a command that computes nothing with a model.
    devices: None in such a command too.
  """

  receipt: common.ReceiptSettings
  output: str
  flags: Any = None
  compute: common.ComputeSettings | None = None
  devices: common.DeviceSettings | None = None


class ModelCommand(option.CommandSettings):
  """Settings of a command that reads a model, which its folder completes.

  Attributes:
    SCRIPT: `script` in `model.json` of the models that the command trains.
    NEEDS_OWN_MODEL: refuse models that another script has trained.
    KEPT_IN_TRAINING: flags that a training takes from the model it starts from.
    model: names the model.
    model_dir: folder of a trained model, or None.
    trains: whether the command trains the model.
  """

  SCRIPT: ClassVar[str | None] = None
  NEEDS_OWN_MODEL: ClassVar[bool] = False
  KEPT_IN_TRAINING: ClassVar[Sequence[str]] = model_description.TEXT

  model: common.ModelSettings
  model_dir: str | None = None
  trains: bool = False

  def completed(self: option.Settings) -> option.Settings:
    """See base class."""
    return model_description.complete(self)

  def entries_as_flags(self, description: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that a `model.json` of this script has kept, by name."""
    return {
      name: description[name]
      for name, flag in option.declarations(type(self))
      if flag.kept and name in description
    }


class EstimatorSettings(RecordedSettings, ModelCommand):
  """Settings of a command that runs a model, in training or without."""

  BROUGHT_BY_MODEL = ("vocab_file", "bert_config_file", "init_checkpoint")

  text: common.TextSettings
  compute: common.ComputeSettings
  quantization: common.QuantizationSettings
  devices: common.DeviceSettings
  cutting: LongTextSettings = TRUNCATE

  def warnings(self) -> Iterator[str]:
    """Yields a warning if the windows of a text do not overlap."""
    cutting, length = self.cutting, self.model.max_seq_length
    if cutting.has_windows and (cutting.doc_stride or 0) > length - 2:
      yield (
        f"--doc_stride={cutting.doc_stride} is longer than the text in a window"
        f" of --max_seq_length={length}: windows do not overlap"
      )

  def check(self) -> None:
    """Refuses a computation that the devices do not do."""
    if self.cutting.has_windows and self.devices.on_tpu:
      raise InputError(
        "--long_texts=windows: not on a TPU, which keeps no predictions to"
        " join. Give --long_texts=head_tail, or another device"
      )
    flags, kind = self.flags, self.compute.precision
    if kind == "int8" and flags and flags.do_train:
      raise InputError(
        "--precision=int8: for evaluation and prediction only. Train with"
        " --precision=auto, then evaluate and predict with int8"
      )
    if kind == "int8" and self.devices.on_tpu:
      raise InputError(
        "--precision=int8: for CPUs only. Give --precision=bfloat16 on a TPU"
      )
    if kind == "float16" and self.devices.on_tpu:
      raise InputError(
        "--precision=float16 cannot be used with --use_tpu: TPUs have no fast"
        " float16. Give --precision=bfloat16"
      )
    if self.devices.distribution == "multi_worker":
      if flags and flags.seeds:
        raise InputError(
          f"--seeds={flags.seeds}: not with --distribution=multi_worker. Train"
          " once per --seed, each in its own --output_dir"
        )
      if not (flags and flags.do_train):
        raise InputError(
          "--distribution=multi_worker is for training. Add --do_train, or"
          " evaluate and predict on one machine"
        )
