"""Runs this project and other code in turns and compares their times.

A side is a generator function. It takes the flags of the script, warms up, and
first yields its `description` and optionally `outputs`, numbers that must agree
among sides. Each further `next` does the work once and yields the value of each
measure; lower is better.

Each side is a process with the Python of its own environment, started once and
kept warm. Sides take turns, so that only one works at a time. Those Pythons
have none of our packages, and the original's may be 3.7: scripts and this
module import `bertlib.app` only in the driver.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any, Callable

from absl import flags

FLAGS = flags.FLAGS
Answer = dict  # an answer of a side: values by name
PRECISIONS = ["float32", "bfloat16"]

# Sides that run in the Python of this project.
_OWN = ("ours", "predictor", "estimator", "tensorflow_lite")


def define_flags(passes: int = 5) -> None:
  """Defines the flags that all benchmarks share."""
  flags.DEFINE_integer(
    "passes", passes, "Passes over all sides.", lower_bound=1
  )
  flags.DEFINE_enum(
    "precision",
    "auto",
    ["auto", *PRECISIONS, "float16"],
    "Ours, see run_classifier.py.",
  )
  flags.DEFINE_enum(
    "peer_precision",
    "auto",
    ["auto", *PRECISIONS],
    "Precision of PyTorch; auto takes the faster in a trial.",
  )
  flags.DEFINE_string(
    "peer_python",
    ".venv-bench-peers/bin/python",
    "Python with the peers; empty: run only ours.",
  )


def define_reference_flags() -> None:
  """Defines the flags of the original, for benchmarks that run it."""
  flags.DEFINE_string("reference", None, "Checkout of google-research/bert.")
  flags.DEFINE_string(
    "reference_python", "python3.7", "Python that runs the reference."
  )


# The driver


def compare(sides: list[Callable], shown: dict[str, Callable]) -> None:
  """Runs the sides in turns, and prints ratios with their range.

  Args:
    sides: generator functions of the script, ours first.
    shown: functions that format the value of each measure.
  """
  values = {}
  with contextlib.ExitStack() as stack:
    workers = [stack.enter_context(Worker(side)) for side in chosen(sides)]
    for worker in workers[1:]:
      print_difference(workers[0], worker)
    for number in range(FLAGS.passes):
      for worker in workers[:: -1 if number % 2 else 1]:
        for measure, value in worker.ask().items():
          values.setdefault(measure, {}).setdefault(worker.name, [])
          values[measure][worker.name].append(value)
      for measure, by_side in values.items():
        last = ", ".join(
          f"{worker.name} {shown[measure](by_side[worker.name][-1])}"
          for worker in workers
        )
        print(f"pass {number + 1}, {measure}: {last}", flush=True)
  print_ratios(values, shown)


def chosen(sides: list[Callable]) -> list[Callable]:
  """The sides for which the flags name a Python."""
  return [side for side in sides if python_of(side)]


def python_of(side: Callable) -> str | None:
  """The Python of a side's environment; None if it is left out."""
  if side.__name__ in _OWN:
    return sys.executable
  if side.__name__ == "reference":
    return FLAGS.reference and FLAGS.reference_python
  return FLAGS.peer_python


def print_difference(ours: Worker, theirs: Worker) -> None:
  """Prints the largest difference between outputs."""
  if "outputs" in ours.first_answer and "outputs" in theirs.first_answer:
    pairs = zip(ours.first_answer["outputs"], theirs.first_answer["outputs"])
    largest = max(abs(a - b) for a, b in pairs)
    print(
      f"largest difference between outputs of {theirs.name} and ours:"
      f" {largest:.1g}"
    )


