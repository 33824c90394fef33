"""Compares ways of pretraining a small model on the same text.

Every tenth document is held out, and each training sees as many tokens: masked
LM with and without next sentence prediction, with twice as many masks, and on
packed rows; or, on long segments, masked LM and ELECTRA. Prints metrics on the
held-out masks and, with `--sst_dir`, accuracies on sentiment as a Markdown
table, and plots the former over the tokens.

    python -m benchmarks.pretraining_variants --text_file=novels.txt \
        --vocab_file=output/novels-vocab.txt \
        --bert_config_file=output/novels-config.json --folder=output/variants
"""

from __future__ import annotations

import itertools
import os
import random
import re
import statistics
import subprocess
import sys

import numpy as np
from absl import flags

from benchmarks import side_by_side
from bertlib.io import result_files, text_files
from bertlib.reporting import run_report
from website import markdown

FLAGS = flags.FLAGS
Scalars = dict[str, list[tuple[int, float]]]

# ELECTRA with the tables of DeBERTa V3, for which there is no flag.
_DISENTANGLED = """
import dataclasses
from bertlib.tasks.pretraining import objectives
objectives.OBJECTIVES["electra"] = dataclasses.replace(
  objectives.ELECTRA, is_disentangled=True
)
"""

# What differs, by name: flags of the data, flags of the training.
PAIRS = ["--short_seq_prob=1"]  # of random lengths: that leaves some to pack
DOCUMENTS = ["--segments=documents"]
ONCE = ["--dupe_factor=1"]
PACKED = ["--pack", "--remask"]
ELECTRA = [*PACKED, "--objective=electra", "--mask_split=85,0,15"]
VARIANTS = {
  "masked LM and next sentence": (PAIRS, []),
  "masked LM": (PAIRS, ["--objective=mlm"]),
  "masked LM with 30% masked": (
    [*PAIRS, "--masked_lm_prob=0.3"],
    ["--objective=mlm"],
  ),
  # About as many tokens per step as without packing.
  "masked LM on packed rows": (
    [*PAIRS, "--pack"],
    ["--objective=mlm", "--train_batch_size=29"],
  ),
  "untrained": (DOCUMENTS, ["--objective=mlm", "--token_budget=1"]),
  "masked LM on documents": (DOCUMENTS, [*PACKED, "--objective=mlm"]),
  "ELECTRA": (DOCUMENTS, ELECTRA),
  "disentangled ELECTRA": (DOCUMENTS, ELECTRA),
}
METRICS = "masked_lm_loss", "masked_lm_accuracy", "disc_auc"
SIZES = ["--max_seq_length=64", "--max_predictions_per_seq=20"]
DATA = [*SIZES, "--dupe_factor=2"]
TRAINING = [
  *SIZES,
  *("--do_train", "--do_eval", "--eval_steps=250", "--eval_batch_size=32"),
  *("--train_batch_size=32", "--learning_rate=1e-3", "--bias_correction"),
  *("--warmup_proportion=0.1", "--precision=auto"),
]
FINE_TUNING = [
  *("--task_name=SST-2", "--do_train", "--do_eval", "--max_seq_length=64"),
  *("--train_batch_size=32", "--learning_rate=3e-4", "--num_train_epochs=3"),
]
NUM_SENTENCES = 2000


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.require(
    text_file="Text: a sentence per line, a blank line between documents.",
    vocab_file="Vocabulary.",
    bert_config_file="Config of the model.",
    folder="Folder for all files.",
  )
  side_by_side.define(
    tokens=(3_000_000, "Tokens per training."),
    variants=([*VARIANTS][:4], "Names."),
    training=([], "More flags of each training."),
    seeds=(["12345"], "Seeds."),
    sst_dir=(str, "SST-2: the first 2,000 sentences are trained on."),
  )


def main(_: list[str]) -> None:
  """Trains all variants, and reports their metrics."""
  os.makedirs(FLAGS.folder, exist_ok=True)
  documents = "".join(text_files.read_lines(FLAGS.text_file)).split("\n\n")
  held_out = {
    kind[0]: write_records(kind[0], documents[9::10], [*kind, *ONCE])
    for kind in (PAIRS, DOCUMENTS)
  }
  del documents[9::10]
  records = {
    name: write_records(name, documents, VARIANTS[name][0])
    for name in FLAGS.variants
  }
  curves: dict[str, list[Scalars]] = {name: [] for name in records}
  found: dict[str, dict[str, list[float]]] = {name: {} for name in records}
  for seed, name in itertools.product(FLAGS.seeds, records):
    kind = VARIANTS[name][0][0]
    scalars = train(name, seed, records[name], held_out[kind])
    curves[name].append(scalars)
    values = {"steps": max(scalars["loss"])[0]}
    values |= {m: scalars[m][-1][1] for m in METRICS if m in scalars}
    values |= accuracies(path(f"{name} {seed}"), seed)
    for measure, value in values.items():
      found[name].setdefault(measure, []).append(value)
    print(name, seed, values, flush=True)
  heads = dict.fromkeys(itertools.chain.from_iterable(found.values()))
  rows = [[name, *(show(found[name].get(m)) for m in heads)] for name in found]
  print(markdown.table(["training", *heads], rows))
  draw(curves)


