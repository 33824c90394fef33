"""Benchmark of the peak memory of a training step, beside its estimate.

The peak of resident memory (VmHWM) of a process that builds BERT with a
classifier and takes a few steps, a new process per pass, beside the estimate of
`memory_plan`. With `--hugging_face` also transformers, with gradient
checkpointing if ours uses it.

    python -m benchmarks.peak_memory --layers=24 --hidden=1024 --heads=16 \
        --seq_length=384 --batch_size=24 --memory_gb=12

Runs on Linux, since it reads /proc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace

from absl import flags

from benchmarks import results, side_by_side, training_step
from benchmarks.side_by_side import Answer

FLAGS = flags.FLAGS

# Name of the estimate, which is compared as a side is.
ESTIMATE = "estimate"


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags(passes=1)
  training_step.define_model_flags()
  flags.adopt_module_key_flags(side_by_side)
  flags.adopt_module_key_flags(training_step)
  # A trial would measure the peak of all variants.
  FLAGS.set_default("peer_precision", "float32")
  FLAGS.set_default("torch_compile", "off")
  flags.DEFINE_integer("steps", 2, "Steps per pass, after the first two.")
  flags.DEFINE_bool(
    "hugging_face", False, "Whether to measure transformers too."
  )


def main(_: list[str]) -> None:
  """Measures peaks and reports ratios."""
  sides = [ours, *[hugging_face] * FLAGS.hugging_face, reference]
  sides = side_by_side.chosen(sides)
  answers: dict[str, Answer] = {}
  peaks: dict[str, list[float]] = {}
  for number in range(FLAGS.passes):
    for side in sides:
      with side_by_side.Worker(*side) as worker:
        answers[worker.name] = worker.first_answer
        peaks.setdefault(worker.name, []).append(worker.ask()["peak"])
    planned = answers["ours"]["estimate"]
    peaks.setdefault(ESTIMATE, []).append(planned)
    results.show_pass(number + 1, {"peak": peaks})
  answers[ESTIMATE] = {"description": "of memory_plan", "versions": {}}
  work = training_step.name_of_work()
  if FLAGS.memory_gb:
    work += f", within {FLAGS.memory_gb:g} GB"
  side_by_side.report(work, answers, {"peak": peaks})


# Sides


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """A step of ours, and its estimate."""
  from bertlib.training import memory_plan

  config, keywords = training_step.plan(settings)
  compute, options = keywords["compute"], keywords["options"]
  planned = memory_plan.step_bytes(
    config,
    settings.batch_size // options.num_micro_batches,
    training_step.step_shape(settings),
    compute.recompute,
    options.num_micro_batches > 1,
    compute.dtype.size,
  )
  description = training_step.describe(keywords)
  side = peaks(training_step.graph_side(settings, description, **keywords))
  yield {**next(side), "estimate": planned}
  yield from side


def hugging_face(settings: SimpleNamespace) -> Iterator[Answer]:
  """A step of transformers."""
  yield from peaks(training_step.hugging_face(settings))


def reference(settings: SimpleNamespace) -> Iterator[Answer]:
  """A step of the original."""
  yield from peaks(training_step.reference(settings))


def peaks(side: Iterator[Answer]) -> Iterator[Answer]:
  """A side that trains as another does and gives its peak in bytes."""
  yield next(side)
  for _ in side:
    with open("/proc/self/status", encoding="utf-8") as file:
      (kibibytes,) = re.findall(r"VmHWM:\s*(\d+) kB", file.read())
    yield {"peak": 1024 * int(kibibytes)}


if __name__ == "__main__":
  from bertlib.cli import app

  define_flags()
  app.run(main)
