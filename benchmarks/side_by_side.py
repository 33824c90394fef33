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
import datetime
import functools
import importlib
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple

from absl import flags

from benchmarks import results
from benchmarks.results import Values

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # those defined here are those of the benchmark
Answer = dict  # an answer of a side: values by name
Answers = Iterator  # of the answers of a side that runs
Settings = SimpleNamespace  # the flags, and the settings of a side
PRECISIONS = ["float32", "bfloat16"]
PEER_PYTHON = (
  ".venv-bench-peers/bin/python",
  "Python with the peers; empty: run only ours.",
)
_COMPILED = ", torch.compile"

# Variables that set the number of threads of TensorFlow, PyTorch, tokenizers.
_THREADS = [
  "TF_NUM_INTRAOP_THREADS",
  "TF_NUM_INTEROP_THREADS",
  "OMP_NUM_THREADS",
  "RAYON_NUM_THREADS",
]


def define(**meanings: str | tuple[Any, str]) -> None:
  """Defines flags by name: the default, and what the flag means.

  A meaning alone is that of a text that has to be given. A type stands for no
  default, a tuple for choices, the first of which is the default, and a dict
  for some of its keys, by default all. Integers are at least 1, or 0 if that is
  the default; floats are at least 0.
  """
  for name, described in meanings.items():
    if isinstance(described, str):
      flags.DEFINE_string(name, None, described, required=True)
      continue
    default, meaning = described
    kind = default if isinstance(default, type) else type(default)
    value = None if kind is default else default
    if kind is tuple:
      flags.DEFINE_enum(name, value[0], value, meaning)
    elif kind is dict:
      meaning += f" Some of {', '.join(value)}; default: all."
      flags.DEFINE_list(name, list(value), meaning)
      flags.register_validator(name, set(value).issuperset, meaning)
    elif kind in (int, float):
      least = 1 if kind is int and value != 0 else 0
      number = flags.DEFINE_integer if kind is int else flags.DEFINE_float
      number(name, value, meaning, lower_bound=least)
    else:
      others = {bool: flags.DEFINE_bool, list: flags.DEFINE_list}
      others.get(kind, flags.DEFINE_string)(name, value, meaning)


def define_flags(passes: int = 5, **more: str | tuple[Any, str]) -> None:
  """Defines the flags that benchmarks share, each uses some; and its own."""
  precisions = ("auto", *PRECISIONS)
  trial = "auto takes the faster in a trial."
  switch = ("auto", "on", "off")
  shared = {
    "peer_python": PEER_PYTHON,
    "passes": (passes, "Passes over all sides."),
    "json_file": (str, "Append the results to this file, as JSON lines."),
    "num_threads": (int, "Threads per side; default: as many as cores."),
    "precision": ((*precisions, "float16"), "Ours, see run_classifier.py."),
    "xla": (switch, "Ours."),
    "peer_precision": (precisions, f"Precision of PyTorch; {trial}"),
    "torch_compile": (switch, f"Whether PyTorch compiles its model; {trial}"),
    "reference": (str, "Checkout of google-research/bert."),
    "reference_python": ("python3.7", "Python that runs the reference."),
  }
  define(**shared | more)


# Flags of a model with random weights, its batch and memory.
MODEL = {
  "layers": (12, "Layers."),
  "hidden": (768, "Hidden size H; the intermediate size is 4 H."),
  "heads": (12, "Attention heads."),
  "batch_size": (16, "Examples per step."),
  "seq_length": (128, "Tokens per example."),
  "memory_gb": (float, "Ours: limit of a step, see run_classifier.py."),
}
# Flags of a trained encoder, for both sides, and its batch.
ENCODER = {
  "model_dir": "Folder with bert_config.json, vocab.txt and bert_model.ckpt,"
  " such as convert_checkpoint.py writes.",
  "hugging_face_dir": "The same model for transformers.",
  "batch_size": (32, "Examples per batch."),
  "max_seq_length": (128, "Tokens; longer pairs are truncated."),
}
# Flags of a baseline, which trains with another library.
BASELINE = {
  "model_dir": "Folder of the model to start from, for that library.",
  "train_file": (str, "Examples."),
  "dev_file": (str, "The same, to evaluate."),
  "learning_rate": (5e-5, "Its peak."),
  "max_seq_length": (128, "Tokens."),
  "seed": (1, "Of the output layer, order and dropout."),
  "precision": (tuple(PRECISIONS), "bfloat16 is autocast."),
}


# The driver


class Side(NamedTuple):
  """A way to do the work, see above."""

  name: str
  function: Callable
  python: str = sys.executable
  settings: Any = None  # what the function gets besides the flags, by name


def run(
  main: Callable, define: Callable = define_flags, **meanings: Any
) -> None:
  """Runs a benchmark as a command with flags, see `define`."""
  from bertlib.cli import app

  define(**meanings)
  app.run(main)