def show(values: list[float] | None) -> str:
  """Mean of all seeds, and its standard error."""
  if not values:
    return "–"
  error = statistics.stdev(values) / len(values) ** 0.5 if values[1:] else 0
  digits = 0 if values[0] > 100 else 3
  text = f"{statistics.fmean(values):,.{digits}f}"
  return f"{text} ± {error:.{digits}f}" if error else text


def accuracies(model: str, seed: str) -> dict[str, float]:
  """Accuracy on SST-2: fine-tuned, and of logistic regression on means."""
  if not FLAGS.sst_dir:
    return {}
  from sklearn import linear_model, pipeline, preprocessing

  rows = {}
  os.makedirs(path("sst"), exist_ok=True)
  for split, number in (("train", NUM_SENTENCES), ("dev", None)):
    with open(os.path.join(FLAGS.sst_dir, f"{split}.tsv")) as file:
      lines = file.readlines()
    lines[1:] = random.Random(split).sample(lines[1:], len(lines) - 1)[:number]
    rows[split] = [line.strip("\n").split("\t") for line in lines[1:]]
    with open(path("sst", f"/{split}.tsv"), "w") as file:
      file.writelines(lines)
  with open(path("sst", ".txt"), "w") as file:
    file.writelines(f"{text}\n" for text, _ in [*rows["train"], *rows["dev"]])
  run(
    "run_classifier.py",
    *(f"--init_checkpoint={model}", f"--output_dir={model}_sst"),
    *(f"--data_dir={path('sst')}", f"--seed={seed}", *FINE_TUNING),
  )
  run(
    "extract_features.py",
    *(f"--init_checkpoint={model}", f"--output_file={model}.npz"),
    *("--pooling=mean", "--output_format=npz", "--max_seq_length=64"),
    f"--input_file={path('sst', '.txt')}",
  )
  results = result_files.read_results(f"{model}_sst/eval_results.txt")
  vectors = np.load(f"{model}.npz")["vectors"]
  labels = {split: [label for _, label in rows[split]] for split in rows}
  classifier = pipeline.make_pipeline(
    preprocessing.StandardScaler(),
    linear_model.LogisticRegression(C=0.1, max_iter=1000),
  ).fit(vectors[:NUM_SENTENCES], labels["train"])
  return {
    "fine-tuned": results["eval_accuracy"],
    "frozen": classifier.score(vectors[NUM_SENTENCES:], labels["dev"]),
  }


def path(name: str, ending: str = "") -> str:
  """Path of a file or folder of a variant."""
  return os.path.join(FLAGS.folder, re.sub(r"\W+", "_", name) + ending)


def run(script: str, *arguments: str, before: str = "") -> None:
  """Runs a command of this project, after some lines of Python."""
  code = f"{before}\nimport runpy; runpy.run_path({script!r}, None, '__main__')"
  subprocess.run([sys.executable, "-c", code, *arguments], check=True)


def write_records(name: str, documents: list[str], more: list[str]) -> str:
  """Writes the records of some documents; returns their file."""
  with open(path(name, ".txt"), "w", encoding="utf-8") as file:
    file.write("\n\n".join(documents))
  run(
    "create_pretraining_data.py",
    f"--input_file={path(name, '.txt')}",
    f"--output_file={path(name, '.tfrecord')}",
    f"--vocab_file={FLAGS.vocab_file}",
    *DATA,
    *more,
  )
  return path(name, ".tfrecord")


def train(name: str, seed: str, records: str, held_out: str) -> Scalars:
  """Trains on records; returns the metrics of evaluations, by step."""
  output = path(f"{name} {seed}")
  run(
    "run_pretraining.py",
    f"--input_file={records}",
    f"--eval_input_file={held_out}",
    f"--vocab_file={FLAGS.vocab_file}",
    f"--bert_config_file={FLAGS.bert_config_file}",
    f"--output_dir={output}",
    f"--seed={seed}",
    f"--token_budget={FLAGS.tokens}",
    *TRAINING,
    *VARIANTS[name][1],
    *FLAGS.training,
    before=_DISENTANGLED if name.startswith("disentangled") else "",
  )
  return run_report.read_scalars(os.path.join(output, "dev"))


def draw(curves: dict[str, list[Scalars]]) -> None:
  """Plots the held-out metrics over the tokens, means of all seeds."""
  import matplotlib

  matplotlib.use("agg")
  from matplotlib import pyplot

  labels = {
    "masked_lm_loss": "held-out masked LM loss (nat)",
    "disc_auc": "held-out disc_auc",
  }
  metrics = [m for m in labels if any(m in runs[0] for runs in curves.values())]
  size = 7, 3.6
  figure, panels = pyplot.subplots(
    1, len(metrics), figsize=size, layout="constrained", squeeze=False
  )
  for metric, axes in zip(metrics, panels[0]):
    for name, runs in curves.items():
      if len(runs[0].get(metric, ())) > 1:
        steps = [step for step, _ in runs[0][metric]]
        tokens = [FLAGS.tokens * step / steps[-1] for step in steps]
        lines = zip(*(run[metric] for run in runs))
        means = [statistics.fmean(v for _, v in line) for line in lines]
        axes.plot(tokens, means, label=name)
    axes.set(xlabel="tokens", ylabel=labels[metric])
    axes.spines[["top", "right"]].set_visible(False)
  panels[0][0].legend(frameon=False)
  figure.savefig(path("curves", ".png"), dpi=150)


if __name__ == "__main__":
  side_by_side.run(main, define_flags)
