"""Settings that several commands share."""

from __future__ import annotations

import codecs
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.cli.ranges import (
  AT_LEAST_1,
  COUNT,
  FRACTION,
  FRACTION_BELOW_1,
  INTEGER,
  NOT_NEGATIVE,
  PARALLEL,
  POSITIVE,
  SEQ_LENGTH,
  Range,
)
from bertlib.io import receipt_file
from bertlib.settings import rerun
from bertlib.settings.rerun import CHOICES

# Keys of the tables in `optimization`, repeated here because that module
# imports TensorFlow.
OPTIMIZERS = ("adamw", "adam", "lamb")
SCHEDULES = ("linear", "constant", "cosine", "polynomial")


@dataclasses.dataclass(frozen=True)
class ModelSettings(option.Group):
  """The model: config, vocabulary, initial checkpoint, casing, length."""

  SECTION: ClassVar[str] = "model"

  init_checkpoint: str | None = option.path(
    None,
    "Model to start from. The name of a published model (see download_model.py"
    " --list), or the folder of a trained or converted one, brings its config"
    " and vocabulary. The path of a checkpoint, without .index, may be of any"
    " BERT of the same sizes.",
    basic=True,
  )
  bert_config_file: str | None = option.path(
    None,
    "JSON file with the sizes of the model. Not needed if --init_checkpoint"
    " names a published model or a folder that has it.",
    basic=True,
  )
  vocab_file: str | None = option.path(
    None,
    "Vocabulary file with one WordPiece per line. Not needed if"
    " --init_checkpoint names a published model or a folder that has it.",
    basic=True,
  )
  bert_hub_module_handle: str | None = option.text(
    None,
    "Folder or URL of a TensorFlow Hub encoder to start from instead of"
    " --init_checkpoint. It brings its config, and its vocabulary if it has"
    " one.",
  )
  do_lower_case: bool = option.boolean(
    True,
    "Lowercase the text and strip accents: true for uncased models, false for"
    " cased ones.",
    alias="do_lower",
    basic=True,
  )
  max_seq_length: int = option.integer(
    128,
    "Maximum sequence length in tokens (WordPieces), including [CLS] and"
    " [SEP]. Longer inputs are truncated, shorter ones padded.",
    SEQ_LENGTH,
    basic=True,
  )
  given: frozenset[str] = (
    frozenset()
  )  # names of the flags given on the command line

  def check(self) -> None:
    """Refuses two initial models."""
    if self.bert_hub_module_handle and self.init_checkpoint:
      raise InputError(
        "--bert_hub_module_handle and --init_checkpoint both name an initial"
        " model: give one of them"
      )


@dataclasses.dataclass(frozen=True)
class TextSettings(option.Group):
  """Encoding of input texts."""

  SECTION: ClassVar[str] = "data"

  encoding: str = option.text(
    "utf-8",
    "Encoding of the input texts: a Python codec such as latin-1, utf-16 or"
    " gb18030. Vocabularies, configs and other JSON files are always UTF-8.",
  )
  encoding_errors: str = option.choice(
    "strict",
    ["strict", "replace"],
    "Handling of bytes that are not valid in --encoding: strict stops with an"
    " error that names the first one; replace substitutes U+FFFD and logs the"
    " count.",
  )

  @property
  def codec(self) -> tuple[str, str]:
    """Arguments of `text_files.encoding_of`."""
    return self.encoding, self.encoding_errors

  def check(self) -> None:
    """Refuses an unknown encoding, and one that is not for text."""
    try:
      codecs.getincrementaldecoder(self.encoding)
      "a".encode(self.encoding)  # fails for base64 and similar codecs
    except (LookupError, ValueError) as error:
      raise InputError(
        f"--encoding={self.encoding}: not a text encoding that Python supports."
        " Give one such as utf-8, latin-1, cp1252, utf-16 or gb18030"
      ) from error


