"""Settings that several commands share."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.io.text_files import Encoding


def lower_case_flag(**attributes: Any) -> Any:
  """The flag `--do_lower_case` of several commands."""
  return option.boolean(
    True,
    "Lowercase the text and strip accents: true for uncased models, false for"
    " cased ones.",
    basic=True,
    **attributes,
  )


@dataclasses.dataclass(frozen=True)
class ModelSettings(option.Group):
  """The model: config, vocabulary, initial checkpoint, casing, length."""

  SECTION = "model"

  init_checkpoint: str | None = option.path(
    None,
    "Model to start from. The name of a published model (see"
    " docs/how_to/models.md), or the folder of a trained or converted one,"
    " brings its config and vocabulary. The path of a checkpoint, without"
    " .index, may be of any BERT of the same sizes.",
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
    "Vocabulary file with one WordPiece per line, or tokenizer.json. Not needed"
    " if --init_checkpoint names a published model or a folder that has it.",
    basic=True,
  )
  bert_hub_module_handle: str | None = option.text(
    None,
    "Folder or URL of a TensorFlow Hub encoder to start from instead of"
    " --init_checkpoint. It brings its config, and its vocabulary if it has"
    " one.",
  )
  do_lower_case: bool = lower_case_flag(alias="do_lower", kept=True)
  max_input_chars_per_word: int | None = option.integer(
    None,
    "Longest word in characters; longer ones become [UNK]. If not given, that"
    " of the model, or else 200, as in google-research/bert.",
    option.AT_LEAST_1,
    kept=True,
  )
  max_seq_length: int = option.integer(
    128,
    "Maximum sequence length in tokens (WordPieces), including [CLS] and"
    " [SEP]. Longer inputs are truncated, shorter ones padded.",
    option.SEQ_LENGTH,
    basic=True,
    kept=True,
  )
  given: frozenset[str] = frozenset()  # flags on the command line
  # Folder of the model that is read or gone on with, by `model_description`.
  folder: str | None = None

  def check(self) -> None:
    """Refuses two initial models."""
    if self.bert_hub_module_handle and self.init_checkpoint:
      raise InputError(
        "--bert_hub_module_handle and --init_checkpoint both name an initial"
        " model: give one of them"
      )


def check_window(
  max_seq_length: int, max_query_length: int, num_special: int = 3
) -> None:
  """Refuses a length that leaves no room for text beside a question."""
  if max_seq_length <= max_query_length + num_special:
    needed = 2 * max_query_length + num_special
    raise InputError(
      f"--max_seq_length={max_seq_length} leaves no room for text beside a"
      f" question of --max_query_length={max_query_length} and {num_special}"
      f" special tokens. Give --max_seq_length={needed} or more"
    )


@dataclasses.dataclass(frozen=True)
class TextSettings(option.Group):
  """Encoding of input texts."""

  SECTION = "data"

  encoding: str = option.text(
    "utf-8",
    "Encoding of the input texts: a Python codec such as latin-1, utf-16 or"
    " gb18030. Vocabularies, configs and other JSON files are always UTF-8.",
  )

  @property
  def codec(self) -> Encoding:
    """The encoding, by Python's name for it."""
    return Encoding(codecs.lookup(self.encoding).name)

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
class TableSettings(TextSettings):
  """Tables and texts: encoding, separator, rows that cannot be used."""

  delimiter: str | None = option.text(
    None,
    "Character between the columns of tables; \\t for a tab. If not given, a"
    " comma in .csv and a tab in .tsv or, where columns are found by name only"
    " so, a semicolon or the other one.",
    kept=True,
  )
  bad_rows: str = option.choice(
    "refuse",
    ["refuse", "skip"],
    "Handling of rows that cannot be used: refuse stops at the first one, skip"
    " leaves them out and lists those of NAME.csv in NAME_bad_rows.txt.",
  )

  def check(self) -> None:
    """Refuses a --delimiter that is not one character, or is a quote."""
    super().check()
    if len((self.delimiter or "\t").replace("\\t", "\t").strip('"')) != 1:
      raise InputError(
        f"--delimiter={self.delimiter}: is not one character other than a"
        " quote. Give ; or \\t, for example"
      )