def print_ratios(
  values: dict[str, dict[str, list[float]]], shown: dict[str, Callable]
) -> None:
  """Prints medians, and ratios of the other sides to ours.

  Args:
    values: value of each pass, by measure and side.
    shown: functions that format the value of each measure.
  """
  for measure, by_side in values.items():
    for name, theirs in by_side.items():
      middle = shown[measure](statistics.median(theirs))
      if name == "ours":
        print(f"{measure}, ours: {middle}")
        continue
      ratios = [b / a for a, b in zip(by_side["ours"], theirs)]
      print(
        f"{measure}, {name}: {middle}; {name} / ours: median"
        f" {statistics.median(ratios):.2f}, from {min(ratios):.2f} to"
        f" {max(ratios):.2f}"
      )


class Worker:
  """The process of a side, as a context manager.

  Attributes:
    name: name of the side.
    first_answer: `description` and `outputs` of the side.
  """

  def __init__(self, side: Callable):
    """Starts the process and waits until it is warm.

    Args:
      side: a side of the running script.

    Raises:
      InputError: the process fails.
    """
    self.name = side.__name__.replace("_", " ")
    self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed at exit)
    command = [python_of(side), "-m", "benchmarks.side_by_side"]
    script = sys.modules["__main__"].__spec__.name
    settings = json.dumps(FLAGS.flag_values_dict())
    # TensorFlow leaves oneDNN off on AMD's processors unless asked.
    environment = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    self._process = subprocess.Popen(
      [*command, script, side.__name__, settings],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._stderr,
      text=True,
      env={**os.environ, **environment},
    )
    try:
      self.first_answer = self._answer()
    except BaseException:
      self.__exit__()
      raise
    print(f"{self.name}: {self.first_answer['description']}", flush=True)

  def ask(self) -> Answer:
    """Does the work once; returns the value of each measure."""
    time.sleep(0.5)  # threads of libraries spin for a while after their work
    self._process.stdin.write("go\n")
    self._process.stdin.flush()
    return self._answer()

  def _answer(self) -> Answer:
    line = self._process.stdout.readline()
    if line:
      return json.loads(line)
    from bertlib.errors import InputError

    self._stderr.seek(0)
    raise InputError(f"{self.name}: failed: {self._stderr.read()[-2000:]}")

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    try:
      self._process.communicate(timeout=60)  # closes its input
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.communicate()
    self._stderr.close()


# The worker


def work(script: str, side: str, settings: str) -> None:
  """Runs a side in this process: answers each line of standard input.

  Args:
    script: module of the side.
    side: name of its function.
    settings: the flags, as JSON.
  """
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # output of libraries is not an answer
  function = getattr(importlib.import_module(script), side)
  for answer in function(SimpleNamespace(**json.loads(settings))):
    print(json.dumps(answer), file=answers, flush=True)
    if not sys.stdin.readline():
      break


def timed(function: Callable, *args: Any) -> float:
  """Seconds that a call takes."""
  start = time.perf_counter()
  function(*args)
  return time.perf_counter() - start


def best_precision(run: Callable[[str], Any], asked: str) -> tuple[str, str]:
  """The precision in which a peer is fastest on this machine.

  Args:
    run: does some work in the given precision.
    asked: `--peer_precision`.

  Returns:
    The precision, and a description of the choice.
  """
  if asked != "auto":
    run(asked)
    return asked, asked
  slower = product_seconds("bfloat16") / product_seconds("float32")
  if slower > 4:  # a trial would take minutes
    run("float32")
    return "float32", f"float32 (products are {slower:.0f} times as fast)"
  seconds = {}
  for precision in PRECISIONS:
    run(precision)
    seconds[precision] = timed(run, precision)
  best = min(seconds, key=seconds.get)
  tried = ", ".join(f"{name} {value:.3g} s" for name, value in seconds.items())
  return best, f"{best} (a trial took: {tried})"


def product_seconds(precision: str) -> float:
  """Seconds that PyTorch takes for a matrix product."""
  import torch

  matrix = torch.ones(512, 512, dtype=getattr(torch, precision))
  return min(timed(torch.matmul, matrix, matrix) for _ in range(5))


if __name__ == "__main__":
  work(*sys.argv[1:])
