"""Cost of a pretraining: operations, memory, disk, network and hours.

Computed from formulas and three measurements: the sequences per second of one
device (`examples/s` in the log of `run_pretraining.py`), the bytes per record,
and the bandwidth between devices. Each list has one entry per phase; a value
that all phases share may be given once.

    python -m benchmarks.pretraining_plan \
        --record_files=phase_1.tfrecord,phase_2.tfrecord \
        --sequences_per_second=1.5,0.24 --sequences_at_once=16,4

Prints two tables: the cost of each phase, and its time on 1, 8 and 64 devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import modeling
from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.checkpoints import model_folder
from bertlib.cli.errors import InputError
from bertlib.compute import precision
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import tf_records
from bertlib.task.task_record import StepShape
from bertlib.training import step_plan
from website import markdown

_PRECISIONS = "float32", "bfloat16", "float16"


class Phase(NamedTuple):
  """A phase of a pretraining."""

  seq_length: int  # S, tokens per sequence
  num_predictions: int  # P, masked tokens per sequence
  batch_size: int  # sequences per step, over all devices
  num_steps: int  # steps
  at_once: int  # largest micro-batch of a device, in sequences
  rate: float  # sequences per second of one device
  epochs: float  # how often each record is used
  record_bytes: float  # bytes per record on disk

  @property
  def num_sequences(self) -> int:
    """Number of sequences in all steps."""
    return self.batch_size * self.num_steps

  @property
  def step_shape(self) -> StepShape:
    """Sizes of a step."""
    return StepShape(
      self.seq_length,
      num_predictions=self.num_predictions,
      num_output_positions=self.num_predictions + 1,  # and [CLS]
    )

  @property
  def num_records(self) -> float:
    """Number of records."""
    return self.num_sequences / self.epochs


# Flags of the phases, in the order of the fields.
COLUMNS: dict[str, Callable] = {
  "max_seq_length": int,
  "max_predictions_per_seq": int,
  "train_batch_size": int,
  "num_train_steps": int,
  "sequences_at_once": int,
  "sequences_per_second": float,
  "epochs": float,
  "record_files": lambda p: os.path.getsize(p) / tf_records.count_records(p),
}


class Share(NamedTuple):
  """One device's share of a phase."""

  num_micro_batches: int  # micro-batches per step
  at_once: int  # sequences per micro-batch
  computing: float  # seconds of computation per step
  # Seconds of all-reduce per step, which does not overlap with computation.
  exchange: float
  hours: float  # hours of the phase


def main(_: list[str]) -> None:
  """Prints the tables."""
  config = modeling.BertConfig(vocab_size=30522, type_vocab_size=2)
  if FLAGS.bert_config_file:
    config = model_folder.load_config(FLAGS.bert_config_file)
  phases = read_phases()
  for heads, *rows in (phase_rows(config, phases), device_rows(config, phases)):
    print(markdown.table(heads, rows))


