"""Benchmark of pretraining on packed rows, against single sequences.

The same random sequences, which fill half of a row on average, once packed and
once in rows of their own: an epoch of training steps, whose times compare real
tokens per second. Rows of static shapes are what a TPU computes; without
padding is what a CPU or GPU computes.

    python -m benchmarks.packing --layers=4 --hidden=256 --heads=4
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from benchmarks import side_by_side, training_step
from benchmarks.side_by_side import FLAGS, Answers, Settings, Side, repeat

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
  import tensorflow.compat.v1 as tf

  import run_pretraining
  from bertlib.data import input_pipeline

  config, keywords = training_step.plan(settings)
  unpad = settings.unpad
  keywords["compute"] = dataclasses.replace(keywords["compute"], unpad=unpad)
  rows, layout, fill = make_rows(settings)
  per_token = [name for name, feature in layout.items() if feature.per_token]

  def next_batch():
    batches = (
      tf.data.Dataset.from_tensor_slices(rows)
      .batch(settings.batch_size, drop_remainder=True)
      .cache()
      .repeat()
    )
    if unpad:
      batches = batches.map(
        lambda batch: input_pipeline.trim_padding(batch, names=per_token)
      )
    return tf.data.make_one_shot_iterator(batches.prefetch(2)).get_next()

  model_fn = training_step.make_model_fn(run_pretraining, config, **keywords)
  session, _, spec = training_step.start_session(
    model_fn, next_batch, settings.batch_size
  )
  steps = len(rows["input_ids"]) // settings.batch_size
  # Closed at the end: a process whose input still runs does not exit.
  with session:
    repeat(steps, session.run, spec.train_op)
    ways = training_step.describe(keywords)
    description = f"{ways}; {steps} steps, tokens fill {fill:.3f} of the rows"
    call = repeat, steps, session.run, spec.train_op
    yield from side_by_side.passes(description, "an epoch", 1, *call)


def make_rows(
  settings: Settings,
) -> tuple[dict[str, Any], dict[str, Any], float]:
  """Arrays [rows, ...] of full batches; their layout; the share of tokens."""
  import numpy as np

  from bertlib.tasks.pretraining import pretraining_instances

  rng = random.Random(1)
  length = settings.seq_length
  sizes = length, -(-length * 17 // 100)
  most = MAX_SEQUENCES if settings.packs else None
  instances = []
  for _ in range(settings.sequences):
    size = rng.randint(3, length - 3)  # half of a row on average
    tokens = [rng.randrange(1000, 30000) for _ in range(size)]
    masked = sorted(
      rng.sample(range(len(tokens)), max(len(tokens) * 15 // 100, 1))
    )
    instances.append(
      pretraining_instances.TrainingInstance(
        tokens,
        [0] * len(tokens),
        masked,
        [tokens[position] for position in masked],
        rng.random() < 0.5,
      )
    )
  rows = list(zip(instances))
  if settings.packs:
    rows = pretraining_instances.pack(instances, *sizes, most)
    rng.shuffle(rows)
  # The last batch is filled up, so that no side leaves out a sequence.
  rows += rows[: -len(rows) % settings.batch_size]
  layout = pretraining_instances.record_layout(
    *sizes, max_sequences_per_row=most
  )
  features = [
    pretraining_instances.row_features(row, list, *sizes, most) for row in rows
  ]
  arrays = {
    name: np.array(
      [list(row[name]) for row in features],
      np.float32 if feature.is_float else np.int32,
    )
    for name, feature in layout.items()
  }
  return arrays, layout, float(arrays["input_mask"].mean())


if __name__ == "__main__":
  side_by_side.run(
    main,
    **side_by_side.MODEL,
    sequences=(512, "Sequences."),
  )
