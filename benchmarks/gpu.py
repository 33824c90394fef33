"""Checks this project on a GPU, and measures its speed there.

    python -m benchmarks.gpu --json_file=output/gpu.jsonl

First the checks: a GPU computes what a CPU computes, and the flags do what they
say. Then sequences per second of BERT-Base and BERT-Large, in training and
inference, with the share of the bfloat16 peak, which large products reach in
the same run. With `--peer_python`, transformers with PyTorch does the same work
in turns. Nothing else should run on the GPU.

`--toy` tries everything in minutes, also on a CPU. The exit status is 1 if a
check fails.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from benchmarks import side_by_side, task_models, training_step
from benchmarks.side_by_side import FLAGS, Answer, Answers, Settings, Side
from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api
from bertlib.compute import precision
from bertlib.hardware.devices import Devices
from bertlib.reporting import receipts, training_checks
from bertlib.settings.common import DeviceSettings
from bertlib.task.task_record import StepShape
from bertlib.training import loop, step_plan
from bertlib.training.runs import Run

LENGTHS = (128, 384, 512)
TOKENS_PER_BATCH = 32768  # halved if memory is short
TASKS = ("classification", "squad", "ner", "pretraining")
MODELS = {
  "base": {"layers": 12, "hidden": 768, "heads": 12},
  "large": {"layers": 24, "hidden": 1024, "heads": 16},
  "toy": {"layers": 1, "hidden": 16, "heads": 2},
}


def _sizes(model: dict[str, int], length: int, batch_size: int):
  """Settings of a check: sizes of model and batch."""
  return {**model, "seq_length": length, "batch_size": batch_size}


_MINILM = {"layers": 6, "hidden": 384, "heads": 12}
_BASE, _LARGE = MODELS["base"], MODELS["large"]
SIZES = _sizes({"layers": 4, "hidden": 256, "heads": 4}, 128, 16)
TOY = _sizes({"layers": 1, "hidden": 8, "heads": 2}, 12, 4)

_FLOAT32, _BFLOAT16 = "--precision=float32", "--precision=bfloat16"
_XLA, _NO_XLA = "--xla=on", "--xla=off"
_RECOMPUTES, _MASKS = "--recompute_activations", "--max_predictions_per_seq=20"
MEMORY_CASES = (
  ("classification", _sizes(_BASE, 128, 8), _FLOAT32, _XLA),
  ("classification", _sizes(_BASE, 128, 8), _FLOAT32, _NO_XLA),
  ("classification", _sizes(_MINILM, 64, 256), _FLOAT32, _XLA),
  ("classification", _sizes(_BASE, 128, 256), _BFLOAT16, _XLA),
  ("classification", _sizes(_BASE, 128, 256), _BFLOAT16, _NO_XLA),
  ("pretraining", _sizes(_BASE, 128, 256), _BFLOAT16, _XLA, _MASKS),
  ("pretraining", _sizes(_BASE, 512, 32), _FLOAT32, _XLA, _MASKS),
  ("classification", _sizes(_LARGE, 512, 16), _BFLOAT16, _XLA),
  ("classification", _sizes(_LARGE, 128, 64), _FLOAT32, _NO_XLA),
  ("classification", _sizes(_LARGE, 384, 24), _BFLOAT16, _XLA, _RECOMPUTES),
  (
    *("pretraining", _sizes(_BASE, 128, 256), _BFLOAT16, _XLA, _MASKS),
    "--gradient_accumulation_steps=4",
  ),
)


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
  check = CHECKS[name]
  sizes = TOY if FLAGS.toy else SIZES
  try:
    with side_by_side.Worker(Side(name, check, settings=sizes)) as worker:
      answer = worker.first_answer
  except InputError as error:
    answer = {"passed": False, "description": str(error)}
  mark = {True: "pass", False: "FAIL", None: "not run"}[answer["passed"]]
  print(f"{mark} {name}: {check.__doc__.splitlines()[0]}")
  return {"check": name, **answer}


def measure_speed(device: str) -> None:
  """Reports each model, length and kind of work on a device."""
  size = 128 if FLAGS.toy else 8192
  side = Side("products", products, settings={"size": size})
  with side_by_side.Worker(side) as worker:
    peak = worker.first_answer["peak"]
  print(f"peak in bfloat16: {peak / 1e12:.4g} TFLOP/s")
  cases = itertools.product(("base", "large"), LENGTHS, (True, False))
  if FLAGS.toy:
    cases = [("toy", 16, True)]
  for model, length, is_training in cases:
    kind = "training" if is_training else "inference"
    print(f"{model}, length {length}, {kind}")
    work = MODELS[model] | {"seq_length": length, "predicts": not is_training}
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
  size = settings.size
  rates = precision.product_rates(["bfloat16"], size, size, size)
  description = f"bfloat16 products of {size} x {size}"
  yield {"description": description, "peak": rates["bfloat16"]}


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
  sizes = training_step.sizes(SimpleNamespace(**work))
  batch_size = work["batch_size"]
  shape = StepShape(work["seq_length"])
  flops = step_plan.step_flops(modeling.BertConfig(**sizes), batch_size, shape)
  if work["predicts"]:
    flops //= 3  # without the gradient
  median = statistics.median(seconds["ours"])
  return {
    "batch_size": batch_size,
    "sequences_per_second": batch_size / median,
    "share_of_peak": flops / median / peak,
  }


# The checks, in order. Each is a side that answers once: `description` says
# what was seen; `passed` is None if it needs a GPU and there is none.


def graph_tests(settings: Settings) -> Answers:
  """The graph tests of modeling and optimization, in float32 without TF32."""
  names = ["tests/modeling_test.py", "tests/optimization_test.py"]
  chosen = ["-m", "graph"]
  if settings.toy:
    names, chosen = names[:1], ["-k", "gelu"]
  done = subprocess.run(
    [sys.executable, "-m", "pytest", "-q", *chosen, *names],
    env={**os.environ, "NVIDIA_TF32_OVERRIDE": "0"},
    capture_output=True,
    text=True,
  )
  last = (done.stdout.strip().splitlines() or ["no output"])[-1]
  yield _answer(done.returncode == 0, last)


def cpu_numbers(settings: Settings) -> Answers:
  """Losses of 20 steps of each script: relative 1e-4 to those of the CPU."""
  tf.config.experimental.enable_tensor_float_32_execution(False)
  differences = {}
  for task in TASKS[:1] if settings.toy else TASKS:
    on_cpu = _train(settings, task, device="/cpu:0")
    on_gpu = _train(settings, task)
    differences[task] = _difference(on_gpu.losses, on_cpu.losses)
  shown = ", ".join(f"{n} {value:.1g}" for n, value in differences.items())
  shown += "" if has_gpu() else " (no GPU: the CPU with itself)"
  yield _answer(max(differences.values()) < 1e-4, shown)


def precision_auto(_: Settings) -> Answers:
  """--precision=auto takes the dtype of the fastest products."""
  dtypes = precision.supported_dtypes()
  rates = precision.product_rates(dtypes, rows=4096)
  chosen = precision.fastest_dtype()
  shown = ", ".join(f"{n} {r / 1e12:.3g} TFLOP/s" for n, r in rates.items())
  passed = rates[chosen] >= max(rates.values()) / 1.5
  yield _answer(passed, f"{chosen}; {shown}")


def xla(settings: Settings) -> Answers:
  """--xla=off, then on: the same losses without dropout."""
  yield _same_losses(settings, {}, {"flags": [_XLA, _FLOAT32]})


def fast_compute(settings: Settings) -> Answers:
  """--compute=plain, then not: the same losses without dropout."""
  plain = {"flags": [_NO_XLA, _FLOAT32, "--compute=plain"]}
  yield _same_losses(settings, plain, {})


def defaults(settings: Settings) -> Answers:
  """In float32, then with the default flags: losses differ by at most 2%."""
  yield _same_losses(settings, {}, {"flags": []}, tolerance=0.02)


def planned_memory(settings: Settings) -> Answers:
  """Peak memory is within 10% of what `step_plan` estimates."""
  shown, passed = [], True
  for task, sizes, *words in MEMORY_CASES[: 2 if settings.toy else None]:
    sized = settings
    if has_gpu() and not settings.toy:
      sized = SimpleNamespace(**{**vars(settings), **sizes})
    peak = _train(sized, task, 3, flags=words, padding=False).peak_bytes
    made = _make_run(sized, task, words)
    estimate = training_checks.planned_bytes(made, loop.plan_of(made))
    passed &= abs(estimate / max(peak, 1) - 1) < 0.1
    shown.append(
      f"{task}, {sizes['layers']} layers, {sizes['batch_size']} x"
      f" {sizes['seq_length']}, {' '.join(words)}: {peak / 1e9:.2f} GB,"
      f" estimate {estimate / 1e9:.2f} GB"
    )
  yield _answer(passed if has_gpu() else None, "\n  ".join(["", *shown]))


def float16_run(settings: Settings) -> Answers:
  """200 steps in float16 with a loss scale: finite, and the loss falls."""
  num_steps = 5 if settings.toy else 200
  words = [_NO_XLA, "--precision=float16"]
  trained = _train(settings, "classification", num_steps=num_steps, flags=words)
  tenth = max(num_steps // 10, 1)
  first, last = (
    float(np.mean(part))
    for part in (trained.losses[:tenth], trained.losses[-tenth:])
  )
  passed = bool(np.isfinite(trained.losses).all()) and last < first
  yield _answer(
    passed,
    f"loss from {first:.3f} to {last:.3f} in {num_steps} steps, scale"
    f" {trained.loss_scale:g} at the end",
  )


CHECKS = {
  "graph_tests": graph_tests,
  "cpu_numbers": cpu_numbers,
  "precision_auto": precision_auto,
  "xla": xla,
  "fast_compute": fast_compute,
  "defaults": defaults,
  "planned_memory": planned_memory,
  "float16_run": float16_run,
}


# Training of the checks


class Trained(NamedTuple):
  """Some steps of training."""

  losses: list[float]  # loss of each step
  seconds: float  # fastest step
  peak_bytes: int  # peak memory of the GPU; 0 without one
  loss_scale: float | None  # at the end; None without one


def has_gpu() -> bool:
  """True if TensorFlow finds a GPU."""
  return bool(tf.config.list_physical_devices("GPU"))


def _answer(passed: bool | None, description: str) -> Answer:
  passed = None if passed is None else bool(passed)
  return {"passed": passed, "description": description}


def _same_losses(
  settings: Settings, first: dict, second: dict, tolerance: float = 1e-4
) -> Answer:
  """Trains in two ways without dropout, and compares losses and times."""
  tf.config.experimental.enable_tensor_float_32_execution(False)
  one, other = (
    _train(settings, "classification", dropout=False, **arguments)
    for arguments in (first, second)
  )
  difference = _difference(one.losses, other.losses)
  ratio = other.seconds / one.seconds
  return _answer(
    difference < tolerance,
    f"losses differ by {difference:.1g}; the second takes {ratio:.2f} of the"
    " time of the first",
  )


def _difference(some: Sequence[float], others: Sequence[float]) -> float:
  """Largest relative difference."""
  return float(np.max(np.abs(np.divide(some, others) - 1)))


def _make_run(
  settings: Settings, task: str, flags: Sequence[str], dropout: bool = True
) -> Run:
  """A run of a task at the sizes of the checks."""
  config = modeling.BertConfig(**training_step.sizes(settings))
  if not dropout:
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
  return task_models.run_of(
    task,
    f"--max_seq_length={settings.seq_length}",
    f"--train_batch_size={settings.batch_size}",
    "--learning_rate=1e-4",
    *flags,
    config=config,
  )


def _initialize(session: tf.Session) -> None:
  """Initializes variables; weights with the same values on each device."""
  copies = tf.local_variables_initializer()  # 16-bit copies of weights
  session.run(tf.global_variables_initializer())
  values = {}
  for number, variable in enumerate(tf.trainable_variables()):
    if re.search(r"kernel|embeddings$|weights$", variable.op.name):
      shape = variable.shape.as_list()
      random = np.random.default_rng(number).standard_normal(shape)
      values[variable.initializer] = (0.02 * random).astype(np.float32)
  session.run(list(values), {op.inputs[1]: v for op, v in values.items()})
  session.run(copies)


def _train(
  settings: Settings,
  task: str,
  num_steps: int | None = None,
  device: str | None = None,
  flags: Sequence[str] = (_NO_XLA, _FLOAT32),
  dropout: bool = True,
  padding: bool = True,
) -> Trained:
  """Trains a new model for some steps."""
  made = _make_run(settings, task, flags, dropout)
  params = {"batch_size": settings.batch_size}
  if has_gpu():
    tf.config.experimental.reset_memory_stats("GPU:0")
  with tf.Graph().as_default(), tf.device(device):
    with tf.device("/cpu:0"):
      examples = task_models.random_batch(
        made.task.features, 4 * settings.batch_size, made.config.vocab_size
      )
      if not padding:
        examples["input_mask"] = np.ones_like(examples["input_mask"])
      rows = tf.data.Dataset.from_tensor_slices(examples).repeat()
      batches = rows.batch(settings.batch_size, drop_remainder=True).prefetch(1)
    iterator = tf.data.make_initializable_iterator(batches)
    model_fn = loop.model_fn_of(made, num_train_steps=1000)
    mode = estimator_api.ModeKeys.TRAIN
    spec = model_fn(iterator.get_next(), None, mode, params)
    scales = [
      v for v in tf.global_variables() if v.op.name == "loss_scale/scale"
    ]
    losses, seconds = [], []
    config = tf.ConfigProto(allow_soft_placement=True)
    with tf.Session(config=config) as session:
      session.run(iterator.initializer)
      _initialize(session)
      for _ in range(num_steps or (3 if settings.toy else 20)):
        start = time.perf_counter()
        losses.append(float(session.run([spec.loss, spec.train_op])[0]))
        seconds.append(time.perf_counter() - start)
      scale = float(session.run(scales[0])) if scales else None
  peak = 0
  if has_gpu():
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
  return Trained(losses, min(seconds), peak, scale)


if __name__ == "__main__":
  side_by_side.run(
    main,
    passes=3,
    steps=(20, "Steps per pass."),
    speed=(True, "Whether to measure speed."),
    toy=(False, "Tiny models and few steps."),
    checks=(CHECKS, "Checks to run."),
    precision=(("bfloat16", "float16", "float32", "auto"), "Ours."),
    xla=(("on", "off", "auto"), "Ours."),
    peer_precision=(("bfloat16", "float32", "auto"), "Precision of PyTorch."),
    torch_compile=(("on", "off", "auto"), "Whether PyTorch compiles."),
  )