@dataclasses.dataclass(frozen=True)
class LongTextSettings(option.Group):
  """Texts that are longer than the model."""

  SECTION = "data"
  # Whether pairs keep the first text, and lose tokens of the second one.
  keeps_first: ClassVar[bool] = False

  long_texts: str | None = option.choice(
    None,
    ["truncate", "head_tail", "windows"],
    "Texts longer than --max_seq_length: truncate drops their end. head_tail"
    " keeps a quarter of the length from the start, and the rest from the end."
    " windows divides them into overlapping windows and joins the results;"
    " sentence vectors and rerankers are trained on truncated texts then. If"
    " not given, as the model was trained, or else truncate.",
    basic=True,
    kept=True,
  )
  join_windows: str | None = option.choice(
    None,
    ["mean", "max"],
    "Logits of a text from those of its windows: the mean, or the maximum of"
    " each label. If not given, as the model was trained, or else mean.",
    kept=True,
    needs="long_texts=windows",
  )
  doc_stride: int | None = option.integer(
    None,
    "Stride between overlapping windows of a text, in tokens. If not given,"
    " half of the text in a window.",
    option.AT_LEAST_1,
    kept=True,
    needs="long_texts=windows",
  )

  @property
  def has_windows(self) -> bool:
    """True if long texts are divided into windows."""
    return self.long_texts == "windows"

  def in_one_row(self) -> LongTextSettings:
    """Settings for what is not joined: truncates instead of windows."""
    return type(self)() if self.has_windows else self

  @classmethod
  def of_model(cls, description: Mapping[str, Any]) -> LongTextSettings:
    """The settings of a trained model (model.json)."""
    names = dict(option.declarations(cls))
    return cls(**{n: description[n] for n in names if n in description})


class LongDocumentSettings(LongTextSettings):
  """Documents that are longer than the model, each with a query before it."""

  keeps_first = True


TRUNCATE = LongTextSettings()


@dataclasses.dataclass(frozen=True)
class ComputeSettings(option.Group):
  """Speed and memory of the computation; results stay the same."""

  SECTION = "devices"

  precision: str = option.choice(
    "float32",
    [*option.AUTO_CHOICES["precision"], "int8", "auto"],
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
    ["auto", *option.AUTO_CHOICES["xla"]],
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
    option.AT_LEAST_1,
    needs="do_train, not memory_gb",
  )
  recompute_activations: bool = option.boolean(
    False,
    "Gradient checkpointing: recompute activations in the backward pass"
    " instead of keeping them. Uses less memory and about a third more time.",
    needs="do_train, not memory_gb",
  )
  memory_gb: float | None = option.number(
    None,
    "Memory limit of training in GB (10^9 bytes), per GPU or, without GPUs, for"
    " this process. Sets --gradient_accumulation_steps and"
    " --recompute_activations so that training fits.",
    option.POSITIVE,
    basic=True,
    needs="do_train",
  )

  def check(self) -> None:
    """Refuses kernels where --compute=plain uses none."""
    for name, value in (("xla", "on"), ("precision", "int8")):
      if self.compute == "plain" and getattr(self, name) == value:
        raise InputError(
          f"--{name}={value}: not with --compute=plain, which computes by"
          " modeling.py alone. Leave out one of them"
        )


@dataclasses.dataclass(frozen=True)
class QuantizationSettings(option.Group):
  """Dense layers in 8 bits."""

  SECTION = "devices"
  NEEDS = "quantize=int8 or precision=int8"

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


# What flags about a TPU need, see `option.Flag`.
_ON_TPU = "use_tpu or distribution=tpu"


@dataclasses.dataclass(frozen=True)
class DeviceSettings(option.Group):
  """Devices, replicas, workers and TPU."""

  SECTION = "devices"

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
    option.PARALLEL._replace(low=1),
    needs="not use_tpu, not distribution=tpu",
  )
  num_threads: int = option.integer(
    0,
    "Number of threads that compute on the CPU, and maximum number of processes"
    " that a command starts on its own. 0 uses all cores.",
    option.PARALLEL,
  )
  use_tpu: bool = option.boolean(
    False, "Run on the TPU that --tpu_name or --master names."
  )
  tpu_name: str | None = option.text(
    None,
    "TPU to use: its name in Google Cloud, its address grpc://HOST:PORT, or"
    " local for the TPU of this machine.",
    needs=_ON_TPU,
  )
  tpu_zone: str | None = option.text(
    None,
    "Google Cloud zone of the TPU. If not given, the zone of this environment.",
    needs=_ON_TPU,
  )
  gcp_project: str | None = option.text(
    None,
    "Google Cloud project of the TPU. If not given, the project of this"
    " environment.",
    needs=_ON_TPU,
  )
  master: str | None = option.text(
    None,
    "Address of the TPU, grpc://HOST:PORT. Only used without --tpu_name.",
    needs=f"{_ON_TPU}, not tpu_name",
  )
  num_tpu_cores: int = option.integer(
    8, "Number of TPU cores to use.", option.AT_LEAST_1, needs=_ON_TPU
  )
  iterations_per_loop: int = option.integer(
    1000,
    "TPU steps per training loop (between host callbacks).",
    option.AT_LEAST_1,
    needs=f"{_ON_TPU}, do_train",
  )

  @property
  def on_tpu(self) -> bool:
    """True if the run is on a TPU."""
    return self.use_tpu or self.distribution == "tpu"

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
class ReceiptSettings(option.Group):
  """Checks without a run."""

  SECTION = "output"

  doctor: bool = option.boolean(
    False,
    "Dry run: take the steps of the run up to its first write, print one line"
    " per step, estimate memory and time, and exit.",
    basic=True,
  )

  command_line: Sequence[str] = ()  # arguments as given
