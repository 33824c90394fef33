"""Benchmark of inference: throughput of many texts, latency of one.

From texts to probabilities, answers or sentence vectors, including
tokenization. The `Predictor` of this project in float32, bfloat16 and int8,
and of its ONNX exports, beside transformers and sentence-transformers with
PyTorch, ONNX Runtime and OpenVINO.
All have the same weights, and their outputs are compared before they are timed.

    python -m benchmarks.inference --minilm=DIR --glue_dir=glue \
        --squad_file=squad/dev-v1.1.json

`--help` describes the works and sides, which take hours if all are run.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from benchmarks import inference_peers, inference_works, results, side_by_side
from benchmarks.inference_works import WORKS
from benchmarks.side_by_side import FLAGS, Side, Worker
from bertlib.cli.errors import InputError
from bertlib.tasks.embeddings.embedding_evaluation import cosine_similarities

OURS = ("predictor", "exported")  # sides that are this project
_THREE = ("float32", "bfloat16", "int8")
# Functions of sides, and the precisions that they have.
FUNCTIONS = {
  inference_works.predictor: _THREE,
  inference_peers.transformers: _THREE,
  inference_peers.sentence_transformers: _THREE,
  inference_peers.sentence_transformers_onnx: ("float32", "int8"),
  inference_peers.fastembed: ("float32", "int8"),
  inference_peers.onnx_runtime: ("float32", "int8"),
  inference_works.exported: (
    *(f"openvino_{precision}" for precision in _THREE),
    *("onnxruntime_float32", "onnxruntime_int8"),
  ),
  inference_peers.openvino: _THREE,
  inference_peers.openvino_as_they_come: ("int8",),
}
MODELS = {"minilm": "MiniLM", "bert-base": "BERT-Base", "tiny": "a tiny model"}


def main(_: list[str]) -> None:
  """Times all works with all sides, and prints ratios."""
  if not FLAGS.minilm and not FLAGS.vocab_file:
    raise InputError("--minilm or --vocab_file: not given. Name one")
  side_by_side.check_peers("torch", "transformers")
  given = {
    "mrpc": os.path.isdir(os.path.join(FLAGS.glue_dir or "", "MRPC")),
    "squad": FLAGS.squad_file,
    "passages": FLAGS.squad_file,
    "lines": FLAGS.text_file,
    "tokens": True,
  }
  chosen = FLAGS.works or [n for n, work in WORKS.items() if given[work.texts]]
  for model in FLAGS.models:
    for task in inference_works.TASKS:
      works = [name for name in chosen if WORKS[name].task == task]
      if works:
        compare(model, task, works)


def chosen_sides(**settings: str) -> Iterator[Side]:
  """The sides that the flags name."""
  for function, precisions in FUNCTIONS.items():
    family = function.__name__
    python = sys.executable if family in OURS else FLAGS.peer_python
    for precision in precisions:
      name = f"{family}-{precision}"
      is_named = not FLAGS.sides or {name, family} & set(FLAGS.sides)
      if python and is_named:
        own = {**settings, "precision": precision}
        yield Side(name, function, python, own)


def compare(model: str, task: str, works: list[str]) -> None:
  """Compares and times the sides of a model; reports the results."""
  print(f"\n{model}, {task}")
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    settings = {"model": model, "task": task, "folder": folder}
    maker = Side("model", inference_works.make_model, settings=settings)
    with Worker(maker):
      pass
    workers = []
    for side in chosen_sides(**settings):
      with reporting(side.name):
        workers.append(stack.enter_context(Worker(side)))
    for work in works:
      print(f"\n{model}, {work}")
      workers = compare_outputs(workers, work)
      values = side_by_side.alternate(
        workers,
        FLAGS.passes,
        lambda worker, request=f"time {work}": [worker.ask(request)],
      )
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
      cosines = cosine_similarities(*map(np.load, pairs[0]))
      found = f"cosine {cosines.mean():.5f} per token"
      found += f", lowest {cosines.min():.5f}"
    elif isinstance(pairs[0][0], str):
      differ = sum(first != other for first, other in pairs)
      found = f"{differ} of {len(pairs)} differ"
    else:
      found = f"differ by at most {max(abs(a - b) for a, b in pairs):.1g}"
    print(f"outputs of {worker.name} and {able[0].name}: {found}", flush=True)
  return able


def pairs_of(values: results.Values) -> Iterator[tuple[str, str, str]]:
  """Measure, side of ours, and each of the others at its best.

  Without any other code, the first side is what others are compared with.
  """
  for measure, by_side in values.items():
    medians = {name: statistics.median(s) for name, s in by_side.items()}
    own = [name for name in by_side if name.partition("-")[0] in OURS]
    best: dict[str, str] = {}
    for name in sorted(medians, key=medians.__getitem__):
      if name not in own:
        best.setdefault(name.partition("-")[0], name)
    for name in own:
      for other in best.values() or [next(iter(by_side))]:
        yield measure, name, other


if __name__ == "__main__":
  side_by_side.run(
    main,
    models=(
      ["minilm", "bert-base"],
      "Models: minilm; bert-base and tiny, which have random weights.",
    ),
    works=(
      [],
      f"Some of {', '.join(WORKS)}: -one is the latency of one text alone,"
      " tokens are texts of 128 tokens; default: those whose data is given.",
    ),
    sides=(
      [],
      "Sides such as predictor or predictor-int8; default: all. Those of others"
      " are compared with; without any, the first side is.",
    ),
    minilm=(str, "MiniLM for transformers; default: random weights."),
    vocab_file=(str, "Vocabulary of random weights; default: MiniLM's."),
    glue_dir=(str, "Folder of MRPC."),
    squad_file=(str, "SQuAD's dev-v1.1.json."),
    text_file=(str, "Lines to encode as vectors."),
    max_texts=(256, "Number of texts of each work, evenly spaced in the data."),
    latency_runs=(100, "Texts predicted alone per pass."),
  )
