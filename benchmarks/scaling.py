"""Benchmark of data-parallel training: one worker against two.

One worker on one core, two workers on one core each, and one worker on both
cores train the same model on the same records, in turns, as commands. The
throughput is that in the log of `run_pretraining.py`, without the first steps.
Workers communicate over the loopback interface.

    python -m benchmarks.scaling --layers=6 --hidden=384 --heads=12

Runs on Linux, with two cores.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile

import numpy as np
from absl import flags

import modeling
from benchmarks import results, side_by_side, training_step
from bertlib.checkpoints import loading
from bertlib.data import tf_records
from bertlib.tasks.pretraining import pretraining_instances

FLAGS = flags.FLAGS

# Cores of the workers of each setup.
WAYS = {
  "one worker, one core": [{0}],
  "two workers, one core each": [{0}, {1}],
  "one worker, both cores": [{0, 1}],
}


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_integer("layers", 6, "Layers of the model.")
  flags.DEFINE_integer("hidden", 384, "Its width.")
  flags.DEFINE_integer("heads", 12, "Attention heads.")
  flags.DEFINE_integer("vocab_size", 30522, "Vocabulary size.")
  flags.DEFINE_integer("seq_length", 128, "Tokens per sequence.")
  flags.DEFINE_integer("batch_size", 32, "Global batch size, in sequences.")
  flags.DEFINE_integer(
    "steps", 12, "Steps per run; the first half is not timed."
  )
  side_by_side.define_run_flags(passes=3)
  flags.adopt_module_key_flags(side_by_side)
  flags.DEFINE_string("precision", "float32", "See run_pretraining.py.")


def main(_: list[str]) -> None:
  """Trains in turns and reports the ratios."""
  config = modeling.BertConfig(
    FLAGS.vocab_size,
    hidden_size=FLAGS.hidden,
    num_hidden_layers=FLAGS.layers,
    num_attention_heads=FLAGS.heads,
    intermediate_size=4 * FLAGS.hidden,
  )
  num_bytes = 4 * loading.num_weights(config)
  print(f"Gradients of a step: {num_bytes / 1e6:.0f} MB")
  values: results.Values = {"training": {name: [] for name in WAYS}}
  with tempfile.TemporaryDirectory() as folder:
    make_data(folder, config)
    for number in range(FLAGS.passes):
      for name, cores in WAYS.items():
        values["training"][name].append(1 / train(folder, cores))
      results.show_pass(number + 1, values)
  first, *others = WAYS
  side_by_side.report(
    training_step.name_of_work(),
    {name: {"description": FLAGS.precision, "versions": {}} for name in WAYS},
    values,
    [("training", other, first) for other in others],
    threads=2,
  )


def make_data(folder: str, config: modeling.BertConfig) -> None:
  """Writes a config, and records of random ids without padding."""
  with open(os.path.join(folder, "bert_config.json"), "w") as file:
    file.write(config.to_json_string())
  length, num_masks = FLAGS.seq_length, FLAGS.seq_length * 15 // 100
  rng = np.random.default_rng(0)

  def record():
    return {
      "input_ids": rng.integers(1000, FLAGS.vocab_size, length).tolist(),
      "input_mask": [1] * length,
      "segment_ids": [0] * length,
      "masked_lm_positions": list(range(1, num_masks + 1)),
      "masked_lm_ids": rng.integers(1000, FLAGS.vocab_size, num_masks).tolist(),
      "masked_lm_weights": [1.0] * num_masks,
      "next_sentence_labels": [int(rng.integers(2))],
    }

  tf_records.write_records(
    os.path.join(folder, "train.tfrecord"),
    (record() for _ in range(4 * FLAGS.batch_size)),
    pretraining_instances.record_layout(length, num_masks),
  )


def train(folder: str, cores: list[set[int]]) -> float:
  """Trains with one process per set of cores; returns examples per second."""
  with tempfile.TemporaryDirectory() as output_dir:
    ports = free_ports(len(cores))
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    tasks = [{"type": "worker", "index": index} for index in range(len(cores))]
    workers = [
      subprocess.Popen(
        command(folder, output_dir, len(cores) > 1),
        stderr=subprocess.PIPE,
        text=True,
        env={
          **os.environ,
          "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
        },
        preexec_fn=lambda own=own: os.sched_setaffinity(0, own),
      )
      for task, own in zip(tasks, cores)
    ]
    logs = [worker.communicate()[1] for worker in workers]
  if any(worker.returncode for worker in workers):
    raise RuntimeError(logs[0])
  rates = [float(rate) for rate in re.findall(r"examples/s ([\d.]+)", logs[0])]
  return statistics.median(rates[FLAGS.steps // 2 :])


def command(folder: str, output_dir: str, has_others: bool) -> list[str]:
  """The command of a worker."""
  return [
    sys.executable,
    "run_pretraining.py",
    "--do_train",
    f"--input_file={folder}/train.tfrecord",
    f"--bert_config_file={folder}/bert_config.json",
    f"--output_dir={output_dir}",
    f"--max_seq_length={FLAGS.seq_length}",
    f"--max_predictions_per_seq={FLAGS.seq_length * 15 // 100}",
    f"--train_batch_size={FLAGS.batch_size}",
    f"--num_train_steps={FLAGS.steps}",
    f"--precision={FLAGS.precision}",
    "--num_warmup_steps=1",
    "--log_steps=1",
    f"--distribution={'multi_worker' if has_others else 'off'}",
  ]


def free_ports(number: int) -> list[int]:
  """Finds free ports of this machine."""
  sockets = [socket.socket() for _ in range(number)]
  for one in sockets:
    one.bind(("localhost", 0))
  ports = [one.getsockname()[1] for one in sockets]
  for one in sockets:
    one.close()
  return ports


if __name__ == "__main__":
  from bertlib.cli import app

  define_flags()
  app.run(main)
