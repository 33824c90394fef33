"""Checks this project on a GPU, and measures its speed there.

    python -m benchmarks.gpu --json_file=output/gpu.jsonl

First the checks of `gpu_checks`: a GPU computes what a CPU computes, and the
flags do what they say. Then sequences per second of BERT-Base and BERT-Large,
in training and inference, with the share of the bfloat16 peak, which large
products reach in the same run. With `--peer_python`, transformers with PyTorch
does the same work in turns. Nothing else should run on the GPU.

`--toy` tries everything in a minute, also on a CPU. The exit status is 1 if a
check fails.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from absl import flags

from benchmarks import gpu_checks, gpu_speed, side_by_side, training_step
from benchmarks.side_by_side import Worker
from bertlib.cli.errors import InputError

FLAGS = flags.FLAGS

# Sequences per second of training on an H200.
GOALS = {("base", 128): 5650, ("large", 128): 1640, ("large", 512): 330}

_MARKS = {True: "pass", False: "FAIL", None: "not run"}


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags(passes=3)
  for module in (side_by_side, training_step):
    flags.adopt_module_key_flags(module)
  training_step.define_model_flags()
  FLAGS.set_default("precision", "bfloat16")
  FLAGS.set_default("xla", "on")
  names = [check.__name__ for check in gpu_checks.CHECKS]
  flags.DEFINE_multi_enum("checks", names, names, "Checks to run.")
  flags.DEFINE_multi_enum(
    "models",
    list(gpu_speed.MODELS),
    list(gpu_speed.MODELS),
    "Models to time; the flags of sizes are not used.",
  )
  flags.DEFINE_multi_integer("seq_lengths", [128, 384, 512], "Tokens.")
  flags.DEFINE_integer(
    "tokens_per_batch", 32768, "Tokens per batch; halved if memory is short."
  )
  flags.DEFINE_integer("steps", 20, "Steps per pass.", lower_bound=1)
  flags.DEFINE_bool("speed", True, "Whether to measure speed.")
  flags.DEFINE_bool("toy", False, "Tiny models and few steps.")


def main(_: list[str]) -> None:
  """Runs the checks, then measures speed; reports the results."""
  # Otherwise the first process would take all memory of the GPU.
  os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
  machine = describe_machine()
  for name, value in machine.items():
    print(f"{name}: {value}")
  device = ", ".join(machine["gpus"] or [])
  checks = [run_check(name) for name in FLAGS.checks]
  found = {"checks": checks, "machine": machine}
  side_by_side.report("checks", {}, {}, [], device=device, more=found)
  speed = list(measure_speed(device)) if FLAGS.speed else []
  print_table(checks, speed)
  failed = [c["check"] for c in checks if c["passed"] is False]
  if failed:
    raise InputError(f"{', '.join(failed)}: failed. See the lines above")


def describe_machine() -> dict[str, Any]:
  """GPUs, driver libraries and versions."""
  import tensorflow as tf

  gpus = tf.config.list_physical_devices("GPU")
  details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
  build = tf.sysconfig.get_build_info()
  return {
    "gpus": [str(d.get("device_name", "GPU")) for d in details] or None,
    "compute capability": [d.get("compute_capability") for d in details],
    "cuda": build.get("cuda_version"),
    "cudnn": build.get("cudnn_version"),
  }


# Checks


def run_check(name: str) -> dict[str, Any]:
  """Runs a check, in a process of its own, and prints what it saw."""
  check = getattr(gpu_checks, name)
  sizes = {"check_layers": 4, "check_hidden": 256, "check_heads": 4}
  sizes |= {"check_length": 128, "check_batch_size": 16}
  if FLAGS.toy:
    sizes = {"check_layers": 1, "check_hidden": 8, "check_heads": 2}
    sizes |= {"check_length": 12, "check_batch_size": 4}
  try:
    if FLAGS.toy:  # without the time that a process takes to start
      settings = SimpleNamespace(**FLAGS.flag_values_dict(), **sizes)
      answer = next(check(settings))
      print(f"{name}: {answer['description']}")
    else:
      with Worker(name, check, sys.executable, **sizes) as worker:
        answer = worker.first_answer
  except InputError as error:
    answer = {"passed": False, "description": str(error)}
  print(f"{_MARKS[answer['passed']]}: {check.__doc__.splitlines()[0]}")
  return {"check": name, **answer}


# Speed


def measure_speed(device: str) -> Iterator[dict[str, Any]]:
  """Reports each model, length and kind of work on a device."""
  peak = measure_peak()
  models = {"toy": {"layers": 1, "hidden": 16, "heads": 2}}
  if not FLAGS.toy:
    models = {name: gpu_speed.MODELS[name] for name in FLAGS.models}
  for model, sizes in models.items():
    for seq_length in [16] if FLAGS.toy else FLAGS.seq_lengths:
      for is_training in (True, False)[: 1 if FLAGS.toy else 2]:
        work = {**sizes, "seq_length": seq_length, "is_training": is_training}
        kind = "training" if is_training else "inference"
        print(f"{model}, length {seq_length}, {kind}")
        measured = time_in_turns(work)
        row = {
          "model": model,
          "length": seq_length,
          "work": kind,
          **summary(work, measured, peak),
          "goal": GOALS.get((model, seq_length)) if is_training else None,
        }
        side_by_side.report(
          f"{kind} of {model}, {row['batch_size']} x {seq_length} tokens",
          measured["sides"],
          {"a step": measured["seconds"]},
          device=device,
          more=row,
        )
        yield row


def measure_peak() -> float:
  """FLOP/s of large products in bfloat16."""
  size = 128 if FLAGS.toy else 8192
  with Worker(
    "products", gpu_speed.products, sys.executable, product_size=size
  ) as worker:
    rates = [worker.ask()["FLOP/s"] for _ in range(max(FLAGS.passes, 3))]
  print(f"peak in bfloat16: {max(rates) / 1e12:.4g} TFLOP/s")
  return max(rates)


def time_in_turns(work: dict[str, Any]) -> dict[str, Any]:
  """Times ours and transformers with the largest batch that both can hold."""
  tokens = 64 if FLAGS.toy else FLAGS.tokens_per_batch
  sides = [("ours", gpu_speed.ours, sys.executable)]
  if FLAGS.peer_python:
    sides.append(("transformers", gpu_speed.transformers, FLAGS.peer_python))
  batch_size = max(tokens // work["seq_length"], 1)
  while True:
    work = {**work, "batch_size": batch_size}
    try:
      seconds = {name: [] for name, *_ in sides}
      answers = {}
      for _ in range(1 if FLAGS.toy else 2):  # sides of one process vary
        answers = time_sides(sides, work, seconds)
      return {"batch_size": batch_size, "seconds": seconds, "sides": answers}
    except InputError as error:
      is_memory = "ResourceExhausted" in str(error) or "OutOf" in str(error)
      if not is_memory or batch_size == 1:
        raise
      batch_size //= 2
      print(f"out of memory: trying batches of {batch_size}")


def time_sides(
  sides, work: dict[str, Any], seconds: dict[str, list]
) -> dict[str, Any]:
  """Appends the seconds of each pass, one side after the other."""
  is_second = any(seconds.values())
  answers = dict.fromkeys(seconds)
  for name, side, python in sides[:: -1 if is_second else 1]:
    with Worker(name, side, python, **work) as worker:
      answers[name] = worker.first_answer
      for _ in range(FLAGS.passes):
        seconds[name].append(worker.ask()["a step"])
  return answers


def summary(
  work: dict[str, Any], measured: dict[str, Any], peak: float
) -> dict[str, Any]:
  """Sequences per second, share of the peak, and ratio to transformers."""
  import modeling
  from bertlib.training import memory_plan

  config = modeling.BertConfig(
    vocab_size=30522,
    hidden_size=work["hidden"],
    num_hidden_layers=work["layers"],
    num_attention_heads=work["heads"],
    intermediate_size=4 * work["hidden"],
  )
  batch_size = measured["batch_size"]
  shape = memory_plan.StepShape(work["seq_length"])
  flops = memory_plan.step_flops(config, batch_size, shape)
  if not work["is_training"]:
    flops //= 3  # without the gradient
  medians = {
    side: statistics.median(values)
    for side, values in measured["seconds"].items()
  }
  found = {
    "batch_size": batch_size,
    "sequences_per_second": batch_size / medians["ours"],
    "share_of_peak": flops / medians["ours"] / peak,
  }
  if "transformers" in medians:
    found["transformers_sequences_per_second"] = (
      batch_size / medians["transformers"]
    )
    found["ratio"] = medians["transformers"] / medians["ours"]
  return found


def print_table(
  checks: list[dict[str, Any]], speed: list[dict[str, Any]]
) -> None:
  """Prints the checks, and the speeds as a table."""
  print()
  for check in checks:
    print(f"{_MARKS[check['passed']]:8}{check['check']}")
  for row in speed:
    line = (
      f"{row['model']:6} {row['length']:4} {row['work']:9} batch"
      f" {row['batch_size']:4}: {row['sequences_per_second']:8.1f} sequences/s,"
      f" {row['share_of_peak']:.0%} of the peak"
    )
    if row["goal"]:
      line += f", goal {row['goal']}"
    if "ratio" in row:
      line += f"; {row['ratio']:.2f} times as fast as transformers"
    print(line)


if __name__ == "__main__":
  from bertlib.cli import app

  define_flags()
  app.run(main)
