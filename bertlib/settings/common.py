"""Settings that several commands share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertlib.settings import option
from bertlib.settings.ranges import (
  AT_LEAST_1,
  COUNT,
  FRACTION,
  FRACTION_BELOW_1,
  INTEGER,
  NOT_NEGATIVE,
  POSITIVE,
  SEQ_LENGTH,
)

# Values that "auto" can stand for, by flag.
CHOICES = {
  "precision": ("float32", "bfloat16", "float16"),
  "xla": ("on", "off"),
}

# Those of `optimization`, which imports TensorFlow.
OPTIMIZERS = ("adamw", "adam", "lamb")
SCHEDULES = ("linear", "constant", "cosine", "polynomial")


@dataclasses.dataclass(frozen=True)
class ModelSettings:
  """The model: config, vocabulary, initial checkpoint, casing, length."""

  bert_config_file: str | None = option.text(
    None, "JSON file with the sizes of the model."
  )
  init_checkpoint: str | None = option.text(
    None,
    "Checkpoint to start from, named as its files are without .index: a"
    " released BERT model or any model of the same sizes. Or the name of a"
    " model that download_model.py knows, which brings sizes and vocabulary.",
  )
  bert_hub_module_handle: str | None = option.text(
    None,
    "Folder or address of an encoder of TensorFlow Hub to start from, in place"
    " of --init_checkpoint; it brings its sizes, and maybe its vocabulary.",
  )
  vocab_file: str | None = option.text(
    None, "Vocabulary, one word piece a line."
  )
  do_lower_case: bool = option.boolean(
    True,
    "Whether text is lower-cased and loses its accents: true for uncased"
    " models, false for cased ones.",
    alias="do_lower",
  )
  max_seq_length: int = option.integer(
    128,
    "Longest sequence in word pieces; what is longer is cut, what is shorter"
    " is padded.",
    SEQ_LENGTH,
  )
  given: frozenset[str] = frozenset()  # flags on the command line


@dataclasses.dataclass(frozen=True)
class TextSettings:
  """Encoding of input texts."""

  encoding: str = option.text(
    "utf-8",
    "Encoding of the input texts, a codec of Python (latin-1, utf-16, gb18030,"
    " ...). Vocabularies, configs and other JSON files are always UTF-8.",
  )
  encoding_errors: str = option.choice(
    "strict",
    ["strict", "replace"],
    "Bytes of the input texts that are not of --encoding: strict stops with an"
    " error that names the first, replace puts U+FFFD there and logs how many.",
  )


@dataclasses.dataclass(frozen=True)
class ComputeSettings:
  """Speed and memory of the computation, which leave results the same."""

  precision: str = option.choice(
    "float32",
    [*CHOICES["precision"], "auto"],
    "Number format of matrix products and activations; the weights are"
    " float32. float16 is for GPUs without bfloat16, and scales the loss. auto"
    " takes the fastest format that this device has instructions for, and"
    " records it in --output_dir, where later runs take the same.",
  )
  xla: str = option.choice(
    "auto",
    ["auto", *CHOICES["xla"]],
    "Whether training compiles what is between matrix products, and the update"
    " of the weights. It takes a second for each new size of a batch. auto"
    " does it where there is no GPU, and is recorded as that of --precision"
    " is.",
  )
  gradient_accumulation_steps: int = option.integer(
    1,
    "Micro-batches per step, computed one after the other to save memory. The"
    " step is that of the whole batch.",
    AT_LEAST_1,
  )
  recompute_activations: bool = option.boolean(
    False,
    "Whether activations are computed a second time for the gradient, instead"
    " of being kept: less memory, a third more time.",
  )
  memory_gb: float | None = option.number(
    None,
    "Memory that training may take, in GB of 10^9 bytes; sets the two flags"
    " above so that it does.",
    POSITIVE,
  )
  optimizer_on_cpu: bool = option.boolean(
    False,
    "Whether Adam's moments are kept in the host's memory and not on the GPU.",
  )

  automatic: frozenset[str] = frozenset()  # flags that were "auto"

  @property
  def choices(self) -> dict[str, str]:
    """Values of the flags that accept "auto", by name."""
    return {name: getattr(self, name) for name in CHOICES}


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
  """Optimizer, learning-rate schedule, clipping and frozen layers."""

  learning_rate: float = option.number(
    5e-05, "Highest learning rate.", NOT_NEGATIVE
  )
  warmup_proportion: float = option.number(
    0.1,
    "Share of training in which the learning rate rises: 0.1 is a tenth.",
    FRACTION,
  )
  optimizer: str = option.choice(
    "adamw",
    OPTIMIZERS,
    "adamw is BERT's; adam corrects its moments and lets no weight decay;"
    " lamb, for large batches, scales the step of each weight by its norm.",
  )
  bias_correction: bool = option.boolean(
    False,
    "Whether Adam's moments are corrected for their start at zero. BERT does"
    " not do it; on small data sets training is steadier with it.",
  )
  beta_1: float = option.number(
    0.9, "How much of the first moment is kept.", FRACTION_BELOW_1
  )
  beta_2: float = option.number(
    0.999, "How much of the second moment is kept.", FRACTION_BELOW_1
  )
  epsilon: float = option.number(
    1e-06, "Added to the root of the second moment.", POSITIVE
  )
  weight_decay: float | None = option.number(
    None,
    "Share of a weight, times the learning rate, taken off at each step; the"
    " optimizer's own if not given, 0.01 or none.",
    NOT_NEGATIVE,
  )
  clip_norm: float = option.number(
    1.0,
    "Gradients whose global norm is larger are scaled down to it; 0 for never.",
    NOT_NEGATIVE,
  )
  schedule: str = option.choice(
    "linear",
    SCHEDULES,
    "How the learning rate falls after its rise, to 0 at the end of training.",
  )
  schedule_power: float = option.number(
    1.0, "Of --schedule=polynomial; 1 is linear.", NOT_NEGATIVE
  )
  layer_decay: float = option.number(
    1.0,
    "By which the learning rate of each layer is that of the layer above it;"
    " 0.9 makes the lower ones learn less.",
    FRACTION,
  )
  freeze_layers: int = option.integer(
    0, "Layers of the encoder, from the lowest up, that do not learn.", COUNT
  )
  freeze_embeddings: bool = option.boolean(
    False, "Whether the embeddings do not learn."
  )


@dataclasses.dataclass(frozen=True)
class DeviceSettings:
  """Devices, replicas, workers and TPU."""

  distribution: str | None = option.choice(
    None,
    ["off", "mirrored", "multi_worker", "tpu"],
    "How the examples of a step are shared: off for one device, mirrored for"
    " all GPUs of this machine, multi_worker for the processes that TF_CONFIG"
    " or Slurm names. If not given, mirrored where several GPUs are seen.",
  )
  num_replicas: int | None = option.integer(
    None,
    "Devices of this process that share a batch; all GPUs if not given."
    " Without a GPU, logical devices of the CPU.",
    AT_LEAST_1,
  )
  use_tpu: bool = option.boolean(False, "Whether to run on a TPU.")
  tpu_name: str | None = option.text(
    None, "Name or grpc:// address of the TPU."
  )
  tpu_zone: str | None = option.text(
    None, "Zone of the TPU, if not the default."
  )
  gcp_project: str | None = option.text(None, "Project of the TPU, likewise.")
  master: str | None = option.text(None, "TensorFlow master address.")
  num_tpu_cores: int = option.integer(8, "Cores of the TPU.", AT_LEAST_1)
  iterations_per_loop: int = option.integer(
    1000, "Steps between two visits to the host.", AT_LEAST_1
  )

  # Found by `bertlib.training.devices.find`, once for a run.
  replicas: Any = None  # `distribution.Replicas` that share a batch, or None
  tpu_cluster: Any = None  # cluster resolver of the TPU, or None

  @property
  def on_tpu(self) -> bool:
    """Whether the flags ask for a TPU."""
    return self.use_tpu or self.distribution == "tpu"

  @property
  def num_replicas_in_sync(self) -> int:
    """Replicas that share a batch, without the cores of a TPU."""
    return self.replicas.count if self.replicas else 1

  @property
  def is_chief(self) -> bool:
    """Whether this process writes what all workers have computed."""
    return not self.replicas or self.replicas.is_chief


@dataclasses.dataclass(frozen=True)
class RunSettings:
  """A run: output folder, actions, batches, length, saving, evaluation."""

  output_dir: str | None = option.text(
    None, "Folder for checkpoints, records and results."
  )
  do_train: bool = option.boolean(False, "Whether to train.")
  do_eval: bool = option.boolean(False, "Whether to score on the dev set.")
  do_predict: bool = option.boolean(False, "Whether to label the test set.")
  train_batch_size: int = option.integer(
    32, "Examples a step of training.", AT_LEAST_1
  )
  eval_batch_size: int = option.integer(
    8, "Examples a step of scoring.", AT_LEAST_1
  )
  predict_batch_size: int = option.integer(
    8, "Examples a step of labelling.", AT_LEAST_1
  )
  num_train_epochs: float = option.number(
    3.0, "Passes over the training set.", NOT_NEGATIVE
  )
  save_checkpoints_steps: int = option.integer(
    1000, "Steps a checkpoint.", AT_LEAST_1
  )
  save_checkpoints_secs: float | None = option.number(
    None,
    "Seconds a checkpoint, beside those of --save_checkpoints_steps.",
    NOT_NEGATIVE,
  )
  keep_checkpoint_max: int = option.integer(
    2,
    "Number of checkpoints kept, the latest ones; each has the weights and two"
    " moments of every weight.",
    AT_LEAST_1,
  )
  resume: str = option.choice(
    "auto",
    ["auto", "never", "must"],
    "Whether training goes on from the last checkpoint in --output_dir: never"
    " refuses a folder that has one, must a folder that has none.",
  )
  eval_steps: int | None = option.integer(
    None,
    "Steps from one scoring on the dev data to the next, while training; the"
    " weights that score best are kept in best/ and used afterwards. If not"
    " given, there is none.",
    AT_LEAST_1,
  )
  best_metric: str | None = option.text(
    None, "Score that the best is best by; the task's own if not given."
  )
  patience: int = option.integer(
    0,
    "Scorings in a row without a better one after which training ends; 0 for"
    " never. Needs --eval_steps.",
    COUNT,
  )
  seed: int = option.integer(
    12345,
    "Fixes new weights, example order and dropout: the same seed gives the"
    " same run.",
    INTEGER,
  )
  seeds: int = option.integer(
    0,
    "Trains so many times, from --seed on, each run in a folder of its own;"
    " says how the scores vary, and keeps the best by dev score.",
    COUNT,
  )
  group_by_length: bool = option.boolean(
    False,
    "Whether a step's examples are of like length, which is faster; else they"
    " meet by chance.",
  )
  log_steps: int = option.integer(
    20, "Steps between two lines of progress.", COUNT
  )

  @property
  def steps_per_checkpoint(self) -> int:
    """Steps from one checkpoint to the next; each evaluation needs one."""
    steps = self.save_checkpoints_steps
    if self.eval_steps and self.eval_steps % steps:
      return self.eval_steps
    return steps


@dataclasses.dataclass(frozen=True)
class ReceiptSettings:
  """Checks without a run, and repetition of an earlier run."""

  doctor: bool = option.boolean(
    False,
    "Whether to check all that a run needs, each a line, and do nothing else.",
  )
  rerun: str | None = option.text(
    None,
    "The run.json that a run left, to repeat it: gives the flags of that run"
    " but for those given here, among them another place for what comes out.",
  )

  # The flags of the command line, as it would have them, and how often each
  # is given, by name.
  command_line: Sequence[str] = ()
  times_given: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
  """What the settings of all training scripts have; each adds its own."""

  model: ModelSettings = option.group(ModelSettings)
  text: TextSettings = option.group(TextSettings)
  compute: ComputeSettings = option.group(ComputeSettings)
  optimizer: OptimizerSettings = option.group(OptimizerSettings)
  devices: DeviceSettings = option.group(DeviceSettings)
  run: RunSettings = option.group(RunSettings)
  receipt: ReceiptSettings = option.group(ReceiptSettings)
