"""Runs this project and other code in turns and compares their times.

A side is a generator function. It takes the flags of the script, warms up, and
first yields its `description` and optionally `outputs`, numbers that must agree
among sides, and `versions`, if they are not those of the libraries it loaded.
Each further `next` does the work once and yields the value of each measure of
`results.MEASURES`. A side with several kinds of work gets the name of one by
`send`.

Each side is a process with the Python of its own environment, started once and
kept warm. Sides take turns, so that only one works at a time. Those Pythons
have none of our packages, and the original's may be 3.7: scripts and this
module import `bertlib` only in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any, Callable

from absl import flags

from benchmarks import results
from benchmarks.results import Values

FLAGS = flags.FLAGS
Answer = dict  # an answer of a side: values by name
PRECISIONS = ["float32", "bfloat16"]
_COMPILED = ", torch.compile"

# Variables that set the number of threads of TensorFlow, PyTorch, tokenizers.
_THREADS = [
  "TF_NUM_INTRAOP_THREADS",
  "TF_NUM_INTEROP_THREADS",
  "OMP_NUM_THREADS",
  "RAYON_NUM_THREADS",
]


def define_flags(passes: int = 5) -> None:
  """Defines the flags that benchmarks share; each uses some."""
  flags.DEFINE_integer(
    "passes", passes, "Passes over all sides.", lower_bound=1
  )
  flags.DEFINE_string(
    "json_file", None, "Append the results to this file, as JSON lines."
  )
  flags.DEFINE_integer(
    "num_threads",
    None,
    "Threads per side; default: as many as cores.",
    lower_bound=1,
  )
  flags.DEFINE_enum(
    "precision",
    "auto",
    ["auto", *PRECISIONS, "float16"],
    "Ours, see run_classifier.py.",
  )
  flags.DEFINE_string(
    "peer_python",
    ".venv-bench-peers/bin/python",
    "Python with the peers; empty: run only ours.",
  )
  flags.DEFINE_enum(
    "peer_precision",
    "auto",
    ["auto", *PRECISIONS],
    "Precision of PyTorch; auto takes the faster in a trial.",
  )
  flags.DEFINE_enum(
    "torch_compile",
    "auto",
    ["auto", "on", "off"],
    "Whether PyTorch compiles its model; auto takes the faster in a trial.",
  )
  flags.DEFINE_string("reference", None, "Checkout of google-research/bert.")
  flags.DEFINE_string(
    "reference_python", "python3.7", "Python that runs the reference."
  )


# The driver


def compare(sides: list[Callable], work: str) -> None:
  """Runs the sides in turns, and reports ratios with their range."""
  with contextlib.ExitStack() as stack:
    workers = [stack.enter_context(Worker(*side)) for side in chosen(sides)]
    for worker in workers[1:]:
      print_difference(workers[0], worker)
    values = alternate(workers)
  report(work, {w.name: w.first_answer for w in workers}, values)


def alternate(workers: list[Worker], request: str = "") -> Values:
  """Lets workers do their work in turns; prints the values of each pass."""
  values: Values = {}
  for number in range(FLAGS.passes):
    for worker in workers[:: -1 if number % 2 else 1]:
      for measure, value in worker.ask(request).items():
        by_side = values.setdefault(measure, {w.name: [] for w in workers})
        by_side[worker.name].append(value)
    results.show_pass(number + 1, values)
  return values


def report(
  work: str,
  sides: dict[str, Answer],
  values: Values,
  pairs: list[tuple[str, str, str]] | None = None,
  threads: int | None = None,
  **optional: Any,
) -> None:
  """Prints a result, and appends it to `--json_file`."""
  if pairs is None:
    pairs = results.pairs_with(next(iter(sides)), values)
  if threads is None:
    threads = FLAGS.num_threads or os.cpu_count()
  ratios = results.compare(values, pairs)
  result = results.make(work, sides, values, ratios, threads, **optional)
  results.show(result)
  if FLAGS.json_file:
    results.append(FLAGS.json_file, result)


def chosen(sides: list[Callable]) -> list[tuple[str, Callable, str]]:
  """Name, function and Python of the sides whose Python the flags name."""
  python_of = {
    "ours": sys.executable,
    "reference": FLAGS.reference and FLAGS.reference_python,
  }
  named = [
    (
      side.__name__.replace("_", " "),
      side,
      python_of.get(side.__name__, FLAGS.peer_python),
    )
    for side in sides
  ]
  return [side for side in named if side[-1]]


def print_difference(ours: Worker, theirs: Worker) -> None:
  """Prints the largest difference between outputs."""
  if "outputs" in ours.first_answer and "outputs" in theirs.first_answer:
    pairs = zip(ours.first_answer["outputs"], theirs.first_answer["outputs"])
    largest = max(abs(a - b) for a, b in pairs)
    print(
      f"largest difference between outputs of {theirs.name} and ours:"
      f" {largest:.1g}"
    )


class Worker:
  """The process of a side, as a context manager.

  Attributes:
    name: name of the side.
    first_answer: `description`, `versions` and `outputs` of the side.
  """

  def __init__(self, name: str, side: Callable, python: str, **more: Any):
    """Starts the process and waits until it is warm."""
    self.name = name
    self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed at exit)
    module = side.__module__
    if module == "__main__":
      module = sys.modules["__main__"].__spec__.name
    settings = json.dumps({**FLAGS.flag_values_dict(), **more})
    # TensorFlow leaves oneDNN off on processors without VNNI unless asked.
    environment = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if FLAGS.num_threads:
      environment.update(dict.fromkeys(_THREADS, str(FLAGS.num_threads)))
    self._process = subprocess.Popen(
      [python, "-m", __spec__.name, module, side.__name__, settings],
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
    found = self.first_answer["versions"].items()
    print(
      f"{self.name}: {self.first_answer['description']};"
      f" {', '.join(' '.join(item) for item in found)}",
      flush=True,
    )

  def ask(self, request: str = "") -> Answer:
    """Does the work once; returns the value of each measure."""
    time.sleep(0.5)  # threads of libraries spin for a while after their work
    self._process.stdin.write(f"{request}\n")
    self._process.stdin.flush()
    return self._answer()

  def _answer(self) -> Answer:
    line = self._process.stdout.readline()
    if line:
      return json.loads(line)
    from bertlib.cli.errors import InputError

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


def work(module: str, side: str, settings: str) -> None:
  """Runs a side in this process: answers each line of standard input."""
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # output of libraries is not an answer
  function = getattr(importlib.import_module(module), side)
  running = function(SimpleNamespace(**json.loads(settings)))
  answer = next(running)
  answer.setdefault("versions", versions())
  while True:
    print(json.dumps(answer), file=answers, flush=True)
    request = sys.stdin.readline()
    if not request:
      break
    answer = running.send(request.strip())


def versions() -> dict[str, str]:
  """Versions of Python and of the libraries that are loaded."""
  found = {"python": platform.python_version()}
  for name in (
    "tensorflow",
    "torch",
    "transformers",
    "sentence_transformers",
    "onnxruntime",
    "openvino",
    "ctranslate2",
    "tokenizers",
  ):
    if name in sys.modules:
      found[name] = sys.modules[name].__version__
  return found


def timed(function: Callable, *args: Any) -> float:
  """Seconds that a call takes."""
  start = time.perf_counter()
  function(*args)
  return time.perf_counter() - start


def best_precision(run: Callable[[str], Any], asked: str) -> tuple[str, str]:
  """The precision in which a peer is fastest on this machine."""
  (precision, _), description = best_variant(
    lambda precision, compiles: run(precision), asked, "off"
  )
  return precision, description


def best_variant(
  run: Callable[[str, bool], Any], precision: str, torch_compile: str
) -> tuple[tuple[str, bool], str]:
  """How a peer is fastest on this machine."""
  precisions, note = [precision], ""
  if precision == "auto":
    precisions = PRECISIONS
    slower = product_seconds("bfloat16") / product_seconds("float32")
    if slower > 4:  # a trial would take minutes
      precisions = ["float32"]
      note = f"; products in bfloat16 take {slower:.0f} times as long"
  variants = {
    name: (precision, compiles)
    for precision in precisions
    for name, compiles in with_compiled(precision, torch_compile).items()
  }
  best, description = fastest(
    {
      name: functools.partial(run, *variant)
      for name, variant in variants.items()
    },
    repeats=1,
  )
  return variants[best], description + note


def with_compiled(name: str, torch_compile: str) -> dict[str, bool]:
  """Names of the variants that `--torch_compile` asks for: whether compiled."""
  variants = {name: False, f"{name}{_COMPILED}": True}
  if torch_compile == "auto":
    return variants
  return {n: c for n, c in variants.items() if c == (torch_compile == "on")}


def fastest(
  candidates: dict[str, Callable[[], Any]], repeats: int
) -> tuple[str, str]:
  """The fastest of some functions, and a description of the trial.

  A compiled variant that fails is named and skipped, if there is another.
  """
  seconds, failed = {}, []
  for name, run in candidates.items():
    try:
      run()
      seconds[name] = []
    except Exception as error:
      if _COMPILED not in name or len(candidates) == 1:
        raise
      failed.append(f", {name} failed: {type(error).__name__}")
  if len(candidates) == 1:
    return name, name
  for _ in range(repeats):
    for name, of_variant in seconds.items():
      of_variant.append(timed(candidates[name]))
  medians = {name: statistics.median(s) for name, s in seconds.items()}
  best = min(medians, key=medians.get)
  tried = ", ".join(f"{name} {value:.3g} s" for name, value in medians.items())
  return best, f"{best} (a trial took: {tried}{''.join(failed)})"


def product_seconds(precision: str) -> float:
  """Seconds that PyTorch takes for a matrix product."""
  import torch

  matrix = torch.ones(512, 512, dtype=getattr(torch, precision))
  return min(timed(torch.matmul, matrix, matrix) for _ in range(5))


if __name__ == "__main__":
  work(*sys.argv[1:])