def read_phases() -> list[Phase]:
  """Reads the phases from the flags."""
  columns = {
    name: [kind(value) for value in getattr(FLAGS, name).split(",")]
    for name, kind in COLUMNS.items()
  }
  number = max(map(len, columns.values()))
  for name, values in columns.items():
    if len(values) not in (1, number):
      raise InputError(f"--{name}: give one value, or one for each phase")
    columns[name] = values * (number // len(values))
  return [Phase(*values) for values in zip(*columns.values())]


def num_weights(config: modeling.BertConfig) -> int:
  """Number of trained weights: the encoder and both heads."""
  width = config.hidden_size
  masked_lm = width * (width + 1) + 2 * width + config.vocab_size
  return model_folder.num_weights(config) + masked_lm + 2 * (width + 1)


def exchanged_bytes(config: modeling.BertConfig, num_devices: int) -> float:
  """Bytes that each device sends (and receives) per ring all-reduce.

  Each of n devices sends 1/n of the gradients n - 1 times to reduce, and n - 1
  times to gather (Patarasuk and Yuan 2009). Gradients are float32.
  """
  return 2 * (num_devices - 1) / num_devices * 4 * num_weights(config)


def share(
  config: modeling.BertConfig, phase: Phase, num_devices: int, bandwidth: float
) -> Share:
  """Computes one device's share of a phase."""
  if phase.batch_size % num_devices:
    raise InputError(
      f"--train_batch_size={phase.batch_size} cannot be divided among"
      f" {num_devices} devices"
    )
  own = phase.batch_size // num_devices
  num_micro_batches = -(-own // phase.at_once)
  while own % num_micro_batches:
    num_micro_batches += 1
  computing = own / phase.rate
  exchange = exchanged_bytes(config, num_devices) / bandwidth
  hours = phase.num_steps * (computing + exchange) / 3600
  return Share(
    num_micro_batches, own // num_micro_batches, computing, exchange, hours
  )


def phase_rows(
  config: modeling.BertConfig, phases: Sequence[Phase]
) -> list[list[str]]:
  """Rows of the table of phases, which do not depend on the devices."""
  rows = [["", *(f"phase {n}" for n, _ in enumerate(phases, start=1))]]

  def add(name, value):
    rows.append([name, *map(value, phases)])

  def operations(phase):
    flops = step_plan.step_flops(config, 1, phase.step_shape)
    return f"{flops * phase.num_sequences / 1e18:.2f} * 10^18"

  def memory(phase):
    shape = phase.step_shape
    compute = FastCompute(precision.hidden_dtype(FLAGS.precision))
    return gigabytes(
      step_plan.step_bytes(config, phase.at_once, shape, compute, True)
    )

  add("tokens per sequence", lambda phase: f"{phase.seq_length}")
  add("sequences per step", lambda phase: f"{phase.batch_size:,}")
  add("steps", lambda phase: f"{phase.num_steps:,}")
  add("operations", operations)
  add("sequences per second, measured", lambda phase: f"{phase.rate:g}")
  add("memory per device, at most", memory)
  add("records", lambda phase: f"{phase.num_records / 1e6:,.1f} million")
  add("data on disk", lambda p: gigabytes(p.num_records * p.record_bytes))
  add("a checkpoint", lambda _: gigabytes(12 * num_weights(config)))
  return rows


def device_rows(
  config: modeling.BertConfig, phases: Sequence[Phase]
) -> list[list[str]]:
  """Rows of the table of devices: time and network per phase."""
  heads = ["devices", "phase", "micro-batches", "compute per step"]
  heads += ["sent per step and device", "all-reduce per step", "hours"]
  rows = [heads]
  bandwidth = FLAGS.bandwidth_gb * 1e9
  for number in map(int, FLAGS.devices.split(",")):
    sent = gigabytes(exchanged_bytes(config, number))
    shares = [share(config, phase, number, bandwidth) for phase in phases]
    for count, found in enumerate(shares, start=1):
      batches = f"{found.num_micro_batches} of {found.at_once}"
      times = f"{found.computing:,.2f} s", sent, f"{found.exchange:.2f} s"
      hours = f"{found.hours:,.0f}"
      rows.append([f"{number}", f"{count}", batches, *times, hours])
    hours = sum(found.hours for found in shares)
    rows.append([f"{number}", "all", "", "", "", "", f"{hours:,.0f}"])
  return rows


def gigabytes(num_bytes: float) -> str:
  """Formats bytes."""
  return f"{num_bytes / 1e9:,.2f} GB"


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    record_files="Records of create_pretraining_data.py; only their size is"
    " used.",
    sequences_per_second="Throughput of one device, as measured.",
    sequences_at_once="Sequences per micro-batch: the number with which the"
    " throughput was measured. Larger batches are split.",
    bert_config_file=(str, "Config of the model; default: BERT-Base."),
    max_seq_length=("128,512", "Tokens per sequence."),
    max_predictions_per_seq=("20,80", "Masked tokens per sequence."),
    train_batch_size=("256", "Global batch size, in sequences."),
    num_train_steps=("900000,100000", "Steps."),
    precision=(_PRECISIONS, "Precision of the measurement."),
    epochs=("9,4", "Number of passes over the records."),
    devices=("1,8,64", "Numbers of devices."),
    bandwidth_gb=(
      1.25,
      "Bandwidth in GB/s (10^9 bytes) that a device sends while it receives as"
      " much. 1.25 is Ethernet of 10 Gbit/s.",
    ),
  )
