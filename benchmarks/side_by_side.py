"""Ours and its peers in turns: what the benchmarks have in common.

A side is a generator function. It takes the script's flags, prepares and warms
up, and yields what to tell of itself: `tells`, and maybe `outputs`, numbers
that all sides have to agree on. Whenever it is asked for more it does its work
and yields what each measure came to; less is better.

Each side has a process in the Python of its own environment, started once and
kept warm; they are asked in turns, so that nothing else runs while one works.
Those Pythons have nothing of ours, and the reference's may be 3.7: scripts and
this module import `bertlib.app` where the driver alone comes by.
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
Answer = dict  # what a side yields: values by name
PRECISIONS = ["float32", "bfloat16"]

# Sides that run in the Python of this project.
_OWN = ("ours", "predictor", "estimator", "tensorflow_lite")


def define_flags(passes: int = 5) -> None:
  """Defines the flags of all scripts; those of a script are its own."""
  flags.DEFINE_integer("passes", passes, "Turns.", lower_bound=1)
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
    "PyTorch's; auto tries both and takes the faster.",
  )
  flags.DEFINE_string(
    "peer_python",
    ".venv-bench-peers/bin/python",
    "Python with the peers; an empty one for ours alone.",
  )


def define_reference_flags() -> None:
  """Defines where the reference is; scripts whose sides it is one of."""
  flags.DEFINE_string("reference", None, "Checkout of google-research/bert.")
  flags.DEFINE_string(
    "reference_python", "python3.7", "Python that runs the reference."
  )


# The driver


def compare(sides: list[Callable], shown: dict[str, Callable]) -> None:
  """Asks the sides in turns, and prints ratios with their spread.

  Args:
    sides: generator functions of the script, ours first.
    shown: by measure, a function that shows a value.
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
  """The Python of a side's environment, or None."""
  if side.__name__ in _OWN:
    return sys.executable
  if side.__name__ == "reference":
    return FLAGS.reference and FLAGS.reference_python
  return FLAGS.peer_python


def print_difference(ours: Worker, theirs: Worker) -> None:
  """Says how far outputs that should be equal are apart."""
  if "outputs" in ours.account and "outputs" in theirs.account:
    pairs = zip(ours.account["outputs"], theirs.account["outputs"])
    apart = max(abs(a - b) for a, b in pairs)
    print(f"outputs of {theirs.name} and of ours: {apart:.1g} apart at most")


def print_ratios(
  values: dict[str, dict[str, list[float]]], shown: dict[str, Callable]
) -> None:
  """Prints medians, and of each pass how many times ours the others' is.

  Args:
    values: by measure and side, the value of each pass.
    shown: by measure, a function that shows a value.
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
  """A side's process. A context manager, which ends it.

  Attributes:
    name: of the side.
    account: what the side tells of itself.
  """

  def __init__(self, side: Callable):
    """Starts it and waits until it is warm.

    Args:
      side: a function of the script that runs.

    Raises:
      InputError: it fails.
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
      self.account = self._answer()
    except BaseException:
      self.__exit__()
      raise
    print(f"{self.name}: {self.account['tells']}", flush=True)

  def ask(self) -> Answer:
    """What each measure comes to, of the work done once more."""
    time.sleep(0.5)  # libraries' threads spin a while after their work
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
  """Answers a line for a line, until there is none.

  Args:
    script: module of the side.
    side: its function.
    settings: the flags, as JSON.
  """
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # what libraries print is no answer
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
  """The number format in which a peer is fastest here.

  Args:
    run: does some work in the format that it is given.
    asked: `--peer_precision`.

  Returns:
    The format, and what to tell of the choice.
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
  """How long PyTorch takes for a product of matrices."""
  import torch

  matrix = torch.ones(512, 512, dtype=getattr(torch, precision))
  return min(timed(torch.matmul, matrix, matrix) for _ in range(5))


if __name__ == "__main__":
  work(*sys.argv[1:])
