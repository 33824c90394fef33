"""Bases of the settings classes of commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.settings import model_description
from bertlib.settings.common import (
  ComputeSettings,
  DeviceSettings,
  ModelSettings,
  QuantizationSettings,
  ReceiptSettings,
  TextSettings,
)
from bertlib.settings.training import OptimizerSettings, RunSettings


class RecordedSettings(option.CommandSettings):
  """Settings of a command that writes a receipt.

  Attributes:
    receipt: flags about the receipt.
    output: the folder or the first file that the command writes.
    run: None in a command without --output_dir.
    compute: None in a command that computes nothing with a model.
    devices: None in such a command too.
  """

  receipt: ReceiptSettings
  output: str
  run: RunSettings | None = None
  compute: ComputeSettings | None = None
  devices: DeviceSettings | None = None


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

  model: ModelSettings
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

  text: TextSettings
  compute: ComputeSettings
  quantization: QuantizationSettings
  devices: DeviceSettings

  def check(self) -> None:
    """Refuses a computation that the devices do not do."""
    run, kind = self.run, self.compute.precision
    if kind == "int8" and run and run.do_train:
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
      if run and run.seeds:
        raise InputError(
          f"--seeds={run.seeds}: not with --distribution=multi_worker. Train"
          " once per --seed, each in its own --output_dir"
        )
      if not (run and run.do_train):
        raise InputError(
          "--distribution=multi_worker is for training. Add --do_train, or"
          " evaluate and predict on one machine"
        )


@dataclasses.dataclass(frozen=True)
class TrainingSettings(EstimatorSettings):
  """Settings of all training scripts; each adds its own.

  Attributes:
    ACTIONS: flags of which at least one must be given.
  """

  REQUIRED = ("vocab_file", "bert_config_file", "output_dir")
  ACTIONS: ClassVar[Sequence[str]] = ("do_train", "do_eval", "do_predict")
  NEEDS_OWN_MODEL = True
  SECTION = "data"

  model: ModelSettings = option.group(ModelSettings)
  text: TextSettings = option.group(TextSettings)
  run: RunSettings = option.group(RunSettings)
  optimizer: OptimizerSettings = option.group(OptimizerSettings)
  compute: ComputeSettings = option.group(ComputeSettings)
  quantization: QuantizationSettings = option.group(QuantizationSettings)
  devices: DeviceSettings = option.group(DeviceSettings)
  receipt: ReceiptSettings = option.group(ReceiptSettings)

  @property
  def output(self) -> str:
    """The --output_dir."""
    return self.run.output_dir

  @property
  def model_dir(self) -> str:
    """The --output_dir, where the trained model is."""
    return self.run.output_dir

  @property
  def trains(self) -> bool:
    """True with --do_train."""
    return self.run.do_train

  def check(self) -> None:
    """Refuses a run that would do nothing, or a batch that is not divided."""
    super().check()
    run, num_micro_batches = self.run, self.compute.gradient_accumulation_steps
    values = option.values_of(self)
    if not any(values[name] for name in self.ACTIONS):
      raise InputError(
        "nothing to do; give one or more of --" + ", --".join(self.ACTIONS)
      )
    evaluates_by = "eval_batch_size"
    if evaluates_by not in values:  # but by predictions
      evaluates_by = "predict_batch_size"
    for flag, is_used in (
      ("train_batch_size", run.do_train),
      (evaluates_by, run.evaluates),
      ("predict_batch_size", run.do_predict),
    ):
      size, cores = values[flag], self.devices.num_tpu_cores
      if self.devices.on_tpu and is_used and size % cores:
        raise InputError(
          f"--{flag}={size} cannot be divided among {cores} TPU cores. Give a"
          " multiple of that"
        )
    if (
      run.do_train
      and self.compute.memory_gb is None
      and run.train_batch_size % num_micro_batches
    ):
      raise InputError(
        f"--gradient_accumulation_steps={num_micro_batches} does not divide"
        f" --train_batch_size={run.train_batch_size}"
      )

  def need(self, flag: str, action: str, is_needed: bool = True) -> None:
    """Refuses a flag that is not given but needed with another."""
    if is_needed and not getattr(self, flag):
      raise InputError(f"--{flag} is needed with --{action}")
