"""Checks this project on a GPU, and measures its speed there.

    python -m benchmarks.gpu --json_file=output/gpu.jsonl

First the checks of `gpu_checks`: a GPU computes what a CPU computes, and the
flags do what they say. Then sequences per second of BERT-Base and BERT-Large,
in training and inference, with the share of the bfloat16 peak, which large
products reach in the same run. With `--peer_python`, transformers with PyTorch
does the same work in turns. Nothing else should run on the GPU.

`--toy` tries everything in minutes, also on a CPU. The exit status is 1 if a
check fails.
"""

from __future__ import annotations

import itertools
import os
import statistics
from types import SimpleNamespace
from typing import Any

from absl import flags

from benchmarks import gpu_checks, side_by_side, training_step
from benchmarks.gpu_checks import MODELS
from benchmarks.side_by_side import FLAGS, Answers, Settings, Side, Worker
from bertlib.cli.errors import InputError
from bertlib.hardware.devices import Devices
from bertlib.reporting import receipts
from bertlib.settings.common import DeviceSettings

LENGTHS = (128, 384, 512)
TOKENS_PER_BATCH = 32768  # halved if memory is short


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags(
    passes=3,
    steps=(20, "Steps per pass."),
    speed=(True, "Whether to measure speed."),
    toy=(False, "Tiny models and few steps."),
  )
  for name in ("precision", "peer_precision"):
    FLAGS.set_default(name, "bfloat16")
  for name in ("xla", "torch_compile"):
    FLAGS.set_default(name, "on")
  names = [check.__name__ for check in gpu_checks.CHECKS]
  flags.DEFINE_multi_enum("checks", names, names, "Checks to run.")


def main(_: list[str]) -> None:
  """Runs the checks, then measures speed; reports the results."""
  # Otherwise the first process would take all memory of the GPU.
  os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
  if FLAGS.speed:
    side_by_side.check_peers("torch", "transformers")
  machine = receipts.device() | Devices(DeviceSettings()).hardware
  print(machine)
  device = ", ".join(machine["gpus"])
  checks = [run_check(name) for name in FLAGS.checks]
  found = {"checks": checks, "machine": machine}
  side_by_side.report("checks", {}, {}, [], device=device, more=found)
  if FLAGS.speed:
    measure_speed(device)
  failed = [c["check"] for c in checks if c["passed"] is False]
  if failed:
    raise InputError(f"{', '.join(failed)}: failed. See the lines above")


def run_check(name: str) -> dict[str, Any]:
  """Runs a check, in a process of its own, and prints what it saw."""
  check = getattr(gpu_checks, name)
  sizes = gpu_checks.TOY if FLAGS.toy else gpu_checks.SIZES
  try:
    with Worker(Side(name, check, settings=sizes)) as worker:
      answer = worker.first_answer
  except InputError as error:
    answer = {"passed": False, "description": str(error)}
  mark = {True: "pass", False: "FAIL", None: "not run"}[answer["passed"]]
  print(f"{mark} {name}: {check.__doc__.splitlines()[0]}")
  return {"check": name, **answer}


def measure_speed(device: str) -> None:
  """Reports each model, length and kind of work on a device."""
  size = 128 if FLAGS.toy else 8192
  with Worker(Side("products", products, settings={"size": size})) as worker:
    peak = max(worker.ask()["FLOP/s"] for _ in range(max(FLAGS.passes, 3)))
  print(f"peak in bfloat16: {peak / 1e12:.4g} TFLOP/s")
  cases = itertools.product(("base", "large"), LENGTHS, (True, False))
  if FLAGS.toy:
    cases = [("toy", 16, True)]
  for model, length, is_training in cases:
    kind = "training" if is_training else "inference"
    print(f"{model}, length {length}, {kind}")
    work = MODELS[model] | {"seq_length": length, "is_training": is_training}
    work |= {"gradient_accumulation_steps": 1, "recompute_activations": False}
    work, answers, values = time_in_turns(work)
    found = summary(work, values["a step"], peak)
    side_by_side.report(
      f"{kind} of {model}, {found['batch_size']} x {length} tokens",
      answers,
      values,
      device=device,
      more={"model": model, "length": length, "work": kind, **found},
    )
    print(
      f"ours: {found['sequences_per_second']:.1f} sequences/s,"
      f" {found['share_of_peak']:.0%} of the peak",
      flush=True,
    )


def products(settings: Settings) -> Answers:
  """FLOP/s of large products in bfloat16, the peak that shares refer to."""
  import tensorflow.compat.v1 as tf

  size, count = settings.size, 20
  with tf.Graph().as_default():
    initial = tf.random.stateless_uniform([size, size], [1, 2], dtype="float32")
    weights = tf.get_variable(
      "weights", initializer=tf.cast(initial / size, tf.bfloat16)
    )
    matrix = weights
    for _ in range(count):
      matrix = tf.matmul(matrix, weights)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    session.run(matrix.op)
  yield {"description": f"bfloat16 products of {size} x {size}"}
  while True:
    seconds = side_by_side.timed(session.run, matrix.op)
    yield {"FLOP/s": count * 2 * size**3 / seconds}


def time_in_turns(work: dict[str, Any]) -> tuple:
  """Times ours and transformers with the largest batch that both can hold.

  Returns the work with its batch size, the first answers, and the values.
  """
  tokens = 64 if FLAGS.toy else TOKENS_PER_BATCH
  batch_size = max(tokens // work["seq_length"], 1)
  rounds = 1 if FLAGS.toy else 2  # sides of one process vary
  while True:
    sized = {**work, "batch_size": batch_size}
    sides = [training_step.ours, training_step.hugging_face]
    sides = side_by_side.chosen(sides, **sized)
    try:
      return sized, *side_by_side.one_by_one(sides, rounds, FLAGS.passes)
    except InputError as error:
      is_memory = "ResourceExhausted" in str(error) or "OutOf" in str(error)
      if not is_memory or batch_size == 1:
        raise
      batch_size //= 2
      print(f"out of memory: trying batches of {batch_size}")


def summary(
  work: dict[str, Any], seconds: dict[str, list[float]], peak: float
) -> dict[str, Any]:
  """Sequences per second of ours, and the share of the peak."""
  import modeling
  from bertlib.task.task_record import StepShape
  from bertlib.training import step_plan

  sizes = training_step.sizes(SimpleNamespace(**work))
  batch_size = work["batch_size"]
  shape = StepShape(work["seq_length"])
  flops = step_plan.step_flops(modeling.BertConfig(**sizes), batch_size, shape)
  if not work["is_training"]:
    flops //= 3  # without the gradient
  median = statistics.median(seconds["ours"])
  return {
    "batch_size": batch_size,
    "sequences_per_second": batch_size / median,
    "share_of_peak": flops / median / peak,
  }


if __name__ == "__main__":
  side_by_side.run(main, define_flags)