@dataclasses.dataclass(frozen=True)
class ComputeSettings(option.Group):
  """Speed and memory of the computation; results stay the same."""

  SECTION: ClassVar[str] = "devices"

  precision: str = option.choice(
    "float32",
    [*CHOICES["precision"], "int8", "auto"],
    "Compute precision of matrix products and activations; weights stay"
    " float32. float16, with loss scaling, is for GPUs without bfloat16. int8,"
    " for evaluation and prediction on CPUs, computes the encoder's dense"
    " layers in 8 bits. auto selects the fastest precision for training that"
    " the device supports and records it in --output_dir, where later runs"
    " reuse it.",
    basic=True,
  )
  xla: str = option.choice(
    "auto",
    ["auto", *CHOICES["xla"]],
    "Use XLA in training to fuse the operations between matrix products and"
    " the weight update. Compilation takes about a second per batch shape."
    " auto is on, unless XLA cannot compile for the GPU; the choice is recorded"
    " in --output_dir, where later runs reuse it. On a GPU, on compiles"
    " evaluation and prediction as well.",
  )
  compute: str = option.choice(
    "fast",
    ["fast", "plain"],
    "fast: without arithmetic on padding, and by kernels of XLA and oneDNN"
    " where they compute what modeling.py does. plain: by modeling.py alone.",
  )
  gradient_accumulation_steps: int = option.integer(
    1,
    "Number of micro-batches per training step, computed one after the other"
    " to save memory. --train_batch_size remains the size of the whole batch.",
    AT_LEAST_1,
  )
  recompute_activations: bool = option.boolean(
    False,
    "Gradient checkpointing: recompute activations in the backward pass"
    " instead of keeping them. Uses less memory and about a third more time.",
  )
  memory_gb: float | None = option.number(
    None,
    "Memory limit of training in GB (10^9 bytes), per GPU or, without GPUs, for"
    " this process. Sets --gradient_accumulation_steps and"
    " --recompute_activations so that training fits.",
    POSITIVE,
    basic=True,
  )
  optimizer_on_cpu: bool = option.boolean(
    False,
    "Keep the moments of Adam in host memory instead of on the GPU. For a"
    " single device.",
  )

  automatic: frozenset[str] = frozenset()  # flags that were "auto"

  def check(self) -> None:
    """Refuses kernels where --compute=plain uses none."""
    for name, value in (("xla", "on"), ("precision", "int8")):
      if self.compute == "plain" and getattr(self, name) == value:
        raise InputError(
          f"--{name}={value}: not with --compute=plain, which computes by"
          " modeling.py alone. Leave out one of them"
        )

  @property
  def choices(self) -> dict[str, str]:
    """Values of the flags that accept "auto", by name."""
    return {name: getattr(self, name) for name in CHOICES}


@dataclasses.dataclass(frozen=True)
class QuantizationSettings(option.Group):
  """Dense layers in 8 bits."""

  SECTION: ClassVar[str] = "devices"

  calibration_file: str | None = option.path(
    None,
    "With int8: text file, one text or pair 'A ||| B' per line, of which 256"
    " are used to measure the ranges of the 8-bit layers. The ranges are kept"
    " in quantization.json in --output_dir. If not given, those in that file,"
    " or else of the examples to evaluate or predict.",
  )
  int8_skip_layers: Sequence[str] = option.text_list(
    [],
    "With int8: layers to keep in higher precision, such as 11, or parts of"
    " them such as 11/output.",
  )


@dataclasses.dataclass(frozen=True)
class OptimizerSettings(option.Group):
  """Optimizer, learning-rate schedule, clipping and frozen layers."""

  SECTION: ClassVar[str] = "training"

  learning_rate: float = option.number(
    5e-05,
    "Peak learning rate, reached at the end of the warm-up.",
    NOT_NEGATIVE,
    basic=True,
  )
  warmup_proportion: float = option.number(
    0.1,
    "Fraction of the training steps over which the learning rate rises from 0"
    " to --learning_rate.",
    FRACTION,
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
  )
  beta_1: float = option.number(
    0.9,
    "Exponential decay rate of the optimizer's first moment.",
    FRACTION_BELOW_1,
  )
  beta_2: float = option.number(
    0.999,
    "Exponential decay rate of the optimizer's second moment.",
    FRACTION_BELOW_1,
  )
  epsilon: float = option.number(
    1e-06,
    "Constant added to the square root of the second moment, for numerical"
    " stability.",
    POSITIVE,
  )
  weight_decay: float | None = option.number(
    None,
    "Decoupled weight decay rate, multiplied by the learning rate; biases and"
    " LayerNorm are excluded. If not given, 0.01 for adamw and lamb, 0 for"
    " adam.",
    NOT_NEGATIVE,
  )
  clip_norm: float = option.number(
    1.0,
    "Maximum global norm of the gradients; larger gradients are scaled down to"
    " it. 0 disables clipping.",
    NOT_NEGATIVE,
  )
  loss_scale: float = option.number(
    0.0,
    "Fixed factor of the loss with --precision=float16, so that float16 can"
    " hold the gradients; a step whose gradients overflow is skipped. 0 adapts"
    " the factor.",
    NOT_NEGATIVE,
  )
  schedule: str = option.choice(
    "linear",
    SCHEDULES,
    "Learning-rate decay after the warm-up. constant keeps the peak rate; the"
    " others reach 0 at the end of training.",
  )
  schedule_power: float = option.number(
    1.0,
    "Exponent of the decay with --schedule=polynomial; 1 is linear.",
    NOT_NEGATIVE,
  )
  layer_decay: float = option.number(
    1.0,
    "Layer-wise learning-rate decay: each layer uses this factor times the"
    " rate of the layer above. 1 gives all layers the same rate.",
    FRACTION,
  )
  freeze_layers: int = option.integer(
    0,
    "Number of encoder layers to freeze, counted from the lowest.",
    COUNT,
  )
  freeze_embeddings: bool = option.boolean(False, "Freeze the embeddings.")


