"""Benchmark of inference: throughput of many texts, latency of one.

From texts to probabilities, answers or sentence vectors, including
tokenization. The `Predictor` of this project in float32, bfloat16 and int8,
and of its ONNX exports, beside transformers and sentence-transformers with
PyTorch, ONNX Runtime, OpenVINO and CTranslate2.
All have the same weights, and their outputs are compared before they are timed.

    python -m benchmarks.inference --minilm=DIR --glue_dir=glue \
        --squad_file=squad/dev-v1.1.json

`--help` describes the works and sides, which take hours if all are run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from typing import Callable, NamedTuple

import numpy as np
from absl import flags

from benchmarks import (
  inference_peers,
  inference_works,
  results,
  side_by_side,
)
from benchmarks.inference_works import WORKS
from benchmarks.side_by_side import Worker
from bertlib.cli import app
from bertlib.cli.errors import InputError

FLAGS = flags.FLAGS


class Side(NamedTuple):
  """A way to compute."""

  function: Callable  # the side, see `side_by_side`
  precision: str  # such as "int8", "static_int8" or "openvino_int8"
  is_ours: bool  # whether it is this project

  @property
  def family(self) -> str:
    """Name without precision."""
    return self.function.__name__


def _sides(
  is_ours: bool, function: Callable, *precisions: str
) -> dict[str, Side]:
  """Sides by name, such as predictor-int8."""
  return {
    f"{function.__name__}-{precision}": Side(function, precision, is_ours)
    for precision in precisions
  }


_THREE = ("float32", "bfloat16", "int8")
SIDES = {
  **_sides(True, inference_works.predictor, *_THREE),
  **_sides(False, inference_peers.transformers, *_THREE),
  **_sides(False, inference_peers.sentence_transformers, *_THREE),
  **_sides(
    False, inference_peers.onnx_runtime, "float32", "int8", "static_int8"
  ),
  **_sides(True, inference_works.exported, *(f"openvino_{p}" for p in _THREE)),
  **_sides(
    True, inference_works.exported, "onnxruntime_float32", "onnxruntime_int8"
  ),
  **_sides(False, inference_peers.openvino, *_THREE),
  **_sides(False, inference_peers.openvino_as_they_come, "int8"),
  **_sides(False, inference_peers.ctranslate2, *_THREE),
}


MODELS = {"minilm": "MiniLM", "bert-base": "BERT-Base", "tiny": "a tiny model"}


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags()
  flags.adopt_module_key_flags(side_by_side)
  flags.DEFINE_list(
    "models",
    ["minilm", "bert-base"],
    "Models: minilm; bert-base and tiny, which have random weights.",
  )
  flags.DEFINE_list(
    "works",
    None,
    f"Some of {', '.join(WORKS)}: -one is the latency of one text alone, tokens"
    " are texts of 128 tokens; default: those whose data is given.",
  )
  flags.DEFINE_list(
    "sides",
    None,
    "Sides such as predictor or predictor-int8; default: all. Those of others"
    " are compared with; without any, the first side is.",
  )
  flags.DEFINE_string(
    "minilm",
    None,
    "MiniLM in the format of Hugging Face; default: random weights.",
  )
  flags.DEFINE_string(
    "vocab_file", None, "Vocabulary of random weights; default: MiniLM's."
  )
  flags.DEFINE_string("glue_dir", None, "Folder of MRPC.")
  flags.DEFINE_string("squad_file", None, "SQuAD's dev-v1.1.json.")
  flags.DEFINE_string("text_file", None, "Lines to encode as vectors.")
  flags.DEFINE_integer(
    "max_texts",
    256,
    "Number of texts of each work, evenly spaced in the data.",
    lower_bound=1,
  )
  flags.DEFINE_integer(
    "latency_runs", 100, "Texts predicted alone per pass.", lower_bound=1
  )
  flags.DEFINE_integer(
    "batch_size",
    None,
    "Texts per batch; default: about 2048 tokens.",
    lower_bound=1,
  )


def main(_: list[str]) -> None:
  """Times all works with all sides, and prints ratios."""
  if not FLAGS.minilm and not FLAGS.vocab_file:
    raise InputError("--minilm or --vocab_file: not given. Name one")
  for model in FLAGS.models:
    for task in inference_works.TASKS:
      works = [work for work in chosen_works() if WORKS[work].task == task]
      if works:
        compare(model, task, works)


def chosen_works() -> list[str]:
  """The works of `--works`, or those whose data is there."""
  glue_dir = FLAGS.glue_dir or ""
  given = {
    "mrpc": os.path.isdir(os.path.join(glue_dir, "MRPC")),
    "squad": FLAGS.squad_file,
    "lines": FLAGS.text_file,
    "tokens": True,
  }
  return FLAGS.works or [
    name for name, work in WORKS.items() if given[work.texts]
  ]


def chosen_sides() -> Iterator[tuple[str, Side, str]]:
  """Name, side and Python of the sides that the flags name."""
  for name, side in SIDES.items():
    python = sys.executable if side.is_ours else FLAGS.peer_python
    is_named = not FLAGS.sides or {name, side.family} & set(FLAGS.sides)
    if python and is_named:
      yield name, side, python


def compare(model: str, task: str, works: list[str]) -> None:
  """Compares and times the sides of a model; reports the results."""
  print(f"\n{model}, {task}")
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    start = functools.partial(Worker, model=model, task=task, folder=folder)
    with start("model", inference_works.make_model, sys.executable):
      pass
    workers = []
    for name, side, python in chosen_sides():
      with reporting(name):
        worker = start(name, side.function, python, precision=side.precision)
        workers.append(stack.enter_context(worker))
    for work in works:
      print(f"\n{model}, {work}")
      workers = compare_outputs(workers, work)
      values = side_by_side.alternate(workers, f"time {work}")
      side_by_side.report(
        f"{WORKS[work].description}, {MODELS[model]}",
        {worker.name: worker.first_answer for worker in workers},
        values,
        list(pairs_of(values)),
      )


@contextlib.contextmanager
def reporting(name: str) -> Iterator[None]:
  """Reports a side that cannot run by one line, and continues without it."""
  try:
    yield
  except InputError as error:
    reason = str(error).strip().splitlines()[-1]
    print(f"{name}: left out: {reason}", flush=True)


def compare_outputs(workers: list[Worker], work: str) -> list[Worker]:
  """Warms up the sides, and compares their outputs with those of the first."""
  outputs = {}
  for worker in workers:
    with reporting(worker.name):
      outputs[worker] = worker.ask(f"try {work}")["outputs"]
  able = list(outputs)
  for worker in able[1:]:
    pairs = list(zip(outputs[able[0]], outputs[worker]))
    if WORKS[work].task == "states":
      found = cosines(*pairs[0])
    elif isinstance(pairs[0][0], str):
      differ = sum(first != other for first, other in pairs)
      found = f"{differ} of {len(pairs)} differ"
    else:
      found = f"differ by at most {max(abs(a - b) for a, b in pairs):.1g}"
    print(f"outputs of {worker.name} and {able[0].name}: {found}", flush=True)
  return able


def cosines(path: str, other: str) -> str:
  """Cosine of the hidden states of each token in two files, in words."""
  states, others = np.load(path), np.load(other)
  norms = np.linalg.norm(states, axis=1) * np.linalg.norm(others, axis=1)
  found = (states * others).sum(axis=1) / norms
  return f"cosine per token {found.mean():.5f}, lowest {found.min():.5f}"


# Results


def pairs_of(values: results.Values) -> Iterator[tuple[str, str, str]]:
  """Measure, side of ours, and each of the others at its best.

  Without any other code, the first side is what others are compared with.
  """
  for measure, by_side in values.items():
    medians = {name: statistics.median(s) for name, s in by_side.items()}
    best: dict[str, str] = {}
    for name in sorted(medians, key=medians.__getitem__):
      if not SIDES[name].is_ours:
        best.setdefault(SIDES[name].family, name)
    for name in by_side:
      if SIDES[name].is_ours:
        for other in best.values() or [next(iter(by_side))]:
          yield measure, name, other


if __name__ == "__main__":
  define_flags()
  app.run(main)
