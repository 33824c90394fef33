"""Benchmark of pretraining on packed rows, against single sequences.

The same random sequences, which fill half of a row on average, once packed and
once in rows of their own: an epoch of training steps, whose times compare real
tokens per second. Rows of static shapes are what a TPU computes; without
padding is what a CPU or GPU computes.

    python -m benchmarks.packing --layers=4 --hidden=256 --heads=4
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from absl import flags

from benchmarks import side_by_side, training_step
from benchmarks.side_by_side import Answer, timed

FLAGS = flags.FLAGS
MAX_SEQUENCES = 8


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags()
  flags.adopt_module_key_flags(side_by_side)
  training_step.define_model_flags()
  flags.adopt_module_key_flags(training_step)
  flags.DEFINE_integer("sequences", 512, "Sequences.", lower_bound=1)


def main(_: list[str]) -> None:
  """Times epochs and reports ratios."""
  sides = [packed_static, static, packed_unpadded, unpadded]
  with contextlib.ExitStack() as stack:
    workers = [
      stack.enter_context(
        side_by_side.Worker(
          side.__name__.replace("_", " "), side, sys.executable
        )
      )
      for side in sides
    ]
    values = side_by_side.alternate(workers)
  side_by_side.report(
    f"{training_step.name_of_work()}, {FLAGS.sequences} sequences",
    {worker.name: worker.first_answer for worker in workers},
    values,
    pairs=[
      ("an epoch", "packed static", "static"),
      ("an epoch", "packed unpadded", "unpadded"),
    ],
  )


# Sides


def packed_static(settings: SimpleNamespace) -> Iterator[Answer]:
  """Packed rows, with their padding."""
  yield from epochs(settings, packs=True, unpad=False)


def static(settings: SimpleNamespace) -> Iterator[Answer]:
  """Single sequences, with their padding."""
  yield from epochs(settings, packs=False, unpad=False)


def packed_unpadded(settings: SimpleNamespace) -> Iterator[Answer]:
  """Packed rows without padding."""
  yield from epochs(settings, packs=True, unpad=True)


def unpadded(settings: SimpleNamespace) -> Iterator[Answer]:
  """Single sequences without padding."""
  yield from epochs(settings, packs=False, unpad=True)


# Helpers


def epochs(
  settings: SimpleNamespace, packs: bool, unpad: bool
) -> Iterator[Answer]:
  """Times epochs of training steps on all sequences."""
  import tensorflow.compat.v1 as tf

  import run_pretraining
  from bertlib.data import input_pipeline

  config, keywords = training_step.plan(settings)
  keywords["compute"] = dataclasses.replace(keywords["compute"], unpad=unpad)
  rows, layout, fill = make_rows(settings, packs)
  model_fn = run_pretraining.model_fn_builder(
    config, None, 1e-4, 10**6, 10, False, False, **keywords
  )
  per_token = [name for name, feature in layout.items() if feature.per_token]
  with tf.Graph().as_default():
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
    features = tf.data.make_one_shot_iterator(batches.prefetch(2)).get_next()
    spec = model_fn(
      features, None, "train", {"batch_size": settings.batch_size}
    )
    copies = tf.local_variables_initializer()  # 16-bit copies of weights
    steps = len(rows["input_ids"]) // settings.batch_size
    # Closed at the end: a process whose input still runs does not exit.
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      session.run(copies)
      training_step.repeat(steps, session.run, spec.train_op)
      ways = training_step.describe(keywords)
      yield {
        "description": f"{ways}; {steps} steps, tokens fill {fill:.3f} of"
        " the rows"
      }
      while True:
        times = timed(training_step.repeat, steps, session.run, spec.train_op)
        yield {"an epoch": times}


def make_rows(
  settings: SimpleNamespace, packs: bool
) -> tuple[dict[str, Any], dict[str, Any], float]:
  """Arrays [rows, ...] of full batches; their layout; the share of tokens."""
  import numpy as np

  from bertlib.tasks.pretraining import pretraining_instances

  rng = random.Random(1)
  length = settings.seq_length
  sizes = length, -(-length * 17 // 100)
  most = MAX_SEQUENCES if packs else None
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
  if packs:
    rows = pretraining_instances.pack(instances, *sizes, most)
    rng.shuffle(rows)
  # The last batch is filled up, so that no side leaves out a sequence.
  rows += rows[: -len(rows) % settings.batch_size]
  layout = pretraining_instances.record_layout(*sizes, True, most)
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
  from bertlib.cli import app

  define_flags()
  app.run(main)