def check_peers(*packages: str) -> None:
  """Refuses a --peer_python without packages, before anything is timed."""
  from bertlib.cli.errors import InputError

  code = (
    "from importlib import metadata\n"
    "for found in metadata.distributions(): print(found.metadata['Name'])"
  )
  python = FLAGS.peer_python
  if not python:
    return
  try:
    installed = run_command([python, "-c", code]).output
  except OSError as error:
    raise InputError(
      f"--peer_python={python}: {error.strerror}. Install the other code with"
      " `make .venv-bench-peers/installed`, or give an empty one for none"
    ) from error
  missing = {"absl-py", *packages}
  missing -= {*installed.replace("_", "-").lower().split()}
  if missing:
    raise InputError(
      f"--peer_python={python}: lacks packages. Install them with"
      f" `{python} -m pip install {' '.join(sorted(missing))}`"
    )


def check_number(name: str, found: int, needed: int) -> None:
  """Refuses data with fewer examples than a benchmark takes."""
  from bertlib.cli.errors import InputError

  if found < needed:
    raise InputError(
      f"{name}: has {found} of the {needed} examples taken. Lower --batch_size"
    )


def chosen(
  sides: list[Callable],
  packages: Sequence[str] = ("torch", "transformers"),
  **settings: Any,
) -> list[Side]:
  """The sides whose Python the flags name; it needs the packages."""
  python_of = {
    "ours": sys.executable,
    "reference": FLAGS.reference and FLAGS.reference_python,
  }
  found = []
  for side in sides:
    name = side.__name__
    python = python_of.get(name, FLAGS.peer_python)
    found.append(Side(name.replace("_", " "), side, python, settings))
  found = [side for side in found if side.python]
  if FLAGS.peer_python in [side.python for side in found]:
    check_peers(*packages)
  return found


def compare(
  sides: list[Side], work: str, pairs: Any = None, **optional: Any
) -> Values:
  """Runs the sides in turns, and reports ratios with their range."""
  with contextlib.ExitStack() as stack:
    workers = [stack.enter_context(Worker(side)) for side in sides]
    first, *others = (worker.first_answer.get("outputs") for worker in workers)
    for worker, outputs in zip(workers[1:], others):
      if first and outputs:
        largest = max(abs(a - b) for a, b in zip(first, outputs))
        name = worker.name
        print(f"outputs of {name} and ours differ by at most {largest:.1g}")
    values = alternate(workers, FLAGS.passes, lambda worker: [worker.ask()])
  answers = {worker.name: worker.first_answer for worker in workers}
  report(work, answers, values, pairs, **optional)
  return values


def alternate(
  sides: Sequence[Any], passes: int, visit: Callable[[Any], Iterable[Answer]]
) -> Values:
  """Visits sides in turns; prints the last values of each pass."""
  values: Values = {}
  for number in range(passes):
    for side in sides[:: -1 if number % 2 else 1]:
      for answer in visit(side):
        for measure, value in answer.items():
          by_side = values.setdefault(measure, {})
          by_side.setdefault(side.name, []).append(value)
    results.show_pass(number + 1, values)
  return values


def one_by_one(
  sides: list[Side], rounds: int, asks: int
) -> tuple[dict[str, Answer], Values]:
  """Runs one side at a time, in a new process per round, in turns.

  Returns the first answers, and the values of all works, `asks` per process.
  """
  answers: dict[str, Answer] = {}

  def visit(side):
    with Worker(side) as worker:
      answers[side.name] = worker.first_answer
      for _ in range(asks):
        yield worker.ask()

  values = alternate(sides, rounds, visit)
  return answers, values


def report(
  work: str,
  sides: dict[str, Answer],
  values: Values,
  pairs: list[tuple[str, str, str]] | None = None,
  **optional: Any,
) -> results.Result:
  """Prints a result, appends it to `--json_file`, and returns it."""
  from bertlib.io import processes
  from bertlib.reporting import receipts

  if pairs is None:
    pairs = results.pairs_with(next(iter(sides)), values)
  module = sys.modules["__main__"].__spec__.name
  is_vector = re.compile("avx|vnni|amx|bf16|fp16|asimd|sve|i8mm").search
  vector_sets = filter(is_vector, processes.features())
  result = results.Result(
    benchmark=module.rpartition(".")[2],
    work=work,
    command=results.command_line(module, sys.argv[1:]),
    date=datetime.date.today().isoformat(),
    processor=receipts.device()["cpu"],
    instruction_sets=" ".join(sorted(vector_sets)),
    versions=receipts.versions(),
    sides={
      name: {key: answer.get(key) for key in ("description", "versions")}
      for name, answer in sides.items()
    },
    values=values,
    ratios=results.compare(values, pairs),
    load=results.LOAD,
    **{"threads": FLAGS.num_threads or os.cpu_count(), **optional},
  )
  results.show(result)
  if FLAGS.json_file:
    results.append(FLAGS.json_file, result)
  return result


