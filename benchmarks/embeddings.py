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

import importlib.metadata
import itertools
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, Callable

from benchmarks import inference_works, results, side_by_side
from benchmarks.side_by_side import FLAGS, Answer, Answers, Settings

METRICS = [name for name, m in results.MEASURES.items() if m.is_metric]


def main(_: list[str]) -> None:
  """Trains both sides in turns; reports metrics, and ratios of times."""
  model = os.path.basename(FLAGS.sentence_transformers_dir.rstrip("/"))
  if FLAGS.reinitialize_layers:
    model += f" with {FLAGS.reinitialize_layers} random layers"
  epochs = FLAGS.num_train_epochs
  settings = f"{model}, {epochs:g} epoch{'s' * (epochs != 1)}"
  with tempfile.TemporaryDirectory() as folder:
    model_dir = os.path.join(folder, "start")
    reinitialize(
      FLAGS.sentence_transformers_dir, model_dir, FLAGS.reinitialize_layers
    )
    for name, data in write_data(folder):
      sides = side_by_side.chosen(
        [ours, sentence_transformers],
        ["datasets", "sentence-transformers"],
        model_dir=model_dir,
        data=data,
      )
      side_by_side.compare(sides, f"{name}, {settings}")


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
      "loss": "cosent",
    }
    yield "STS-B", data
  if FLAGS.squad_train_file and FLAGS.squad_dev_file:
    train_file = os.path.join(folder, "train.jsonl")
    pairs = inference_works.squad_questions(FLAGS.squad_train_file)
    names = ("question", "paragraph")
    results.write_rows(train_file, (dict(zip(names, pair)) for pair in pairs))
    data = {
      "train_file": train_file,
      "dev_file": os.path.join(folder, "dev"),
      "text_columns": ",".join(names),
      "loss": "infonce",
    }
    pairs = list(inference_works.squad_questions(FLAGS.squad_dev_file))
    texts = dict.fromkeys(text for _, text in pairs)
    id_of = {text: f"d{number}" for number, text in enumerate(texts)}
    results.write_beir(
      data["dev_file"],
      {name: text for text, name in id_of.items()},
      {f"q{number}": query for number, (query, _) in enumerate(pairs)},
      [(f"q{n}", id_of[text], 1) for n, (_, text) in enumerate(pairs)],
    )
    yield "SQuAD questions and paragraphs", data


def ours(settings: Settings) -> Answers:
  """run_embeddings.py, from the weights that convert_checkpoint.py writes."""
  from bertlib.io import result_files

  with tempfile.TemporaryDirectory() as folder:
    start = os.path.join(folder, "start")
    run("convert_checkpoint.py", input=settings.model_dir, output=start)

    def command(**options):
      output_dir = os.path.join(folder, "output")
      answer, _ = run(
        "run_embeddings.py",
        "--do_eval",
        "--bias_correction",
        *(["--do_train"] if "train_file" in options else []),
        init_checkpoint=start,
        output_dir=output_dir,
        **options,
      )
      path = os.path.join(output_dir, "eval_results.txt")
      answer |= result_files.read_results(path)
      shutil.rmtree(output_dir)
      return answer

    first = {"description": settings.precision}
    yield from passes(settings, command, settings.precision, first)


def sentence_transformers(settings: Settings) -> Answers:
  """sentence-transformers, in float32 or bfloat16 autocast."""

  def command(**options):
    module = "benchmarks.finetune_sentence_transformers"
    answer, output = run("-m", module, model_dir=settings.model_dir, **options)
    return answer | json.loads(output.splitlines()[-1])

  def trial(precision, compiles):  # about ten steps
    with open(settings.data["train_file"], encoding="utf-8") as file:
      num_examples = sum(1 for _ in file)
    epochs = 10 * settings.train_batch_size / num_examples
    options = training_flags(settings, precision)
    command(**{**options, "num_train_epochs": epochs})

  precision = description = settings.peer_precision
  if precision == "auto":
    settings.torch_compile = "off"
    (precision, _), description = side_by_side.best_variant(trial, settings)
  versions = side_by_side.versions()
  for library in ("sentence-transformers", "transformers", "torch"):
    versions[library] = importlib.metadata.version(library)
  first = {"description": description, "versions": versions}
  yield from passes(settings, command, precision, first)


def passes(
  settings: Settings, command: Callable, precision: str, first: Answer
) -> Answers:
  """A side that trains once per pass, each with the next seed."""
  if settings.evaluate_first:
    evaluation = {**settings.data, "max_seq_length": settings.max_seq_length}
    del evaluation["train_file"], evaluation["loss"]
    metrics = measured(command(**evaluation))
    del metrics["whole command"]
    shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    first["outputs"] = list(metrics.values())
    first["description"] += f"; before training: {shown}"
  yield first
  for seed in itertools.count(1):
    yield measured(command(**training_flags(settings, precision), seed=seed))


def training_flags(settings: Settings, precision: str) -> dict[str, Any]:
  """Flags of training, which both sides have, by name."""
  names = ("train_batch_size", "max_seq_length")
  names += ("learning_rate", "num_train_epochs")
  options = {name: getattr(settings, name) for name in names}
  return {**settings.data, **options, "precision": precision}


def run(*command: str, **options: Any) -> tuple[Answer, str]:
  """Runs a command of Python, and measures the time of training per example.

  That is the time after the first step: a single one has none.
  """
  ends: dict[int, float] = {}

  def watch(line):
    if step := re.search(r"\bstep (\d+) of \d+\b", line):
      ends[int(step[1])] = time.perf_counter()

  done = side_by_side.run_python(*command, watch=watch, **options)
  answer = {"whole command": done.seconds}
  if len(ends) > 1:
    first, last = min(ends), max(ends)
    num_examples = (last - first) * options["train_batch_size"]
    answer["training"] = (ends[last] - ends[first]) / num_examples
  return answer, done.output


def measured(answer: Mapping[str, Any]) -> dict[str, Any]:
  """The times and metrics of an answer, by name."""
  names = {name: name for name in ("training", "whole command")}
  names |= {f"eval_{name}": name for name in METRICS}
  return {names[key]: answer[key] for key in names if key in answer}


if __name__ == "__main__":
  side_by_side.run(
    main,
    passes=3,
    sentence_transformers_dir="Model to start from, in the format of"
    " sentence-transformers: mean pooling, normalized.",
    reinitialize_layers=(0, "Upper layers that start from random weights."),
    stsb_dir=(str, "Folder of STS-B."),
    squad_train_file=(str, "SQuAD's training set."),
    squad_dev_file=(str, "SQuAD's dev set."),
    train_batch_size=(32, "Pairs per step."),
    learning_rate=(5e-5, "Its peak."),
    num_train_epochs=(3.0, "Epochs per pass."),
    max_seq_length=(128, "Longer texts are truncated."),
    evaluate_first=(True, "Evaluate before training too."),
  )
