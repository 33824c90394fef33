"""Settings of the training scripts: optimizer, steps, saving, evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.io.receipt_file import DEV_DATA, TRAINING_DATA
from bertlib.settings import common
from bertlib.settings.command import EstimatorSettings

# Keys of the tables in `optimization`, repeated here because that module
# imports TensorFlow.
OPTIMIZERS = ("adamw", "adam", "lamb")
SCHEDULES = ("linear", "constant", "cosine", "polynomial", "trapezoidal")


@dataclasses.dataclass(frozen=True)
class OptimizerSettings(option.Group):
  """Optimizer, learning-rate schedule, clipping and frozen layers."""

  SECTION = "training"
  NEEDS = "do_train"

  learning_rate: float = option.number(
    5e-05,
    "Peak learning rate, reached at the end of the warm-up.",
    option.NOT_NEGATIVE,
    basic=True,
  )
  warmup_proportion: float = option.number(
    0.1,
    "Fraction of the training steps over which the learning rate rises from 0"
    " to --learning_rate.",
    option.FRACTION,
    basic=True,
  )
  optimizer: str = option.choice(
    "adamw",
    OPTIMIZERS,
    "adamw: BERT's Adam with weight decay and without bias correction. adam:"
    " with bias correction and without weight decay. lamb: for large batches,"
    " scales the update of each weight by its norm.",
  )
  bias_correction: bool = option.boolean(
    False,
    "Use Adam's bias correction with --optimizer=adamw; adam and lamb always"
    " use it. BERT was trained without; fine-tuning on small datasets is more"
    " stable with it.",
    needs="optimizer=adamw",
  )
  beta_2: float = option.number(
    0.999,
    "Exponential decay rate of the optimizer's second moment.",
    option.FRACTION_BELOW_1,
  )
  epsilon: float = option.number(
    1e-06,
    "Constant added to the square root of the second moment, for numerical"
    " stability.",
    option.POSITIVE,
  )
  weight_decay: float | None = option.number(
    None,
    "Decoupled weight decay rate, multiplied by the learning rate; biases and"
    " LayerNorm are excluded. If not given, 0.01 for adamw and lamb, 0 for"
    " adam.",
    option.NOT_NEGATIVE,
  )
  clip_norm: float = option.number(
    1.0,
    "Maximum global norm of the gradients; larger gradients are scaled down to"
    " it. 0 disables clipping.",
    option.NOT_NEGATIVE,
  )
  schedule: str = option.choice(
    "linear",
    SCHEDULES,
    "Learning-rate decay after the warm-up. constant keeps the peak rate; the"
    " others reach 0 at the end of training. trapezoidal keeps the peak rate up"
    " to the last --decay_proportion. polynomial is linear: its exponent is"
    " StepOptions.power, from Python.",
  )
  decay_proportion: float = option.number(
    0.1,
    "Fraction of the training, its last part, over which the learning rate"
    " falls to 0 with --schedule=trapezoidal.",
    option.FRACTION._replace(includes_low=False),
    needs="schedule=trapezoidal",
  )
  layer_decay: float = option.number(
    1.0,
    "Layer-wise learning-rate decay: each layer uses this factor times the"
    " rate of the layer above. 1 gives all layers the same rate.",
    option.FRACTION,
  )
  freeze_layers: int = option.integer(
    0,
    "Number of encoder layers to freeze, counted from the lowest.",
    option.COUNT,
  )
  freeze_embeddings: bool = option.boolean(False, "Freeze the embeddings.")


@dataclasses.dataclass(frozen=True)
class RunSettings(option.Group):
  """A run: output folder, actions, batches, length, saving, evaluation."""

  SECTION = "training"

  output_dir: str | None = option.path(
    None,
    "Folder for checkpoints, TFRecords and results.",
    section="output",
    basic=True,
    is_output=True,
  )
  do_train: bool = option.boolean(
    False, "Train on the training set.", basic=True
  )
  do_eval: bool = option.boolean(
    False, "Evaluate on the dev set.", section="evaluation", basic=True
  )
  do_predict: bool = option.boolean(
    False,
    "Write predictions for the test set.",
    section="evaluation",
    basic=True,
  )
  train_batch_size: int = option.integer(
    32,
    "Examples per training step, over all devices.",
    option.AT_LEAST_1,
    basic=True,
    needs="do_train",
  )
  eval_batch_size: int = option.integer(
    8,
    "Examples per evaluation step.",
    option.AT_LEAST_1,
    section="evaluation",
    needs="do_eval or eval_steps",
  )
  predict_batch_size: int = option.integer(
    8,
    "Examples per prediction step.",
    option.AT_LEAST_1,
    section="evaluation",
    needs="do_predict",
  )
  num_train_epochs: float = option.number(
    3.0,
    "Number of passes over the training set. Fractions such as 0.5 are"
    " allowed.",
    option.NOT_NEGATIVE,
    basic=True,
    needs="do_train",
  )
  save_checkpoints_steps: int = option.integer(
    1000,
    "Save a checkpoint every this many steps.",
    option.AT_LEAST_1,
    section="output",
    needs="do_train",
  )
  save_checkpoints_secs: float | None = option.number(
    None,
    "Save a checkpoint every this many seconds, in addition to those of"
    " --save_checkpoints_steps.",
    option.NOT_NEGATIVE,
    section="output",
    needs="do_train",
  )
  keep_checkpoint_max: int = option.integer(
    2,
    "Number of most recent checkpoints to keep. Each holds the weights and"
    " both moments of Adam: three times the size of the model.",
    option.AT_LEAST_1,
    section="output",
    needs="do_train",
  )
  resume: str = option.choice(
    "auto",
    ["auto", "never", "must"],
    "Resume training from the last checkpoint in --output_dir. auto: if there"
    " is one. never: refuse a folder with a checkpoint. must: refuse a folder"
    " without one.",
    needs="do_train",
  )
  eval_steps: int | None = option.integer(
    None,
    "Evaluate on the dev set every this many training steps, and keep the best"
    " weights in best/, where evaluation and prediction find them. If not"
    " given, there is no evaluation during training.",
    option.AT_LEAST_1,
    section="evaluation",
    basic=True,
    needs="do_train",
  )
  best_metric: str | None = option.text(
    None,
    "Metric that selects the best checkpoint. If not given, the task's primary"
    " metric.",
    section="evaluation",
    needs="eval_steps or seeds",
  )
  patience: int = option.integer(
    0,
    "Early stopping: end training after this many evaluations in a row without"
    " improvement. 0 disables it. Needs --eval_steps.",
    option.COUNT,
    section="evaluation",
  )
  seed: int = option.integer(
    12345,
    "Random seed of weight initialization, example order and dropout. The same"
    " seed gives the same run.",
    option.INTEGER,
    basic=True,
  )
  seeds: int = option.integer(
    0,
    "Train this many times, with the seeds --seed, --seed + 1, ..., each run"
    " in its own folder; report the spread of the dev metric and keep the best"
    " run. 0 trains once.",
    option.Range(0, 1000),
  )
  group_by_length: bool = option.boolean(
    False,
    "Length bucketing: form training batches of examples of similar length,"
    " which is faster; otherwise batches are random. No effect on a TPU.",
    needs="do_train, not use_tpu, not distribution=tpu",
  )
  given: frozenset[str] = frozenset()  # flags on the command line

  def check(self) -> None:
    """Refuses training and evaluations that cannot be done."""
    special = sorted(set(self.output_dir or "") & set("*?[\\"))
    if special:
      # Its checkpoints would not be found.
      raise InputError(
        f"--output_dir={self.output_dir}: TensorFlow takes it for a pattern and"
        f" would find no checkpoint in it. Give a name without {special[0]}"
      )
    if self.do_train and self.num_train_epochs == 0:
      raise InputError(nothing_to_train("num_train_epochs", 0.0))
    if self.patience and not self.eval_steps:
      raise InputError(
        f"--patience={self.patience}: needs evaluations during training. Add"
        " --eval_steps"
      )
    every = self.save_checkpoints_steps
    if (
      "save_checkpoints_steps" in self.given and (self.eval_steps or 0) % every
    ):
      raise InputError(
        f"--eval_steps={self.eval_steps}: evaluation reads a checkpoint, and"
        " there is none at this step. Give a multiple of"
        f" --save_checkpoints_steps={every}"
      )
    if self.seeds and not (self.do_train and self.do_eval):
      raise InputError(
        "--seeds compares metrics of the dev set: add --do_train, --do_eval"
      )
    if self.seeds == 1:
      raise InputError("--seeds=1: give 2 or more, or --seed=... for one run")

  @property
  def evaluates(self) -> bool:
    """True if the dev set is evaluated, during training or after it."""
    return bool(self.do_eval or (self.do_train and self.eval_steps))

  @property
  def steps_per_checkpoint(self) -> int:
    """Steps between checkpoints, so that every evaluation has a checkpoint."""
    steps = self.save_checkpoints_steps
    if self.eval_steps and self.eval_steps % steps:
      return self.eval_steps
    return steps


def check_prediction(**arguments: int | None) -> None:
  """Refuses arguments of Python code that flags of their kind would refuse."""
  batch_size = option.declaration(RunSettings, "predict_batch_size")
  flags = {
    "batch_size": batch_size,
    "num_batches": batch_size,
    "num_threads": option.declaration(common.DeviceSettings, "num_threads"),
  }
  for name, value in arguments.items():
    if value is not None:
      option.check_argument(name, value, flags[name])


def nothing_to_train(flag: str, value: float) -> str:
  """Message about a training without steps."""
  return (
    f"--{flag}={value}: there is nothing to train. Give a larger number, or"
    " leave out --do_train"
  )


@dataclasses.dataclass(frozen=True)
class TrainingSettings(EstimatorSettings):
  """Settings of all training scripts; each adds its own.

  Attributes:
    ACTIONS: flags of which at least one must be given.
    WRITES: patterns of the files that only this command writes to --output_dir.
  """

  REQUIRED = ("vocab_file", "bert_config_file", "output_dir")
  ACTIONS: ClassVar[Sequence[str]] = ("do_train", "do_eval", "do_predict")
  WRITES: ClassVar[Sequence[str]] = ()
  NEEDS_OWN_MODEL = True
  SECTION = "data"

  model: common.ModelSettings = option.group(common.ModelSettings)
  text: common.TextSettings = option.group(common.TextSettings)
  flags: RunSettings = option.group(RunSettings)
  optimizer: OptimizerSettings = option.group(OptimizerSettings)
  compute: common.ComputeSettings = option.group(common.ComputeSettings)
  quantization: common.QuantizationSettings = option.group(
    common.QuantizationSettings
  )
  devices: common.DeviceSettings = option.group(common.DeviceSettings)
  receipt: common.ReceiptSettings = option.group(common.ReceiptSettings)

  @property
  def output(self) -> str:
    """The --output_dir."""
    return self.flags.output_dir

  @property
  def model_dir(self) -> str:
    """The --output_dir, where the trained model is."""
    return self.flags.output_dir

  @property
  def trains(self) -> bool:
    """True with --do_train."""
    return self.flags.do_train

  def check(self) -> None:
    """Refuses a run that would do nothing, or a batch that is not divided."""
    super().check()
    flags = self.flags
    num_micro_batches = self.compute.gradient_accumulation_steps
    values = option.values_of(self)
    if not any(values[name] for name in self.ACTIONS):
      raise InputError(
        "nothing to do; give one or more of --" + ", --".join(self.ACTIONS)
      )
    evaluates_by = "eval_batch_size"
    if evaluates_by not in values:  # but by predictions
      evaluates_by = "predict_batch_size"
    for flag, is_used in (
      ("train_batch_size", flags.do_train),
      (evaluates_by, flags.evaluates),
      ("predict_batch_size", flags.do_predict),
    ):
      size, cores = values[flag], self.devices.num_tpu_cores
      if self.devices.on_tpu and is_used and size % cores:
        raise InputError(
          f"--{flag}={size} cannot be divided among {cores} TPU cores. Give a"
          " multiple of that"
        )
    if (
      flags.do_train
      and self.compute.memory_gb is None
      and flags.train_batch_size % num_micro_batches
    ):
      raise InputError(
        f"--gradient_accumulation_steps={num_micro_batches} does not divide"
        f" --train_batch_size={flags.train_batch_size}"
      )

  def need(self, flag: str, action: str, is_needed: bool = True) -> None:
    """Refuses a flag that is not given but needed with another."""
    if is_needed and not getattr(self, flag):
      raise InputError(f"--{flag} is needed with --{action}")

  def data_files(self) -> list[tuple[str, str | None]]:
    """Paths of the data files of the run, with their uses in its receipt."""
    flags, values = self.flags, option.values_of(self)
    files = (
      (flags.do_train and values["train_file"], TRAINING_DATA),
      (flags.evaluates and values["dev_file"], DEV_DATA),
      (flags.do_predict and values["predict_file"], None),
    )
    return [(path, use) for path, use in files if path]

  def need_sets(self) -> None:
    """Refuses training or evaluation without --train_file or --dev_file."""
    flags = self.flags
    evaluation = "do_eval" if flags.do_eval else "eval_steps"
    self.need("train_file", "do_train", flags.do_train)
    self.need("dev_file", evaluation, flags.evaluates)
