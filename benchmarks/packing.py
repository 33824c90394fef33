"""Benchmark of pretraining on packed rows, against single sequences.

The same random sequences, which fill half of a row on average, once packed and
once in rows of their own: an epoch of training steps, whose times compare real
tokens per second. Rows of static shapes are what a TPU computes; without
padding is what a CPU or GPU computes.

    python -m benchmarks.packing --layers=4 --hidden=256 --heads=4
"""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks import mrpc_epoch, side_by_side, training_step
from benchmarks.side_by_side import FLAGS, Answers, Settings, Side

MAX_SEQUENCES = 8
SIDES = {
  "packed static": {"packs": True, "unpad": False},
  "static": {"packs": False, "unpad": False},
  "packed unpadded": {"packs": True, "unpad": True},
  "unpadded": {"packs": False, "unpad": True},
}


def main(_: list[str]) -> None:
  """Times epochs and reports ratios."""
  side_by_side.compare(
    [Side(name, epochs, settings=how) for name, how in SIDES.items()],
    f"{training_step.name_of_work()}, {FLAGS.sequences} sequences",
    pairs=[
      ("an epoch", "packed static", "static"),
      ("an epoch", "packed unpadded", "unpadded"),
    ],
  )


def epochs(settings: Settings) -> Answers:
  """A side that times epochs of training steps on all sequences.

  `packs` is whether rows are packed, `unpad` whether their padding is removed.
  """
  import run_pretraining
  from bertlib.data import tf_records
  from bertlib.tasks.pretraining import pretraining_instances, training_batches

  config, keywords = training_step.plan(settings)
  unpad = settings.unpad
  keywords["compute"] = dataclasses.replace(keywords["compute"], unpad=unpad)
  sizes = settings.seq_length, -(-settings.seq_length * 17 // 100)
  most = MAX_SEQUENCES if settings.packs else None
  rows = [
    pretraining_instances.row_features(row, list, *sizes, most)
    for row in make_rows(settings, *sizes, most)
  ]
  layout = pretraining_instances.record_layout(
    *sizes, max_sequences_per_row=most
  )
  fill = sum(sum(row["input_mask"]) for row in rows) / len(rows) / sizes[0]
  steps = len(rows) // settings.batch_size
  ways = training_step.describe(keywords)
  description = f"{ways}; {steps} steps, tokens fill {fill:.3f} of the rows"
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "records")
    tf_records.write_records(path, rows, layout)
    one_epoch = training_batches.input_fn_builder(
      [path], *sizes, is_training=False, drop_remainder=True, trim=unpad
    )
    yield from mrpc_epoch.graph_epochs(
      settings,
      description,
      lambda params: one_epoch(params).cache().repeat(),
      training_step.make_model_fn(run_pretraining, config, **keywords),
      steps,
    )


def make_rows(
  settings: Settings, seq_length: int, num_predictions: int, most: int | None
) -> list[Sequence[Any]]:
  """Random instances, at most so many per row, in full batches of rows."""
  from bertlib.tasks.pretraining import pretraining_instances

  rng = random.Random(1)
  instances = []
  for _ in range(settings.sequences):
    size = rng.randint(3, seq_length - 3)  # half of a row on average
    tokens = [rng.randrange(1000, 30000) for _ in range(size)]
    masked = sorted(rng.sample(range(size), max(size * 15 // 100, 1)))
    labels = [tokens[position] for position in masked]
    instances.append(
      pretraining_instances.TrainingInstance(
        tokens, [0] * size, masked, labels, rng.random() < 0.5
      )
    )
  rows = list(zip(instances))
  if most:
    rows = pretraining_instances.pack(
      instances, seq_length, num_predictions, most
    )
    rng.shuffle(rows)
  # The last batch is filled up, so that no side leaves out a sequence.
  return rows + rows[: -len(rows) % settings.batch_size]


if __name__ == "__main__":
  side_by_side.run(
    main,
    **side_by_side.MODEL,
    sequences=(512, "Sequences."),
  )