@dataclasses.dataclass(frozen=True)
class DeviceSettings(option.Group):
  """Devices, replicas, workers and TPU."""

  SECTION: ClassVar[str] = "devices"

  distribution: str | None = option.choice(
    None,
    ["off", "mirrored", "multi_worker", "tpu"],
    "Distribution of each batch: off uses one device, mirrored all GPUs of"
    " this machine, multi_worker the processes named by TF_CONFIG or Slurm,"
    " tpu a TPU. If not given, mirrored if there are several GPUs.",
    basic=True,
  )
  num_replicas: int | None = option.integer(
    None,
    "Number of devices of this process that share a batch. If not given, all"
    " GPUs. Without a GPU, logical CPU devices.",
    PARALLEL._replace(low=1),
  )
  num_threads: int = option.integer(
    0,
    "Number of threads that compute on the CPU, and maximum number of processes"
    " that a command starts on its own. 0 uses all cores.",
    PARALLEL,
  )
  use_tpu: bool = option.boolean(
    False, "Run on the TPU that --tpu_name or --master names."
  )
  tpu_name: str | None = option.text(
    None,
    "TPU to use: its name in Google Cloud, its address grpc://HOST:PORT, or"
    " local for the TPU of this machine.",
  )
  tpu_zone: str | None = option.text(
    None,
    "Google Cloud zone of the TPU. If not given, the zone of this environment.",
  )
  gcp_project: str | None = option.text(
    None,
    "Google Cloud project of the TPU. If not given, the project of this"
    " environment.",
  )
  master: str | None = option.text(
    None,
    "Address of the TPU, grpc://HOST:PORT. Only used without --tpu_name.",
  )
  num_tpu_cores: int = option.integer(
    8, "Number of TPU cores to use.", AT_LEAST_1
  )
  iterations_per_loop: int = option.integer(
    1000,
    "TPU steps per training loop (between host callbacks).",
    AT_LEAST_1,
  )

  # Set once per run, by `bertlib.training.devices.find`.
  replicas: Any = None  # `distribution.Replicas` that share a batch, or None
  tpu_cluster: Any = None  # cluster resolver of the TPU, or None

  @property
  def on_tpu(self) -> bool:
    """True if the run is on a TPU."""
    return self.use_tpu or self.distribution == "tpu"

  @property
  def num_replicas_in_sync(self) -> int:
    """Number of replicas that share a batch, not counting TPU cores."""
    return self.replicas.count if self.replicas else 1

  @property
  def is_chief(self) -> bool:
    """True for the process that writes the results of all workers."""
    return not self.replicas or self.replicas.is_chief

  def check(self) -> None:
    """Refuses kinds of distribution that contradict each other."""
    if self.use_tpu and self.distribution not in (None, "tpu"):
      raise InputError(
        f"--use_tpu: contradicts --distribution={self.distribution}. Give one"
        " of them"
      )
    if self.distribution == "off" and (self.num_replicas or 1) > 1:
      raise InputError(
        "--num_replicas is for --distribution=mirrored. Remove one of the two"
      )