class Worker:
  """The process of a side, and its `first_answer`, as a context manager."""

  def __init__(self, side: Side):
    """Starts the process and waits until it is warm."""
    self.name = side.name
    self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed at exit)
    module = side.function.__module__
    if module == "__main__":
      module = sys.modules["__main__"].__spec__.name
    settings = {**FLAGS.flag_values_dict(), **(side.settings or {})}
    words = ["-m", __spec__.name, module, side.function.__name__]
    # TensorFlow leaves oneDNN off on processors without VNNI unless asked.
    environment = {"TF_ENABLE_ONEDNN_OPTS": "1", **os.environ}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
    if FLAGS.num_threads:
      environment.update(dict.fromkeys(_THREADS, str(FLAGS.num_threads)))
    self._process = subprocess.Popen(
      [side.python, *words, json.dumps(settings)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._stderr,
      text=True,
      env=environment,
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
  running = function(Settings(**json.loads(settings)))
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
    "datasets",
    "onnxruntime",
    "openvino",
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


def repeat(times: int, function: Callable, *args: Any) -> None:
  """Calls a function several times."""
  for _ in range(times):
    function(*args)


def passes(
  description: str,
  measure: str,
  times: int,
  function: Callable,
  *args: Any,
  **first: Any,
) -> Answers:
  """A side that makes `times` calls per pass, and gives the time of one."""
  yield {"description": description, **first}
  while True:
    yield {measure: timed(repeat, times, function, *args) / times}


class Done(NamedTuple):
  """A command that has ended."""

  output: str  # its standard output
  seconds: float  # wall-clock time
  processor_seconds: float  # of all its threads


def run_python(
  *words: str, watch: Callable[[str], Any] = lambda line: None, **options: Any
) -> Done:
  """Runs a command of this Python with flags by name, see `run_command`."""
  named = [f"--{n}={v}" for n, v in options.items() if v is not None]
  return run_command([sys.executable, *words, *named], watch)


def run_command(
  words: Sequence[str], watch: Callable[[str], Any] = lambda line: None
) -> Done:
  """Runs a command that has to succeed; `watch` gets its lines of progress."""
  start, before = time.perf_counter(), os.times()
  log = []
  with tempfile.TemporaryFile("w+") as output:
    process = subprocess.Popen(
      words, stdout=output, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
      log.append(line)
      watch(line)
    if process.wait():
      from bertlib.cli.errors import InputError

      raise InputError(f"{shlex.join(words)}: failed: {''.join(log)[-2000:]}")
    seconds, after = time.perf_counter() - start, os.times()
    user = after.children_user - before.children_user
    system = after.children_system - before.children_system
    output.seek(0)
    return Done(output.read(), seconds, user + system)


def best_variant(
  run: Callable[[str, bool], Any], settings: Settings
) -> tuple[tuple[str, bool], str]:
  """How a peer is fastest on this machine."""
  precisions, note = [settings.peer_precision], ""
  if precisions == ["auto"]:
    precisions = PRECISIONS
    slower = product_seconds("bfloat16") / product_seconds("float32")
    if slower > 4:  # a trial would take minutes
      precisions = ["float32"]
      note = f"; products in bfloat16 take {slower:.0f} times as long"
  asked = settings.torch_compile
  variants = {
    name: (precision, compiles)
    for precision in precisions
    for name, compiles in with_compiled(precision, asked).items()
  }
  runs = {name: functools.partial(run, *how) for name, how in variants.items()}
  best, description = fastest(runs, repeats=1)
  return variants[best], description + note


def with_compiled(name: str, torch_compile: str) -> dict[str, bool]:
  """Names of the variants that `--torch_compile` asks for: whether compiled."""
  variants = {name: False, f"{name}{_COMPILED}": True}
  if torch_compile == "auto":
    return variants
  return {n: c for n, c in variants.items() if c == (torch_compile == "on")}


def fastest(
  candidates: dict[str, Callable], repeats: int, *args: Any
) -> tuple[str, str]:
  """The fastest of some functions, and a description of the trial.

  A compiled variant that fails is named and skipped, if there is another.
  """
  seconds, failed = {}, []
  for name, run in candidates.items():
    try:
      run(*args)
      seconds[name] = []
    except Exception as error:
      if _COMPILED not in name or len(candidates) == 1:
        raise
      failed.append(f", {name} failed: {type(error).__name__}")
  if len(candidates) == 1:
    return name, name
  for _ in range(repeats):
    for name, of_variant in seconds.items():
      of_variant.append(timed(candidates[name], *args))
  medians = {name: statistics.median(s) for name, s in seconds.items()}
  best = min(medians, key=medians.get)
  tried = ", ".join(f"{name} {value:.3g} s" for name, value in medians.items())
  return best, f"{best} (a trial took: {tried}{''.join(failed)})"


def product_seconds(precision: str) -> float:
  """Seconds that PyTorch takes for a matrix product."""
  import torch

  dtype = getattr(torch, precision)
  matrix = torch.ones(512, 512, dtype=dtype, device=torch_device())
  return min(timed(lambda: matrix.mm(matrix)[0, 0].item()) for _ in range(5))


def torch_device() -> str:
  """The GPU of PyTorch, if there is one."""
  import torch

  return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
  work(*sys.argv[1:])
