"""Benchmark of training sentence embeddings, and of their quality.

run_embeddings.py and sentence-transformers in turns, from the same weights and
with the same settings. Each pass is a training run with its own seed, and an
evaluation: of STS-B, or of a search for the paragraph of each question of
SQuAD, after training on questions with their paragraphs.

    python -m benchmarks.embeddings --sentence_transformers_dir=DIR \
        --stsb_dir=glue/STS-B
    python -m benchmarks.embeddings --sentence_transformers_dir=DIR \
        --squad_train_file=train-v1.1.json --squad_dev_file=dev-v1.1.json

`benchmarks.inference` measures the speed of encoding.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Callable

from absl import flags

from benchmarks import inference_works, results, side_by_side
from benchmarks.side_by_side import Answer, Worker

FLAGS = flags.FLAGS

TIMES = ["training", "whole command"]
METRICS = [name for name, m in results.MEASURES.items() if m.is_metric]


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags(passes=3)
  flags.adopt_module_key_flags(side_by_side)
  flags.DEFINE_string(
    "sentence_transformers_dir",
    None,
    "Model to start from, in the format of sentence-transformers: mean pooling,"
    " normalized.",
    required=True,
  )
  flags.DEFINE_integer(
    "reinitialize_layers", 0, "Upper layers that start from random weights."
  )
  flags.DEFINE_string("stsb_dir", None, "Folder of STS-B.")
  flags.DEFINE_string("squad_train_file", None, "SQuAD's training set.")
  flags.DEFINE_string("squad_dev_file", None, "SQuAD's dev set.")
  flags.DEFINE_enum("loss", "cosent", ["cosent", "cosine"], "Loss on STS-B.")
  flags.DEFINE_integer("train_batch_size", 32, "Pairs per step.")
  flags.DEFINE_float("learning_rate", 5e-5, "Its peak.")
  flags.DEFINE_float("num_train_epochs", 3.0, "Epochs per pass.")
  flags.DEFINE_integer("max_seq_length", 128, "Longer texts are truncated.")
  flags.DEFINE_integer(
    "seed", 1, "Seed of the first pass; each pass has the next one."
  )
  flags.DEFINE_bool("evaluate_first", True, "Evaluate before training too.")
  flags.DEFINE_string(
    "launcher", "", "Words before each command, such as 'taskset -c 0-3'."
  )


def main(_: list[str]) -> None:
  """Trains both sides in turns; reports metrics, and ratios of times."""
  model = os.path.basename(FLAGS.sentence_transformers_dir.rstrip("/"))
  if FLAGS.reinitialize_layers:
    model += f" with {FLAGS.reinitialize_layers} random layers"
  epochs = FLAGS.num_train_epochs
  settings = f"{model}, {epochs:g} epoch{'s' * (epochs != 1)}"
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    model_dir = os.path.join(folder, "start")
    reinitialize(
      FLAGS.sentence_transformers_dir, model_dir, FLAGS.reinitialize_layers
    )
    for name, data in write_data(folder):
      workers = [
        stack.enter_context(Worker(*side, model_dir=model_dir, data=data))
        for side in side_by_side.chosen([ours, sentence_transformers])
      ]
      for worker in workers[1:]:
        side_by_side.print_difference(workers[0], worker)
      values = side_by_side.alternate(workers)
      answers = {worker.name: worker.first_answer for worker in workers}
      side_by_side.report(f"{name}, {settings}", answers, values)
      print_metrics({name: values[name] for name in METRICS if name in values})


# Models and data


def reinitialize(source: str, target: str, num_layers: int) -> None:
  """Copies a model with random weights, of one seed, in its upper layers."""
  import numpy as np
  from safetensors import numpy as safetensors

  shutil.copytree(source, target)
  with open(os.path.join(target, "config.json"), encoding="utf-8") as file:
    config = json.load(file)
  path = os.path.join(target, "model.safetensors")
  tensors = safetensors.load_file(path)
  first = config["num_hidden_layers"] - num_layers
  random = np.random.RandomState(1)
  for name, tensor in sorted(tensors.items()):
    layer = re.search(r"\blayer\.(\d+)\.", name)
    if layer is None or int(layer[1]) < first:
      continue
    if tensor.ndim == 2:
      deviation = config["initializer_range"]
      tensor = random.normal(scale=deviation, size=tensor.shape)
    else:
      is_scale = name.endswith("LayerNorm.weight")
      tensor = np.full(tensor.shape, float(is_scale))
    tensors[name] = tensor.astype(np.float32)
  safetensors.save_file(tensors, path, {"format": "pt"})


def write_data(folder: str) -> Iterator[tuple[str, dict[str, str]]]:
  """Writes data sets; yields names and flags, the same for both sides."""
  if FLAGS.stsb_dir:
    data = {
      "train_file": os.path.join(FLAGS.stsb_dir, "train.tsv"),
      "dev_file": os.path.join(FLAGS.stsb_dir, "dev.tsv"),
      "text_columns": "sentence1,sentence2",
      "score_column": "score",
      "max_score": "5",
      "loss": FLAGS.loss,
    }
    yield "STS-B", data
  if FLAGS.squad_train_file and FLAGS.squad_dev_file:
    train_file = os.path.join(folder, "train.jsonl")
    pairs = inference_works.squad_questions(FLAGS.squad_train_file)
    names = ("question", "paragraph")
    write_rows(train_file, (dict(zip(names, pair)) for pair in pairs))
    pairs = inference_works.squad_questions(FLAGS.squad_dev_file)
    dev_dir = os.path.join(folder, "dev")
    write_retrieval(dev_dir, list(pairs))
    data = {
      "train_file": train_file,
      "dev_file": dev_dir,
      "text_columns": ",".join(names),
      "loss": "infonce",
    }
    yield "SQuAD questions and paragraphs", data


def write_retrieval(folder: str, pairs: list[tuple[str, str]]) -> None:
  """Writes queries and the documents to find, in the layout of BEIR."""
  os.makedirs(os.path.join(folder, "qrels"))
  id_of: dict[str, str] = {}
  for _, document in pairs:
    id_of.setdefault(document, f"d{len(id_of)}")
  write_rows(
    os.path.join(folder, "corpus.jsonl"),
    ({"_id": name, "text": text} for text, name in id_of.items()),
  )
  write_rows(
    os.path.join(folder, "queries.jsonl"),
    ({"_id": f"q{i}", "text": query} for i, (query, _) in enumerate(pairs)),
  )
  with open(os.path.join(folder, "qrels", "test.tsv"), "w") as file:
    print("query-id", "corpus-id", "score", sep="\t", file=file)
    for index, (_, document) in enumerate(pairs):
      print(f"q{index}", id_of[document], 1, sep="\t", file=file)


def write_rows(path: str, rows: Iterable[dict[str, str]]) -> None:
  """Writes a JSON Lines file."""
  with open(path, "w", encoding="utf-8") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)


# Sides


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """run_embeddings.py, from the weights that convert_checkpoint.py writes."""
  from bertlib.io import result_files

  with tempfile.TemporaryDirectory() as folder:
    start = os.path.join(folder, "start")
    run(
      settings, "convert_checkpoint.py", input=settings.model_dir, output=start
    )

    def command(**options):
      output_dir = os.path.join(folder, "output")
      answer, _ = run(
        settings,
        "run_embeddings.py",
        "--do_eval",
        "--bias_correction",
        *(["--do_train"] if "train_file" in options else []),
        init_checkpoint=start,
        output_dir=output_dir,
        **options,
      )
      path = os.path.join(output_dir, "eval_results.txt")
      for name, value in result_files.read_results(path).items():
        answer[name.removeprefix("eval_")] = value
      shutil.rmtree(output_dir)
      return answer

    yield from passes(
      settings, command, settings.precision, settings.precision, libraries=[]
    )


def sentence_transformers(settings: SimpleNamespace) -> Iterator[Answer]:
  """sentence-transformers, in float32 or bfloat16 autocast."""

  def command(**options):
    answer, output = run(
      settings,
      "-m",
      "benchmarks.finetune_sentence_transformers",
      model_dir=settings.model_dir,
      **options,
    )
    return answer | json.loads(output.splitlines()[-1])

  precision = description = settings.peer_precision
  if precision == "auto":
    precision, description = side_by_side.best_precision(
      functools.partial(trial, settings, command), precision
    )
  libraries = ["sentence-transformers", "transformers", "torch"]
  yield from passes(settings, command, precision, description, libraries)


def trial(settings: SimpleNamespace, command: Callable, precision: str) -> None:
  """Trains for about ten steps."""
  with open(settings.data["train_file"], encoding="utf-8") as file:
    num_examples = sum(1 for _ in file)
  options = training_flags(settings, precision)
  epochs = 10 * settings.train_batch_size / num_examples
  command(**{**options, "num_train_epochs": epochs})


def passes(
  settings: SimpleNamespace,
  command: Callable,
  precision: str,
  description: str,
  libraries: Iterable[str],
) -> Iterator[Answer]:
  """A side that trains once per pass."""
  versions = side_by_side.versions()
  versions |= {name: importlib.metadata.version(name) for name in libraries}
  first: Answer = {"description": description, "versions": versions}
  if settings.evaluate_first:
    evaluation = {**settings.data, "max_seq_length": settings.max_seq_length}
    del evaluation["train_file"], evaluation["loss"]
    metrics = shown_metrics(command(**evaluation))
    first["outputs"] = list(metrics.values())
    first["description"] += f"; before training: {describe(metrics)}"
  yield first
  for seed in itertools.count(settings.seed):
    options = training_flags(settings, precision)
    answer = command(**options, seed=seed)
    answer["training"] /= settings.train_batch_size
    yield {name: answer[name] for name in TIMES} | shown_metrics(answer)


def training_flags(settings: SimpleNamespace, precision: str) -> dict[str, Any]:
  """Flags of training, which both sides have, by name."""
  names = [
    "train_batch_size",
    "learning_rate",
    "num_train_epochs",
    "max_seq_length",
  ]
  options = {name: getattr(settings, name) for name in names}
  return {**settings.data, **options, "precision": precision}


def run(
  settings: SimpleNamespace, *command: str, **options: Any
) -> tuple[Answer, str]:
  """Runs a command of Python, and measures the time of training."""
  start = time.perf_counter()
  steps: list[tuple[int, float]] = []
  log = []
  with tempfile.TemporaryFile("w+") as output:
    process = subprocess.Popen(
      [
        *shlex.split(settings.launcher),
        sys.executable,
        *command,
        *(f"--{name}={value}" for name, value in options.items()),
      ],
      stdout=output,
      stderr=subprocess.PIPE,
      text=True,
    )
    for line in process.stderr:
      log.append(line)
      step = re.search(r"\bstep (\d+) of \d+\b", line)
      if step:
        steps.append((int(step[1]), time.perf_counter()))
    if process.wait():
      raise ChildProcessError("".join(log))
    output.seek(0)
    answer = {"whole command": time.perf_counter() - start}
    if steps:
      (first, began), (last, ended) = steps[0], steps[-1]
      answer["training"] = (ended - began) / (last - first)
    return answer, output.read()


# Results


def shown_metrics(answer: Mapping[str, Any]) -> dict[str, float]:
  """The metrics among the values of an answer."""
  return {name: answer[name] for name in METRICS if name in answer}


def describe(metrics: Mapping[str, float]) -> str:
  """Metrics with their names, to print."""
  return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def print_metrics(values: Mapping[str, Mapping[str, list[float]]]) -> None:
  """Prints means, and differences to ours."""
  for metric, by_side in values.items():
    for name, of_passes in by_side.items():
      mean = statistics.fmean(of_passes)
      ahead = mean - statistics.fmean(next(iter(by_side.values())))
      each = ", ".join(f"{value:.4f}" for value in of_passes)
      print(f"{metric}, {name}: mean {mean:.4f} ({ahead:+.4f}) of {each}")


if __name__ == "__main__":
  from bertlib.cli import app

  define_flags()
  app.run(main)
