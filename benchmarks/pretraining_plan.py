"""Cost of a phase of pretraining: operations, memory, disk, network, hours.

Computed from formulas and three measurements: the sequences per second of one
device (`examples/s` in the log of `run_pretraining.py`), the bytes per record,
and the bandwidth between devices.

    python -m benchmarks.pretraining_plan --record_file=phase_1.tfrecord \
        --sequences_per_second=1.5 --sequences_at_once=16

Prints two tables: the cost of the phase, and its time on 1, 8 and 64 devices.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

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
  print(markdown.table(["cost", "of the phase"], costs(config).items()))
  heads = ["devices", "micro-batches", "compute per step"]
  heads += ["sent per step and device", "all-reduce per step", "hours"]
  rows = [device_row(config, int(number)) for number in FLAGS.devices]
  print(markdown.table(heads, rows))


def costs(config: modeling.BertConfig) -> dict[str, str]:
  """Costs that do not depend on the number of devices, by name."""
  num_predictions = FLAGS.max_predictions_per_seq
  shape = StepShape(
    FLAGS.max_seq_length,
    num_predictions=num_predictions,
    num_output_positions=num_predictions + 1,  # and [CLS]
  )
  num_sequences = FLAGS.train_batch_size * FLAGS.num_train_steps
  flops = step_plan.step_flops(config, 1, shape) * num_sequences
  compute = FastCompute(precision.hidden_dtype(FLAGS.precision))
  memory = step_plan.step_bytes(
    config, FLAGS.sequences_at_once, shape, compute, True
  )
  num_records = num_sequences / FLAGS.epochs
  path = FLAGS.record_file
  record_bytes = os.path.getsize(path) / tf_records.count_records(path)
  return {
    "operations": f"{flops / 1e18:.2f} * 10^18",
    "memory per device, at most": gigabytes(memory),
    "records": f"{num_records / 1e6:,.1f} million",
    "data on disk": gigabytes(num_records * record_bytes),
    "a checkpoint": gigabytes(12 * num_weights(config)),
  }


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


def share(config: modeling.BertConfig, phase: Any, num_devices: int) -> Share:
  """Computes one device's share of a phase, which has the fields of the flags.

  A device computes at most `sequences_at_once` in a micro-batch.
  """
  if phase.train_batch_size % num_devices:
    raise InputError(
      f"--train_batch_size={phase.train_batch_size} cannot be divided among"
      f" {num_devices} devices"
    )
  own = phase.train_batch_size // num_devices
  num_micro_batches = -(-own // phase.sequences_at_once)
  while own % num_micro_batches:
    num_micro_batches += 1
  computing = own / phase.sequences_per_second
  exchange = exchanged_bytes(config, num_devices) / (1e9 * phase.bandwidth_gb)
  hours = phase.num_train_steps * (computing + exchange) / 3600
  return Share(
    num_micro_batches, own // num_micro_batches, computing, exchange, hours
  )


def device_row(config: modeling.BertConfig, number: int) -> list[str]:
  """Row of the table of devices: time and network."""
  found = share(config, FLAGS, number)
  return [
    f"{number}",
    f"{found.num_micro_batches} of {found.at_once}",
    f"{found.computing:,.2f} s",
    gigabytes(exchanged_bytes(config, number)),
    f"{found.exchange:.2f} s",
    f"{found.hours:,.0f}",
  ]


def gigabytes(num_bytes: float) -> str:
  """Formats bytes."""
  return f"{num_bytes / 1e9:,.2f} GB"


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    record_file="Records of create_pretraining_data.py; only their size is"
    " used.",
    sequences_per_second=(2.1, "Throughput of one device, as measured."),
    sequences_at_once=(
      16,
      "Sequences per micro-batch: the number with which the throughput was"
      " measured. Larger batches are split.",
    ),
    bert_config_file=(str, "Config of the model; default: BERT-Base."),
    max_seq_length=(128, "Tokens per sequence."),
    max_predictions_per_seq=(20, "Masked tokens per sequence."),
    train_batch_size=(256, "Global batch size, in sequences."),
    num_train_steps=(900_000, "Steps."),
    precision=(("float32", "bfloat16", "float16"), "Of the measurement."),
    epochs=(9.0, "Number of passes over the records."),
    devices=(["1", "8", "64"], "Numbers of devices."),
    bandwidth_gb=(
      1.25,
      "Bandwidth in GB/s (10^9 bytes) that a device sends while it receives as"
      " much. 1.25 is Ethernet of 10 Gbit/s.",
    ),
  )
