"""Benchmark of the peak memory of a training step, beside its estimate.

The peak of resident memory (VmHWM) of a process that builds BERT with a
classifier and takes a few steps, a new process per pass, beside the estimate of
`step_plan`. With `--hugging_face` also transformers.

    python -m benchmarks.peak_memory --layers=24 --hidden=1024 --heads=16 \
        --seq_length=384 --batch_size=24 --memory_gb=12

Runs on Linux, since it reads /proc.
"""

from __future__ import annotations

import re

from benchmarks import side_by_side, training_step
from benchmarks.side_by_side import FLAGS, Answers, Settings


def main(_: list[str]) -> None:
  """Measures peaks and reports ratios."""
  sides = [ours, *[hugging_face] * FLAGS.hugging_face]
  answers, values = side_by_side.one_by_one(
    side_by_side.chosen(sides), FLAGS.passes, 1
  )
  # The estimate is compared as a side is.
  values["peak"]["estimate"] = [answers["ours"]["estimate"]] * FLAGS.passes
  answers["estimate"] = {"description": "of step_plan", "versions": {}}
  work = training_step.name_of_work()
  if FLAGS.memory_gb:
    work += f", within {FLAGS.memory_gb:g} GB"
  side_by_side.report(work, answers, values)


def ours(settings: Settings) -> Answers:
  """A step of ours, and its estimate."""
  from bertlib.task.task_record import StepShape
  from bertlib.training import step_plan

  config, keywords = training_step.plan(settings)
  compute, count = keywords["compute"], keywords["num_micro_batches"]
  planned = step_plan.step_bytes(
    config,
    settings.batch_size // count,
    StepShape(settings.seq_length, num_output_positions=1),
    compute,
    count > 1,
  )
  description = training_step.describe(keywords)
  side = peaks(training_step.graph_side(settings, description, **keywords))
  yield {**next(side), "estimate": planned}
  yield from side


def hugging_face(settings: Settings) -> Answers:
  """A step of transformers."""
  yield from peaks(training_step.hugging_face(settings))


def peaks(side: Answers) -> Answers:
  """A side that trains as another does and gives its peak in bytes."""
  yield next(side)
  for _ in side:
    with open("/proc/self/status", encoding="utf-8") as file:
      (kibibytes,) = re.findall(r"VmHWM:\s*(\d+) kB", file.read())
    yield {"peak": 1024 * int(kibibytes)}


if __name__ == "__main__":
  side_by_side.run(
    main,
    passes=1,
    **side_by_side.MODEL,
    steps=(2, "Steps per pass, after the first two."),
    hugging_face=(False, "Whether to measure transformers too."),
    # A trial would measure the peak of all variants.
    peer_precision=(("float32", "bfloat16", "auto"), "Precision of PyTorch."),
    torch_compile=(("off", "on", "auto"), "Whether PyTorch compiles."),
  )
