"""Compares ways of pretraining a small model on the same text.

Each on the same number of tokens, every tenth document held out. The study
`objectives` is masked LM with and without next sentence prediction, with twice
as many masks, and on packed rows; `electra` is masked LM, ELECTRA with shared
tables and with disentangled ones, and random weights. Prints the loss on the
same held-out masks as a Markdown table, and plots metrics over the tokens.

    python -m benchmarks.pretraining_variants --text_file=novels.txt \
        --vocab_file=output/novels-vocab.txt \
        --bert_config_file=output/novels-config.json --folder=output/variants

With `--sst2_dir` also what the encoders are worth: each is fine-tuned on 2,000
sentences of SST-2, and a logistic regression learns these from its frozen mean
vectors.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.io import receipt_file, text_files
from bertlib.reporting.run_report import read_scalars
from website import markdown

# Disentangled tables are a field of the objective, without a flag.
_DISENTANGLED = """
import dataclasses, runpy
from bertlib.tasks.pretraining import objectives
objectives.OBJECTIVES["electra"] = dataclasses.replace(
  objectives.ELECTRA, is_disentangled=True
)
runpy.run_path("run_pretraining.py", run_name="__main__")
"""
UNTRAINED = "none: random weights"


class Study(NamedTuple):
  """Trainings that are compared."""

  data: list[str]  # flags of the records
  training: list[str]  # flags of all trainings
  # What differs, by name: flags of the data, flags of the training.
  variants: dict[str, tuple[list[str], list[str]]]


SIZES = ["--max_seq_length=64", "--max_predictions_per_seq=20"]
MASKS = ["--masked_lm_prob=0.25"]
STUDIES = {
  "objectives": Study(
    # The sequences of a document have a random length: some can be packed.
    ["--short_seq_prob=1", "--dupe_factor=2"],
    ["--eval_steps=250", "--bias_correction"],
    {
      "masked LM and next sentence": ([], []),
      "masked LM": ([], ["--objective=mlm"]),
      "masked LM, 30% masked": (["--masked_lm_prob=0.3"], ["--objective=mlm"]),
      # About as many tokens per step as without packing.
      "masked LM, packed": (
        ["--pack"],
        ["--objective=mlm", "--train_batch_size=29"],
      ),
    },
  ),
  "electra": Study(
    [*MASKS, "--segments=documents", "--dupe_factor=1", "--short_seq_prob=0.1"],
    [*MASKS, "--eval_steps=500", "--remask", "--mask_split=85,0,15"],
    {
      "masked LM": ([], ["--objective=mlm"]),
      "ELECTRA": ([], ["--objective=electra"]),
      "ELECTRA, disentangled": ([], ["--objective=electra"]),
      UNTRAINED: (
        [],
        ["--objective=mlm", "--token_budget=1", "--learning_rate=1e-12"],
      ),
    },
  ),
}
COMMANDS = {"ELECTRA, disentangled": ["-c", _DISENTANGLED]}
TRAINING = [
  *SIZES,
  *("--do_train", "--do_eval", "--eval_batch_size=32"),
  *("--train_batch_size=32", "--learning_rate=1e-3"),
  *("--warmup_proportion=0.1", "--precision=auto"),
]
FINE_TUNING = [
  *("run_classifier.py", "--task_name=SST-2", "--do_train", "--do_eval"),
  *("--max_seq_length=64", "--train_batch_size=32", "--learning_rate=3e-4"),
  *("--num_train_epochs=5", "--bias_correction", "--precision=auto"),
]
NUM_SENTENCES = 2000
ACCURACIES = ("fine-tuned", "frozen")
CURVES = {
  "masked_lm_loss": "held-out masked LM loss (nat)",
  "disc_auc": "held-out AUC of the discriminator",
}


def main(_: list[str]) -> None:
  """Trains all variants, and reports what they are worth."""
  study = STUDIES[FLAGS.study]
  os.makedirs(path("SST-2"), exist_ok=True)
  documents, held_out_documents = split_documents()
  data = [*study.data, "--dupe_factor=1"]
  held_out = write_records("held_out", held_out_documents, data)
  sentences = {}
  if FLAGS.sst2_dir:
    sentences = {name: cut(f"{name}.tsv") for name in ("train", "dev")}
  found: dict[str, list[dict[str, float]]] = {}
  for name, (more, flags) in study.variants.items():
    records = write_records(name, documents, [*study.data, *more])
    words = [*COMMANDS.get(name, ["run_pretraining.py"]), *TRAINING]
    words += [*study.training, f"--token_budget={FLAGS.tokens}", *flags]
    for seed in range(1, FLAGS.seeds + 1):
      encoder = train(f"{name}-{seed}", words, records, held_out, seed)
      worth = held_out_metrics(encoder)
      if sentences:
        worth |= accuracies(encoder, seed, sentences)
      found.setdefault(name, []).append(worth)
  for key in ACCURACIES if sentences else ():
    for by_seed in found.values():
      for own, untrained in zip(by_seed, found.get(UNTRAINED, ())):
        own[f"{key}, more than untrained"] = own[key] - untrained[key]
  rows = [
    [name, *(mean_and_error([own[key] for own in by_seed]) for key in worth)]
    for name, by_seed in found.items()
  ]
  print(markdown.table(["training", *worth], rows))
  for metric, label in CURVES.items():
    draw(metric, label, study.variants)


def split_documents() -> tuple[list[str], list[str]]:
  """Documents to train on, and every tenth one, which is held out."""
  documents = "".join(text_files.read_lines(FLAGS.text_file)).split("\n\n")
  held_out = documents[9::10]
  del documents[9::10]
  return documents, held_out


def path(name: str, ending: str = "") -> str:
  """Path of a file or folder of a variant."""
  return os.path.join(FLAGS.folder, re.sub(r"\W+", "_", name) + ending)


def write_records(name: str, documents: list[str], data: list[str]) -> str:
  """Writes the records of some documents; returns their file."""
  with open(path(name, ".txt"), "w", encoding="utf-8") as file:
    file.write("\n\n".join(documents))
  side_by_side.run_python(
    *("create_pretraining_data.py", *SIZES, *data),
    watch=sys.stderr.write,
    input_file=path(name, ".txt"),
    output_file=path(name, ".tfrecord"),
    vocab_file=FLAGS.vocab_file,
  )
  return path(name, ".tfrecord")


def cut(name: str) -> list[tuple[str, int]]:
  """Sentences and labels of SST-2, the first ones, copied for training."""
  lines = [*text_files.read_lines(os.path.join(FLAGS.sst2_dir, name))]
  lines = lines[: NUM_SENTENCES + 1]
  with open(os.path.join(path("SST-2"), name), "w", encoding="utf-8") as file:
    file.writelines(lines)
  rows = (line.rstrip("\n").split("\t") for line in lines[1:])
  return [(sentence, int(label)) for sentence, label in rows]


def train(
  name: str, command: list[str], records: str, held_out: str, seed: int
) -> str:
  """Trains an encoder, unless it is there, and evaluates; its folder."""
  folder = path(name)
  if not os.path.exists(os.path.join(folder, "run.json")):
    side_by_side.run_python(
      *command,
      watch=sys.stderr.write,
      input_file=records,
      eval_input_file=held_out,
      vocab_file=FLAGS.vocab_file,
      bert_config_file=FLAGS.bert_config_file,
      seed=seed,
      output_dir=folder,
    )
  return folder


def held_out_metrics(encoder: str) -> dict[str, float]:
  """Number of steps, and the last metrics of the held-out masked LM."""
  scalars = read_scalars(os.path.join(encoder, "dev"))
  step, loss = scalars["masked_lm_loss"][-1]
  _, accuracy = scalars["masked_lm_accuracy"][-1]
  return {"steps": step, CURVES["masked_lm_loss"]: loss, "accuracy": accuracy}


def accuracies(
  encoder: str, seed: int, sentences: dict[str, list[tuple[str, int]]]
) -> dict[str, float]:
  """Accuracies in % of an encoder, fine-tuned and frozen."""
  from sklearn import linear_model, pipeline, preprocessing

  folder = f"{encoder}-SST-2"
  side_by_side.run_python(
    *FINE_TUNING,
    watch=sys.stderr.write,
    data_dir=path("SST-2"),
    init_checkpoint=encoder,
    seed=seed,
    output_dir=folder,
  )
  fine_tuned = receipt_file.last_training(folder)["results"]["eval_accuracy"]
  parts = {}
  for part, rows in sentences.items():
    texts, labels = zip(*rows)
    text_file = os.path.join(folder, f"{part}.txt")
    with open(text_file, "w", encoding="utf-8") as file:
      file.writelines(f"{text}\n" for text in texts)
    output_file = os.path.join(folder, f"{part}.npz")
    side_by_side.run_python(
      *("extract_features.py", "--pooling=mean", "--output_format=npz"),
      input_file=text_file,
      init_checkpoint=encoder,
      max_seq_length=64,
      output_file=output_file,
    )
    with np.load(output_file) as arrays:
      parts[part] = arrays["vectors"], labels
  classifier = pipeline.make_pipeline(
    preprocessing.StandardScaler(),
    linear_model.LogisticRegression(C=0.1, max_iter=1000),
  )
  frozen = classifier.fit(*parts["train"]).score(*parts["dev"])
  return dict(zip(ACCURACIES, (100 * fine_tuned, 100 * frozen)))


def mean_and_error(values: list[float]) -> str:
  """Mean of values of seeds, and its standard error."""
  mean = f"{statistics.mean(values):,.4g}"
  if len(values) == 1:
    return mean
  return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.2g}"


def draw(metric: str, label: str, names: Iterable[str]) -> None:
  """Plots a held-out metric of the first seed over the tokens, if it is one."""
  import matplotlib

  matplotlib.use("agg")
  from matplotlib import pyplot

  figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
  for name in names:
    curve = read_scalars(os.path.join(path(f"{name}-1"), "dev")).get(metric, ())
    if len(curve) > 1:  # else untrained
      scale = FLAGS.tokens / 1e6 / curve[-1][0]
      points = [(scale * step, value) for step, value in curve]
      axes.plot(*zip(*points), marker=".", label=name)
  axes.set(xlabel="million tokens", ylabel=label)
  axes.spines[["top", "right"]].set_visible(False)
  if axes.lines:
    axes.legend(frameon=False)
    figure.savefig(path(metric, ".png"), dpi=150)


if __name__ == "__main__":
  side_by_side.run(
    main,
    side_by_side.define,
    text_file="Text: a sentence per line, a blank line between documents.",
    vocab_file="Vocabulary.",
    bert_config_file="Config of the model.",
    folder="Folder for all files.",
    study=(tuple(STUDIES), "Trainings to compare."),
    tokens=(3_000_000, "Tokens per training."),
    seeds=(1, "Seeds 1, 2, ..."),
    sst2_dir=(str, "Folder of SST-2, to fine-tune on."),
  )
