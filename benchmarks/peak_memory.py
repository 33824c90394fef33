"""How much memory does a training step take, and does the plan say so?

The peak of resident memory (VmHWM) of a process that builds BERT with a
classifier and takes a few steps, a new process each pass, beside what
`memory_plan` says of such a step. With `--hugging_face` transformers as well,
with gradient checkpointing where activations are to be computed again.

    python -m benchmarks.peak_memory --layers=24 --hidden=1024 --heads=16 \
        --seq_length=384 --batch_size=24 --memory_gb=12

Runs on Linux, whose /proc it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace

from absl import flags

from benchmarks import side_by_side, training_step
from benchmarks.side_by_side import Answer

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the command line."""
  side_by_side.define_flags(passes=1)
  side_by_side.define_reference_flags()
  training_step.define_model_flags()
  flags.adopt_module_key_flags(side_by_side)
  flags.adopt_module_key_flags(training_step)
  # The peak would be that of both formats, if both were tried.
  FLAGS.set_default("peer_precision", "float32")
  flags.DEFINE_integer("steps", 2, "Steps a pass, after the first two.")
  flags.DEFINE_bool("hugging_face", False, "Whether to measure it too.")


def main(_: list[str]) -> None:
  """Measures peaks and prints ratios."""
  sides = [ours, *[hugging_face] * FLAGS.hugging_face, reference]
  sides = side_by_side.chosen(sides)
  peaks = {}
  for _ in range(FLAGS.passes):
    for side in sides:
      with side_by_side.Worker(side) as worker:
        peaks.setdefault(worker.name, []).append(worker.ask()["peak"])
  side_by_side.print_ratios(
    {"peak": peaks}, {"peak": lambda peak: f"{peak / 1e9:.2f} GB"}
  )


# Sides


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """Our step, and what is planned for it."""
  from bertlib.training import memory_plan

  config, how = training_step.plan(settings)
  compute, options = how["compute"], how["options"]
  planned = memory_plan.step_bytes(
    config,
    settings.batch_size // options.num_micro_batches,
    settings.seq_length,
    compute.recompute,
    options.num_micro_batches > 1,
    compute.dtype.size,
    num_output_positions=1,  # [CLS]
  )
  tells = f"{training_step.describe(how)}; planned {planned / 1e9:.2f} GB"
  yield from peaks(training_step.graph_side(settings, tells, **how))


def hugging_face(settings: SimpleNamespace) -> Iterator[Answer]:
  """The step of transformers."""
  yield from peaks(training_step.hugging_face(settings))


def reference(settings: SimpleNamespace) -> Iterator[Answer]:
  """The reference's step."""
  yield from peaks(training_step.reference(settings))


def peaks(side: Iterator[Answer]) -> Iterator[Answer]:
  """A side that trains as another does, and tells its peak in bytes."""
  yield next(side)
  for _ in side:
    with open("/proc/self/status", encoding="utf-8") as file:
      (kibibytes,) = re.findall(r"VmHWM:\s*(\d+) kB", file.read())
    yield {"peak": 1024 * int(kibibytes)}


if __name__ == "__main__":
  from bertlib import app

  define_flags()
  app.run(main)