@dataclasses.dataclass(frozen=True)
class RunSettings(option.Group):
  """A run: output folder, actions, batches, length, saving, evaluation."""

  SECTION: ClassVar[str] = "training"

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
    "Number of examples per training step, over all devices.",
    AT_LEAST_1,
    basic=True,
  )
  eval_batch_size: int = option.integer(
    8,
    "Number of examples per evaluation step.",
    AT_LEAST_1,
    section="evaluation",
  )
  predict_batch_size: int = option.integer(
    8,
    "Number of examples per prediction step.",
    AT_LEAST_1,
    section="evaluation",
  )
  num_train_epochs: float = option.number(
    3.0,
    "Number of passes over the training set. Fractions such as 0.5 are"
    " allowed.",
    NOT_NEGATIVE,
    basic=True,
  )
  save_checkpoints_steps: int = option.integer(
    1000,
    "Save a checkpoint every this many steps.",
    AT_LEAST_1,
    section="output",
  )
  save_checkpoints_secs: float | None = option.number(
    None,
    "Save a checkpoint every this many seconds, in addition to those of"
    " --save_checkpoints_steps.",
    NOT_NEGATIVE,
    section="output",
  )
  keep_checkpoint_max: int = option.integer(
    2,
    "Number of most recent checkpoints to keep. Each holds the weights and"
    " both moments of Adam: three times the size of the model.",
    AT_LEAST_1,
    section="output",
  )
  resume: str = option.choice(
    "auto",
    ["auto", "never", "must"],
    "Resume training from the last checkpoint in --output_dir. auto: if there"
    " is one. never: refuse a folder with a checkpoint. must: refuse a folder"
    " without one.",
  )
  eval_steps: int | None = option.integer(
    None,
    "Evaluate on the dev set every this many training steps, and keep the best"
    " weights in best/, where evaluation and prediction find them. If not"
    " given, there is no evaluation during training.",
    AT_LEAST_1,
    section="evaluation",
    basic=True,
  )
  best_metric: str | None = option.text(
    None,
    "Metric that selects the best checkpoint. If not given, the task's primary"
    " metric.",
    section="evaluation",
  )
  patience: int = option.integer(
    0,
    "Early stopping: end training after this many evaluations in a row without"
    " improvement. 0 disables it. Needs --eval_steps.",
    COUNT,
    section="evaluation",
  )
  seed: int = option.integer(
    12345,
    "Random seed of weight initialization, example order and dropout. The same"
    " seed gives the same run.",
    INTEGER,
    basic=True,
  )
  seeds: int = option.integer(
    0,
    "Train this many times, with the seeds --seed, --seed + 1, ..., each run"
    " in its own folder; report the spread of the dev metric and keep the best"
    " run. 0 trains once.",
    Range(0, 1000),
  )
  group_by_length: bool = option.boolean(
    False,
    "Length bucketing: form training batches of examples of similar length,"
    " which is faster; otherwise batches are random. No effect on a TPU.",
  )
  log_steps: int = option.integer(
    20,
    "Log progress every this many training steps. 0 is the same as 1.",
    COUNT,
    section="output",
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


def nothing_to_train(flag: str, value: float) -> str:
  """Message about a training without steps."""
  return (
    f"--{flag}={value}: there is nothing to train. Give a larger number, or"
    " leave out --do_train"
  )


@dataclasses.dataclass(frozen=True)
class ReceiptSettings(option.Group):
  """Checks without a run, and repetition of an earlier run."""

  SECTION: ClassVar[str] = "output"

  doctor: bool = option.boolean(
    False,
    "Check everything that the run needs, print one line per check, and exit.",
    basic=True,
  )
  rerun: str | None = option.path(
    None,
    "Repeat the run that wrote this run.json, with its flags. Flags of this"
    " command line take precedence; give another output path.",
  )

  # Command-line arguments as given, and how many times each flag is given, by
  # name.
  command_line: Sequence[str] = ()
  times_given: Mapping[str, int] = dataclasses.field(default_factory=dict)


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

  @classmethod
  def with_receipt(cls, argv: Sequence[str]) -> tuple[list[str], str | None]:
    """See `rerun.with_receipt`."""
    return rerun.with_receipt(argv, option.output_flags(cls))

  @property
  def receipt_path(self) -> str:
    """Path of the receipt: in --output_dir or next to --output_file."""
    if self.run:
      return os.path.join(self.output, receipt_file.NAME)
    return f"{self.output}.{receipt_file.NAME}"


class EstimatorSettings(RecordedSettings):
  """Settings of a command that runs a model, in training or without."""

  BROUGHT_BY_MODEL: ClassVar[Sequence[str]] = (
    "vocab_file",
    "bert_config_file",
    "init_checkpoint",
  )

  model: ModelSettings
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

  ACTIONS: ClassVar[Sequence[str]] = ("do_train", "do_eval", "do_predict")

  SECTION: ClassVar[str] = "data"

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

  def need(self, flag: str, action: str) -> None:
    """Refuses a flag that is not given but needed with another."""
    if not getattr(self, flag):
      raise InputError(f"--{flag} is needed with --{action}")
